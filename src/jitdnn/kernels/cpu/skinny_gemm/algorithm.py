"""Matrix products with few rows on one side, and the convolutions that are such: nothing is packed ahead."""

from __future__ import annotations

from functools import lru_cache

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Epilogue, OwnProblem
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.lowering import lower_convolution, lower_matmul
from jitdnn.kernels.cpu.skinny_gemm.code import trace
from jitdnn.kernels.cpu.skinny_gemm.cost import choose, cycles
from jitdnn.kernels.cpu.skinny_gemm.plan import MOST_ROWS, Product, SkinnyPlan
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.rtcg.isa import Isa


class _Skinny(CpuAlgorithm[OwnProblem]):
    """What products and convolutions share; see plan.py."""

    name = "skinny_gemm"
    may_overwrite_operands = True

    def launch(self, problem: OwnProblem, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = _plan_of(problem, device.isa, epilogue)
        assert isinstance(plan, SkinnyPlan)
        counted, pointers = cycles(plan), pointer_count(problem, epilogue)
        tasks, per_task = plan.units.split(device, counted)
        return Launch(
            problem, self.name, code_key(epilogue), lambda module, code: trace(module, code, pointers, epilogue),
            [("units", tasks)], pointers, counted, tasks, integers=(per_task,), code=plan,
        )  # fmt: skip

    def refusal(self, problem: OwnProblem, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        plan = _plan_of(problem, device.isa, epilogue)
        return plan if isinstance(plan, str) else None


class SkinnyGemm(_Skinny[MatMul]):
    """Matrix products with few rows or few columns, whose large matrix is read in place."""

    problem = MatMul


class SkinnyConvolution(_Skinny[Convolution]):
    """Forward and backward data of filters with one tap, of few pixels or few channels."""

    problem = Convolution


@lru_cache(1024)
def _plan_of(problem: MatMul | Convolution, isa: Isa, epilogue: Epilogue | None) -> SkinnyPlan | str:
    """The plan, or why there is none."""
    operands = epilogue.operands if epilogue else ()
    if isinstance(problem, MatMul):
        product = Product.of(lower_matmul(problem, operands))
    elif problem.direction == "bwd_filter":
        return "it computes forward and backward data"
    else:
        product = _product_of(lower_convolution(problem, operands))
    if product is None:
        return "a filter of several taps, or with a stride or padding, is no matrix product of its tensors"
    rows = min(product.m, product.n)
    if rows > MOST_ROWS:
        return (
            f"the product has {product.m} rows and {product.n} columns: it takes up to {MOST_ROWS} of either"
        )
    plan = choose(product, isa)
    if plan is None:
        return "neither the columns nor the depth of the larger matrix are neighbours in memory"
    return plan


def _product_of(parts: tuple[Correlation, ...]) -> Product | None:
    return Product.of(parts[0].merged()) if len(parts) == 1 else None
