"""Unpooling on GPUs: the last value for every element of the image, found by an atomic maximum of integers."""

from __future__ import annotations

from math import prod

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_BLOCKS_OF_IMAGES, offset_type, spatial
from jitdnn.problems.unpooling import Unpooling
from jitdnn.tensor import TensorDescriptor

THREADS = 256


class PlainUnpooling(TypedAlgorithm[Unpooling, GpuDevice]):
    """A thread for each element."""

    name = "places"
    problem = Unpooling
    deterministic = True
    takes_no_epilogue = "unpooling takes no epilogue"

    def refusal(self, problem: Unpooling, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.small.dtype == "f64" and not device.has_f64:
            return f"{device.name} has no double precision, and {problem.names[0]} is f64"
        elements = prod(problem.small.shape[2:])
        if elements >= 2**31:
            return f"a plane of {problem.names[0]} has {elements} elements: places in it must fit 31 bits"
        return None

    def workspace_of(self, plan: Unpooling, device: GpuDevice) -> int:
        return 4 * plan.large.size if plan.direction == "fwd" else 0

    def seconds_of(self, plan: Unpooling, device: GpuDevice) -> float:
        # positions are cleared, written and read
        size = plan.bytes + 3 * self.workspace_of(plan, device)
        return 3 * LAUNCH_SECONDS + 1.3 * size / device.bandwidth

    def error_of(self, problem: Unpooling) -> float:
        return UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: Unpooling, device: GpuDevice) -> Kernel:
        small, large, dtype = plan.small, plan.large, plan.small.dtype
        tensors = [operand.descriptor for operand in plan.operands]
        images, channels = large.shape[:2]
        is_forward = plan.direction == "fwd"
        defines = (
            ("X", dtype),
            ("NUMBER", "f64" if dtype == "f64" else "f32"),
            ("INDEX", plan.indices.dtype),
            ("OFFSET", offset_type(tensors)),
            ("CHANNELS_INNER", int(abs(large.strides[1]) < abs(large.strides[-1]))),
            ("FORWARD", int(is_forward)),
        )
        source = Source("unpooling", read_text("gpu/pooling", "unpooling.c"), defines, spills=True)

        def launch(function: str, tensor: TensorDescriptor) -> Launch:
            units = channels * prod(tensor.shape[2:])
            blocks = max(1, -(-units // THREADS)), min(max(1, images), MOST_BLOCKS_OF_IMAGES)
            return Launch(function, blocks, THREADS)

        launches = [launch("unpooling_backward", small)]
        if is_forward:
            functions = {"unpooling_clear": large, "unpooling_send": small, "unpooling_forward": large}
            launches = [launch(function, tensor) for function, tensor in functions.items()]
        numbers = [images, channels, *spatial(small.shape, 1), *spatial(large.shape, 1)]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        return device.kernel(source, launches, len(tensors), numbers)
