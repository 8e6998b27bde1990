"""The layout of a program over rows on a GPU: the axis of the vectors, threads a row, parts of long rows.

A row that fits into the registers of its threads is read once. Rows that are too few to keep the device busy are split
into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.kernels.gpu.reduction.plan import SHORT_BLOCK, WARP, Axis, Layout, keeps_order
from jitdnn.tensor import DTYPES, TensorDescriptor

_CHUNK = 64  # bytes of a thread that are loaded at once
_MOST_REGISTERS = 32  # elements of a thread
# registers of a thread that may hold elements in a thread block of 1024 threads; twice as many in smaller ones
_REGISTERS = 32
_STREAMING = 256  # threads of a thread block for long rows that are read in one pass
_WAVES = 2  # of thread blocks on the whole device, where rows are cut
_CHUNKS = 4  # of a part, or its own costs would show


def lay_out(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: GpuDevice,
    compute: str,
) -> Layout:
    """The layout for tensors of one shape, inputs first. `axes` are the reduced ones, counted from 0."""
    ordered = keeps_order(program)
    axis_sets = _axes(program, tensors, axes, ordered)
    inner = _innermost(axis_sets, tensors, axes)
    kept, reduced = (_joined(one, tensors, inner, ordered) for one in axis_sets)
    over_rows = inner is not None and inner in axis_sets[0]
    over_rows = over_rows or not reduced
    lanes: Axis = (1, (0,) * (len(tensors) + 1))
    if over_rows and kept:
        lanes = kept.pop()
    if not reduced:
        reduced = [(1, (0,) * (len(tensors) + 1))]
    vectorized = lanes if over_rows else reduced[-1]
    others = [*kept, *(reduced if over_rows else reduced[:-1])]
    vector = _vector(tensors, vectorized, others, over_rows, over_rows or len(reduced) > 1)
    if ordered and not over_rows:
        vector = 1
    reach = sum((extent - 1) * max(map(abs, steps)) for extent, steps in (*reduced, lanes) if extent)
    is_wide = max(reach, prod(extent for extent, _ in reduced)) >= 2**31 - 2**16
    sizer = _Sizes(program, tensors, device, compute, kept, reduced, lanes, vector, is_wide)
    return sizer.over_rows() if over_rows else sizer.over_elements()


def _axes(
    program: Program, tensors: Sequence[TensorDescriptor], axes: Sequence[int], ordered: bool
) -> tuple[list[Axis], list[Axis]]:
    """The kept and the reduced axes of more than one index."""
    shape = tensors[0].shape
    positions, step = [0] * len(shape), 1
    for axis in sorted(axes, reverse=True):
        positions[axis] = step if program.needs_positions else 0
        step *= shape[axis]
    axis_sets: tuple[list[Axis], list[Axis]] = ([], [])
    for axis, extent in enumerate(shape):
        if extent != 1:
            steps = (*(t.strides[axis] for t in tensors), positions[axis])
            axis_sets[axis in axes].append((extent, steps))
    return axis_sets


def _reach(tensor: TensorDescriptor) -> int:
    """Bytes of the elements that are different ones."""
    return prod(e for e, s in zip(tensor.shape, tensor.strides, strict=True) if s) * DTYPES[tensor.dtype]


def _principal(tensors: Sequence[TensorDescriptor]) -> int:
    return max(range(len(tensors)), key=lambda t: (_reach(tensors[t]), t))


def _innermost(
    axis_sets: tuple[list[Axis], list[Axis]], tensors: Sequence[TensorDescriptor], axes: Sequence[int]
) -> Axis | None:
    """The axis along which neighbouring threads should go: the one where most bytes are neighbours."""
    every = [*axis_sets[1], *axis_sets[0]]
    if not every:
        return None
    reach, principal = [_reach(tensor) for tensor in tensors], _principal(tensors)

    def score(axis: Axis) -> tuple[int, int]:
        _, steps = axis
        near = sum(size for size, step in zip(reach, steps, strict=False) if abs(step) == 1)
        far = abs(steps[principal])
        return near, -far if far else -(2**62)

    return max(every, key=score)


def _joined(
    group: Sequence[Axis], tensors: Sequence[TensorDescriptor], inner: Axis | None, ordered: bool
) -> list[Axis]:
    """The axes from the outermost in memory inwards, neighbours as one where all tensors allow it."""
    principal = _principal(tensors)
    order = list(group)
    if not ordered:
        order.sort(key=lambda a: (a is inner, -abs(a[1][principal]), -sum(map(abs, a[1]))))
    result: list[Axis] = []
    for extent, steps in order:
        if result and all(out == extent * s for out, s in zip(result[-1][1], steps, strict=True)):
            result[-1] = (result[-1][0] * extent, steps)
        else:
            result.append((extent, steps))
    return result


def _vector(
    tensors: Sequence[TensorDescriptor],
    vectorized: Axis,
    others: Sequence[Axis],
    over_rows: bool,
    is_strict: bool,
) -> int:
    """Elements that are loaded as one: 16 bytes of the smallest type of those whose elements are neighbours.

    `is_strict`: a vector must not leave the axis, so all of them begin at its multiples.
    """
    unit = [t for t, tensor in enumerate(tensors) if vectorized[1][t] == 1 and DTYPES[tensor.dtype] <= 4]
    if not unit:
        return 1
    # a thread with several rows has their results in registers
    vector = min(4 if over_rows else 8, 16 // min(DTYPES[tensors[t].dtype] for t in unit))
    while is_strict and vector > 1:
        if vectorized[0] % vector == 0 and all(s[t] % vector == 0 for _, s in others for t in unit):
            break
        vector //= 2
    return vector


@dataclass
class _Sizes:
    """Chooses threads a row, and parts."""

    program: Program
    tensors: Sequence[TensorDescriptor]
    device: GpuDevice
    compute: str
    kept: list[Axis]
    reduced: list[Axis]
    lanes: Axis
    vector: int
    wide: bool

    def __post_init__(self) -> None:
        loops = [row_pass for row_pass in self.program.passes if row_pass.loops]
        self.loops = len(loops)
        self.reduces = any(row_pass.loop_reductions for row_pass in loops)
        self.writes = any(row_pass.writes for row_pass in loops)
        count = len(self.tensors) - self.program.outputs
        uses = [
            {i for e in (*(e for _, e in (*s.loop_reductions, *s.writes)), *s.keeps) for i in e.used()}
            for s in loops
        ]
        wide = 2.0 if self.compute == "f64" else 1.0
        # registers for an element: of what several passes need as long as the row takes, of others for a while
        self.weight = wide * sum(len(row_pass.keeps) for row_pass in loops)
        for t in range(count):
            times = sum(t in use for use in uses)
            size = self._size(t) / 4
            self.weight += size if times > 1 or len(loops) == 1 else size / 2 if times else 0.0
        self.weight = self.weight or 0.5
        # elements that are loaded at once, by what the first pass loads from memory, and not from a cache
        large = max(map(_reach, self.tensors)) // 4
        loaded = (
            sum(self._size(t) for t in uses[0] if self._size(t) and _reach(self.tensors[t]) > large)
            if uses
            else 0
        )
        self.chunk = int(max(8.0, min(_MOST_REGISTERS, _CHUNK / max(1.0, loaded))))
        self.most_threads = 1 << (min(1024, self.device.max_threads).bit_length() - 1)
        self.row = prod(extent for extent, _ in self.reduced)
        # with several axes no vector leaves the last one
        self.is_even = len(self.reduced) > 1
        if len(self.reduced) == 1 and self.row % self.vector == 0:
            units = [t for t in range(len(self.tensors)) if self.reduced[0][1][t] == 1]
            self.is_even = not any(s[t] % self.vector for _, s in self.kept for t in units)

    def _size(self, t: int) -> float:
        """Bytes of an element of an input; 0 where a row has one number, which is loaded once."""
        if t >= len(self.tensors) - self.program.outputs:
            return 0.0
        moves = any(steps[t] for _, steps in self.reduced)
        return float(DTYPES[self.tensors[t].dtype]) if moves else 0.0

    def _room(self, threads: int) -> int:
        """Elements that a thread may hold."""
        if threads > 512:  # all that there is
            return max(1, int(min(_REGISTERS / self.weight, 2 * _MOST_REGISTERS)))
        if threads == 512 and self.weight <= 0.5:  # two thread blocks have their rows side by side
            return 2 * _MOST_REGISTERS
        return max(1, int(min(2 * _REGISTERS / self.weight, _MOST_REGISTERS)))

    def over_elements(self) -> Layout:
        v, row = self.vector, self.row
        slack = 0 if self.is_even else v - 1
        vectors = -(-(row + slack) // v)
        if not self.loops:
            return self._made(False, 1, 1, 1, SHORT_BLOCK, True)
        row_threads = 1
        # rows of one pass are not kept: enough of them are better read by smaller thread blocks
        resident = self.device.multiprocessors * (self.device.facts.resident_threads // _STREAMING)
        is_streamed = self.loops == 1 and prod(extent for extent, _ in self.kept) >= _WAVES * resident
        while row_threads <= (_STREAMING if is_streamed else self.most_threads):
            steps = -(-vectors // row_threads)
            is_last = row_threads >= min(512, self.most_threads) and self.loops > 1
            most = (
                self._room(row_threads)
                if row_threads <= WARP or is_last
                else min(self.chunk, self._room(row_threads))
            )
            if row_threads <= WARP and self.loops == 1 and not self.writes:
                most = max(most, min(2 * self.chunk, 2 * _MOST_REGISTERS))
            if (row_threads >= min(8, vectors) or row_threads == self.most_threads) and steps * v <= max(
                v, most
            ):
                # several rows share a thread block only if each has a warp at most: more combine in shared memory
                threads = (
                    row_threads
                    if row_threads > WARP
                    else max(row_threads, min(SHORT_BLOCK, self.most_threads))
                )
                return self._made(False, max(1, steps), 1, row_threads, threads, True)
            row_threads *= 2
        threads = min(512 if self.loops > 1 else 256, self.most_threads)
        steps = max(1, min(self.chunk, self._room(threads)) // v)
        layout = self._cut(False, steps, 1, threads, threads)
        if layout.parts == 1 and self.loops > 1 and self.reduces:
            # fewer rows at a time, so that the cache has them from one pass to the next
            threads = self.most_threads
            steps = max(1, min(2 * self.chunk, int(_REGISTERS / self.weight)) // v)
            return self._made(False, steps, 1, threads, threads, False)
        return layout

    def over_rows(self) -> Layout:
        v, lanes, row = self.vector, self.lanes[0], self.row
        wanted = 1 << (max(1, -(-lanes // v)) - 1).bit_length()
        columns = min(WARP, wanted)
        row_threads = 1
        while row_threads * columns <= self.most_threads:
            steps, threads = -(-row // row_threads), row_threads * columns
            most = self._room(threads) if threads >= min(512, self.most_threads) else self.chunk
            if steps * v <= max(v, most):
                if row_threads == 1:
                    columns = min(wanted, SHORT_BLOCK)
                    columns = max(columns, WARP)
                while row_threads * columns < WARP:
                    row_threads *= 2
                return self._made(True, max(1, steps), columns, row_threads, row_threads * columns, True)
            row_threads *= 2
        threads = min(256, self.most_threads)
        row_threads = threads // columns
        return self._cut(
            True, max(1, min(self.chunk, self._room(threads)) // v), columns, row_threads, threads
        )

    def _made(
        self, over_rows: bool, steps: int, columns: int, row_threads: int, threads: int, in_registers: bool
    ) -> Layout:
        return Layout(
            over_rows, tuple(self.kept), tuple(self.reduced), self.lanes, self.vector, steps, columns, row_threads,
            threads, in_registers, 1, self.row + self.vector, self.wide, self.is_even,
        )  # fmt: skip

    def _cut(self, over_rows: bool, steps: int, columns: int, row_threads: int, threads: int) -> Layout:
        """Long rows, in as many parts as keep the device busy."""
        whole = self._made(over_rows, steps, columns, row_threads, threads, False)
        resident = self.device.multiprocessors * max(1, self.device.facts.resident_threads // threads)
        # rows of several passes are better left whole: the cache has what was read
        is_enough = whole.blocks >= (resident // 2 if self.loops > 1 and self.reduces else _WAVES * resident)
        chunk = row_threads * steps * (1 if over_rows else self.vector)
        covered = self.row + (0 if over_rows else self.vector)
        # not more than there is work for, unless the device would stand idle
        sensible = max(-(-covered // (_CHUNKS * chunk)), 2 * self.device.multiprocessors // whole.blocks)
        parts = 1 if is_enough else min(_WAVES * resident // whole.blocks, sensible, -(-covered // chunk))
        if parts <= 1:
            return whole
        per_part = _up(_up(covered, parts) // parts, chunk)
        parts = -(-covered // per_part)
        return Layout(
            over_rows, whole.kept, whole.reduced, whole.lanes, whole.vector, steps, columns, row_threads, threads,
            False, parts, per_part, whole.wide, whole.is_even,
        )  # fmt: skip


def _up(number: int, step: int) -> int:
    """The number or the next multiple of `step`."""
    return -(-number // step) * step
