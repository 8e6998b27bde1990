"""Converted modules against those of PyTorch: normalization and its statistics, pools, activations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

nn = torch.nn


def pair(module: Any) -> tuple[Any, Any]:
    return jt.convert(copy.deepcopy(module), measure="never"), module


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"momentum": None},
        {"momentum": 0.0},
        {"track_running_stats": False},
        {"affine": False},
        {"affine": False, "track_running_stats": False, "eps": 1e-2},
    ],
)
def test_batch_norm_keeps_torchs_state(named: dict[str, Any]) -> None:
    ours, stock = pair(nn.BatchNorm2d(3, **named))
    for step in range(3):
        x = random(2, 3, 4, 5, seed=step) * 2 + 1
        with all_ours("forward"):
            close(ours(x), stock(x))
    assert list(ours.state_dict()) == list(stock.state_dict())
    for name, value in stock.state_dict().items():
        close(ours.state_dict()[name], value)
    ours.eval(), stock.eval()
    x = random(1, 3, 4, 5)
    close(ours(x), stock(x))
    if stock.track_running_stats:
        close(ours(x[:, :, :1, :1]), stock(x[:, :, :1, :1]))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (4, 3)), (nn.BatchNorm1d, (2, 3, 5)), (nn.BatchNorm3d, (2, 3, 2, 2, 3))],
)
def test_batch_norm_of_other_ranks(kind: Any, shape: Any) -> None:
    ours, stock = pair(kind(3))
    x, dy = random(*shape), random(*shape, seed=5)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    with all_ours("forward", "gradients"):
        ours(mine).backward(dy)
    stock(theirs).backward(dy)
    close(mine.grad, theirs.grad)
    for one, other in zip(ours.parameters(), stock.parameters(), strict=True):
        close(one.grad, other.grad)
    close(dict(ours.named_buffers()), dict(stock.named_buffers()))


def test_batch_norm_refuses_what_torch_refuses() -> None:
    ours, stock = pair(nn.BatchNorm2d(3))
    for x, error in (
        (random(1, 3, 1, 1), ValueError),
        (random(2, 3), ValueError),
        (random(2, 4, 3, 3), RuntimeError),
    ):
        before = [one.clone() for one in ours.buffers()][:2]
        for module in (stock, ours):
            with pytest.raises(error):
                module(x)
        assert all(torch.equal(one, other) for one, other in zip(before, ours.buffers(), strict=False))


def test_batch_norm_in_evaluation_has_torchs_gradients() -> None:
    ours, stock = pair(nn.BatchNorm2d(3).eval())
    x = random(2, 3, 4, 4)
    found, expected = (torch.autograd.grad(one(x).square().sum(), one.parameters()) for one in (ours, stock))
    close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision(dtype: Any) -> None:
    """Whoever runs what, values, gradients and statistics are torch's."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(16),
        nn.Linear(16, 3),
    )
    ours, stock = pair(model.to(dtype))
    x = random(2, 3, 6, 6, dtype=dtype)
    with watched() as seen:
        y = ours(x)
        y.sum().backward()
    expected = stock(x)
    expected.sum().backward()
    assert any(kind.decision.is_ours for kind in seen)
    assert y.dtype == dtype
    # two rounded models: a value before a normalization that is off by one rounding moves those behind it
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)
    for one, other in zip(ours.parameters(), stock.parameters(), strict=True):
        assert one.grad.dtype == dtype
        assert one.grad.isfinite().all()
        assert one.grad.shape == other.grad.shape


@pytest.mark.parametrize("named", [{}, {"elementwise_affine": False}, {"bias": False}])
def test_layer_norm(named: dict[str, Any]) -> None:
    ours, stock = pair(nn.LayerNorm((3, 5), **named))
    x = random(4, 3, 5)
    with watched() as seen:
        close(ours(x), stock(x))
    assert bool(seen) is ("bias" not in named)  # ours has both parameters or none
    found, expected = (
        torch.autograd.grad(one(x.requires_grad_()).square().sum(), x)[0] for one in (ours, stock)
    )
    close(found, expected)


@pytest.mark.parametrize(
    ("module", "shape", "runs"),
    [
        (nn.MaxPool2d(3, 2, 1, return_indices=True), (2, 3, 7, 7), False),
        (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 7, 8), True),
        (nn.MaxPool1d(2), (2, 3, 7), True),
        (nn.MaxPool3d((1, 2, 2)), (1, 2, 3, 4, 4), True),
        (nn.AvgPool2d(2, divisor_override=3), (2, 3, 6, 6), False),
        (nn.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 3, 7), True),
        (nn.AvgPool3d(2), (1, 2, 4, 4, 4), True),
        (nn.GELU("tanh"), (3, 5), True),
        (nn.GELU(), (3, 5), True),
        (nn.SiLU(inplace=True), (3, 5), False),
        (nn.SiLU(), (3, 5), True),
        (nn.Mish(), (3, 5), True),
        (nn.Hardswish(), (3, 5), True),
        (nn.Hardswish(inplace=True), (3, 5), False),
        (nn.Tanh(), (3, 5), True),
        (nn.Sigmoid(), (3, 5), True),
    ],
)
def test_pools_and_activations(module: Any, shape: Any, runs: bool) -> None:
    ours, stock = pair(module)
    given = [random(*shape), random(*shape)]
    with watched() as seen:
        found, expected = ours(given[0]), stock(given[1])
    close(found, expected)
    assert [kind.decision.is_ours for kind in seen] == [True] * runs
    close(*given)  # what works in place does so
