"""Batches of images of bytes become tensors on GPUs: mirrored, mean subtracted, scaled, in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.gpu.prelude.images import MOST_BLOCKS_OF_IMAGES
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.tensor import TensorDescriptor

THREADS = 256  # of a thread block


def build_image_transform(
    strides: Sequence[int], mean: TensorDescriptor | None, scale: float, out: TensorDescriptor, device: Device
) -> Kernel:
    """The kernel from images of bytes with these strides, their table and their mean to `out` (n, C, H, W).

    `mean`: packed, f64 for an `out` of f64 and f32 otherwise, (C or 1, 1, 1), or an image (C, at least H, at least W);
    None for none.
    """
    gpu = cast(GpuDevice, device)
    count, channels, height, width = out.shape
    computing = "f64" if out.dtype == "f64" else "f32"
    numbers = [] if mean is None else zip(mean.shape, mean.strides, strict=True)
    steps = [0 if extent == 1 else stride for extent, stride in numbers] or [0, 0, 0]
    source = Source(
        "image_transform",
        read_text("gpu/sampling", "image_transform.c"),
        (
            ("THREADS_", THREADS),
            ("COMPUTE", computing),
            ("STORED", storage_type(out.dtype)),
            ("Y", out.dtype),
            ("HAS_MEAN", int(mean is not None)),
        ),
    )
    grid = (-(-height * width // THREADS), min(count, MOST_BLOCKS_OF_IMAGES))
    extras = [count, channels, height, width, *strides, *steps, *out.strides]
    return gpu.kernel(source, [Launch("image_transform", grid, THREADS)], 4, extras, [scale])
