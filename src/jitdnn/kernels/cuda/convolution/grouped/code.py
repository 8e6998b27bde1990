"""Source text and launches of grouped convolutions."""

from __future__ import annotations

import math

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.grouped.plan import Plan, is_symmetric
from jitdnn.kernels.cuda.convolution.half_precision.epilogue import in_store
from jitdnn.problems.convolution import Convolution

_SHARED = "cuda/convolution/half_precision"
_FOLDER = "cuda/convolution/grouped"
_ARGUMENTS = "IMAGES", "WORKERS"
_OF_FILTER = "IS_MIRRORED", "W_BASE", "W_R", "W_S", "W_IN", "W_OUT", "W_GROUP"


_EARLY_SECONDS = 20.5e-6
"""Of a launch that gains by beginning before the one in front of it is done; longer ones lost up to a fifth."""


def arguments(problem: Convolution) -> tuple[str, ...]:
    """Macros of plans that kernels take as arguments: those of the filter where directions share a kernel."""
    is_shared = problem.direction != "bwd_filter" and is_symmetric(problem)
    return (*_ARGUMENTS, *_OF_FILTER) if is_shared else _ARGUMENTS


def source(problem: Convolution, plan: Plan, epilogue: Epilogue | None = None) -> Source:
    """The text of the kernels."""
    halves = read_text(_SHARED, "half_mma.cuh", "products.cuh")
    if problem.direction == "bwd_filter":
        first = "wgrad_shared_memory.cu" if plan.shared else "wgrad_registers.cu"
        text = halves + read_text(_FOLDER, "stage.cuh", first, "wgrad_reduce.cu")
        # the sums of nine taps leave few registers: some that say which rows there are go to memory, 8 to 24 bytes
        return Source("grouped_wgrad", text, plan.defines, dialect="cuda", spills=not plan.shared)
    image, name, file = (
        ("image", "grouped_shared_memory", "shared_memory.cu")
        if plan.shared
        else ("image[h]", "grouped", "registers.cu")
    )
    functions, hooks = in_store(problem, epilogue, (f"{image} / PLANES", f"{image} % PLANES", "y", "x"))
    text = (
        halves
        + functions
        + "\n"
        + read_text(_SHARED, "store.cuh")
        + "\n"
        + read_text(_FOLDER, "common.cuh", "stage.cuh", file)
    )
    return Source(name, text, (*plan.defines, *hooks.items()), dialect="cuda")


def launches(problem: Convolution, plan: Plan) -> tuple[Launch, ...]:
    """What one call runs."""
    if problem.direction != "bwd_filter":
        return (
            Launch(
                "grouped_shared_memory" if plan.shared else "grouped",
                plan.blocks,
                plan.threads,
                plan.shared,
                is_early=plan.seconds < _EARLY_SECONDS,
            ),
        )
    first = Launch("grouped_wgrad", plan.blocks, plan.threads, plan.shared)
    if plan.shared and plan.workers == 1:
        return (first,)
    names = dict(plan.defines)
    columns = 256 // int(str(names["REDUCTION_THREADS"])) * int(str(names["REDUCTION_VECTOR"]))
    finish = Launch("grouped_wgrad_reduce", -(-math.prod(problem.w.shape) // columns), 256)
    return first, finish
