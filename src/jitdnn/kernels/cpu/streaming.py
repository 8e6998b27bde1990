"""Stores past the caches, for results that are too large to be read from a cache again."""

from __future__ import annotations

from jitdnn.kernels.cpu.loops import Scale
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import TensorDescriptor

STREAM_BYTES = 48 << 20  # results from here on do not fit any cache


def is_streamed(result: TensorDescriptor) -> bool:
    """Whether a result should be written past the caches: it is large, and lies in one piece."""
    return result.nbytes >= STREAM_BYTES and result.is_dense


def store_vector(k: Builder, scale: Scale, target: Pointer, value: Value, streams: bool) -> None:
    """Store alpha * value + beta * target for a whole vector of neighbours: past the caches if ``streams``, where
    the address is that of a whole vector and nothing is read."""
    if not streams:
        scale.store(target, 1, value)
        return
    address = Value(k, k.b.ptrtoint(target.v, INT))
    is_aligned = (address & (value.lanes * ITEM_BYTES[target.dtype] - 1)) == 0
    is_free = is_aligned & (scale.beta == 0.0)
    with k.when(is_free):
        target.stream(value * k.splat(scale.alpha, value.lanes))
    with k.when(~is_free):
        scale.store(target, 1, value)
