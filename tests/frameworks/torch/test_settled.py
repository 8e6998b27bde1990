"""`torch.ops.jitdnn.settled_convolution`: the three directions against PyTorch's, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.torch import operators, settled
from jitdnn.frameworks.torch.settled import text_of

run = operators.settled_convolution.default
GEOMETRIES = [
    ((2, 6, 9, 7), (4, 6, 3, 3), ([2, 1], [1, 0], [1, 2], False, [0, 0], 1)),
    ((3, 6, 8), (9, 2, 3), ([1], [2], [1], False, [0], 3)),
    ((1, 4, 5, 6, 4), (5, 4, 2, 1, 3), ([1, 1, 2], [0, 0, 1], [1, 1, 1], False, [0, 0, 0], 1)),
    ((2, 1, 1, 7), (3, 1, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(x: Tensor, w: Tensor, bias: Tensor | None, dy_of: Any, geometry: Any) -> tuple[Tensor, ...]:
    """y, dx and dw in double precision, for a gradient of y that `dy_of` makes."""
    wide = [t.double().requires_grad_() for t in (x, w)]
    y = torch.ops.aten.convolution.default(*wide, None if bias is None else bias.double(), *geometry)
    dy = dy_of(y.shape)
    return (y.detach(), *torch.autograd.grad(y, wide, dy.double()))


@pytest.mark.parametrize(("x_shape", "w_shape", "geometry"), GEOMETRIES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_three_directions(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: Any, has_bias: bool, is_last: bool
) -> None:
    x, w, bias = random(*x_shape), random(*w_shape, seed=1), random(w_shape[0], seed=2) if has_bias else None
    if is_last:
        if x.dim() != 4:
            pytest.skip("channels last is an order of four axes here")
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    dys: list[Tensor] = []

    def dy_of(shape: torch.Size) -> Tensor:
        dys.append(random(*shape, seed=3))
        return dys[0]

    y, dx, dw = expected(x, w, bias, dy_of, geometry)
    (dy,) = dys
    for _ in range(2):  # prepared, and again
        found = run(x, w, bias, text_of("forward", x, w, None, has_bias, geometry, "measure=never"))
        torch.testing.assert_close(found.double(), y, rtol=1e-4, atol=1e-4)
        if not x.is_contiguous():
            assert found.is_contiguous(memory_format=torch.channels_last)
        found = run(dy, w, None, text_of("data", x, w, dy, False, geometry, "measure=never"))
        torch.testing.assert_close(found.double(), dx, rtol=1e-4, atol=1e-4)
        assert found.stride() == torch.empty_like(x).stride()
        found = run(x, dy, None, text_of("filter", x, w, dy, False, geometry, "measure=never"))
        torch.testing.assert_close(found.double(), dw, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("options", ["measure=never", "measure=never;total_workspace=1MiB"])
def test_a_transposed_convolution_into_some_channels(options: str, has_bias: bool) -> None:
    """The result lies as the text says, here as the first channels of a tensor with more; also into that tensor."""
    x, w, bias = random(2, 6, 4, 5), random(6, 3, 2, 2, seed=1), random(3, seed=2) if has_bias else None
    whole = torch.zeros(2, 7, 8, 10).contiguous(memory_format=torch.channels_last)
    y = whole[:, :3]
    text = text_of("transposed", y, w, x, has_bias, ([2, 2], [0, 0], [1, 1], False, [0, 0], 1), options)
    wanted = torch.nn.functional.conv_transpose2d(
        x.double(), w.double(), None if bias is None else bias.double(), 2
    )
    for _ in range(2):
        found = run(x, w, bias, text)
        assert found.stride() == y.stride()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    if bias is None:
        settled.launch(x, w, text, out=y)
    else:
        settled.launch_with_bias(x, w, bias, text, out=y)
    assert torch.equal(y, found)
    assert not whole[:, 3:].any()


def test_operands_that_lie_otherwise_are_copied() -> None:
    x, w, bias = random(2, 4, 6, 5), random(3, 4, 3, 3, seed=1), random(6, seed=2)[::2]
    text = text_of("forward", x, w, None, True, (*GEOMETRIES[0][2][:5], 1), "measure=never")
    y = run(x, w, bias.contiguous(), text)
    assert torch.equal(run(x.contiguous(memory_format=torch.channels_last), w, bias, text), y)


def test_a_sum_of_workspaces_goes_by_the_general_operators() -> None:
    x, w, dy = random(2, 4, 6, 5), random(3, 4, 3, 3, seed=1), random(2, 3, 4, 3, seed=2)
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    for options in ("measure=never", "measure=never;total_workspace=1MiB"):
        y = run(x, w, None, text_of("forward", x, w, None, False, geometry, options))
        dx = run(dy, w, None, text_of("data", x, w, dy, False, geometry, options))
        dw = run(x, dy, None, text_of("filter", x, w, dy, False, geometry, options))
        wanted = expected(x, w, None, lambda shape: dy, geometry)
        for found, want in zip((y, dx, dw), wanted, strict=True):
            torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-4)


def test_what_was_not_compiled_for_is_refused() -> None:
    x, w = random(2, 4, 6, 5), random(3, 4, 3, 3, seed=1)
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    text = text_of("forward", x, w, None, False, geometry, "")
    with pytest.raises(InvalidShape, match=r"compiled for \(2, 4, 6, 5\)"):
        run(random(1, 4, 6, 5), w, None, text)
    with pytest.raises(InvalidArgument, match="bias False"):
        run(x, w, random(3), text)
    with pytest.raises(InvalidArgument, match=r"torch\.float64"):
        run(x.double(), w.double(), None, text)
    for wrong in (
        "",
        "nonsense(",
        "(1, 2)",
        text.replace("forward", "sideways"),
        text.replace("float32", "flat"),
    ):
        with pytest.raises(InvalidArgument, match="no text of"):
            run(x, w, None, wrong)


def test_fake_tensors_and_the_real_ones_have_one_form() -> None:
    x, w = random(2, 6, 9, 7).contiguous(memory_format=torch.channels_last), random(4, 6, 3, 3, seed=1)
    geometry = GEOMETRIES[0][2]
    text = text_of("forward", x, w, None, False, geometry, "measure=never")
    torch.library.opcheck(run, (x, w, None, text))
