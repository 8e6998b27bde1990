"""Programs over rows of `jitdnn::channel_sums`: sums and moments of formulas for each channel, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums  # noqa: E402
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides  # noqa: E402
from jitdnn.frameworks.torch.tail import computed  # noqa: E402
from jitdnn.kernels.tables import rows_kernel  # noqa: E402

GATED = (
    '[["aten.mul.Tensor",["%1","%2"],{}],["aten.add.Tensor",["%4","%3"],{}],["aten.gt.Scalar",["%5",0],{}],'
    '["aten.mul.Tensor",["%0",0.1],{}],["aten.where.self",["%6","%0","%7"],{}]]'
)
PRODUCT = GATED[:-1] + ',["aten.mul.Tensor",["%8","%1"],{}]]'


def run(device: Any, sums: Sums, given: list[Any]) -> Any:
    """What the kernel leaves, in memory that was filled with NaN."""
    kernel, room = rows_kernel(sums.step(), device)
    memories = []
    for one in given:
        dense = one.as_strided((one.untyped_storage().nbytes() // one.element_size(),), (1,))
        data = np.ascontiguousarray(dense.view(torch.uint8).numpy())
        memories.append(device.allocate(data.nbytes))
        device.write(memories[-1].pointer, data)
    found = np.full(sums.result, np.nan, np.float32)
    out, workspace = device.allocate(found.nbytes), device.allocate(max(1, room))
    device.write(out.pointer, found)
    rows, batch, channels = sums.result
    results = [out.pointer + 4 * row * batch * channels for row in range(rows)]
    kernel(None, [*(one.pointer for one in memories), *results], 1.0, 0.0, workspace.pointer)
    device.read(found, out.pointer)
    return torch.from_numpy(found)


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_by_image", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 24, 9, 7), "bfloat16"), ((3, 5, 4, 3, 6), "float32"), ((1, 65, 63), "float16")]
)
def test_sums(device: Any, shape: tuple[int, ...], dtype: str, is_by_image: bool, is_last: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    strides = (channels_last_strides if is_last else contiguous_strides)(shape)
    narrow = (shape[0] if is_by_image else 1, shape[1], *(1 for _ in shape[2:]))
    ends = (shape[1], 1, *(1 for _ in shape[2:]))
    forms = ((shape, strides, dtype),) * 2 + ((narrow, ends, "float32"),) * 2
    given = []
    for extents, steps, name in forms:
        made = torch.empty_strided(extents, steps, dtype=getattr(torch, name))
        given.append(made.copy_(torch.randn(extents, generator=generator) + 0.5))
    results = ((SUM, GATED), (MOMENTS, '[["cast",["%1","torch.float32"],{}]]'), (SUM, PRODUCT))
    sums = Sums(forms, is_by_image, results, "")
    found = run(device, sums, given).double()
    wide = [one.double() for one in given]
    row = 0
    for kind, steps in results:
        made = computed(steps.replace("float32", "float64"), wide).expand(shape)
        if kind == SUM:
            wanted, terms = [made.sum(sums.axes)], [made.abs().sum(sums.axes)]
        else:
            variance, mean = torch.var_mean(made, sums.axes, correction=0)
            wanted, terms = [mean, variance], [made.abs().mean(sums.axes), variance]
        for one, scale in zip(wanted, terms, strict=True):
            assert (
                float(
                    (
                        (found[row] - one.reshape(found[row].shape)).abs() / scale.reshape(found[row].shape)
                    ).max()
                )
                < 1e-6
            )
            row += 1


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_numbers_of_pixels(device: Any, dtype: str, is_last: bool) -> None:
    """Operands with one number for each pixel, some channel of another tensor, at any address."""
    shape, results = (2, 24, 9, 7), 3
    strides = channels_last_strides if is_last else contiguous_strides
    generator = torch.Generator().manual_seed(1)
    kind = getattr(torch, dtype)

    def tensor(extents: tuple[int, ...]) -> Any:
        made = torch.empty_strided(extents, strides(extents), dtype=kind)
        return made.copy_(torch.randn(extents, generator=generator))

    x, dy, w = tensor(shape), tensor((2, results, 9, 7)), torch.randn(results, 24, 1, 1, generator=generator)
    given = [x, *(dy[:, k : k + 1] for k in range(results)), *(w[k : k + 1] for k in range(results))]
    forms = tuple(
        (tuple(one.shape), tuple(one.stride()), str(one.dtype).removeprefix("torch.")) for one in given
    )
    terms = [f'["aten.mul.Tensor",["%{1 + k}","%{1 + results + k}"],{{}}]' for k in range(results)]
    terms += ['["aten.add.Tensor",["%7","%8"],{}]', '["aten.add.Tensor",["%10","%9"],{}]']
    product = '["aten.mul.Tensor",["%11","%0"],{}]'
    texts = f"[{','.join(terms)}]", f"[{','.join([*terms, product])}]"
    sums = Sums(forms, True, ((SUM, texts[0]), (SUM, texts[1])), "")
    memories = {}
    for one in (x, dy, w):
        dense = one.as_strided((one.numel(),), (1,))
        data = np.ascontiguousarray(dense.view(torch.uint8).numpy())
        memories[one.data_ptr()] = device.allocate(data.nbytes)
        device.write(memories[one.data_ptr()].pointer, data)
    addresses = [
        memories[base.data_ptr()].pointer + one.data_ptr() - base.data_ptr()
        for one, base in zip(given, [x, *[dy] * results, *[w] * results], strict=True)
    ]
    kernel, room = rows_kernel(sums.step(), device)
    found = np.full(sums.result, np.nan, np.float32)
    out, workspace = device.allocate(found.nbytes), device.allocate(max(1, room))
    device.write(out.pointer, found)
    kernel(None, [*addresses, *(out.pointer + place for place in sums.places())], 1.0, 0.0, workspace.pointer)
    device.read(found, out.pointer)
    for text, total in zip(texts, torch.from_numpy(found).double(), strict=True):
        wide = computed(text, [one.double() for one in given])
        error = (total - wide.sum((2, 3))).abs().max()
        assert float(error / wide.abs().sum((2, 3)).max()) < 1e-6
