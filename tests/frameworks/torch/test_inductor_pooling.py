"""Gradients of maxima over volumes in Inductor's graphs, element by element."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import as_on_gpus, compiled, count  # noqa: E402
from jitdnn.frameworks.torch import inductor_pooling  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
on_gpu = as_on_gpus(inductor_pooling)


def gradients(run: Any, x: Any, dy: Any) -> Any:
    return torch.autograd.grad(run(x.requires_grad_()), x, dy)[0]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("windows", [(2, 2, 2), (1, 3, 2)])
def test_windows_that_divide_the_volume(windows: tuple[int, int, int], order: Any) -> None:
    """The same numbers, at the first of equal maxima and at NaN, too."""
    sizes = [size * of for size, of in zip((3, 2, 5), windows, strict=True)]
    x = random(2, 3, *sizes).mul(2).round().contiguous(memory_format=order)
    x[0, 0, 0, 0, 0] = float("nan")
    dy = random(2, 3, 3, 2, 5)
    pool = nn.MaxPool3d(windows)
    run, graphs, _ = compiled(pool)
    got, wanted = gradients(run, x.clone(), dy), gradients(pool, x.clone(), dy)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    assert count(graphs[1], "max_pool3d") == 0


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("windows", [(2, 2, 2), (1, 3, 2), (3, 3, 3)])
def test_behind_a_skip_connection(windows: tuple[int, int, int], order: Any) -> None:
    """Another gradient is added: one place of the windows after another, where those are few."""
    sizes = [size * of for size, of in zip((3, 2, 5), windows, strict=True)]
    x = random(2, 3, *sizes).mul(2).round().contiguous(memory_format=order)
    x[0, 0, 0, 0, 0] = float("nan")
    other, dy = random(2, 3, *sizes, seed=1).contiguous(memory_format=order), random(2, 3, 3, 2, 5)

    def function(x: Any) -> tuple[Any, Any]:
        y = x * 2.0
        return nn.functional.max_pool3d(y, windows), y * other

    def both(run: Any) -> Any:
        given = x.clone().requires_grad_()
        return torch.autograd.grad(run(given), given, [dy, torch.ones_like(other)])[0]

    run, graphs, _ = compiled(function, saves_least=True)
    torch.testing.assert_close(both(run), both(function), rtol=0, atol=0, equal_nan=True)
    assert count(graphs[1], "interleave") == (windows != (3, 3, 3))
    assert count(graphs[1], "max_pool3d") == 0


def test_inductors_code_behind_a_skip_connection() -> None:
    """One kernel, and what was saved of the places of maxima lies as they are read: with channels last."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv3d(3, 4, 1), nn.InstanceNorm3d(4)).to(memory_format=torch.channels_last_3d)
    below = nn.Conv3d(4, 4, 3, padding=1).to(memory_format=torch.channels_last_3d)
    x = random(2, 3, 4, 6, 8).contiguous(memory_format=torch.channels_last_3d)

    def function(x: Any) -> Any:
        y = nn.functional.leaky_relu(own(x), 0.1)
        return below(nn.functional.max_pool3d(y, 2)).square().mean() + (y * y).mean()

    def gradient(run: Any) -> Any:
        return torch.autograd.grad(run(x), list(own.parameters()))

    run = torch.compile(function, options={"post_grad_custom_pre_pass": jt.InductorPass(measure="never")})
    with config.patch(fx_graph_cache=False):
        found, (forward, backward) = run_and_get_code(lambda: gradient(run))
    for one, other in zip(found, gradient(function), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert "(2, 4, 2, 3, 4), (96, 1, 48, 16, 4), torch.int8" in forward
    assert backward.count("# alias") == 8


@pytest.mark.parametrize("options", [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}])
def test_what_is_left_to_pytorch(options: dict[str, Any]) -> None:
    """Windows that overlap, that are read beyond the volume, and those of a volume that they do not divide."""
    x = random(2, 3, 5, 6, 7)
    pool = nn.MaxPool3d(2, **options)
    run, graphs, _ = compiled(pool)
    dy = random(*pool(x).shape)
    got, wanted = gradients(run, x.clone(), dy), gradients(pool, x.clone(), dy)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert count(graphs[1], "max_pool3d") == 1
