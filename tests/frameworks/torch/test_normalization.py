"""`torch.ops.jitdnn.batch_norm` and `layer_norm` against PyTorch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import functional, operators  # noqa: E402
from jitdnn.frameworks.torch.guards import CALLS  # noqa: E402
from torch_kernels import all_ours, compare, form_holds, random  # noqa: E402

F = torch.nn.functional
NEVER = "measure=never"
BOTH = ("forward", "gradients")


def mine(x: Any, weight: Any = None, bias: Any = None, *, means: Any = None, variances: Any = None) -> Any:
    y = functional.batch_norm(x, means, variances, weight, bias, True, 0.3, 1e-3, options=NEVER)
    assert y is not NotImplemented
    return y


def torchs(x: Any, weight: Any = None, bias: Any = None, *, means: Any = None, variances: Any = None) -> Any:
    return F.batch_norm(x, means, variances, weight, bias, True, 0.3, 1e-3)


def layer(x: Any, *parameters: Any, axes: int = 1) -> Any:
    y = functional.ROUTES[F.layer_norm](x, tuple(x.shape[-axes:]), *parameters, eps=1e-3, options=NEVER)
    assert y is not NotImplemented
    return y


def torchs_layer(x: Any, *parameters: Any, axes: int = 1) -> Any:
    return F.layer_norm(x, tuple(x.shape[-axes:]), *parameters, eps=1e-3)


def last(x: Any) -> Any:
    return x.contiguous(memory_format=torch.channels_last)


def plain(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("shape", "layout", "dtype"),
    [
        ((5, 3), plain, torch.float32),
        ((2, 3, 7), plain, torch.float64),
        ((2, 5, 3, 7), plain, torch.float32),
        ((2, 17, 3, 5), last, torch.float32),
        ((2, 3, 2, 3, 5), plain, torch.float32),
        ((2, 3, 5, 7), lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), torch.float64),
        ((2, 5, 3, 7), last, torch.bfloat16),
        ((3, 5, 7), plain, torch.float16),
    ],
)
def test_batch_norm_agrees(shape: Any, layout: Any, dtype: Any) -> None:
    own = torch.promote_types(dtype, torch.float32)
    x, weight, bias = (
        layout(random(*shape, dtype=dtype)),
        random(shape[1], dtype=own),
        random(shape[1], dtype=own),
    )
    compare(mine, torchs, (x, weight, bias), BOTH)


def test_batch_norm_without_parameters_and_an_expanded_gradient() -> None:
    compare(mine, torchs, (random(2, 3, 5, 5),), BOTH)
    with all_ours(*BOTH):
        x = random(2, 3, 5, 5).requires_grad_()
        (dx,) = torch.autograd.grad(mine(x, random(3), random(3)).sum(), x)
    assert dx.abs().max() < 1e-5  # the sum of what is normalized does not depend on it


def test_running_statistics() -> None:
    x = random(4, 3, 5, 5) * 3 + 2
    ours = random(3), random(3).abs()
    theirs = tuple(one.double() for one in ours)
    with all_ours("forward"):
        mine(x, means=ours[0], variances=ours[1])
    torchs(x.double(), means=theirs[0], variances=theirs[1])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((5, 17), 1, torch.float32),
        ((2, 3, 7), 2, torch.float64),
        ((63,), 1, torch.float32),
        ((3, 65), 1, torch.float32),
    ],
)
def test_layer_norm_agrees(shape: Any, axes: int, dtype: Any) -> None:
    x, weight, bias = (random(*one, dtype=dtype) for one in (shape, shape[-axes:], shape[-axes:]))
    compare(lambda *a: layer(*a, axes=axes), lambda *a: torchs_layer(*a, axes=axes), (x, weight, bias), BOTH)


def test_layer_norm_of_turned_axes_and_without_parameters() -> None:
    compare(layer, torchs_layer, (random(5, 3, 7).transpose(0, 1),), BOTH)


@pytest.mark.parametrize("function", [mine, layer])
def test_first_and_second_derivatives(function: Any) -> None:
    given = [random(*shape, dtype=torch.float64).requires_grad_() for shape in ((4, 3), (3,), (3,))]
    with all_ours(*BOTH):
        assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given[:1])


@pytest.mark.parametrize("layout", [plain, last])
def test_opcheck_and_form(layout: Any) -> None:
    x, weight, bias = layout(random(2, 3, 4, 5)), random(3), random(3)
    torch.library.opcheck(
        operators.batch_norm.default, (x.clone().requires_grad_(), weight.requires_grad_(), bias, 1e-5, NEVER)
    )
    weight = weight.detach()
    form_holds(operators.batch_norm, x, weight, bias, 1e-5, NEVER)
    _, mean, rstd, _ = operators.batch_norm(x, weight, bias, 1e-5, NEVER)
    form_holds(operators.batch_norm_backward, x, x, weight, mean, rstd, 1e-5, NEVER)


def test_opcheck_and_form_of_layer_norm() -> None:
    x, weight, bias = random(2, 3, 5), random(5), random(5)
    torch.library.opcheck(
        operators.layer_norm.default, (x.clone().requires_grad_(), weight, bias, 1, 1e-5, NEVER)
    )
    form_holds(operators.layer_norm, x, weight, bias, 1, 1e-5, NEVER)
    _, mean, rstd = operators.layer_norm(x, weight, bias, 1, 1e-5, NEVER)
    form_holds(operators.layer_norm_backward, x, x, weight, mean, rstd, 1, 1e-5, NEVER)


@pytest.mark.parametrize(("ours", "theirs"), [(mine, torchs), (layer, torchs_layer)])
def test_vmap_and_func_grad(ours: Any, theirs: Any) -> None:
    x, weight, bias = random(3, 4, 5), random(5), random(5)

    def loss(run: Any, weight: Any, bias: Any, x: Any) -> Any:
        return run(x, weight, bias).pow(3).sum()

    found, expected = (
        torch.vmap(torch.func.grad(lambda *a, run=run: loss(run, *a), (0, 1, 2)), (None, None, 0))(
            weight, bias, x
        )
        for run in (ours, theirs)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_goes_to_torch() -> None:
    """Evaluation, one value per channel, complex numbers, autocast of layer normalization: torch's own functions."""
    x = random(2, 3)
    for found in (
        functional.batch_norm(x, random(3), random(3).abs(), training=False),
        functional.batch_norm(x[:1], None, None, training=True),
        functional.batch_norm(x[:0], None, None, training=True),
        functional.ROUTES[F.layer_norm](x, (4,)),
        functional.ROUTES[F.layer_norm](x, ()),
        functional.ROUTES[F.layer_norm](torch.complex(x, x), (3,)),
    ):
        assert found is NotImplemented
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.ROUTES[F.layer_norm](x, (3,)) is NotImplemented
    for half in (torch.bfloat16, torch.float16):
        weight = random(3, dtype=half)  # running statistics are of that type, too
        assert functional.batch_norm(x.to(half), None, None, weight, weight, True) is NotImplemented
        assert functional.batch_norm(x.to(half), weight, weight, training=True) is NotImplemented
        for weight in (random(3), random(3, dtype=half), None):
            assert functional.ROUTES[F.layer_norm](x.to(half), (3,), weight, weight) is NotImplemented


def test_wrong_shapes_raise_torchs_errors() -> None:
    x = random(2, 3, 4, 4)
    for weight, means in ((random(4), None), (None, random(4))):
        with pytest.raises(RuntimeError):
            torchs(x, weight, None, means=means, variances=means)
        assert functional.batch_norm(x, means, means, weight, None, True) is NotImplemented
    for parameters in ((random(3), random(3)), (random(4), random(3))):
        with pytest.raises(RuntimeError):
            torchs_layer(x, *parameters)
        with pytest.raises(RuntimeError):
            layer(x, *parameters)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_what_is_kept_of_turned_axes_is_the_input(name: str) -> None:
    """The program mostly holds it itself: a dense copy would be memory besides. Later calls are remembered, too."""
    made = getattr(torch.nn, name)(6)
    model = jt.convert(made, measure="never")
    for number in range(4):
        x = random(3, 6, 5, seed=number).transpose(1, 2).requires_grad_()
        kept: list[int] = []

        def pack(tensor: Any) -> Any:
            kept.append(tensor.data_ptr())  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = model(x)
        assert x.data_ptr() in kept
        stock = getattr(torch.nn.functional, {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}[name])
        exact = x.detach().double().requires_grad_()
        wanted = stock(exact, (6,), model.weight.double())
        dy = random(3, 6, 5, seed=9).transpose(1, 2)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
        (dx,), (expected,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(wanted, exact, dy.double())
        torch.testing.assert_close(dx.double(), expected, rtol=1e-4, atol=1e-5)
    x = x.detach().requires_grad_()
    for _ in range(4):
        model(x).backward(dy)
    assert CALLS in model.__dict__
