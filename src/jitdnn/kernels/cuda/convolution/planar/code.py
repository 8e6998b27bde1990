"""Source text and launch of planar.cu."""

from __future__ import annotations

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.sliding_code import (
    defines_of_window,
    epilogue_text,
    in_order,
    is_mirrored,
    tap_span,
)
from jitdnn.kernels.cuda.convolution.planar.plan import Plan


def launch(
    plan: Plan, epilogue: Epilogue | None, is_aligned: bool
) -> tuple[Source, list[Launch], tuple[int, ...]]:
    """The text, its launch and its numbers, for an input at a multiple of 16 bytes or, if not `is_aligned`, anywhere.

    The first number says whether taps are mirrored: forward and backward to the data share their code where channels
    are as many on both sides of a group. The second is the number of images.
    """
    problem, axes = plan.problem, in_order(plan.axes)
    functions, hooks = epilogue_text(plan.window, plan.axes, epilogue)
    text = read_text("cuda/convolution/depthwise", "common.cuh")
    text = functions + text + read_text("cuda/convolution/planar", "planar.cu")
    k_step, c_step = problem.w.strides[:2]
    steps = (k_step, c_step) if problem.direction == "fwd" else (c_step, k_step)
    defines = (
        *defines_of_window(plan.window, axes),
        ("W_SPAN", tap_span(axes)),
        ("W_GROUP", f"({problem.k // problem.groups * k_step}LL)"),
        ("W_OUT", f"({steps[0]}LL)"),
        ("W_IN", f"({steps[1]}LL)"),
        ("GROUPS", plan.groups),
        ("OF_IMAGE", problem.groups),
        ("GROUP_IN", plan.group_in),
        ("GROUP_OUT", plan.group_out),
        ("TILE_OUT", plan.tile_out),
        ("STRIP", plan.strip),
        ("THREAD_COUNT", plan.threads),
        ("MIN_BLOCKS", min(plan.resident, max(1, 1024 // plan.threads))),
        ("IS_ALIGNED", int(is_aligned and plan.is_aligned)),
        *hooks,
    )
    source = Source("convolve_planes", text, defines, "cuda", spills=True)
    main = Launch("convolve_planes", plan.grid_blocks, plan.threads, plan.shared, is_early=True)
    return source, [main], (int(is_mirrored(plan.axes)), plan.window.n)
