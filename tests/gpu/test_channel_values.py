"""Programs over rows of `jitdnn::channel_values`: what formulas make of tensors and numbers of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch.channel_values import Values  # noqa: E402
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides  # noqa: E402
from jitdnn.frameworks.torch.tail import computed  # noqa: E402
from jitdnn.kernels.tables import rows_kernel  # noqa: E402

#: (x - a) * b * b - (y if y > c * 0.125 else 0.1 * y), where c is a product of numbers of channels by itself
GRADIENT = (
    '[["aten.sub.Tensor",["%0","%2"],{}],["aten.mul.Tensor",["%3","%3"],{}],["aten.mul.Tensor",["%5","%6"],{}],'
    '["aten.mul.Tensor",["%4",0.125],{}],["aten.sub.Tensor",["%1","%8"],{}],["aten.gt.Scalar",["%9",0],{}],'
    '["aten.mul.Tensor",["%1",0.1],{}],["aten.where.self",["%10","%1","%11"],{}],'
    '["aten.sub.Tensor",["%7","%12"],{}]]'
)


def memory_of(device: Any, one: Any) -> Any:
    """A tensor's memory on a device."""
    dense = one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,))
    data = np.ascontiguousarray(dense.view(torch.uint8).numpy())
    found = device.allocate(data.nbytes)
    device.write(found.pointer, data)
    return found


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_by_image", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 24, 9, 7), "bfloat16"), ((3, 5, 4, 3, 6), "float32"), ((2, 65, 63), "float16")]
)
def test_values(device: Any, shape: tuple[int, ...], dtype: str, is_by_image: bool, is_last: bool) -> None:
    """Numbers of channels are rows of one tensor, as sums are, each where the one before ends."""
    generator = torch.Generator().manual_seed(0)
    strides = (channels_last_strides if is_last else contiguous_strides)(shape)
    narrow = (shape[0] if is_by_image else 1, shape[1], *(1 for _ in shape[2:]))
    ends = (shape[1], 1, *(1 for _ in shape[2:]))
    wide = [
        torch.empty_strided(shape, strides, dtype=getattr(torch, dtype)).copy_(
            torch.randn(shape, generator=generator)
        )
        for _ in range(2)
    ]
    numbers = torch.randn((3, *narrow), generator=generator)
    forms = ((shape, strides, dtype),) * 2 + ((narrow, ends, "float32"),) * 3
    values = Values(forms, (shape, strides, dtype), GRADIENT, "")
    kernel, room = rows_kernel(values.step(), device)
    held = [memory_of(device, one) for one in (*wide, numbers, torch.full_like(wide[0], float("nan")))]
    *tensors, rows, out = (one.pointer for one in held)
    workspace = device.allocate(max(1, room))
    places = [rows + number * 4 * narrow[0] * narrow[1] for number in range(3)]
    kernel(None, [*tensors, *places, out], 1.0, 0.0, workspace.pointer)
    found = torch.full_like(wide[0], float("nan"))
    data = np.empty(found.untyped_storage().nbytes(), np.uint8)
    device.read(data, out)
    found.as_strided((found.numel(),), (1,)).view(torch.uint8).copy_(torch.from_numpy(data))
    exact = computed(GRADIENT, [one.double() for one in (*wide, *numbers)]).expand(shape)
    scale = 1.0 + exact.abs()
    assert float(((found.double() - exact).abs() / scale).max()) <= torch.finfo(wide[0].dtype).eps * 2
