"""What is particular to im2col: when it unfolds, how many images at once, and its workspace.

That its results are right on every shape and order is tested with all algorithms in test_convolution.py.
"""

from __future__ import annotations

import pytest

from conformance import SCALES, compare, make_case, run
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cpu.convolution.im2col import FILTER_DEPTH, LEAST_CHANNELS_FOLDED, Im2col
from jitdnn.kernels.reference import Reference
from jitdnn.kernels.tables import algorithms, table
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.problem import Problem

DEVICE = host(2)
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")


def check(algorithm: Algorithm, problem: Problem) -> None:
    case = make_case(problem)
    kernel = algorithm.build(problem, DEVICE)
    room = algorithm.workspace(problem, DEVICE)
    for alpha, beta in SCALES:
        compare(run(kernel, case, room, alpha, beta), case, alpha, beta, algorithm.error_bound(problem))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("n", [0, 1, 3, 20, 21, 22, 43])
def test_filter_gradient_unfolds_parts_of_the_batch(n: int, layout: str) -> None:
    problem = Convolution.make("bwd_filter", (n, 6, 7, 7), (4, 6, 3, 3), padding=1, layout=layout)
    assert (n * 49 > FILTER_DEPTH) == (n >= 21), "the batch is on the intended side of the limit"
    check(Im2col(), problem)


@pytest.mark.parametrize("channels", [1, 2, LEAST_CHANNELS_FOLDED - 1, LEAST_CHANNELS_FOLDED])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_few_channels(direction: str, channels: int) -> None:
    check(Im2col(), Convolution.make(direction, (2, channels, 9, 8), (5, channels, 3, 2), layout="nhwc"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_depthwise_is_a_product_of_depth_one(direction: str, layout: str) -> None:
    problem = Convolution.make(direction, (2, 65, 9, 8), (65, 1, 3, 3), padding=1, groups=65, layout=layout)
    check(Im2col(), problem)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pointwise_needs_no_columns(direction: str) -> None:
    pointwise = Convolution.make(direction, (1, 64, 33, 33), (8, 64, 1, 1))
    padded = Convolution.make(direction, (1, 64, 33, 33), (8, 64, 1, 1), padding=1)
    columns = 64 * 33 * 33 * 4
    assert Im2col().workspace(padded, DEVICE) > columns
    if direction != "bwd_data":  # which reserves a product for beta or an epilogue
        assert Im2col().workspace(pointwise, DEVICE) < columns
    check(Im2col(), pointwise)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_workspace_is_that_of_one_image(direction: str) -> None:
    sizes = {
        n: Im2col().workspace(Convolution.make(direction, (n, 8, 20, 20), (4, 8, 3, 3)), DEVICE)
        for n in (1, 2, 64)
    }
    assert sizes[1] == sizes[2] == sizes[64]
    assert sizes[1] >= 8 * 9 * 18 * 18 * 4


def test_every_problem_has_the_reference_last() -> None:
    for listed in table("cpu").values():
        assert listed[-1].name == "reference"
        names = [algorithm.name for algorithm in listed]
        assert len(set(names)) == len(names)
    bias = BiasGradient.make((2, 3, 4, 4))
    assert [a.name for a in algorithms(bias, "a target nobody wrote for")] == ["reference"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_estimates_grow_with_the_work(direction: str) -> None:
    small, large = (Convolution.make(direction, (n, 16, 20, 20), (16, 16, 3, 3)) for n in (1, 8))
    for algorithm in (Im2col(), Reference()):
        assert 0 < algorithm.estimate(small, DEVICE) < algorithm.estimate(large, DEVICE)
    assert Im2col().estimate(small, DEVICE) < Reference().estimate(small, DEVICE)
