"""The solver's state divided among processes (ZeRO-1, Rajbhandari et al. 2020): each keeps the history of its part of
all weights, updates that part, and gives it to the others. Gradients arrive summed in that part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.caffe.blob import Array, Blob
from jitdnn.caffe.gradient_buckets import Buckets, memory_of, place_data
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.net import Net
from jitdnn.groups import Group


@dataclass(frozen=True)
class Piece:
    """Elements `start` .. `stop` of a weight as it lies in memory, at `place` of the memory of all."""

    parameter: Parameter
    start: int
    stop: int
    place: int


class Shards:
    """This process's part of the weights of a net."""

    def __init__(self, net: Net, group: Group, buckets: Buckets) -> None:
        """Move the weights into one piece of memory that lies as their gradients do."""
        self._net, self._group, self._buckets = net, group, buckets
        size = buckets.size
        self.weights = memory_of(net, size)
        for parameter in net.parameters:
            place_data(parameter.blob, self.weights, buckets.places[parameter.name])
        self.pieces: list[Piece] = []
        for bucket in buckets.buckets:
            low, high = buckets.part(bucket)
            for parameter in bucket.parameters:
                place = buckets.places[parameter.name]
                start, stop = max(low, place), min(high, place + parameter.blob.size)
                if start < stop:
                    self.pieces.append(Piece(parameter, start - place, stop - place, start))

    def sum(self, array: Any) -> None:
        """Replace an array by the sum over all processes."""
        self._group.sum(array)

    def gather_weights(self) -> None:
        """Give each process's updated weights to all."""
        for bucket in self._buckets.buckets:
            if bucket.stop > bucket.start:
                self._group.gather_parts(self.weights[bucket.start : bucket.stop])

    def gather(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Whole arrays in the shapes of the weights, by the names of their parameters; each process gives those of its
        pieces.
        """
        flat = np.zeros(self._buckets.size, self._net.dtype)
        for piece, array in zip(self.pieces, arrays, strict=True):
            flat[piece.place : piece.place + array.size] = array
        for bucket in self._buckets.buckets:
            if bucket.stop > bucket.start:
                self._group.gather_parts(flat[bucket.start : bucket.stop])
        whole = {}
        for parameter in self._net.parameters:
            place, blob = self._buckets.places[parameter.name], parameter.blob
            whole[parameter.name] = _as_shaped(flat[place : place + blob.size], blob)
        return whole

    def pieces_of(self, whole: Mapping[str, Array]) -> list[Array]:
        """What each piece has of whole arrays."""
        return [
            _as_lying(whole[piece.parameter.name], piece.parameter.blob)[piece.start : piece.stop]
            for piece in self.pieces
        ]


def _as_shaped(flat: Array, blob: Blob) -> Array:
    if not blob.is_channels_last or len(blob.shape) != 4:
        return flat.reshape(blob.shape)
    n, c, h, w = blob.shape
    return np.ascontiguousarray(flat.reshape(n, h, w, c).transpose(0, 3, 1, 2))


def _as_lying(array: Array, blob: Blob) -> Array:
    lies = array.transpose(0, 2, 3, 1) if blob.is_channels_last and array.ndim == 4 else array
    return np.ascontiguousarray(lies).reshape(-1)
