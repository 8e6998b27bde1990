"""Backward passes of neighbours in one: what follows reads and writes a gradient once less for each.

    Split behind a ReLU in place      the sum of the readers' gradients, times the ReLU's slope, in one pass
    Eltwise SUM                       its bottoms' gradients are its top's: what made them reads that one, and nothing
                                      is copied

The first leaves every gradient as it is without. With the second, gradients of the sum's bottoms are not filled before
the layers that made them fill them, so it is for the passes of a solver whose blobs share memory and cannot be read
(shared_memory.py). Values are the same, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node
from jitdnn.caffe.layers.activation import ReLULayer
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.layers.eltwise import EltwiseLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer
from jitdnn.caffe.layers.pooling import PoolingLayer
from jitdnn.caffe.layers.scale import ScaleLayer
from jitdnn.caffe.layers.shapes import SplitLayer

#: layers whose backward pass reads the gradients of tops where they are handed over, and does not write there
_READERS = (
    BatchNormLayer, ConvolutionLayer, InnerProductLayer, PoolingLayer, ReLULayer, ScaleLayer, SplitLayer,
)  # fmt: skip


class _Redirected:
    """A blob, but for its gradient, which is read from another one."""

    __slots__ = ("_blob", "_other")

    def __init__(self, blob: Blob, other: Blob) -> None:
        self._blob, self._other = blob, other

    @property
    def gradient(self) -> Any:
        return self._other.gradient

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
        #: of each Eltwise the numbers of the bottoms, and the nodes with those of their tops, that read its gradient
        self._sums: list[tuple[Node, list[tuple[int, Node, int]]]] = []
        maker: dict[int, Node] = {}  # of the version of a blob that a node sees
        for node in nodes:
            if node.needs_backward:
                if isinstance(node.layer, SplitLayer):
                    self._find_slope(node, maker.get(id(node.bottom[0])), heads)
                elif isinstance(node.layer, EltwiseLayer):
                    self._find_sum(node, maker, heads)
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

    def _find_sum(self, node: Node, maker: dict[int, Node], heads: dict[int, Node]) -> None:
        layer = cast(EltwiseLayer, node.layer)
        if layer.operation != "SUM" or node.top[0] in node.bottom:
            return
        found = []
        for number, blob in enumerate(node.bottom):
            source = maker.get(id(blob))
            if source is None or not node.propagate[number] or layer.factors[number] != 1:
                continue
            reader = heads.get(id(source), source)
            if not isinstance(reader.layer, _READERS) or not reader.needs_backward or blob not in reader.top:
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
            for _, reader, top in found:
                reader.gradient_sources = dict(reader.gradient_sources)
                reader.gradient_sources.pop(top, None)
                if is_on:
                    reader.gradient_sources[top] = cast(Blob, _Redirected(reader.top[top], node.top[0]))
