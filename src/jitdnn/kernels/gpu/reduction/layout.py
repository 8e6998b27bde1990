"""How the rows of a program lie over the threads of a GPU: axes, teams of threads, parts of long rows.

    along     neighbouring threads have neighbouring elements: a team of 1 to 32 threads, or a whole group, to a row
    across    neighbouring threads have neighbouring rows: a group is columns of threads that go down the rows together

A thread takes `steps` vectors of `vector` elements at a time, all loaded before any is used. A row that fits into the
team's registers is read once. Rows that are too few to keep the device busy are cut into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.rtcg.folds import Fold
from jitdnn.tensor import DTYPES, TensorDescriptor

Axis = tuple[int, tuple[int, ...]]
"""An extent, and the stride of each tensor and of the position."""

_SUBGROUP = 32
_CHUNK = 64  # bytes of a thread that are loaded at once
_MOST_HELD = 32  # elements of a thread
_HELD = 32  # registers of a thread that may hold elements in a group of 1024 threads; twice as many in smaller ones
_STREAMING = 256  # threads of a group for long rows that are gone through once
_WAVES = 2  # groups for every place on the device, where rows are cut
_THREADS = 128  # of a group, where rows are so short that it has several
_CHUNKS = 4  # of a part, or its own costs would show
_MANY_PARTS = 64
_WIDE_JOIN = 256


@dataclass(frozen=True)
class Layout:
    """Extents and strides, and how many threads do what. Strides are in elements, for each tensor and the position."""

    is_across: bool
    kept: tuple[Axis, ...]  # from the outermost; across, without the lanes
    reduced: tuple[Axis, ...]
    lanes: Axis  # across: neighbouring rows; along: one
    vector: int
    steps: int  # vectors of a thread, loaded together
    columns: int  # threads side by side over the lanes; along 1
    team: int  # threads of a row (along), or of a column
    threads: int  # of a group
    is_held: bool  # the whole row is in registers
    parts: int
    per_part: int
    wide: bool  # offsets within a row need 64 bits
    is_even: bool = False  # along: rows are whole vectors, at multiples of them if the first is

    @property
    def row(self) -> int:
        """Elements of a row."""
        return prod(extent for extent, _ in self.reduced)

    @property
    def units(self) -> int:
        """Rows; across, runs of lanes."""
        return prod(extent for extent, _ in self.kept)

    @property
    def lane_blocks(self) -> int:
        """Groups over the lanes."""
        return max(1, -(-self.lanes[0] // (self.columns * self.vector)))

    @property
    def groups(self) -> int:
        """Groups for all rows, or for one part of each."""
        if self.is_across:
            return max(1, self.units * self.lane_blocks)
        return max(1, -(-self.units * self.team // self.threads))

    @property
    def rows(self) -> int:
        return self.units * self.lanes[0]

    @property
    def join_team(self) -> int:
        """Threads that put the parts of a row together."""
        return _WIDE_JOIN if self.parts > _MANY_PARTS and self.threads >= _WIDE_JOIN else _SUBGROUP

    @property
    def join_threads(self) -> int:
        return max(_THREADS, self.join_team)

    @property
    def join_groups(self) -> int:
        """Groups that put the parts of all rows together."""
        return max(1, -(-self.rows * self.join_team // self.join_threads))


def keeps_order(program: Program) -> bool:
    """Whether elements must be put together in their order: reductions of one's own need not commute."""
    return any(isinstance(name, Fold) for sweep in program.sweeps for name, _ in sweep.reductions)


def lay_out(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: GpuDevice,
    compute: str,
) -> Layout:
    """The layout for tensors of one shape, inputs first. `axes` are the reduced ones, counted from 0."""
    ordered = keeps_order(program)
    groups = _axes(program, tensors, axes, ordered)
    inner = _innermost(groups, tensors, axes)
    kept, reduced = (_joined(group, tensors, inner, ordered) for group in groups)
    is_across = inner is not None and inner in groups[0]
    is_across = is_across or not reduced
    lanes: Axis = (1, (0,) * (len(tensors) + 1))
    if is_across and kept:
        lanes = kept.pop()
    if not reduced:
        reduced = [(1, (0,) * (len(tensors) + 1))]
    walked = lanes if is_across else reduced[-1]
    others = [*kept, *(reduced if is_across else reduced[:-1])]
    vector = _vector(tensors, walked, others, is_across, is_across or len(reduced) > 1)
    if ordered and not is_across:
        vector = 1
    reach = sum((extent - 1) * max(map(abs, steps)) for extent, steps in (*reduced, lanes) if extent)
    is_wide = max(reach, prod(extent for extent, _ in reduced)) >= 2**31 - 2**16
    sizer = _Sizes(program, tensors, device, compute, kept, reduced, lanes, vector, is_wide)
    return sizer.across() if is_across else sizer.along()


def _axes(
    program: Program, tensors: Sequence[TensorDescriptor], axes: Sequence[int], ordered: bool
) -> tuple[list[Axis], list[Axis]]:
    """The kept and the reduced axes of more than one index."""
    shape = tensors[0].shape
    positions, step = [0] * len(shape), 1
    for axis in sorted(axes, reverse=True):
        positions[axis] = step if program.places else 0
        step *= shape[axis]
    groups: tuple[list[Axis], list[Axis]] = ([], [])
    for axis, extent in enumerate(shape):
        if extent != 1:
            steps = (*(t.strides[axis] for t in tensors), positions[axis])
            groups[axis in axes].append((extent, steps))
    return groups


def _reach(tensor: TensorDescriptor) -> int:
    """Bytes of the elements that are different ones."""
    return prod(e for e, s in zip(tensor.shape, tensor.strides, strict=True) if s) * DTYPES[tensor.dtype]


def _principal(tensors: Sequence[TensorDescriptor]) -> int:
    return max(range(len(tensors)), key=lambda t: (_reach(tensors[t]), t))


def _innermost(
    groups: tuple[list[Axis], list[Axis]], tensors: Sequence[TensorDescriptor], axes: Sequence[int]
) -> Axis | None:
    """The axis along which neighbouring threads should go: the one where most bytes are neighbours."""
    every = [*groups[1], *groups[0]]
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
    walked: Axis,
    others: Sequence[Axis],
    is_across: bool,
    is_strict: bool,
) -> int:
    """Elements that are loaded as one: 16 bytes of the smallest type of those whose elements are neighbours.

    `is_strict`: a vector must not leave the axis, so all of them begin at its multiples.
    """
    unit = [t for t, tensor in enumerate(tensors) if walked[1][t] == 1 and DTYPES[tensor.dtype] <= 4]
    if not unit:
        return 1
    # a thread with several rows has their results in registers
    vector = min(4 if is_across else 8, 16 // min(DTYPES[tensors[t].dtype] for t in unit))
    while is_strict and vector > 1:
        if walked[0] % vector == 0 and all(s[t] % vector == 0 for _, s in others for t in unit):
            break
        vector //= 2
    return vector


@dataclass
class _Sizes:
    """Chooses teams and parts."""

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
        loops = [sweep for sweep in self.program.sweeps if sweep.loops]
        self.loops = len(loops)
        self.reduces = any(sweep.folds for sweep in loops)
        self.writes = any(sweep.writes for sweep in loops)
        count = len(self.tensors) - self.program.outputs
        uses = [
            {i for e in (*(e for _, e in (*s.folds, *s.writes)), *s.keeps) for i in e.used()} for s in loops
        ]
        wide = 2.0 if self.compute == "f64" else 1.0
        # registers for an element: of what several sweeps need as long as the row takes, of others for a while
        self.weight = wide * sum(len(sweep.keeps) for sweep in loops)
        for t in range(count):
            times = sum(t in use for use in uses)
            size = self._size(t) / 4
            self.weight += size if times > 1 or len(loops) == 1 else size / 2 if times else 0.0
        self.weight = self.weight or 0.5
        # elements that are loaded at once, by what the first sweep loads from memory, and not from a cache
        large = max(map(_reach, self.tensors)) // 4
        loaded = (
            sum(self._size(t) for t in uses[0] if self._size(t) and _reach(self.tensors[t]) > large)
            if uses
            else 0
        )
        self.chunk = int(max(8.0, min(_MOST_HELD, _CHUNK / max(1.0, loaded))))
        self.most_threads = 1 << (min(1024, self.device.max_threads).bit_length() - 1)
        self.row = prod(extent for extent, _ in self.reduced)
        # with several axes no vector leaves the last one
        self.is_even = len(self.reduced) > 1
        if len(self.reduced) == 1 and self.row % self.vector == 0:
            units = [t for t in range(len(self.tensors)) if self.reduced[0][1][t] == 1]
            self.is_even = not any(s[t] % self.vector for _, s in self.kept for t in units)

    def _size(self, t: int) -> float:
        """Bytes of an element of an input; 0 where a row has one number."""
        if t >= len(self.tensors) - self.program.outputs:
            return 0.0
        moves = any(steps[t] for _, steps in (*self.reduced, self.lanes))
        return float(DTYPES[self.tensors[t].dtype]) if moves else 0.0

    def _room(self, threads: int) -> int:
        """Elements that a thread may hold."""
        if threads > 512:  # all that there is
            return max(1, int(min(_HELD / self.weight, 2 * _MOST_HELD)))
        if threads == 512 and self.weight <= 0.5:  # two groups have their rows side by side
            return 2 * _MOST_HELD
        return max(1, int(min(2 * _HELD / self.weight, _MOST_HELD)))

    def along(self) -> Layout:
        v, row = self.vector, self.row
        slack = 0 if self.is_even else v - 1
        vectors = -(-(row + slack) // v)
        if not self.loops:
            return self._made(False, 1, 1, 1, _THREADS, True)
        team = 1
        # of rows that are gone through once nothing is kept: enough of them are better read by smaller groups
        places = self.device.multiprocessors * (2048 // _STREAMING)
        is_streamed = self.loops == 1 and prod(extent for extent, _ in self.kept) >= _WAVES * places
        while team <= (_STREAMING if is_streamed else self.most_threads):
            steps = -(-vectors // team)
            is_last = team >= min(512, self.most_threads) and self.loops > 1
            most = self._room(team) if team <= _SUBGROUP or is_last else min(self.chunk, self._room(team))
            if team <= _SUBGROUP and self.loops == 1 and not self.writes:
                most = max(most, min(2 * self.chunk, 2 * _MOST_HELD))
            if (team >= min(8, vectors) or team == self.most_threads) and steps * v <= max(v, most):
                # several teams share a group only if each is within a subgroup: larger ones fold through its memory
                threads = team if team > _SUBGROUP else max(team, min(_THREADS, self.most_threads))
                return self._made(False, max(1, steps), 1, team, threads, True)
            team *= 2
        threads = min(512 if self.loops > 1 else 256, self.most_threads)
        steps = max(1, min(self.chunk, self._room(threads)) // v)
        layout = self._cut(False, steps, 1, threads, threads)
        if layout.parts == 1 and self.loops > 1 and self.reduces:
            # fewer rows at a time, so that the cache has them from one sweep to the next
            threads = self.most_threads
            steps = max(1, min(2 * self.chunk, int(_HELD / self.weight)) // v)
            return self._made(False, steps, 1, threads, threads, False)
        return layout

    def across(self) -> Layout:
        v, lanes, row = self.vector, self.lanes[0], self.row
        wanted = 1 << (max(1, -(-lanes // v)) - 1).bit_length()
        columns = min(_SUBGROUP, wanted)
        walkers = 1
        while walkers * columns <= self.most_threads:
            steps, threads = -(-row // walkers), walkers * columns
            most = self._room(threads) if threads >= min(512, self.most_threads) else self.chunk
            if steps * v <= max(v, most):
                if walkers == 1:
                    columns = min(wanted, _THREADS)
                    columns = max(columns, _SUBGROUP)
                while walkers * columns < _SUBGROUP:
                    walkers *= 2
                return self._made(True, max(1, steps), columns, walkers, walkers * columns, True)
            walkers *= 2
        threads = min(256, self.most_threads)
        walkers = threads // columns
        return self._cut(True, max(1, min(self.chunk, self._room(threads)) // v), columns, walkers, threads)

    def _made(
        self, is_across: bool, steps: int, columns: int, team: int, threads: int, is_held: bool
    ) -> Layout:
        return Layout(
            is_across, tuple(self.kept), tuple(self.reduced), self.lanes, self.vector, steps, columns, team,
            threads, is_held, 1, self.row + self.vector, self.wide, self.is_even,
        )  # fmt: skip

    def _cut(self, is_across: bool, steps: int, columns: int, team: int, threads: int) -> Layout:
        """Long rows, in as many parts as keep the device busy."""
        whole = self._made(is_across, steps, columns, team, threads, False)
        places = self.device.multiprocessors * max(1, 2048 // threads)
        # rows that are gone through several times are better left whole, where the cache has what was read
        is_enough = whole.groups >= (places // 2 if self.loops > 1 and self.reduces else _WAVES * places)
        chunk = team * steps * (1 if is_across else self.vector)
        covered = self.row + (0 if is_across else self.vector)
        # not more than there is work for, unless the device would stand idle
        sensible = max(-(-covered // (_CHUNKS * chunk)), 2 * self.device.multiprocessors // whole.groups)
        parts = 1 if is_enough else min(_WAVES * places // whole.groups, sensible, -(-covered // chunk))
        if parts <= 1:
            return whole
        per_part = _up(_up(covered, parts) // parts, chunk)
        parts = -(-covered // per_part)
        return Layout(
            is_across, whole.kept, whole.reduced, whole.lanes, whole.vector, steps, columns, team, threads,
            False, parts, per_part, whole.wide, whole.is_even,
        )  # fmt: skip


def _up(number: int, step: int) -> int:
    """The number or the next multiple of `step`."""
    return -(-number // step) * step
