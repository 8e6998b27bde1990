"""`jitdnn.jax` against JAX's own operations: values, gradients, jit, vmap and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn as jd

jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
jj: Any = pytest.importorskip("jitdnn.jax")
jnp = jax.numpy
rng = np.random.default_rng(2)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return jnp.asarray(rng.standard_normal(shape)).astype(dtype)


def close(found: Any, expected: Any, limit: float = 1e-4) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64),
            np.asarray(b, np.float64),
            rtol=limit,
            atol=limit * (1 + float(abs(b).max())),
        ),
        found,
        expected,
    )


def theirs(x: Any, w: Any, strides: Any, pads: Any, dilations: Any, groups: int) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, strides, pads, rhs_dilation=dilations, feature_group_count=groups
    )


CASES = {
    "1-d": ((2, 4, 11), (6, 4, 3), (2,), ((1, 1),), (1,), 1),
    "2-d": ((2, 4, 9, 8), (6, 2, 3, 2), (1, 2), ((1, 0), (2, 1)), (2, 1), 2),
    "3-d": ((1, 3, 5, 6, 4), (2, 3, 2, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), (1, 1, 1), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_convolution_and_gradients(name: str) -> None:
    x_shape, w_shape, *form = CASES[name]
    strides, pads, dilations, groups = form
    x, w, bias = normal(*x_shape), normal(*w_shape), normal(w_shape[0])

    def own(x: Any, w: Any, b: Any) -> Any:
        return jj.conv(x, w, b, stride=strides, padding=pads, dilation=dilations, groups=groups)

    def other(x: Any, w: Any, b: Any) -> Any:
        return theirs(x, w, *form) + b.reshape(-1, *[1] * (len(x_shape) - 2))

    y = own(x, w, bias)
    close(y, other(x, w, bias))
    close(jax.jit(own)(x, w, bias), y, 1e-6)
    weights = normal(*y.shape)
    losses = [lambda *a, f=f: (f(*a) * weights).sum() for f in (own, other)]
    close(*(jax.jit(jax.grad(loss, (0, 1, 2)))(x, w, bias) for loss in losses))


def test_gradients_of_gradients() -> None:
    x, w = normal(1, 2, 6, 5), normal(3, 2, 3, 2)

    def twice(f: Any) -> Any:
        def inner(x: Any, w: Any) -> Any:
            dx, dw = jax.grad(lambda x, w: (f(x, w) ** 3).sum(), (0, 1))(x, w)
            return (dx**2).sum() + (dw**2).sum()

        return jax.grad(inner, (0, 1))(x, w)

    close(
        twice(lambda x, w: jj.conv(x, w, stride=2, padding=1)),
        twice(lambda x, w: theirs(x, w, (2, 2), ((1, 1), (1, 1)), (1, 1), 1)),
        1e-3,
    )


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (1, 0)])
def test_batches_of_vmap(axes: Any) -> None:
    x = normal(*(((2, 3, 4, 6, 5) if axes[0] else (3, 2, 4, 6, 5)) if axes[0] is not None else (2, 4, 6, 5)))
    w = normal(*((3, 5, 4, 3, 3) if axes[1] is not None else (5, 4, 3, 3)))

    def own(x: Any, w: Any) -> Any:
        return jj.conv(x, w, padding=1)

    def other(x: Any, w: Any) -> Any:
        return theirs(x, w, (1, 1), ((1, 1), (1, 1)), (1, 1), 1)

    close(jax.vmap(own, axes)(x, w), jax.vmap(other, axes)(x, w))
    pairs = [
        jax.jit(jax.vmap(jax.grad(lambda x, w, f=f: (f(x, w) ** 2).sum(), (0, 1)), axes))
        for f in (own, other)
    ]
    close(*(pair(x, w) for pair in pairs), 1e-3)


def test_vmap_of_vmap() -> None:
    x, w = normal(2, 3, 1, 2, 5, 5), normal(3, 4, 2, 3, 3)
    nested = [
        jax.vmap(jax.vmap(f), (0, None))
        for f in (jj.conv, lambda x, w: theirs(x, w, (1, 1), ((0, 0), (0, 0)), (1, 1), 1))
    ]
    close(*(f(x, w) for f in nested))


def test_transposed() -> None:
    x, w, bias = normal(2, 4, 5, 6), normal(4, 3, 3, 3), normal(3)
    found = jj.conv_transpose(x, w, bias, stride=2, padding=1, output_padding=1)
    expected = jd.conv_transpose(np.asarray(x), np.asarray(w), stride=2, padding=1, output_padding=1)
    close(found, jnp.asarray(expected) + bias.reshape(-1, 1, 1))
    slope = normal(2, 3, 11, 13)
    gradient = jax.grad(lambda w: (jj.conv_transpose(x, w, stride=2) * slope).sum())(w)
    close(gradient, jd.conv_backward_filter(np.asarray(slope), np.asarray(x), w.shape, stride=2))


def windows(x: Any, mode: str, counts: bool) -> Any:
    pads, dims, strides = ((0, 0), (0, 0), (1, 1), (0, 0)), (1, 1, 3, 2), (1, 1, 2, 1)
    if mode == "max":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, dims, strides, pads)
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, dims, strides, pads)
    if counts:
        return total / 6
    return total / jax.lax.reduce_window(jnp.ones_like(x), 0.0, jax.lax.add, dims, strides, pads)


@pytest.mark.parametrize(("mode", "counts"), [("max", True), ("avg", True), ("avg", False)])
def test_pooling(mode: str, counts: bool) -> None:
    x = normal(2, 3, 7, 6)
    how = ((3, 2), (2, 1), (1, 0))

    def own(x: Any) -> Any:
        return jj.max_pool(x, *how) if mode == "max" else jj.avg_pool(x, *how, count_include_pad=counts)

    def other(x: Any) -> Any:
        return windows(x, mode, counts)

    close(own(x), other(x))
    close(*(jax.jit(jax.grad(lambda x, f=f: (f(x) ** 3).sum()))(x) for f in (own, other)))
    many = normal(3, 2, 3, 7, 6)
    each = jnp.stack([own(x) for x in many])
    close(jax.vmap(own)(many), each, 1e-6)


def test_lrn() -> None:
    x = normal(2, 7, 3, 4)

    def formula(x: Any) -> Any:
        squares = jnp.pad(x * x, ((0, 0), (2, 2), (0, 0), (0, 0)))
        total = sum(squares[:, shift : shift + 7] for shift in range(5))
        return x * (1.5 + 0.3 / 5 * total) ** -0.6

    def own(x: Any) -> Any:
        return jj.lrn(x, 5, 0.3, 0.6, 1.5)

    close(own(x), formula(x))
    close(*(jax.grad(lambda x, f=f: (f(x) ** 3).sum())(x) for f in (own, formula)))


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_half_precision(dtype: str, limit: float) -> None:
    x, w = normal(2, 4, 6, 6, dtype=dtype), normal(4, 4, 3, 3, dtype=dtype)
    found = jax.jit(lambda x, w: jj.conv(x, w, padding=1))(x, w)
    assert found.dtype == dtype
    exact = theirs(x.astype("float32"), w.astype("float32"), (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    close(found, exact, limit)


def test_large_arrays_in_a_chain() -> None:
    """A program whose calls of the host wait for each other."""
    x, w = normal(8, 32, 64, 64), 0.05 * normal(32, 32, 3, 3)

    @jax.jit
    def step(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = jnp.maximum(jj.conv(x, w, padding=1), 0)
        return x.sum()

    value, slope = jax.value_and_grad(step, 1)(x, w)
    assert np.isfinite(float(value))
    assert np.isfinite(np.asarray(slope)).all()


def test_what_does_not_fit() -> None:
    x, w = normal(2, 4, 6, 6), normal(5, 4, 3, 3)
    with pytest.raises(jd.InvalidShape):
        jj.conv(x, normal(5, 3, 3, 3))
    with pytest.raises(jd.InvalidShape):
        jj.conv(x, w[0])
    with pytest.raises(jd.InvalidType):
        jj.conv(x, w.astype("float16"))
    with pytest.raises(jd.InvalidType):
        jj.conv([1.0], w)
    with pytest.raises(jd.InvalidArgument):
        jj.conv(x, w, stride=0)
    with pytest.raises(jd.InvalidShape):
        jj.conv(x, w, normal(4))
    with pytest.raises(jd.InvalidShape):
        jj.max_pool(normal(2, 3), 2)
    with pytest.raises(jd.InvalidArgument):
        jax.jit(lambda x: jj.max_pool(x, 0))(x)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, w: jj.conv(x, w, groups="1"), jd.InvalidArgument),
        (lambda x, w: jj.conv(x, w, groups=0), jd.InvalidArgument),
        (lambda x, w: jj.conv(x.astype("int8"), w.astype("int8")), jd.InvalidType),
        (lambda x, w: jj.conv_transpose(x, w[:4], normal(2)), jd.InvalidShape),
        (lambda x, w: jj.conv_transpose(x, w[:4], normal(1)), jd.InvalidShape),
        (lambda x, w: jj.lrn(x, mode="along"), jd.InvalidArgument),
        (lambda x, w: jj.lrn(x, size=2.5), jd.InvalidArgument),
        (lambda x, w: jj.lrn(x, size=0), jd.InvalidArgument),
        (lambda x, w: jj.lrn(x, k="2"), jd.InvalidArgument),
        (lambda x, w: jj.lrn(x[0, 0]), jd.InvalidShape),
        (lambda x, w: jj.lrn(x.astype("int32")), jd.InvalidType),
    ],
)
def test_what_does_not_fit_is_said_before_the_host_is_called(call: Any, error: type[Exception]) -> None:
    x, w = normal(2, 4, 6, 6), normal(5, 4, 3, 3)
    for run in (call, jax.jit(call)):
        with pytest.raises(error):
            run(x, w)


def test_gradients_inside_of_shard_map() -> None:
    """Images differ along an axis of the mesh and filters do not: their gradient is the sum over it."""
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)), jax.sharding.PartitionSpec
    x, w = normal(2, 3, 6, 7), normal(4, 3, 3, 3)

    def loss(function: Any) -> Any:
        def inside(x: Any, w: Any) -> Any:
            y = function(x, w)
            return jax.lax.psum((jnp.sin(y) * y).sum(), "d")

        spread = jax.shard_map(inside, mesh=mesh, in_specs=(spec("d"), spec()), out_specs=spec())
        return jax.jit(jax.grad(lambda x, w: spread(x, w), (0, 1)))

    pooled = lambda conv: lambda x, w: jj.avg_pool(conv(x, w), 2, 2)  # noqa: E731
    expected = lambda x, w: theirs(x, w, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)  # noqa: E731
    close(loss(jj.conv)(x, w), loss(expected)(x, w))
    close(loss(pooled(jj.conv))(x, w), loss(pooled(expected))(x, w))
    turned = jnp.swapaxes(w, 0, 1)
    got = loss(lambda x, w: jj.conv_transpose(x, w, stride=2))(x, turned)
    assert [one.shape for one in got] == [x.shape, turned.shape]
