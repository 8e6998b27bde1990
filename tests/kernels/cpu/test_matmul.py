"""Matrix multiplication: every algorithm on the sizes that hurt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import cycles, make_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry
from jitdnn.kernels.cpu.lowering import lower_matmul
from jitdnn.problems import MatMul, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.rtcg.isa import isa as isa_of
from jitdnn.tensor import TensorDescriptor
from processors import MACHINES
from strategies import matmuls

SHAPES = [
    "m1 k1 n1",
    "m1 k7 n1",
    "m1 k65 n63",  # a vector times a matrix
    "m63 k65 n1",
    "m5 k1 n7",  # an outer product
    "m2 k3 n4",
    "m13 k17 n19",
    "m63 k65 n64",
    "m65 k63 n33 f64",
    "m17 k700 n35",  # a long sum
    "m5 k20000 n7",
    "m130 k40 n200",
    "m33 k20 n45 a=columns",
    "m33 k20 n45 b=columns",
    "m33 k20 n45 a=columns b=columns",
    "m33 k20 n45 c=columns",
    "m33 k20 n45 f64 a=columns b=columns c=columns",
    "batch3 m5 k7 n18",
    "batch2x3 m5 k7 n18 a=columns",
    "batch4 m9 k17 n20 a=s0,17,1",  # broadcast
    "batch4x2 m9 k17 n20 b=s340,0,20,1 f64",
    "m0 k3 n4",
    "m3 k4 n0",
    "m3 k0 n4",
    "batch0 m3 k4 n5",
    "m33 k21 n45 u8 by_i8 to_u8",
    "batch2 m9 k70 n20 i8 to_i32 b=columns",
    "m3 k0 n4 u8 by_i8",
]


def product(words: str) -> MatMul:
    problem = parse(f"matmul {words}")
    assert isinstance(problem, MatMul)
    return problem


@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str) -> None:
    check(product(words))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("words", ["m19 k9 n37", "batch2x3 m5 k7 n18"])
def test_orders_in_memory(words: str, arrangement: str) -> None:
    check(arranged(product(words), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("words", ["m35 k17 n37", "m35 k17 n37 f64 b=columns", "batch3 m7 k9 n5"])
def test_narrower_instruction_sets(words: str, cpu: str) -> None:
    check(product(words), cpu=cpu)


@pytest.mark.parametrize("words", ["m19 k9 n37", "m3 k900 n37", "batch2 m5 k7 n18 c=columns", "m3 k0 n4"])
def test_epilogues(words: str) -> None:
    problem = product(words)
    shape = problem.c.shape
    bias = TensorDescriptor(shape, (*[0] * (len(shape) - 1), 1), "f32")
    residual = TensorDescriptor.packed(shape, "f32")
    expression = trace(lambda acc, bias, residual: apply("relu", acc + bias) + residual)
    check(problem, Epilogue(expression, (bias, residual)))


def test_every_algorithm_is_reached() -> None:
    needs_more = set() if isa_of().has_dot else {"vnni"}
    assert unreached([product(words) for words in SHAPES]) == needs_more


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(matmuls())
def test_any_product(problem: MatMul) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


def test_rows_without_a_nan_stay_clean() -> None:
    a, b = np.ones((37, 19), np.float32), np.ones((19, 21), np.float32)
    a[5, 3], b[7, 20] = np.nan, np.inf
    expected = np.full((37, 21), 19, np.float32)
    expected[:, 20] = np.inf
    expected[5] = np.nan
    for name, ours in results_of(product("m37 k19 n21"), a, b).items():
        np.testing.assert_array_equal(ours, expected, err_msg=name)


# ---- a second matrix beyond the last cache


@pytest.mark.parametrize(
    "words", ["m37 k900 n130", "m45 k900 n99 b=columns", "batch2 m40 k501 n70 a=columns f64"]
)
def test_large_second_matrix_is_not_packed_into_memory(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each panel of it is packed where it is multiplied with, and all rows are one block; here with small caches."""
    monkeypatch.setattr(cost, "GEMM_INPUT_TILE_L2", 0.004)
    isa = isa_of()
    c = lower_matmul(product(words), ())
    several = make_plan(Geometry.of(c, isa))
    assert not several.packs_in_task
    monkeypatch.setattr(cost, "GEMM_PACKED_FILTER", 0.0)
    single = make_plan(Geometry.of(c, isa))
    assert single.packs_in_task
    assert cycles(single) < cycles(several)
    check(product(words))


@pytest.mark.parametrize("words", ["m47 k901 n150", "m47 k1024 n150", "m33 k903 n70 a=columns f64"])
def test_sums_are_spilled_where_blocks_would_read_panels_again(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with small caches: the last tile of rows is moved back, and many rows 4 KiB apart are packed."""
    monkeypatch.setattr(cost, "GEMM_INPUT_TILE_L2", 0.006)
    monkeypatch.setattr(cost, "GEMM_SPILLED_SUMS_L2", 0.03)
    monkeypatch.setattr(cost, "GEMM_NEAR_FILTER_L2", 0.0)
    problem = product(words)
    plan = make_plan(Geometry.of(lower_matmul(problem, ()), isa_of()), prepacks=True)
    assert plan.spills
    assert plan.is_input_unpacked or plan.c.depth == 1024
    bias = TensorDescriptor(problem.c.shape, (0, 1), problem.c.dtype)
    check(problem, Epilogue(trace(lambda acc, bias: apply("relu", acc + bias)), (bias,)), cpu="host")
    check(problem)


@pytest.mark.parametrize("name", MACHINES)
def test_workspace_of_large_matrices_is_small_for_few_rows(name: str) -> None:
    """AlexNet's first InnerProduct: 144 MiB of weights, which no packed copy of goes to memory."""
    words = "m16 k9216 n4096 b=columns"
    plan = make_plan(Geometry.of(lower_matmul(product(words), ()), MACHINES[name]))
    assert plan.workspace(1) < 8 << 20
    plan = make_plan(Geometry.of(lower_matmul(product("m4096 k4096 n4096"), ()), MACHINES[name]))
    assert not plan.packs_in_task, "many rows read a packed copy often"
