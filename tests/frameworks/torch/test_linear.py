"""`torch.ops.jitdnn.linear` against PyTorch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import functional, operators  # noqa: E402
from torch_kernels import all_ours, compare, form_holds, random, watched  # noqa: E402

F = torch.nn.functional
NEVER = "measure=never"


def linear(*operands: Any) -> Any:
    return functional.linear(*operands, options=NEVER)


@pytest.mark.parametrize(
    ("shape", "results", "has_bias", "dtype"),
    [
        ((5, 7), 3, True, torch.float32),
        ((2, 3, 17), 5, False, torch.float64),
        ((13,), 1, True, torch.float32),
        ((65, 63), 17, True, torch.bfloat16),
        ((3, 8), 4, True, torch.float16),
    ],
)
def test_agrees(shape: Any, results: int, has_bias: bool, dtype: Any) -> None:
    x, w = random(*shape, dtype=dtype), random(results, shape[-1], dtype=dtype)
    bias = random(results, dtype=dtype) if has_bias else None
    compare(linear, F.linear, (x, w, bias), ("forward", "data", "filter"))


def test_an_expanded_gradient_and_rows_with_gaps() -> None:
    x = random(5, 3, 7).transpose(0, 1)  # rows that reshape has to copy
    compare(
        linear,
        F.linear,
        (x, random(4, 7), random(4)),
        ("forward", "data", "filter", "bias"),
        is_expanded=True,
    )


def test_a_turned_weight_runs_by_torch() -> None:
    x, w = random(5, 7), random(7, 3).t()
    with watched() as seen:
        torch.testing.assert_close(linear(x, w, None), F.linear(x, w))
    assert [kind.decision.is_ours for kind in seen] == [False]
    assert "dense" in seen[0].decision.reason


def test_first_and_second_derivatives() -> None:
    given = [random(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (2, 4), (2,))]
    with all_ours("forward", "data", "filter", "bias"):
        assert torch.autograd.gradcheck(linear, given)
    assert torch.autograd.gradgradcheck(linear, given)


def test_opcheck_and_form() -> None:
    x, w, bias = (random(*shape).requires_grad_() for shape in ((5, 7), (3, 7), (3,)))
    torch.library.opcheck(operators.linear.default, (x, w, bias, NEVER))
    form_holds(operators.linear, x.detach(), w.detach(), bias.detach(), NEVER)
    form_holds(operators.linear_backward, random(5, 3), x.detach(), w.detach(), [True, False, True], NEVER)


def test_vmap_and_gradients_of_each_example() -> None:
    x, w, bias = random(6, 4, 7), random(3, 7), random(3)

    def loss(run: Any, w: Any, bias: Any, x: Any) -> Any:
        return run(x, w, bias).square().sum()

    found = torch.vmap(torch.func.grad(lambda *a: loss(linear, *a), (0, 1)), (None, None, 0))(w, bias, x)
    expected = torch.vmap(torch.func.grad(lambda *a: loss(F.linear, *a), (0, 1)), (None, None, 0))(w, bias, x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weights = random(6, 3, 7)
    torch.testing.assert_close(
        torch.vmap(linear, (None, 0, None))(x[0], weights, bias),
        torch.vmap(F.linear, (None, 0, None))(x[0], weights, bias),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def test_autocast_and_nothing() -> None:
    x, w = random(5, 7), random(3, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16), all_ours("forward"):
        assert linear(x, w).dtype == torch.bfloat16
    empty = torch.empty((0, 7), requires_grad=True)
    weight = w.clone().requires_grad_()
    y = linear(empty, weight)
    y.sum().backward()
    assert y.shape == (0, 3)
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize(
    ("x", "w", "bias"), [((5, 7), (3, 6), None), ((5, 7), (3, 7), (4,)), ((), (3, 7), None)]
)
def test_wrong_shapes_raise_torchs_errors(x: Any, w: Any, bias: Any) -> None:
    operands = [None if shape is None else random(*shape) for shape in (x, w, bias)]
    with pytest.raises(RuntimeError):
        F.linear(*operands)
    with pytest.raises(RuntimeError):
        linear(*operands)


@pytest.mark.parametrize(("w", "bias"), [((7,), None), ((3, 7), ()), ((3, 7), (1,)), ((3, 7), (5, 3))])
def test_what_torch_takes_besides(w: Any, bias: Any) -> None:
    """A weight of one row, a bias of one number."""
    operands = [random(*shape).requires_grad_() for shape in ((5, 7), w, bias) if shape is not None]
    found, expected = (torch.autograd.grad(run(*operands).sum(), operands) for run in (linear, F.linear))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_wrong_types_raise_and_complex_goes_to_torch() -> None:
    with pytest.raises(RuntimeError):
        linear(random(5, 7), random(3, 7, dtype=torch.float64))
    x, w = (torch.complex(random(*shape), random(*shape, seed=1)) for shape in ((5, 7), (3, 7)))
    torch.testing.assert_close(linear(x, w), F.linear(x, w))
