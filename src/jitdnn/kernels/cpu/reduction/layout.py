"""Which loops a program over rows gets on processors: the axis of the vectors, units, how long rows are split, the
buffer.

How rows are split depends on the tensors alone, not on the number of threads, and so does what is added to what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.reduction.plan import Axis, Item, Layout, RowBuffer
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.rtcg.processor import Processor
from jitdnn.tensor import DTYPES, TensorDescriptor

_ROW_CYCLES = 25.0  # to put the lanes of one row together, for each reduction
_STEP_CYCLES = 4.0
_GATHER_CYCLES = 2.0  # for each lane
_PART = 16384  # elements at least in a part of a row
_SMALL_PART = 4096  # the same where rows lie between each other and are read in the order of memory
_MOST_PARTS = 64
BUFFER_ELEMENTS = 32768  # of what is stored of a row for later passes
_MOST_UNITS = 96  # from here on rows are shared as they are
_FEW_UNITS = 12  # the same where later passes find the row in the cache
_RUN = 64  # additions to one accumulator before its sum goes to a wider one
_BLOCK = 64  # vectors of each accumulator in a block of a split or long row


@dataclass(frozen=True)
class Requirements:
    """What the layout depends on of program and processor."""

    lanes: int
    loop_reductions: int  # reductions in the loops
    most_vectors: int
    passes: int  # that loop
    is_wide: bool  # sums go to wider accumulators after a while
    needs_positions: bool
    keeps: bool  # a row's intermediate values are stored, if they are few
    processor: Processor


def lay_out(
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    required: Requirements,
    vectors_over: str | None = None,
) -> Layout:
    """The cheapest loops over tensors of one shape; `vectors_over` "elements" or "rows" asks for one kind."""
    kept, reduced, bases, firsts = _joined(tensors, axes, required.needs_positions)
    count = len(tensors) + 1
    none: Axis = (1, (0,) * count)
    rows, row = prod(e for e, _ in kept), prod(e for e, _ in reduced)
    sizes = [prod(e for e, s in (*kept, *reduced) if s[t] != 0) for t in range(len(tensors))]
    biggest = max(sizes, default=0)

    def vector_cycles(axis: Axis) -> float:
        moved = zip(sizes, axis[1], strict=False)
        gathers = sum(2 * size >= biggest and not 0 <= stride <= 4 for size, stride in moved)
        return 3.0 * required.passes + gathers * _GATHER_CYCLES * required.lanes

    def cycles_over_elements(axis: Axis) -> float:
        runs = row / axis[0] if axis[0] else 0
        vectors = runs * -(-axis[0] // required.lanes)
        return rows * (
            vectors * vector_cycles(axis) + runs * _STEP_CYCLES + required.loop_reductions * _ROW_CYCLES
        )

    def cycles_over_rows(axis: Axis) -> float:
        blocks = rows / axis[0] * -(-axis[0] // required.lanes) if axis[0] else 0
        return blocks * (row * vector_cycles(axis) + _ROW_CYCLES)

    choices: list[tuple[float, bool, int]] = []
    if vectors_over != "rows" or not kept:
        choices += [(cycles_over_elements(axis), False, n) for n, axis in enumerate(reduced)]
    if vectors_over != "elements" or not reduced:
        choices += [(cycles_over_rows(axis), True, n) for n, axis in enumerate(kept)]
    over_rows = False
    lane, inner = none, (reduced or [none])[-1]
    if choices:
        _, over_rows, number = min(choices, key=lambda choice: (choice[0], -choice[2]))
        if over_rows:
            lane = kept.pop(number)
        else:
            inner = reduced[number]
    if reduced:
        reduced.remove(inner)
    return _blocked(over_rows, kept, lane, reduced, inner, bases, firsts, required, tensors, rows)


def _blocked(
    over_rows: bool, kept: list[Axis], lane: Axis, reduced: list[Axis], inner: Axis, bases: tuple[int, ...],
    firsts: tuple[int, ...],
    required: Requirements, tensors: Sequence[TensorDescriptor], rows: int,
) -> Layout:  # fmt: skip
    lanes, outer = required.lanes, prod(e for e, _ in reduced)
    vectors, unroll = 1, 1
    if over_rows:
        have = -(-lane[0] // lanes)
        most = required.most_vectors
        fitting = BUFFER_ELEMENTS // max(1, outer * inner[0] * lanes)
        if required.keeps and fitting >= 2:
            most = min(most, fitting)
        vectors = min(range(1, most + 1), key=lambda v: (-(-have // v) * (v + 1), -v))
        unroll = max(1, min(4 // vectors, inner[0] // 4))
        width = 1
    else:
        unroll = max(1, min(4, inner[0] // lanes))
        width = lanes
    row = outer * inner[0]
    units = rows if not over_rows else rows // max(1, lane[0]) * -(-lane[0] // (lanes * vectors))
    block = inner[0]
    elements = row * (lanes * vectors if over_rows else 1)
    is_scattered = not over_rows and _is_scattered(kept, reduced, tensors)
    parts = _parts(units, row, elements, required, tensors, is_scattered)
    is_long = required.is_wide and row > _RUN * width * unroll * 2
    if parts > 1 or is_long:
        block = min(block, _BLOCK * width * unroll)
    steps = outer * (-(-inner[0] // block) if block else 0)
    per_part = max(1, -(-steps // parts))
    flush = 0
    if is_long:
        flush = max(1, _RUN * width * unroll // max(1, block))
    return Layout(
        over_rows, tuple(kept), lane, tuple(reduced), inner, bases, firsts, vectors, unroll, max(1, block), per_part,
        max(1, -(-steps // per_part)), flush,
    )  # fmt: skip


def _parts(
    units: int,
    row: int,
    elements: int,
    required: Requirements,
    tensors: Sequence[TensorDescriptor],
    is_scattered: bool,
) -> int:
    """Into how many parts a row of ``row`` elements is split; a unit has ``elements``."""
    moved = sum(DTYPES[t.dtype] for t in tensors if any(t.strides))
    is_cached = required.passes > 1 and elements * moved <= required.processor.l2(cost.REDUCTION_UNIT_L2)
    if units == 0:
        return 1
    is_far = units * elements * moved >= required.processor.l3(cost.REDUCTION_FAR_L3)
    if is_scattered and not is_cached and is_far:
        return max(1, min(_MOST_PARTS, elements // _SMALL_PART, row))
    if units >= (_FEW_UNITS if is_cached else _MOST_UNITS):
        return 1
    return max(1, min(-(-_MOST_UNITS // units), elements // _PART, row))


def _is_scattered(kept: Sequence[Axis], reduced: Sequence[Axis], tensors: Sequence[TensorDescriptor]) -> bool:
    """Whether rows lie between each other in memory, so that whole rows jump."""
    largest = max(range(len(tensors)), key=lambda t: tensors[t].nbytes)
    return any(outer[1][largest] > inner[1][largest] > 0 for outer in reduced[:1] for inner in kept)


def _joined(
    tensors: Sequence[TensorDescriptor], axes: Sequence[int], needs_positions: bool
) -> tuple[list[Axis], list[Axis], tuple[int, ...], tuple[int, ...]]:
    """The kept and the reduced axes, each from the outermost in memory inwards, where the tensors
    begin, and where index 0 of a row is from there."""
    shape = tensors[0].shape
    positions, step = [0] * len(shape), 1
    for axis in sorted(axes, reverse=True):
        positions[axis] = step if needs_positions else 0
        step *= shape[axis]
    reach = [prod(e for e, s in zip(shape, t.strides, strict=True) if s) * DTYPES[t.dtype] for t in tensors]
    # of equals the last one, which is an output: stores cost more than loads
    principal = max(range(len(tensors)), key=lambda t: (reach[t], t))
    bases, firsts = [0] * (len(tensors) + 1), [0] * (len(tensors) + 1)
    groups: tuple[list[Axis], list[Axis]] = ([], [])
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        steps = [*(t.strides[axis] for t in tensors), positions[axis]]
        if steps[principal] < 0:  # iterate the other way
            bases = [base + (extent - 1) * s for base, s in zip(bases, steps, strict=True)]
            steps = [-s for s in steps]
            if axis in axes:
                firsts = [first + (extent - 1) * s for first, s in zip(firsts, steps, strict=True)]
        groups[axis in axes].append((extent, tuple(steps)))
    result = []
    for group in groups:
        joined: list[Axis] = []
        for extent, steps_ in sorted(group, key=lambda a: (-a[1][principal], -sum(map(abs, a[1])))):
            if joined and all(out == extent * s for out, s in zip(joined[-1][1], steps_, strict=True)):
                joined[-1] = (joined[-1][0] * extent, steps_)
            else:
                joined.append((extent, steps_))
        result.append(joined)
    return result[0], result[1], tuple(bases), tuple(firsts)


# ---- the buffer


def buffered_items(program: Program, inputs: Sequence[int], count: int) -> list[Item]:
    """What is worth storing: the keeps, and those of the `inputs` (of `count`) that several passes load."""
    found: dict[int, Item] = {}
    before = count + program.position
    keeps = [(number, e) for number, row_pass in enumerate(program.passes) for e in row_pass.keeps]
    made = {before + n: row_pass for n, (row_pass, _) in enumerate(keeps)}
    for number, row_pass in enumerate(program.passes):
        if not row_pass.loops:
            continue
        used = {i for _, e in (*row_pass.loop_reductions, *row_pass.writes) for i in e.used()}
        used |= {before + n for n, (s, _) in enumerate(keeps) if s == number}
        for n in reversed(range(len(keeps))):
            # a keep of this pass is made of what it depends on, an earlier one lies in the buffer
            if before + n in used and keeps[n][0] == number:
                used |= keeps[n][1].used()
        for i in used & ({*inputs} | made.keys()):
            item = found.get(i, Item(i, made.get(i, number), number))
            found[i] = item._replace(last=number)
    return sorted((i for i in found.values() if i.last > i.row_pass), key=lambda item: item.row_pass)


def allocated(items: Sequence[Item], capacity: int) -> RowBuffer:
    """The items in a buffer of `capacity` elements for each; one may follow another that is not needed any more."""
    ends: list[int] = []  # for each part of the buffer, the last pass that needs what is in it
    result = []
    for item in items:
        free = next((n for n, last in enumerate(ends) if last <= item.row_pass), len(ends))
        ends[free : free + 1] = [item.last]
        result.append(item._replace(start=free * capacity))
    return RowBuffer(tuple(result), len(ends) * capacity)
