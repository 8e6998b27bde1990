"""Layer and group normalization of half precision whose result is of float32, as autocast on GPUs has it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch import group_norm, layer_norm_autocast  # noqa: E402
from torch_kernels import agree, random  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def layers(x: Any, w: Any, b: Any, axes: int = 1) -> Any:
    return layer_norm_autocast.widened(x, x.shape[-axes:], w, b, 1e-3)


def layers_by_torch(x: Any, w: Any, b: Any, axes: int = 1) -> Any:
    return F.layer_norm(x, x.shape[-axes:], w, b, 1e-3)


def groups(x: Any, w: Any, b: Any, count: int = 2) -> Any:
    return group_norm._groups_of(group_norm._WIDE, x, count, w, b, 1e-3)


def groups_by_torch(x: Any, w: Any, b: Any, count: int = 2) -> Any:
    return F.group_norm(x, count, w, b, 1e-3)


LAST = torch.channels_last
CASES: list[tuple[Any, Any, tuple[int, ...], tuple[int, ...], int, Any]] = [
    (layers, layers_by_torch, (3, 5, 9), (9,), 1, None),
    (layers, layers_by_torch, (2, 3, 17), (3, 17), 2, None),
    (groups, groups_by_torch, (2, 6, 5, 3), (6,), 2, None),
    (groups, groups_by_torch, (2, 6, 5, 3), (6,), 6, LAST),
]


@pytest.mark.parametrize("parameters", [torch.float32, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("described", "stock", "shape", "own", "number", "order"), CASES)
def test_values_and_gradients(
    described: Any, stock: Any, shape: Any, own: Any, number: int, order: Any, dtype: Any, parameters: Any
) -> None:
    x = random(*shape).to(dtype)
    x = (x if order is None else x.contiguous(memory_format=order)).requires_grad_()
    w, b = (random(*own, seed=seed).to(parameters or dtype).requires_grad_() for seed in (1, 2))
    exact = [one.detach().double().requires_grad_() for one in (x, w, b)]
    wanted = stock(*exact, number)
    dy = random(*shape, seed=3)
    gradients = torch.autograd.grad(wanted, exact, dy.double())
    operation, operands = described(x, w, b, number)
    y = operation.eager("", operation.settings, *operands)[0]
    agree(y, wanted, torch.float32, "y")
    assert y.stride() == x.stride()
    found = torch.autograd.grad(y, [x, w, b], dy, retain_graph=True)
    for one, other, operand in zip(found, gradients, (x, w, b), strict=True):
        agree(one, other, operand.dtype, "a gradient")
    # as modules remember their calls
    run = operation.forward_of("", operands)
    assert run is not None
    again, *saved = run(*operands)
    assert torch.equal(again, y)
    back = operation.gradient_of("", (dy, *operands, *saved, *operation.behind(operands[0])))
    assert back is not None
    for one, other in zip(back(dy, *operands, *saved), found, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    # gradients of gradients are torch's
    (dx,) = torch.autograd.grad(y, [x], dy, create_graph=True)
    (second,) = torch.autograd.grad(dx.float().square().sum(), [x])
    (first,) = torch.autograd.grad(stock(*exact, number), [exact[0]], dy.double(), create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), [exact[0]])
    torch.testing.assert_close(second.double(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))


def test_without_parameters_and_without_gradients() -> None:
    x = random(3, 5, 9).bfloat16()
    operation, operands = layers(x, None, None)
    y = operation.eager("", operation.settings, *operands)[0]
    agree(y, layers_by_torch(x.double(), None, None), torch.float32, "y")
    run = operation.forward_of("", operands)
    assert run is not None
    (again,) = run(*operands)
    assert torch.equal(again, y)


def test_what_stays_torchs() -> None:
    x, w = random(3, 9).bfloat16(), torch.ones(9)
    assert layers(x.float(), w, w) is None
    assert layers(x, w, None) is None
    assert layers(x, w, w.bfloat16()) is None  # of two types
    assert layers(x, torch.ones(3), torch.ones(3)) is None
    assert layer_norm_autocast.widened(x, (4,), w, w) is None
    with torch.autocast("cpu", torch.bfloat16):  # which leaves layer normalization in half precision
        assert layer_norm_autocast.described(x, (9,), w, w) is None
        assert group_norm.groups(x, 3, w, w) is None
