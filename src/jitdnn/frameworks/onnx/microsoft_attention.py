"""Attention of the domain com.microsoft, in the forms of encoders (Attention, MultiHeadAttention) and of decoders
with a cache (GroupQueryAttention), rotary embeddings, and the sum of embeddings that encoders begin with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.onnx.attention import attention as plain_attention
from jitdnn.frameworks.onnx.movement import gather
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.products import matmul
from jitdnn.frameworks.onnx.views import checked_indices
from jitdnn.graph import primitives as jd

_HIDDEN = -10000.0  # what is added to the scores of hidden keys by default


def attention(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    added: Array | None = None,
    past_length: Array | None = None,
    /,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = _HIDDEN,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    """x (N, T, D) times weights (D, q + k + v) is split into queries, keys and values; `past` is (2, N, H, P, D)."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise site.refuse("rotary embeddings and a shared buffer of past keys are not covered")
    sizes = tuple(qkv_hidden_sizes) or (weights.shape[-1] // 3,) * 3
    if sum(sizes) != weights.shape[-1] or any(size % num_heads for size in sizes):
        raise InvalidShape(
            f"{site.operator}: weights {weights.shape} do not have {sizes} for {num_heads} heads"
        )
    both = matmul(x, weights)
    if bias is not None:
        both = pointwise(lambda a, b: a + b, both, bias)
    q, k, v = (_heads(part, num_heads) for part in np.split(both, np.cumsum(sizes)[:2].tolist(), -1))
    present = None
    offset = 0
    if past is not None:
        offset = past.shape[3]
        k, v = np.concatenate((past[0], k), 2), np.concatenate((past[1], v), 2)
    if site.wants(1):
        present = np.stack((k, v))
    y = _attended(q, k, v, mask, added, offset, bool(unidirectional), scale, mask_filter_value, site)
    return _flat(y), present


def multi_head_attention(
    q: Array,
    k: Array | None = None,
    v: Array | None = None,
    bias: Array | None = None,
    padding: Array | None = None,
    added: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_length: Array | None = None,
    indirection: Array | None = None,
    /,
    *,
    mask_filter_value: float = _HIDDEN,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    """q (N, T, D) with k and v likewise, or (N, H, S, D); or packed: q (N, T, H, 3, D), or k (N, S, H, 2, D)."""
    if past_length is not None or indirection is not None or site.wants(3):
        raise site.refuse("a shared buffer of past keys, beams and scores as a result are not covered")
    if q.ndim == 5:
        parts = [q[..., number, :].transpose(0, 2, 1, 3) for number in range(3)]
    elif k is None:
        raise site.refuse("queries alone are covered as (N, T, H, 3, D)")
    elif k.ndim == 5:
        parts = [_heads(q, num_heads), *(k[..., number, :].transpose(0, 2, 1, 3) for number in range(2))]
    elif v is None:
        raise site.refuse("keys without values are covered as (N, S, H, 2, D)")
    else:
        parts = [part if part.ndim == 4 else _heads(part, num_heads) for part in (q, k, v)]
    if bias is not None:
        ends = np.cumsum([parts[0].shape[1] * part.shape[3] for part in parts])
        if bias.shape != (ends[-1],):
            raise InvalidShape(f"{site.operator}: bias is {bias.shape} and must be {(int(ends[-1]),)}")
        for number, one in enumerate(np.split(bias, ends[:2].tolist())):
            is_given = number == 0 or k is None or k.ndim != 4
            if is_given:
                parts[number] = pointwise(lambda a, b: a + b, parts[number], one.reshape(num_heads, 1, -1))
    offset = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        parts[1] = np.concatenate((past_key, parts[1]), 2)
        parts[2] = np.concatenate((past_value, parts[2]), 2)
    y = _attended(
        parts[0],
        parts[1],
        parts[2],
        padding,
        added,
        offset,
        bool(unidirectional),
        scale,
        mask_filter_value,
        site,
    )
    return _flat(y), parts[1] if site.wants(1) else None, parts[2] if site.wants(2) else None


def _heads(x: Array, heads: int) -> Array:
    """(N, T, heads * D) as (N, heads, T, D)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _flat(y: Any) -> Any:
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def _attended(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    added: Array | None,
    offset: int,
    causal: bool,
    scale: float | None,
    hidden: float,
    site: Site,
) -> Any:
    n, keys = len(q), k.shape[2]
    lengths, full = None, None
    if mask is not None and mask.ndim == 1 and mask.shape == (n,):
        lengths = np.asarray(mask).astype(np.int64)
    elif mask is not None:
        shown = _shown(mask, n, keys, site)
        # the number that is added in place of infinity: queries that see nothing then see all alike
        full = pointwise(lambda m: jd.where(m != 0.0, 0.0, hidden), shown, dtype=q.dtype)
    if added is not None:
        full = added if full is None else pointwise(lambda a, b: a + b, added, full)
    factor = scale if scale else 1.0 / math.sqrt(q.shape[3])
    return jd.attention(q, k, v, full, causal, factor, offset, lengths=lengths)


def _shown(mask: Array, n: int, keys: int, site: Site) -> Array:
    """1 for keys that are seen, to be broadcast to (N, H, T, S)."""
    if mask.ndim == 1 and mask.shape == (2 * n,):  # where keys end and begin
        ends, begins = mask[:n, None], mask[n:, None]
        places = np.arange(keys)
        return ((places >= begins) & (places < ends)).astype(np.int32)[:, None, None]
    if mask.ndim == 2 and mask.shape == (n, keys):
        return mask[:, None, None]
    if mask.ndim == 3 and mask.shape[::2] == (n, keys):
        return mask[:, None]
    raise site.refuse(f"a mask of shape {mask.shape} for {n} sequences of {keys} keys is not covered")


def group_query_attention(
    q: Array,
    k: Array | None,
    v: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    lengths: Array,
    total: Array,
    cosines: Array | None = None,
    sines: Array | None = None,
    positions: Array | None = None,
    added: Array | None = None,
    /,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    site: Site,
) -> tuple[Any, ...]:
    """A causal step of a decoder: `lengths` (N,) are the keys of each sequence with the new ones, less one; the new
    keys go to their places behind the past ones of each."""
    if smooth_softmax > 0 or site.wants(3):
        raise site.refuse("smooth_softmax and scores as a result are not covered")
    n, steps = q.shape[:2]
    if k is None or v is None:  # packed
        width = q.shape[2] // (num_heads + 2 * kv_num_heads)
        ends = [num_heads * width, (num_heads + kv_num_heads) * width]
        q, k, v = np.split(q, ends, -1)
    query, key, value = _heads(q, num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    counts = np.asarray(lengths).reshape(-1).astype(np.int64) + 1
    past = np.maximum(counts - steps, 0)
    room = max(int(np.asarray(total).item()), 0 if past_key is None else past_key.shape[2])
    if counts.shape != (n,) or (n and not 0 < counts.min() <= counts.max() <= room) or room < steps:
        raise InvalidArgument(
            f"{site.operator}: {counts.tolist()} keys of {n} sequences do not fit a cache of {room}"
        )
    if do_rotary:
        if cosines is None or sines is None:
            raise InvalidArgument(
                f"{site.operator}: cos_cache and sin_cache are needed for rotary embeddings"
            )
        places = past[:, None] + np.arange(steps) if positions is None else positions
        query, key = (
            _rotated(part, places, cosines, sines, bool(rotary_interleaved), site) for part in (query, key)
        )
    keys, values = (
        _cached(before, now, past, room) for before, now in ((past_key, key), (past_value, value))
    )
    seen = int(counts.max()) if n else room
    window = local_window_size - 1 if local_window_size > 0 else -1
    if not (
        past + steps == counts
    ).all():  # prompts of several lengths, filled up at their ends: all begin at 0
        seen, counts = steps, np.full(n, steps)
    y = plain_attention(
        query, keys[:, :, :seen], values[:, :, :seen], added, None, None, counts, is_causal=1,
        left_window_size=window, scale=scale or None, softcap=softcap, site=replace(site, wanted=(True,)),
    )[0]  # fmt: skip
    return _flat(y), keys, values


def _cached(before: Array | None, now: Array, past: Array, room: int) -> Array:
    n, heads, steps, width = now.shape
    result = np.zeros((n, heads, room, width), now.dtype)
    for sequence, count in enumerate(past.tolist()):
        if before is not None:
            result[sequence, :, :count] = before[sequence, :, :count]
        result[sequence, :, count : count + steps] = now[sequence]
    return result


def rotary_embedding(
    x: Array,
    positions: Array,
    cosines: Array,
    sines: Array,
    /,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    site: Site,
) -> Any:
    """x (N, T, H * D), or (N, H, T, D), turned by the angles of each place."""
    if is_packed_batching or scale != 1.0:
        raise site.refuse("packed batches and a scale are not covered")
    if x.ndim == 4:
        return _rotated(x, _all_places(positions, x.shape[2]), cosines, sines, bool(interleaved), site)
    width = x.shape[2] // num_heads if num_heads else 2 * cosines.shape[1]
    view = x.reshape(*x.shape[:2], -1, width).transpose(0, 2, 1, 3)
    y = _rotated(view, _all_places(positions, x.shape[1]), cosines, sines, bool(interleaved), site)
    return _flat(y)


def _all_places(positions: Array, steps: int) -> Array:
    """One number is the place of the first step."""
    return positions if positions.ndim == 2 else positions.reshape(1, 1) + np.arange(steps)


def _rotated(x: Array, places: Array, cosines: Array, sines: Array, interleaved: bool, site: Site) -> Array:
    """The first 2 * (width of the caches) elements of each head are pairs that are turned."""
    places = checked_indices(places, len(cosines), site)
    cosine, sine = (gather(part, places, site=site)[:, None] for part in (cosines, sines))
    half = cosines.shape[1]
    turned, kept = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
    else:
        a, b = turned[..., :half], turned[..., half:]
    first = pointwise(lambda u, v, c, s: u * c - v * s, a, b, cosine, sine)
    second = pointwise(lambda u, v, c, s: u * s + v * c, a, b, cosine, sine)
    if interleaved:
        together = np.stack((first, second), -1).reshape(turned.shape)
    else:
        together = np.concatenate((first, second), -1)
    return np.concatenate((together, kept), -1) if kept.shape[-1] else together


def embed_layer_normalization(
    ids: Array,
    segments: Array | None,
    words: Array,
    places: Array,
    kinds: Array | None,
    scale: Array,
    offset: Array,
    mask: Array | None = None,
    positions: Array | None = None,
    /,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    site: Site,
) -> tuple[Any, ...]:
    """Layer normalization of the sum of the embeddings of words, places and segments; how many words each mask
    shows."""
    total = gather(words, ids, site=site)
    place = gather(places, np.arange(ids.shape[1])[None] if positions is None else positions, site=site)
    total = pointwise(lambda a, b: a + b, total, place)
    if segments is not None and kinds is not None:
        total = pointwise(lambda a, b: a + b, total, gather(kinds, segments, site=site))
    y = jd.layer_norm(total, scale, offset, axis=-1, epsilon=epsilon)
    shown = np.zeros(len(ids), np.int32) if mask is None else mask.sum(1).astype(np.int32)
    return y, shown, total


OPERATORS = table(
    Attention=attention,
    EmbedLayerNormalization=embed_layer_normalization,
    GroupQueryAttention=group_query_attention,
    MultiHeadAttention=multi_head_attention,
    RotaryEmbedding=rotary_embedding,
)
