"""Backward passes of neighbours in one: what follows reads and writes a gradient once less for each.

    Split behind a ReLU in place      the sum of the readers' gradients, times the ReLU's slope, in one pass
    Eltwise SUM                       its bottoms' gradients are its top's: what made them reads that one, and nothing
                                      is copied
    Concat along channels             a ReLU or Split before it reads its part of the top's gradient where it lies

The first leaves every gradient as it is without. With the others, gradients of bottoms are not filled before the layers
that made them fill them, so they are for the passes of a solver whose blobs share memory and cannot be read
(shared_memory.py). Values are the same, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node
from jitdnn.caffe.layers.activation import ReLULayer
from jitdnn.caffe.layers.base import Layer
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.layers.eltwise import EltwiseLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer
from jitdnn.caffe.layers.movement import ConcatLayer
from jitdnn.caffe.layers.pooling import PoolingLayer
from jitdnn.caffe.layers.scale import ScaleLayer
from jitdnn.caffe.layers.shapes import SplitLayer

#: layers whose backward pass reads the gradients of tops where they are handed over, and does not write there
_READERS = (
    BatchNormLayer, ConvolutionLayer, InnerProductLayer, PoolingLayer, ReLULayer, ScaleLayer, SplitLayer,
)  # fmt: skip


class _Redirected:
    """A blob, but for its gradient, which is read from another one, or from some channels of it."""

    __slots__ = ("_blob", "_channels", "_other")

    def __init__(self, blob: Blob, other: Blob, channels: slice | None) -> None:
        self._blob, self._other, self._channels = blob, other, channels

    @property
    def gradient(self) -> Any:
        gradient = self._other.gradient
        return gradient if self._channels is None else gradient[:, self._channels]

    @property
    def gradient_owner(self) -> Blob:
        return self._other.gradient_owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)


class BackwardFusion:
    """What of the backward passes of a net is fused; nothing is until `switch` and `redirect` are called."""

    def __init__(self, nodes: Sequence[Node], heads: dict[int, Node]) -> None:
        """Find it. `heads`: by the number of a node's object the one that computes its gradients, where that is
        another one.
        """
        self._slopes: list[tuple[SplitLayer, Node, Blob]] = []
        #: of each Eltwise and Concat the numbers of the bottoms, and the nodes with those of their tops, that read its
        #: gradient
        self._sums: list[tuple[Node, list[tuple[int, Node, int]]]] = []
        maker: dict[int, Node] = {}  # of the version of a blob that a node sees
        for node in nodes:
            if node.needs_backward:
                if isinstance(node.layer, SplitLayer):
                    self._find_slope(node, maker.get(id(node.bottom[0])), heads)
                elif isinstance(node.layer, (EltwiseLayer, ConcatLayer)):
                    self._find_readers(node, maker, heads)
            maker.update((id(blob), node) for blob in node.top)

    def _find_slope(self, split: Node, relu: Node | None, heads: dict[int, Node]) -> None:
        if relu is None or not isinstance(relu.layer, ReLULayer) or id(relu) in heads:
            return
        layer = relu.layer
        is_in_place = relu.bottom == relu.top
        has_slope = not layer.is_from_x and not layer.is_overwritten and all(relu.propagate)
        has_sum = split.propagate[0] and any(split.layer.top_has_gradient)
        if is_in_place and has_slope and has_sum:
            self._slopes.append((cast(SplitLayer, split.layer), relu, relu.top[0]))

    def _find_readers(self, node: Node, maker: dict[int, Node], heads: dict[int, Node]) -> None:
        layer = node.layer
        readers: tuple[type[Layer], ...] = _READERS
        if isinstance(layer, EltwiseLayer):
            factors = layer.factors if layer.operation == "SUM" else []
        else:
            # they take arrays that lie in pieces as they are
            readers = (ReLULayer, SplitLayer)
            factors = [1.0] * len(node.bottom) if cast(ConcatLayer, layer).axis == 1 else []
        if not factors or node.top[0] in node.bottom:
            return
        found = []
        for number, blob in enumerate(node.bottom):
            source = maker.get(id(blob))
            if source is None or not node.propagate[number] or factors[number] != 1:
                continue
            reader = heads.get(id(source), source)
            if not isinstance(reader.layer, readers) or not reader.needs_backward or blob not in reader.top:
                continue
            found.append((number, reader, reader.top.index(blob)))
        if found:
            self._sums.append((node, found))

    def switch(self, is_on: bool) -> None:
        """Have Splits compute the gradients of ReLUs, or each its own."""
        for split, relu, y in self._slopes:
            split.fuse_relu(y if is_on else None, cast(ReLULayer, relu.layer).slope)
            relu.has_no_backward = is_on

    def redirect(self, is_on: bool) -> None:
        """Have the layers before a sum read its gradient, or copies of their own."""
        for node, found in self._sums:
            node.unfilled = frozenset(number for number, _, _ in found) if is_on else frozenset()
            for number, reader, top in found:
                reader.gradient_sources = dict(reader.gradient_sources)
                reader.gradient_sources.pop(top, None)
                if is_on:
                    blob = _Redirected(reader.top[top], node.top[0], _channels(node, number))
                    reader.gradient_sources[top] = cast(Blob, blob)


def _channels(node: Node, number: int) -> slice | None:
    """The part of the top that a bottom is: all of it, or some channels."""
    if not isinstance(node.layer, ConcatLayer):
        return None
    first = sum(blob.shape[1] for blob in node.bottom[:number])
    return slice(first, first + node.bottom[number].shape[1])
