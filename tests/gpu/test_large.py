"""Tensors of more than 2^31 elements: every offset needs 64 bits. On a GPU with room for them, held by PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest

import jitdnn as jd
from jitdnn.devices import cuda
from memory_lock import alone_on_the_gpu

MANY = 2**31 + 77
NEEDED = 16 << 30
"""Bytes: an operand and its result, or two results that are compared, and what a comparison makes in between."""
WORKSPACE = "8 GiB"


@pytest.fixture
def torch() -> Any:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    torch = pytest.importorskip("torch")
    with alone_on_the_gpu():  # the memory is enough for one
        free, total = torch.cuda.mem_get_info()
        if free < NEEDED:
            pytest.skip(f"{NEEDED >> 30} GiB of free GPU memory are needed")
        torch.cuda.set_per_process_memory_fraction(NEEDED / total)
        yield torch
        torch.cuda.set_per_process_memory_fraction(1.0)


def poisoned(torch: Any, shape: tuple[int, ...]) -> Any:
    return torch.full(shape, math.nan, dtype=torch.bfloat16, device="cuda")


def is_finite(torch: Any, y: Any) -> bool:
    """In pieces, for which little memory is needed."""
    return all(bool(torch.isfinite(piece).all()) for piece in y.view(-1).split(2**27))


def test_elementwise(torch: Any) -> None:
    x = torch.empty(MANY, dtype=torch.bfloat16, device="cuda").normal_()
    y = poisoned(torch, (MANY,))
    jd.relu(x, out=y)
    assert torch.equal(y, x.relu_())


def test_rows(torch: Any) -> None:
    x = torch.empty((MANY // 4096 + 1, 4096), dtype=torch.bfloat16, device="cuda").normal_()
    y = poisoned(torch, tuple(x.shape))
    jd.softmax(x, axis=1, out=y)
    assert is_finite(torch, y)
    for rows in (slice(0, 64), slice(-64, None)):
        expected = torch.softmax(x[rows].float(), 1)
        assert float((y[rows].float() - expected).norm() / expected.norm()) < 4e-3


def test_pooling(torch: Any) -> None:
    x = torch.empty((33, 64, 1024, 1024), dtype=torch.bfloat16, device="cuda").normal_()
    y = poisoned(torch, (33, 64, 512, 512))
    jd.max_pool(x, 2, stride=2, out=y)
    assert torch.equal(y, torch.nn.functional.max_pool2d(x, 2, 2))


@pytest.mark.parametrize(
    ("shape", "filters", "options"),
    [
        ((50000, 8, 3840), (16, 1, 1), {"groups": 8}),
        ((33, 64, 1024, 1024), (64, 1, 3, 3), {"groups": 64, "padding": 1}),
        ((2100, 16, 256, 256), (16, 16, 3, 3), {"padding": 1}),
    ],
    ids=["grouped 1x1", "depthwise", "dense"],
)
def test_convolution(torch: Any, shape: Any, filters: Any, options: Any) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
    w = torch.empty(filters, dtype=torch.bfloat16, device="cuda").normal_()
    y = poisoned(torch, (shape[0], filters[0], *shape[2:]))
    jd.conv(x, w, out=y, workspace_limit=WORKSPACE, **options)
    assert y.numel() > 2**31
    assert is_finite(torch, y)
    reference = torch.nn.functional.conv1d if len(shape) == 3 else torch.nn.functional.conv2d
    for images in (slice(0, 2), slice(-2, None)):
        # on the processor: cuDNN may take tens of GiB to be faster
        expected = reference(x[images].float().cpu(), w.float().cpu(), **options)
        assert float((y[images].float().cpu() - expected).norm() / expected.norm()) < 4e-3
