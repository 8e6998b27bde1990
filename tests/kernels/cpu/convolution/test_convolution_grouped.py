"""Grouped convolutions over channels-last images: groups of every size against vectors of every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import conformance
from conformance import check, compare, make_case, run
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.grouped.algorithm import Grouped
from jitdnn.kernels.cpu.convolution.grouped.wgrad_algorithm import GroupedWgrad
from jitdnn.problems import Convolution, parse
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

DEVICE = host(1)

SHAPES = (
    "n2 c64 h9 w7 k64 r3 s3 pad1 g8 f32",  # two groups fill a vector
    "n2 c32 h9 w7 k32 r3 s3 stride2 pad1 g8 f32",
    "n2 c12 h9 w7 k24 r3 s2 stride2 pad1 g6 f32",  # more results than channels
    "n2 c24 h9 w7 k12 r3 s3 stride1 pad1 dil2 g4 f32",  # more channels than results
    "n2 c40 h5 w6 k40 r3 s3 pad1 g8 f32",  # a lane is left over
    "n2 c64 h5 w6 k48 r3 s3 pad1 g2 f32",  # a group takes two vectors
    "n3 c80 h5 w6 k40 r1 s1 g2 f32",  # the batch is one row
    "n2 c40 h5 w6 k80 r3 s3 pad1 g2 f64",
    "n2 c30 d3 h5 w6 k30 t3 r3 s3 pad1 g5 bf16",
    "n1 c16 d5 h4 w5 k16 t3 r2 s2 pad1 dil2 g2 f32",  # slices between those that are read
    "n1 c16 d5 h4 w5 k16 t3 r2 s2 stride2 pad1 g2 f32",
    "n2 c19 h5 w6 k19 r3 s3 pad1 g19 f32",  # a channel a group
    "n1 c64 h40 w70 k64 r3 s3 stride2 pad1 g16 f32",  # several blocks of rows
    "n1 c64 w1500 k64 s5 pad2 g4 f32",  # and of columns
    "n2 c32 h3 w4 k32 r5 s5 pad4 g4 f32",  # rows and columns that read only padding
)


def convolution(text: str) -> Convolution:
    problem = parse(text)
    assert isinstance(problem, Convolution)
    return problem


@pytest.mark.parametrize("shape", SHAPES)
def test_filter_gradients(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = convolution(f"conv_bwd_filter {shape} nhwc")
    assert GroupedWgrad().refuse(problem, DEVICE) is None
    monkeypatch.setattr(conformance, "algorithms", lambda *_: [GroupedWgrad()])
    check(problem)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("shape", SHAPES)
def test_images(direction: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = convolution(f"conv_{direction} {shape} nhwc")
    assert Grouped().refuse(problem, DEVICE) is None
    monkeypatch.setattr(conformance, "algorithms", lambda *_: [Grouped()])
    check(problem)


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("shape", SHAPES[:6])
def test_an_infinity_stays_in_its_group(shape: str, direction: str, operand: int) -> None:
    problem = convolution(f"conv_{direction} {shape} nhwc")
    algorithm = GroupedWgrad() if direction == "bwd_filter" else Grouped()
    inputs = [np.ones(each.descriptor.shape, np.float32) for each in problem.inputs]

    def group_1(tensor: np.ndarray[Any, Any], is_filter: bool) -> np.ndarray[Any, Any]:
        """Its channels, in a view with the channels first."""
        channels = tensor if is_filter else tensor.swapaxes(0, 1)
        size = len(channels) // problem.groups
        return channels[size : 2 * size]

    group_1(inputs[operand], direction != "bwd_filter" and operand == 1)[...] = np.inf
    case, room = make_case(problem, given=inputs), algorithm.workspace(problem, DEVICE)
    (result,) = run(algorithm.build(problem, DEVICE), case, room, 1.0, 0.0)
    finite = np.isfinite(result)
    own = group_1(finite, direction == "bwd_filter")
    assert not own.all()
    assert np.count_nonzero(~finite) == np.count_nonzero(~own)


@pytest.mark.parametrize(
    "shape", ["n2 c24 h5 w6 k24 r3 s3 pad1 g3 f32", "n1 c64 h4 w9 k64 r3 s3 pad1 g2 f32"]
)
def test_epilogues(shape: str) -> None:
    """A bias for every channel, and a product with an image."""
    problem = convolution(f"conv_fwd {shape} nhwc")
    bias = TensorDescriptor(problem.output.shape, (0, 1, 0, 0), "f32")
    epilogue = Epilogue(trace(lambda acc, b, other: (acc + b) * other), (bias, problem.output))
    algorithm, case = Grouped(), make_case(problem, epilogue)
    assert algorithm.refuse(problem, DEVICE, epilogue) is None
    kernel, room = algorithm.build(problem, DEVICE, epilogue), algorithm.workspace(problem, DEVICE, epilogue)
    for alpha, beta in conformance.SCALES:
        compare(run(kernel, case, room, alpha, beta), case, alpha, beta, algorithm.error_bound(problem))


def test_operands_of_an_epilogue_have_their_channels_together() -> None:
    problem = convolution("conv_fwd n1 c8 h4 w4 k8 r1 s1 g2 f32 nhwc")
    apart = TensorDescriptor(problem.output.shape, (128, 16, 4, 1), "f32")
    epilogue = Epilogue(trace(lambda acc, other: acc + other), (apart,))
    found = Grouped().refuse(problem, DEVICE, epilogue)
    assert found is not None
    assert "follow each other" in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv_bwd_filter n1 c8 h4 w4 k8 r1 s1 g2 f32 nhwc", "grouped_filter computes"),
        ("conv_fwd n1 c8 h4 w4 k8 r1 s1 f32 nhwc", "one group"),
        ("conv_fwd n1 c8 h4 w4 k8 r1 s1 g2 f32 nchw", "follow each other"),
        ("conv_bwd_data n1 c8 h4 w4 k8 r1 s1 stride2 g2 f32 nhwc", "taps for every position"),
    ],
)
def test_what_is_refused_for_images(text: str, reason: str) -> None:
    found = Grouped().refuse(convolution(text), DEVICE)
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv_fwd n1 c8 h4 w4 k8 r1 s1 g2 f32 nhwc", "grouped computes"),
        ("conv_bwd_filter n1 c8 h4 w4 k8 r1 s1 f32 nhwc", "one group"),
        ("conv_bwd_filter n1 c8 h4 w4 k8 r1 s1 g2 f32 nchw", "follow each other"),
    ],
)
def test_what_a_filter_gradient_refuses(text: str, reason: str) -> None:
    found = GroupedWgrad().refuse(convolution(text), DEVICE)
    assert found is not None
    assert reason in found
