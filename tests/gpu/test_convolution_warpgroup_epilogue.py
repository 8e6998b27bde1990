"""Epilogues of products by warpgroups whose operands are brought by whole sectors, and those that are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import epilogue_of, plain_kernel, source_of
from jitdnn.kernels.cuda.gemm.code import ByAddress
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import erf, maximum
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import SMALL, aligned, on_hopper  # noqa: F401


def _gelu(x: Any) -> Any:
    return x * (erf(x / 2.0**0.5) + 1.0) * 0.5


FORMULAS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "gelu": (lambda acc, b: _gelu(acc + b), ("channel",)),
    "residual": (lambda acc, b, r: maximum(acc + b + r, 0.0), ("channel", "as the result")),
    "scaled": (lambda acc, b, s, r: (acc + b) * s + r, ("channel", "f32 channel", "one image")),
    "two and a pixel": (lambda acc, r, p, q: (acc + r) * p + q, ("as the result", "pixel", "as the result")),
    "one number": (lambda acc, a: acc * a / 3.0, ("one",)),
    "across": (lambda acc, r: acc + r, ("channels first",)),
}


def _operand(problem: Convolution, kind: str) -> TensorDescriptor:
    shape, dtype = problem.output.shape, problem.output.dtype
    last = TensorDescriptor.packed(shape, dtype, "nhwc").strides
    strides = {
        "channel": (0, 1, 0, 0), "f32 channel": (0, 1, 0, 0), "as the result": last, "one image": (0, *last[1:]),
        "pixel": (shape[2] * shape[3], 0, shape[3], 1), "one": (0, 0, 0, 0),
        "channels first": TensorDescriptor.packed(shape, dtype).strides,
    }[kind]  # fmt: skip
    return TensorDescriptor(shape, strides, "f32" if kind.startswith("f32") else dtype)


def _epilogue(problem: Convolution, name: str) -> Epilogue:
    formula, kinds = FORMULAS[name]
    return Epilogue(trace(formula), tuple(_operand(problem, kind) for kind in kinds))


def _problem(words: str, dtype: str) -> Convolution:
    return convolution(f"{words} {dtype} nhwc")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", FORMULAS)
def test_any_operands(name: str, dtype: str, cuda_device: Any) -> None:
    """Rows that end within a tile, columns within a group of 32; alpha and beta too."""
    problem = _problem("conv_fwd n3 c16 h6 w7 k72 r1 s1", dtype)
    run_algorithm(WarpgroupGemm((SMALL,)), make_case(problem, _epilogue(problem, name)), cuda_device)


@pytest.mark.parametrize(
    "words", ["conv_bwd_data n2 c72 h9 w7 k16 r3 s3 stride2", "conv_fwd n2 c32 h5 w5 k48 r3 s3 g2"]
)
def test_phases_and_groups(words: str, cuda_device: Any) -> None:
    problem = _problem(words, "f16")
    case = make_case(problem, _epilogue(problem, "residual"))
    run_algorithm(WarpgroupGemm((SMALL,)), case, cuda_device)


def test_which_are_read_wide(architecture: Any) -> None:
    def is_wide(words: str, name: str, dtype: str = "f16") -> bool:
        problem = _problem(words, dtype)
        plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture)
        return bool(dict(source_of(plan, problem.output, _epilogue(problem, name)).defines)["IS_WIDE"])

    fits, odd = "conv_fwd n3 c16 h6 w7 k72 r1 s1", "conv_fwd n3 c16 h6 w7 k71 r1 s1"
    assert all(
        is_wide(fits, name, dtype) for name in FORMULAS if name != "across" for dtype in ("f16", "f32")
    )
    assert not is_wide(fits, "across")
    assert not is_wide(odd, "residual")


def test_operands_at_any_address_are_read_one_by_one(architecture: Any) -> None:
    problem = _problem("conv_fwd n3 c16 h6 w7 k72 r1 s1", "f16")
    plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture)
    kernel = plain_kernel(plan, problem.output, architecture, _epilogue(problem, "residual"))
    assert isinstance(kernel, ByAddress)
    assert kernel.alignments == (1, 1, 1, 4, 16)
    narrow = replace(plan, is_wide=False)
    assert not dict(source_of(narrow, problem.output, _epilogue(problem, "residual")).defines)["IS_WIDE"]


def test_half_precision_has_a_shorter_gelu(architecture: Any) -> None:
    for dtype, is_short in (("f16", True), ("bf16", True), ("f32", False)):
        problem = _problem("conv_fwd n3 c16 h6 w7 k72 r1 s1", dtype)
        plan: Any = WarpgroupGemm((SMALL,)).sizes(problem, architecture)
        assert (
            "gelu_rough(" in epilogue_of(plan, problem.output, _epilogue(problem, "gelu")).functions
        ) is is_short
