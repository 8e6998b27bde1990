"""Epilogues whose operands are read by whole sectors: the macros of finish_wide.cuh.

An operand may have the layout of the results, with contiguous channels, or have one number for each channel, or for
each pixel, or only one. `finish` of epilogue.cuh reads any other operand element by element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.tensor_map import ALIGNMENT, TensorMap
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.gpu.prelude.epilogue import EpilogueCode
from jitdnn.tensor import DTYPES, TensorDescriptor

_HALVES = ("f16", "bf16")
_COUNTS = {"vector": "VECTORS", "pair": "PAIRS", "pixel": "PIXELS", "column": "COLUMNS"}
_BROUGHT_ROWS = (128, 64, 32)
"""Bytes of a row of a box that the copy engine brings."""
_REALS = (*_HALVES, "f32")
# what indices_of of cuda/matmul.py writes of products that are the groups of one: the column in one, and which it is
_OF_PRODUCT = re.compile(r"\(channel_\) % (\d+)")
_PRODUCT = re.compile(r"\(channel_\) / \d+")


@dataclass(frozen=True)
class WideEpilogue:
    """`defines`: macros of finish_wide.cuh. `alignments`: of the operands' addresses, in bytes. `brought`: the operand
    that the copy engine brings, see brought.cuh; None without one."""

    defines: tuple[tuple[str, object], ...]
    alignments: tuple[int, ...]
    brought: TensorMap | None


@dataclass(frozen=True)
class _Operand:
    """`kind`: vector, pair, pixel or column; `row`: a C expression of where a pixel's begin."""

    kind: str
    row: str
    alignment: int


def wide_epilogue(
    plan: Plan, code: EpilogueCode, output: TensorDescriptor, indices: Sequence[str]
) -> WideEpilogue | None:
    """What there is to say; None where the results or an operand lie otherwise."""
    if (
        not plan.is_wide
        or not code.functions
        or not plan.is_vector
        or not plan.blocking.is_whole
        or plan.is_wgrad
    ):
        return None
    if code.dtype != "f32" or plan.result not in _REALS or plan.blocking.tile.wn % 32:
        return None
    found = [_operand(one, indices) for one in code.operands]
    lists: dict[str, list[tuple[str, str, str]]] = {"vector": [], "pair": [], "pixel": [], "column": []}
    values = []
    for number, (one, tensor) in enumerate(zip(found, code.operands, strict=True), code.first):
        if one is None:
            return None
        own, name = lists[one.kind], f"e{number}"
        place = len(own)
        own.append((name, one.row, tensor.dtype))
        values.append({
            "vector": f"((e) ? {tensor.dtype}_high(of_vector[{place}][j]) : {tensor.dtype}_low(of_vector[{place}][j]))",
            "pair": f"__uint_as_float((e) ? of_pair[{place}].y : of_pair[{place}].x)",
            "pixel": f"of_pixel[row][{place}]",
            "column": f"of_column[j][e][{place}]",
        }[one.kind])  # fmt: skip
    brought = None
    if len(lists["vector"]) + len(lists["pair"]) == 1:
        number = next(n for n, one in enumerate(found) if one and one.kind in ("vector", "pair"))
        if code.operands[number] == output:
            brought = _brought(plan, code.first + number)
    counts = tuple((name, len(lists[kind])) for kind, name in _COUNTS.items())
    if brought:  # and threads need not know where it lies, so that one kernel serves every shape
        lists["vector"], lists["pair"] = [], []
    loads = {
        "vector": "load16_among_256({name} + (at))",
        "pair": "*(const uint2 *)({name} + (at))",
        "pixel": "(f32)load_{dtype}({name}, {row})",
    }
    made = {
        kind: [text.format(name=name, row=row, dtype=dtype) for name, row, dtype in lists[kind]]
        for kind, text in loads.items()
    }
    columns = [f"load_two_{dtype}({name} + (at), low, high)" for name, _, dtype in lists["column"]]
    defines = (
        *counts,
        ("VECTOR_ROW(n)", _choice([row for _, row, _ in lists["vector"]], "(i64)0")),
        ("PAIR_ROW(n)", _choice([row for _, row, _ in lists["pair"]], "(i64)0")),
        ("LOAD_VECTOR(n, at)", _choice(made["vector"], "uint4{}")),
        ("LOAD_PAIR(n, at)", _choice(made["pair"], "uint2{}")),
        ("LOAD_PIXEL(n)", _choice(made["pixel"], "0.0f")),
        ("LOAD_COLUMNS(n, at, low, high)", _choice(columns, "(void)0")),
        ("FINISH_WIDE(sum, row, j, e)", f"epilogue({', '.join(['(sum)', *values])})"),
        ("HAS_BROUGHT", int(brought is not None)),
        ("BROUGHT_ROW", brought.row_bytes if brought else 0),
    )
    alignments = tuple(ALIGNMENT if brought and one.kind == "pair" else one.alignment for one in found if one)
    return WideEpilogue(defines, alignments, brought)


def _brought(plan: Plan, number: int) -> TensorMap | None:
    """The map of an operand that lies as the results do, whose boxes take the place of rows of A in the ring of stages;
    None where results leave otherwise than in boxes, or other consumers take what is in the ring."""
    blocking, tile = plan.blocking, plan.blocking.tile
    if not (plan.takes_ring and plan.is_in_boxes) or plan.rows_first or tile.swaps or blocking.lines.taps > 1:
        return None
    if plan.divides_rows or plan.is_divided or plan.is_blockwise:
        return None
    size = DTYPES[plan.result]
    rows = (
        row
        for row in _BROUGHT_ROWS
        if row >= 16 * size and tile.wn * size % row == 0 and blocking.row % row == 0
    )
    row = next(rows, 0)
    return replace(plan.tables.maps[-1], operand=number, box=(row // size, 1, tile.m)) if row else None


def _choice(texts: Sequence[str], nothing: str) -> str:
    """A C expression of the n-th of them."""
    if not texts:
        return nothing
    text = texts[-1]
    for number in reversed(range(len(texts) - 1)):
        text = f"((n) == {number} ? {texts[number]} : {text})"
    return f"({text})"


def _operand(tensor: TensorDescriptor, indices: Sequence[str]) -> _Operand | None:
    size = DTYPES[tensor.dtype]
    if tensor.dtype not in _REALS:
        return None
    row: list[str] = []
    strides, channel = [], 0
    for index, stride, extent in zip(indices, tensor.strides, tensor.shape, strict=True):
        if not stride or extent == 1:
            continue
        of_product = _OF_PRODUCT.fullmatch(index)
        if index == "channel_" or of_product:
            channel = stride
        if of_product:
            row.append(f"(i64)work.group * {-int(of_product[1]) * stride}")
            strides.append(int(of_product[1]) * stride)
        elif index != "channel_":
            index = _PRODUCT.sub("work.group", index)
            if "channel_" in index:
                return None
            row.append(f"(i64)({index}) * {stride}")
            strides.append(stride)
    place = " + ".join(row) or "(i64)0"
    if channel == 0:
        return _Operand("pixel", place, 1)
    if channel != 1:
        return None
    if not row:
        return _Operand("column", place, 2 * size)
    if any(stride * size % ALIGNMENT for stride in strides):
        return None
    return _Operand("pair" if size == 4 else "vector", place, 8 if size == 4 else ALIGNMENT)
