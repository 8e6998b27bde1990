"""Weights that are updated within the backward pass, each as soon as its gradient is whole, so that no two layers'
gradients need be there at a time.

The results are those of an update at the end, bit by bit: no layer of the pass reads the weight any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from jitdnn.caffe.fusion import gradient_spans
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.net import Net
from jitdnn.caffe.updates import Updates
from jitdnn.ops.tensor_ops import fill


class EarlyUpdate:
    """The update of a net by `method` within its backward pass.

    `spans`: for each parameter the layers between which its gradient is needed (fusion.gradient_spans).
    """

    def __init__(self, net: Net, method: Updates) -> None:
        self._net, self._method = net, method
        self._first: dict[int, list[Parameter]] = defaultdict(list)
        self._ready: dict[int, list[Parameter]] = defaultdict(list)
        self.spans = gradient_spans(net.nodes, net.parameters, net.fusion.groups)
        for parameter, (first, last) in zip(net.parameters, self.spans, strict=True):
            self._first[first].append(parameter)
            self._ready[last].append(parameter)

    @contextmanager
    def within(self, rate: float, iteration: int) -> Iterator[None]:
        """Update in the backward pass that runs inside, for iteration number `iteration`."""
        self._method.prepare(rate, iteration)
        net = self._net
        net.before_backward, net.after_backward = self._clear, self._update
        try:
            yield
        finally:
            net.before_backward = net.after_backward = None

    def _clear(self, index: int) -> None:
        """The backward pass comes to a layer: it adds to the gradients that nobody has added to yet."""
        for parameter in self._first.get(index, ()):
            fill(parameter.blob.gradient, 0.0)

    def _update(self, index: int) -> None:
        """The backward pass is behind a layer."""
        if ready := self._ready.get(index):
            self._method.apply_to(ready)
