"""Layers whose parameters and attributes become others than those that remembered calls were made with: attributes in
place of parameters, parametrizations, lists that change in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn.utils import parametrize  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import operator_calls, stock_calls  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, x: Any) -> Any:
        return x * 2


#: layers, and the shape of an input
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "linear": (lambda **named: nn.Linear(3, 4, **named), (2, 3)),
    "convolution": (lambda **named: nn.Conv2d(2, 3, 2, **named), (1, 2, 4, 4)),
    "transposed": (lambda **named: nn.ConvTranspose2d(2, 3, 2, **named), (1, 2, 4, 4)),
    "batch normalization": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "layer normalization": (lambda **named: nn.LayerNorm(5, **named), (2, 5)),
    "group normalization": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
}


def pair(stock: Any) -> tuple[Any, Any]:
    return jt.convert(copy.deepcopy(stock), measure="never"), stock


def are_alike(model: Any, stock: Any, x: Any) -> None:
    """Three calls, of which later ones may be remembered: results and gradients."""
    for _ in range(3):
        found = []
        for one in (model, stock):
            given = x.clone().requires_grad_()
            y = one(given * 1)
            found.append((y, *torch.autograd.grad(y.square().sum(), [given, *one.parameters()])))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["weight", "bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_parametrizations(name: str, what: str, when: str) -> None:
    make, shape = LAYERS[name]
    model, stock = pair(make())
    x = random(*shape)
    for one in (model, stock):
        with torch.no_grad():
            one.bias.fill_(3.0)
    if name in ("linear", "convolution", "transposed"):
        without, _ = pair(make(bias=False))  # whose calls are settled, then
        are_alike(without, without, x)
    if when == "after":
        are_alike(model, stock, x)
    for one in (model, stock):
        parametrize.register_parametrization(one, what, Doubled())
    are_alike(model, stock, x)


@pytest.mark.parametrize("name", ["linear", "convolution", "transposed", "layer normalization"])
def test_attributes_in_place_of_parameters_that_there_were_not(name: str) -> None:
    make, shape = LAYERS[name]
    model, stock = pair(make(bias=False))
    x = random(*shape)
    are_alike(model, stock, x)
    bias = torch.full((3,) if "conv" in name or name == "transposed" else (stock.weight.shape[0],), 2.0)
    for one in (model, stock):
        del one._parameters["bias"]
        one.bias = bias
    are_alike(model, stock, x)


def test_normalizations_without_parameters_that_get_attributes() -> None:
    model, stock = pair(nn.LayerNorm(5, elementwise_affine=False))
    x = random(2, 5)
    are_alike(model, stock, x)
    for one in (model, stock):
        del one._parameters["weight"], one._parameters["bias"]
        one.weight, one.bias = torch.full((5,), 3.0), torch.full((5,), 2.0)
    are_alike(model, stock, x)


def test_instance_normalization_that_gets_statistics_or_other_channels() -> None:
    model, stock = pair(nn.InstanceNorm2d(3, affine=True))
    x = random(2, 3, 4, 4)
    are_alike(model, stock, x)
    for one in (model, stock):
        one.running_mean, one.running_var = torch.zeros(3), torch.ones(3)
    are_alike(model, stock, x)
    torch.testing.assert_close(model.running_mean, stock.running_mean)
    assert float(model.running_mean.abs().max()) > 0
    for one in (model, stock):
        one.running_mean = one.running_var = None
    are_alike(model, stock, x)
    model.num_features = 5
    with pytest.raises(ValueError, match="expected input's size"):
        model(x)


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda: nn.MaxPool2d([2, 2], [1, 1]), "stride"),
        (lambda: nn.AvgPool2d([2, 2], [1, 1]), "stride"),
        (lambda: nn.AvgPool2d([2, 2], [1, 1]), "kernel_size"),
        (lambda: nn.AdaptiveAvgPool2d([2, 2]), "output_size"),
    ],
)
def test_lists_that_change_in_place(make: Callable[[], Any], attribute: str) -> None:
    model, stock = pair(make())
    x = random(1, 2, 8, 8)
    are_alike(model, stock, x)
    for one in (model, stock):
        getattr(one, attribute)[0] = 4
    are_alike(model, stock, x)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("convolution", "stride"),
        ("convolution", "dilation"),
        ("convolution", "padding"),
        ("transposed", "stride"),
        ("transposed", "dilation"),
    ],
)
def test_lists_of_convolutions_that_change_in_place(name: str, attribute: str) -> None:
    model, stock = pair(LAYERS[name][0]())
    x = random(1, 2, 8, 8)
    for one in (model, stock):
        setattr(one, attribute, [1, 1])
    are_alike(model, stock, x)
    y = model(x)
    for one in (model, stock):
        getattr(one, attribute)[0] = 2
    are_alike(model, stock, x)
    assert y.grad_fn is not None
    y.sum().backward()  # as it lay when it was called


def test_an_input_that_is_copied_is_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is prepared for it in each call."""
    made: list[Any] = []
    call = operator_calls.Call
    monkeypatch.setattr(operator_calls, "Call", lambda *given: made.append(given) or call(*given))
    model, stock = pair(nn.RMSNorm(5))
    for number in range(3):
        x = random(5, 3, seed=number).t()
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    assert len(made) == 1


@pytest.mark.parametrize("make", [lambda: nn.AvgPool2d(2), lambda: nn.AvgPool1d(2)])
def test_a_second_backward_pass_is_refused(make: Callable[[], Any]) -> None:
    """As PyTorch refuses it, though an average keeps nothing."""
    model, stock = pair(make())
    x = random(*(1, 2, 4, 4) if isinstance(stock, nn.AvgPool2d) else (1, 2, 4))
    for _ in range(3):
        for one in (model, stock):
            y = one(x.clone().requires_grad_()).sum()
            y.backward()
            with pytest.raises(RuntimeError, match="second time"):
                y.backward()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("space", [2, 3])
def test_one_image_of_torchs_instance_normalization(space: int, is_known: bool) -> None:
    """PyTorch's gradient of one image is wrong where that of the result lies in channels last."""
    kind = getattr(nn, f"InstanceNorm{space}d")
    model, stock = pair(kind(6, affine=True, track_running_stats=True))
    x, dy = random(1, 6, *(4, 5, 3)[:space]), random(1, *(4, 5, 3)[:space], 6).movedim(-1, 1)
    if is_known:  # that torch's function is faster
        stock_calls.remember(model, x)
        stock_calls.remember(model, x.requires_grad_())
    for _ in range(2):
        found = []
        for one, gradient in ((model, dy), (stock, dy.contiguous())):
            given = x.detach().clone().requires_grad_()
            found.append(torch.autograd.grad(one(given), [given, *one.parameters()], gradient))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_compilers_see_one_graph_of_one_image() -> None:
    model, stock = pair(nn.InstanceNorm2d(6, affine=True, track_running_stats=True))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = random(1, 6, 4, 5).requires_grad_()
    torch.testing.assert_close(compiled(x), stock(x), rtol=1e-4, atol=1e-5)
