"""What the kernels of grouped convolutions share: plans, which positions an output meets, strides by their part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.few_channels.dgrad_plan import Axis, axis_choice
from jitdnn.kernels.cuda.convolution.few_channels.geometry import (
    Defines,
    Shape,
    alignments_of,
    elementwise,
    power_of_two,
    strides_of,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class Plan:
    defines: tuple[tuple[str, object], ...]
    threads: int
    groups: int
    seconds: float
    workers: int
    shared: int = 0  # bytes of shared memory of a block; 0: straight into registers
    result_bytes: int = 2  # that are stored at once by a block that reads through shared memory

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of, in bytes."""
        return (16, 16, self.result_bytes) if self.shared else alignments_of(dict(self.defines))

    @property
    def elementwise(self) -> Plan:
        """The same for operands at any address."""
        return replace(self, defines=elementwise(self.defines))


def meeting(shape: Shape, axis: int, is_forward: bool) -> Axis:
    """Which positions of the source an output meets."""
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


def vector_of(result: TensorDescriptor) -> tuple[int, int]:
    """Neighbouring channels that may be stored at once, and the stride between channels."""
    n, c, *space = strides_of(result)
    return (power_of_two((n, *space), 8) if c == 1 else 1), c


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


def pads(unit: int, places: int, rows: int, across: int, down: int, row_step: int) -> tuple[int, int]:
    """16-byte units behind each staged row and image, such that positions in a row go on in the next one's banks.

    `unit`: 16-byte units of a pixel, an odd number; a row has `places` pixels and an image `rows` rows. Positions are
    `across` in a row, `down` rows of them in an image, and lie `row_step` staged rows apart.
    """
    row = places * unit
    row_pad = next((pad for pad in range(8) if (row_step * (row + pad) - unit * across) % 8 == 0), 0)
    if down == 1:
        row_pad = 0
    return row_pad, (unit * across * down - rows * (row + row_pad)) % 8
