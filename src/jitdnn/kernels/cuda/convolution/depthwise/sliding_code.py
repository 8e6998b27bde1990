"""Source text and launches of the sliding kernels, and the macros that all depthwise kernels share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import (
    Sliding,
    SlidingWgrad,
    column_packs,
    is_dense,
    max_offset,
)
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source

Defines = tuple[tuple[str, object], ...]
SLIDING_TEXTS = "common.cuh", "sliding_rows.cuh"


def launch(
    plan: Sliding, epilogue: Epilogue | None = None, is_aligned: bool = True
) -> tuple[Source, list[Launch], tuple[int, ...]]:
    """The text, its launch and its numbers, for tensors at multiples of `alignments` or, if not `is_aligned`, anywhere.

    The first number says whether taps are mirrored: forward and backward to the data of stride 1 share their code. The
    others are what varies with the number of images: it, blocks of rows of a thread, and how many threads they make.
    """
    functions, defines = epilogue_text(plan.window, plan.axes, epilogue)
    text = functions + read_text("cuda/convolution/depthwise", *SLIDING_TEXTS, "sliding.cu")
    defines = (*_defines(plan), ("IS_ALIGNED", int(is_aligned)), *defines)
    source = Source("depthwise_sliding", text, defines, "cuda", spills=True)
    main = Launch("depthwise", plan.grid_blocks, plan.tile.threads, is_early=True)
    rows = plan.tile.rows
    return source, [main], (int(is_mirrored(plan.axes)), plan.window.n, rows, -(-plan.blocks // rows))


def wgrad_launch(plan: SlidingWgrad, is_aligned: bool = True) -> tuple[Source, list[Launch], tuple[int, ...]]:
    """The same of a filter's gradient; the number is its splits."""
    files = ("sliding_wgrad.cu", "wgrad_reduce.cu")
    text = read_text("cuda/convolution/depthwise", *SLIDING_TEXTS, *files)
    defines = (*_wgrad_defines(plan), ("IS_ALIGNED", int(is_aligned)))
    source = Source("depthwise_sliding_filter", text, defines, "cuda", spills=True)
    tile = plan.tile
    launches = [
        Launch("depthwise_wgrad", (plan.strips, tile.splits), tile.threads),
        reduce_launch(plan.window),
    ]
    return source, launches, (tile.splits,)


def is_mirrored(axes: Sequence[Axis]) -> bool:
    """Whether taps are taken from the last to the first along all axes that have several."""
    several = [axis for axis in axes if axis.taps > 1]
    return bool(several) and all(axis.tap_base and axis.tap_base == _span(axis) for axis in several)


def _span(axis: Axis) -> int:
    """Elements from the tap that is first in memory to the last, of an axis whose taps are mirrored."""
    return (1 - axis.taps) * axis.tap_step


def in_order(axes: Sequence[Axis]) -> list[Axis]:
    """The axes with their taps as they follow each other in memory."""
    if not is_mirrored(axes):
        return list(axes)
    return [replace(axis, tap_step=-axis.tap_step, tap_base=0) for axis in axes]


def tap_span(axes: Sequence[Axis]) -> str:
    """Elements from the first tap in memory to the last, as a macro."""
    return f"({sum((axis.taps - 1) * axis.tap_step for axis in axes)}LL)"


def alignments(plan: Sliding | SlidingWgrad) -> tuple[int, int, int]:
    """What the addresses of the operands must be multiples of, in bytes, to be read and stored in whole packs."""
    packs = column_packs(plan.window, plan.axes[2], plan.tile.columns)
    if isinstance(plan, SlidingWgrad):
        tensors = plan.element * max(plan.tile.channels, packs[0])
        return tensors, tensors, plan.element
    tensors = plan.element * max(plan.tile.channels, *packs)
    return tensors, tensors if is_dense(plan.window, plan.axes) else plan.element, tensors


def reduce_launch(window: Window) -> Launch:
    """The second pass, which adds the parts."""
    return Launch("reduce_partials", -(-window.taps * window.channels // 32), 256)


def _defines(plan: Sliding) -> Defines:
    tile = plan.tile
    packs = column_packs(plan.window, plan.axes[2], tile.columns)
    axes = in_order(plan.axes)
    return (
        *defines_of_window(plan.window, axes),
        ("W_SPAN", tap_span(axes)),
        ("THREAD_CHANNELS", tile.channels),
        ("TILE_COLUMNS", tile.columns),
        ("TILE_DEPTHS", tile.depths),
        ("PREFETCH", tile.prefetch),
        ("W_DENSE", int(is_dense(plan.window, plan.axes))),
        ("IN_PACK", packs[0]),
        ("OUT_PACK", packs[1]),
        ("BLOCK_PACKS", tile.side),
        ("THREAD_COUNT", tile.threads),
        ("MIN_BLOCKS", min(plan.resident, max(1, 1024 // tile.threads))),
        ("INDEX", "u32" if plan.units + 1024 < 2**32 else "u64"),
        ("OFFSET", plan.window.shift(max_offset(plan.window))),
        ("READS_WIDE", int(plan.ends_inside_line)),
    )


def _wgrad_defines(plan: SlidingWgrad) -> Defines:
    tile = plan.tile
    pack, _ = column_packs(plan.window, plan.axes[2], tile.columns)
    return (
        *defines_of_window(plan.window, plan.axes),
        ("THREAD_CHANNELS", tile.channels),
        ("TILE_COLUMNS", tile.columns),
        ("TILE_DEPTHS", tile.depths),
        ("PREFETCH", tile.prefetch),
        ("READS_ONCE", int(plan.window.dtype == "f32")),
        ("UNROLLED_STEPS", plan.round),
        ("IMAGES", plan.window.n),
        ("BLOCK_ROWS", tile.rows),
        ("BLOCK_PACKS", tile.side),
        ("IN_PACK", pack),
        ("SPLITS", tile.splits),
        ("THREAD_COUNT", tile.threads),
        ("MIN_BLOCKS", plan.resident),
        ("OFFSET", plan.window.shift(max_offset(plan.window))),
    )


def defines_of_window(window: Window, axes: Sequence[Axis]) -> Iterator[tuple[str, object]]:
    """What all kernels of this folder know of a problem; `axes` in the order of the letters D, H and W."""
    yield f"DTYPE_{window.dtype}", 1
    for letter, axis in zip("DHW", axes, strict=True):
        yield from defines_of_axis(letter, axis)
    yield "CHANNELS", window.channels
    yield "MULTIPLIER", window.multiplier
    yield "X_N", f"({window.input.strides[0]}LL)"
    yield "X_C", f"({window.input.strides[1]}LL)"
    yield "Y_N", f"({window.output.strides[0]}LL)"
    yield "Y_C", f"({window.output.strides[1]}LL)"
    yield "W_C", f"({window.filter.strides[0]}LL)"
    yield "W_BASE", f"({sum(axis.tap_base for axis in axes)}LL)"


def defines_of_axis(letter: str, axis: Axis) -> Iterator[tuple[str, object]]:
    yield f"{letter}_TAPS", axis.taps
    yield f"{letter}_TAP_STEP", f"({axis.tap_step}LL)"
    yield f"{letter}_STRIDE", axis.stride
    yield f"{letter}_SCATTERED", int(axis.is_scattered)
    yield f"{letter}_PHASES", axis.phases
    yield f"{letter}_START", f"({axis.start})"
    yield f"{letter}_COUNT", axis.count
    for side, line in (("IN", axis.input), ("OUT", axis.output)):
        yield f"{letter}_{side}_PITCH", line.pitch
        yield f"{letter}_{side}_ORIGIN", f"({line.origin})"
        yield f"{letter}_{side}_SLOPE", line.slope
        yield f"{letter}_{side}_EXTENT", line.extent
        yield f"{letter}_{side}_STEP", f"({line.step}LL)"


def epilogue_text(window: Window, axes: Sequence[Axis], epilogue: Epilogue | None) -> tuple[str, Defines]:
    """The functions of an epilogue, and the macros through which a kernel with its axes in this order calls them."""
    code = epilogue_source(epilogue, window.output, "f32", first=3)
    space = ["d", "w", "h"] if axes[1] is window.axes[2] else ["d", "h", "w"]
    result = code.apply("(sum)", ["n", "c", *space[5 - len(window.output.shape) :]])
    names = "".join(f", e{number}" for number in range(3, 3 + len(code.operands)))
    return code.functions, (
        ("HAS_EPILOGUE", int(epilogue is not None)),
        ("EPILOGUE(sum, n, c, d, h, w)", f"({result})"),
        ("EPILOGUE_PARAMETERS", code.parameters),
        ("EPILOGUE_KERNEL_PARAMETERS", code.parameters),
        ("EPILOGUE_ARGUMENTS", names),
    )
