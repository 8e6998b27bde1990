"""Matrix product as a correlation with one tap: rows are pixels, the reduced extent is the channels read.

Transposes and sub-matrices are only strides, and every batch is a group.
"""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import FilterAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles, make_plan, pack_cycles
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.algorithm import epilogue_error, launch_of, refuse_dot
from jitdnn.kernels.cpu.lowering import lower_matmul
from jitdnn.kernels.cpu.schedule.parallel import wanted_tasks
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import BYTE_INTEGERS
from jitdnn.rtcg.isa import ITEM_BYTES


class VnniGemm(FilterAlgorithm[MatMul]):
    """Products of 8-bit integers with four multiply-adds a lane, by AVX-512's dot products of four columns of a.

    They are summed exactly as convolution/implicit_gemm/vnni/ does it, whose code this is.
    """

    name = "vnni"
    problem = MatMul

    def refusal(self, problem: MatMul, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.a.dtype not in BYTE_INTEGERS:
            return f"it multiplies 8-bit integers: a is {problem.a.dtype}"
        if 0 in problem.c.shape or not problem.k:
            return "there is nothing to multiply"
        return refuse_dot(problem.a.dtype, problem.k, device)

    def error_of(self, problem: MatMul) -> float:
        return super().error_of(problem) + epilogue_error(problem)

    def launch(self, problem: MatMul, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        c = lower_matmul(problem, epilogue.operands if epilogue else ())
        return launch_of(problem, self.name, c, device, epilogue, self._is_kept)


class PackedGemm(FilterAlgorithm[MatMul]):
    """Matrix product as a correlation with one tap: rows are pixels, the reduced extent is the channels read.

    Both matrices are packed into panels; see convolution/implicit_gemm/plan.py.
    """

    name = "packed_gemm"
    problem = MatMul

    def launch(self, problem: MatMul, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        c = lower_matmul(problem, epilogue.operands if epilogue else ())
        plan = make_plan(
            Geometry.of(c, device.isa, wanted_tasks(device.threads)), device.threads, self._is_kept
        )
        phases, kept, further = plan.phases(""), None, 0.0
        if self._is_kept:
            kept, further = (
                Kept(plan.all_panel_elements * ITEM_BYTES[c.dtype], len(phases) - 1),
                -pack_cycles(plan),
            )
        pointers = pointer_count(problem, epilogue)
        return Launch(
            problem, self.name, code_key(epilogue),
            lambda module, code: trace(code, module, "", pointers, (0, 1, 2), epilogue), phases, pointers,
            cycles(plan), plan.tasks, plan.workspace(device.threads), kept=kept, further_cycles=further, code=plan,
            imbalance=plan.blocking.imbalance,
        )  # fmt: skip
