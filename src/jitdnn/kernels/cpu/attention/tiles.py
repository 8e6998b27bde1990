"""What attention's passes share: the plan of a tile, packed copies, the scores of a tile and who sees what.

Everything happens in tiles of up to ``key_rows`` keys by a panel of ``width`` queries, in a thread's own part of
the workspace. Scores lie transposed, a row for each key and the queries in the lanes:

    scores[key][query] = sum over d of keys[key][d] * turned[d][query]

so that the maxima and sums of the softmax are operations between whole vectors, and the keys and values need no
transposing. Scores are powers of two: log2(e) * scale is multiplied into the packed queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.register_tiles import MAX_VECTORS, choose_tile
from jitdnn.kernels.cpu.microkernel.transpose import transpose
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.rtcg.power_of_two import LOG2E
from jitdnn.tensor import TensorDescriptor, compute_dtype

_KEY_TILES = 16  # tiles of rows in a tile of keys: about a hundred keys, so that all stays in the caches
_UNROLLED = 8  # vectors of a row that are copied in a straight line


@dataclass(frozen=True)
class Code:
    """What is compiled in. ``units`` names the tensors whose elements of a head are neighbours."""

    direction: str
    dtype: str
    size: int  # D
    value_size: int  # E
    vectors: int  # of a panel of queries
    rows: int  # keys of a tile of registers
    units: tuple[str, ...]
    mask: str  # "", or its type
    mask_order: str  # "queries" (stride 0), "lanes", "keys" or "any": how memory runs
    lengths: str
    lo: str
    hi: str
    is_left: bool
    is_right: bool
    is_saved: bool
    scale: float
    splits: bool = False

    @property
    def real(self) -> str:
        """What is computed in."""
        return compute_dtype(self.dtype)

    @property
    def key_rows(self) -> int:
        return self.rows * _KEY_TILES


def make_code(problem: Attention, isa: Isa, splits: bool = False) -> Code:
    """The code for a problem; lengths, heads and strides are numbers that it takes at run time."""
    real = compute_dtype(problem.dtype)
    lanes = isa.lanes(real)
    most = min(MAX_VECTORS, max(1, ceil_div(problem.q.shape[2], lanes)))
    # at least six rows to a broadcast, where there are registers
    vectors = max(v for v in range(1, most + 1) if v == 1 or (isa.registers - 1 - v) // v >= 6)
    rows = min((isa.registers - 1 - vectors) // vectors, 12)
    named = {operand.name: operand.descriptor for operand in problem.operands}
    units = tuple(name for name in ("q", "k", "v", "y", "dy", "dq", "dk", "dv") if _is_unit(named.get(name)))
    mask, order = problem.mask, ""
    if mask is not None:
        strides = mask.strides[2:]
        order = "queries" if strides[0] == 0 else "lanes" if strides[0] == 1 else "any"
        order = "keys" if order == "any" and strides[1] == 1 else order

    def kind(name: str) -> str:
        return named[name].dtype if name in named else ""

    return Code(
        problem.direction, problem.dtype, problem.q.shape[3], problem.v.shape[3], vectors, rows, units,
        kind("mask"), order, kind("lengths"), kind("lo"), kind("hi"),
        problem.left is not None, problem.right is not None, "lse" in named, problem.scale, splits,
    )  # fmt: skip


def _is_unit(tensor: TensorDescriptor | None) -> bool:
    return tensor is not None and (tensor.strides[3] == 1 or tensor.shape[3] == 1)


def make_slots(problem: Attention, *more: str) -> Slots:
    """The integers of a problem that its code takes at run time."""
    names = ["heads", "group", "queries", "keys", "left", "right", "past", *more]
    for operand in problem.operands:
        names += [f"{operand.name}{axis}" for axis in range(len(operand.descriptor.shape))]
    return Slots(*names)


def slot_values(problem: Attention) -> dict[str, int]:
    """Their values."""
    heads, key_heads = problem.q.shape[1], problem.k.shape[1]
    values = {
        "heads": heads, "group": heads // max(1, key_heads), "queries": problem.q.shape[2],
        "keys": problem.k.shape[2], "left": problem.left or 0, "right": problem.right or 0, "past": problem.past,
    }  # fmt: skip
    for operand in problem.operands:
        values |= {f"{operand.name}{axis}": s for axis, s in enumerate(operand.descriptor.strides)}
    return values


@dataclass(frozen=True)
class Product:
    """Sums of ``rows`` rows by ``columns`` blocks of ``vectors`` vectors, stored [block][row][lanes of a block]."""

    rows: int
    vectors: int
    columns: int
    lanes: int

    @property
    def block(self) -> int:
        """Elements of a row of one block."""
        return self.vectors * self.lanes

    @property
    def pitch(self) -> int:
        """Elements of a row of the matrix that is multiplied, padded."""
        return self.columns * self.block

    def reach(self, rows: int) -> int:
        """Rows to reserve for ``rows`` of them."""
        return ceil_div(rows, self.rows) * self.rows

    def room(self, rows: int) -> int:
        return self.reach(rows) * self.pitch


def plan_product(isa: Isa, real: str, rows: int, width: int) -> Product:
    lanes = isa.lanes(real)
    tile = choose_tile([rows], width, isa, real)
    return Product(tile.rows, tile.vectors, ceil_div(width, tile.vectors * lanes), lanes)


class Room:
    """A thread's part of the workspace, handed out in pieces of whole vectors."""

    def __init__(self, real: str) -> None:
        self._real, self.size, self._places = real, 0, {"": 0}

    def add(self, name: str, elements: int) -> None:
        self._places[name] = self.size
        self.size += ceil_div(elements, 16) * 16

    @property
    def bytes(self) -> int:
        """Rounded so that threads share no cache line, and are not a power of two apart."""
        return ceil_div(self.size * ITEM_BYTES[self._real], 128) * 128 + 128

    def pointers(self, start: Pointer) -> dict[str, Pointer]:
        return {name: start + place for name, place in self._places.items() if name}


# ---- copies


def trace_rows(module: Module, name: str, code: Code, width: int, unit: bool) -> Function:
    """Trace ``name(source, row_stride, step, rows, padded, target, pitch)``.

    ``target[r][i] = source[r * row_stride + i * step]`` for r < rows, i < width; zeros up to the ``pitch``, a
    whole number of vectors, and in the rows up to ``padded``.
    """
    with module.function(
        name, source=code.dtype, row_stride=None, step=None, rows=None, padded=None, target=code.real, pitch=None
    ) as (k, (source, row_stride, step, rows, padded, target, pitch), function):  # fmt: skip
        lanes = k.lanes(code.real)
        stride: int | Value = 1 if unit else step
        zero = k.constant(0.0, code.real, lanes)
        whole = width // lanes * lanes

        def copy(source: Pointer, target: Pointer, start: int | Value, mask: Value | None) -> None:
            target.store((source + k.integer(stride) * start).load_strided(0, stride, lanes, mask), start)

        for r in k.range(rows):
            here, there = source + r * row_stride, target + r * pitch
            if whole <= _UNROLLED * lanes:
                for start in range(0, whole, lanes):
                    copy(here, there, start, None)
            else:
                for at in k.range(0, whole, lanes):
                    copy(here, there, at, None)
            if whole < width:
                copy(here, there, whole, k.mask(width - whole, lanes))
            for at in k.range(ceil_div(width, lanes) * lanes, pitch, lanes):
                there.store(zero, at)
        for r in k.range(rows, padded):
            for at in k.range(0, pitch, lanes):
                (target + r * pitch).store(zero, at)
    return function


def trace_columns(
    module: Module, name: str, code: Code, depth: int, unit: bool, factor: float = 1.0
) -> Function:
    """Trace ``name(source, row_stride, step, rows, target)``.

    ``target[i][r] = factor * source[r * row_stride + i * step]`` for i < depth and all lanes r of a panel; zeros
    where r >= rows.
    """
    with module.function(
        name, source=code.dtype, row_stride=None, step=None, rows=None, target=code.real
    ) as (k, (source, row_stride, step, rows, target), function):  # fmt: skip
        lanes = k.lanes(code.real)
        width = code.vectors * lanes

        def put(vector: Value, at: Pointer) -> None:
            at.store(vector if factor == 1.0 else vector * factor, 0)

        for lane in k.range(0, width, lanes):
            first, place = source + row_stride * lane, target + lane
            left = rows - lane
            if not unit:
                for i in k.range(depth):
                    vector = (first + step * i).load_strided(0, row_stride, lanes, k.mask(left, lanes))
                    put(vector, place + i * width)
                continue
            whole = depth // lanes * lanes
            for start in k.range(0, whole, lanes):
                for number, row in enumerate(_square(k, first + start, row_stride, left, lanes, lanes)):
                    put(row, place + (start + number) * width)
            if whole < depth:
                rest = _square(k, first + whole, row_stride, left, lanes, depth - whole)
                for number, row in enumerate(rest[: depth - whole]):
                    put(row, place + (whole + number) * width)
    return function


def _square(
    k: Builder, source: Pointer, row_stride: Value, rows: Value, lanes: int, columns: int | Value
) -> list[Value]:
    """``lanes`` rows, transposed; those from ``rows`` on, and columns from ``columns`` on, are zero."""
    loaded = []
    for lane in range(lanes):
        count = k.select(rows > lane, k.integer(columns), 0)
        loaded.append((source + row_stride * lane).load(0, lanes, k.mask(count, lanes)))
    return transpose(k, loaded)


# ---- scores


def trace_scores(module: Module, code: Code, name: str, depth: int, pitch: int) -> Function:
    """Trace ``name(keys, turned, scores, rows)``: the scores of ``rows`` keys, rounded up to whole tiles."""
    lanes = module.isa.lanes(code.real)
    width = code.vectors * lanes
    tile = trace_microkernel(
        module, f"{name}_tile", code.real, [r * pitch for r in range(code.rows)], code.vectors,
        [Loop(depth, 1, width)],
    )  # fmt: skip
    with module.function(name, "aliasing", keys=code.real, turned=code.real, scores=code.real, rows=None) as (
        k, (keys, turned, scores, rows), function,
    ):  # fmt: skip
        for r in k.range(0, rows, code.rows):
            k.call(tile, keys + r * pitch, turned, scores + r * width)
    return function


def trace_band(module: Module, code: Code) -> Function:
    """Trace ``band(scores, rows, first, lo, hi)``: -infinity where key first + row is not in [lo, hi)."""
    with module.function("band", scores=code.real, rows=None, first=None, lo="i32", hi="i32") as (
        k, (scores, rows, first, lo, hi), function,
    ):  # fmt: skip
        lanes = k.lanes(code.real)
        low = [lo.load(v * lanes, lanes) for v in range(code.vectors)]
        high = [hi.load(v * lanes, lanes) for v in range(code.vectors)]
        for r in k.range(rows):
            key = k.splat(k.convert(first + r, "i32"), lanes)
            row = scores + r * (code.vectors * lanes)
            for v in range(code.vectors):
                seen = (low[v] <= key) & (high[v] > key)
                row.store(k.select(seen, row.load(v * lanes, lanes), -math.inf), v * lanes)
    return function


def trace_mask(module: Module, code: Code) -> Function:
    """Trace ``masked(scores, mask, query_stride, key_stride, queries, rows)``: the user's mask of a tile."""
    with module.function(
        "masked", scores=code.real, mask=code.mask, query_stride=None, key_stride=None, queries=None, rows=None
    ) as (k, (scores, mask, query_stride, key_stride, queries, rows), function):  # fmt: skip
        lanes = k.lanes(code.real)
        source = mask.as_real(code.real)
        width = code.vectors * lanes

        def apply(at: Pointer, value: Value) -> None:
            score = at.load(0, lanes)
            value = k.splat(value, lanes)
            if code.mask == "bool":
                at.store(k.select(value != 0.0, score, -math.inf), 0)
            else:
                at.store(k.fma(value, k.constant(LOG2E, code.real, lanes), score), 0)

        if code.mask_order == "keys":
            for lane in k.range(0, width, lanes):
                first = source + query_stride * lane
                for start in k.range(0, rows, lanes):
                    left = (rows - start).min(lanes)
                    columns = _square(k, first + start, query_stride, queries - lane, lanes, left)
                    for i, column in enumerate(columns):
                        with k.when(left > i):
                            apply(scores + ((start + i) * width + lane), column)
            return function
        for r in k.range(rows):
            here = source + r * key_stride
            for v in range(code.vectors):
                if code.mask_order == "queries":
                    value = here.load(0)
                else:
                    keep = k.mask(queries - v * lanes, lanes)
                    stride: int | Value = 1 if code.mask_order == "lanes" else query_stride
                    value = (here + query_stride * (v * lanes)).load_strided(0, stride, lanes, keep)
                apply(scores + (r * width + v * lanes), value)
    return function


# ---- who sees what


class Bounds:
    """Windows of keys: for each query of a panel in i32, and the extremes of panels."""

    def __init__(
        self, k: Builder, code: Code, arguments: Arguments, slots: dict[str, Value], numbers: dict[str, int]
    ):
        self.k, self.code, self.slots = k, code, slots
        self.operands = {
            name: arguments.pointer(numbers[name], getattr(code, name))
            for name in ("lengths", "lo", "hi")
            if getattr(code, name)
        }

    def most(self, batch: Value) -> Value:
        """Keys that a sequence has."""
        keys = self.slots["keys"]
        return self._load("lengths", batch).min(keys).max(0) if self.code.lengths else keys

    def write(
        self, batch: Value, first: Value, lo: Pointer, hi: Pointer
    ) -> tuple[Value, Value, Value, Value]:
        """Fill ``lo`` and ``hi`` for the panel of query ``first``; returns lowest, highest lo and hi.

        Lanes beyond the last query repeat it.
        """
        k, code, slots = self.k, self.code, self.slots
        keys = slots["keys"]
        most = self.most(batch)
        extremes = [k.register(k.integer(n)) for n in (2**40, -(2**40), 2**40, -(2**40))]
        for i in k.range(code.vectors * k.lanes(code.real)):
            query = (first + i).min(slots["queries"] - 1)
            own = query + slots["past"]
            low, high = k.integer(0), most
            if code.is_left:
                low = (own - slots["left"]).max(low)
            if code.is_right:
                high = (own + slots["right"] + 1).min(high)
            if code.lo:
                low = self._load("lo", query).max(low)
            if code.hi:
                high = self._load("hi", query).min(high)
            low, high = low.min(keys), high.max(0)
            (lo + i).store(k.convert(low, "i32"))
            (hi + i).store(k.convert(high, "i32"))
            for register, value, is_most in zip(extremes, (low, low, high, high), (0, 1, 0, 1), strict=True):
                register.set(value.max(register.get()) if is_most else value.min(register.get()))
        low, highest_low, lowest_high, high = (register.get() for register in extremes)
        return low, highest_low, lowest_high, high

    def _load(self, name: str, index: Value) -> Value:
        return self.k.convert(self.operands[name].load(index * self.slots[f"{name}0"]), "i64")


def operand_numbers(problem: Attention) -> dict[str, int]:
    """The position of each operand's pointer."""
    return {operand.name: i for i, operand in enumerate(problem.operands)}


def row_of(slots: dict[str, Value], name: str, *indices: Value) -> Value:
    """The offset of an element of an operand: indices of its first axes."""
    offset = indices[0] * slots[f"{name}0"]
    for axis, index in enumerate(indices[1:], 1):
        offset = offset + index * slots[f"{name}{axis}"]
    return offset


def vectors_of(k: Builder, width: int, lanes: int) -> Sequence[tuple[int, Value | None]]:
    """The vectors of a row of ``width`` elements: where they start, and the mask of the last if it is needed."""
    return [
        (start, None if start + lanes <= width else k.mask(width - start, lanes))
        for start in range(0, width, lanes)
    ]
