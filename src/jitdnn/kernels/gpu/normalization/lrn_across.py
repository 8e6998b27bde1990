"""Local response normalization across channels on GPUs: a thread takes a run of channels and reads what they need once.

Squares of channels that several windows share are added up from registers, and nothing is stored between two passes,
so that forward and backward move each tensor once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import MOST_BLOCKS_OF_IMAGES, offset_type, spatial
from jitdnn.problems.lrn import LRN
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

THREADS = 256  # of a thread block
RUN = 8  # channels of a thread
PACK_BYTES = 16  # moved at once where channels are neighbours
MOST_SIZE = 16  # of a window, whose numbers are in registers; cuDNN's limit, too
# s^-beta, where t is 1 / sqrt(s)
POWERS = {0.5: "(t)", 0.75: "((t) * (t) * rsqrt(t))", 1.0: "((t) * (t))"}
_WAVES = 4  # of thread blocks; more of them would find their position anew for each image


class AcrossLRN(TypedAlgorithm[LRN, GpuDevice]):
    """A thread for each run of channels."""

    problem = LRN
    name = "across"
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: LRN, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.mode != "across":
            return "the window lies along the axes of space"
        if problem.size > MOST_SIZE:
            return f"a window of {problem.size} channels: at most {MOST_SIZE} are held in registers"
        if problem.dtype == "f64" and not device.has_f64:
            return f"{device.name} has no double precision, and x is f64"
        return None

    def seconds_of(self, plan: LRN, device: GpuDevice) -> float:
        # a root and some twenty instructions for an element, backward for those of the neighbours, too
        is_forward = plan.direction == "fwd"
        elements = plan.x.size * (1.0 if is_forward else 1.0 + (plan.size - 1) / RUN)
        busy = elements * (40.0 + 2.0 * plan.size) / device.peak_flops("f32")
        return LAUNCH_SECONDS + 1.1 * plan.bytes / device.bandwidth + busy

    def error_of(self, problem: LRN) -> float:
        # sums of squares, roots or a power, and a difference that may cancel in part
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def kernel_of(self, plan: LRN, device: GpuDevice) -> Kernel:
        tensors = [operand.descriptor for operand in plan.operands]
        images, channels, *_ = plan.x.shape
        is_forward = plan.direction == "fwd"
        vector = _vector(tensors)
        defines = (
            ("X", plan.dtype),
            ("NUMBER", compute_dtype(plan.dtype)),
            ("OFFSET", offset_type(tensors)),
            ("CHANNELS_INNER", int(abs(plan.x.strides[1]) < abs(plan.x.strides[-1]))),
            ("VECTOR", vector),
            ("SIZE", plan.size),
            ("RUN", RUN),
            ("POWER_OF(s, t)", POWERS.get(plan.beta, "pow(s, -(NUMBER)exponent)")),
            ("FORWARD", int(is_forward)),
        )
        text = read_text("gpu/normalization", "lrn_across.c")
        if vector > 1:
            stored = "f32" if plan.dtype == "f32" else "u16"
            pack = f"PACK({plan.dtype}, {stored}, {vector}, u32x4, 1)\n"
            text = read_text("gpu/prelude", "vectors.h") + pack + text
        source = Source("lrn_across", text, defines, spills=plan.size > 8)
        extents = spatial(plan.x.shape, 1)
        units = -(-channels // RUN) * prod(extents)
        across = max(1, -(-units // THREADS))
        wanted = -(-_WAVES * device.multiprocessors * device.facts.resident_threads // (THREADS * across))
        blocks = across, max(1, min(images, wanted, MOST_BLOCKS_OF_IMAGES))
        numbers = [images, channels, *extents]
        for tensor in tensors:
            numbers += [*tensor.strides[:2], *spatial(tensor.strides, 0)]
        function = "lrn_across_forward" if is_forward else "lrn_across_backward"
        return device.kernel(
            source,
            [Launch(function, blocks, THREADS)],
            len(tensors),
            numbers,
            (plan.k, plan.scale, plan.beta),
        )


def _vector(tensors: Sequence[TensorDescriptor]) -> int:
    """How many channels are moved at once: 1 where they do not lie side by side in whole packs."""
    count = PACK_BYTES // DTYPES[tensors[0].dtype]
    if count < 4:  # of double precision: the arithmetic takes longer
        return 1
    for tensor in tensors:
        others = [tensor.strides[0], *tensor.strides[2:]]
        if tensor.strides[1] != 1 or tensor.shape[1] % count or any(stride % count for stride in others):
            return 1
    return count
