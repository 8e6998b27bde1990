"""Grouped convolutions with few channels a group: slices that groups fill or not, strips of any images."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import cases
from cases import make_case
from convolution_cases import convolution, fused
from examples import examples
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.grouped import algorithm as convolution_grouped
from jitdnn.kernels.cuda.convolution.grouped.algorithm import Grouped, GroupedF32, GroupedTf32
from jitdnn.kernels.cuda.convolution.grouped.code import arguments, launches, source
from jitdnn.kernels.cuda.convolution.grouped.cost import plan_of, shared_memory_plans
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan
from jitdnn.kernels.cuda.convolution.grouped.wgrad_cost import wgrad_shared_memory_plans
from jitdnn.kernels.cuda.convolution.half_precision.arguments import with_arguments
from jitdnn.problems import Convolution
from strategies import convolutions

ALIGNED = 1024  # elements in front of a tensor, so that it begins at a multiple of 16 bytes

PROBLEMS = (
    "n2 c32 h9 w11 k32 r3 s3 stride1 pad1 g8 bf16 nhwc",  # four groups a slice
    "n2 c32 h9 w11 k32 r3 s3 stride2 pad1 g8 bf16 nhwc",
    "n2 c40 h9 w11 k40 r3 s3 stride1 pad1 g5 f16 nhwc",  # two groups a slice, one is left over
    "n3 c64 h7 w7 k64 r3 s3 stride1 pad1 g2 bf16 nhwc",  # a group takes two steps; an odd number of strips
    "n2 c32 h7 w7 k32 r3 s3 stride2 pad1 g2 bf16 nhwc",
    "n1 c12 h7 w9 k24 r3 s2 stride1x2 pad1 g4 bf16 nchw",  # more results than channels, channel by channel
    "n3 c20 h6 w5 k10 r5 s5 stride1 pad2 g5 bf16 nhwc",
    "n1 c48 h6 w8 k48 r3 s3 stride1 pad1:2x0:1 g4 flip f16 nhwc",  # 12 of 16 channels
    "n2 c32 w40 k16 s3 stride1 pad1 g4 bf16 nhwc",
    "n1 c16 d3 h5 w6 k16 t1 r3 s3 stride1 pad0x1x1 g4 bf16 nhwc",  # planes are images
    "n2 c24 h5 w6 k24 r1 s1 stride1 pad0 g2 bf16 nhwc",
    "n1 c3 h1 w1 k3 r1 s1 stride1 pad0 g3 bf16 nhwc",  # a pixel of fewer channels than a load
)


@pytest.fixture(params=["aligned", "anywhere"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors begin: at a multiple of 16 bytes, or of an element."""
    if request.param == "aligned":
        monkeypatch.setattr(cases, "GUARD", ALIGNED)
    return str(request.param)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", PROBLEMS)
def test_directions(words: str, direction: str, alignment: str, cuda_device: Any) -> None:
    problem = convolution(words, direction)
    assert Grouped().refuse(problem, cuda_device) is None
    run_algorithm(Grouped(), make_case(problem, None, 0, None), cuda_device)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", [*PROBLEMS, "n32 c128 h28 w28 k128 r3 s3 stride1 pad1 g32 bf16 nhwc"])
def test_nothing_faster_is_left_out(words: str, direction: str, cuda_device: Any) -> None:
    """What is not estimated, since it cannot be the fastest, is not."""
    problem, facts = convolution(words, direction), cuda_device.facts
    plans = wgrad_shared_memory_plans if direction == "bwd_filter" else shared_memory_plans
    chosen = plan_of(problem, cuda_device)
    assert chosen is not None
    assert chosen == min((*plans(problem, facts), chosen), key=lambda plan: plan.seconds)


TILED = (
    "n2 c32 h9 w11 k32 r3 s3 stride1 pad1 g8 bf16 nhwc",
    "n2 c32 h9 w11 k64 r3 s3 stride2 pad1 g8 bf16 nhwc",  # a slice of 16 channels in and 32 out
    "n2 c64 h5 w6 k32 r3 s3 stride1 pad1 g32 f16 nhwc",
    "n2 c16 h5 w6 k16 r3 s3 stride1 pad1 g16 bf16 nhwc",
    "n3 c64 h7 w7 k64 r3 s3 stride1 pad1 g2 bf16 nhwc",  # groups of two operands
    "n1 c48 h9 w12 k48 r3 s2 stride1x3 pad1:2x0:1 g6 flip f16 nhwc",
    "n2 c32 h9 w11 k32 r5 s5 stride2x1 pad2 dil1x2 g4 bf16 nhwc",  # the rows of taps in parts
    "n1 c16 d3 h5 w6 k16 t1 r3 s3 stride1 pad0x1x1 g4 bf16 nhwc",
    "n9 c40 h4 w5 k40 r3 s3 stride1 pad1 g5 bf16 nhwc",  # tiles of several images; half a slice is left over
    "n2 c32 w40 k32 s3 stride1 pad1 g4 bf16 nhwc",
    "n2 c32 h6 w6 k32 r1 s1 stride2 pad0 g2 bf16 nhwc",
    "n2 c128 h7 w6 k128 r3 s3 stride1 pad1 g2 bf16 nhwc",  # groups of four operands: a block has half of the outputs
    "n1 c96 h7 w6 k96 r3 s3 stride2 pad1 g2 bf16 nhwc",  # and three; warps that have nothing to do
)


@pytest.mark.parametrize("words", TILED)
def test_tiles(words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter's gradient through shared memory, in the cheapest plan and others."""
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(words, "bwd_filter")
    device = cuda_device
    plans = list(wgrad_shared_memory_plans(problem, device.facts))
    plans.sort(key=lambda plan: plan.seconds)
    assert plans
    alone = [plan for plan in plans if plan.workers == 1]  # writes dw itself
    wide = [plan for plan in plans if plan.threads == 512]
    for chosen in (plans[0], plans[len(plans) // 2], *alone[:1], *wide[:1]):

        def only(problem: Convolution, device: Any, products: int, chosen: Plan = chosen) -> Plan:
            return chosen

        monkeypatch.setattr(convolution_grouped, "plan_of", only)
        run_algorithm(Grouped(), make_case(problem, None, 0, None), device)


IMAGE_TILED = (
    "n2 c32 h9 w11 k32 r3 s3 stride1 pad1 g8 bf16 nhwc",
    "n2 c32 h9 w11 k64 r3 s3 stride2 pad1 g8 bf16 nhwc",  # a slice of 16 channels on one side and 32 on the other
    "n2 c64 h5 w6 k32 r3 s3 stride1 pad1 g32 f16 nhwc",
    "n2 c16 h5 w6 k16 r3 s3 stride1 pad1 g16 bf16 nhwc",
    "n3 c64 h7 w7 k64 r3 s3 stride1 pad1 g2 bf16 nhwc",  # groups of two operands
    "n1 c48 h9 w12 k48 r3 s2 stride1x3 pad1:2x0:1 g6 flip f16 nhwc",
    "n1 c16 d3 h5 w6 k16 t1 r3 s3 stride1 pad0x1x1 g4 bf16 nhwc",  # planes are images
    "n9 c40 h4 w5 k40 r3 s3 stride1 pad1 g5 bf16 nhwc",  # half a slice is left over
    "n2 c32 w40 k32 s3 stride1 pad1 g4 bf16 nhwc",
    "n2 c32 h6 w6 k32 r1 s1 stride2 pad0 g2 bf16 nhwc",
    "n2 c128 h7 w6 k128 r3 s3 stride1 pad1 g2 bf16 nhwc",  # groups of four operands
    "n1 c96 h7 w6 k96 r3 s3 stride2 pad1 g2 bf16 nhwc",  # and three; warps that have nothing to do
    "n2 c24 h5 w6 k24 r3 s3 stride1 pad1 g24 bf16 nhwc",  # a filter whose parts are no whole 16 bytes
)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", IMAGE_TILED)
def test_image_tiles(words: str, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward data through shared memory, in the cheapest plan and others."""
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(words, direction)
    device = cuda_device
    plans = list(shared_memory_plans(problem, device.facts))
    plans.sort(key=lambda plan: plan.seconds)
    assert plans
    for chosen in (plans[0], plans[len(plans) // 3], plans[len(plans) * 2 // 3]):

        def only(problem: Convolution, device: Any, products: int, chosen: Plan = chosen) -> Plan:
            return chosen

        monkeypatch.setattr(convolution_grouped, "plan_of", only)
        run_algorithm(Grouped(), make_case(problem, None, 0, None), device)


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ("n1 c64 h5 w6 k72 r2 s2 stride1 pad1 g4 bf16 nhwc", Grouped()),  # through shared memory
        ("n1 c96 h5 w6 k72 r2 s2 stride1 pad1 g4 f16 nhwc", Grouped()),  # straight into registers
        ("n1 c32 h5 w6 k40 r2 s2 stride1 pad1 g8 bf16 nhwc", Grouped()),  # four groups of five
        ("n1 c32 h5 w6 k36 r2 s2 stride1 pad1 g2 f32 nhwc", GroupedF32()),
        ("n1 c16 h5 w6 k20 r2 s2 stride1 pad1 g4 f32 nhwc", GroupedTf32()),
    ],
)
def test_slices_begin_inside_of_vectors(
    words: str, algorithm: Grouped, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels are whole vectors of 16 bytes, and slices of 18, 20 or 10 results begin inside of these."""
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(words, "fwd")
    assert algorithm.refuse(problem, cuda_device) is None
    run_algorithm(algorithm, make_case(problem), cuda_device)


OF_F32 = (
    "n2 c16 h9 w11 k16 r3 s3 stride1 pad1 g4 f32 nhwc",  # two groups a slice
    "n2 c32 h9 w11 k32 r3 s3 stride2 pad1 g4 f32 nhwc",  # a group a slice
    "n3 c32 h7 w7 k32 r3 s3 stride1 pad1 g2 f32 nhwc",  # groups of two operands, the results of which warps share
    "n2 c20 h9 w7 k20 r3 s3 stride1 pad1 g5 f32 nhwc",  # half a slice is left over
    "n2 c16 h9 w11 k32 r3 s3 stride2 pad1 g4 f32 nhwc",  # a slice of 8 channels on one side and 16 on the other
    "n2 c32 h5 w6 k16 r3 s3 stride1 pad1 g16 f32 nhwc",  # groups of two channels in and one out
    "n1 c24 h9 w12 k24 r3 s2 stride1x3 pad1:2x0:1 g3 flip f32 nhwc",
    "n1 c16 d3 h5 w6 k16 t1 r3 s3 stride1 pad0x1x1 g4 f32 nhwc",  # planes are images
    "n2 c16 w40 k16 s3 stride1 pad1 g2 f32 nhwc",
    "n2 c16 h6 w6 k16 r1 s1 stride2 pad0 g2 f32 nhwc",
    "n9 c8 h4 w5 k8 r5 s5 stride1 pad2 g2 f32 nhwc",  # tiles of several images
)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("words", OF_F32)
def test_tiles_of_f32(
    words: str, direction: str, alignment: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, device = convolution(words, direction), cuda_device
    for algorithm in (GroupedF32(), GroupedTf32()):
        assert algorithm.refuse(problem, device) is None
        plans = sorted(
            shared_memory_plans(problem, device.facts, algorithm.products), key=lambda plan: plan.seconds
        )
        assert plans[0] == algorithm.sizes(problem, device)
        for chosen in (plans[0], plans[len(plans) // 2]):

            def only(problem: Convolution, device: Any, products: int, chosen: Plan = chosen) -> Plan:
                return chosen

            monkeypatch.setattr(convolution_grouped, "plan_of", only)
            run_algorithm(algorithm, make_case(problem, None, 0, None), device)
            monkeypatch.undo()
            if alignment == "aligned":
                monkeypatch.setattr(cases, "GUARD", ALIGNED)


def test_tiles_with_epilogue(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    problem = convolution(IMAGE_TILED[0], "fwd")
    device = cuda_device
    plans = shared_memory_plans(problem, device.facts)
    chosen = min(plans, key=lambda plan: plan.seconds)
    monkeypatch.setattr(convolution_grouped, "plan_of", lambda problem, device, products: chosen)
    for expression in EPILOGUES:
        run_algorithm(Grouped(), make_case(problem, fused(problem, expression), 0, None), device)


def test_elements_have_no_tiles(cuda_device: Any) -> None:
    device = cuda_device
    for words in (
        "n1 c12 h7 w9 k24 r3 s2 stride1x2 pad1 g4 bf16 nchw",
        "n3 c20 h6 w5 k10 r5 s5 stride1 pad2 g5 bf16 nhwc",
        "n1 c48 h6 w8 k48 r3 s3 stride1 pad1 g4 f16 nhwc",
    ):
        problem = convolution(words, "bwd_filter")
        assert not [*wgrad_shared_memory_plans(problem, device.facts)]


@pytest.mark.parametrize("direction", ["fwd", "bwd_filter"])
def test_dilation(direction: str, cuda_device: Any) -> None:
    problem = convolution("n1 c16 h9 w12 k16 r3 s2 stride2x1 pad2 dil2x3 g4 bf16 nhwc", direction)
    run_algorithm(Grouped(), make_case(problem, None, 0, None), cuda_device)


def test_dilation_of_tiles(cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "GUARD", ALIGNED)
    for words in (
        "n2 c32 h9 w12 k32 r3 s2 stride2x1 pad2 dil2x3 g4 bf16 nhwc",
        "n2 c32 h9 w12 k32 r2 s3 stride1x2 pad2 dil3x1 g4 f16 nhwc",
        "n2 c32 h9 w12 k32 r1 s1 stride3x2 pad0 g4 bf16 nhwc",
    ):
        problem = convolution(words, "fwd")
        device = cuda_device
        plans = shared_memory_plans(problem, device.facts)
        chosen = min(plans, key=lambda plan: plan.seconds)
        monkeypatch.setattr(
            convolution_grouped, "plan_of", lambda problem, device, products, chosen=chosen: chosen
        )
        run_algorithm(Grouped(), make_case(problem, None, 0, None), device)


@st.composite
def groups(draw: st.DrawFn) -> Convolution:
    """Convolutions in several groups, of any strides and dtypes of half precision."""
    problem = draw(convolutions(channels=(1, 2, 3, 4, 7, 9)))
    assume(problem.dtype in ("bf16", "f16") and problem.groups > 1 and len(problem.spatial) < 3)
    assume(0 not in problem.x.shape and 0 not in problem.y.shape)
    return problem


@given(problem=groups())
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_any(problem: Convolution, cuda_device: Any) -> None:
    if Grouped().refuse(problem, cuda_device) is not None:
        return
    run_algorithm(Grouped(), make_case(problem, None, 0, None), cuda_device)


REFUSED = {
    "n1 c8 h8 w8 k8 r3 s3 stride1 pad1 g2 f32 nhwc": "bf16 and f16",
    "n1 c8 h8 w8 k8 r3 s3 stride1 pad1 bf16 nhwc": "one group",
    "n1 c160 h8 w8 k160 r3 s3 stride1 pad1 g2 bf16 nhwc": "more than 64",
    "n1 c96 h8 w8 k96 r3 s3 stride1 pad1 g2 bf16 nchw": "registers",
    "n0 c8 h8 w8 k8 r3 s3 stride1 pad1 g2 bf16 nhwc": "empty",
    "n1 c8 d4 h8 w8 k8 t3 r3 s3 stride1 pad1 g2 bf16 nhwc": "along d",
    "n1 c32 h32 w32 k32 r15 s15 stride1 pad7 g8 bf16 nhwc": "registers",
}
REFUSED_OF_F32 = {
    "fwd n1 c8 h8 w8 k8 r3 s3 stride1 pad1 g2 bf16 nhwc": "multiplies f32",
    "fwd n1 c16 h8 w8 k16 r3 s3 stride1 pad1 g4 f32 nchw": "no whole 16 bytes",
    "fwd n1 c18 h8 w8 k18 r3 s3 stride1 pad1 g9 f32 nhwc": "no whole 16 bytes",
    "fwd n1 c64 h8 w8 k64 r3 s3 stride1 pad1 g2 f32 nhwc": "registers",
    "bwd_filter n1 c16 h8 w8 k16 r3 s3 stride1 pad1 g4 f32 nhwc": "filter's gradient",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, cuda_device: Any) -> None:
    reason = Grouped().refuse(convolution(words, "fwd"), cuda_device)
    assert reason is not None
    assert REFUSED[words] in reason


@pytest.mark.parametrize("words", REFUSED_OF_F32)
def test_refusals_of_f32(words: str, cuda_device: Any) -> None:
    direction, _, rest = words.partition(" ")
    reason = GroupedF32().refuse(convolution(rest, direction), cuda_device)
    assert reason is not None
    assert REFUSED_OF_F32[words] in reason


EPILOGUES = ("activation", "bias", "residual")


@pytest.mark.parametrize("expression", EPILOGUES)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_epilogues(direction: str, expression: str, cuda_device: Any) -> None:
    for words in list(PROBLEMS)[:3]:
        problem = convolution(words, direction)
        epilogue = fused(problem, expression)
        assert Grouped().refuse(problem, cuda_device, epilogue) is None
        run_algorithm(Grouped(), make_case(problem, epilogue, 0, None), cuda_device)


LAYERS = """
n64 c128 h56 w56 k128 r3 s3 stride1 pad1 g32 bf16 nhwc
n64 c256 h56 w56 k256 r3 s3 stride2 pad1 g32 bf16 nhwc
n64 c512 h14 w14 k512 r3 s3 stride1 pad1 g32 f16 nhwc
n64 c1024 h14 w14 k1024 r3 s3 stride2 pad1 g32 bf16 nhwc
n64 c1024 h7 w7 k1024 r3 s3 stride1 pad1 g32 bf16 nhwc
""".strip().splitlines()


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", LAYERS)
def test_layers_compile(words: str, direction: str, architecture: Any) -> None:
    problem = convolution(words, direction)
    plan = plan_of(problem, architecture)
    assert plan is not None
    assert plan.shared
    code, numbers = with_arguments(source(problem, plan), arguments(problem))
    architecture.kernel(code, launches(problem, plan), 3, numbers)
    unaligned_plan = Grouped().unaligned_plan(problem, architecture, plan)
    assert not unaligned_plan.shared
    code, numbers = with_arguments(source(problem, unaligned_plan), arguments(problem))
    architecture.kernel(code, launches(problem, unaligned_plan), 3, numbers)
