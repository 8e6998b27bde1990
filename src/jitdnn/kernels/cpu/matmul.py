"""Matrix product as a correlation with one tap: rows are pixels, the reduced extent is the channels read.

Transposes and sub-matrices are only strides, and every batch is a group.
"""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch, pointer_count
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles, make_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry
from jitdnn.kernels.cpu.lowering import lower_matmul
from jitdnn.kernels.cpu.schedule.parallel import wanted_tasks
from jitdnn.problems.matmul import MatMul


class PackedGemm(CpuAlgorithm[MatMul]):
    """Both matrices packed into panels, register tiles of sums; see convolution/implicit_gemm/plan.py."""

    name = "packed_gemm"
    problem = MatMul

    def launch(self, problem: MatMul, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        c = lower_matmul(problem, epilogue.operands if epilogue else ())
        plan = make_plan(Geometry.of(c, device.isa, wanted_tasks(device.threads)), device.threads)
        pointers = pointer_count(problem, epilogue)
        key = (str(problem), str(epilogue), plan.min_tasks)
        return Launch(
            problem, self.name, key, lambda module: trace(plan, module, "", pointers, (0, 1, 2), epilogue),
            plan.phases(""), pointers, cycles(plan), plan.tasks, plan.workspace(device.threads),
        )  # fmt: skip
