"""Convolutions whose results are summed as they leave, in Inductor's graphs: which, and the same gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from inductor_graphs import compiled, count  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidShape  # noqa: E402
from jitdnn.frameworks.torch import (  # noqa: E402
    convolution_sums,
    inductor_convolution_sums,
    inductor_sums,
    inductor_values,
)
from jitdnn.frameworks.torch.settled import text_of  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs of this processor taken for large ones of a GPU, and its kernels for one each."""
    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    monkeypatch.setattr(inductor_convolution_sums, "_FREE", ("separate_kernels", "reference"))
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
    "norm",
    [nn.BatchNorm3d(12), nn.InstanceNorm3d(12, affine=True), nn.InstanceNorm3d(12), nn.GroupNorm(3, 12)],
    ids=lambda one: type(one).__name__,
)
def test_layers(norm: Any) -> None:
    """The statistics come with the convolution, of the batch, of images and of groups of channels."""
    torch.manual_seed(0)
    own = nn.Sequential(
        nn.Conv3d(8, 12, 3, padding=1, bias=False), norm, nn.LeakyReLU(0.01), nn.Conv3d(12, 8, 3)
    )
    own = own.to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, True)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, True)
    assert [count(graph, "convolution_sums") for graph in graphs] == [1, 0]
    assert count(graphs[0], "channel_sums") == count(graphs[0], "var_mean") == 0
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


@pytest.mark.parametrize(
    ("layer", "is_low"),
    [
        (nn.Conv3d(8, 12, 3, bias=False), False),  # of f32, whose variances are to be as exact
        (nn.Conv3d(8, 12, 3, stride=2, bias=False), True),
        (nn.Conv3d(8, 12, 3), True),  # a bias comes between
    ],
)
def test_what_stays(layer: Any, is_low: bool) -> None:
    own = nn.Sequential(layer, nn.InstanceNorm3d(12)).to(memory_format=torch.channels_last_3d)
    run, graphs, _ = compiled(own)
    gradients(run, own, random(2, 8, 9, 9, 9).contiguous(memory_format=torch.channels_last_3d), is_low)
    assert count(graphs[0], "convolution_sums") == 0


@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operator(dtype: Any, by_image: bool) -> None:
    """The result and its sums; operands in another order of memory than the text says are laid out."""
    x, w = random(3, 4, 9, 8).to(dtype), random(5, 4, 3, 3).to(dtype)
    last = x.contiguous(memory_format=torch.channels_last)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    text = convolution_sums.text_of(text_of("forward", last, w, None, False, geometry, ""), by_image)
    y, sums = torch.ops.jitdnn.convolution_sums(x, w, text)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    axes = (2, 3) if by_image else (0, 2, 3)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    totals = torch.stack([expected.sum(axes), expected.square().sum(axes)]).view(sums.shape)
    assert tuple(sums.shape) == (2, 3 if by_image else 1, 5)
    assert sums.dtype is torch.float32
    assert float((sums.double() - totals).norm() / totals.norm()) < tolerance
    torch.library.opcheck(
        torch.ops.jitdnn.convolution_sums.default,
        (last, w, text),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_text_that_says_nothing() -> None:
    x, w = random(1, 2, 4), random(2, 2, 1)
    geometry = ([1], [0], [1], False, [0], 1)
    good = text_of("forward", x, w, None, False, geometry, "")
    with pytest.raises(InvalidShape):
        torch.ops.jitdnn.convolution_sums(random(1, 2, 5), w, convolution_sums.text_of(good, True))
    for text in ("", good, repr((good, 1, 2)), repr((good.replace("forward", "data"), True))):
        with pytest.raises(InvalidArgument, match="convolution_sums"):
            torch.ops.jitdnn.convolution_sums(x, w, text)
