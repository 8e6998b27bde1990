"""Local response and divisive normalization on GPUs: a thread adds up the squares around each of its elements."""

from __future__ import annotations

from math import prod

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_BLOCKS_OF_IMAGES, offset_type, spatial
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.lrn import LRN
from jitdnn.tensor import DTYPES, compute_dtype

THREADS = 256  # of a thread block
RUN = 8  # channels that a thread takes where the window lies along them and they are far apart
POWERS = {
    0.5: "(1 / sqrt(s))",
    0.75: "(1 / (sqrt(s) * sqrt(sqrt(s))))",
    1.0: "(1 / (s))",
}

WindowNorm = LRN | DivisiveNorm


class PlainWindowNorm(TypedAlgorithm[WindowNorm, GpuDevice]):
    """A thread for each element, or for a run of channels."""

    name = "window"
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: WindowNorm, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.dtype == "f64" and not device.has_f64:
            return f"{device.name} has no double precision, and x is f64"
        return None

    def workspace_of(self, plan: WindowNorm, device: GpuDevice) -> int:
        return 0 if plan.direction == "fwd" else 2 * plan.x.size * DTYPES[compute_dtype(plan.dtype)]

    def seconds_of(self, plan: WindowNorm, device: GpuDevice) -> float:
        size = plan.bytes + 2 * self.workspace_of(plan, device)
        # about eight instructions for an element of a window
        busy = 4.0 * plan.flops / device.peak_flops("f32")
        return 2 * LAUNCH_SECONDS + 1.3 * size / device.bandwidth + busy

    def error_of(self, problem: WindowNorm) -> float:
        # sums of squares, roots or a power, and a difference that may cancel in part
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def kernel_of(self, plan: WindowNorm, device: GpuDevice) -> Kernel:
        norm = plan
        tensors = [operand.descriptor for operand in norm.operands]
        images, channels, *_ = norm.x.shape
        names = [operand.name for operand in norm.operands]
        is_inner = abs(norm.x.strides[1]) < abs(norm.x.strides[-1])
        is_over_channels = 1 in norm.window_axes
        run = RUN if is_over_channels and not is_inner else 1
        defines = (
            ("X", norm.dtype),
            ("NUMBER", compute_dtype(norm.dtype)),
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
        blocks = max(1, -(-units // THREADS)), min(max(1, images), MOST_BLOCKS_OF_IMAGES)
        functions = ["lrn_forward"] if norm.direction == "fwd" else ["lrn_spread", "lrn_backward"]
        sizes = [norm.size if axis in norm.window_axes else 1 for axis in range(len(norm.x.shape))]
        numbers = [images, channels, *extents, sizes[1], *spatial(tuple(sizes), 1), run]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        launches = [Launch(function, blocks, THREADS) for function in functions]
        return device.kernel(source, launches, len(tensors), numbers, (norm.k, norm.scale, norm.beta))


class PlainLRN(PlainWindowNorm):
    """Local response normalization."""

    problem = LRN


class PlainDivisiveNorm(PlainWindowNorm):
    """Divisive normalization, the local one with means or without."""

    problem = DivisiveNorm
