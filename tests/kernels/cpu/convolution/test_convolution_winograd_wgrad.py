"""The filter's gradient by minimal filtering: every order of its loops on the sizes that hurt, and how exact it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

import conformance
from conformance import INSTRUCTION_SETS, check, make_case, norm, run
from convolution_cases import convolution
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import summation_bound
from jitdnn.kernels.cpu.convolution.winograd_wgrad.algorithm import WinogradWgrad
from jitdnn.kernels.cpu.convolution.winograd_wgrad.plan import Order
from jitdnn.problems import parse

ORDERS: tuple[Order, ...] = get_args(Order)

SHAPES = [
    "n2 c20 h9 w11 k18 r3 s3 pad1",
    "n3 c17 h13 w9 k33 r3 s3 nhwc",
    "n2 c40 h14 w15 k12 r5 s5 pad2",
    "n1 c24 h9 w10 k24 r3 s3 pad2 dil2 g3",
    "n2 c18 h17 w16 k20 r5 s5 pad2 stride2 flip",
    "n1 c9 h5 w33 k17 r1 s7 pad0x3 nhwc f64",
]

OTHERS = [
    "n2 c19 w65 k20 s4 pad2",  # one axis
    "n1 c8 d5 h7 w9 k17 t3 r3 s3 pad1",  # taps of a third axis
    "n1 c8 d5 h7 w9 k17 t3 r2 s3 pad1 stride1x2x1 dil2x1x1 nhwc",
    "n1 c8 d9 h4 w5 k17 t3 r1 s1 pad1x0x0",  # taps of the third axis alone
    "n1 c8 d9 h6 w5 k17 t3 r3 s1 pad1x1x0 flip nhwc",
    "n2 c6 h1 w1 k7 r3 s3 pad1",  # tiles that are nearly all padding
    "n1 c3 h40 w3 k5 r9 s3 pad1",  # more taps than a subfilter has
    "n1 c16 h12 w13 k16 r3 s3 pad3:0x0:2 stride3x2 dil2x3",
    "n2 c20 h9 w11 k18 r3 s3 pad1 bf16",
    "n2 c20 h9 w11 k18 r3 s3 pad1 f16 nhwc",
    "n1 c16 h11 w12 k70 r3 s3 pad1 nchw x=nhwc",
    "n1 c16 h11 w12 k70 r3 s3 pad1 nchw y=nhwc",
]

ON_EVERY_SET = ["n2 c19 h9 w8 k35 r3 s3 pad1", "n1 c9 h9 w8 k11 r5 s3 dil1x2 pad2 f64 nhwc"]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Sequence[WinogradWgrad]:
    """The algorithms that `check` runs: those put into this list."""
    chosen: list[WinogradWgrad] = []
    monkeypatch.setattr(conformance, "algorithms", lambda problem, target: tuple(chosen))
    return chosen


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("words", SHAPES)
def test_orders(only: list[WinogradWgrad], words: str, order: Order) -> None:
    problem, algorithm = convolution(words, "bwd_filter"), WinogradWgrad(order)
    assert algorithm.sizes(problem, host(1).isa).order == order
    only.append(algorithm)
    assert check(problem) == {"winograd_filter"}


@pytest.mark.parametrize("words", OTHERS)
def test_awkward_shapes(only: list[WinogradWgrad], words: str) -> None:
    only.append(WinogradWgrad())
    assert check(convolution(words, "bwd_filter")) == {"winograd_filter"}


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("words", ON_EVERY_SET)
def test_narrower_instruction_sets(only: list[WinogradWgrad], words: str, cpu: str) -> None:
    only.append(WinogradWgrad())
    assert check(convolution(words, "bwd_filter"), cpu=cpu, scales=((1.0, 0.0),)) == {"winograd_filter"}


def test_several_blocks_and_splits(only: list[WinogradWgrad], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are carried from block to block, the last of which is short, and sets of them that are added."""
    problem = convolution("conv_bwd_filter n13 c16 h13 w15 k16 r3 s3 pad1")
    algorithm = WinogradWgrad("tile-resident")
    plan = replace(algorithm.sizes(problem, host(1).isa), kc_units=2, split_k=3)
    assert plan.tile_blocks > 2 * plan.split_k
    assert plan.unit_count % plan.kc_units == 1
    monkeypatch.setattr(algorithm, "sizes", lambda problem, processor: plan)
    only.append(algorithm)
    assert check(problem) == {"winograd_filter"}


@pytest.mark.parametrize(
    "words",
    [
        "n1 c20 h7 w7 k18 r3 s3 pad1",
        "n8 c16 h28 w28 k16 r3 s3 pad1",
        "n2 c16 h28 w28 k16 r5 s5 pad2",
        "n2 c16 w700 k16 s5",
    ],
)
def test_declared_error_is_near_what_is_measured(words: str) -> None:
    """Neither exceeded nor beyond five times what normal numbers show, and within what a request may accept."""
    problem, algorithm, device = convolution(words, "bwd_filter"), WinogradWgrad(), host(1)
    case = make_case(problem)
    (result,) = run(algorithm.build(problem, device), case, algorithm.workspace(problem, device))
    error = norm(result - case.results[0]) / case.scales[0]
    assert error < algorithm.error_bound(problem) < 5 * error
    assert algorithm.error_bound(problem) <= max(5e-6, 2 * summation_bound(problem))


def test_long_sums_are_added_in_blocks() -> None:
    """A hundred times as many terms make hardly more of an error: partial sums stay short."""
    algorithm = WinogradWgrad()
    short, long = (convolution(f"conv_bwd_filter n{n} c8 h16 w16 k8 r3 s3 pad1") for n in (2, 200))
    assert algorithm.error_bound(long) < 3 * algorithm.error_bound(short) < summation_bound(long)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("conv_fwd n1 c8 h8 w8 k8 r3 s3", "filter's gradient"),
        ("conv_bwd_filter n1 c8 h8 w8 k8 r1 s1", "several taps"),
        ("conv_bwd_filter n0 c8 h8 w8 k8 r3 s3", "nothing to sum"),
    ],
)
def test_refusals(words: str, reason: str) -> None:
    assert reason in str(WinogradWgrad().refuse(parse(words), host(1)))
