"""Rectifiers of converted models: torch's kernels on a processor, whose results lie in memory that stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import arena  # noqa: E402
from jitdnn.frameworks.torch.rectifier import LEAST  # noqa: E402

SHAPE = (3, 37, 100, 100)
assert LEAST <= 4 * 3 * 37 * 100 * 100


def is_kept(tensor: Any) -> bool:
    return arena._own() is None or not tensor.untyped_storage().resizable()


def operand(is_last: bool = False) -> Any:
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    x[0, 0, 0, :4] = torch.tensor([torch.nan, 0.0, -0.0, torch.inf])
    return x.to(memory_format=torch.channels_last) if is_last else x


def ours(is_in_place: bool) -> Any:
    return jt.convert(torch.nn.ReLU(is_in_place), measure="never")


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_values_gradients_and_where_they_lie(is_in_place: bool, is_last: bool) -> None:
    dy = torch.randn(SHAPE)
    found = []
    for module in (torch.nn.ReLU(is_in_place), ours(is_in_place)):
        x = operand(is_last).requires_grad_()
        inside = x * 1.0
        y = module(inside)
        assert (y is inside) is is_in_place
        (dx,) = torch.autograd.grad(y, x, dy)
        found.append((y.detach(), dx))
    for one, other in zip(*found, strict=True):
        assert one.stride() == other.stride() or is_last
        # bit by bit, the sign of zero and NaN too
        assert torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))
    assert is_kept(found[1][0]) or is_in_place


def test_the_gradient_lies_there_too() -> None:
    x = operand()
    x[x.isnan()] = 1.0
    inside = x.requires_grad_() * 1.0
    (dx,) = torch.autograd.grad(ours(False)(inside).square().sum(), inside)
    assert is_kept(dx)
    torch.testing.assert_close(dx, 2 * torch.relu(x))


def test_gradients_of_gradients() -> None:
    def second(module: Any) -> Any:
        x = operand().nan_to_num_(1.0, 1.0).double().requires_grad_()
        (first,) = torch.autograd.grad(module(x * 1.0).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(ours(True)), second(torch.nn.ReLU(True)))


def test_errors_and_views_are_torchs() -> None:
    leaf = operand().requires_grad_()
    for module in (torch.nn.ReLU(True), ours(True)):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            module(leaf)
    whole = leaf * 1.0
    part = ours(True)(whole[:, 1:])
    assert part._is_view()
    (dx,) = torch.autograd.grad(whole.nan_to_num().sum(), leaf)
    assert bool((dx[:, 1:] == (leaf[:, 1:] > 0)).all())
    assert bool((dx[1:, 0] == 1).all())


def test_other_calls_run_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.frameworks.torch import rectifier

    def refused(*_: Any) -> Any:
        raise AssertionError("by our node")

    monkeypatch.setattr(rectifier._Rectified, "apply", refused)
    module = ours(False)
    module(operand())  # no gradient is wanted
    module(operand()[..., :3].clone().requires_grad_())  # small
    with torch.no_grad():
        module(operand().requires_grad_())
    torch.func.grad(lambda x: module(x).nan_to_num().sum())(operand())
    with pytest.raises(AssertionError, match="by our node"):
        module(operand().requires_grad_())
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    module(operand().requires_grad_())


def test_in_a_model_that_is_copied_and_checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    stock = torch.nn.Sequential(
        torch.nn.Conv2d(2, 37, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(37, 2, 1)
    )
    model = copy.deepcopy(jt.convert(copy.deepcopy(stock), measure="never"))
    x = torch.randn(3, 2, 100, 100)
    wanted = torch.autograd.grad(stock(x).square().sum(), [*stock.parameters()])
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        found = torch.autograd.grad(run(x).square().sum(), [*model.parameters()])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)
