"""Non-temporal stores, for results that are too large to be read from a cache afterwards."""

from __future__ import annotations

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.processor import Processor
from jitdnn.rtcg.types import INT
from jitdnn.tensor import TensorDescriptor


def stream_bytes(processor: Processor) -> int:
    """Results of at least so many bytes are not read from a cache afterwards."""
    return processor.last_cache(cost.NONTEMPORAL)


def convolution_stream_bytes(processor: Processor) -> int:
    """The same of a convolution's result, of which the next layer reads first what was written first."""
    return processor.last_cache(cost.NONTEMPORAL_CONVOLUTION)


def is_streamed(result: TensorDescriptor, processor: Processor) -> bool:
    """Whether a result should be written by non-temporal stores: it is large and contiguous."""
    return result.nbytes >= stream_bytes(processor) and result.is_dense


def is_aligned(pointer: Pointer, lanes: int) -> Value:
    """Whether a vector at ``pointer`` is aligned to its size, as non-temporal stores need it."""
    k = pointer.k
    address = Value(k, k.b.ptrtoint(pointer.v, INT))
    return (address & (lanes * ITEM_BYTES[pointer.dtype] - 1)) == 0


def store_vector(
    k: Builder, scale: Scale, target: Pointer, value: Value, streams: bool, divisor: Value | None = None
) -> None:
    """Store alpha * value / divisor + beta * target for a vector of adjacent elements.

    With ``streams`` it is a non-temporal store, where the address is aligned and ``target`` is not read.
    """
    if not streams:
        scale.store(target, 1, value, divisor=divisor)
        return
    is_free = is_aligned(target, value.lanes) & scale.overwrites(target)
    with k.when(is_free):
        target.stream((value if divisor is None else value / divisor) * k.splat(scale.alpha, value.lanes))
    with k.when(~is_free):
        scale.store(target, 1, value, divisor=divisor)


def store_new(y: Pointer, stride: int, value: Value, mask: Value | None, streams: bool) -> None:
    """Store the lanes of ``value``; with ``streams`` a vector without a mask by a non-temporal store, to an aligned
    y."""
    if streams and mask is None:
        y.stream(value)
    else:
        y.store_strided(value, 0, stride, mask)
