"""Local response and divisive normalization on GPUs: a thread adds up the squares around each of its elements."""

from __future__ import annotations

from math import prod
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_GROUPS_OF_IMAGES, offset_type, spatial
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.lrn import LRN
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES, compute_dtype

GROUP = 256
RUN = 8  # channels that a thread takes where the window lies along them and they are far apart
POWERS = {
    0.5: "(1 / sqrt(s))",
    0.75: "(1 / (sqrt(s) * sqrt(sqrt(s))))",
    1.0: "(1 / (s))",
}


class PlainWindowNorm(Algorithm):
    """A thread for each element, or for a run of channels."""

    name = "window"
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return f"{problem.kind} takes no epilogue"
        if problem.dtype == "f64" and not cast(GpuDevice, device).has_f64:
            return f"{cast(GpuDevice, device).name} has no double precision, and x is f64"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        norm = cast(LRN | DivisiveNorm, problem)
        return 0 if norm.direction == "fwd" else 2 * norm.x.size * DTYPES[compute_dtype(problem.dtype)]

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        size = problem.bytes + 2 * self.workspace(problem, device)
        # about eight instructions for an element of a window
        busy = 4.0 * problem.flops / device.peak_flops("f32")
        return 2 * LAUNCH_SECONDS + 1.3 * size / device.bandwidth + busy

    def error_bound(self, problem: Problem) -> float:
        # sums of squares, roots or a power, and a difference that may cancel in part
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        norm, gpu = cast(LRN | DivisiveNorm, problem), cast(GpuDevice, device)
        tensors = [operand.descriptor for operand in problem.operands]
        images, channels, *_ = norm.x.shape
        names = [operand.name for operand in problem.operands]
        is_inner = abs(norm.x.strides[1]) < abs(norm.x.strides[-1])
        is_across = 1 in norm.window_axes
        run = RUN if is_across and not is_inner else 1
        defines = (
            ("X", problem.dtype),
            ("NUMBER", compute_dtype(problem.dtype)),
            ("OFFSET", offset_type(tensors)),
            ("CHANNELS_INNER", int(is_inner)),
            ("POWER_OF(s)", POWERS.get(norm.beta, "pow(s, -(NUMBER)exponent)")),
            ("FORWARD", int(norm.direction == "fwd")),
            ("MEANS", int("means" in names)),
            ("DMEANS", int("dmeans" in names)),
        )
        source = Source("lrn", read_text("gpu/normalization", "lrn.c"), defines, spills=True)
        extents = spatial(norm.x.shape, 1)
        units = -(-channels // run) * prod(extents)
        groups = max(1, -(-units // GROUP)), min(max(1, images), MOST_GROUPS_OF_IMAGES)
        functions = ["lrn_forward"] if norm.direction == "fwd" else ["lrn_spread", "lrn_backward"]
        sizes = [norm.size if axis in norm.window_axes else 1 for axis in range(len(norm.x.shape))]
        numbers = [images, channels, *extents, sizes[1], *spatial(tuple(sizes), 1), run]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        launches = [Launch(function, groups, GROUP) for function in functions]
        return gpu.kernel(source, launches, len(tensors), numbers, (norm.k, norm.scale, norm.beta))


class PlainLRN(PlainWindowNorm):
    """Local response normalization."""

    problem = LRN
