"""Torch's kernels, where they are chosen, write large results into memory that stays with the process, too."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import arena, choice, kinds  # noqa: E402
from jitdnn.frameworks.torch.activation import FUNCTIONS, activation  # noqa: E402
from jitdnn.frameworks.torch.linear import linear  # noqa: E402


@pytest.fixture(autouse=True)
def torchs_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torch's kernels win all choices between kernels."""
    stock = choice.Decision(False, "slower")
    monkeypatch.setattr(kinds, "decide", lambda *_, **__: stock)
    kinds.forget()
    yield
    kinds.forget()


def is_kept(tensor: Any) -> bool:
    return arena._own() is None or not tensor.untyped_storage().resizable()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("is_last", [False, True])
def test_activations(name: str, is_last: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 96, 40, 40)
    if is_last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    dy = torch.randn_like(x)
    y = activation(x, name, "")
    (dx,) = torch.autograd.grad(y, x, dy)
    wanted = FUNCTIONS[name].stock(x)
    (wanted_dx,) = torch.autograd.grad(wanted, x, dy)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(dx, wanted_dx)
    assert y.stride() == x.stride() == dx.stride()
    assert is_kept(y)
    assert is_kept(dx) or FUNCTIONS[name].backward_into is None


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(has_bias: bool) -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(600, 520, requires_grad=True) for _ in range(2))
    bias = torch.randn(600, requires_grad=True) if has_bias else None
    dy = torch.randn(600, 600)
    operands = [one for one in (x, w, bias) if one is not None]
    y = linear(x, w, bias, "")
    found = torch.autograd.grad(y, operands, dy)
    wanted = torch.nn.functional.linear(x, w, bias)
    torch.testing.assert_close(y, wanted)
    for one, other in zip(found, torch.autograd.grad(wanted, operands, dy), strict=True):
        torch.testing.assert_close(one, other)
    assert is_kept(y)
    assert all(is_kept(one) for one in found[:2])


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(400, 420, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def second(y: Any) -> Any:
        first = torch.autograd.grad(y.square().sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), (x, w))

    found = second(activation(linear(x, w, None, ""), "gelu", ""))
    wanted = second(torch.nn.functional.gelu(torch.nn.functional.linear(x, w)))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_converted_module_keeps_its_own_node() -> None:
    """Torch's own function would allocate by itself."""
    torch.manual_seed(0)
    stock = torch.nn.Linear(512, 1024)
    model = jt.convert(torch.nn.Linear(512, 1024))
    model.load_state_dict(stock.state_dict())
    x = torch.randn(512, 512)
    for _ in range(4):
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
    assert is_kept(y)
    assert is_kept(model.weight.grad)
    stock(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad, stock.weight.grad)
    torch.testing.assert_close(model.bias.grad, stock.bias.grad)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        lambda x: torch.nn.functional.avg_pool2d(x, 2, ceil_mode=True),
    ],
)
def test_pools(function: Any, is_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, which hold no operand of their first call."""
    monkeypatch.undo()
    torch.manual_seed(0)
    x = torch.randn(2, 96, 81, 80)
    x = x.to(memory_format=torch.channels_last) if is_last else x
    x.requires_grad_()
    with jt.use(measure="never"):
        y = function(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    wanted = function(x)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(dx, torch.autograd.grad(wanted.sum(), x)[0])
    assert y.stride() == wanted.stride()
    assert dx.stride() == x.stride()
    assert is_kept(y)
    assert is_kept(dx)
    died = weakref.ref(x.untyped_storage())
    del x, y, dx, wanted
    gc.collect()
    assert died() is None
