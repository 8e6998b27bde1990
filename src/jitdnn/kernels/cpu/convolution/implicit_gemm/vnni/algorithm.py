"""Convolution of 8-bit integers with four multiply-adds a lane: AVX-512's dot products of four channels.

Implicit GEMM in which an element is a word of four channels: one instruction, vpdpbusd, adds four products to each
32-bit sum. Any stride, dilation, padding, groups, layout and channel count; images with or without a sign. Sums are
exact; they become reals as they are stored, for the epilogue and the scaling, and integers again by rounding.
"""

from __future__ import annotations

import math

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import FilterAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.cost import computed_in, make_vnni_plan, pack_cycles
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

# products of -128, or of 255, by -128 whose sum would not fit into 32 bits
_TOO_MANY = {"i8": 1 << 17, "u8": 2**31 // (255 * 128) + 1}
_F32_EPILOGUE = 2.0**-22  # of a sum that is rounded to f32, and of what is computed with it


def refuse_dot(dtype: str, products: int, device: CpuDevice) -> str | None:
    """Why sums of so many products of integers of type ``dtype`` cannot be made; None if they can."""
    if not device.isa.has_dot:
        return "it needs a processor with the instruction vpdpbusd, which is part of AVX-512 VNNI"
    most = _TOO_MANY[dtype]
    if products >= most:
        return f"an output has {products} products, whose sum may not fit into 32 bits: it takes fewer than {most}"
    return None


def epilogue_error(problem: Problem) -> float:
    """What is lost by epilogues that are computed in f32, of sums that only f64 holds exactly."""
    return _F32_EPILOGUE if _epilogue_dtype(problem) != problem.dtype else 0.0


def _epilogue_dtype(problem: Problem) -> str:
    """The type that an epilogue is computed in: f32, to which longer sums are rounded, but for results of 32 bits."""
    return problem.dtype if problem.output.dtype == "i32" else "f32"


def launch_of(
    problem: Problem, name: str, c: Correlation, device: CpuDevice, epilogue: Epilogue | None, is_kept: bool
) -> Launch:
    """The launch of a problem that is this correlation."""
    if epilogue is not None:
        c = computed_in(c, _epilogue_dtype(problem))
    plan, pointers = make_vnni_plan(c, device.isa), pointer_count(problem, epilogue)
    return Launch(
        problem, name, code_key(epilogue), lambda module, code: trace(code, module, pointers, epilogue),
        plan.phases(""), pointers, cycles(plan), plan.tasks, plan.workspace(device.threads),
        kept=Kept(plan.all_panel_elements * plan.item, 1),
        further_cycles=-pack_cycles(plan) if is_kept else 0.0, code=plan,
    )  # fmt: skip


class Vnni(FilterAlgorithm[Convolution]):
    """Forward, of 8-bit integers; see the module's text."""

    name = "vnni"
    problem = Convolution

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if not problem.is_integer:
            return f"it convolves 8-bit integers, forward: x is {problem.x.dtype} and this is {problem.direction}"
        return refuse_dot(problem.x.dtype, math.prod(problem.w.shape[1:]), device)

    def error_of(self, problem: Convolution) -> float:
        return super().error_of(problem) + epilogue_error(problem)

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        return launch_of(problem, self.name, whole.merged(), device, epilogue, self._is_kept)
