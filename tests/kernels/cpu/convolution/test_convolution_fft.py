"""Convolution by Fourier transforms: overlap-save, blocks, and everything that a convolution can be."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import check, compare, make_case, run
from convolution_cases import convolution
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue
from jitdnn.kernels.cpu.convolution.fft.algorithm import FEWEST_TAPS, Fft
from jitdnn.kernels.cpu.convolution.fft.cost import choose_plan
from jitdnn.kernels.cpu.convolution.fft.product import ProductShape, product_kernel, product_library
from jitdnn.kernels.formulas.overlap_save import FftAxis, Run, smooth_length
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

DEVICE = host(1)
PROCESSOR = DEVICE.isa.processor
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")


def verify(problem: Convolution, epilogue: Epilogue | None = None) -> None:
    """Against the reference, and the same bits with one thread and with two."""
    case, algorithm = make_case(problem, epilogue), Fft()
    kernels = [algorithm.build(problem, host(threads), epilogue) for threads in (1, 2)]
    size = algorithm.workspace(problem, DEVICE, epilogue)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        one, two = (run(kernel, case, size, alpha, beta) for kernel in kernels)
        compare(one, case, alpha, beta, algorithm.error_bound(problem))
        for first, second in zip(one, two, strict=True):
            assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "words",
    [
        "n2 c5 w100 k5 s40 pad20 g5",
        "n2 c3 w60 k5 s64 pad40:30 nwc",  # more taps than positions
        "n1 c4 w700 k6 s33 pad7:90 stride3 dil2 g2 flip nwc",
        "n1 c2 w300 k2 s32 pad200 dil3 stride5 g2",  # results that see nothing but padding
        "n2 c2 h20 w30 k4 r7 s9 pad3x4 stride2x1 g2 nhwc",
        "n1 c2 d5 h9 w30 k2 t3 r4 s5 pad1x2x0 f64",
        "n3 c2 w90 k2 s41 g2 f64",
        "n1 c3 w80 k2 s36 pad9 bf16",
        "n2 c2 w80 k2 s36 pad9 f16 g2",
    ],
)
def test_against_the_reference(words: str, direction: str) -> None:
    verify(convolution(f"conv_{direction} {words}"))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", ["n1 c2 w3000 k2 s50 pad25 g2", "n2 c1 w2500 k2 s33 pad16 stride2"])
def test_long_signals_are_cut_into_blocks(words: str, direction: str) -> None:
    problem = convolution(f"conv_{direction} {words}")
    assert choose_plan(problem, PROCESSOR).transforms.count > 1
    verify(problem)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_groups_and_images_are_taken_some_at_a_time(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitdnn.kernels.cpu.cost.FFT_SPECTRA_AT_ONCE_L3", 40_000 / PROCESSOR.l3(1.0))
    monkeypatch.setattr("jitdnn.kernels.cpu.cost.FFT_SIGNALS_L2", 1 / PROCESSOR.l2(1.0))
    problem = convolution(f"conv_{direction} n5 c14 w200 k21 s40 pad20 g7")
    plan = choose_plan(problem, PROCESSOR)
    assert plan.groups_at_once < 7 or plan.images_at_once < 5
    verify(problem)


def test_an_epilogue_is_applied_before_the_results_are_stored() -> None:
    problem = convolution("conv_fwd n2 c4 w90 k4 s40 pad20 g2")
    operand = TensorDescriptor.packed(problem.output.shape, "f32", "nhwc")
    verify(problem, Epilogue(trace(lambda acc, other: acc * 0.5 + other), (operand,)))


def test_a_batch_of_nothing_has_a_gradient_of_zeros() -> None:
    check(convolution("conv_bwd_filter n0 c2 w90 k2 s40 g2"))


def test_all_algorithms_on_a_long_filter() -> None:
    check(convolution("conv_fwd n1 c3 w130 k3 s70 pad35 g3"))


def test_the_error_does_not_grow_with_the_taps() -> None:
    """What is declared is for random numbers; a mean makes sums longer, and their relative errors no larger."""
    for taps, mean in ((64, 0.0), (1024, 0.0), (1024, 3.0)):
        problem = convolution(f"conv_fwd n1 c2 w{3 * taps} k2 s{taps} g2")
        rng = np.random.default_rng(0)
        inputs = [(rng.standard_normal(o.descriptor.shape) + mean).astype(np.float32) for o in problem.inputs]
        case, algorithm = make_case(problem, given=inputs), Fft()
        kernel = algorithm.build(problem, DEVICE)
        bound = algorithm.error_bound(problem)
        assert bound < 40 * UNIT_ROUNDOFF["f32"]
        compare(run(kernel, case, algorithm.workspace(problem, DEVICE), 1.0, 0.0), case, 1.0, 0.0, bound)


# overlap-save


@given(
    x=st.integers(1, 60), w=st.integers(1, 12), stride=st.integers(1, 4), padding=st.integers(0, 15),
    after=st.integers(0, 15), dilation=st.integers(1, 3), multiple=st.integers(0, 4), is_of_x=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_elements_meet_modulo_the_length_where_they_meet_on_the_line(
    x: int, w: int, stride: int, padding: int, after: int, dilation: int, multiple: int, is_of_x: bool
) -> None:
    span = (w - 1) * dilation
    y = (x + padding + after - span - 1) // stride + 1
    if y < 1:
        return
    axis = FftAxis(x, y, w, stride, padding, dilation)
    length = multiple * (span + 1) + 1 if multiple else None
    points = length or axis.shortest(is_of_x)
    if points < span + 1:
        return
    blocks = axis.blocks(length, is_of_x)
    covered = [
        i for block in blocks for run in [block.x if is_of_x else block.y] for i in range(run.first, run.last)
    ]
    assert covered == list(range(x if is_of_x else y))
    wanted = {(i, j, (i * stride - padding + j * dilation)) for i in range(y) for j in range(w)}
    wanted = {triple for triple in wanted if 0 <= triple[2] < x}

    def points_of(run: Run) -> dict[int, int]:
        found = {}
        for elements, its_points in run.pieces(points):
            found |= dict(zip(range(points)[its_points], range(elements.start, elements.stop), strict=True))
        assert len(found) == run.last - run.first
        return found

    met = set()
    for block in blocks:
        xs, ys, ws = points_of(block.x), points_of(block.y), points_of(axis.taps)
        for (q, i), (v, j) in itertools.product(ys.items(), ws.items()):
            if (q + v) % points in xs:
                met.add((i, j, xs[(q + v) % points]))
    assert met == wanted


@pytest.mark.parametrize("is_conjugate", [True, False])
@pytest.mark.parametrize("extents", [(1, 1, 1, 600), (4, 5, 3, 9), (7, 3, 2, 33)])
def test_products_of_spectra(extents: tuple[int, int, int, int], is_conjugate: bool) -> None:
    rows, columns, depth, count = extents
    rng = np.random.default_rng(0)

    def spectra(*leading: int) -> np.ndarray[tuple[int, ...], np.dtype[np.complex64]]:
        parts = rng.standard_normal((*leading, count, 2)).astype(np.float32)
        return parts.view(np.complex64)[..., 0]

    a, b, r = spectra(2, rows, depth), spectra(2, depth, columns), spectra(2, rows, columns)
    wanted = r + np.einsum("gikf,gkjf->gijf", a.conj() if is_conjugate else a, b)
    shape = ProductShape(
        2, rows, columns, depth, 2 * count, (rows * depth * 2 * count, depth * 2 * count, 2 * count),
        (columns * depth * 2 * count, 2 * count, columns * 2 * count),
        (rows * columns * 2 * count, columns * 2 * count, 2 * count),
    )  # fmt: skip
    kernel = product_kernel(product_library(DEVICE, "f32", is_conjugate), DEVICE, shape)
    kernel(None, [t.ctypes.data for t in (a, b, r)], 1.0, 1.0, 0)
    np.testing.assert_allclose(r, wanted, rtol=1e-5, atol=1e-5)
    kernel(None, [t.ctypes.data for t in (a, b, r)], 1.0, 0.0, 0)
    np.testing.assert_allclose(
        r, np.einsum("gikf,gkjf->gijf", a.conj() if is_conjugate else a, b), rtol=1e-5, atol=1e-5
    )


# when


def test_few_taps_are_refused() -> None:
    reason = Fft().refuse(convolution("conv_fwd n1 c2 w90 k2 s31"), DEVICE)
    assert reason is not None
    assert str(FEWEST_TAPS) in reason
    assert Fft().refuse(convolution("conv_fwd n1 c2 w90 k2 s32"), DEVICE) is None


def test_without_scipy_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = Fft().refuse(convolution("conv_fwd n1 c2 w90 k2 s40"), DEVICE)
    assert reason is not None
    assert "pip install scipy" in reason


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_filters_of_thousands_of_taps_are_its_own(direction: str) -> None:
    problem = convolution(f"conv_{direction} n2 c768 w8191 k768 s4096 g768")
    takers = [a for a in algorithms(problem, "cpu") if a.refuse(problem, DEVICE) is None]
    assert min(takers, key=lambda a: a.estimate(problem, DEVICE)).name == "fft"
    assert choose_plan(problem, PROCESSOR).workspace < 32 << 20


@given(st.integers(1, 200_000))
def test_lengths_are_the_next_that_suit_real_transforms(least: int) -> None:
    fft = pytest.importorskip("scipy.fft")
    assert smooth_length(least) == fft.next_fast_len(least, real=True)
