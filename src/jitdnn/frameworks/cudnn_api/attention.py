"""Multi-head attention: sizes, places of the weights, forward and both gradients.

The reserve keeps the projected queries, keys and values, what the heads gave, the normalizers of the softmax, and the
weights' gradients, which the gradients of the data make beside their own. On a GPU operands are copied there into dense
arrays of our own, and results from these into the caller's memory.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.attention_descriptors import MultiHead, SeqData, attention_of, seq_of
from jitdnn.frameworks.cudnn_api.enums import cudnnMultiHeadAttnWeightKind_t, cudnnWgradMode_t
from jitdnn.frameworks.cudnn_api.handles import checked
from jitdnn.frameworks.cudnn_api.memory import bound, placed, space, with_room
from jitdnn.frameworks.cudnn_api.objects import byte_count, choice, number, several
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import set_tensor
from jitdnn.ops.to_device import empty, to_device
from jitdnn.ops.transform import transform
from jitdnn.tensor import DTYPES, Array, TensorDescriptor, borrow

_W = cudnnMultiHeadAttnWeightKind_t
_NAMES = dict(zip(_W, ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo"), strict=True))
_CACHE_LINE = 64


def _values(array: Array) -> Any:
    """What an array holds: as NumPy sees it, or a dense copy on its GPU."""
    if array.device_id is None:
        return array.numpy()
    copy = _room(array.descriptor.shape, array.descriptor.dtype, array)
    if array.descriptor.size:
        transform(array, out=copy)
    return copy


def _room(shape: tuple[int, ...], dtype: str, like: Array) -> Any:
    """Memory on the GPU of an array."""
    target, index = like.device_id or ("", 0)
    return empty(shape, dtype, f"{target}:{index}")


def _put(target: Array, values: Any) -> None:
    """Write values to an array of their number of elements."""
    if not target.descriptor.size:
        return
    if target.device_id is None:
        target.numpy()[...] = values.reshape(target.descriptor.shape)
    else:
        transform(values.reshape(target.descriptor.shape), out=target)


def _rows(desc: Any, array: Any, name: str, size: int, writes: bool = False) -> Array:
    """Sequences as (batch, beam, time, vector)."""
    tensor = seq_of(desc, f"the descriptor of {name}").tensor
    if tensor.shape[3] != size:
        raise BadParam(f"{name} has vectors of {tensor.shape[3]}: attnDesc says {size}")
    return bound(array, tensor, name, writes)


def _weights(own: MultiHead, weights: Any, size: int, name: str) -> dict[str, Any]:
    places, elements = own.places()
    needed = elements * DTYPES[own.dtype]
    if byte_count(size, "weightSizeInBytes") < needed:
        raise BadParam(f"weightSizeInBytes is {size}: the weights take {needed} bytes")
    if not elements:
        return {}
    flat = _values(bound(weights, TensorDescriptor((elements,), (1,), own.dtype), name))
    return {
        _NAMES[kind]: flat[start : start + prod(shape)].reshape(shape)
        for kind, (start, shape) in places.items()
    }


def _kept(own: MultiHead, sequences: int, queries: int, keys: int) -> list[tuple[tuple[int, ...], str]]:
    """What the reserve keeps of a forward pass: shapes and types."""
    q, k, v = own.widths
    wide = "f64" if own.dtype == "f64" else "f32"
    return [
        ((sequences, queries, q), own.dtype),
        ((sequences, keys, k), own.dtype),
        ((sequences, keys, v), own.dtype),
        ((sequences, queries, v), own.dtype),
        ((sequences, own.heads, queries), wide),
        ((own.places()[1],), own.dtype),
    ]


def _end_of(sections: list[tuple[tuple[int, ...], str]]) -> int:
    return sum(-(-prod(shape) * DTYPES[dtype] // _CACHE_LINE) * _CACHE_LINE for shape, dtype in sections)


def _reserve_bytes(own: MultiHead) -> int:
    return with_room(_end_of(_kept(own, own.most_batch * own.most_beam, own.longest_q, own.longest_k)))


def _reserved(own: MultiHead, reserveSpace: Any, size: int, given: tuple[int, int, int]) -> list[Array]:
    """The parts of the reserve for (sequences, queries, keys)."""
    whole = space(
        reserveSpace,
        byte_count(size, "reserveSpaceSizeInBytes"),
        _reserve_bytes(own),
        "reserveSpace",
    )
    assert whole is not None
    found = []
    start = -whole.pointer % _CACHE_LINE
    for shape, dtype in _kept(own, *given):
        found.append(placed(whole, TensorDescriptor.packed(shape, dtype), start))
        start += -(-prod(shape) * DTYPES[dtype] // _CACHE_LINE) * _CACHE_LINE
    return found


@api
def cudnnGetMultiHeadAttnBuffers(handle: Any, attnDesc: Any) -> tuple[int, int, int]:
    """Return (weightSizeInBytes, workSpaceSizeInBytes, reserveSpaceSizeInBytes); the workspace is the handle's own,
    0."""
    checked(handle)
    own = attention_of(attnDesc)
    return own.places()[1] * DTYPES[own.dtype], 0, _reserve_bytes(own)


@api
def cudnnGetMultiHeadAttnWeights(
    handle: Any, attnDesc: Any, wKind: int, weightSizeInBytes: int, weights: Any, wDesc: Any
) -> Any:
    """Return the part of weights that holds one kind, None if there is none, and set wDesc: (heads, projected,
    size) of the
    inputs' weights, (heads, result, size) of the output's, with their strides, (heads, projected, 1) of biases."""
    checked(handle)
    own, kind = attention_of(attnDesc), choice(_W, wKind, "wKind")
    places, elements = own.places()
    if byte_count(weightSizeInBytes, "weightSizeInBytes") < elements * DTYPES[own.dtype]:
        raise BadParam(
            f"weightSizeInBytes is {weightSizeInBytes}: they take {elements * DTYPES[own.dtype]} bytes"
        )
    if kind not in places:
        return None
    start, shape = places[kind]
    if kind is _W.CUDNN_MH_ATTN_O_WEIGHTS:
        size = shape[1] // own.heads
        tensor = TensorDescriptor((own.heads, shape[0], size), (size, shape[1], 1), own.dtype)
    elif kind is _W.CUDNN_MH_ATTN_O_BIASES:
        tensor = TensorDescriptor.packed((1, *shape, 1), own.dtype)
    else:
        rows = shape[0] // own.heads
        tensor = TensorDescriptor.packed((own.heads, rows, *(shape[1:] or (1,))), own.dtype)
    set_tensor(wDesc, tensor, "wDesc")
    if weights is None:
        return None
    array = borrow(weights, False, "weights").descriptor
    if len(array.shape) != 1:
        raise BadParam(f"weights has shape {array.shape}: its parts are had of a vector")
    unit = 1 if array.dtype == own.dtype else DTYPES[own.dtype] // DTYPES[array.dtype]
    return weights[start * unit : (start + prod(shape)) * unit]


def _lengths(given: Any, desc: SeqData, name: str) -> tuple[int, ...]:
    """How long each sequence is: what an array says, or else the descriptor."""
    if given is None:
        return desc.lengths
    return several(given, name, len(desc.lengths), 0, desc.extents[0])


class _Call:
    """The sequences of a call as (batch * beam, time, vector), and who sees what."""

    def __init__(
        self, own: MultiHead, qDesc: Any, kDesc: Any, arrays: tuple[Any, Any, Any], vDesc: Any, windows: tuple[Any,
        Any],
        lengths: tuple[Any, Any],
    ) -> None:  # fmt: skip
        self.own = own
        q, k, v = arrays
        queries, keys = seq_of(qDesc, "qDesc"), seq_of(kDesc, "kDesc")
        self._like = _rows(qDesc, q, "queries", own.q_size)
        self.q = _values(self._like)
        self.k = _values(_rows(kDesc, k, "keys", own.k_size))
        self.v = _values(_rows(vDesc, v, "values", own.v_size))
        batch, beam, self.steps, _ = self.q.shape
        beams = beam if own.has_own_keys else 1
        if self.k.shape[:2] != (batch, beams) or self.v.shape[:3] != self.k.shape[:3]:
            raise BadParam(
                f"keys have (batch, beam, time) {self.k.shape[:3]} and values {self.v.shape[:3]}: with queries "
                f"{self.q.shape[:3]} they must be ({batch}, {beams}, any)"
            )
        most = (own.most_batch, own.most_beam, own.longest_q, own.longest_k)
        if any(n > m for n, m in zip((batch, beam, self.steps, self.k.shape[2]), most, strict=True)):
            raise BadParam(
                f"queries are {self.q.shape[:3]} and keys {self.k.shape[:3]}: attnDesc allows a batch of {most[0]}, "
                f"beams of {most[1]}, {most[2]} queries and {most[3]} keys"
            )
        self.repeats = beam // beams
        self.given = (batch * beam, self.steps, self.k.shape[2])
        ends = np.array(_lengths(lengths[1], keys, "devSeqLengthsKV"), np.int64)
        self.ends = np.repeat(ends, self.repeats)
        self.query_ends = _lengths(lengths[0], queries, "devSeqLengthsQO")
        lo, hi = (
            None if window is None else np.array(several(window, name, self.steps, -(2**31)), np.int64)
            for window, name in zip(windows, ("loWinIdx", "hiWinIdx"), strict=True)
        )
        self.windows = lo, hi

    def joined(self, x: Any, is_key: bool = False) -> Any:
        """(batch * beam, time, vector), keys as often as there are beams that read them."""
        flat = x.reshape(-1, *x.shape[2:])
        if not is_key or self.repeats == 1:
            return flat
        if isinstance(flat, np.ndarray):
            return np.repeat(flat, self.repeats, 0)
        dtype = self._like.descriptor.dtype
        wide = _room((flat.shape[0], self.repeats, *flat.shape[1:]), dtype, self._like)
        for beam in range(self.repeats):
            wide[:, beam] = flat
        return wide.reshape(-1, *flat.shape[1:])

    def options(self, steps: slice = slice(None)) -> dict[str, Any]:
        lo, hi = (None if window is None else window[steps] for window in self.windows)
        given: dict[str, Any] = {"lengths": self.ends, "lo": lo, "hi": hi}
        if self._like.device_id is not None:
            target, index = self._like.device_id
            given = {
                name: None if numbers is None else to_device(numbers, f"{target}:{index}")
                for name, numbers in given.items()
            }
        return {"heads": self.own.heads, "scale": self.own.scale, **given}


@api
def cudnnMultiHeadAttnForward(
    handle: Any,
    attnDesc: Any,
    currIdx: int,
    loWinIdx: Any,
    hiWinIdx: Any,
    devSeqLengthsQO: Any,
    devSeqLengthsKV: Any,
    qDesc: Any,
    queries: Any,
    residuals: Any,
    kDesc: Any,
    keys: Any,
    vDesc: Any,
    values: Any,
    oDesc: Any,
    out: Any,
    weightSizeInBytes: int,
    weights: Any,
    workSpaceSizeInBytes: int,
    workSpace: Any,
    reserveSpaceSizeInBytes: int,
    reserveSpace: Any,
) -> None:
    """out = attention of the queries to the keys within their windows, plus residuals; with currIdx of 0 or more of
    that
    time alone; what the gradients need goes to reserveSpace, None for inference. Behind a sequence's end out is 0."""
    runner, own = checked(handle).handle(), attention_of(attnDesc)
    called = _Call(
        own,
        qDesc,
        kDesc,
        (queries, keys, values),
        vDesc,
        (loWinIdx, hiWinIdx),
        (devSeqLengthsQO, devSeqLengthsKV),
    )
    result = _rows(oDesc, out, "out", own.result, True)
    extents = result.descriptor.shape[:3]
    if extents != called.q.shape[:3]:
        raise BadParam(f"out has (batch, beam, time) {extents} and queries {called.q.shape[:3]}")
    current = number(currIdx, "currIdx", -(2**31), called.steps - 1)
    steps = slice(current, current + 1) if current >= 0 else slice(None)
    if current >= 0 and reserveSpace is not None:
        raise BadParam(f"currIdx is {current} and reserveSpace is given: training takes all times at once")
    named = _weights(own, weights, weightSizeInBytes, "weights")
    q = called.joined(called.q)[:, steps]
    k, v = called.joined(called.k, True), called.joined(called.v, True)
    y, saved = jd.multi_head_attention(
        q, k, v, **called.options(steps), **named, return_saved=True, handle=runner
    )
    for place, end in enumerate(called.query_ends):
        y[place, max(end - (steps.start or 0), 0) :] = 0
    if residuals is not None:
        if own.result != own.q_size:
            raise BadParam(
                f"residuals are given, the result has {own.result} numbers and a query {own.q_size}"
            )
        added = called.joined(_values(_rows(qDesc, residuals, "residuals", own.q_size)))[:, steps]
        dense = np.ascontiguousarray(added) if isinstance(added, np.ndarray) else added
        y = jd.add(y, dense, handle=runner)
    _put(result.part(None, None, slice(current, current + 1) if current >= 0 else None), y)
    if reserveSpace is not None:
        parts = _reserved(own, reserveSpace, reserveSpaceSizeInBytes, called.given)
        for part, kept in zip(parts, saved, strict=False):
            _put(part, kept)


@api
def cudnnMultiHeadAttnBackwardData(
    handle: Any,
    attnDesc: Any,
    loWinIdx: Any,
    hiWinIdx: Any,
    devSeqLengthsDQDO: Any,
    devSeqLengthsDKDV: Any,
    doDesc: Any,
    dout: Any,
    dqDesc: Any,
    dqueries: Any,
    queries: Any,
    dkDesc: Any,
    dkeys: Any,
    keys: Any,
    dvDesc: Any,
    dvalues: Any,
    values: Any,
    weightSizeInBytes: int,
    weights: Any,
    workSpaceSizeInBytes: int,
    workSpace: Any,
    reserveSpaceSizeInBytes: int,
    reserveSpace: Any,
) -> None:
    """The gradients of queries, keys and values, without that of the residuals; those of the weights go to the
    reserve."""
    runner, own = checked(handle).handle(), attention_of(attnDesc)
    called = _Call(
        own, dqDesc, dkDesc, (queries, keys, values), dvDesc, (loWinIdx, hiWinIdx),
        (devSeqLengthsDQDO, devSeqLengthsDKDV),
    )  # fmt: skip
    slope = called.joined(_values(_rows(doDesc, dout, "dout", own.result)))
    if isinstance(slope, np.ndarray):  # that of a GPU is a copy
        slope = slope.copy()
    if slope.shape[:2] != called.given[:2]:
        raise BadParam(f"dout has (sequences, time) {slope.shape[:2]}: the queries have {called.given[:2]}")
    for place, end in enumerate(called.query_ends):
        slope[place, end:] = 0
    outs = [
        _rows(desc, array, name, size, True)
        for desc, array, name, size in (
            (dqDesc, dqueries, "dqueries", own.q_size), (dkDesc, dkeys, "dkeys", own.k_size),
            (dvDesc, dvalues, "dvalues", own.v_size),
        )
    ]  # fmt: skip
    named = _weights(own, weights, weightSizeInBytes, "weights")
    *kept, slopes = _reserved(own, reserveSpace, reserveSpaceSizeInBytes, called.given)
    saved = jd.MultiHeadSaved(*map(_values, kept))
    found = jd.multi_head_attention_backward(
        slope, called.joined(called.q), called.joined(called.k, True), called.joined(called.v, True), saved,
        **called.options(), **named, handle=runner,
    )  # fmt: skip
    repeats = (1, called.repeats, called.repeats)
    for target, name, count in zip(outs, "qkv", repeats, strict=True):
        gradient = getattr(found, name)
        if count > 1:  # beams that read the same keys
            shape = (-1, count, *gradient.shape[1:])
            gradient = jd.reduce(gradient.reshape(shape), "add", axes=1, handle=runner)
        _put(target, gradient)
    for kind, (start, shape) in own.places()[0].items():
        _put(slopes.part(slice(start, start + prod(shape))), getattr(found, _NAMES[kind]))


@api
def cudnnMultiHeadAttnBackwardWeights(
    handle: Any,
    attnDesc: Any,
    addGrad: int,
    qDesc: Any,
    queries: Any,
    kDesc: Any,
    keys: Any,
    vDesc: Any,
    values: Any,
    doDesc: Any,
    dout: Any,
    weightSizeInBytes: int,
    weights: Any,
    dweights: Any,
    workSpaceSizeInBytes: int,
    workSpace: Any,
    reserveSpaceSizeInBytes: int,
    reserveSpace: Any,
) -> None:
    """The weights' gradients, added to what dweights holds or in its place; after cudnnMultiHeadAttnBackwardData."""
    runner, own = checked(handle).handle(), attention_of(attnDesc)
    adds = choice(cudnnWgradMode_t, addGrad, "addGrad") is cudnnWgradMode_t.CUDNN_WGRAD_MODE_ADD
    q, k = seq_of(qDesc, "qDesc").tensor.shape, seq_of(kDesc, "kDesc").tensor.shape
    slopes = _reserved(own, reserveSpace, reserveSpaceSizeInBytes, (q[0] * q[1], q[2], k[2]))[-1]
    elements, needed = slopes.descriptor.size, slopes.descriptor.nbytes
    if not elements:
        return
    if byte_count(weightSizeInBytes, "weightSizeInBytes") < needed:
        raise BadParam(f"weightSizeInBytes is {weightSizeInBytes}: the weights take {needed} bytes")
    target = bound(dweights, TensorDescriptor((elements,), (1,), own.dtype), "dweights", True)
    jd.add(slopes, beta=1.0 if adds else 0.0, out=target, handle=runner)
