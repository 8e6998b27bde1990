"""What each layer of a net costs: seconds, bytes beside its blobs, and the ways to run its convolutions.

Layers run one by one on blobs of zeros, with memory for that layer alone, so that a net can be profiled which does not
fit as a whole. Weights, their gradients and the states of layers are as before afterwards.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter, sleep
from typing import NamedTuple

from jitdnn.caffe.graph import LayerGraph, Node
from jitdnn.caffe.layers.base import Layer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.warm import Recorder, Wanted
from jitdnn.planner.division import MARGIN, Divider, may_be_divided
from jitdnn.planner.fronts import Point, front
from jitdnn.planner.store import Store
from jitdnn.planner.survey import AlgorithmCandidate, survey
from jitdnn.problems.convolution import Convolution

#: what a piece of workspace takes beside the bytes asked for: its alignment, and NumPy's header of an array
SPARE = 192
_PAGE = 4096
# what a layer without kernels of its own is expected to move
_BYTES_A_SECOND = 2e9
# a way that needs more workspace must take less than this part of the time to be worth a look
_STEP = 0.97
_REPEATS = 3
_LETS_THREADS_GO = 0.05


class PlanHandle(Handle):
    """A handle that tells how much scratch memory it holds, and whose net used it last."""

    def __init__(self) -> None:
        super().__init__()
        self._user: object = None

    def hand_to(self, user: object) -> None:
        """Give scratch memory back if somebody else used it last: plans count on what their own net left."""
        if self._user is not user:
            self.trim()
            self._user = user

    @property
    def held(self) -> int:
        """Bytes of scratch memory that are there for the next call."""
        return sum(block.bytes for block in self._blocks)


class Choice(NamedTuple):
    """A way to run a convolution of a layer: the limit on workspace by which the planner chooses it, None for its free
    choice, and what the planner is asked."""

    layer: ConvolutionLayer
    wanted: Wanted
    limit: int | None

    @property
    def direction(self) -> str:
        assert isinstance(self.wanted.problem, Convolution)
        return self.wanted.problem.direction

    def workspace(self, handle: Handle) -> int:
        """The bytes that it takes, of which the limit may be more."""
        request = self.wanted.request
        if self.limit is not None:
            assert request is not None
            request = replace(request, workspace_limit=self.limit)
        return handle.plan(self.wanted.problem, request, self.wanted.epilogue).workspace

    def set(self) -> None:
        """Have the layer run that way."""
        if self.limit is None:
            self.layer.workspace_limits.pop(self.direction, None)
        else:
            self.layer.workspace_limits[self.direction] = self.limit


@dataclass
class LayerCost:
    """Of one direction of a layer: what `planner.recompute.Step` wants to know.

    `workspace` and `seconds` are those of all but the convolutions, which have their fronts by direction; `what` of
    their points is a `Choice`. Ways that need more workspace than `room` (None: any) are left out; `fastest`
    are the seconds of the fastest with them.
    """

    seconds: float = 0.0
    temporary: int = 0
    workspace: int = 0
    fronts: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    room: int | None = None
    fastest: dict[str, float] = field(default_factory=dict)

    def fitting(self, points: tuple[Point, ...]) -> tuple[Point, ...]:
        """Those that there is room for, or the one that needs the least."""
        return tuple(p for p in points if self.room is None or p.workspace <= self.room) or points[:1]


@dataclass
class NodeCost:
    """Both directions of a layer."""

    forward: LayerCost = field(default_factory=LayerCost)
    backward: LayerCost = field(default_factory=LayerCost)


def profile(
    net: LayerGraph, handle: PlanHandle, room: int | None, *, is_trained: bool, is_timed: bool
) -> list[NodeCost]:
    """Run every layer of a net whose blobs are all released, and return what each costs.

    `room`: the bytes that a layer may take, its blobs and workspace; None for any number. Seconds are those that the
    planner expects, so that a net is planned alike each time; with `is_timed` they are measured.
    """
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    costs = []
    profiler = _Profiler(handle, room, is_trained=is_trained, is_timed=is_timed)
    try:
        with handle:
            for node in net.nodes:
                with _alone(net, node):
                    costs.append(profiler.cost(node))
                handle.trim()
    finally:
        if not was_tracing:
            if any(layer.context.part is not None for layer in net.layers):
                # threads of gloo that wait for the interpreter's lock after an exchange may be about to note an
                # allocation; Python before 3.12.9 crashes (its issue 128679) where that has been stopped meanwhile
                sleep(_LETS_THREADS_GO)
            tracemalloc.stop()
    return costs


@contextmanager
def _alone(net: LayerGraph, node: Node) -> Iterator[None]:
    """Memory for the blobs of one layer, zeros where nobody filled them, and gradients to write into."""
    layer = node.layer
    blobs = [*node.bottom, *node.top, *layer.saved.values()]
    owners = {id(blob.owner): blob.owner for blob in blobs}
    taken = [blob for blob in owners.values() if not blob.has_data]
    for blob in taken:
        blob.take()
        blob.data.fill(0)
    weights = {id(blob): blob for each in layer.weights for blob in (each, each.gradient_owner)}
    kept = {key: blob.swap_diff(None) for key, blob in weights.items()}
    # a forward pass that cannot run again may change weights, as batch normalization its statistics
    values = [] if layer.may_rerun else [(blob.data, blob.data.copy()) for blob in layer.weights]
    state = layer.state()
    fixed = {id(net.blobs[name].gradient_owner) for name in net.inputs}
    weighted = [blob for blob, weight in zip(node.top, node.loss_weights, strict=True) if weight]
    fixed |= {id(blob.gradient_owner) for blob in weighted}
    try:
        yield
    finally:
        layer.restore(state)
        for key, blob in weights.items():
            blob.swap_diff(kept[key])
        for data, value in values:
            data[...] = value
        for blob in blobs:
            if any(blob.owner is each for each in taken):
                blob.release()
            if id(blob.gradient_owner) not in fixed:
                blob.release_diff()
                blob.gradient_owner.release_diff()
        for blob in taken:
            blob.release()


class _Profiler:
    def __init__(self, handle: PlanHandle, room: int | None, *, is_trained: bool, is_timed: bool) -> None:
        self._handle, self._room = handle, room
        self._is_trained, self._is_timed = is_trained, is_timed
        self._fronts: dict[Wanted, tuple[Point, ...]] = {}

    def cost(self, node: Node) -> NodeCost:
        layer, cost = node.layer, NodeCost()
        if not node.top and not layer.may_rerun:
            return cost  # it writes a file: it is not run to be measured
        blobs = {id(blob.owner): blob.owner for blob in (*node.bottom, *node.top, *layer.saved.values())}
        size = sum(blob.nbytes for blob in blobs.values())

        def forward() -> None:
            layer.forward(node.bottom, node.top)

        def backward() -> None:
            layer.backward(node.top, node.propagate, node.bottom)

        passes = [(forward, cost.forward)]
        if node.needs_backward and self._is_trained:
            passes.append((backward, cost.backward))
        for number, (run, of) in enumerate(passes, start=1):
            # backward, the gradients of the blobs are there too
            of.room = None if self._room is None else max(0, self._room - number * size)
            self._expect(layer, run, size, of)
            self._measure(run, of)
        if isinstance(layer, ConvolutionLayer):
            layer.workspace_limits = {}
        return cost

    def _expect(self, layer: Layer, run: Callable[[], None], size: int, cost: LayerCost) -> None:
        """Fill in what the planner knows, and have convolutions run by their fastest way that there is room for."""
        if not layer.may_rerun:
            return  # it reads files or waits for a caller, and runs once in any case
        with Recorder() as recorder:
            run()
        for wanted in recorder.wanted:
            if not isinstance(wanted.problem, Convolution) or not isinstance(layer, ConvolutionLayer):
                plan = self._handle.plan(wanted.problem, wanted.request, wanted.epilogue)
                cost.workspace = max(cost.workspace, plan.workspace)
                cost.seconds += plan.seconds
                continue
            if wanted not in self._fronts:
                self._fronts[wanted] = front_of(self._handle, wanted)
            points = tuple(
                point._replace(what=Choice(layer, wanted, point.what)) for point in self._fronts[wanted]
            )
            fastest = points[-1].seconds
            points = cost.fitting(points)
            direction = points[-1].what.direction
            known = cost.fronts.get(direction)
            if known is not None:  # several bottoms go the same way, one after another
                points = tuple(
                    point._replace(seconds=point.seconds + more.seconds)
                    for point, more in zip(known, points, strict=True)
                )
            cost.fronts[direction] = points
            cost.fastest[direction] = cost.fastest.get(direction, 0.0) + fastest
            points[-1].what.set()
        if not recorder.wanted:
            cost.seconds = size / _BYTES_A_SECOND

    def _measure(self, run: Callable[[], None], cost: LayerCost) -> None:
        """Fill in what is seen while it runs."""
        self._handle.trim()
        run()  # which compiles
        if not cost.fronts:
            cost.workspace = self._handle.held
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        run()
        _, most = tracemalloc.get_traced_memory()
        # whole pages, so that a net is planned alike though Python's own objects differ a little
        cost.temporary = -(-(most - before) // _PAGE) * _PAGE
        if self._is_timed:
            seconds = min(_timed(run) for _ in range(_REPEATS))
            # estimates tell the ways of a convolution apart, the clock tells how long the fastest takes
            expected = cost.seconds + sum(points[-1].seconds for points in cost.fronts.values())
            scale = seconds / expected if expected else 1.0
            cost.seconds = scale * cost.seconds if expected else seconds
            cost.fastest = {direction: scale * fastest for direction, fastest in cost.fastest.items()}
            cost.fronts = {
                direction: tuple(point._replace(seconds=scale * point.seconds) for point in points)
                for direction, points in cost.fronts.items()
            }


def _timed(run: Callable[[], None]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def front_of(handle: Handle, wanted: Wanted, *, is_divided: bool = False) -> tuple[Point, ...]:
    """The ways to run a convolution whole, or also divided, for which many more problems are looked at; `what` is the
    limit on workspace by which the planner chooses it, None for its free choice.
    """
    problem, request = wanted.problem, wanted.request
    plan = handle.plan(problem, request, wanted.epilogue)
    best = Point(plan.seconds, plan.workspace, None)
    whole = [
        Point(candidate.seconds, candidate.workspace, candidate.workspace)
        for candidate in plan.candidates
        if candidate.refused is None and candidate.seconds is not None and candidate.workspace is not None
    ]
    points = whole + (_divided(handle, wanted, whole) if is_divided else [])
    slower = [p for p in points if p.seconds > best.seconds and p.workspace < best.workspace]
    kept: list[Point] = []
    for point in front(slower):
        if not kept or point.seconds < _STEP * kept[-1].seconds:
            kept.append(point)
    return (*kept, best)


def divide(costs: Sequence[NodeCost], handle: PlanHandle, least: int) -> None:
    """Put ways in parts into the fronts of convolutions whose fastest way needs `least` bytes of workspace or more."""
    known: dict[Wanted, tuple[Point, ...]] = {}
    with handle:
        for cost in (each for node in costs for each in (node.forward, node.backward)):
            for direction, points in cost.fronts.items():
                best = points[-1]
                wanted = best.what.wanted
                whole = front_of(handle, wanted)
                if whole[-1].workspace < max(1, least):
                    continue
                if wanted not in known:
                    known[wanted] = front_of(handle, wanted, is_divided=True)
                # the clock, or several bottoms, may have changed what the planner says
                (expected,) = (point.seconds for point in whole if point.what == best.what.limit)
                scale = best.seconds / expected if expected else 1.0
                cost.fronts[direction] = tuple(
                    Point(scale * p.seconds, p.workspace, best.what._replace(limit=p.what))
                    for p in cost.fitting(known[wanted])
                )


def _divided(handle: Handle, wanted: Wanted, whole: Sequence[Point]) -> list[Point]:
    """The ways in parts that the planner would take for less workspace."""
    problem, request = wanted.problem, wanted.request
    if request is None or not isinstance(problem, Convolution) or not may_be_divided(problem, request):
        return []
    device, store = handle.device, Store.default()

    def look(part: Convolution, epilogue: Epilogue | None) -> Sequence[AlgorithmCandidate]:
        return survey(part, device, request, epilogue, store)

    ways = Divider(problem, request, wanted.epilogue, look).front()
    found = [Point(point.seconds, point.workspace, point.workspace) for point in ways]
    return [
        point
        for point in found
        if point.seconds
        < MARGIN * min((p.seconds for p in whole if p.workspace <= point.workspace), default=inf)
    ]
