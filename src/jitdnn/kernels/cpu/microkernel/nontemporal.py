"""Stores past the caches, for results that are too large to be read from a cache again."""

from __future__ import annotations

from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import TensorDescriptor

STREAM_BYTES = 48 << 20  # results from here on do not fit any cache
CONVOLUTION_STREAM_BYTES = (
    24 << 20
)  # and what a layer begins to read was the first to leave, of those from here on


def is_streamed(result: TensorDescriptor) -> bool:
    """Whether a result should be written past the caches: it is large, and lies in one piece."""
    return result.nbytes >= STREAM_BYTES and result.is_dense


def is_aligned(place: Pointer, lanes: int) -> Value:
    """Whether a vector at ``place`` is one that can be streamed: its address is that of a whole vector."""
    k = place.k
    address = Value(k, k.b.ptrtoint(place.v, INT))
    return (address & (lanes * ITEM_BYTES[place.dtype] - 1)) == 0


def store_vector(
    k: Builder, scale: Scale, target: Pointer, value: Value, streams: bool, divisor: Value | None = None
) -> None:
    """Store alpha * value / divisor + beta * target for a whole vector of neighbours: past the caches if
    ``streams``, where the address is that of a whole vector and nothing is read."""
    if not streams:
        scale.store(target, 1, value, divisor=divisor)
        return
    is_free = is_aligned(target, value.lanes) & scale.overwrites(target)
    with k.when(is_free):
        target.stream((value if divisor is None else value / divisor) * k.splat(scale.alpha, value.lanes))
    with k.when(~is_free):
        scale.store(target, 1, value, divisor=divisor)


def store_new(y: Pointer, stride: int, value: Value, mask: Value | None, streams: bool) -> None:
    """Store the lanes of ``value``; a whole vector past the caches if it ``streams`` (and ``y`` is aligned)."""
    if streams and mask is None:
        y.stream(value)
    else:
        y.store_strided(value, 0, stride, mask)
