"""Resizing on GPUs: a thread adds up the contributions to a few channels of one position."""

from __future__ import annotations

from math import prod
from typing import NamedTuple, cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, PlannedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_BLOCKS_OF_IMAGES, offset_type, spatial
from jitdnn.kernels.gpu.sampling.resize_coordinates import Coordinates, coordinates_of
from jitdnn.problems.resize import Resize
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

THREADS = 256  # of a thread block
PACKED = ("f32", "f16", "bf16")
APART = 4  # channels of a thread where they do not lie side by side
_TAP_INSTRUCTIONS, _POSITION_INSTRUCTIONS = 8.0, 240.0
_IDENTITY = Coordinates(1, 0, 1, 1)


class Plan(NamedTuple):
    """The coordinates of the results on the three axes of space, those that are missing in front."""

    problem: Resize
    axes: tuple[Coordinates, ...]


class PlainResize(PlannedAlgorithm[Resize, Plan, GpuDevice]):
    """A thread for a few channels of each position of the result."""

    name = "positions"
    problem = Resize
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: Resize, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        resize = problem
        if problem.dtype == "f64" and not device.has_f64:
            return f"{device.name} has no double precision, and {problem.operands[0].name} is f64"
        for axis in range(len(resize.x.shape) - 2):
            if coordinates_of(resize, axis) is None:
                assert resize.scales is not None
                return (
                    f"scale {resize.scales[axis]} of axis {axis + 2} has too many digits for places of 62 bits: leave "
                    "out scales, or round it to fewer digits"
                )
        return None

    def plan(self, problem: Resize, device: GpuDevice, epilogue: Epilogue | None) -> Plan:
        rank = len(problem.x.shape) - 2
        axes = [cast(Coordinates, coordinates_of(problem, axis)) for axis in range(rank)]
        return Plan(problem, (*[_IDENTITY] * (3 - rank), *axes))

    def seconds_of(self, plan: Plan, device: GpuDevice) -> float:
        problem = plan.problem
        instructions = _TAP_INSTRUCTIONS * problem.flops + _POSITION_INSTRUCTIONS * problem.y.size / APART
        busy = instructions / device.peak_flops("f32")
        return LAUNCH_SECONDS + 1.2 * problem.bytes / device.bandwidth + busy

    def error_of(self, problem: Resize) -> float:
        # weights of a sum of 1 that are rounded, multiplied and added; cubic ones reach 1.5 in size an axis
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 32.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def kernel_of(self, plan: Plan, device: GpuDevice) -> Kernel:
        resize, places = plan.problem, plan.axes
        tensors = [operand.descriptor for operand in resize.operands]
        images, channels = resize.x.shape[:2]
        inputs, outputs = spatial(resize.x.shape, 1), spatial(resize.y.shape, 1)
        extents = list(zip(places, inputs, outputs, strict=True))
        largest = max(one.largest(i, o) for one, i, o in extents)
        lanes = min(lanes_of(tensor) for tensor in tensors)
        are_neighbours = lanes > 1
        if not are_neighbours:
            lanes = max(1, min(APART, channels))
        result = tensors[-1]
        defines = (
            ("X", resize.dtype),
            ("PACKED", int(resize.dtype in PACKED)),
            ("NUMBER", compute_dtype(resize.dtype)),
            ("OFFSET", offset_type(tensors)),
            ("PLACE", "i32" if largest < 2**30 else "i64"),
            ("LANES", lanes),
            ("ARE_NEIGHBOURS", int(are_neighbours)),
            ("CHANNELS_INNER", int(are_neighbours or abs(result.strides[1]) < abs(result.strides[-1]))),
            *((f"TAPS_{name}", one.taps) for name, one in zip("DHW", places, strict=True)),
            ("FORWARD", int(resize.direction == "fwd")),
        )
        text = read_text("gpu/pooling", "access.c") + "\n" + read_text("gpu/sampling", "lanes.c", "resize.c")
        source = Source("resize", text, defines, spills=True)
        units = -(-channels // lanes) * prod(spatial(result.shape, 1))
        blocks = max(1, -(-units // THREADS)), min(max(1, images), MOST_BLOCKS_OF_IMAGES)
        numbers = [images, channels]
        for one, i, o in extents:
            numbers += [i, o, one.a, one.b, one.q]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        return device.kernel(
            source, [Launch("resize", blocks, THREADS)], len(tensors), numbers, (resize.cubic,)
        )


def lanes_of(tensor: TensorDescriptor) -> int:
    """Channels that lie side by side in 16 bytes, or 1."""
    lanes = 16 // DTYPES[tensor.dtype]
    others = (tensor.strides[0], *tensor.strides[2:])
    is_whole = tensor.strides[1] == 1 and tensor.shape[1] % lanes == 0
    return lanes if is_whole and tensor.dtype in PACKED and not any(step % lanes for step in others) else 1
