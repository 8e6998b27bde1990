"""`torch.compile(model, backend="jitdnn")`: without gradients, with them, graph breaks, dynamic shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from jitdnn.errors import InvalidArgument  # noqa: E402
from jitdnn.frameworks.torch import backend as module  # noqa: E402
from jitdnn.frameworks.torch.backend import backend, register, with_convolutions  # noqa: E402
from jitdnn.torch import InductorPass  # noqa: E402
from torch_zoo import SMALL, settled  # noqa: E402

NEVER = {"measure": "never"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, nothing compiled before, and no C++ compiler, whose minutes would test Inductor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    monkeypatch.setattr(module, "has_compiler", lambda: False)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are run fused from here on."""
    made: list[Any] = []
    real = module.FusedGraph.__call__

    def call(self: Any, *arguments: Any) -> Any:
        made.append(self)
        return real(self, *arguments)

    monkeypatch.setattr(module.FusedGraph, "__call__", call)
    return made


def test_without_gradients_the_whole_graph_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    register()
    made = counting(monkeypatch)
    model = settled(SMALL["mobilenet_v2"]())
    compiled = torch.compile(model, backend="jitdnn", options=NEVER, fullgraph=True)
    with torch.no_grad():
        for batch in (1, 3, 2):  # from the second on shapes are symbolic
            x = torch.randn(batch, 3, 32, 32)
            close(compiled(x), model(x))
        model[0][0].weight.mul_(0.5)
        close(compiled(x), model(x))
    assert len(made) == 4
    assert len(set(map(id, made))) == 2


def test_with_gradients_convolutions_are_ours() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.ConvTranspose2d(3, 2, 2, 2), nn.Flatten()
    )
    stock = copy.deepcopy(model)
    seen: list[str] = []

    def watched(graph: Any, inputs: Any) -> Any:
        seen.append(with_convolutions(copy.deepcopy(graph), "measure=never").code)
        return backend(graph, inputs, options=NEVER)

    compiled = torch.compile(model, backend=watched, fullgraph=True)
    x = torch.randn(2, 2, 6, 6, requires_grad=True)
    y = compiled(x)
    y.square().sum().backward()
    gradient, x.grad = x.grad, None
    wanted = stock(x)
    wanted.square().sum().backward()
    close(y, wanted)
    close(gradient, x.grad)
    for one, other in zip(model.parameters(), stock.parameters(), strict=True):
        close(one.grad, other.grad)
    for one, other in zip(model.buffers(), stock.buffers(), strict=True):
        close(one, other)
    assert seen[0].count("jitdnn.convolution") == 2


def test_a_model_that_keeps_statistics_without_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    stock = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, options=NEVER)
    x = torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        close(compiled(x), stock(x))
    close(model[1].running_mean, stock[1].running_mean)


def test_a_graph_break_and_values_that_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.one(x))
            if y.sum() > 20.0:
                y = y * 2.0
            return self.two(y).view(y.shape[0], -1)

    made = counting(monkeypatch)
    model = Model().eval()
    compiled = torch.compile(model, backend=backend, options=NEVER)
    with torch.no_grad():
        for factor in (1e-3, 1e3):
            x = factor * torch.randn(1, 2, 8, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(made) >= 3


def test_what_is_off_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3)).eval()
    x = torch.randn(1, 1, 4, 4)
    with torch.no_grad():
        with pytest.raises(
            (InvalidArgument, torch._dynamo.exc.BackendCompilerFailed), match="there is no option"
        ):
            torch.compile(model, backend=backend, options={"speed": "high"})(x)
        monkeypatch.setenv("JITDNN_DISABLE", "1")
        made = counting(monkeypatch)
        close(torch.compile(model, backend=backend)(x), model(x))
    assert not made


def test_inductor_is_used_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    asked: list[Any] = []
    monkeypatch.setattr(module, "has_compiler", lambda: True)
    monkeypatch.setattr(
        compile_fx, "compile_fx", lambda graph, inputs, **named: asked.append(named) or graph.forward
    )
    model = nn.Sequential(nn.Conv2d(1, 1, 3))
    torch.compile(model, backend=backend, options={**NEVER, "mode": "max-autotune"})(torch.randn(1, 1, 4, 4))
    (named,) = asked
    assert named["config_patches"]["max_autotune"]
    assert isinstance(named["config_patches"]["post_grad_custom_pre_pass"], InductorPass)
