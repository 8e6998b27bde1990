"""Every way that the direct and the depthwise convolutions can go, each asked for by its tile.

The shared suite runs them as they choose their tiles themselves; here a tile is prescribed, so that all branches run
on any machine and on small problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conformance import check, compare, make_case, run
from convolution_cases import convolution
from jitdnn.devices.cpu import CpuDevice, host
from jitdnn.kernels.algorithm import Device, Epilogue
from jitdnn.kernels.cpu.convolution.direct.algorithm import Direct, Part
from jitdnn.kernels.cpu.convolution.direct.depthwise import Depthwise
from jitdnn.kernels.cpu.convolution.direct.over_channels import ChannelTile, OverChannels
from jitdnn.kernels.cpu.convolution.direct.over_groups import GroupTile, OverGroups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import OverGroupsPacked
from jitdnn.kernels.cpu.convolution.direct.over_pixels import OverPixels, PixelTile, best_turned, strips
from jitdnn.kernels.cpu.convolution.direct.wgrad_depthwise import DepthwiseWgrad
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import WgradChannelTile, WgradOverChannels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import WgradGroupTile, WgradOverGroups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import WgradOverPixels, WgradPixelTile
from jitdnn.kernels.cpu.correlation import lower_convolution
from jitdnn.problems import Convolution, Problem
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

DEVICE = host(1)
LANES = DEVICE.isa.lanes("f32")


class Prescribed(Direct):
    """The direct convolution with its parts made by the test."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.name = f"prescribed {[part.tile for part in parts]} {type(parts[0]).__name__}"  # type: ignore[misc]

    def _parts(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Sequence[Part]:
        return self.parts


def fix(part: Part, tile: object, **more: object) -> Part:
    """The plan with its tile (and other choices) settled before it makes them."""
    part.__dict__.update(tile=tile, **more)
    return part


def verify(problem: Convolution, parts: Sequence[Part], epilogue: Epilogue | None = None) -> None:
    case, algorithm = make_case(problem, epilogue), Prescribed(parts)
    kernel = algorithm.build(problem, DEVICE, epilogue)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        actual = run(kernel, case, 0, alpha, beta)
        compare(actual, case, alpha, beta, algorithm.error_bound(problem))


def with_operand(problem: Convolution) -> Epilogue:
    operand = TensorDescriptor.packed(problem.output.shape, problem.dtype, "nhwc")
    return Epilogue(trace(lambda acc, other: acc * 0.5 + other), (operand,))


# pixels in the lanes


@pytest.mark.parametrize(
    ("words", "tile"),
    [
        ("conv_fwd n2 c3 h9 w20 k3 r3 s3 pad1 g3", PixelTile(1, 2, 1)),
        ("conv_fwd n1 c2 h7 w40 k5 r3 s3 pad1", PixelTile(2, 1, 2)),  # channels, rows, pixels left over
        ("conv_fwd n1 c2 h8 w70 k3 r2 s3 pad0x1 stride1x2", PixelTile(3, 2, 1)),  # picked lanes
        ("conv_fwd n1 c2 h8 w70 k3 r2 s3 pad0x1 stride2x4", PixelTile(2, 3, 1)),
        ("conv_fwd n1 c2 h8 w90 k3 r2 s3 pad0x1 stride2x5", PixelTile(2, 1, 1)),  # gathered lanes
        ("conv_bwd_data n1 c3 h9 w41 k2 r3 s3 pad1 stride2", PixelTile(1, 2, 1)),  # two stride phases woven
        ("conv_bwd_data n1 c2 h7 w43 k2 r3 s5 pad1 stride1x3", PixelTile(2, 1, 1)),  # three
        ("conv_bwd_data n1 c2 h7 w50 k2 r3 s2 stride2x4", PixelTile(1, 1, 1)),  # four, some of them unmet
        ("conv_bwd_data n1 c2 h7 w23 k2 r3 s2 stride2x5", PixelTile(1, 1, 1)),  # five: one by one
    ],
)
def test_pixel_lanes(words: str, tile: PixelTile) -> None:
    problem = convolution(words)
    parts = [fix(OverPixels(strip, DEVICE.isa), tile) for strip in strips(problem)]
    verify(problem, parts)
    epilogue = with_operand(problem)
    parts = [fix(OverPixels(strip, DEVICE.isa), tile) for strip in strips(problem, epilogue.operands)]
    verify(problem, parts, epilogue)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_rows_slide_over_the_taps_of_a_tall_filter(direction: str) -> None:
    problem = convolution(f"conv_{direction} n1 c2 h14 w19 k2 r19 s17 pad9x8 g2")
    (strip,) = strips(problem)
    part = OverPixels(strip, DEVICE.isa)
    tile = PixelTile(1, 4, 1)
    assert not part.is_straight(tile)
    verify(problem, [fix(part, tile)])


def test_taps_of_a_long_row_in_a_loop() -> None:
    problem = convolution("conv_fwd n1 c2 h5 w80 k3 r3 s71 pad1x40")
    (strip,) = strips(problem)
    part = OverPixels(strip, DEVICE.isa)
    tile = PixelTile(3, 1, 1)
    assert not part.is_row_straight(tile)
    verify(problem, [fix(part, tile)])


# groups in the lanes


@pytest.mark.parametrize("straight", ["all", "row", "none"])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c19 h9 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_fwd n1 c32 h9 w11 k32 r3 s2 pad2:0x0:3 stride2x1 g32 nhwc",
        "conv_fwd n1 c5 h6 w7 k15 r3 s3 pad1 dil2 g5 nhwc",  # results of a group woven
        "conv_fwd n1 c12 h6 w7 k8 r3 s3 pad1 g4 nhwc",  # channels of a group picked
        "conv_fwd n1 c4 h6 w7 k20 r3 s3 pad1 g4 nhwc",  # too many results to weave
        "conv_bwd_data n1 c9 h8 w9 k27 r3 s3 pad1 stride2 g9 nhwc",
        "conv_bwd_data n1 c8 h6 w5 k8 r3 s3 pad1 g8",  # channels first: gathered and scattered
        "conv_fwd n1 c3 d4 h5 w4 k3 t3 r3 s2 pad1 g3 nhwc",
    ],
)
def test_group_lanes(words: str, straight: str) -> None:
    problem = convolution(words)
    tile = GroupTile(2 if straight == "all" else 1, 3, straight)
    verify(problem, [fix(OverGroups(part, DEVICE.isa), tile) for part in lower_convolution(problem)])
    epilogue = with_operand(problem)
    parts = lower_convolution(problem, epilogue.operands)
    verify(problem, [fix(OverGroups(part, DEVICE.isa), tile) for part in parts], epilogue)


class Packed(Depthwise):
    """The depthwise convolution that turns its planes, which otherwise only some do."""

    name = "packed"

    def _parts(
        self, problem: Problem, device: Device, epilogue: Epilogue | None = None
    ) -> Sequence[OverGroupsPacked]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        part = OverGroupsPacked(whole.merged(), device.isa)
        assert part.fits
        return [part]


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
        "conv_fwd n2 c19 h6 w9 k19 r5 s5 pad2 g19 nhwc",  # copied, not turned
        "conv_fwd n2 c19 h6 w9 k38 r5 s5 pad2 g19 x=nhwc",
        "conv_bwd_data n2 c19 h6 w8 k19 r5 s3 pad2x1 g19",
        "conv_fwd n2 c19 h6 w8 k19 r3 s3 pad1 g19 x=s1100,54,9,1 y=s1200,60,10,1",  # rows apart
    ],
)
def test_packed_lanes(words: str) -> None:
    problem, algorithm = convolution(words), Packed()
    for epilogue in (None, with_operand(problem)):
        size = algorithm.workspace(problem, DEVICE, epilogue)
        case, kernel = make_case(problem, epilogue), algorithm.build(problem, DEVICE, epilogue)
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
            actual = run(kernel, case, size, alpha, beta)
            compare(actual, case, alpha, beta, algorithm.error_bound(problem))


def test_small_planes_under_large_filters_are_turned() -> None:
    problem = convolution("conv_fwd n8 c256 h7 w7 k256 r13 s13 pad6 g256")
    (part,) = Depthwise()._parts(problem, DEVICE)
    assert isinstance(part, OverGroupsPacked)
    check(convolution("conv_fwd n2 c40 h7 w7 k40 r13 s13 pad6 g40"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_planes_from_memory_are_not_turned_for_a_few_taps(dtype: str) -> None:
    problem = convolution(f"conv_fwd n8 c144 h56 w56 k144 r3 s3 stride2 pad1 g144 {dtype}")
    (part,) = Depthwise()._parts(problem, DEVICE)
    assert isinstance(part, OverPixels)


def test_filters_of_many_taps_are_turned_in_the_workspace() -> None:
    check(convolution("conv_fwd n1 c5 h12 w11 k5 r19 s17 pad9x8 g5 nhwc f64"))
    problem = convolution("conv_fwd n1 c33 h12 w11 k33 r19 s17 pad9x8 g33 nhwc")
    assert Depthwise().workspace(problem, DEVICE) > 0
    check(problem, scales=((1.0, 0.0),))


# channels in the lanes


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
def test_channel_lanes(words: str, kind: str) -> None:
    problem = convolution(words)
    for results in (1, 3):
        tile = ChannelTile(3, results if kind == "dot" else min(2, results), kind)
        epilogue = with_operand(problem)
        for fused in (None, epilogue):
            plans = lower_convolution(problem, fused.operands if fused else ())
            parts = [OverChannels(best_turned(part), DEVICE.isa) for part in plans]
            if kind != "dot" or all(part.c.x.channels == part.c.w.channels == 1 for part in parts):
                verify(problem, [fix(part, tile) for part in parts], fused)


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
def test_filter_pixel_lanes(words: str, tile: WgradPixelTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    channels = tile.channels if whole.depth % tile.channels == 0 else 1
    taps = min(tile.taps, LANES, whole.axes[2].taps.count)
    tile = replace(tile, channels=channels, taps=taps)
    verify(problem, [fix(WgradOverPixels(whole, DEVICE.isa), tile)])


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
def test_filter_channel_lanes(words: str, tile: WgradChannelTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    verify(problem, [fix(WgradOverChannels(whole, DEVICE.isa), tile)])


@pytest.mark.parametrize("tile", [WgradGroupTile(1, 2, 3), WgradGroupTile(3, 3, 2), WgradGroupTile(1, 1, 1)])
@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n2 c19 h7 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_bwd_filter n2 c5 h6 w7 k15 r3 s3 pad1x2 stride2 g5 nhwc",  # results of a group picked
        "conv_bwd_filter n1 c12 h6 w5 k8 r3 s3 dil2 pad2 g4 nhwc",  # channels of a group picked
        "conv_bwd_filter n1 c4 d3 h5 w4 k8 t2 r3 s3 pad1 g4",
    ],
)
def test_filter_group_lanes(words: str, tile: WgradGroupTile) -> None:
    problem = convolution(words)
    (whole,) = lower_convolution(problem)
    verify(problem, [fix(WgradOverGroups(whole, DEVICE.isa, is_shared=False), tile)])


@pytest.mark.parametrize(
    "words", ["n3 c70 h7 w6 k70 r3 s3 pad1 g70", "n2 c33 h5 w9 k66 r2 s5 pad0x2 stride2x1 g33 f64"]
)
def test_small_planes_share_a_unit(words: str) -> None:
    problem = convolution(f"conv_bwd_filter {words}")
    (whole,) = lower_convolution(problem)
    part = WgradOverPixels(best_turned(whole.merged()), DEVICE.isa)
    assert part.units.count < problem.groups
    verify(problem, [part])


class Split(DepthwiseWgrad):
    """The depthwise gradient with its rows split, which otherwise only large problems are."""

    name = "split"

    def _plan(self, problem: Problem, device: Device) -> WgradOverPixels | WgradOverGroups:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        (whole,) = lower_convolution(problem)
        plan = WgradOverGroups(whole, device.isa, is_shared=True)
        plan.__dict__.update(splits=3, row_block=2)
        return plan


@pytest.mark.parametrize(
    "words",
    [
        "conv_bwd_filter n1 c19 h9 w8 k19 r3 s3 pad1 g19 nhwc",
        "conv_bwd_filter n3 c3 h4 w5 k6 r2 s3 g3 nhwc f64",
    ],
)
def test_split_rows_of_a_depthwise_gradient_are_added(words: str) -> None:
    problem, algorithm = convolution(words), Split()
    case, kernel = make_case(problem), algorithm.build(problem, DEVICE)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        actual = run(kernel, case, algorithm.workspace(problem, DEVICE), alpha, beta)
        compare(actual, case, alpha, beta, algorithm.error_bound(problem))


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
        for part in Direct()._parts(convolution(f"conv_{direction} n2 {words}"), DEVICE):
            tile = part.tile
            if isinstance(tile, PixelTile):
                sums = tile.channels * tile.rows * tile.vectors
            elif isinstance(tile, ChannelTile):
                sums = tile.pixels * tile.results
            else:
                sums = tile.sums if isinstance(tile, WgradPixelTile) else tile.results * tile.vectors
            assert sums < DEVICE.isa.registers


def test_an_axis_whose_one_tap_is_not_the_filters_first() -> None:
    check(convolution("conv_bwd_data n1 c1 d6 h5 w2 k1 t2 r3 s1 stride1x2x4 pad1:0x0:3x0 dil1x1x3 flip nhwc"))


@pytest.mark.parametrize("size", ["h8 w8", "h9 w12"])
def test_residues_of_a_strided_backward_data(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are cut alike are one phase; results that exceed the caches are asked for before."""
    monkeypatch.setattr("jitdnn.kernels.cpu.convolution.direct.over_groups._WRITTEN_BYTES", 0)
    monkeypatch.setattr("jitdnn.kernels.cpu.convolution.direct.over_groups._BESIDE_BYTES", 1)
    monkeypatch.setattr("conformance.algorithms", lambda *_: [Residues()])
    check(convolution(f"conv_bwd_data n2 c20 {size} k20 r3 s3 stride2 pad1 g20 f32 nhwc"))


class Residues(Depthwise):
    """With the groups in the lanes."""

    name = "depthwise_residues"

    def _parts(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> list[OverGroups]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        parts = [OverGroups(part.merged(), device.isa) for part in lower_convolution(problem)]
        assert all(part.is_written_far for part in parts)
        return parts
