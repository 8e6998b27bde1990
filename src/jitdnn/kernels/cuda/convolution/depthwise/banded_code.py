"""Source text and launches of the banded kernels: banded.cu, banded_wgrad.cu."""

from __future__ import annotations

from collections.abc import Iterator

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.banded_plan import Banded, BandedWgrad
from jitdnn.kernels.cuda.convolution.depthwise.sliding_code import (
    Defines,
    defines_of_window,
    epilogue_text,
    in_order,
    is_mirrored,
    reduce_launch,
    tap_span,
)
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import max_offset


def launch(plan: Banded, epilogue: Epilogue | None = None) -> tuple[Source, list[Launch], tuple[int, ...]]:
    """The text, its launch, the number of lines, and whether taps are mirrored, as in sliding_code.py."""
    functions, defines = epilogue_text(plan.window, plan.axes, epilogue)
    files = (
        "common.cuh",
        "banded_planes.cuh",
        "banded.cu",
    )
    text = functions + read_text("cuda/convolution/depthwise", *files)
    source = Source("depthwise_banded", text, (*_defines(plan), *defines), "cuda", spills=True)
    main = Launch("depthwise", plan.grid_blocks, plan.threads, plan.shared, is_early=True)
    return source, [main], (plan.line_count, int(is_mirrored(plan.axes)))


def wgrad_launch(plan: BandedWgrad) -> tuple[Source, list[Launch], tuple[int, ...]]:
    """The same of a filter's gradient; the numbers are splits and lines."""
    files = (
        "common.cuh",
        "banded_planes.cuh",
        "banded_wgrad.cu",
        "wgrad_reduce.cu",
    )
    text = read_text("cuda/convolution/depthwise", *files)
    source = Source("depthwise_banded_filter", text, _wgrad_defines(plan), "cuda", spills=True)
    grid = (plan.strips, plan.splits)
    launches = [Launch("depthwise_wgrad", grid, plan.threads, plan.shared), reduce_launch(plan.window)]
    return source, launches, (plan.splits, plan.line_count)


def _defines(plan: Banded) -> Defines:
    blocking, axes = plan.blocking, in_order(plan.axes)
    return (
        *defines_of_window(plan.window, axes),
        ("W_SPAN", tap_span(axes)),
        *_shape_defines(plan),
        ("STEP_ROWS", blocking.rows),
        ("WARP_CHANNELS", plan.own_channels),
        ("TAPS_IN_SHARED", int(plan.has_taps_in_shared)),
        ("OUT_PLANE", plan.out_plane),
        ("ALTERNATE", int(not plan.has_taps_in_shared)),
        ("MIN_BLOCKS", min(plan.resident, 2)),
        ("OFFSET", plan.window.shift(max_offset(plan.window))),
    )


def _wgrad_defines(plan: BandedWgrad) -> Defines:
    return (
        *defines_of_window(plan.window, plan.axes),
        *(pair for pair in _shape_defines(plan) if pair[0] != "WARPS"),
        ("WARPS", plan.warps),
        ("STEP_ROWS", plan.blocking.rows),
        ("WARP_CHANNELS", 1),
        ("WARP_TAP_ROWS", plan.tap_rows),
        ("TAP_WARPS", plan.tap_warps),
        ("DY_PLANE", plan.dy_plane),
        ("MIN_BLOCKS", min(plan.resident, 2)),
        ("OFFSET", plan.window.shift(max_offset(plan.window))),
    )


def _shape_defines(plan: Banded) -> Iterator[tuple[str, object]]:
    blocking = plan.blocking
    yield from (
        ("BLOCK_CHANNELS", blocking.channels),
        ("VECTOR", plan.width),
        ("SEGMENT_TILES", blocking.segment),
        ("LINES", blocking.lines),
    )
    yield from (
        ("SEGMENTS", 1 if blocking.is_one_row else blocking.segments),
        ("CHUNKS", blocking.chunks),
        ("BLOCK_ROWS", blocking.strip),
    )
    yield from (
        ("BLOCKS", plan.band.blocks),
        ("SHIFT", f"({plan.band.shift})"),
        ("MMA_TILES", blocking.tiles),
    )
    yield from (("LINE_BLOCKS", plan.line_blocks), ("PLANE", plan.plane), ("SLOTS", plan.slots))
    yield from (("ROW_FIRST", plan.first_row), ("ROW_END", plan.end_row), ("WARPS", blocking.warps))
    yield from (("ROW_SHIFT", 8 * blocking.segment if blocking.is_one_row else 0),)
