"""Weights that are updated within the backward pass, each as soon as its gradient is whole, so that no two layers'
gradients need be there at a time. On a GPU a few layers' weights are updated together, in one launch, once their
gradients have `GROUP_BYTES`.

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

#: of gradients that wait for each other on a GPU: few enough that they are in its cache when the update reads them, and
#: enough that the launch does not count
GROUP_BYTES = 8 << 20


class EarlyUpdate:
    """The update of a net by `method` within its backward pass.

    `spans`: for each parameter the layers between which its gradient is needed (fusion.gradient_spans, and until those
    that are updated with it are whole); None if it is zeros that stay.
    """

    def __init__(self, net: Net, method: Updates) -> None:
        self._net, self._method = net, method
        self._first: dict[int, list[Parameter]] = defaultdict(list)
        spans = gradient_spans(net.nodes, net.parameters, net.fusion.groups)
        groups = _grouped(net, [last for _, last in spans])
        self._ready = {last: [net.parameters[index] for index in members] for last, members in groups.items()}
        until = {index: last for last, members in groups.items() for index in members}
        self.spans = [
            None if net.gradients.is_idle(parameter) else (first, until[index])
            for index, (parameter, (first, _)) in enumerate(zip(net.parameters, spans, strict=True))
        ]
        for parameter, (first, _) in zip(net.parameters, spans, strict=True):
            self._first[first].append(parameter)

    @contextmanager
    def within(self, rate: float, iteration: int) -> Iterator[None]:
        """Update in the backward pass that runs inside, for iteration number `iteration`."""
        self._method.prepare(rate, iteration)
        net = self._net
        net.before_backward, net.after_backward = self._begin, self._update
        try:
            yield
        finally:
            net.before_backward = net.after_backward = None

    def settle(self) -> None:
        """Make what the updates need before their calls are captured."""
        self._method.settle(list(self._ready.values()))

    def _begin(self, index: int) -> None:
        """The backward pass comes to a layer: it is the first one to add to some gradients."""
        if first := self._first.get(index):
            self._net.gradients.begin(first)

    def _update(self, index: int) -> None:
        """The backward pass is behind a layer."""
        if ready := self._ready.get(index):
            self._net.gradients.complete(ready)
            self._method.apply_to(ready)


def _grouped(net: Net, last: list[int]) -> dict[int, list[int]]:
    """The numbers of the parameters that are updated together, by the number of the layer behind which they are."""
    groups: dict[int, list[int]] = {}
    waiting: list[int] = []
    bytes = 0
    order = sorted(range(len(last)), key=lambda index: (-last[index], index))
    for place, index in enumerate(order):
        waiting.append(index)
        bytes += net.parameters[index].blob.nbytes
        is_end = place + 1 == len(order) or last[order[place + 1]] != last[index]
        is_enough = net.device is None or bytes >= GROUP_BYTES or place + 1 == len(order)
        if is_end and is_enough:
            groups[last[index]] = waiting
            waiting, bytes = [], 0
    return groups
