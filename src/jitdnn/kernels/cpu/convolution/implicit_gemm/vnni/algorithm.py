"""Convolution of 8-bit integers with four multiply-adds a lane: AVX-512's dot products of four channels.

Implicit GEMM in which an element is a word of four channels: one instruction, vpdpbusd, adds four products to each
32-bit sum. Any stride, dilation, padding, groups, layout and channel count. Sums are exact; they become reals as they
are stored, for the epilogue and the scaling, and integers again by rounding.
"""

from __future__ import annotations

import math

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel, Kept
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.cost import make_vnni_plan, pack_cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.plan import VnniPlan
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES

# products of -128 by -128 whose sum would not fit into 32 bits
_TOO_MANY = 1 << 17


class Vnni(Algorithm):
    """Forward, of 8-bit integers; see the module's text."""

    name = "vnni"
    problem = Convolution
    deterministic = True

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> Vnni:
        return Vnni(is_kept=True)

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if not problem.is_integer:
            return f"it convolves 8-bit integers, forward: x is {problem.x.dtype} and this is {problem.direction}"
        if not isinstance(device, CpuDevice) or not device.isa.has_dot:
            return "it needs a processor with the instruction vpdpbusd, which is part of AVX-512 VNNI"
        products = math.prod(problem.w.shape[1:])
        if products >= _TOO_MANY:
            return (
                f"an output has {products} products, whose sum may not fit into 32 bits: it takes fewer than "
                f"{_TOO_MANY}"
            )
        return None

    def _plan(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> VnniPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        return make_vnni_plan(whole.merged(), device.isa)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(device, CpuDevice)
        return self._plan(problem, device, epilogue).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        left = cycles(plan) - (pack_cycles(plan) if self._is_kept else 0.0)
        return seconds_of(problem, device, left, plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        library = load(
            self.name, (str(problem), str(epilogue)), device.isa,
            lambda module: trace(plan, module, pointers, epilogue),
        )  # fmt: skip
        kept = Kept(plan.all_panel_elements * ITEM_BYTES[plan.c.dtype], 1)
        threads = useful_threads(device, cycles(plan))
        needed = plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(""), pointers, threads, kept=kept, workspace=needed)
