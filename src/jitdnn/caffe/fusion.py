"""Layers that are computed by one call: what works in place on the result of another layer goes into that layer's.

    Convolution, DepthwiseConvolution     + ReLU
    InnerProduct (with a bias)            + ReLU
    Eltwise SUM                           + ReLU
    BatchNorm                             + Scale + ReLU, or either
    Convolution                           + all of the last line, where the statistics are fixed: a factor and a summand
                                            for each channel, applied as the sums are stored
    Convolution                           writes where a BatchNorm in place keeps its x, which saves a copy

Only layers in place are fused, so that every blob holds after a pass what it holds without fusion; results differ by
rounding. An observer sees the time of all in the first one, and its top as the last one leaves it. Where only a part of
the layers runs, nothing is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitdnn.caffe.backward_fusion import BackwardFusion
from jitdnn.caffe.graph import Node, Parameter
from jitdnn.caffe.layers.activation import ReLULayer
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.layers.deconvolution import DeconvolutionLayer
from jitdnn.caffe.layers.eltwise import EltwiseLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer
from jitdnn.caffe.layers.scale import ScaleLayer
from jitdnn.caffe.running_statistics import RunningStatistics


@dataclass(frozen=True)
class Group:
    """Layers that one call computes.

    `set` has the first one compute all, or itself alone. `absorbed` are the others; those in `without_backward` have no
    backward pass of their own either. With `is_forward_only` the layers leave nothing for a backward pass.
    """

    head: Node
    absorbed: tuple[Node, ...]
    set: Callable[[bool], None]
    without_backward: tuple[Node, ...] = ()
    is_forward_only: bool = False

    @property
    def name(self) -> str:
        """The layers' names: conv1+relu1."""
        return "+".join(node.layer.name for node in (self.head, *self.absorbed))


class Fusion:
    """What is fused in a net; nothing is until `switch` is called."""

    def __init__(self, nodes: Sequence[Node], has_algorithm: bool) -> None:
        """Find the groups. `has_algorithm`: convolutions must run by one that was named, which may not fuse."""
        self._nodes = nodes
        self.is_on = False
        self.statistics = RunningStatistics(nodes)
        self.groups: list[Group] = []
        may_run_again = _may_run_again(nodes)
        taken: set[int] = set()
        for index, node in enumerate(nodes):
            if id(node) in taken or not node.top:
                continue
            behind = [
                other for other in nodes[index + 1 :]
                if len(other.top) == 1 and other.top[0] is node.top[0] and other.bottom == [node.top[0]]
            ]  # fmt: skip
            group = _group(node, behind, has_algorithm, may_run_again)
            if group is not None:
                self.groups.append(group)
                taken.update(id(member) for member in group.absorbed)

        heads = {id(node): group.head for group in self.groups for node in group.without_backward}
        self.backward = BackwardFusion(nodes, heads)

    def switch(self, is_on: bool) -> None:
        """Fuse, or have every layer compute what is its own."""
        if is_on == self.is_on:
            return
        self.is_on = is_on
        self.statistics.switch(is_on)
        for group in self.groups:
            group.set(is_on)
            for node in group.absorbed:
                node.is_absorbed = is_on
            for node in group.without_backward:
                node.has_no_backward = is_on
        self.backward.switch(is_on)

    @property
    def leaves_nothing_for_backward(self) -> bool:
        """Whether a backward pass needs a forward pass without fusion first."""
        return self.is_on and any(
            group.is_forward_only and any(node.needs_backward for node in (group.head, *group.absorbed))
            for group in self.groups
        )


def gradient_spans(
    nodes: Sequence[Node], parameters: Sequence[Parameter], groups: Sequence[Group]
) -> list[tuple[int, int]]:
    """For each parameter the number of the layer whose backward pass, which goes from the last layer to the first, may
    be the first to add to its gradient, and of the one behind whose backward pass it is whole: the last and the first
    layer in the net that have it, or the one that computes that layer's gradients too.
    """
    places = {id(node): index for index, node in enumerate(nodes)}
    heads = {id(node): places[id(group.head)] for group in groups for node in group.without_backward}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for blob in node.layer.weights:
            key = id(blob.gradient_owner)
            first[key] = index
            last[key] = min(last.get(key, index), heads.get(id(node), index))
    keys = [id(parameter.blob.gradient_owner) for parameter in parameters]
    return [(first.get(key, 0), last.get(key, 0)) for key in keys]


def _group(node: Node, behind: Sequence[Node], has_algorithm: bool, may_run_again: bool) -> Group | None:
    layer = node.layer
    if isinstance(layer, BatchNormLayer):
        return _normalization(node, behind, may_run_again)
    if not behind:
        return None
    after = behind[0].layer
    if isinstance(layer, ConvolutionLayer) and not isinstance(layer, DeconvolutionLayer):
        if has_algorithm or len(node.top) != 1 or layer.axis != 1:
            return None
        if isinstance(after, ReLULayer) and not after.is_from_x:
            return Group(node, (behind[0],), _setter(layer.fuse_relu, after.slope))
        if isinstance(after, BatchNormLayer):
            return _folded(node, layer, behind, may_run_again)
        return None
    if isinstance(after, ReLULayer) and not after.is_from_x:
        if isinstance(layer, InnerProductLayer) and len(layer.weights) == 2:
            return Group(node, (behind[0],), _setter(layer.fuse_relu, after.slope))
        if isinstance(layer, EltwiseLayer) and layer.operation == "SUM":
            return Group(node, (behind[0],), _setter(layer.fuse_relu, after.slope))
    return None


def _setter(fuse: Callable[[float | None], None], slope: float) -> Callable[[bool], None]:
    return lambda is_on: fuse(slope if is_on else None)


def _scale_and_relu(behind: Sequence[Node]) -> tuple[Node | None, Node | None]:
    """The nodes of a Scale of each channel and of a ReLU behind a BatchNorm, as far as they follow at once."""
    scale = behind[0] if behind and _is_channel_scale(behind[0].layer) else None
    rest = behind[1 if scale else 0 :]
    return scale, rest[0] if rest and isinstance(rest[0].layer, ReLULayer) and rest[
        0
    ].layer.slope == 0 else None


def _is_channel_scale(layer: object) -> bool:
    return (
        isinstance(layer, ScaleLayer)
        and len(layer.parameter.bottom) == 1
        and layer.parameter.scale_param.axis == 1
        and len(layer.weights[0].shape) == 1
    )


def _normalization(node: Node, behind: Sequence[Node], may_run_again: bool) -> Group | None:
    layer = node.layer
    assert isinstance(layer, BatchNormLayer)
    scale, relu = _scale_and_relu(behind)
    if layer.is_global:
        if not may_run_again:
            return None
    elif scale is not None and scale.needs_backward and not node.needs_backward:
        return (
            None  # the gradient of the factors comes from the statistics' backward pass, which does not run
        )
    elif relu is not None and relu.layer.is_overwritten:
        relu = None  # the gradient of both is taken from what the ReLU made
    absorbed = tuple(member for member in (scale, relu) if member is not None)
    if not absorbed:
        return None
    factors = None if scale is None else scale.layer
    assert factors is None or isinstance(factors, ScaleLayer)

    def switch(is_on: bool) -> None:
        layer.fuse(factors if is_on else None, is_on and relu is not None)

    without = () if layer.is_global else absorbed
    return Group(node, absorbed, switch, without, is_forward_only=layer.is_global)


def _folded(node: Node, layer: ConvolutionLayer, behind: Sequence[Node], may_run_again: bool) -> Group | None:
    norm = behind[0].layer
    assert isinstance(norm, BatchNormLayer)
    if not norm.is_global:

        def direct(is_on: bool) -> None:
            layer.target = norm.x if is_on else None
            norm.has_x = is_on

        return Group(node, (), direct)
    if not may_run_again:
        return None
    scale, relu = _scale_and_relu(behind[1:])
    factors = None if scale is None else scale.layer
    assert factors is None or isinstance(factors, ScaleLayer)

    def fold(is_on: bool) -> None:
        layer.fuse_normalization(norm if is_on else None, factors, relu is not None)

    absorbed = tuple(member for member in (behind[0], scale, relu) if member is not None)
    return Group(node, absorbed, fold, is_forward_only=True)


def _may_run_again(nodes: Sequence[Node]) -> bool:
    """Whether all layers but sources may run again and give the same."""
    made = {id(blob) for node in nodes if not node.bottom for blob in node.top}

    def may(node: Node) -> bool:
        layer = node.layer
        if isinstance(layer, BatchNormLayer):
            return layer.is_global
        draws = layer.is_random and layer.context.phase == "TRAIN"
        return layer.may_rerun and not draws

    def is_on_source(node: Node) -> bool:
        return any(id(blob.owner) in made and blob in node.bottom for blob in node.top)

    return all(may(node) and not is_on_source(node) for node in nodes if node.bottom)
