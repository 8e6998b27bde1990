"""Gradients of maxima over volumes in Inductor's graphs, element by element."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

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
