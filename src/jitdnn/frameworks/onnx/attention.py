"""Attention: the library's tiled one, or step by step where the scores themselves are asked for or capped."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.views import element_type
from jitdnn.graph import primitives as jd

_RAW, _CAPPED, _BIASED, _PROBABILITIES = range(4)


class _Sight(NamedTuple):
    """Which keys a query sees: `offset` keys come before the first query, in all sequences or in each (N,)."""

    mask: Array | None
    causal: bool
    window: tuple[int | None, int | None]
    offset: int | Array
    lengths: Array | None

    def allowed(self, queries: int, keys: int) -> Array:
        """The pairs that place alone allows, (1 or N, 1, T, S)."""
        offset = np.asarray(self.offset).reshape(-1, 1, 1, 1)
        place, key = np.arange(queries)[:, None] + offset, np.arange(keys)
        seen = np.ones((*place.shape[:3], keys), bool)
        left, right = self.window
        if self.causal:
            seen &= key <= place
        if left is not None:
            seen &= place - key <= left
        if right is not None:
            seen &= key - place <= right
        if self.lengths is not None:
            seen = seen & (key < self.lengths.reshape(-1, 1, 1, 1))
        return seen

    def bias(self, queries: int, keys: int, dtype: np.dtype[Any]) -> Array:
        """What is added to the scores: -inf for what is hidden."""
        hidden = np.array(-np.inf, dtype)
        bias = np.where(self.allowed(queries, keys), np.array(0, dtype), hidden)
        if self.mask is None:
            return bias
        if self.mask.dtype == bool:
            return np.where(self.mask, bias, hidden)
        return pointwise(lambda a, b: a + b, bias, self.mask)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    lengths: Array | None = None,
    /,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    site: Site,
) -> tuple[Any, ...]:
    """Scores are of the query's type only where they are asked for; otherwise softmax is in float32 or more."""
    is_flat = q.ndim == 3
    if is_flat:
        if q_num_heads is None or kv_num_heads is None:
            raise InvalidArgument(
                f"{site.operator}: q_num_heads and kv_num_heads are needed for operands (N, T, D)"
            )
        q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    offset: int | Array = 0
    if past_key is not None and past_value is not None:
        offset = past_key.shape[2]
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    elif lengths is not None:
        offset = lengths - q.shape[2]
    window = tuple(None if size < 0 else size for size in (left_window_size, right_window_size))
    sight = _Sight(_whole_mask(mask, k.shape[2]), bool(is_causal), window, offset, lengths)  # type: ignore[arg-type]
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = None
    if softcap == 0.0 and not site.wants(3):
        y = _tiled(q, k, v, sight, factor)
    else:
        precision = None if softmax_precision is None else element_type(softmax_precision)
        y, scores = _by_steps(q, k, v, sight, factor, softcap, qk_matmul_output_mode, precision)
    if is_flat:
        y = y.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
    return y, k, v, scores


def _heads(x: Array, heads: int) -> Array:
    """(N, T, heads * D) as (N, heads, T, D)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _whole_mask(mask: Array | None, keys: int) -> Array | None:
    """A mask for all keys: those beyond its end are hidden."""
    if mask is None or mask.shape[-1] in {1, keys}:
        return mask
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
    return np.pad(mask, missing, constant_values=False if mask.dtype == bool else -np.inf)


def _tiled(q: Array, k: Array, v: Array, sight: _Sight, scale: float) -> Any:
    mask, offset = sight.mask, sight.offset
    if isinstance(offset, int) or not (sight.causal or sight.window != (None, None)):
        past = offset if isinstance(offset, int) else 0
        return jd.attention(q, k, v, mask, sight.causal, scale, past, sight.window, lengths=sight.lengths)
    # a place of its own for every sequence: as a mask
    full = sight.bias(q.shape[2], k.shape[2], q.dtype)
    if mask is None or mask.dtype == bool:
        full = full == 0
    return jd.attention(q, k, v, full, scale=scale, lengths=sight.lengths)


def _by_steps(
    q: Array,
    k: Array,
    v: Array,
    sight: _Sight,
    scale: float,
    softcap: float,
    mode: int,
    precision: np.dtype[Any] | None,
) -> tuple[Any, Any]:
    """The result, and the scores as they are after the step that `mode` names."""
    (n, heads, queries, _), groups = q.shape, k.shape[1]
    keys, root = k.shape[2], math.sqrt(scale)
    # heads that share a key are neighbours: (N, G, H / G, T, D)
    grouped = pointwise(lambda value: value * root, q).reshape(n, groups, heads // groups, queries, -1)
    turned = pointwise(lambda value: value * root, k).swapaxes(2, 3)[:, :, None]
    scores = jd.matmul(grouped, turned).reshape(n, heads, queries, keys)
    shown = scores
    if softcap:
        scores = pointwise(lambda s: softcap * jd.tanh(s / softcap), scores)
        shown = scores if mode == _CAPPED else shown
    bias = sight.bias(queries, keys, q.dtype)
    biased = pointwise(lambda s, b: s + b, scores, bias)
    shown = biased if mode == _BIASED else scores if mode == _CAPPED else shown
    logits = biased if precision is None else biased.astype(precision)
    # where nothing is seen, softmax has no answer and attention gives 0
    sees = (bias != -np.inf).any(-1, keepdims=True)
    weights = pointwise(lambda w, s: jd.where(s != 0.0, w, 0.0), jd.softmax(logits, -1), sees, dtype=q.dtype)
    shown = weights if mode == _PROBABILITIES else shown
    y = jd.matmul(weights.reshape(n, groups, heads // groups, queries, keys), v[:, :, None])
    return y.reshape(n, heads, queries, -1), shown


OPERATORS = table(Attention=attention)
