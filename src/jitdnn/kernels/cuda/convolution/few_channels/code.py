"""Source text and launches of the kernels with few channels: fprop.cu, dgrad.cu, wgrad.cu."""

from __future__ import annotations

from jitdnn.devices.gpu import Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.few_channels.plan import Plan
from jitdnn.kernels.cuda.convolution.half_precision.arguments import OFFSETS
from jitdnn.kernels.cuda.convolution.half_precision.epilogue import in_kernel, in_store
from jitdnn.kernels.cuda.convolution.half_precision.products import HALVES
from jitdnn.kernels.cuda.convolution.half_precision.shape import Defines
from jitdnn.problems.convolution import Convolution

_SHARED = "cuda/convolution/half_precision"
_FOLDER = "cuda/convolution/few_channels"
_OF_IMAGES = "IMAGES", "STRIPS", "PARTIALS", "X_LOW", "X_HIGH"
_OF_CHANNELS = "FILTERS", "CHANNEL_BLOCKS", "CHANNEL_CHUNKS", *OFFSETS
_FILES = {
    "fwd": ("common.cuh", "fprop.cuh", "fprop.cu"),
    "bwd_data": ("dgrad.cu",),
    "bwd_filter": ("common.cuh", "wgrad.cu"),
}
_KERNELS = {"fwd": "few_channels_fprop", "bwd_data": "few_channels_dgrad", "bwd_filter": "few_channels_wgrad"}


def arguments(plan: Plan) -> tuple[str, ...]:
    """Macros of a plan that kernels take as arguments: what varies with the images.

    And the channels that may be many, where they are the inner ones of the filter, as where few results are made of
    many channels: of such layers a net has one for many numbers. Elsewhere they cost more than 5 %: of a short launch,
    and where dgrad copies elements one by one.
    """
    names = dict(plan.defines)
    is_inside = abs(int(str(names["W_K"]))) < abs(int(str(names["W_C"])))
    is_narrow = "CHANNEL_CHUNKS" in names and names["Y_VECTOR"] == 1
    return (*_OF_IMAGES, *_OF_CHANNELS) if is_inside and not is_narrow else _OF_IMAGES


def source(
    problem: Convolution, plan: Plan, epilogue: Epilogue | None = None, has_sums: bool = False
) -> Source:
    """The text of the kernels; `has_sums`: by channel, of results (summed.py)."""
    direction = problem.direction
    hooks: Defines = {}
    functions, store = "", ""
    if direction == "fwd":
        functions, hooks = in_store(problem, epilogue, ("at.n", "at.o", "p", "q"))
        store = read_text(_SHARED, "store.cuh")
    elif direction == "bwd_filter":
        x_and_dy = ["const ELEMENT *RESTRICT x", "const ELEMENT *RESTRICT dy"]
        hooks = {"X_AND_DY": ", ".join(x_and_dy[:: -1 if dict(plan.defines)["X_IS_SECOND"] else 1])}
    elif direction == "bwd_data":
        functions, hooks = in_kernel(problem, epilogue)
    names = dict(plan.defines)
    has_halves = "RESULT_IS_F32" in names or names["PRODUCTS"] == HALVES
    scales = read_text(_FOLDER, "halves.cuh") if has_halves else ""
    files = list(_FILES[direction])
    if has_sums:
        files.insert(-1, "sums.cuh")
    own = read_text(_FOLDER, *files)
    text = [read_text(_SHARED, "half_mma.cuh", "products.cuh"), scales, functions, store, own]
    # parts of f32 take many registers, of which one version of NVRTC spills a few where another spills none
    spills = dict(plan.defines)["PRODUCTS"] == 3
    return Source(_KERNELS[direction], "\n".join(text), (*plan.defines, *hooks.items()), "cuda", spills)


def launches(problem: Convolution, plan: Plan) -> tuple[Launch, ...]:
    """What one call runs."""
    is_early = problem.direction != "bwd_filter"
    main = Launch(_KERNELS[problem.direction], plan.grid, plan.threads, plan.shared, is_early=is_early)
    return tuple(launch for launch in (plan.pack, main, plan.reduction) if launch is not None)
