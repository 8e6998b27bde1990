"""Blocks derive from the facts of a processor: they fit its caches, and differ where its caches do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convolution_cases import convolution
from jitdnn.kernels.cpu.convolution.direct.algorithm import not_depthwise
from jitdnn.kernels.cpu.convolution.direct.over_channels import cost as over_channels
from jitdnn.kernels.cpu.convolution.direct.over_groups import cost as over_groups
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed import cost as over_groups_packed
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import fits
from jitdnn.kernels.cpu.convolution.direct.over_pixels import cost as over_pixels
from jitdnn.kernels.cpu.convolution.direct.over_pixels.plan import lower_rows
from jitdnn.kernels.cpu.convolution.direct.plan import nearest_axis_last
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels import cost as wgrad_over_channels
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups import cost as wgrad_over_groups
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels import cost as wgrad_over_pixels
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.rtcg.isa import Isa
from processors import MACHINES

KIB = 1 << 10
# ---- direct convolution

LAYERS = """
n16 c3 h224 w224 k64 r7 s7 stride2 pad3 f32 nchw
n4 c64 h56 w56 k64 r3 s3 pad1 f32 nchw
n4 c64 h56 w56 k64 r3 s3 pad1 f32 nhwc
n4 c128 h28 w28 k128 r3 s3 pad1 f32 nhwc
n4 c256 h14 w14 k256 r3 s3 pad1 f32 nchw
n4 c256 h14 w14 k1024 r1 s1 f32 nhwc
n4 c512 h7 w7 k512 r3 s3 pad1 f32 nhwc
n2 c192 h28 w28 k32 r5 s5 pad2 f32 nchw
n2 c64 h112 w112 k128 r3 s3 stride2 pad1 f32 nchw
n1 c16 h512 w512 k16 r3 s3 pad1 f32 nhwc
n1 c512 h64 w64 k512 r3 s3 pad1 f32 nhwc
n1 c32 h128 w2048 k32 r3 s3 pad1 f32 nchw
n1 c8 h256 w256 k8 r5 s5 pad2 f64 nchw
n4 c32 h112 w112 k32 r3 s3 pad1 g32 f32 nchw
n4 c32 h112 w112 k32 r3 s3 pad1 g32 f32 nhwc
n4 c144 h56 w56 k144 r3 s3 stride2 pad1 g144 f32 nhwc
n4 c480 h14 w14 k480 r5 s5 pad2 g480 f32 nchw
n4 c960 h7 w7 k960 r5 s5 pad2 g960 f32 nhwc
n1 c768 h56 w56 k768 r7 s7 pad3 g768 f32 nhwc
n1 c384 h14 w14 k384 r31 s31 pad15 g384 f32 nchw
""".strip().splitlines()


def within(block: int, least: int, cache: int) -> bool:
    """Whether a block fits a cache, or is the least that there is."""
    return block <= cache or block == least


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("layer", LAYERS)
def test_direct_blocks_fit_the_caches(layer: str, machine: str) -> None:
    processor = MACHINES[machine].processor
    l1, l2 = processor.l1_bytes, processor.l2_bytes
    problem = convolution(layer, "fwd")
    c = lower_convolution(problem)[0].merged()
    for own, last_axes in lower_rows(problem, ()):
        pixels = over_pixels.choose(own, last_axes, MACHINES[machine])
        run = own.depth * own.axes[1].taps.count * pixels.tile_pixels * own.axes[2].step * pixels.item
        assert within(run * pixels.run_tiles, run, l2 // 8)
    if not_depthwise(problem) is not None:
        channels = over_channels.choose(nearest_axis_last(c), MACHINES[machine])
        (_, rows, columns), item = channels.c.axes, channels.item
        run = c.depth * rows.taps.count * channels.tile.pixels * columns.step * item
        assert within(run * channels.run_tiles, run, l2 // 8)
        row = c.depth * rows.step * columns.positions * item
        assert within(row * channels.unit_rows, row, l2 // 8)
        if channels.tile.kind == "panel":
            assert channels.panel_size * item <= l1 // 2
        return
    groups = over_groups.choose(c, MACHINES[machine])
    assert within(
        groups.task_vectors * groups.filter_size * groups.item, groups.filter_size * groups.item, l1 // 2
    )
    if fits(c, MACHINES[machine]):
        packed = over_groups_packed.choose(c, MACHINES[machine])
        assert packed.elements * packed.item <= l2 // 2
        assert packed.inner.filter_size * packed.item + packed.elements * packed.item <= l2


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("layer", LAYERS)
def test_direct_blocks_of_filter_gradients_fit_the_caches(layer: str, machine: str) -> None:
    processor = MACHINES[machine].processor
    l1, l2 = processor.l1_bytes, processor.l2_bytes
    problem = convolution(layer, "bwd_filter")
    c = lower_convolution(problem)[0].merged()
    last = nearest_axis_last(c)
    (_, rows, columns) = last.axes
    pixels = wgrad_over_pixels.choose(last, MACHINES[machine])
    tile, item = pixels.tile, pixels.item
    row = (tile.results + tile.channels * rows.step) * columns.results * item
    assert pixels.row_block <= tile.height or (pixels.row_block - tile.height + 1) * row <= l1
    assert pixels.fits_stack
    if not_depthwise(problem) is not None:
        channels = wgrad_over_channels.choose(last, MACHINES[machine])
        each = channels.tile.results * columns.results
        each += channels.tile_channels * columns.positions * rows.step
        assert within(channels.row_block * each * item, each * item, l2 // 8)
        sums = channels.pass_sums * item
        assert within(channels.unit_taps * sums, sums, l1 // 2)
        return
    groups = wgrad_over_groups.choose(c, MACHINES[machine], may_split=True)
    axes = groups.c.axes
    each = (c.width * axes[2].results + c.depth * axes[1].step * axes[2].positions) * c.groups[0] * item
    assert within(groups.row_block * each, each, l2 // 8)
    assert within(groups.task_vectors * groups.filter_size * item, groups.filter_size * item, l1 // 2)


def with_l2(kib: int) -> Isa:
    found = MACHINES["Zen 3"]
    return replace(found, processor=replace(found.processor, l2_bytes=kib * KIB))


def test_direct_blocks_grow_with_the_caches() -> None:
    small, large = with_l2(512), with_l2(2048)
    problem = convolution("n1 c64 h128 w2048 k64 r3 s3 pad1 f32 nchw", "fwd")
    c, last_axes = next(iter(lower_rows(problem, ())))
    runs = [
        replace(over_pixels.choose(c, last_axes, small), isa=machine).run_tiles for machine in (small, large)
    ]
    assert runs[0] < runs[1]
    whole = lower_convolution(convolution("n1 c512 h64 w64 k512 r3 s3 pad1 f32 nhwc", "bwd_filter"))[
        0
    ].merged()
    plan = wgrad_over_channels.choose(nearest_axis_last(whole), small)
    assert plan.row_block < replace(plan, isa=large).row_block
    depthwise = convolution("n4 c64 h56 w56 k64 r3 s3 pad1 g64 f32 nhwc", "bwd_filter")
    whole = lower_convolution(depthwise)[0].merged()
    few, many = (
        wgrad_over_groups.choose(whole, machine, may_split=True).row_block for machine in (small, large)
    )
    assert few < many
    packed = lower_convolution(convolution("n4 c960 h80 w80 k960 r5 s5 pad2 g960 f32 nchw", "fwd"))[
        0
    ].merged()
    assert not fits(packed, small)
    assert fits(packed, large)
