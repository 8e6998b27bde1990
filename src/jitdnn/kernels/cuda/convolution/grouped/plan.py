"""Frozen sizes of grouped convolutions: tiles in shared memory, the plan, and what their layouts share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis, axis_choice
from jitdnn.kernels.cuda.convolution.half_precision.shape import (
    Defines,
    Shape,
    alignments_of,
    power_of_two,
    strides_of,
    unaligned,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor


@dataclass(frozen=True)
class Plan:
    """Macros, `threads` of a thread block, thread blocks, expected seconds, and `workers` among them.

    `workers` thread blocks (or warps, in registers) share the work units of the same channels; for wgrad each has its
    partial sums.
    """

    defines: tuple[tuple[str, object], ...]
    threads: int
    blocks: int
    seconds: float
    workers: int
    shared: int = 0  # bytes of shared memory of a block; 0: straight into registers

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of, in bytes."""
        names = dict(self.defines)
        if not self.shared:
            return alignments_of(names)
        size = 4 if names["IS_F32"] else 2
        copied, stored = (
            int(str(names.get(name, least))) for name, least in (("COPY_BYTES", 16), ("RESULT_VECTOR", 1))
        )
        return copied, 16 if names.get("FILTER_STAGED", 1) else size, size * stored

    @property
    def unaligned(self) -> Plan:
        """The same for operands at any address: straight into registers, or of f32."""
        least = {"COPY_BYTES": 4, "FILTER_STAGED": 0}
        return replace(
            self, defines=tuple((name, least.get(name, value)) for name, value in unaligned(self.defines))
        )


@dataclass(frozen=True)
class Tile:
    """A tile of fprop or dgrad: `images` times `down` * `tile_rows` rows of `across` blocks b; see shared_memory.cu."""

    h: Axis
    w: Axis
    images: int
    down: int
    across: int
    tile_rows: int

    @property
    def rows(self) -> int:
        return (self.down * self.tile_rows - 1) * self.h.step + self.h.reach

    @property
    def columns(self) -> int:
        return (self.across - 1) * self.w.step + self.w.reach

    def layout(self, pixel: int) -> tuple[int, int, int]:
        """Bytes in shared memory, a pixel `pixel` bytes, and the padding of rows and images in units of 16 bytes."""
        unit = pixel // 16 + 1
        columns = -(-self.columns // self.w.step) * self.w.step
        rows = -(-self.rows // self.h.step) * self.h.step
        row_pad, image_pad = pads(unit, columns, rows, self.across, self.down, self.tile_rows)
        return 16 * self.images * (rows * (columns * unit + row_pad) + image_pad), row_pad, image_pad

    def has_no_conflicts(self, pixel: int) -> bool:
        """Whether 8 neighbouring positions are always in 8 different groups of four banks."""
        unit = pixel // 16 + 1
        columns = -(-self.columns // self.w.step) * self.w.step
        row = columns * unit + self.layout(pixel)[1]
        return self.down == 1 or (self.tile_rows * row - unit * self.across) % 8 == 0

    @property
    def steps(self) -> int:
        """Steps of 16 positions."""
        return -(-self.images * self.down * self.across // 16)

    def units(self, images: int) -> int:
        across, down = -(-self.w.blocks // self.across), -(-self.h.blocks // (self.down * self.tile_rows))
        return -(-images // self.images) * down * across


@dataclass(frozen=True)
class WgradTile:
    """A tile of wgrad: `images` times `rows` x `columns` outputs, `taps` rows of taps; see wgrad_shared_memory.cu."""

    shape: Shape
    images: int
    rows: int
    columns: int
    taps: int  # rows of taps

    @property
    def steps(self) -> int:
        """Steps of 16 outputs."""
        return -(-self.images * self.rows * self.columns // 16)

    def layout(self, channels: int) -> tuple[int, int, int]:
        """Bytes of x in shared memory, and what goes behind each row and image in units of 16 bytes."""
        (_, stride_h, stride_w), (_, dilation_h, dilation_w) = self.shape.stride, self.shape.dilation
        down = (self.rows - 1) * stride_h + (self.taps - 1) * dilation_h + 1
        across = (self.columns - 1) * stride_w + (self.shape.taps[2] - 1) * dilation_w + 1
        down, across = -(-down // stride_h) * stride_h, -(-across // stride_w) * stride_w
        unit = channels // 8 + 1
        row_pad, image_pad = pads(unit, across, down, self.columns, self.rows, 1)
        return 16 * self.images * (down * (across * unit + row_pad) + image_pad), row_pad, image_pad

    @property
    def pixels(self) -> int:
        """Pixels of x that are copied."""
        (_, stride_h, stride_w), (_, dilation_h, dilation_w) = self.shape.stride, self.shape.dilation
        down = (self.rows - 1) * stride_h + (self.taps - 1) * dilation_h + 1
        return (
            self.images * down * ((self.columns - 1) * stride_w + (self.shape.taps[2] - 1) * dilation_w + 1)
        )

    @property
    def units(self) -> int:
        planes, p, q = self.shape.out
        return -(-self.shape.problem.n * planes // self.images) * -(-p // self.rows) * -(-q // self.columns)


def axis_of(shape: Shape, axis: int, is_forward: bool) -> Axis:
    """Which positions of the source a result meets along an axis; see half_precision/axis.py."""
    if not is_forward:
        return axis_choice(shape, axis, 1)
    reach = (shape.taps[axis] - 1) * shape.dilation[axis] + 1
    return Axis(1, shape.stride[axis], 0, 0, -shape.before[axis], reach, shape.out[axis])


def axis_defines(h: Axis, w: Axis) -> Defines:
    names: Defines = {}
    for letter, axis in (("H", h), ("W", w)):
        names |= {
            f"UNIT_{letter}": axis.unit, f"STEP_{letter}": axis.step, f"DELTA_{letter}": axis.delta,
            f"LEAD_{letter}": axis.lead, f"LEAST_{letter}": axis.least, f"REACH_{letter}": axis.reach,
            f"BLOCKS_{letter}": axis.blocks, f"STEP_OUT_{letter}": f"STRIDE_{letter}",
        }  # fmt: skip
    return names


def is_symmetric(problem: Convolution) -> bool:
    """Whether a data gradient is a convolution with the mirrored filter: without strides, with channels as many."""
    return max(problem.stride) == 1 and problem.c == problem.k


def direction_defines(shape: Shape) -> Defines:
    """Whether taps are counted forward, as where a data gradient is a convolution with the mirrored filter, too."""
    problem = shape.problem
    is_forward = problem.direction == "fwd"
    if is_forward or not is_symmetric(problem):
        return {"IS_FORWARD": int(is_forward), "IS_MIRRORED": 0}
    own = shape.defines()
    base, down, across = (int(str(own[name])) for name in ("W_BASE", "W_R", "W_S"))
    base += (shape.taps[1] - 1) * down + (shape.taps[2] - 1) * across
    mirrored: Defines = {"W_BASE": base, "W_R": -down, "W_S": -across, "LEAD_H": 0, "LEAD_W": 0}
    return mirrored | {"IS_FORWARD": 1, "IS_MIRRORED": 1}


def vector_of(result: TensorDescriptor, slice_out: int) -> tuple[int, int]:
    """Channels that may be stored at once, of slices of `slice_out` of them, and the stride between channels."""
    n, c, *space = strides_of(result)
    return (power_of_two((n, *space, slice_out), 16 // DTYPES[result.dtype]) if c == 1 else 1), c


def roles(problem: Convolution, source: TensorDescriptor, result: TensorDescriptor) -> Defines:
    """Strides and extents by what a tensor is to the kernel. Images count their planes along d as their own."""
    names: Defines = {}
    for letter, tensor in (("S", source), ("R", result)):
        names |= dict(zip([f"{letter}_{axis}" for axis in "NCDHW"], strides_of(tensor), strict=True))
    (_, names["SOURCE_H"], names["SOURCE_W"]) = _space(source)
    (planes, names["RESULT_H"], names["RESULT_W"]) = _space(result)
    names |= {"PLANES": planes, "IMAGES": problem.n * planes, "GROUPS_OF_CHANNELS": problem.groups}
    k, c, *_ = strides_of(problem.w)
    forward = problem.direction == "fwd"
    names |= {"W_IN": c if forward else k, "W_OUT": k if forward else c}
    names["W_GROUP"] = k * (problem.k // problem.groups)
    return names


def _space(tensor: TensorDescriptor) -> tuple[int, int, int]:
    d, h, w = (1,) * (5 - len(tensor.shape)) + tensor.shape[2:]
    return d, h, w


def pads(unit: int, columns: int, rows: int, across: int, down: int, row_step: int) -> tuple[int, int]:
    """16-byte units behind each staged row and image, such that positions in a row go on in the next one's banks.

    `unit`: 16-byte units of a pixel, an odd number; a row has `columns` pixels and an image `rows` rows. Positions are
    `across` in a row, `down` rows of them in an image, and lie `row_step` staged rows apart.
    """
    row = columns * unit
    row_pad = next((pad for pad in range(8) if (row_step * (row + pad) - unit * across) % 8 == 0), 0)
    if down == 1:
        row_pad = 0
    return row_pad, (unit * across * down - rows * (row + row_pad)) % 8
