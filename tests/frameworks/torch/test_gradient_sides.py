"""How the benchmark of training tells rounding from errors: float64 on the sides that float32 took."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from paths import ROOT


@pytest.fixture(scope="module")
def sides() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("torch_gradients")
    finally:
        sys.path.pop(0)


class Rounded(nn.Conv2d):
    """A convolution that is a little off."""

    error = 0.0

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        return y + self.error * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(Rounded(3, 16, 3, padding=1), nn.ReLU(inplace=True)),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU6()),
        nn.Flatten(),
        nn.Linear(8 * 14 * 14, 10),
    )


def step(model: nn.Module, x: Tensor, labels: Tensor) -> None:
    F.cross_entropy(model(x), labels).backward()


def compared(sides: Any, model: nn.Module, own: nn.Module) -> tuple[float, float, float]:
    """How far the gradients of `own` are from float64's, from float64's on its own sides, and the farthest of those."""
    x, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    with sides.watched(own) as taken:
        step(own, 3 * x, labels)
    assert sorted(taken) == ["0.1", "1", "2.2"]
    exact, far = sides.replayed(model, taken, 3 * x, labels)
    plain = copy.deepcopy(model).double()
    step(plain, 3 * x.double(), labels)
    found = sides.gradients(own)
    errors = [float((found - one).norm() / one.norm()) for one in (sides.gradients(plain), exact)]
    return errors[0], errors[1], far


def test_rounding_that_moves_elements_across_a_kink_is_told_from_errors(sides: Any) -> None:
    model, own = net(), net()
    own[0][0].error = 3e-5  # type: ignore[index, assignment]
    plain, replayed, far = compared(sides, model, own)
    assert plain > 10 * replayed, "no element changed sides: the test says nothing"
    assert replayed < 1e-4  # three times the error of the layer that is off
    assert 0 < far < sides.NEAR


def test_exact_steps_are_the_same_either_way(sides: Any) -> None:
    plain, replayed, far = compared(sides, net(), net().double().float())
    assert replayed <= plain < 1e-5
    assert far < 1e-6


def test_wrong_gradients_are_wrong_on_the_same_sides(sides: Any) -> None:
    model, own = net(), net()
    own[2][0].register_full_backward_hook(lambda _, given, __: (1.01 * given[0],))  # type: ignore[index]
    assert compared(sides, model, own)[1] > 1e-3


@pytest.mark.parametrize("place", [0, 2])
def test_rectifiers_that_cut_off_what_they_should_not_are_found(sides: Any, place: int) -> None:
    model, own = net(), net()
    wrong = nn.ReLU() if place == 0 else nn.ReLU6()
    wrong.forward = lambda x: (x - 0.01).clamp(0.0, 6.0)  # type: ignore[method-assign]
    own[place][-1] = wrong  # type: ignore[index]
    assert compared(sides, model, own)[2] > sides.NEAR
