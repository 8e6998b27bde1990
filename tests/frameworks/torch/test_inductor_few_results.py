"""Gradients of layers of few results that nobody writes down, in Inductor's graphs: which, and the same gradients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from inductor_graphs import compiled, count  # noqa: E402
from jitdnn.frameworks.torch import inductor_sums, inductor_values  # noqa: E402
from jitdnn.frameworks.torch.inductor_few_results import in_terms  # noqa: E402
from jitdnn.frameworks.torch.tail import computed  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs of this processor taken for large ones of a GPU."""
    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(run: Any, own: Any, x: Any, is_low: bool) -> list[Any]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        y = run(x)
    return [y, *torch.autograd.grad(y.float().square().mean(), [x, *own.parameters()])]


def apart(found: list[Any], exact: list[Any]) -> float:
    """How far tensors are from others, relative to these."""
    wide = [(one.double(), other.double()) for one, other in zip(found, exact, strict=True)]
    distance = sum(float((one - other).square().sum()) for one, other in wide)
    return (distance / sum(float(other.square().sum()) for _, other in wide)) ** 0.5


@pytest.mark.parametrize(
    ("last", "is_taken"),
    [
        (nn.Conv3d(12, 3, 1), True),
        (nn.Conv3d(12, 1, 1, bias=False), True),
        (nn.Conv3d(12, 5, 1), False),  # as many terms are no saving
        (nn.Conv3d(12, 3, 1, stride=2), False),
        (nn.Conv3d(12, 3, 3), False),
        (nn.Conv3d(12, 4, 1, groups=2), False),
    ],
)
@pytest.mark.parametrize("is_low", [True, False])
def test_layers(last: Any, is_taken: bool, is_low: bool) -> None:
    """Behind a normalization and a rectifier: both calls that read the gradient of the data compute it."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(3, 12)
    own = nn.Sequential(nn.Conv3d(8, 12, 3, padding=1, bias=False), norm, nn.LeakyReLU(0.01), last)
    own = own.to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, is_low)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, is_low)
    # without: of the last layer the data and the filter, of the first one the data and the filter
    convolutions = [count(graph, "settled_convolution") for graph in graphs]
    assert convolutions[1] == (3 if is_taken else 4)
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


@pytest.mark.parametrize("results", [1, 2, 4])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_terms_in_place_of_an_operand(place: int, results: int) -> None:
    steps = (
        '[["aten.mul.Tensor",["%0","%1"],{}],["aten.add.Tensor",["%3","%2"],{"alpha":2}],'
        '["aten.gt.Scalar",["%4",0],{}],["aten.where.self",["%5","%4","%1"],{}]]'
    )
    wide = [random(2, 4, 3, seed=seed) for seed in range(3)]
    pixels = [random(2, 1, 3, seed=10 + number) for number in range(results)]
    numbers = [random(1, 4, 1, seed=20 + number) for number in range(results)]
    total = sum(one * other for one, other in zip(pixels, numbers, strict=True))
    wanted = computed(steps, [*wide[:place], total, *wide[place + 1 :]])
    made = in_terms(steps, 3, place, results)
    assert len(json.loads(made)) == 4 + 2 * results - 1
    found = computed(made, [*wide[:place], *wide[place + 1 :], *pixels, *numbers])
    torch.testing.assert_close(found, wanted)
