"""Source text and launches: points, axes, types and the epilogue are compiled in, extents and strides are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import cos, pi, sin

from jitdnn.devices.gpu import GpuDevice, Kernel, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.formulas.overlap_save import ceil_div
from jitdnn.kernels.gpu.convolution.fft.plan import Plan
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.kernels.gpu.prelude.images import offset_type
from jitdnn.tensor import TensorDescriptor

_POINTERS = 3
_LANES = 32  # points of a warp, of products of matrices
_REAL_OF = {"f32": "(bits)", "f16": "f32_of_f16(bits)", "bf16": "f32_of_bits((u32)(bits) << 16)"}
"""Of an element as it is stored."""


def build(plan: Plan, device: GpuDevice, epilogue: Epilogue | None) -> Kernel:
    """The kernel of a plan."""
    numbers = numbers_of(plan)
    source = source_of(plan, epilogue, tuple(numbers))
    pointers = _POINTERS + (len(epilogue.operands) if epilogue else 0)
    return device.kernel(source, launches_of(plan, device.target == "cuda"), pointers, list(numbers.values()))


def launches_of(plan: Plan, is_cuda: bool) -> list[Launch]:
    """On other targets the text says how much shared memory there is."""
    shared = plan.shared if is_cuda else 0
    if plan.is_product:
        return _launches_of_products(plan, shared)
    if not plan.is_wgrad:
        launches = [Launch("convolve", plan.blocks, plan.threads, shared)]
        if plan.is_prepared:
            blocks = ceil_div(plan.filters * plan.parts, plan.lines)
            launches.insert(0, Launch("filter_spectra", blocks, plan.threads, shared))
        return launches
    launches = [Launch("filter_gradient", plan.blocks, plan.threads, shared)]
    if plan.shares > 1:
        launches.append(
            Launch("sum_shares", ceil_div(plan.results * plan.parts, plan.lines), plan.threads, shared)
        )
    return launches


def _launches_of_products(plan: Plan, shared: int) -> list[Launch]:
    names = ("spectra_of_dy", "spectra_of_x") if plan.is_wgrad else ("filter_spectra", "spectra_of_data")
    first, second, last = (
        Launch(name, ceil_div(count, plan.lines * plan.rounds), plan.threads, shared)
        for name, count in zip((*names, "finish"), plan.spectra, strict=True)
    )
    blocks = plan.tiles * plan.problem.groups * plan.points // _LANES
    return [first, second, Launch("multiply_spectra", blocks, 128), last]


def source_of(plan: Plan, epilogue: Epilogue | None, parameters: Sequence[str]) -> Source:
    """The text of all kernels of a plan."""
    problem, axes = plan.problem, len(plan.tilings)
    fused = epilogue_source(epilogue, problem.output, "f32", _POINTERS)
    tensors = [problem.x, problem.y, problem.w]

    def listed(name: str, type_: str = "int") -> str:
        return "{" + ", ".join(f"({type_}){name}_{axis}" for axis in range(axes)) + "}"

    indices = ["image", "channel", *(f"indices[{axis}]" for axis in range(axes))]
    defines = (
        ("ELEMENT", problem.dtype), ("REAL", "f32"), ("NUMBER(x)", "x##f"), ("OFFSET", offset_type(tensors)),
        ("REAL_OF(bits)", _REAL_OF[problem.dtype]),
        ("POINTS", plan.points), ("FIRST_RADIX", plan.first_radix), ("PASSES", plan.passes),
        ("LINES", plan.lines), ("THREADS_OF_BLOCK", plan.threads),
        ("STAGE_OF_LINE", plan.stage_of_line),
        ("AXES", axes), ("IS_WGRAD", int(plan.is_wgrad)), ("IS_DATA", int(plan.is_data)),
        ("IS_SUM", int(plan.is_sum)), ("IS_PREPARED", int(plan.is_prepared)), ("IS_PRODUCT", int(plan.is_product)),
        ("IS_IN_PARTS", int(plan.parts > 1)),
        ("IS_UNSTRIDED", int(max(problem.stride) == 1)), ("IS_UNDILATED", int(max(problem.dilation) == 1)),
        ("RESULT_IS_DENSE", int(plan.is_data or max(problem.stride) == 1)),
        ("DATA_ARE_DENSE", int(not plan.is_data or max(problem.stride) == 1)),
        ("STRIDES_OF_RESULT", "strides_x" if plan.is_data else "strides_y"),
        ("STRIDES_OF_DATA", "strides_y" if plan.is_data else "strides_x"),
        *((f"{name.upper()}", listed(name)) for name in _LISTS),
        *((f"STRIDES_{name.upper()}", listed(f"step_{name}", "OFFSET")) for name in "xyw"),
        ("ROOTS", _roots(plan.points)),
        ("PARAMETERS", ", ".join(f"i64 {name}" for name in parameters)),
        ("EPILOGUE_PARAMETERS", fused.parameters),
        ("EPILOGUE(sum, image, channel)", fused.apply("sum", indices)),
    )  # fmt: skip
    files = ["transform.c", "fft.c", *(["products.c"] if plan.is_product else [])]
    text = fused.functions + read_text("gpu/convolution/fft", *files)
    # 128 registers a thread: some bytes are spilled where there are epilogues, strides or several axes
    return Source("fft_wgrad" if plan.is_wgrad else "fft", text, defines, spills=True)


_LISTS = (
    "lengths", "ahead", "strides", "dilations", "extents_x", "extents_y", "spans", "paddings", "sizes", "tiles",
)  # fmt: skip


def numbers_of(plan: Plan) -> dict[str, int]:
    """The integers that every kernel takes, by name."""
    problem = plan.problem
    numbers = {
        "parts": plan.parts, "taps_of_part": plan.tilings[-1].axis.w, "taps": problem.w.shape[-1],
        "results": plan.results, "terms": plan.terms, "filters": plan.filters,
        "rounds": plan.rounds, "shares": plan.shares, "pairs_of_share": plan.pairs_of_share,
        "pieces": plan.pieces, "pieces_of_image": plan.pieces_of_image,
        "group_c": problem.c // problem.groups, "group_k": problem.k // problem.groups,
        "x_n": problem.x.strides[0], "x_c": problem.x.strides[1],
        "y_n": problem.y.strides[0], "y_c": problem.y.strides[1],
    }  # fmt: skip
    if plan.is_product:
        numbers |= _numbers_of_products(plan)
    ahead = plan.line_threads
    for number, tiling in reversed(list(enumerate(plan.tilings))):
        axis = tiling.axis
        digit = ahead if number == 0 else ahead % tiling.length
        ahead //= tiling.length
        values = (
            tiling.length, digit, axis.stride, axis.dilation, axis.x, axis.y, axis.span, axis.padding,
            tiling.size, tiling.tiles,
        )  # fmt: skip
        numbers |= {f"{name}_{number}": value for name, value in zip(_LISTS, values, strict=True)}
    filter_first, steps = _filter_steps(problem.w, problem.mode == "convolution")
    for number, (x, y, w) in enumerate(zip(problem.x.strides[2:], problem.y.strides[2:], steps, strict=True)):
        numbers |= {f"step_x_{number}": x, f"step_y_{number}": y, f"step_w_{number}": w}
    return numbers | {
        "filter_first": filter_first,
        "filter_k": problem.w.strides[0],
        "filter_c": problem.w.strides[1],
    }


def _numbers_of_products(plan: Plan) -> dict[str, int]:
    """Counts of spectra, and where those of a group, row, column and term are: see products.c."""
    problem = plan.problem
    c, k, groups = problem.c, problem.k, problem.groups
    group_c, group_k = c // groups, k // groups
    in_filter = (group_k * group_c, group_c, 1)  # of a group, a channel of y and one of x
    if plan.is_wgrad:
        steps = ((group_k, 1, k), (group_c, 1, c), in_filter)
    elif plan.is_data:
        steps = ((in_filter[0], 1, group_c), (group_k, k, 1), (group_c, 1, c))
    else:
        steps = (in_filter, (group_c, c, 1), (group_k, 1, k))
    axes = (("group", "row", "term"), ("group", "column", "term"), ("group", "row", "column"))
    numbers = {
        f"{matrix}_{axis}": step
        for matrix, of_axes, of_steps in zip("abc", axes, steps, strict=True)
        for axis, step in zip(of_axes, of_steps, strict=True)
    }
    numbers |= dict(zip(("rows", "columns", "sums"), plan.matrices, strict=True))
    numbers |= {"spectra_of_a": plan.spectra[0], "spectra_of_b": plan.spectra[1], "pairs": plan.pairs}
    return numbers | {"channels_x": c, "channels_y": k, "groups": groups}


def _filter_steps(w: TensorDescriptor, is_flipped: bool) -> tuple[int, list[int]]:
    """Where the first tap is, and how far its neighbours are from it, as they meet x in ascending order."""
    steps = list(w.strides[2:])
    if not is_flipped:
        return 0, steps
    return sum((extent - 1) * step for extent, step in zip(w.shape[2:], steps, strict=True)), [
        -s for s in steps
    ]


@cache
def _roots(points: int) -> str:
    """The table of transform.c."""
    angles = (2 * pi * n / points for n in range(points // 8 + 1))
    return ", ".join(f"{{{cos(angle):.9e}f, {sin(angle):.9e}f}}" for angle in angles)
