"""Pooling on GPUs with any windows, in any layout: a thread for each output, or backward for each element."""

from __future__ import annotations

from typing import Any, cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.gpu.pooling.geometry import MOST_GROUPS_OF_IMAGES, Geometry
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, QUANTIZED, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES

GROUP = 256
PACKED = ("f32", "f16", "bf16")


class PlainPooling(Algorithm):
    """What the ways of pooling share."""

    problem = Pooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "pooling takes no epilogue"
        pooling = cast(Pooling, problem)
        if pooling.x.dtype == "f64" and not cast(GpuDevice, device).has_f64:
            return f"{cast(GpuDevice, device).name} has no double precision, and x is f64"
        return self.refuse_geometry(pooling, Geometry.of(pooling))

    def refuse_geometry(self, problem: Pooling, geometry: Geometry) -> str | None:
        """The constraint that fails, or None."""
        return None

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)


def number_type(problem: Pooling, device: GpuDevice) -> str:
    """The type of arithmetic: averages of whole numbers are rounded once, from double precision if there is any."""
    dtype = problem.x.dtype
    if dtype == "f64" or (dtype in QUANTIZED and problem.mode == "avg" and device.has_f64):
        return "f64"
    return "f32"


def common_defines(problem: Pooling, device: GpuDevice, geometry: Geometry) -> dict[str, Any]:
    """What every text of pooling is compiled with."""
    number = number_type(problem, device)
    defines = {
        "X": problem.x.dtype,
        "X_IS_WHOLE": int(problem.x.dtype in QUANTIZED),
        "PACKED": int(problem.x.dtype in PACKED),
        "NUMBER": number,
        "OFFSET": geometry.offset_type,
        "PLACE": geometry.place_type,
        "EMPTY_MAX": f"({number})({EMPTY_WINDOW_MAX!r})",
        "MAX": int(problem.mode == "max"),
        "FORWARD": int(problem.direction == "fwd"),
        "COUNTS_PADDING": int(problem.count_include_pad),
    }
    if problem.indices is not None:
        defines["INDEX"] = problem.indices.dtype
    return defines


def groups_of(units: int, images: int, threads: int = GROUP) -> tuple[int, int]:
    """Groups for this many units of each image."""
    return max(1, -(-units // threads)), min(max(1, images), MOST_GROUPS_OF_IMAGES)


class PoolingWindow(PlainPooling):
    """A thread walks through the window of a few channels; backward, through all windows of an element."""

    name = "window"

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        pooling = cast(Pooling, problem)
        if (pooling.direction, pooling.mode) != ("bwd", "max"):
            return 0
        return pooling.y.size * DTYPES[Geometry.of(pooling).place_type]

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        pooling = cast(Pooling, problem)
        size = problem.bytes + 2 * self.workspace(problem, device)
        # about eight instructions for an element of a window
        busy = 8.0 * problem.flops / device.peak_flops("f32")
        return LAUNCH_SECONDS * (1 + (pooling.direction == "bwd")) + 1.3 * size / device.bandwidth + busy

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, gpu = cast(Pooling, problem), cast(GpuDevice, device)
        geometry = Geometry.of(pooling)
        is_forward, last = pooling.direction == "fwd", len(geometry.tensors) - 1
        # the tensors that are accessed vector by vector
        wide = (0, 1) if is_forward or pooling.mode == "avg" else (0, 1, last)
        lanes = geometry.lanes(wide) if pooling.x.dtype in PACKED else 1
        defines = {
            **common_defines(pooling, gpu, geometry),
            "ADAPTIVE": int(geometry.is_adaptive),
            "LANES": lanes,
            "CHANNELS_INNER": int(lanes > 1 or geometry.is_channels_last((0, wide[-1]))),
        }
        texts = ("access.c", "bounds.c", "per_thread.c")
        source = Source(
            "pooling_window", read_text("gpu/pooling", *texts), tuple(defines.items()), spills=True
        )
        vectors = geometry.channels // lanes
        outputs = groups_of(vectors * geometry.outputs, geometry.images)
        launches = [Launch("pooling_forward", outputs, GROUP)]
        if not is_forward:
            inputs = groups_of(vectors * geometry.inputs, geometry.images)
            launches = [Launch("pooling_backward", inputs, GROUP)]
            if pooling.mode == "max":
                launches.insert(0, Launch("pooling_places", outputs, GROUP))
        return gpu.kernel(source, launches, last + 1, geometry.numbers())
