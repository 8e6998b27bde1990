"""Every plan of the direct and the depthwise convolutions, each with a tile that the test prescribes.

The shared suite runs the plans that they choose themselves; here all branches run on any machine, on small problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conformance import check, compare, make_case, run
from convolution_cases import convolution
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.algorithm import Depthwise, DepthwiseWgrad, Direct
from jitdnn.kernels.cpu.convolution.direct.over_channels.plan import ChannelTile, OverChannels
from jitdnn.kernels.cpu.convolution.direct.over_groups import cost as over_groups
from jitdnn.kernels.cpu.convolution.direct.over_groups.plan import GroupTile, OverGroups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import cost as over_groups_packed
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import OverGroupsPacked, fits
from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import OverPixels, PixelTile, lower_rows
from jitdnn.kernels.cpu.convolution.direct.plan import DirectPlan, nearest_axis_last
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels.plan import WgradChannelTile, WgradOverChannels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups.plan import WgradGroupTile, WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import cost as wgrad_over_pixels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels.plan import WgradOverPixels, WgradPixelTile
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.problems import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

DEVICE = host(1)
LANES = DEVICE.isa.lanes("f32")


class Prescribed(Direct):
    """The direct convolution with plans that the test makes."""

    def __init__(self, plans: Sequence[DirectPlan]) -> None:
        self.prescribed = plans
        self.name = f"prescribed {plans}"  # type: ignore[misc]

    def plans(
        self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None = None
    ) -> Sequence[DirectPlan]:
        return self.prescribed


def verify(problem: Convolution, plans: Sequence[DirectPlan], epilogue: Epilogue | None = None) -> None:
    case, algorithm = make_case(problem, epilogue), Prescribed(plans)
    kernel, size = (
        algorithm.build(problem, DEVICE, epilogue),
        algorithm.workspace(problem, DEVICE, epilogue),
    )
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        actual = run(kernel, case, size, alpha, beta)
        compare(actual, case, alpha, beta, algorithm.error_bound(problem))


def with_operand(problem: Convolution) -> Epilogue:
    operand = TensorDescriptor.packed(problem.output.shape, problem.dtype, "nhwc")
    return Epilogue(trace(lambda acc, other: acc * 0.5 + other), (operand,))


# vectorized over pixels


@pytest.mark.parametrize(
    ("words", "tile"),
    [
        ("conv_fwd n2 c3 h9 w20 k3 r3 s3 pad1 g3", PixelTile(1, 2, 1)),
        ("conv_fwd n1 c2 h7 w40 k5 r3 s3 pad1", PixelTile(2, 1, 2)),  # channels, rows, pixels left over
        (
            "conv_fwd n1 c2 h8 w70 k3 r2 s3 pad0x1 stride1x2",
            PixelTile(3, 2, 1),
        ),  # lanes shuffled out of several loads
        ("conv_fwd n1 c2 h8 w70 k3 r2 s3 pad0x1 stride2x4", PixelTile(2, 3, 1)),
        ("conv_fwd n1 c2 h8 w90 k3 r2 s3 pad0x1 stride2x5", PixelTile(2, 1, 1)),  # gathered lanes
        (
            "conv_bwd_data n1 c3 h9 w41 k2 r3 s3 pad1 stride2",
            PixelTile(1, 2, 1),
        ),  # two stride phases interleaved
        ("conv_bwd_data n1 c2 h7 w43 k2 r3 s5 pad1 stride1x3", PixelTile(2, 1, 1)),  # three
        (
            "conv_bwd_data n1 c2 h7 w50 k2 r3 s2 stride2x4",
            PixelTile(1, 1, 1),
        ),  # four, some of them without taps
        ("conv_bwd_data n1 c2 h7 w23 k2 r3 s2 stride2x5", PixelTile(1, 1, 1)),  # five: one by one
    ],
)
def test_over_pixels(words: str, tile: PixelTile) -> None:
    problem = convolution(words)
    for epilogue in (None, with_operand(problem)):
        rows = lower_rows(problem, epilogue.operands if epilogue else ())
        verify(problem, [OverPixels(c, DEVICE.isa, axes, tile) for c, axes in rows], epilogue)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_rows_slide_over_the_taps_of_a_tall_filter(direction: str) -> None:
    problem = convolution(f"conv_{direction} n1 c2 h14 w19 k2 r19 s17 pad9x8 g2")
    ((c, axes),) = lower_rows(problem)
    plan = OverPixels(c, DEVICE.isa, axes, PixelTile(1, 4, 1))
    assert not plan.is_unrolled
    verify(problem, [plan])


def test_taps_of_a_long_row_in_a_loop() -> None:
    problem = convolution("conv_fwd n1 c2 h5 w80 k3 r3 s71 pad1x40")
    ((c, axes),) = lower_rows(problem)
    plan = OverPixels(c, DEVICE.isa, axes, PixelTile(3, 1, 1))
    assert not plan.is_row_unrolled
    verify(problem, [plan])


# vectorized over groups


@pytest.mark.parametrize("unrolled", ["all", "row", "none"])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c19 h9 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_fwd n1 c32 h9 w11 k32 r3 s2 pad2:0x0:3 stride2x1 g32 nhwc",
        "conv_fwd n1 c5 h6 w7 k15 r3 s3 pad1 dil2 g5 nhwc",  # results of a group interleaved
        "conv_fwd n1 c12 h6 w7 k8 r3 s3 pad1 g4 nhwc",  # channels of a group shuffled out
        "conv_fwd n1 c4 h6 w7 k20 r3 s3 pad1 g4 nhwc",  # too many results to interleave
        "conv_bwd_data n1 c9 h8 w9 k27 r3 s3 pad1 stride2 g9 nhwc",
        "conv_bwd_data n1 c8 h6 w5 k8 r3 s3 pad1 g8",  # channels first: gathered and scattered
        "conv_fwd n1 c3 d4 h5 w4 k3 t3 r3 s2 pad1 g3 nhwc",
    ],
)
def test_over_groups(words: str, unrolled: str) -> None:
    problem = convolution(words)
    tile = GroupTile(2 if unrolled == "all" else 1, 3, unrolled)
    for epilogue in (None, with_operand(problem)):
        parts = lower_convolution(problem, epilogue.operands if epilogue else ())
        verify(problem, [OverGroups(part, DEVICE.isa, tile) for part in parts], epilogue)


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n3 c35 h7 w7 k35 r5 s5 pad2 g35",
        "conv_fwd n1 c33 h5 w9 k33 r13 s13 pad6 g33",  # most taps are outside
        "conv_fwd n2 c17 h9 w20 k34 r3 s2 pad1 stride2 g17",  # two results of a group
        "conv_fwd n1 c10 h6 w5 k15 r3 s3 pad1 dil2 g5 f64",  # two channels and three results of a group
        "conv_fwd n1 c18 d3 h4 w5 k18 t2 r3 s3 pad1 g18 flip",
        "conv_fwd n2 c17 w90 k17 s70 pad35 g17",  # taps of a row in a loop
        "conv_fwd n2 c19 h6 w5 k19 r3 s3 pad1 g19 bf16",
        "conv_fwd n2 c19 h6 w9 k19 r5 s5 pad2 g19 nhwc",  # copied, not transposed
        "conv_fwd n2 c19 h6 w9 k38 r5 s5 pad2 g19 x=nhwc",
        "conv_bwd_data n2 c19 h6 w8 k19 r5 s3 pad2x1 g19",
        "conv_fwd n2 c19 h6 w8 k19 r3 s3 pad1 g19 x=s1100,54,9,1 y=s1200,60,10,1",  # rows apart
    ],
)
def test_over_groups_packed(words: str) -> None:
    problem = convolution(words)
    for epilogue in (None, with_operand(problem)):
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        whole = whole.merged()
        assert fits(whole, DEVICE.isa)
        verify(problem, [over_groups_packed.choose(whole, DEVICE.isa)], epilogue)


def test_small_planes_under_large_filters_are_packed() -> None:
    problem = convolution("conv_fwd n8 c256 h7 w7 k256 r13 s13 pad6 g256")
    (plan,) = Depthwise().plans(problem, DEVICE)
    assert isinstance(plan, OverGroupsPacked)
    check(convolution("conv_fwd n2 c40 h7 w7 k40 r13 s13 pad6 g40"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_planes_from_memory_are_not_packed_for_a_few_taps(dtype: str) -> None:
    problem = convolution(f"conv_fwd n8 c144 h56 w56 k144 r3 s3 stride2 pad1 g144 {dtype}")
    (plan,) = Depthwise().plans(problem, DEVICE)
    assert isinstance(plan, OverPixels)


def test_filters_of_many_taps_are_transposed_in_the_workspace() -> None:
    check(convolution("conv_fwd n1 c5 h12 w11 k5 r19 s17 pad9x8 g5 nhwc f64"))
    problem = convolution("conv_fwd n1 c33 h12 w11 k33 r19 s17 pad9x8 g33 nhwc")
    assert Depthwise().workspace(problem, DEVICE) > 0
    check(problem, scales=((1.0, 0.0),))


# vectorized over channels


@pytest.mark.parametrize("kind", ["broadcast", "panel", "dot"])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c3 h6 w9 k5 r3 s3 pad1 nhwc",  # a row of the filter is one run
        "conv_fwd n1 c33 h5 w6 k37 r3 s3 pad1 nhwc",  # channels and results that are left over
        "conv_fwd n2 c16 h7 w7 k4 r3 s2 pad1 stride2 nhwc",
        "conv_fwd n1 c6 h5 w8 k10 r2 s3 dil1x2 pad0x2 g2 nhwc",
        "conv_fwd n1 c5 h5 w8 k7 r2 s3 flip pad1 nhwc",
        "conv_bwd_data n1 c20 h6 w7 k6 r3 s3 pad1 stride2 nhwc",
    ],
)
def test_over_channels(words: str, kind: str) -> None:
    problem = convolution(words)
    for results in (1, 3):
        tile = ChannelTile(3, results if kind == "dot" else min(2, results), kind)
        for epilogue in (None, with_operand(problem)):
            parts = lower_convolution(problem, epilogue.operands if epilogue else ())
            plans = [OverChannels(nearest_axis_last(part), DEVICE.isa, tile) for part in parts]
            if kind != "dot" or all(plan.c.x.channels == plan.c.w.channels == 1 for plan in plans):
                verify(problem, plans, epilogue)


# gradients of filters


@pytest.mark.parametrize(
    "tile",
    [
        WgradPixelTile(2, 1, 1, 2, 1),  # taps and results that are left over
        WgradPixelTile(3, 2, 3, 1, 1),
        WgradPixelTile(1, 1, 3, 2, 3),  # several rows of dy at once
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n2 c2 h7 w21 k5 r3 s3 pad1",
        "conv_bwd_filter n3 c4 h8 w37 k2 r3 s2 stride1x2 g2",
        "conv_bwd_filter n1 c2 d3 h5 w6 k3 t2 r3 s3 pad1 flip",
        "conv_bwd_filter n1 c2 h4 w6 k1 r3 s3 pad0x70 nhwc",  # many vectors at the ends of a row
    ],
)
def test_wgrad_over_pixels(words: str, tile: WgradPixelTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    channels = tile.channels if whole.depth % tile.channels == 0 else 1
    taps = min(tile.taps, LANES, whole.axes[2].taps.count)
    tile = replace(tile, channels=channels, taps=taps)
    verify(problem, [WgradOverPixels(whole, DEVICE.isa, tile)])


@pytest.mark.parametrize("tile", [WgradChannelTile(1, 1), WgradChannelTile(3, 2)])
@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n2 c3 h6 w7 k5 r3 s3 pad1 nhwc",  # a row of the filter is one run
        "conv_bwd_filter n2 c37 h5 w6 k4 r3 s2 pad1 stride2 nhwc",
        "conv_bwd_filter n1 c6 h5 w9 k4 r2 s3 dil2 pad1x2 g2",
        "conv_bwd_filter n1 c70 h3 w4 k7 r3 s3 pad1 nhwc",  # taps in several units
    ],
)
def test_wgrad_over_channels(words: str, tile: WgradChannelTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    verify(problem, [WgradOverChannels(whole, DEVICE.isa, tile)])


@pytest.mark.parametrize("tile", [WgradGroupTile(1, 2, 3), WgradGroupTile(3, 3, 2), WgradGroupTile(1, 1, 1)])
@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n2 c19 h7 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_bwd_filter n2 c5 h6 w7 k15 r3 s3 pad1x2 stride2 g5 nhwc",  # results of a group shuffled out
        "conv_bwd_filter n1 c12 h6 w5 k8 r3 s3 dil2 pad2 g4 nhwc",  # channels of a group shuffled out
        "conv_bwd_filter n1 c4 d3 h5 w4 k8 t2 r3 s3 pad1 g4",
    ],
)
def test_wgrad_over_groups(words: str, tile: WgradGroupTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    rows = whole.axes[1].results
    verify(problem, [WgradOverGroups(whole, DEVICE.isa, tile, row_block=rows)])


@pytest.mark.parametrize(
    "words", ["n3 c70 h7 w6 k70 r3 s3 pad1 g70", "n2 c33 h5 w9 k66 r2 s5 pad0x2 stride2x1 g33 f64"]
)
def test_small_planes_share_a_unit(words: str) -> None:
    problem = convolution(f"conv_bwd_filter {words}")
    (whole,) = lower_convolution(problem)
    plan = wgrad_over_pixels.choose(nearest_axis_last(whole.merged()), DEVICE.isa)
    assert plan.units.count < problem.groups
    verify(problem, [plan])


@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n1 c19 h9 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_bwd_filter n3 c3 h4 w5 k6 r2 s3 g3 nhwc f64",
    ],
)
def test_split_rows_of_a_depthwise_gradient_are_added(words: str) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    verify(problem, [WgradOverGroups(whole, DEVICE.isa, WgradGroupTile(1, 3, 2), row_block=2, splits=3)])


def test_large_depthwise_gradients_are_split_whatever_the_threads() -> None:
    problem = convolution("conv_bwd_filter n8 c32 h112 w112 k32 r3 s3 pad1 g32 nhwc")
    algorithm = DepthwiseWgrad()
    assert algorithm.workspace(problem, host(1)) == algorithm.workspace(problem, host(8)) > 0


# what they take


@pytest.mark.parametrize("algorithm", [Depthwise(), DepthwiseWgrad()])
def test_what_is_not_depthwise_is_refused(algorithm: Depthwise | DepthwiseWgrad) -> None:
    direction = "bwd_filter" if isinstance(algorithm, DepthwiseWgrad) else "fwd"
    for words in ("c4 h5 w5 k4 r3 s3", "c10 h5 w5 k4 r3 s3 g2", "c4 h5 w5 k10 r3 s3 g2"):
        reason = algorithm.refuse(convolution(f"conv_{direction} n1 {words}"), DEVICE)
        assert reason is not None
        assert "up to 4 of both" in reason
    for words in (
        "c4 h5 w5 k4 r3 s3 g4",
        "c4 h5 w5 k40 r3 s3 g4",
        "c8 h5 w5 k8 r3 s3 g2",
        "c1 h5 w5 k9 r3 s3",
    ):
        assert algorithm.refuse(convolution(f"conv_{direction} n1 {words}"), DEVICE) is None


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("words", ["c64 h56 w56 k64 r3 s3 pad1", "c96 h56 w56 k96 r31 s31 pad15 g96 nhwc"])
def test_direct_needs_no_workspace(words: str, direction: str) -> None:
    assert Direct().workspace(convolution(f"conv_{direction} n2 {words}"), DEVICE) == 0


@pytest.mark.parametrize(
    "words", ["c256 h14 w14 k256 r3 s3 pad1", "c3 h224 w224 k64 r7 s7 pad3 stride2 nhwc"]
)
def test_sums_fit_into_registers(words: str) -> None:
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        for plan in Direct().plans(convolution(f"conv_{direction} n2 {words}"), DEVICE):
            assert isinstance(plan, OverPixels | OverChannels | WgradOverPixels | WgradOverChannels)
            tile = plan.tile
            if isinstance(tile, PixelTile):
                sums = tile.channels * tile.rows * tile.vectors
            elif isinstance(tile, ChannelTile):
                sums = tile.pixels * tile.results
            else:
                sums = tile.sums
            assert sums < DEVICE.isa.registers


def test_an_axis_whose_one_tap_is_not_the_filters_first() -> None:
    check(convolution("conv_bwd_data n1 c1 d6 h5 w2 k1 t2 r3 s1 stride1x2x4 pad1:0x0:3x0 dil1x1x3 flip nhwc"))


@pytest.mark.parametrize("size", ["h8 w8", "h9 w12"])
def test_stride_phases_of_a_depthwise_dgrad(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are divided alike are one phase of the launch; results that exceed the caches are prefetched."""
    monkeypatch.setattr("jitdnn.kernels.cpu.cost.DIRECT_WRITTEN_L3", 0.0)
    monkeypatch.setattr("jitdnn.kernels.cpu.cost.DIRECT_INTERLEAVED_INPUT_L2", 0.0)
    problem = convolution(f"conv_bwd_data n2 c20 {size} k20 r3 s3 stride2 pad1 g20 f32 nhwc")
    plans = [over_groups.choose(part.merged(), DEVICE.isa) for part in lower_convolution(problem)]
    assert all(plan.prefetches_results for plan in plans)
    monkeypatch.setattr("conformance.algorithms", lambda *_: [Prescribed(plans)])
    check(problem)
