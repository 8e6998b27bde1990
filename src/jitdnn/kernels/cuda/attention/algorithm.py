"""Attention on the tensor cores: no matrix of scores is ever stored."""

from __future__ import annotations

from math import sqrt

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, KernelAlgorithm, PlannedKernel
from jitdnn.kernels.cuda.attention.code import kernel_of
from jitdnn.kernels.cuda.attention.plan import SIZES, plan_of
from jitdnn.problems.attention import Attention
from jitdnn.problems.problem import Problem

_TYPES = ("f16", "bf16", "f32")
_MOST_PLACES = 2**30  # rows and keys are counted in 32 bits


class Flash(KernelAlgorithm[Attention, GpuDevice]):
    """Tiles of keys stream past tiles of queries; products by mma, scores and sums in registers."""

    name = "flash"
    problem = Attention
    takes_no_epilogue = "attention takes no epilogue"
    has_three_products = False

    def refusal(self, problem: Attention, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        n, h, t, d = problem.q.shape
        s, e = problem.k.shape[2], problem.v.shape[3]
        if problem.dtype not in _TYPES:
            return f"the tensor cores multiply {', '.join(_TYPES)} here, and the tensors are {problem.dtype}"
        if not device.tensor_flops(problem.dtype):
            return f"{device.name} has no tensor cores for {problem.dtype}"
        if max(d, e) > SIZES[-1]:
            return f"heads have sizes {d} and {e}: sums of at most {SIZES[-1]} columns fit into registers"
        if problem.dtype == "f32" and max(d, e) > self._most_wide(problem):
            return f"heads have sizes {d} and {e}: of f32 at most {self._most_wide(problem)} columns fit into registers"
        if not n * h * t or not s:
            return "there is nothing to multiply"
        if max(t, s) >= _MOST_PLACES or n * h * -(-max(t, s) // 16) >= 2**31:
            return f"{n} x {h} heads of {t} queries and {s} keys: they are more than are counted in 32 bits"
        needed = plan_of(problem, device, self.has_three_products).shared
        if needed > device.shared_bytes:
            return f"a thread block would take {needed} bytes of shared memory: {device.name} has {device.shared_bytes}"
        return None

    def _most_wide(self, problem: Attention) -> int:
        return 128 if self.has_three_products or problem.direction == "bwd" else SIZES[-1]

    def plan(self, problem: Attention, device: GpuDevice, epilogue: Epilogue | None) -> PlannedKernel:
        plan = plan_of(problem, device, self.has_three_products)
        return PlannedKernel(plan.workspace, plan.seconds, lambda: kernel_of(plan, device))

    def arithmetic(self, problem: Problem) -> str:
        return "tf32" if problem.dtype == "f32" else "fp32"

    def error_of(self, problem: Attention) -> float:
        return _bound(problem, 2.0**-11 if problem.dtype == "f32" else UNIT_ROUNDOFF[problem.dtype])


class FlashInThree(Flash):
    """`flash` in f32 with each product made of three of tf32, so that hardly a bit is lost."""

    name = "flash_three"
    has_three_products = True
    has_exact_products = False

    def refusal(self, problem: Attention, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.dtype != "f32":
            return f"products of {problem.dtype} are exact as they are: it is for f32"
        return super().refusal(problem, device, epilogue)

    def arithmetic(self, problem: Problem) -> str:
        return "fp32"

    def error_of(self, problem: Attention) -> float:
        return _bound(problem, 2.0**-21)


def _bound(problem: Attention, rounding: float) -> float:
    """The bound where probabilities and slopes are rounded with this unit before they are multiplied."""
    computing, is_forward = UNIT_ROUNDOFF["f32"], problem.direction == "fwd"
    d, s = problem.q.shape[3], max(1, problem.k.shape[2])
    # tensor cores truncate as they add: that grows with the number of terms itself
    sums = computing * (40.0 + 2.0 * (sqrt(d) + sqrt(s))) + (d + s) * 2.0**-26
    return 2.0 * UNIT_ROUNDOFF[problem.dtype] + (4.0 * rounding + sums) * (1.0 if is_forward else 4.0)
