"""Gradients of a net that several processes train together: they lie one behind the other in one piece of memory, in
the order in which backward passes finish them, and pieces of it, buckets, are summed over the processes as soon as
they are whole, while the pass goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.fusion import gradient_spans
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.layouts import flat
from jitdnn.caffe.net import Net
from jitdnn.caffe.synced import Synced
from jitdnn.groups import Group, Work
from jitdnn.ops.tensor_ops import add

#: bytes of a bucket: large enough that its time is that of its bytes, small enough that most of them go while layers
#: compute
BUCKET_BYTES = 4 << 20
#: what part of them the last bucket has
LAST_SHARE = 16

#: elements that a gradient's place is a multiple of: kernels read whole lines
ALIGNED = 64

#: buckets that are scattered at a time where each is copied for it
_MOST_COPIES = 4


@dataclass
class Bucket:
    """Elements `start` .. `stop` of the memory, with the gradients of `parameters`; behind backward of layer number
    `ready` they are whole.
    """

    start: int
    stop: int
    parameters: list[Parameter] = field(default_factory=list)
    ready: int = 0


class Buckets:
    """The gradients of a net's parameters."""

    def __init__(
        self,
        net: Net,
        group: Group,
        *,
        bytes: int = BUCKET_BYTES,
        wire: str = "f32",
        is_scattered: bool = False,
    ) -> None:
        """Move the gradients into one piece of memory. `wire`: how they travel. With `is_scattered` each process gets
        the sums of its part of each bucket alone (`part`).
        """
        self._net, self._group, self._wire, self._is_scattered = net, group, wire, is_scattered
        grain = ALIGNED * (group.size if is_scattered else 1)
        self.buckets, self.places, self.size = cut(net, bytes, grain)
        # gloo copies what it scatters and gathers, and CaffeNet's largest weight has 151 MB
        self._are_few = is_scattered and net.device is None
        if self._are_few:
            most = -(-bytes // (grain * net.dtype.itemsize)) * grain
            self.buckets = [piece for bucket in self.buckets for piece in self._pieces(bucket, most)]
        self.memory = memory_of(net, self.size)
        for parameter in net.parameters:
            _place_gradient(parameter.blob, self.memory, self.places[parameter.name])
        self._works: list[Work] = []
        self._next = 0
        self._is_open = False

    def _pieces(self, bucket: Bucket, most: int) -> Iterator[Bucket]:
        """A bucket in pieces of `most` elements, which may end within a gradient."""
        for start in range(bucket.start, bucket.stop, most):
            stop = min(start + most, bucket.stop)
            inside = []
            for parameter in bucket.parameters:
                place = self.places[parameter.name]
                if place < stop and place + parameter.blob.size > start:
                    inside.append(parameter)
            yield Bucket(start, stop, inside, bucket.ready)

    def part(self, bucket: Bucket) -> tuple[int, int]:
        """Elements of the memory whose sums this process gets with `is_scattered`."""
        share = (bucket.stop - bucket.start) // self._group.size
        start = bucket.start + self._group.rank * share
        return start, start + share

    def open(self) -> None:
        """The backward pass that comes completes the gradients: buckets are sent as they are whole."""
        self._works, self._next, self._is_open = [], 0, True

    def layer_done(self, index: int) -> None:
        """The backward pass is behind layer number `index`."""
        while self._is_open and self._next < len(self.buckets) and self.buckets[self._next].ready >= index:
            self._send()

    def wait(self, but: int = 0) -> None:
        """Send what is left, and wait for all of it, `but` the last so many buckets."""
        while self._next < len(self.buckets):
            self._send()
        self._is_open = False
        end = max(0, len(self._works) - but)
        works, self._works = self._works[:end], self._works[end:]
        for work in works:
            work.wait()

    @property
    def before_last(self) -> tuple[list[Parameter], list[Parameter]]:
        """The parameters of all buckets but the last one, and of that."""
        groups = [bucket.parameters for bucket in self.buckets]
        return [parameter for group in groups[:-1] for parameter in group], groups[-1] if groups else []

    def _send(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        self._net.gradients.complete(bucket.parameters)
        array = self.memory[bucket.start : bucket.stop]
        start = self._group.start_scatter if self._is_scattered else self._group.start_sum
        if self._are_few and len(self._works) == _MOST_COPIES:
            self._works.pop(0).wait()
        self._works.append(start(array, self._wire))


def cut(net: Net, bytes: int, grain: int = ALIGNED) -> tuple[list[Bucket], dict[str, int], int]:
    """Which gradients are sent together: the buckets of a net in the order in which they are whole, where the gradient
    of each parameter begins, by its name, and the elements of all.

    A bucket is closed when it has `bytes` bytes of the net's dtype or more, whatever travels of them; it begins at a
    multiple of `grain` elements. The last one has but a `LAST_SHARE`th of them: it is whole when the backward pass
    ends, so that nothing hides its exchange.
    """
    ready = [last for _, last in gradient_spans(net.nodes, net.parameters, net.fusion.groups)]
    order = sorted(range(len(net.parameters)), key=lambda index: (-ready[index], -index))
    buckets: list[Bucket] = []
    places: dict[str, int] = {}
    end = 0
    left = left_before = sum(parameter.blob.nbytes for parameter in net.parameters)
    for index in order:
        parameter = net.parameters[index]
        last = buckets[-1] if buckets else None
        is_full = last is not None and (end - last.start) * net.dtype.itemsize >= bytes
        is_end = left <= bytes // LAST_SHARE < left_before
        left_before, left = left, left - parameter.blob.nbytes
        if last is None or is_full or is_end:
            end = -(-end // grain) * grain
            if last is not None:
                last.stop = end
            last = Bucket(end, end)
            buckets.append(last)
        end = -(-end // ALIGNED) * ALIGNED
        places[parameter.name] = end
        last.parameters.append(parameter)
        last.ready = ready[index]
        end += parameter.blob.size
        last.stop = end
    end = -(-end // grain) * grain
    if buckets:
        buckets[-1].stop = end
    return buckets, places, end


def memory_of(net: Net, size: int) -> Any:
    """Zeros, so many, where the net computes."""
    if net.device is None:
        return np.zeros(size, net.dtype)
    return Synced(net.device, (max(1, size),), net.dtype).device()


def place_data(blob: Blob, memory: Any, start: int) -> None:
    """Have the values of a weight lie there, as they are now."""
    values = flat(blob.values)
    part = memory[start : start + blob.size]
    if blob.device is None:
        np.copyto(part, values)
        blob.swap_data(part.reshape(blob.shape))
        return
    if blob.size:
        with blob.device.handle:
            add(values, out=part)
        blob.swap_data(Synced.over(blob.device, blob.shape, part, blob.is_channels_last))


def _place_gradient(blob: Blob, memory: Any, start: int) -> None:
    """Have the gradient of a weight lie there."""
    part = memory[start : start + blob.size]
    if blob.device is None:
        blob.swap_diff(part.reshape(blob.shape))
    elif blob.size:
        blob.swap_diff(Synced.over(blob.device, blob.shape, part, blob.is_channels_last))
