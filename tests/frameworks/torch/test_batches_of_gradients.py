"""Gradients of a batch of results at once (`is_grads_batched`, `torch.func.jacrev`), for which vmap has no rule for
orders of axes and for copies into a tensor that is no batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn
LAYERS: dict[str, Callable[[], Any]] = {
    "maximum": lambda: nn.MaxPool2d(3, 2, 1),
    "average": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(2),
    "convolution": lambda: nn.Conv2d(3, 4, 3),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 2, 2),
    "batches": lambda: nn.BatchNorm2d(3),
    "batches, SiLU": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.SiLU()),
    "instances": lambda: nn.InstanceNorm2d(3, affine=True),
    "SiLU": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softmax": lambda: nn.Softmax(1),
}
INPUTS = {
    "channels first": random(2, 3, 6, 5),
    "channels last": random(2, 3, 6, 5).contiguous(memory_format=torch.channels_last),
    "expanded": random(2, 3, 6, 1).expand(2, 3, 6, 5),
}


@pytest.mark.parametrize("order", INPUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_first_and_second_order(name: str, order: str) -> None:
    stock = LAYERS[name]()
    model, x = jt.convert(copy.deepcopy(stock), measure="never"), INPUTS[order]

    def gradients(layer: Any) -> list[Any]:
        given = [x.detach().requires_grad_(), *layer.parameters()]
        y = layer(given[0])
        dys = random(2, *y.shape, seed=1)
        found = torch.autograd.grad(y, given, dys, is_grads_batched=True, retain_graph=True)
        if (name, order) == ("maximum", "channels last"):  # which torch has no rule for
            return [*found]
        dy = dys[0].requires_grad_()
        (slope,) = torch.autograd.grad(y, given[0], dy, create_graph=True)
        ddx = random(2, *x.shape, seed=2)
        more = torch.autograd.grad(slope, (dy, given[0]), ddx, is_grads_batched=True, allow_unused=True)
        return [*found, *more]

    for _ in range(3):  # remembered from the second on
        for one, other in zip(gradients(model), gradients(stock), strict=True):
            if one is None or other is None:  # what nothing depends on
                assert not any(found.any() for found in (one, other) if found is not None)
            else:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
