"""Products with few rows, and the convolutions that are such: both forms, several row tiles, turned, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn as jd
from conformance import INSTRUCTION_SETS, check
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.algorithm import _launch as launches
from jitdnn.kernels.cpu.convolution.im2col import Im2col
from jitdnn.kernels.cpu.lowering import lower_matmul
from jitdnn.kernels.cpu.skinny_gemm import algorithm as skinny
from jitdnn.kernels.cpu.skinny_gemm.algorithm import SkinnyConvolution, SkinnyGemm
from jitdnn.kernels.cpu.skinny_gemm.cost import candidates, cycles
from jitdnn.kernels.cpu.skinny_gemm.plan import Product, SkinnyPlan
from jitdnn.problems import MatMul, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.rtcg.isa import isa as isa_of
from jitdnn.tensor import TensorDescriptor

PRODUCTS = {
    "m1 k33 n70": ("columns", False, False),
    "m3 k130 n515": ("columns", False, False),
    "m37 k301 n67": ("columns", True, False),
    "m1 k67 n35 b=columns": ("dots", False, False),
    "m41 k301 n67 b=columns": ("dots", True, False),
    "m90 k65 n1": ("dots", False, True),
    "batch2x3 m2 k9 n70": ("columns", False, False),
    "m70 k33 n2 a=columns": ("columns", False, True),
}


def plans_of(words: str) -> list[SkinnyPlan]:
    problem = parse(f"matmul {words}")
    assert isinstance(problem, MatMul)
    product = Product.of(lower_matmul(problem))
    assert product is not None
    return list(candidates(product, isa_of()))


@pytest.mark.parametrize("words", PRODUCTS)
def test_each_form(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever this machine would choose."""
    found = [p for p in plans_of(words) if (p.form, p.is_blocked, p.product.is_turned) == PRODUCTS[words]]
    plan = min(found, key=cycles)
    monkeypatch.setattr(skinny, "_plan_of", lambda problem, isa, epilogue: plan)
    launches.cache_clear()
    check(parse(f"matmul {words}"))
    launches.cache_clear()


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("words", ["m37 k301 n67", "m41 k301 n67 f64 b=columns", "m1 k9 n35 f64"])
def test_narrower_vectors(words: str, cpu: str) -> None:
    check(parse(f"matmul {words}"), cpu=cpu)


@pytest.mark.parametrize("words", ["m3 k130 n515", "m41 k301 n67 b=columns", "m90 k65 n1"])
def test_epilogues(words: str) -> None:
    problem = parse(f"matmul {words}")
    assert isinstance(problem, MatMul)
    shape = problem.c.shape
    bias = TensorDescriptor(shape, (0, 1), "f32")
    check(problem, Epilogue(trace(lambda acc, b: apply("relu", acc + b)), (bias,)))


@pytest.mark.parametrize(
    "words",
    [
        "n1 c65 h1 w1 k35 r1 s1",
        "n5 c65 h1 w1 k35 r1 s1",
        "n3 c17 h1 w1 k35 r1 s1 nhwc",
        "n2 c12 h5 w3 k70 r1 s1 g2 nhwc",
        "n2 c12 h5 w9 k3 r1 s1",
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_convolutions_of_one_tap(words: str, direction: str) -> None:
    problem = parse(f"conv_{direction} {words}")
    assert SkinnyConvolution().refuse(problem, host(1)) is None
    check(problem)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("n1 c65 h4 w4 k35 r3 s3 pad1", "several taps"),
        ("n1 c65 h4 w4 k35 r1 s1 stride2", "stride"),
        ("n1 c65 h4 w4 k35 r1 s1 pad1", "padding"),
        ("n1 c65 h40 w40 k70 r1 s1", "up to 64"),
    ],
)
def test_refused_convolutions(words: str, why: str) -> None:
    reason = SkinnyConvolution().refuse(parse(f"conv_fwd {words}"), host(1))
    assert reason is not None
    assert why in reason


def test_refused_strides() -> None:
    reason = SkinnyGemm().refuse(parse("matmul m5 k9 n70 b=s210,3"), host(1))
    assert reason is not None
    assert "neighbours in memory" in reason


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 80),
    st.integers(1, 90),
    st.sampled_from(["", "b=columns", "a=columns"]),
)
def test_any_product_with_few_rows(m: int, k: int, n: int, how: str) -> None:
    check(parse(f"matmul m{m} k{k} n{n} {how}"), scales=((1.5, 0.0), (1.0, 1.0)))


# ---- what the public function adds


def test_kept_matrices() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((70, 33)), rng.standard_normal((33, 90))
    kept = jd.KeptFilter(b)
    for rows in (70, 1):
        np.testing.assert_allclose(jd.matmul(a[:rows], kept), a[:rows] @ b, rtol=1e-12, atol=1e-12)
    assert kept.nbytes > 0  # of the 70 rows: one row reads the matrix as it is
    b *= 2
    kept.update()
    np.testing.assert_allclose(jd.matmul(a, kept), a @ b, rtol=1e-12, atol=1e-12)


def test_epilogue_of_the_function() -> None:
    rng = np.random.default_rng(2)
    a, b, bias, other = (rng.standard_normal(shape) for shape in ((2, 5, 33), (33, 20), (20,), (2, 5, 20)))
    np.testing.assert_allclose(jd.matmul(a, b, operands=(bias,)), a @ b + bias, atol=1e-12)
    fused = jd.matmul(a, b, operands=(bias, other), epilogue=lambda acc, u, v: jd.maximum(acc + u, 0.0) * v)
    np.testing.assert_allclose(fused, np.maximum(a @ b + bias, 0) * other, atol=1e-12)
    with pytest.raises(InvalidShape, match="does not fit the result"):
        jd.matmul(a, b, operands=(bias[:7],))
    with pytest.raises(InvalidArgument, match="epilogue takes"):
        jd.matmul(a, b, epilogue=lambda acc, u: acc + u)


@pytest.mark.parametrize(
    "words", ["n1 c512 h1 w1 k1280 r1 s1", "n1 c16 h120 w160 k64 r1 s1", "n1 c960 h1 w1 k240 r1 s1"]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_tap_is_not_left_to_another_library_with_threads_of_its_own(words: str, threads: int) -> None:
    with jd.settings(threads=threads):
        assert jd.plan(f"conv_fwd {words}").algorithm != Im2col.name
