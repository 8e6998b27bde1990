"""`jitdnn.jax` in JAX's programs on an NVIDIA GPU: on XLA's stream, with nothing copied to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
jj: Any = pytest.importorskip("jitdnn.jax")
if jax.default_backend() != "gpu":
    pytest.skip("JAX has no GPU here", allow_module_level=True)
callback: Any = pytest.importorskip("jitdnn.frameworks.jax.callback")
jnp = jax.numpy
rng = np.random.default_rng(7)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return jnp.asarray(rng.standard_normal(shape)).astype(dtype)


def theirs(x: Any, w: Any) -> Any:
    with jax.default_matmul_precision("highest"):
        return jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (1, 1)))


def ours(x: Any, w: Any) -> Any:
    return jj.conv(x, w, stride=2, padding=1)


def near(found: Any, expected: Any, limit: float) -> None:
    found, expected = np.float64(found), np.float64(expected)
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.fixture(autouse=True)
def _without_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call by way of the host fails when it runs."""
    real = jax.pure_callback

    def no_host(*_: Any) -> Any:
        raise AssertionError("the host was called in the middle of a program on a GPU")

    def traced(function: Any, shape: Any, *arrays: Any, **options: Any) -> Any:
        return real(no_host, shape, *arrays, **options)

    monkeypatch.setattr(jax, "pure_callback", traced)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 3e-3)])
def test_convolution_and_gradients(dtype: str, limit: float) -> None:
    x, w = normal(3, 16, 23, 17, dtype=dtype), normal(24, 16, 3, 3, dtype=dtype)
    near(jax.jit(ours)(x, w), theirs(x, w), limit)
    both = [
        jax.jit(jax.grad(lambda x, w, f=f: (f(x, w).astype("float32") ** 2).sum(), (0, 1)))(x, w)
        for f in (ours, theirs)
    ]
    for found, expected in zip(*both, strict=True):
        near(found, expected, 2 * limit)


def test_a_chain_is_in_the_order_of_the_stream() -> None:
    """What XLA computes before and behind each call, and no waiting for the host between."""
    x, w = normal(8, 32, 57, 57), 0.1 * normal(32, 32, 3, 3)

    def deep(step: Any) -> Any:
        def run(x: Any, w: Any) -> Any:
            for _ in range(8):
                x = jnp.tanh(step(jnp.sin(x) + 0.5 * x, w))
            return x

        return jax.jit(run)

    own = deep(lambda x, w: jj.conv(x, w, padding=1))
    other = deep(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", precision="highest"))
    expected = other(x, w)
    for _ in range(5):
        near(own(x, w), expected, 1e-4)


def test_pooling_and_lrn() -> None:
    x = normal(2, 6, 9, 9)
    windows = (1, 1, 3, 3), (1, 1, 2, 2), "VALID"
    near(
        jax.jit(lambda x: jj.max_pool(x, 3, 2))(x),
        jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *windows),
        0,
    )
    near(
        jax.jit(lambda x: jj.avg_pool(x, 3, 2))(x),
        jax.lax.reduce_window(x, 0.0, jax.lax.add, *windows) / 9,
        1e-6,
    )
    for run in (lambda x: jj.max_pool(x, 3, 2), lambda x: jj.avg_pool(x, 2), lambda x: jj.lrn(x, 3)):
        slope = jax.jit(jax.grad(lambda x, run=run: (run(x) ** 2).sum()))(x)
        step = 1e-2 * normal(*x.shape)
        loss = lambda x, run=run: (run(x) ** 2).sum()  # noqa: E731
        by_difference = (loss(x + step) - loss(x - step)) / 2
        assert abs(float(by_difference) - float((slope * step).sum())) < 0.05 * max(
            1.0, abs(float(by_difference))
        )


def test_batches_of_vmap() -> None:
    x, w = normal(3, 2, 8, 9, 9), normal(3, 8, 8, 3, 3)
    for axes, args in (((0, None), (x, w[0])), ((None, 0), (x[0], w)), ((0, 0), (x, w))):
        found = jax.jit(jax.vmap(ours, axes))(*args)
        near(found, jax.vmap(theirs, axes)(*args), 1e-5)


def test_second_gradients() -> None:
    x, w = normal(2, 4, 9, 9), normal(4, 4, 3, 3)
    found, expected = (
        jax.jit(jax.grad(lambda w, f=f: (jax.grad(lambda x: (f(x, w) ** 3).sum())(x) ** 2).sum()))(w)
        for f in (ours, theirs)
    )
    near(found, expected, 1e-4)
