"""Matrix products on CUDA's tensor cores: every orientation, batches, epilogues, tensors at any address."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import cases
from cases import make_case
from examples import examples
from harness import run_algorithm
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.matmul import TensorCoreMatmul, TensorCoreMatmulInPlace
from jitdnn.kernels.cuda.warpgroup_matmul import (
    WarpgroupMatmul,
    WarpgroupMatmulDivided,
    WarpgroupMatmulHalves,
    WarpgroupMatmulInPlace,
)
from jitdnn.problems import MatMul, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor
from strategies import matmuls

ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes


def product(words: str) -> MatMul:
    problem = parse(f"matmul {words}")
    assert isinstance(problem, MatMul)
    return problem


EVERY = (
    TensorCoreMatmul(), TensorCoreMatmulInPlace(), WarpgroupMatmul(), WarpgroupMatmulInPlace(), WarpgroupMatmulHalves(),
    WarpgroupMatmulDivided(),
)  # fmt: skip


def check(problem: MatMul, device: Any, epilogue: Epilogue | None = None) -> None:
    case = make_case(problem, epilogue)
    for algorithm in EVERY:
        if problem.a.dtype == "f64" or 0 in problem.c.shape or problem.k == 0:
            assert algorithm.refuse(problem, device, epilogue)
        elif algorithm.refuse(problem, device, epilogue) is None:
            run_algorithm(algorithm, case, device)


ORIENTATIONS = {
    "m40 k72 n24 bf16": "rows",
    "m40 k72 n24 bf16 b=columns": "rows",
    "m40 k70 n24 bf16 a=columns b=columns": "columns",
    "m40 k72 n24 f16 a=columns": "across",
    "m200 k640 n136 f32 a=columns": "across",
    "m130 k20 n70 f32": "rows or columns",  # as fast as each other: devices differ
    "batch3 m40 k72 n24 bf16": "rows",
    "batch2x3 m24 k40 n16 f16 a=columns": "across",
    "batch2x2 m24 k40 n16 bf16 a=columns b=columns": "columns",
    "batch4 m24 k40 n16 bf16 a=s0,40,1": "rows",
    # heads within images: queries by keys, and probabilities by values
    "batch2x3 m24 k40 n16 f16 a=s2880,40,120,1 b=s1920,40,1,120": "rows",
    "batch2x3 m9 k24 n16 bf16 b=s1152,16,48,1 c=s432,16,48,1": "rows",
    "batch2x3 m24 k40 n16 bf16 a=s2880,24,1,72 b=s1920,40,1,120": "columns",
    "batch3x2x5 m24 k40 n16 f16 a=s12000,4800,960,40,1": "rows",
    # one matrix for each run of the batch
    "batch2x3 m24 k40 n16 bf16 b=s0,640,16,1": "rows",
    "batch3x2 m24 k40 n16 f16 a=s0,960,40,1 b=columns": "rows or columns",
    "batch2x2 m5 k3 n2 f32 b=s0,6,2,1": "rows or columns or across",
}


@pytest.mark.parametrize("alignment", ["aligned", "anywhere"])
@pytest.mark.parametrize("words", ORIENTATIONS)
def test_every_orientation(
    words: str, alignment: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if alignment == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = product(words)
    assert TensorCoreMatmul().refuse(problem, cuda_device) is None
    assert TensorCoreMatmul().sizes(problem, cuda_device, False)[0].name in ORIENTATIONS[words].split(" or ")
    check(problem, cuda_device)


@pytest.mark.parametrize("alignment", ["aligned", "anywhere"])
@pytest.mark.parametrize(
    "words",
    [
        "m40 k144 n24 i8 to_i8 b=columns",
        "m70 k33 n48 i8 to_i32",
        "batch2 m40 k64 n24 i8 a=columns",
        "m40 k144 n32 f8e4m3 to_bf16 b=columns",
        "m70 k33 n48 f8e5m2 by_f8e4m3 to_f8e4m3",
        "batch3 m40 k64 n24 f8e4m3 by_f8e5m2 a=columns",
        "m24 k640 n136 f8e4m3 to_f8e5m2 a=columns b=columns",
    ],
)
def test_bytes(words: str, alignment: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers and reals of 8 bits, which are read along k alone: others are packed."""
    if alignment == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = product(words)
    takers = [one for one in EVERY if one.refuse(problem, cuda_device) is None]
    assert any(isinstance(one, TensorCoreMatmul) for one in takers) != problem.has_float8
    if cuda_device.arch == "sm_90a":
        assert any(isinstance(one, WarpgroupMatmul) for one in takers)
    check(problem, cuda_device)


@pytest.mark.parametrize(
    "words",
    [
        "m19 k9 n37 bf16",
        "m16 k300 n24 f16 b=columns",
        "batch2x3 m10 k24 n16 bf16",
        "batch2x3 m10 k24 n16 bf16 a=s720,24,72,1 c=s480,16,48,1",
        "m17 k24 n8 a=columns",
    ],
)
def test_epilogues(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = product(words)
    shape = problem.c.shape
    bias = TensorDescriptor(shape, (*[0] * (len(shape) - 1), 1), "f32")
    residual = TensorDescriptor.packed(shape, problem.a.dtype)
    expression = trace(lambda acc, bias, residual: apply("relu", acc + bias) + residual)
    check(problem, cuda_device, Epilogue(expression, (bias, residual)))


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problem=matmuls())
def test_any_product(problem: MatMul, cuda_device: Any) -> None:
    check(problem, cuda_device)


def test_refusals(cuda_device: Any) -> None:
    uneven = product("batch2x2x2 m4 k4 n4 bf16 a=s300,100,16,4,1")
    assert "evenly spaced" in str(TensorCoreMatmul().refuse(uneven, cuda_device))
    runs = product("batch2x2 m8 k8 n8 bf16 a=s200,64,8,1")
    assert TensorCoreMatmul().refuse(runs, cuda_device) is None
    assert "evenly spaced" in str(WarpgroupMatmul().refuse(runs, cuda_device))
    assert "f64" in str(TensorCoreMatmul().refuse(product("m4 k4 n4 f64"), cuda_device))
