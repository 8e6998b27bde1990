"""Traced code of normalization by the squares in a window: `lrn` and `divisive_norm`, forward and backward.

    d = x - means, or x        s = k + factor * sum(d^2)        p = s^-beta

    forward    y  = x * p
    backward   g  = dy * x * p / s          over all that the windows of a unit touch, kept in workspace
               dx = dy * p - 2 * factor * beta * d * sum(g)     windows mirrored
               dmeans = dy * p - dx

A window is a box on up to three axes. Vectors are over an axis that no window lies on (`OverOtherAxis`: each lane
sums for itself) or over the last axis of the window (`OverWindow`: the sums of the other axes are put into a row of
memory with zeros around it, and added up from there by shifted loads).

    unit, over another axis    forward one position on the first window axis of a chunk of lanes; backward a block of
    lanes unit, over the window      some rows; backward all that a window may move over
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.nontemporal import store_vector
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.tensor import compute_dtype

AXES = 3
NUMBERS = (
    "units", "per_task", "run", "chunk", "before", "after", "size", "extent0", "extent1", "extent2", "pitch", "front",
)  # fmt: skip
REALS = ("k", "factor", "beta")
FIRST_STRIDE = len(NUMBERS) + len(REALS)
POWERS = {0.5: "half", 0.75: "three quarters", 1.0: "one"}
MOST_UNROLLED = 16  # elements of a window along a row: cuDNN's limit


@dataclass(frozen=True)
class NormCode:
    """What is compiled in."""

    direction: str
    over_window: bool
    is_row: bool  # windows lie on the last axis only
    has_means: bool
    dtype: str
    power: str  # a value of POWERS, or "any"
    kept: int  # axes that no window lies on, without that of the lanes
    vectors: int  # of lanes that go together
    size: int  # of the window, 0 if it is not unrolled
    is_unit: tuple[bool, ...]  # for each tensor: neighbouring lanes are neighbours in memory
    streams: bool

    @property
    def inputs(self) -> int:
        return (1 if self.direction == "fwd" else 2) + self.has_means


Position = tuple[Value, Value, Value]


class _Norm:
    """What all four ways share."""

    def __init__(self, k: Builder, arguments: Arguments, code: NormCode, task: Value, thread: Value) -> None:
        self.k, self.code, self.thread = k, code, thread
        self.here: list[Pointer] = []  # where the unit at hand begins in each tensor
        self.dtype = compute_dtype(code.dtype)
        self.lanes = k.lanes(self.dtype)
        self.width = self.lanes * code.vectors
        tensors, axes = len(code.is_unit), code.kept + 1 + AXES
        self.n: dict[str, Value] = {name: arguments.extra(i) for i, name in enumerate(NUMBERS)}
        reals = [k.bitcast(arguments.extra(len(NUMBERS) + i), "f64") for i in range(len(REALS))]
        self.real = {
            name: k.splat(k.convert(real, self.dtype), self.lanes)
            for name, real in zip(REALS, reals, strict=True)
        }
        first = FIRST_STRIDE + axes
        self.extents = [arguments.extra(FIRST_STRIDE + a) for a in range(code.kept)]
        strides = [[arguments.extra(first + t * axes + a) for a in range(axes)] for t in range(tensors)]
        self.kept_strides = [s[: code.kept] for s in strides]
        self.window_strides = [s[code.kept + 1 :] for s in strides]
        self.steps: list[int | Value] = [
            1 if unit else s[code.kept] for unit, s in zip(code.is_unit, strides, strict=True)
        ]
        self.scale = Scale(k, arguments, self.dtype)
        self.tensors = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in range(tensors)]
        self.x = 0 if code.direction == "fwd" else 1
        self.memory: Pointer = arguments.workspace(self.dtype)
        first_unit = task * self.n["per_task"]
        self._run(first_unit, (first_unit + self.n["per_task"]).min(self.n["units"]))

    def _run(self, first: Value, last: Value) -> None:
        raise NotImplementedError

    # ---- elements

    def _at(self, tensor: int, position: Position) -> Pointer:
        pointer = self.here[tensor]
        for p, stride in zip(position, self.window_strides[tensor], strict=True):
            pointer = pointer + p * stride
        return pointer

    def _load(self, tensor: int, pointer: Pointer, lane: int | Value, mask: Value | None) -> Value:
        step = self.steps[tensor]
        return pointer.load_strided(self.k.integer(lane) * step, step, self.lanes, mask)

    def _deviation(self, position: Position, lane: int | Value, mask: Value | None) -> Value:
        value = self._load(self.x, self._at(self.x, position), lane, mask)
        if not self.code.has_means:
            return value
        means = self.code.inputs - 1
        return value - self._load(means, self._at(means, position), lane, mask)

    def _store(
        self, number: int, position: Position, lane: int | Value, value: Value, mask: Value | None
    ) -> None:
        """Store a result, the first being number 0."""
        tensor = self.code.inputs + number
        step = self.steps[tensor]
        there = self._at(tensor, position) + self.k.integer(lane) * step
        if mask is None and self.code.is_unit[tensor]:
            store_vector(self.k, self.scale, there, value, self.code.streams)
        else:
            self.scale.store(there, step, value, mask)

    def _positions(self, start: Value, stop: Value) -> Iterator[Position]:
        """Loops over the window axes, over the first one from ``start`` to ``stop``; not over that of the lanes."""
        k, n = self.k, self.n
        for p0 in k.range(start, stop):
            for p1 in k.range(n["extent1"]):
                if self.code.over_window:
                    yield p0, p1, k.integer(0)
                else:
                    for p2 in k.range(n["extent2"]):
                        yield p0, p1, p2

    def _reach(self, is_mirrored: bool) -> tuple[Value, Value]:
        """How far a window goes before and behind its element."""
        n = self.n
        return (n["after"], n["before"]) if is_mirrored else (n["before"], n["after"])

    def _bounds(self, axis: int, place: Value, is_mirrored: bool) -> tuple[Value, Value]:
        before, after = self._reach(is_mirrored)
        return (place - before).max(0), (place + after + 1).min(self.n[f"extent{axis}"])

    def _window_rows(self, position: Position, is_mirrored: bool) -> Iterator[tuple[Value, Value]]:
        """Loops over the window of a position on the first two axes, where it lies on them."""
        k = self.k
        if self.code.is_row:
            yield position[0], position[1]
            return
        for j0 in k.range(*self._bounds(0, position[0], is_mirrored)):
            for j1 in k.range(*self._bounds(1, position[1], is_mirrored)):
                yield j0, j1

    # ---- arithmetic

    def _spread(self, squares: Value) -> Value:
        """s of a sum of squares."""
        return self.k.fma(squares, self.real["factor"], self.real["k"])

    def _powers(self, s: Value) -> tuple[Value, Value]:
        """s^-beta and 1 / s."""
        if self.code.power == "any":
            return vector_math.exp(self.k, vector_math.log(self.k, s) * -self.real["beta"]), 1.0 / s
        if self.code.power == "one":
            inverse = 1.0 / s
            return inverse, inverse
        root = 1.0 / vector_math.sqrt(self.k, s)
        if self.code.power == "half":
            return root, root * root
        return root * vector_math.sqrt(self.k, root), root * root

    def _forward(self, position: Position, lane: int | Value, squares: Value, mask: Value | None) -> None:
        x = self._load(0, self._at(0, position), lane, mask)
        self._store(0, position, lane, x * self._powers(self._spread(squares))[0], mask)

    def _parts(
        self, position: Position, lane: int | Value, squares: Value, mask: Value | None
    ) -> tuple[Value, Value]:
        """g and dy * p; 0 beyond the last lane."""
        dy, x = (self._load(t, self._at(t, position), lane, mask) for t in range(2))
        power, inverse = self._powers(self._spread(squares))
        scaled = dy * power
        part = scaled * x * inverse
        if mask is not None:
            part = self.k.select(mask, part, 0.0)
        return part, scaled

    def _gradients(
        self, position: Position, lane: int | Value, scaled: Value, total: Value, mask: Value | None
    ) -> None:
        twice = self.real["factor"] * self.real["beta"] * 2.0
        through_window = twice * self._deviation(position, lane, mask) * total
        self._store(0, position, lane, scaled - through_window, mask)
        if self.code.has_means:
            self._store(1, position, lane, through_window, mask)


class OverOtherAxis(_Norm):
    """Vectors over an axis that no window lies on."""

    def _run(self, first: Value, last: Value) -> None:
        k, n, code = self.k, self.n, self.code
        # the digit before that of the chunk is the position on the first window axis, forward
        rows = n["extent0"] if code.direction == "fwd" else k.integer(1)
        chunks = (n["run"] + (n["chunk"] - 1)) // n["chunk"]
        zero = k.integer(0)
        counter = Counter(
            k, first, [*self.extents, rows, chunks],
            [
                [*kept, zero, k.integer(step) * n["chunk"]]
                for kept, step in zip(self.kept_strides, self.steps, strict=True)
            ],
        )  # fmt: skip
        for _unit in k.range(first, last):
            self.here = [p + o.get() for p, o in zip(self.tensors, counter.offsets, strict=True)]
            count = (n["run"] - counter.digits[-1].get() * n["chunk"]).min(n["chunk"])
            if code.direction == "fwd":
                p0 = counter.digits[-2].get()
                for position in self._positions(p0, p0 + 1):
                    for is_inside in self._cases(position, is_mirrored=False):
                        for lane, masks in self._blocks(count):
                            self._prefetch(position, lane)
                            for v, squares in enumerate(self._squares(position, lane, masks, is_inside)):
                                self._forward(position, lane + v * self.lanes, squares, masks[v])
            else:
                for _, masks in self._blocks(count):
                    self._backward(masks)
            counter.advance()

    def _blocks(self, count: Value) -> Iterator[tuple[Value, list[Value | None]]]:
        """Vectors of lanes that go together: where they begin, and their masks."""
        k, vectors = self.k, self.code.vectors
        whole = (count // self.width) * self.width
        for lane in k.range(0, whole, self.width):
            yield lane, [None] * vectors
        with k.when(whole < count):
            yield whole, [k.mask(count - whole - v * self.lanes, self.lanes) for v in range(vectors)]

    def _cases(self, position: Position, is_mirrored: bool) -> Iterator[bool]:
        """Traced twice: for windows that are whole along the last axis, whose loop is unrolled, and the others."""
        k, place = self.k, position[2]
        if not self.code.size:
            yield False
            return
        before, after = self._reach(is_mirrored)
        is_inside = (place >= before) & (place + after < self.n["extent2"])
        with k.when(is_inside):
            yield True
        with k.when(~is_inside):
            yield False

    def _elements(self, position: Position, is_inside: bool, is_mirrored: bool) -> Iterator[Position]:
        """Loops over the elements of a window that are in the tensor."""
        for j0, j1 in self._window_rows(position, is_mirrored):
            if is_inside:
                first = position[2] - self._reach(is_mirrored)[0]
                for t in range(self.code.size):
                    yield j0, j1, first + t
            else:
                for j2 in self.k.range(*self._bounds(2, position[2], is_mirrored)):
                    yield j0, j1, j2

    def _prefetch(self, position: Position, lane: int | Value) -> None:
        """Ask for what the next position's window adds: often another page, where the processor does not look."""
        p0, p1, p2 = position
        for tensor in range(self.code.inputs):
            if self.code.is_unit[tensor]:
                there = self._at(tensor, (p0, p1, p2 + self.n["after"] + 1)) + lane
                for v in range(self.code.vectors):
                    there.prefetch(v * self.lanes)

    def _squares(
        self, position: Position, lane: Value, masks: Sequence[Value | None], is_inside: bool
    ) -> list[Value]:
        k = self.k
        totals = [k.register(k.constant(0.0, self.dtype, self.lanes)) for _ in masks]
        for element in self._elements(position, is_inside, is_mirrored=False):
            for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                d = self._deviation(element, lane + v * self.lanes, mask)
                total.set(k.fma(d, d, total.get()))
        return [total.get() for total in totals]

    def _backward(self, masks: Sequence[Value | None]) -> None:
        k, n = self.k, self.n
        zero, extent = k.integer(0), n["extent0"]
        size = extent * n["extent1"] * n["extent2"] * self.width
        parts = self.memory + self.thread * size * 2
        scaled = parts + size

        def kept(position: Position) -> Value:
            p0, p1, p2 = position
            return ((p0 * n["extent1"] + p1) * n["extent2"] + p2) * self.width

        for position in self._positions(zero, extent):
            for is_inside in self._cases(position, is_mirrored=False):
                self._prefetch(position, 0)
                for v, squares in enumerate(self._squares(position, zero, masks, is_inside)):
                    part, product = self._parts(position, v * self.lanes, squares, masks[v])
                    there = kept(position) + v * self.lanes
                    parts.store(part, there)
                    scaled.store(product, there)
        for position in self._positions(zero, extent):
            for is_inside in self._cases(position, is_mirrored=True):
                totals = [k.register(k.constant(0.0, self.dtype, self.lanes)) for _ in masks]
                for element in self._elements(position, is_inside, is_mirrored=True):
                    for v, total in enumerate(totals):
                        total += parts.load(kept(element) + v * self.lanes, self.lanes)
                for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                    product = scaled.load(kept(position) + v * self.lanes, self.lanes)
                    self._gradients(position, v * self.lanes, product, total.get(), mask)


class OverWindow(_Norm):
    """Vectors over the last window axis, whose elements are neighbours in every tensor.

    The rows in workspace have room for a window's reach before and behind, which stays 0. Several rows are filled
    before the first is read, so that no load waits for the stores that it overlaps.
    """

    def _run(self, first: Value, last: Value) -> None:
        k, n, code = self.k, self.n, self.code
        groups = (n["extent0"] + (n["chunk"] - 1)) // n["chunk"]
        plane = n["chunk"] * n["extent1"] * n["pitch"]
        planes = 1 if code.direction == "fwd" else 3
        self.sums: Pointer = self.memory + self.thread * plane * planes
        self.parts, self.scaled = self.sums + plane, self.sums + plane * 2
        self.front: int | Value = n["front"]
        nothing = k.constant(0.0, self.dtype, self.lanes)
        for i in k.range(0, plane * planes, self.lanes):
            self.sums.store(nothing, i)
        zero = k.integer(0)
        counter = Counter(k, first, [*self.extents, groups], [[*kept, zero] for kept in self.kept_strides])
        for _unit in k.range(first, last):
            self.here = [p + o.get() for p, o in zip(self.tensors, counter.offsets, strict=True)]
            self.start = counter.digits[-1].get() * n["chunk"]
            stop = (self.start + n["chunk"]).min(n["extent0"])
            for position in self._positions(self.start, stop):
                self._sum_squares(position)
            for position in self._positions(self.start, stop):
                for lane, mask in self._columns():
                    squares = self._sum_row(position, lane, n["before"])
                    if code.direction == "fwd":
                        self._forward(position, lane, squares, mask)
                    else:
                        part, product = self._parts(position, lane, squares, mask)
                        self.parts.store(part, self._kept(position) + lane)
                        self.scaled.store(product, self._kept(position) + lane)
            if code.direction == "bwd":
                self._backward(stop)
            counter.advance()

    def _kept(self, position: Position) -> Value:
        """Where the row of a position begins in each plane of the workspace."""
        n = self.n
        return ((position[0] - self.start) * n["extent1"] + position[1]) * n["pitch"] + self.front

    def _columns(self) -> Iterator[tuple[Value, Value | None]]:
        k, run = self.k, self.n["run"]
        whole = (run // self.lanes) * self.lanes
        for lane in k.range(0, whole, self.lanes):
            yield lane, None
        with k.when(whole < run):
            yield whole, k.mask(run - whole, self.lanes)

    def _fill_row(
        self,
        position: Position,
        is_mirrored: bool,
        add: Callable[[Position, Value, Value | None, Value], Value],
    ) -> None:
        """Make the row of sums over all window axes but the last, where ``add`` adds one element to a sum."""
        k = self.k
        for lane, mask in self._columns():
            total = k.register(k.constant(0.0, self.dtype, self.lanes))
            for j0, j1 in self._window_rows(position, is_mirrored):
                total.set(add((j0, j1, position[2]), lane, mask, total.get()))
            self.sums.store(total.get(), self._kept(position) + lane)

    def _sum_squares(self, position: Position) -> None:
        def add(element: Position, lane: Value, mask: Value | None, total: Value) -> Value:
            d = self._deviation(element, lane, mask)
            return self.k.fma(d, d, total)

        self._fill_row(position, False, add)

    def _sum_row(self, position: Position, lane: Value, before: Value) -> Value:
        """The sums of windows along a row of sums."""
        k = self.k
        start = self.sums + (self._kept(position) + lane - before)
        if not self.code.size:
            total = k.register(k.constant(0.0, self.dtype, self.lanes))
            for t in k.range(self.n["size"]):
                total += start.load(t, self.lanes)
            return total.get()
        terms = [start.load(t, self.lanes) for t in range(self.code.size)]
        while len(terms) > 1:
            pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(pairs) * 2 :]
        return terms[0]

    def _backward(self, stop: Value) -> None:
        def add(element: Position, lane: Value, mask: Value | None, total: Value) -> Value:
            return total + self.parts.load(self._kept(element) + lane, self.lanes)

        sums = self.sums
        if self.code.is_row:
            self.sums = self.parts  # such sums have one term
        else:
            for position in self._positions(self.start, stop):
                self._fill_row(position, True, add)
        for position in self._positions(self.start, stop):
            for lane, mask in self._columns():
                product = self.scaled.load(self._kept(position) + lane, self.lanes)
                self._gradients(position, lane, product, self._sum_row(position, lane, self.n["after"]), mask)
        self.sums = sums


def trace(module: Module, code: NormCode) -> None:
    with module.task("window_norm") as (k, args, task, thread):
        arguments = Arguments(k, args, len(code.is_unit))
        (OverWindow if code.over_window else OverOtherAxis)(k, arguments, code, task, thread)
