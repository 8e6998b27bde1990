"""Converted networks with large filters, and over sequences and volumes: results and gradients are PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

import jitdnn.torch as jt  # noqa: E402
from torch_zoo_axes import MODELS  # noqa: E402


def results(model: torch.nn.Module, x: torch.Tensor) -> Sequence[torch.Tensor]:
    """What a step leaves: the result, the gradient of the input and those of all parameters."""
    given = x.clone().requires_grad_()
    y = model.train()(given)
    y.square().sum().backward()
    return [y.detach(), given.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_the_converted_network(name: str) -> None:
    torch.manual_seed(0)
    entry = MODELS[name]
    model = entry.small().double()
    x = torch.randn(2, *entry.small_shape, dtype=torch.float64)
    ours = results(jt.convert(copy.deepcopy(model), measure="never"), x)
    stock = results(model, x)
    largest = max(
        float(each.abs().max()) for each in stock
    )  # a bias before a normalization has rounding for a gradient
    for mine, theirs in zip(ours, stock, strict=True):
        scale = max(float(theirs.abs().max()), 1e-4 * largest)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9 * scale)
