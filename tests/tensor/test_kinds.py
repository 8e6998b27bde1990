"""Results are of the library of the first array: JAX in host memory, and any with the array API and DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitdnn as jd
from jitdnn.tensor import borrow

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 9, 9)).astype(np.float32)
W = RNG.standard_normal((6, 4, 3, 3)).astype(np.float32)
Y = RNG.standard_normal((2, 6, 9, 9)).astype(np.float32)
Q = RNG.standard_normal((2, 2, 5, 8)).astype(np.float32)
LSTM = [
    RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 2, 4), (12, 4), (12, 3), (12,), (12,))
]
M = [RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 8), (8, 8), (8, 8))]


class Foreign:
    """An array of a library that has nothing but the array API and DLPack."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __array_namespace__(self, api_version: str | None = None) -> type[Namespace]:
        return Namespace

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class Namespace:
    @staticmethod
    def from_dlpack(x: Any) -> Foreign:
        return Foreign(np.from_dlpack(x))

    @staticmethod
    def asarray(x: Any) -> Foreign:
        return Foreign(np.asarray(x))


def as_jax(values: Any) -> Any:
    return pytest.importorskip("jax", reason="JAX is not installed").numpy.asarray(values)


def host(x: Any) -> np.ndarray[Any, Any]:
    return x.values if isinstance(x, Foreign) else np.asarray(x)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "conv": (lambda x, w: jd.conv(x, w, padding=1), (X, W)),
    "epilogue": (lambda x, w, b: jd.conv(x, w, b, epilogue=lambda a, c: jd.relu(a + c)), (X, W, W[:, 0, 0, 0].copy())),
    "conv_backward_data": (lambda y, w: jd.conv_backward_data(y, w, X.shape, padding=1), (Y, W)),
    "conv_backward_filter": (lambda x, y: jd.conv_backward_filter(x, y, W.shape, padding=1), (X, Y)),
    "conv_transpose": (jd.conv_transpose, (Y, W)),
    "matmul": (jd.matmul, (X[0, 0], X[0, 1])),
    "max_pool": (lambda x: jd.max_pool(x, 2), (X,)),
    "global_avg_pool": (jd.global_avg_pool, (X,)),
    "adaptive_avg_pool": (lambda x: jd.adaptive_avg_pool(x, 2), (X,)),
    "relu": (jd.relu, (X,)),
    "gelu": (jd.gelu, (X,)),
    "softmax": (jd.softmax, (X[0, 0],)),
    "layer_norm": (jd.layer_norm, (X,)),
    "batch_norm": (jd.batch_norm, (X, W[:4, 0, 0, 0].copy(), W[:4, 1, 0, 0].copy())),
    "lrn": (jd.lrn, (X,)),
    "add": (jd.add, (X, X)),
    "reduce": (lambda x: jd.reduce(x, "add", axes=(0, 2)), (X,)),
    "concat": (lambda x, y: jd.concat((x, y), 1), (X, Y)),
    "split": (lambda x: jd.split(x, 2, 1), (X,)),
    "transform": (lambda x: jd.transform(x, "NHWC"), (X,)),
    "resize": (lambda x: jd.resize(x, (5, 5)), (X,)),
    "attention": (jd.attention, (Q, Q, Q)),
    "multi_head_attention": (lambda x, w, v: jd.multi_head_attention(x, x, x, 2, w, w, w, v), M),
    "lstm": (lambda x, *weights: jd.lstm(x, weights), tuple(LSTM)),
    "elementwise": (jd.elementwise("x, y: x * y, x + y"), (X, X)),
    "reduction": (lambda x: jd.reduction("x: x * x")(x, axes=1), (X,)),
    "scan": (lambda x: jd.scan()(x, axis=1), (X,)),
    "embedding": (lambda i, t: jd.embedding(i, t), (np.array([1, 0, 2], np.int32), X[0, 0])),
    "dropout": (lambda x: jd.dropout(x, 0.5, jd.DropoutState(3))[0], (X,)),
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    return (
        []
        if x is None
        else [leaf for part in x for leaf in leaves(part)]
        if isinstance(x, (tuple, list))
        else [x]
    )


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("library", ["jax", "foreign"])
def test_results_are_of_the_library_of_the_first_array(name: str, library: str) -> None:
    run, arrays = CALLS[name]
    make = as_jax if library == "jax" else Foreign
    expected = leaves(run(*arrays))
    kind = type(make(X))
    for _ in range(2):  # the first call, and one that is known
        results = leaves(run(*map(make, arrays)))
        assert [type(one) for one in results] == [kind] * len(results)
        for found, one in zip(results, expected, strict=True):
            np.testing.assert_allclose(host(found), host(one), rtol=1e-5, atol=1e-5)
    # the same call of NumPy's arrays is another one
    assert all(type(one) is type(other) for one, other in zip(leaves(run(*arrays)), expected, strict=True))


def test_gradients_of_multi_head_attention() -> None:
    x, w, v = map(as_jax, M)
    options: dict[str, Any] = {"heads": 2, "wq": w, "wk": w, "wv": w, "wo": v}
    y, saved = jd.multi_head_attention(x, x, x, return_saved=True, **options)
    found = jd.multi_head_attention_backward(y, x, x, x, saved, **options)
    assert {type(one) for one in leaves(found) if one is not None} == {type(x)}


def test_kinds_are_of_the_first_array_and_out_is_written() -> None:
    x = as_jax(X)
    assert type(jd.add(X, x)) is np.ndarray
    assert type(jd.add(Foreign(X), X)) is Foreign
    out = np.full(X.shape, np.nan, np.float32)
    assert jd.relu(x, out=out) is out
    np.testing.assert_array_equal(out, np.maximum(X, 0))
    with pytest.raises(jd.InvalidArgument, match="out is read-only"):
        jd.relu(X, out=x)


def test_dtypes_that_numpy_does_not_hand_out() -> None:
    jnp = pytest.importorskip("jax", reason="JAX is not installed").numpy
    x = jnp.asarray(X).astype(jnp.bfloat16)
    y = jd.relu(x)
    assert (type(y), y.dtype) == (type(x), jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(y), np.maximum(np.asarray(x), ml_dtypes.bfloat16(0)))
    assert borrow(x).library == "jax"


def test_results_keep_their_values_when_their_makers_are_gone() -> None:
    x = as_jax(np.full((64, 1 << 12), 2, np.float32))
    results = [jd.relu(x) for _ in range(5)]
    del x
    assert all(float(one.sum()) == 2 * 64 * (1 << 12) for one in results)
