"""Modules remember the inputs that torch's function is faster for, and then cost no look-up."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, kinds, whole  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.stock_calls import STOCK_CALLS  # noqa: E402


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Torch's functions win everywhere; the list has those that were looked up."""
    kinds.forget()
    seen: list[Any] = []
    real = whole.run

    def run(function: Any, *rest: Any) -> Any:
        seen.append(function)
        return real(function, *rest)

    monkeypatch.setattr(choice, "measured", lambda *_: Decision(False, "measured: slower"))
    monkeypatch.setattr(whole, "run", run)
    monkeypatch.setattr(whole, "is_chosen", lambda function, x: type(x) in (torch.Tensor, nn.Parameter))
    yield seen
    kinds.forget()


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "convolution": (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 7, 5)),
    "with circular edges": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 7, 5)),
    "transposed": (nn.ConvTranspose1d(4, 6, 3, 2), (2, 4, 7)),
    "linear": (nn.Linear(5, 3), (2, 7, 5)),
    "batch norm": (nn.BatchNorm2d(4), (2, 4, 7, 5)),
    "layer norm": (nn.LayerNorm(5), (2, 7, 5)),
    "group norm": (nn.GroupNorm(2, 4), (2, 4, 7, 5)),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), (2, 4, 7, 5)),
    "pool": (nn.MaxPool2d(2), (2, 4, 7, 5)),
    "gelu": (nn.GELU(), (2, 7, 5)),
    "softmax": (nn.Softmax(1), (2, 7, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_later_calls_are_torchs_own(name: str, asked: list[Any]) -> None:
    torch.manual_seed(0)
    stock, shape = copy.deepcopy(LAYERS[name])
    ours = jt.convert(copy.deepcopy(stock))
    x = torch.randn(shape)
    for calls in range(4):
        y, expected = ours(x), stock(x)
        assert torch.equal(y, expected)
        if calls == 1:
            asked.clear()
    assert not asked
    for buffer, expected in zip(ours.buffers(), stock.buffers(), strict=True):
        assert torch.equal(buffer, expected)
    ours(x.requires_grad_())  # another kind
    assert asked


def test_what_is_remembered_is_of_its_kind(asked: list[Any]) -> None:
    layer = jt.convert(nn.Linear(5, 3))
    x = torch.randn(2, 7, 5)

    def looked_up(x: torch.Tensor) -> bool:
        asked.clear()
        y = layer(x)
        assert torch.equal(y, nn.functional.linear(x, layer.weight, layer.bias))
        return bool(asked)

    assert looked_up(x)
    assert looked_up(x)
    assert not looked_up(x)
    assert looked_up(x[:, ::2])
    with torch.no_grad():
        assert looked_up(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert looked_up(x)
        assert looked_up(x)
        assert not looked_up(x)
    with torch.autocast("cpu", torch.float16):
        assert looked_up(x)
    assert not looked_up(x)
    kinds.forget()
    assert looked_up(x)
    assert looked_up(x)
    assert not looked_up(x)
    assert [row.runs for row in jt.explain(layer, x).rows] == ["torch"]  # who watches is told


def test_many_calls_of_a_kind_are_trusted_until_something_else_comes(asked: list[Any]) -> None:
    layer = jt.convert(nn.Linear(5, 3))
    x, other = torch.randn(2, 7, 5), torch.randn(2, 5)

    def looked_up(x: torch.Tensor) -> bool:
        asked.clear()
        y = layer(x)
        assert torch.equal(y, nn.functional.linear(x, layer.weight, layer.bias))
        return bool(asked)

    for _ in range(40):
        layer(x)
    assert not looked_up(x)
    assert looked_up(other)  # of another shape: at once
    for _ in range(10):
        layer(x)
    with torch.no_grad():  # what the shape does not tell: not at each call, but after some
        looks = [looked_up(x) for _ in range(40)]
        assert any(looks)
        assert not looked_up(x)
    for _ in range(40):
        layer(x)
    kinds.forget()
    assert looked_up(x)
    assert [row.runs for row in jt.explain(layer, x).rows] == ["torch"]


def test_copies_remember_nothing(asked: list[Any]) -> None:
    layer = jt.convert(nn.Linear(5, 3))
    x = torch.randn(2, 7, 5)
    for _ in range(3):
        layer(x)
    assert layer.__dict__[STOCK_CALLS].entries
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert not other.__dict__[STOCK_CALLS].entries
        assert torch.equal(other(x), layer(x))
    assert STOCK_CALLS not in jt.revert(layer).__dict__


def test_ever_other_inputs_are_not_learnt_for_ever(asked: list[Any]) -> None:
    layer = jt.convert(nn.GELU())
    for size in range(1, 80):
        for _ in range(2):
            layer(torch.randn(size))
    assert len(layer.__dict__[STOCK_CALLS].entries) == 4
    assert layer.__dict__[STOCK_CALLS].learnt == 64
