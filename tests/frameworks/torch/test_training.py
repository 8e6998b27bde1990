"""A small network learns the packaged digits by ours as it does by torch's kernels."""

from __future__ import annotations

import copy
from importlib.resources import files

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from torch_kernels import watched  # noqa: E402

nn = torch.nn
STEPS, BATCH = 200, 16


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 16, 3), nn.MaxPool2d(2), nn.GELU(),
        nn.Flatten(), nn.LayerNorm(400), nn.Linear(400, 10),
    )  # fmt: skip


def losses(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    found = []
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def digits(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    with files("jitdnn").joinpath("data/mnist_5k.npz").open("rb") as file, np.load(file) as data:
        images = torch.from_numpy(data["train_data"][: STEPS * BATCH].astype(np.float32) / 255)
        labels = torch.from_numpy(data["train_label"][: STEPS * BATCH].astype(np.int64))
    return images.to(dtype), labels


def test_the_same_losses_in_double_precision() -> None:
    """All 200 of them: what is apart at first is a rounding, which no step makes large."""
    images, labels = digits(torch.float64)
    stock = network().double()
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    with watched() as seen:
        found = losses(ours, images, labels)
    expected = losses(stock, images, labels)
    assert all(kind.decision.is_ours for kind in seen)
    # seen: 5e-14; 1e-16 at first, and each step multiplies what is apart by the curvature that it meets
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert np.mean(found[-40:]) < 0.3 * np.mean(found[:10])


def test_the_same_losses() -> None:
    images, labels = digits(torch.float32)
    stock = network()
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    with watched() as seen:
        found = losses(ours, images, labels)
    expected = losses(stock, images, labels)
    assert all(kind.decision.is_ours for kind in seen)
    assert {"forward", "data", "filter", "gradients"} <= {kind.name for kind in seen}
    # Sums in another order round otherwise, by 1e-7; each step multiplies what is apart by the curvature that
    # it meets. With this small step it stays below 1e-3 for 50 of them (five times the step parts after 40, as
    # runs of torch with other threads do); in the end only the level of the loss is the same.
    np.testing.assert_allclose(found[:50], expected[:50], rtol=1e-3, atol=1e-4)
    last, torchs_last = np.mean(found[-40:]), np.mean(expected[-40:])
    assert last < 0.3 * np.mean(found[:10])
    assert abs(last - torchs_last) < 0.2 * torchs_last
