"""Kernels that copy operands into the workspace before a product: pack.cu, one module for each kind of copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.devices.tensor_map import Tables
from jitdnn.kernels.cuda.gemm.plan import Pack
from jitdnn.kernels.cuda.gemm.shape import divisor, divisors, tables
from jitdnn.tensor import DTYPES


@dataclass(frozen=True)
class Packed:
    """A kernel whose operands are copied into the workspace first, by kernels, each with the number of its operand."""

    packs: tuple[tuple[GpuKernel, int], ...]
    kernel: GpuKernel

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        for pack, operand in self.packs:
            pack(stream, (pointers[operand],), alpha, beta, workspace)
        self.kernel(stream, pointers, alpha, beta, workspace)


def with_packs(kernel: GpuKernel, packs: Sequence[Pack | None], device: GpuDevice, index: str) -> GpuKernel:
    """The kernel behind those that pack its first operands; itself if none is packed. `index`: the type of offsets."""
    kernels = tuple((pack_kernel(pack, device, index), n) for n, pack in enumerate(packs) if pack)
    return Packed(kernels, kernel) if kernels else kernel


def pack_kernel(pack: Pack, device: GpuDevice, index: str) -> GpuKernel:
    """The kernel that copies one operand."""
    return device.kernel(
        pack_source(pack, index), [Launch("pack", pack.blocks, 256, is_early=True)], 1, tables=_tables(pack)
    )


def pack_source(pack: Pack, index: str) -> Source:
    """The text of the kernel; extents and strides are its argument."""
    n, c, *space = pack.tensor.strides
    dtype, packed = pack.tensor.dtype, pack.groups * pack.padded_channels
    chunk = 16 // DTYPES[dtype]
    multiples = (pack.channels, pack.padded_channels, n, *space)
    defines = (
        ("DTYPE", dtype),
        ("INDEX", index),
        ("LANES", pack.lanes),
        ("VECTOR", 4 if packed % 4 == 0 else 1),
        ("AXES", len(pixel_axes(pack))),
        ("IS_ALONG_CHANNELS", int(abs(c) == 1 or pack.channels == pack.padded_channels == 1)),
        ("IS_CHUNKED", int(c == 1 and all(number % chunk == 0 for number in multiples))),
        ("IS_ONE_GROUP", int(pack.groups == 1)),
    )
    return Source(
        "pack", read_text("cuda/gemm", "divisor.cuh", "shape.cuh", "pack.cu"), defines, dialect="cuda"
    )


def pixel_axes(pack: Pack) -> list[tuple[int, int]]:
    """Extents and strides of the pixels of all images, outermost first; axes that lie evenly in memory are one."""
    shape, strides = pack.tensor.shape, pack.tensor.strides
    axes: list[tuple[int, int]] = []
    for extent, stride in zip((shape[0], *shape[2:]), (strides[0], *strides[2:]), strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == stride * extent:
            axes[-1] = (axes[-1][0] * extent, stride)
        else:
            axes.append((extent, stride))
    return axes or [(1, 0)]


def _tables(pack: Pack) -> Tables:
    """The `Tables` of pack.cu."""
    axes, packed = pixel_axes(pack), pack.groups * pack.padded_channels
    return tables(
        pack.offset,
        pack.tensor.shape[0] * math.prod(pack.tensor.shape[2:]),
        packed,
        pack.channels,
        pack.groups,
        divisor(pack.padded_channels),
        divisor(-(-packed // pack.lanes)),
        pack.tensor.strides[1],
        divisors(extent for extent, _ in axes),
        [stride for _, stride in axes],
    )
