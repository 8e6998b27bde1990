"""Convolution in its three directions and the bias gradient: every algorithm on the sizes that hurt."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import jitdnn as jd
from conformance import (
    ARRANGEMENTS,
    INSTRUCTION_SETS,
    accepting,
    arranged,
    check,
    compare,
    make_case,
    run,
    unreached,
)
from convolution_cases import convolution, fused
from examples import examples
from jitdnn.devices.cpu import host
from jitdnn.problems import BiasGradient, Convolution, Problem, parse
from jitdnn.rtcg.isa import isa
from pairs import pairwise
from strategies import bias_gradients, convolutions

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")

SHAPES = [
    "n1 c1 h1 w1 k1 r1 s1",
    "n2 c3 h13 w11 k5 r3 s3 pad1",
    "n2 c63 h5 w7 k65 r1 s1",  # a matrix product for each image
    "n3 c64 h4 w4 k16 r1 s1 nhwc",  # one matrix product
    "n1 c17 h9 w9 k16 r1 s1 stride2 nhwc",
    "n1 c65 h4 w5 k63 r3 s3 pad1 nhwc",
    "n1 c130 h9 w9 k70 r3 s3 pad1",  # a long sum
    "n1 c2000 h3 w3 k20 r1 s1",
    "n8 c3 h40 w40 k5 r3 s3",  # a long sum in the gradient of the filter
    "n3 c16 h30 w33 k33 r3 s3 pad1",  # several tiles in every direction
    "n2 c3 h2 w3 k4 r5 s7 pad2x3",  # filter larger than the image
    "n1 c3 h5 w5 k4 r3 s3 pad4",  # outputs that see nothing but padding
    "n2 c3 h31 w29 k17 r7 s7 stride2 pad3",  # a first layer
    "n1 c5 h17 w16 k9 r2 s3 stride3 pad0x1",
    "n1 c4 h11 w13 k6 r2 s1 stride3x4 nhwc",  # elements that no tap meets
    "n1 c8 h12 w11 k8 r3 s2 dil2x3 pad2",
    "n1 c8 h12 w11 k8 r2 s3 dil3x2 pad2x1 stride2 nhwc",
    "n2 c4 h8 w9 k6 r3 s3 pad0:2x3:1 stride2x1",
    "n5 c12 h4 w4 k10 r4 s4",  # fully connected
    "n1 c15 h7 w6 k9 r3 s3 pad1 g3",  # groups that do not divide a vector
    "n2 c34 h5 w5 k22 r3 s3 pad1 g2 nhwc",
    "n2 c19 h9 w8 k19 r3 s3 pad1 g19",  # depthwise
    "n1 c33 h9 w8 k33 r5 s5 pad2 stride2 g33 nhwc",
    "n1 c7 h6 w6 k21 r3 s3 pad1 g7",  # depthwise with three outputs a channel
    "n1 c10 h9 w9 k20 r3 s3 dil2 pad2 g10 nhwc",
    "n1 c3 h6 w7 k4 r3 s2 flip pad1:0x0:1",
    "n2 c6 h6 w7 k4 r3 s3 flip stride2 g2 nhwc",
    "n2 c5 w37 k6 s5 pad2 stride2",
    "n1 c16 w65 k17 s9 dil3 pad0:4 nhwc",
    "n1 c3 d5 h6 w7 k4 t3 r2 s3 pad1x0x1 stride1x2x1",
    "n1 c6 d4 h4 w5 k8 t1 r3 s3 g2 dil1x1x2 pad1 nhwc",
    "n1 c3 d4 h8 w8 k10 t2 r4 s4 stride2x4x4",  # patches: the stride is the filter
    "n2 c9 h7 w8 k11 r3 s3 pad1 f64",
    "n1 c20 h9 w9 k9 r3 s3 pad1 stride2 f64 nhwc",
    "n1 c9 h7 w8 k9 r3 s3 pad1 g9 f64",
    "n0 c3 h5 w5 k4 r3 s3 pad1",  # an empty batch
    "n0 c6 w3 k2 s1 g2 nhwc",  # whose pixels are one row, without any
    "n0 c32 h1 w2 k2 r1 s1 g2 f64 nhwc",
    "n1 c9 h6 w7 k10 r3 s3 pad1 nhwc w=nchw",
    "n1 c9 h6 w7 k10 r3 s3 pad1 nchw x=nhwc",
    "n1 c9 h6 w7 k10 r3 s3 pad1 nchw y=nhwc",
]

REARRANGED = [
    "n2 c5 h9 w8 k18 r3 s3 pad1",
    "n2 c6 h5 w6 k6 r3 s2 stride2x1 pad1:0x0 g6",
    "n2 c5 h9 w4 k18 r1 s1",
]

ON_EVERY_SET = [
    "n2 c19 h9 w8 k35 r3 s3 pad1",
    "n1 c17 h7 w9 k18 r3 s3 pad1 stride2 nhwc",
    "n2 c33 h5 w7 k20 r1 s1",
    "n1 c21 h8 w9 k21 r3 s3 pad1 g21 nhwc",
    "n1 c9 h7 w8 k11 r3 s3 dil2 pad2 f64",
]

BIAS_SHAPES = [
    "n1 k1",
    "n64 k10",
    "n3 k17 q63",
    "n2 k65 p7 q9 nhwc",
    "n2 k5 p13 q11",
    "n1 k3 o3 p4 q5 f64",
    "n2 k16 o2 p3 q5 nhwc f64",
    "n0 k7 p3 q3",
    "n2 k33 p40 q41",
    "n30000 k10",
    "n9 k3 p100 q99",
    "n9 k17 p100 q99 nhwc",
]


def cases() -> list[tuple[str, str]]:
    """Every shape with the gradient of the filter, and with forward and the gradient of the data, too, if it has
    strides. Without strides both are the same correlation for all algorithms (other channels and padding, the filter
    turned): such shapes have one of the two, in turn."""
    found, turn = [], 0
    for words in SHAPES:
        found.append((words, "bwd_filter"))
        if "stride" in words:
            found += [(words, "fwd"), (words, "bwd_data")]
        else:
            found.append((words, DIRECTIONS[turn % 2]))
            turn += 1
    return found


@pytest.mark.parametrize(("words", "direction"), cases())
def test_awkward_shapes(words: str, direction: str) -> None:
    check(convolution(words, direction))


@pytest.mark.parametrize(
    ("words", "direction", "arrangement"), pairwise(REARRANGED, DIRECTIONS, ARRANGEMENTS)
)
def test_orders_in_memory(words: str, direction: str, arrangement: str) -> None:
    check(arranged(convolution(words, direction), arrangement))


# those that alone reach an algorithm: of groups, and of matrix products
ALONE = [words for words in ON_EVERY_SET if " g" in words or " r1 s1" in words]
NARROWER = [
    *pairwise([words for words in ON_EVERY_SET if words not in ALONE], DIRECTIONS, INSTRUCTION_SETS[1:]),
    *product(ALONE, DIRECTIONS, INSTRUCTION_SETS[1:]),
]


def test_every_algorithm_meets_every_narrower_set() -> None:
    def met(cases: Iterable[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        return {
            (algorithm.name, direction, cpu)
            for words, direction, cpu in cases
            for algorithm in accepting(convolution(words, direction), host(1, cpu))
        }

    assert met(NARROWER) == met(product(ON_EVERY_SET, DIRECTIONS, INSTRUCTION_SETS[1:]))


@pytest.mark.parametrize(("words", "direction", "cpu"), NARROWER)
def test_narrower_instruction_sets(words: str, direction: str, cpu: str) -> None:
    check(convolution(words, direction), cpu=cpu, scales=((1.0, 0.0),))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_algorithm_is_reached(direction: str) -> None:
    problems: list[Problem] = [convolution(words, d) for words, d in cases() if d == direction]
    if direction == "fwd":
        problems.append(parse("conv_fwd n1 c5 h5 w6 k7 r3 s3 i8"))
    needs_more = {"vnni"} if direction == "fwd" and not isa().has_dot else set()
    assert unreached(problems) == needs_more


def test_places_that_no_tap_meets() -> None:
    """Every second place of x gets zeros; rows of x lie along lanes, with few channels to walk through."""
    check(parse("conv_bwd_data n3 c1 w8 k9 s1 stride2 pad4 flip f16 x=s9,-3,27 w=s2,2,2 y=s8,24,1"))


@settings(
    max_examples=examples(15),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example costs a compilation: no shrinking
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(convolutions())
def test_any_convolution(problem: Convolution) -> None:
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", ["n2 c19 h9 w8 k35 r3 s3 pad1", "n2 c21 h8 w9 k21 r3 s3 pad1 g21"])
def test_one_kernel_called_by_several_threads(words: str, direction: str) -> None:
    """A kernel keeps nothing of a call: calls with their own tensors and workspace do not meet."""
    problem, device = convolution(words, direction), host(2)
    cases = [make_case(problem, seed=seed) for seed in range(3)]
    for algorithm in accepting(problem, device):
        kernel, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
        with ThreadPoolExecutor(len(cases)) as executor:
            calls = [(case, executor.submit(run, kernel, case, room)) for _ in range(4) for case in cases]
        for case, call in calls:
            compare(call.result(), case, 1.0, 0.0, algorithm.error_bound(problem))


# epilogues: expression inputs after the sum are the bias, one for each channel, and a residual like y


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("n2 c5 h9 w8 k18 r3 s3 pad1", "activation"),
        ("n2 c5 h9 w8 k18 r3 s3 pad1", "bias"),
        ("n2 c5 h9 w8 k18 r3 s3 pad1", "residual"),
        ("n1 c17 h7 w6 k33 r3 s3 pad1 stride2 nhwc", "residual"),
        ("n2 c63 h5 w7 k65 r1 s1", "residual"),
        ("n1 c130 h9 w9 k20 r3 s3 pad1", "residual"),  # the sum must be complete before the epilogue
        ("n1 c19 h9 w8 k19 r3 s3 pad1 g19", "residual"),
        ("n1 c33 h9 w8 k33 r3 s3 pad1 g33 nhwc", "residual"),
        ("n1 c15 h7 w6 k9 r3 s3 pad1 g3", "bias"),
        ("n2 c3 h13 w11 k5 r5 s5 stride2 pad2", "residual"),
        ("n2 c5 w37 k6 s5 pad2 stride2", "scalar"),
        ("n1 c3 d5 h6 w7 k4 t3 r2 s3 pad1x0x1", "residual"),
        ("n2 c9 h7 w8 k11 r3 s3 pad1 f64", "scalar"),
        ("n0 c3 h5 w5 k4 r3 s3 pad1", "residual"),
    ],
)
def test_epilogues(words: str, expression: str) -> None:
    problem = convolution(words, "fwd")
    names = check(problem, fused(problem, expression))
    assert names - {"reference"}, "no algorithm fuses this"


@pytest.mark.parametrize("direction", ["bwd_data", "bwd_filter"])
def test_epilogues_of_gradients(direction: str) -> None:
    problem = convolution("n2 c5 h9 w8 k18 r3 s3 pad1", direction)
    check(problem, fused(problem, "residual"))


# the gradient of the bias


@pytest.mark.parametrize("words", BIAS_SHAPES)
def test_bias_gradient(words: str) -> None:
    check(parse(f"conv_bwd_bias {words}"))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_bias_gradient_orders_in_memory(arrangement: str) -> None:
    check(arranged(parse("conv_bwd_bias n3 k18 p7 q5"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
def test_bias_gradient_on_narrower_instruction_sets(cpu: str) -> None:
    check(parse("conv_bwd_bias n2 k19 p7 q9"), cpu=cpu)


@settings(max_examples=examples(20), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(bias_gradients())
def test_any_bias_gradient(problem: BiasGradient) -> None:
    check(problem)


def test_every_algorithm_of_the_bias_gradient_is_reached() -> None:
    problems: list[Problem] = [parse(f"conv_bwd_bias {words}") for words in BIAS_SHAPES]
    assert unreached(problems) == set()


def test_a_stride_beyond_the_image_is_that_of_the_image() -> None:
    x, w = np.ones((1, 2, 9), np.float32), np.ones((2, 2, 3), np.float32)
    y = jd.conv(x, w, stride=10**9)
    np.testing.assert_array_equal(y, np.full((1, 2, 1), 6.0))
    assert Convolution.make("fwd", (1, 2, 9), (2, 2, 3), 10**9).stride == (9,)
