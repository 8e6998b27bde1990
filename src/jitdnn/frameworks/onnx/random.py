"""Dropout, and tensors of random numbers.

The numbers are this library's own (docs/ops/random.md), of the `seed`, or 0 without one: a graph has no state, so
that every run draws the same ones.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.views import bounded, element_type
from jitdnn.graph import primitives as jd

_FLOAT = 1
_OURS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def dropout(
    x: Array,
    rate: Array | None = None,
    training: Array | None = None,
    /,
    *,
    ratio: float = 0.5,
    seed: int | None = None,
    is_test: int = 1,
    site: Site,
) -> Any:
    """Nothing happens but in training."""
    share = ratio if rate is None else float(rate.item())
    if site.version < 12 or training is None or not bool(training.item()) or share == 0.0:
        return x, np.ones(x.shape, bool)
    y, _, mask = jd.dropout(x, share, _state(seed), return_mask=True)
    return y, mask


def _state(seed: float | None) -> Any:
    """Seeds of ONNX are real numbers: their bits are ours."""
    if seed is None or (float(seed).is_integer() and 0 <= seed < 2**63):
        return jd.DropoutState(int(seed or 0))
    return jd.DropoutState(int.from_bytes(struct.pack("<d", seed), "little") >> 1)


def _drawn(
    distribution: Any,
    shape: tuple[int, ...],
    a: float,
    b: float,
    dtype: np.dtype[Any],
    seed: float | None,
    site: Site,
) -> Array:
    if dtype.name not in _OURS:
        raise site.refuse(f"random numbers of type {dtype.name} are not covered: {sorted(_OURS)} are")
    bounded(shape, np.empty(0, dtype))
    found = distribution(shape or (1,), a, b, _state(seed), _OURS[dtype.name])
    return np.asarray(found).reshape(shape)


def random_uniform(
    *,
    dtype: int = _FLOAT,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: Any,
    site: Site,
) -> Array:
    return _drawn(jd.uniform, tuple(shape), low, high, element_type(dtype), seed, site)


def random_normal(
    *,
    dtype: int = _FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Any,
    site: Site,
) -> Array:
    return _drawn(jd.normal, tuple(shape), mean, scale, element_type(dtype), seed, site)


def random_uniform_like(
    x: Array,
    /,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    site: Site,
) -> Array:
    return _drawn(
        jd.uniform, x.shape, low, high, x.dtype if dtype is None else element_type(dtype), seed, site
    )


def random_normal_like(
    x: Array,
    /,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    site: Site,
) -> Array:
    return _drawn(
        jd.normal, x.shape, mean, scale, x.dtype if dtype is None else element_type(dtype), seed, site
    )


def bernoulli(x: Array, /, *, dtype: int | None = None, seed: float | None = None, site: Site) -> Array:
    """1 with the probability that x is."""
    draws = _drawn(jd.uniform, x.shape, 0.0, 1.0, np.dtype(np.float32), seed, site)
    kind = x.dtype if dtype is None else element_type(dtype)
    return pointwise(lambda u, p: jd.where(u < p, 1.0, 0.0), draws, x, dtype=kind)


def multinomial(
    x: Array, /, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, site: Site
) -> Array:
    """Classes drawn by the logarithms of their odds, (N, classes): the greatest with noise added (Gumbel)."""
    if x.ndim != 2 or sample_size < 1:
        raise InvalidArgument(
            f"{site.operator}: x is {x.shape} and sample_size {sample_size}: (N, classes), at least 1"
        )
    draws = _drawn(jd.uniform, (len(x), sample_size, x.shape[1]), 0.0, 1.0, np.dtype(np.float32), seed, site)
    noisy = pointwise(
        lambda u, v: v - np.log(-np.log(jd.maximum(u, 1e-30))), draws, x[:, None], dtype=np.dtype(np.float32)
    )
    _, found = jd.reduce(noisy, "max", 2, keepdims=True, indices=True)
    return np.asarray(found)[..., 0].astype(element_type(dtype))


OPERATORS = table(
    Bernoulli=bernoulli,
    Dropout=dropout,
    Multinomial=multinomial,
    RandomNormal=random_normal,
    RandomNormalLike=random_normal_like,
    RandomUniform=random_uniform,
    RandomUniformLike=random_uniform_like,
)
