"""Layers of converted models in a training step are within the bounds that their algorithms declare."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from torch_layers import layer_errors  # noqa: E402
from torch_zoo import SMALL, settled  # noqa: E402


@pytest.mark.parametrize(
    ("name", "form"), [("resnet18", torch.channels_last), ("mobilenet_v2", torch.contiguous_format)]
)
def test_each_layer_is_within_its_declared_bound(name: str, form: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = jt.convert(settled(SMALL[name]()).train().to(memory_format=form), measure="never")
    x = torch.randn(3, 3, 40, 40).to(memory_format=form)
    errors = layer_errors(model, lambda m: torch.nn.functional.cross_entropy(m(x), torch.tensor([1, 7, 3])))
    assert [one for one in errors if not one.is_good] == []
    declared = {(one.layer, one.direction) for one in errors if one.bound is not None}
    convolutions = [name for name, one in model.named_modules() if isinstance(one, torch.nn.Conv2d)]
    assert declared >= {(name, what) for name in convolutions for what in ("forward", "data", "filter")}


def test_normalization_of_two_values_loses_in_torch_what_it_loses_here() -> None:
    """Of two values a channel x̂ is ±1 but for epsilon, and the gradient what is left of a difference: ours and torch's
    lose the same digits there, and what a whole model loses says nothing of either."""
    torch.manual_seed(0)
    stock = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 1), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 2, 1)
    )
    model = jt.convert(stock, measure="never")
    x = torch.randn(2, 64, 1, 1)
    errors = {(one.layer, one.direction): one for one in layer_errors(model, lambda m: m(x).square().mean())}
    assert all(one.is_good for one in errors.values()), errors
    data = errors["1", "data"]
    assert data.stock > 5 * errors["0", "data"].stock
