"""Training a net within a limit on memory: memory is taken when a layer needs it and released when nobody does, and
what does not fit is computed twice.

`Memory` belongs to one net. It lays its memory out (memory_layout.py), measures its layers (memory_profile.py), has the
planner choose (planner/recompute.py), and runs the passes in the place of the net. The results are those of the net
without it, bit by bit where the same algorithms run: what is computed again is computed from the same values, by the
same algorithm and with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.graph import LayerGraph, Node
from jitdnn.caffe.layers.base import Layer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.memory_layout import Layout, lay_out
from jitdnn.caffe.memory_profile import SPARE, Choice, LayerCost, NodeCost, PlanHandle, divide, profile
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.planner.fronts import Point, in_turn
from jitdnn.planner.recompute import Action, Chain, RecomputePlan, Step, least, plan

# this part of an iteration may be lost before divisions of convolutions are looked for
_LOSS = 0.01
# and of those that need at least this part of the limit
_SHARE = 50


class Memory:
    """The memory of a net under a limit.

    `plan` says what is kept, what runs again and how much memory it takes; `plan.explain()` prints it.
    """

    def __init__(
        self,
        net: LayerGraph,
        limit: int | None,
        *,
        extra: int = 0,
        is_trained: bool = True,
        is_timed: bool | None = None,
        beside: Memory | None = None,
    ) -> None:
        """Plan for `limit` bytes in all, or, with None, for as few as possible; `extra` of them belong to others (a
        solver's history). Without `is_trained` there are forward passes only. `is_timed`: whether layers are measured;
        None if the setting `choice` is "find". `beside`: that of a net that never runs at the same time; workspace is
        shared with it.

        The net's blobs are released; nothing else of it changes. Raises InvalidArgument if the limit is too small, and
        gives the blobs their memory back then.
        """
        self.net = net
        self.is_trained = is_trained
        self.handle: PlanHandle = PlanHandle() if beside is None else beside.handle
        is_timed = self.handle.settings.choice == "find" if is_timed is None else is_timed
        self._layout = lay_out(net, is_trained=is_trained)
        self._is_between = False
        self._random: dict[int, Mapping[str, Any]] = {}
        self.release()
        try:
            room = None if limit is None else limit - self._layout.constant - extra
            costs = profile(net, self.handle, room, is_trained=is_trained, is_timed=is_timed)
            self.plan: RecomputePlan = self._settled(self._planned(costs, limit, extra))
        except BaseException:
            self.lift()
            raise
        finally:
            self.handle.trim()
        trims = {
            (moment.direction, moment.step): moment.trims for moment in self.plan.moments if moment.part == 0
        }
        self._actions = [(action, trims[action.direction, action.step]) for action in self.plan.actions]
        rerun = set(self.plan.rerun)
        self._random_nodes = {
            index for step in rerun for index in self._layout.steps[step] if net.nodes[index].layer.is_random
        }

    # ---- running

    def forward(self) -> None:
        """Run the forward pass."""
        self.release()
        self.handle.hand_to(self)
        with self.handle:
            for action, trims in self._actions:
                if action.direction != "forward":
                    break
                self._run(action, trims)
        self._is_between = self.is_trained

    def backward(self) -> None:
        """Run the backward pass, with the steps of the forward pass that it needs again.

        Raises InvalidArgument if no forward pass came before, since the last backward pass left nothing to start from.
        """
        if not self._is_between:
            raise InvalidArgument(
                "backward needs a forward pass before each: under a limit on memory nothing is left of the last one"
                if self.is_trained
                else "the limit on memory of this net is for forward passes only: it keeps nothing for backward"
            )
        self._is_between = False
        self.handle.hand_to(self)
        with self.handle:
            for action, trims in self._actions:
                if action.direction != "forward":
                    self._run(action, trims)
        self._random.clear()

    def release(self) -> None:
        """Release all that the passes left but inputs and outputs."""
        self._is_between = False
        for blob in self._layout.fixed:
            blob.ensure()
        for blobs in self._layout.blobs:
            for blob in blobs:
                blob.release()
        for blobs in self._layout.gradient_blobs:
            for blob in blobs:
                blob.release_diff()

    def lift(self) -> None:
        """Give all blobs the memory back that the net without a limit has, full of zeros."""
        self.release()
        for blobs in self._layout.blobs:
            for blob in blobs:
                blob.lift()
        for layer in self.net.layers:
            if isinstance(layer, ConvolutionLayer):
                layer.workspace_limits = {}
        self.handle.trim()

    def _run(self, action: Action, trims: bool) -> None:
        if trims:
            self.handle.trim()
        layout = self._layout
        for index in action.takes:
            layout.blobs[index][0].take()
        members = layout.steps[action.step]
        if action.direction == "backward":
            for index in reversed(members):
                node = self.net.nodes[index]
                if node.needs_backward and self.is_trained:
                    with self._observed(node, "backward"):
                        node.layer.backward(node.top, node.propagate, node.bottom)
                if self.net.after_backward is not None:
                    self.net.after_backward(index)
        else:
            for index in members:
                self._forward(index, is_rerun=action.direction == "rerun")
        for index in action.frees:
            for blob in layout.blobs[index]:
                blob.release()
        for index in action.frees_gradients:
            for blob in layout.gradient_blobs[index]:
                blob.release_diff()

    def _forward(self, index: int, *, is_rerun: bool) -> None:
        node = self.net.nodes[index]
        random = node.layer.context.random.bit_generator
        is_random = index in self._random_nodes
        if is_random:
            now = random.state
            if is_rerun:
                random.state = self._random[index]
            else:
                self._random[index] = now
        with self._observed(node, "forward"):
            node.layer.forward(node.bottom, node.top)
        if is_random and is_rerun:
            random.state = now

    @contextmanager
    def _observed(self, node: Node, direction: str) -> Iterator[None]:
        observer = self.net.observer
        start = perf_counter() if observer else 0.0
        yield
        if observer:
            observer(node.layer, direction, perf_counter() - start)

    def _planned(self, costs: list[NodeCost], limit: int | None, extra: int) -> RecomputePlan:
        """The plan; where it loses time, convolutions are divided too, which takes longer to find out about."""

        def planned() -> RecomputePlan:
            chain = _chain(self.net, self._layout, costs, extra)
            return least(chain) if limit is None else plan(chain, limit)

        try:
            found: RecomputePlan | None = planned()
        except InvalidArgument:
            found = None
        if found is not None and found.seconds_lost <= _LOSS * found.seconds:
            return found
        most = found.peak if limit is None and found is not None else limit or 0
        divide(costs, self.handle, most // _SHARE)
        return planned()

    def _settled(self, found: RecomputePlan) -> RecomputePlan:
        """Have every convolution run as the plan says, and put into it the workspace that this takes indeed."""

        def settled(point: Point) -> Point:
            for choice in point.what.choices:
                choice.set()
            needs = (choice.workspace(self.handle) for choice in point.what.choices)
            return point._replace(workspace=max((point.what.workspace, *needs)))

        forward = tuple(settled(point) for point in found.forward)
        backward = tuple(tuple(settled(point) for point in points) for points in found.backward)
        return replace(found, forward=forward, backward=backward)


def refuse_limit(layers: Sequence[Layer], device: NetDevice | None) -> None:
    """Raise NotSupported for a net whose memory cannot be planned."""
    for layer in layers:
        if layer.may_resize:
            raise NotSupported(
                f"layer {layer.name!r} ({layer.type}){layer.parameter.where()} has tops whose shapes are known in "
                "the forward pass alone: a net with it cannot be planned for a limit on memory"
            ).at(layer.parameter.place())
    if device is not None:
        raise NotSupported(
            f"a limit on memory for a net on {device.name}: memory is planned for nets on the processor"
        )


def _chain(net: LayerGraph, layout: Layout, costs: list[NodeCost], extra: int) -> Chain:
    steps = []
    for members in layout.steps:
        nodes = [net.nodes[index] for index in members]
        forward = [costs[index].forward for index in members]
        backward = [costs[index].backward for index in members]
        steps.append(
            Step(
                "+".join(node.layer.name for node in nodes),
                _together([*_ways(forward), _rest(forward)]),
                (*_ways(backward), _rest(backward)),
                max(cost.temporary for cost in forward),
                max(cost.temporary for cost in backward),
                all(node.layer.may_rerun for node in nodes),
            )
        )
    every = [cost for node in costs for cost in (node.forward, node.backward)]
    return Chain(
        tuple(steps),
        tuple(layout.buffers),
        tuple(layout.gradients),
        layout.constant + extra,
        SPARE,
        sum(cost.seconds + sum(cost.fastest.values()) for cost in every),
    )


class _Ways(NamedTuple):
    """`what` of a step's points: how its convolutions run, and the workspace that all else needs."""

    choices: tuple[Choice, ...] = ()
    workspace: int = 0


def _together(fronts: list[tuple[Point, ...]]) -> tuple[Point, ...]:
    """The front of a step's layers, which run one after another."""
    return tuple(
        point._replace(
            what=_Ways(
                tuple(choice for ways in point.what for choice in ways.choices),
                max(ways.workspace for ways in point.what),
            )
        )
        for point in in_turn(fronts)
    )


def _rest(costs: list[LayerCost]) -> tuple[Point, ...]:
    """The one way to run what is no convolution."""
    workspace = max(cost.workspace for cost in costs)
    return (Point(sum(cost.seconds for cost in costs), workspace, _Ways((), workspace)),)


def _ways(costs: list[LayerCost]) -> list[tuple[Point, ...]]:
    """The fronts of the convolutions."""
    return [
        tuple(point._replace(what=_Ways((point.what,))) for point in points)
        for cost in costs
        for points in cost.fronts.values()
    ]
