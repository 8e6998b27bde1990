"""Prefix results along one axis of strided tensors: sums so far, maxima so far, or a reduction of the user's.

    out[i] = fold(expression(inputs[0]), ..., expression(inputs[i]))        or without the last one ("exclusive")

Over elements, a thread block scans a row; over rows, neighbouring threads scan neighbouring rows; see `scan.c`.
Rows that are too few to keep the device busy are split into parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.rtcg.c_source import c_constant, c_function
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Fold, Reduction
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor

_THREADS = 256
_STEPS = 4  # vectors of a thread at once, over elements
_UNROLL = 8  # elements of a thread at once, over rows
_SHORT = 48  # elements of a row up to which one thread scans it
_WAVES = 4  # of thread blocks on the whole device, where rows are cut
_NEUTRAL = {"add": 0.0, "multiply": 1.0, "max": -math.inf, "min": math.inf}
_SIGNS = {"add": "a + b", "multiply": "a * b"}


@dataclass(frozen=True)
class _Form:
    """How rows are distributed over threads. `axes` are the kept ones, from the outermost."""

    over_elements: bool
    axes: tuple[int, ...]
    vector: int
    threads: int
    steps: int
    rows: int
    extent: int
    parts: int
    per_part: int

    @property
    def blocks(self) -> int:
        """Thread blocks for one part of all rows."""
        return max(1, self.rows if self.over_elements else -(-self.rows // self.threads))


def build_scan(
    expression: Expression,
    reduction: Reduction,
    is_exclusive: bool,
    tensors: Sequence[TensorDescriptor],
    axis: int,
    is_reverse: bool,
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel over tensors of one shape, inputs then the output, and the bytes of workspace that it needs.

    `reduction` is "add", "multiply", "max", "min" or a `Fold`; `computing` is "f32", "f64" or "i64".
    """
    gpu = cast(GpuDevice, device)
    form = _form(tensors, axis, gpu, is_reverse)
    extent = tensors[0].shape[axis]
    sign = -1 if is_reverse else 1
    extras = {"n": extent, "rows": form.rows, "parts": form.parts, "per_part": form.per_part}
    for a, number in enumerate(form.axes):
        extras[f"extent{a}"] = tensors[0].shape[number]
    for t, tensor in enumerate(tensors):
        extras[f"begin_{t}"] = (extent - 1) * tensor.strides[axis] if is_reverse else 0
        extras[f"step_{t}"] = sign * tensor.strides[axis]
        for a, number in enumerate(form.axes):
            extras[f"stride{a}_{t}"] = tensor.strides[number]
    text = _text(
        expression, reduction, is_exclusive, tensors, axis, is_reverse, form, computing, list(extras)
    )
    launches = [Launch("scan", (form.blocks, form.parts), form.threads)]
    if form.parts > 1:
        join = Launch("join", form.blocks, 32 if form.over_elements else form.threads)
        launches = [Launch("totals", (form.blocks, form.parts), form.threads), join, *launches]
    kernel = gpu.kernel(Source("scan", text), launches, len(tensors), list(extras.values()))
    return kernel, form.rows * form.parts * 8 if form.parts > 1 else 0


def _form(tensors: Sequence[TensorDescriptor], axis: int, device: GpuDevice, is_reverse: bool) -> _Form:
    output = tensors[-1]
    shape, extent = output.shape, output.shape[axis]
    kept = [a for a in range(len(shape)) if a != axis and shape[a] != 1]
    kept.sort(key=lambda a: -abs(output.strides[a]))
    rows = prod(shape[a] for a in kept)
    nearer = bool(kept) and abs(output.strides[kept[-1]]) < abs(output.strides[axis])
    over_rows = nearer or (extent <= _SHORT and rows > 1)
    resident = device.multiprocessors * max(1, device.facts.resident_threads // _THREADS)
    most_threads = min(_THREADS, device.max_threads)
    if over_rows:
        threads = min(128, most_threads)
        blocks, chunk, steps, vector = -(-rows // threads), _UNROLL, _UNROLL, 1
    else:
        vector = 8 if min(DTYPES[t.dtype] for t in tensors) <= 2 else 4
        threads = 32
        while threads < most_threads and threads * vector * _STEPS < extent:
            threads *= 2
        blocks, chunk, steps = rows, threads * vector * _STEPS, _STEPS
    wanted = _WAVES * resident * _THREADS // threads
    parts = 1
    if blocks < wanted // _WAVES:
        parts = max(1, min(wanted // max(1, blocks), -(-extent // chunk), 1024))
    per_part = max(1, -(-(-(-extent // parts)) // chunk)) * chunk  # noqa: B002
    parts = max(1, -(-extent // per_part))
    return _Form(not over_rows, tuple(kept), vector, threads, steps, rows, extent, parts, per_part)


def _text(
    expression: Expression, reduction: Reduction, is_exclusive: bool, tensors: Sequence[TensorDescriptor],
    axis: int, is_reverse: bool, form: _Form, computing: str, extras: Sequence[str],
) -> str:  # fmt: skip
    """The complete text: what scan.c wants before it, and scan.c."""
    inputs, dtypes = tensors[:-1], [tensor.dtype for tensor in tensors]
    last, stored = len(inputs), dtypes[-1]
    pointers = "".join(f"GLOBAL {_kind(d)} *p{t}, " for t, d in enumerate(dtypes))
    parameters = f"{pointers}GLOBAL u8 *workspace, SCALE scale, SCALE blend" + "".join(
        f", i64 {e}" for e in extras
    )
    place = ["i64 rest = number;", *(f"i64 base{t} = begin_{t};" for t in range(len(tensors)))]
    for a in reversed(range(len(form.axes))):
        here = "rest" if a == 0 else f"(rest - rest / extent{a} * extent{a})"
        place += [f"base{t} += {here} * stride{a}_{t};" for t in range(len(tensors))]
        place += [f"rest /= extent{a};"] if a else []
    for t, dtype in enumerate(dtypes):
        const = "const " if t < last else ""
        place.append(f"GLOBAL {const}{_kind(dtype)} *x{t} = p{t} + base{t};")
    loads = [
        f"({computing})LOAD({d}, x{t}, (i) * {_step(t, inputs[t], axis, is_reverse)})"
        for t, d in enumerate(dtypes[:-1])
    ]
    target = f"(i) * {_step(last, tensors[-1], axis, is_reverse)}"
    store = f"store_{stored}" if computing == "i64" and stored not in REAL_DTYPES else f"store_real_{stored}"
    unit = [t for t, tensor in enumerate(tensors) if _is_vector(tensor, axis, is_reverse, t == last)]
    aligned = [f"(u64)x{t} % {min(16, form.vector * DTYPES[dtypes[t]])} == 0" for t in unit]
    vector_loads, values = [], []
    for t, dtype in enumerate(dtypes[:-1]):
        size = DTYPES[dtype]
        if t in unit:
            words = form.vector * size // 4
            vector_loads.append(
                f"u32 words{t}[{words}]; load_words(words{t}, (GLOBAL const u8 *)(x{t} + (i)), {words});"
            )
            values.append(f"({computing})element_{dtype}(words{t}[v * {size} / 4], v * {size} % 4)")
        else:
            values.append(loads[t].replace("(i)", "((i) + v)"))
    each = f"UNROLL for (int v = 0; v < VECTOR; v++) (into)[v] = scan_value({', '.join(values)});"
    put = "UNROLL for (int v = 0; v < VECTOR; v++) PUT((i) + v, (from)[v]);"
    if last in unit:
        size, words = DTYPES[stored], form.vector * DTYPES[stored] // 4
        put = (
            f"u32 packed[{words}]; UNROLL for (int k = 0; k < {words}; k++) packed[k] = 0; "
            f"UNROLL for (int v = 0; v < VECTOR; v++) "
            f"packed[v * {size} / 4] |= (u32)bits_{stored}((from)[v]) << (v * {size} % 4 * 8); "
            f"store_words((GLOBAL u8 *)(x{last} + (i)), packed, {words});"
        )
    defines = {
        "REAL": computing,
        "NOTHING": _neutral(reduction, computing),
        "PARAMETERS": parameters,
        "PLACE(number)": " ".join(place),
        "VALUE(i)": f"scan_value({', '.join(loads)})",
        "LOAD_VECTOR(into, i)": "{ " + " ".join([*vector_loads, each]) + " }",
        "PUT(i, value)": f"{store}(x{last}, {target}, value)",
        "PUT_VECTOR(i, from)": "{ " + put + " }",
        "IS_ALIGNED": " && ".join(aligned) or "0",
        "IS_EXCLUSIVE": int(is_exclusive),
        "IS_ALONG": int(form.over_elements),
        "THREADS_OF_ROW": form.threads,
        "VECTOR": form.vector,
        "STEPS": form.steps,
    }
    functions = c_function(expression, "scan_value", computing) + _fold(reduction, computing)
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return read_text("gpu/prelude", "reduce.h") + functions + macros + read_text("gpu/reduction", "scan.c")


def _kind(dtype: str) -> str:
    return "u8" if dtype == "bool" else dtype


def _step(t: int, tensor: TensorDescriptor, axis: int, is_reverse: bool) -> str:
    """From one element to the next, as a number where it is 1."""
    return "1" if tensor.strides[axis] == (-1 if is_reverse else 1) else f"step_{t}"


def _is_vector(tensor: TensorDescriptor, axis: int, is_reverse: bool, is_output: bool) -> bool:
    is_near = tensor.strides[axis] == (-1 if is_reverse else 1)
    return is_near and (
        tensor.dtype in ("f16", "bf16", "f32") or (not is_output and DTYPES[tensor.dtype] <= 4)
    )


def _neutral(reduction: Reduction, computing: str) -> str:
    number = reduction.neutral if isinstance(reduction, Fold) else _NEUTRAL[reduction]
    if computing == "i64" and math.isinf(number):
        return "9223372036854775807" if number > 0 else "(-9223372036854775807 - 1)"
    return c_constant(number, computing)


def _fold(reduction: Reduction, computing: str) -> str:
    if isinstance(reduction, Fold):
        return c_function(reduction.expression, "scan_fold", computing)
    if reduction in _SIGNS:
        body = _SIGNS[reduction]
        if computing == "i64":  # which wraps
            body = f"(i64)({body.replace('a', '(u64)a').replace('b', '(u64)b')})"
    elif computing == "i64":
        body = f"a {'>' if reduction == 'max' else '<'} b ? a : b"
    else:
        body = f"fold_{reduction}_{computing}(a, b)"
    return f"FUNCTION {computing} scan_fold({computing} a, {computing} b) {{ return {body}; }}\n"
