"""Training steps as CUDA graphs, beside the same model's own steps."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import step_graphs  # noqa: E402
from torch_kernels import random  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")

nn = torch.nn
X = [random(8, 8, 12, 10).to("cuda").contiguous(memory_format=torch.channels_last) for _ in range(4)]


def network(*more: Any) -> Any:
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True)),
        nn.Sequential(nn.Conv2d(16, 16, 3, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        nn.MaxPool2d(2), nn.Flatten(), *more, nn.Linear(16 * 5 * 4, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)


def train(model: Any, count: int, is_cast: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses = []
    for number in range(count):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_cast):
            loss = model(X[number % len(X)]).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def reasons(model: Any) -> list[str]:
    found = step_graphs.of(model)
    assert found is not None
    return found.reasons


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("measure", ["first", "never"])
def test_steps_are_those_of_the_model_itself(is_cast: bool, measure: str) -> None:
    stock = network()
    ours = jt.convert(copy.deepcopy(stock), graphs=True, measure=measure)
    expected = train(stock, 16, is_cast)
    assert train(ours, 16, is_cast) == pytest.approx(expected, rel=3e-2 if is_cast else 1e-3)
    assert reasons(ours) == ["captured as CUDA graphs"]
    assert [*ours.state_dict()] == [*stock.state_dict()]
    for one, other in zip(ours.buffers(), stock.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2 if is_cast else 1e-3, atol=1e-2 if is_cast else 1e-4)
    with torch.no_grad():
        torch.testing.assert_close(ours(X[0]), stock(X[0]), rtol=5e-2, atol=5e-2 if is_cast else 1e-2)


def test_replays_draw_other_numbers() -> None:
    model = jt.convert(network(nn.Dropout(0.5)), graphs=True, measure="never")
    found = [model(X[0]).detach() for _ in range(9)]
    assert reasons(model) == ["captured as CUDA graphs"]
    assert not torch.equal(found[-1], found[-2])


def test_finalizers_that_wait_for_the_gpu_run_behind_a_capture() -> None:
    """What the collector of cycles finds is whoever's, and may do whatever."""
    ended: list[bool] = []

    class Waits:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(torch.cuda.is_current_stream_capturing())
            torch.cuda.synchronize()

    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any) -> Any:
            Waits()
            return self.net(x)

    model = jt.convert(Leaves(), graphs=True, measure="never")
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        train(model, 10, False)
    finally:
        gc.set_threshold(*before)
    assert reasons(model) == ["captured as CUDA graphs"]
    assert ended
    assert not any(ended)


def test_steps_that_wait_for_the_gpu_run_layer_by_layer() -> None:
    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return y if float(y.detach().sum()) > 1e30 else 2 * y

    stock = Waits()
    ours = jt.convert(copy.deepcopy(stock), graphs=True, measure="never")
    expected = train(
        jt.convert(stock, measure="never"), 9, False
    )  # the same kernels: PyTorch's own may round to tf32
    assert train(ours, 9, False) == pytest.approx(expected, rel=1e-4)
    assert reasons(ours) == ["runs layer by layer: forward waits for the GPU"]
    again = jt.convert(network(), graphs=True, measure="never")
    assert train(again, 9, False) == pytest.approx(train(network(), 9, False), rel=1e-3)
    assert reasons(again) == ["captured as CUDA graphs"]


def test_memory_of_graphs_is_given_back() -> None:
    model = jt.convert(network(), graphs=True, measure="never")
    train(model, 8, False)
    assert reasons(model) == ["captured as CUDA graphs"]
    before = torch.cuda.memory_allocated()
    jt.revert(model)
    assert torch.cuda.memory_allocated() < before  # inputs, results and gradients at least
