"""Operators of PyTorch's in fused graphs whose operands lie otherwise than when the graph was captured."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from jitdnn.frameworks.torch.fused import fuse  # noqa: E402


class Attending(nn.Module):
    """The attention of a block of a U-Net, with the normalization of the next block behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.norm = nn.Linear(3, 8), nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, h, w = x.shape
        rows = self.mixing(x.permute(0, 2, 3, 1)).reshape(n, 1, h * w, 8)
        rows = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        y: torch.Tensor = self.norm(rows.squeeze(1).transpose(1, 2).reshape(n, 8, h, w))
        return y


@pytest.mark.parametrize("batch", [1, 2])
def test_a_group_norm_of_what_lies_otherwise_than_when_captured(batch: int) -> None:
    model, x = Attending().eval(), torch.randn(batch, 3, 4, 5)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(fuse(model, measure="never")(x), expected)


def test_attention_to_what_lies_otherwise_than_when_captured() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.layer_norm(x.permute(0, 2, 3, 1), (1,)).permute(0, 3, 1, 2)
            rows = torch.cat([y, y], 1).flatten(2).transpose(1, 2).unsqueeze(1)
            return nn.functional.scaled_dot_product_attention(rows, rows, rows)

    model, x = Twice().eval(), torch.randn(3, 1, 6, 11)
    with torch.no_grad():
        torch.testing.assert_close(fuse(model, measure="never")(x), model(x))


@pytest.mark.parametrize("by", ["as_strided", "view_as_complex"])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_operators_that_read_strides_have_those_of_the_capture(order: Any, by: str) -> None:
    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixing = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mixing(x)
            if by == "as_strided":
                return torch.as_strided(y, (2, 8, 63), (504, 63, 1)) + 1
            return torch.view_as_complex(y.permute(0, 2, 3, 1).unflatten(-1, (4, 2)).contiguous()).abs()

    model, x = Strided().eval(), torch.randn(2, 8, 7, 9).contiguous(memory_format=order)
    with torch.no_grad():
        for measure in ("never", "first"):  # by which channels are innermost, or as they are measured
            torch.testing.assert_close(fuse(model, measure=measure)(x), model(x))
