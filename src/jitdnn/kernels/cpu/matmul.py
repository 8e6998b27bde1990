"""Matrix product as a correlation with one tap: rows are pixels, the reduced extent is the channels read.

Transposes and sub-matrices are only strides, and every batch is a group.
"""

from __future__ import annotations

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles, make_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry, ImplicitGemmPlan
from jitdnn.kernels.cpu.lowering import lower_matmul
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.parallel import wanted_tasks
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load


class PackedGemm(Algorithm):
    """Both matrices packed into panels, register tiles of sums; see convolution/implicit_gemm/plan.py."""

    name = "packed_gemm"
    problem = MatMul
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return None

    def _plan(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> ImplicitGemmPlan:
        assert isinstance(problem, MatMul)
        assert isinstance(device, CpuDevice)
        operands = epilogue.operands if epilogue else ()
        c = lower_matmul(problem, operands)
        return make_plan(Geometry.of(c, device.isa, wanted_tasks(device.threads)), device.threads)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self._plan(problem, device, epilogue).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        return seconds_of(problem, device, cycles(plan), plan.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        plan = self._plan(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        library = load(
            self.name, (str(problem), str(epilogue), plan.min_tasks), device.isa,
            lambda module: trace(plan, module, "", pointers, (0, 1, 2), epilogue),
        )  # fmt: skip
        threads = useful_threads(device, cycles(plan))
        needed = plan.workspace(device.threads)
        return CpuKernel(library, plan.phases(""), pointers, threads, workspace=needed)
