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
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch, pointer_count
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.cost import computed_in, make_vnni_plan, pack_cycles
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems.convolution import Convolution

# products of -128, or of 255, by -128 whose sum would not fit into 32 bits
_TOO_MANY = {"i8": 1 << 17, "u8": 2**31 // (255 * 128) + 1}


_F32_EPILOGUE = 2.0**-22  # of a sum that is rounded to f32, and of what is computed with it


def epilogue_dtype(problem: Convolution) -> str:
    """The type that an epilogue is computed in: f32, to which longer sums are rounded, but for results of 32 bits."""
    return problem.dtype if problem.y.dtype == "i32" else "f32"


class Vnni(CpuAlgorithm[Convolution]):
    """Forward, of 8-bit integers; see the module's text."""

    name = "vnni"
    problem = Convolution

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> Vnni:
        return Vnni(is_kept=True)

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if not problem.is_integer:
            return f"it convolves 8-bit integers, forward: x is {problem.x.dtype} and this is {problem.direction}"
        if not device.isa.has_dot:
            return "it needs a processor with the instruction vpdpbusd, which is part of AVX-512 VNNI"
        products = math.prod(problem.w.shape[1:])
        most = _TOO_MANY[problem.x.dtype]
        if products >= most:
            return (
                f"an output has {products} products, whose sum may not fit into 32 bits: it takes fewer than "
                f"{most}"
            )
        return None

    def error_of(self, problem: Convolution) -> float:
        return super().error_of(problem) + (
            _F32_EPILOGUE if epilogue_dtype(problem) != problem.dtype else 0.0
        )

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        if epilogue is not None:
            whole = computed_in(whole, epilogue_dtype(problem))
        plan, pointers = make_vnni_plan(whole.merged(), device.isa), pointer_count(problem, epilogue)
        return Launch(
            problem, self.name, (str(problem), str(epilogue)), lambda module: trace(plan, module, pointers, epilogue),
            plan.phases(""), pointers, cycles(plan), plan.tasks, plan.workspace(device.threads),
            kept=Kept(plan.all_panel_elements * plan.item, 1),
            further_cycles=-pack_cycles(plan) if self._is_kept else 0.0,
        )  # fmt: skip
