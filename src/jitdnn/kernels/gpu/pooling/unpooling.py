"""Unpooling on GPUs: the last value for every element of the image, found by a maximum of whole numbers in memory."""

from __future__ import annotations

from math import prod
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_GROUPS_OF_IMAGES, offset_type, spatial
from jitdnn.problems.problem import Problem
from jitdnn.problems.unpooling import Unpooling
from jitdnn.tensor import TensorDescriptor

GROUP = 256


class PlainUnpooling(Algorithm):
    """A thread for each element."""

    name = "places"
    problem = Unpooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "unpooling takes no epilogue"
        unpooling, gpu = cast(Unpooling, problem), cast(GpuDevice, device)
        if unpooling.small.dtype == "f64" and not gpu.has_f64:
            return f"{gpu.name} has no double precision, and {unpooling.names[0]} is f64"
        places = prod(unpooling.small.shape[2:])
        if places >= 2**31:
            return f"a plane of {unpooling.names[0]} has {places} elements: places in it must fit 31 bits"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        unpooling = cast(Unpooling, problem)
        return 4 * unpooling.large.size if unpooling.direction == "fwd" else 0

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        # places are cleared, written and read
        size = problem.bytes + 3 * self.workspace(problem, device)
        return 3 * LAUNCH_SECONDS + 1.3 * size / device.bandwidth

    def error_bound(self, problem: Problem) -> float:
        return UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        unpooling, gpu = cast(Unpooling, problem), cast(GpuDevice, device)
        small, large, dtype = unpooling.small, unpooling.large, unpooling.small.dtype
        tensors = [operand.descriptor for operand in problem.operands]
        images, channels = large.shape[:2]
        is_forward = unpooling.direction == "fwd"
        defines = (
            ("X", dtype),
            ("NUMBER", "f64" if dtype == "f64" else "f32"),
            ("INDEX", unpooling.indices.dtype),
            ("OFFSET", offset_type(tensors)),
            ("CHANNELS_INNER", int(abs(large.strides[1]) < abs(large.strides[-1]))),
            ("FORWARD", int(is_forward)),
        )
        source = Source("unpooling", read_text("gpu/pooling", "unpooling.c"), defines, spills=True)

        def launch(function: str, tensor: TensorDescriptor) -> Launch:
            units = channels * prod(tensor.shape[2:])
            groups = max(1, -(-units // GROUP)), min(max(1, images), MOST_GROUPS_OF_IMAGES)
            return Launch(function, groups, GROUP)

        launches = [launch("unpooling_backward", small)]
        if is_forward:
            functions = {"unpooling_clear": large, "unpooling_send": small, "unpooling_forward": large}
            launches = [launch(function, tensor) for function, tensor in functions.items()]
        numbers = [images, channels, *spatial(small.shape, 1), *spatial(large.shape, 1)]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        return gpu.kernel(source, launches, len(tensors), numbers)
