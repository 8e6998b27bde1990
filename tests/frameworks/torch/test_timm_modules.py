"""timm's own normalizations; where timm is not installed, classes that compute the same."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import steps  # noqa: E402
from jitdnn.frameworks.torch.batch_norm_modules import CONVERTED, REVERTED  # noqa: E402
from torch_kernels import agree, random, watched  # noqa: E402

nn = torch.nn
F = torch.nn.functional


class BatchNormAct2d(nn.BatchNorm2d):
    """In place of timm's."""

    def __init__(
        self, channels: int, act_layer: Any = nn.ReLU, apply_act: bool = True, drop_layer: Any = None
    ):
        super().__init__(channels)
        self.drop = nn.Identity() if drop_layer is None else drop_layer()
        self.act = act_layer(inplace=True) if apply_act else nn.Identity()

    def forward(self, x: Any) -> Any:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        y = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return self.act(self.drop(y))


@pytest.fixture(autouse=True)
def layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class, which `convert` finds where timm has it."""
    try:
        made: Any = import_module("timm.layers.norm_act").BatchNormAct2d
    except ImportError:
        made = BatchNormAct2d
        place: Any = ModuleType("timm.layers.norm_act")
        place.BatchNormAct2d = made
        monkeypatch.setitem(sys.modules, "timm.layers.norm_act", place)
    yield made
    forget(made)


def forget(made: Any) -> None:
    """Have the class as before `convert` has found it."""
    ours = CONVERTED.pop(made, None)
    if ours is not None:
        bypassed = steps.BYPASSED.pop(ours)
        for kinds, kind in ((REVERTED, ours), (REVERTED, bypassed), (steps.ACTIVE, bypassed)):
            kinds.pop(kind)


class LayerNorm(nn.LayerNorm):
    """In place of timm's."""

    _fast_norm = False

    def forward(self, x: Any) -> Any:
        if self._fast_norm:
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps) * 1
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """In place of timm's."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.fixture(params=["LayerNorm", "LayerNorm2d"])
def layers(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A class of layer normalization, and an input of six channels."""
    stand_ins = {"LayerNorm": LayerNorm, "LayerNorm2d": LayerNorm2d}
    try:
        place: Any = import_module("timm.layers.norm")
    except ImportError:
        place = ModuleType("timm.layers.norm")
        for name, one in stand_ins.items():
            setattr(place, name, one)
        monkeypatch.setitem(sys.modules, "timm.layers.norm", place)
    x = random(2, 6, 3, 4).contiguous(memory_format=torch.channels_last)
    yield getattr(place, request.param), x if request.param == "LayerNorm2d" else x.permute(0, 2, 3, 1)
    for name in stand_ins:
        forget(getattr(place, name))


def test_layer_normalizations(layers: Any) -> None:
    layer, x = layers
    stock = nn.Sequential(layer(6))
    with torch.no_grad():
        stock[0].weight.copy_(random(6, seed=1))
        stock[0].bias.copy_(random(6, seed=2))
    model, exact = jt.convert(copy.deepcopy(stock), measure="never"), copy.deepcopy(stock).double()
    assert type(model[0]) is CONVERTED[layer]
    assert isinstance(model[0], layer)
    for number in range(3):  # remembered
        with watched() as seen:
            y, dx = stepped(model, x)
        wanted, wide = stepped(exact, x.double())
        agree(y, wanted, torch.float32, "y")
        agree(dx, wide, torch.float32, "dx")
        assert y.stride() == x.stride()
        assert number or {kind.name for kind in seen if kind.decision.is_ours} == {"forward", "gradients"}
    with watched() as seen:
        model[0]._fast_norm = True
        agree(model(x), exact(x.double()), torch.float32, "by timm's own function")
        model[0]._fast_norm = False
        traced = torch.fx.symbolic_trace(model)
    assert not seen
    again = pickle.loads(pickle.dumps(model))
    assert type(again[0]) is type(model[0])
    steps._set(model, steps.STOCK)
    assert type(model[0]).forward is layer.forward
    for one in (traced, again, jt.revert(model)):
        torch.testing.assert_close(one(x), stock(x), rtol=1e-5, atol=1e-5)
    assert type(model[0]) is layer


def network(layer: Any, **named: Any) -> Any:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), layer(5, **named), nn.Conv2d(5, 2, 1))
    with torch.no_grad():
        made[1].weight.copy_(random(5, seed=1) * 4)
        made[1].bias.copy_(random(5, seed=2))
    return made


def stepped(model: Any, x: Any) -> Any:
    given = x.clone().requires_grad_()
    y = model(given)
    y.square().sum().backward()
    return y, given.grad


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.SiLU])
@pytest.mark.parametrize("measure", ["never", "first"])
def test_a_training_step_is_one_operation_and_timms(layer: Any, act: Any, measure: str) -> None:
    stock = network(layer, act_layer=act)
    model = jt.convert(copy.deepcopy(stock), measure=measure)
    assert type(model[1]) is CONVERTED[layer]
    assert isinstance(model[1], layer)
    exact = copy.deepcopy(stock).double()
    x = random(4, 3, 7, 6)
    for _ in range(3):  # chosen, remembered
        model.zero_grad(), exact.zero_grad()
        with watched() as seen:
            y, dx = stepped(model, x)
        wanted, wide = stepped(exact, x.double())
        agree(y, wanted, torch.float32, "y")
        agree(dx, wide, torch.float32, "dx")
    if measure == "never":
        assert [kind.name for kind in seen].count("gradients") == 1
    for (part, one), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        agree(one.grad, other.grad, torch.float32, part)
    for one, other in zip(model.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)
    model.eval(), exact.eval()
    agree(model(x), exact(x.double()), torch.float32, "in evaluation")


@pytest.mark.parametrize(
    "named", [{"apply_act": False}, {"drop_layer": lambda: nn.Dropout2d(0.5)}, {"act_layer": nn.Hardtanh}]
)
def test_what_is_not_one_operation(layer: Any, named: dict[str, Any]) -> None:
    stock = network(layer, **named)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(4, 3, 7, 6)
    torch.manual_seed(1)
    y, dx = stepped(model, x)
    torch.manual_seed(1)
    wanted, expected = stepped(stock, x)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dx, expected, rtol=1e-3, atol=1e-3)


def test_who_watches_sees_what_timm_gives(layer: Any) -> None:
    stock = network(layer)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(4, 3, 7, 6)
    seen: list[Any] = []
    for one in ("", "act"):
        seen.clear()
        for each in (stock, model):
            part = each[1].get_submodule(one)
            hook = part.register_forward_hook(lambda module, args, y: seen.append(y.detach().clone()))
            each(x)
            hook.remove()
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-5, atol=1e-5)


def test_there_and_back(layer: Any) -> None:
    stock = network(layer)
    model = jt.convert(copy.deepcopy(stock))
    x = random(4, 3, 7, 6)
    traced, compiled = (
        torch.fx.symbolic_trace(model),
        torch.compile(model, backend="aot_eager", fullgraph=True),
    )
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), traced, compiled):
        torch.testing.assert_close(one(x), copy.deepcopy(stock)(x), rtol=1e-4, atol=1e-4)
    steps._set(model, steps.STOCK)
    assert type(model[1]).forward is layer.forward
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    again = torch.load(kept, weights_only=False)
    assert type(again[1]) is type(model[1])
    jt.revert(model)
    assert [type(one) for one in model.modules()] == [type(one) for one in stock.modules()]
    assert vars(model[1]).keys() == vars(stock[1]).keys()
