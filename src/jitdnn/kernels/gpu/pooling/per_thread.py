"""Pooling on GPUs with any windows, in any layout: a thread for each output, or backward for each element."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, TypeVar

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue, Kernel, PlannedAlgorithm, summation_bound
from jitdnn.kernels.gpu.pooling.geometry import MOST_BLOCKS_OF_IMAGES, Geometry
from jitdnn.kernels.gpu.prelude.cost import ACCESS_SECONDS, LAUNCH_SECONDS
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, QUANTIZED, Pooling
from jitdnn.tensor import DTYPES

THREADS = 256  # of a thread block
PACKED = ("f32", "f16", "bf16")


Plan = TypeVar("Plan")


class PlainPooling(PlannedAlgorithm[Pooling, Plan, GpuDevice]):
    """What the algorithms of pooling share."""

    problem = Pooling
    deterministic = True
    takes_no_epilogue = "pooling takes no epilogue"

    def refusal(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.x.dtype == "f64" and not device.has_f64:
            return f"{device.name} has no double precision, and x is f64"
        return self.refuse_geometry(problem, Geometry.of(problem))

    def refuse_geometry(self, problem: Pooling, geometry: Geometry) -> str | None:
        """The constraint that fails, or None."""
        return None

    def error_of(self, problem: Pooling) -> float:
        return summation_bound(problem)


def number_type(problem: Pooling, device: GpuDevice) -> str:
    """The type of arithmetic: averages of integers are rounded once, from double precision if there is any."""
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
        "PLACE": geometry.position_type,
        "EMPTY_MAX": f"({number})({EMPTY_WINDOW_MAX!r})",
        "MAX": int(problem.mode == "max"),
        "FORWARD": int(problem.direction == "fwd"),
        "COUNTS_PADDING": int(problem.count_include_pad),
    }
    if problem.indices is not None:
        defines["INDEX"] = problem.indices.dtype
    return defines


def blocks_of(units: int, images: int, threads: int = THREADS) -> tuple[int, int]:
    """Thread blocks for this many units of each image."""
    return max(1, -(-units // threads)), min(max(1, images), MOST_BLOCKS_OF_IMAGES)


class WindowPlan(NamedTuple):
    """A problem and its geometry."""

    problem: Pooling
    geometry: Geometry


class PoolingPerThread(PlainPooling[WindowPlan]):
    """A thread reduces the window of a few channels; backward, all windows of an element."""

    name = "window"

    def plan(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> WindowPlan:
        return WindowPlan(problem, Geometry.of(problem))

    def workspace_of(self, plan: WindowPlan, device: GpuDevice) -> int:
        pooling, geometry = plan
        if (pooling.direction, pooling.mode) != ("bwd", "max"):
            return 0
        return pooling.y.size * DTYPES[geometry.position_type]

    def seconds_of(self, plan: WindowPlan, device: GpuDevice) -> float:
        size = plan.problem.bytes + 2 * self.workspace_of(plan, device)
        # about eight instructions for an element of a window
        busy = 8.0 * plan.problem.flops / device.peak_flops("f32")
        launches = 1 + (plan.problem.direction == "bwd")
        # the elements of a window are met one by one; an average's gradient has few windows for each element
        is_read = plan.problem.direction == "fwd" or plan.problem.mode == "max"
        waits = ACCESS_SECONDS * prod(axis.window for axis in plan.geometry.axes) if is_read else 0.0
        return LAUNCH_SECONDS * launches + max(1.3 * size / device.bandwidth + busy, waits)

    def kernel_of(self, plan: WindowPlan, device: GpuDevice) -> Kernel:
        pooling, geometry = plan
        is_forward, last = pooling.direction == "fwd", len(geometry.tensors) - 1
        # the tensors that are accessed vector by vector
        wide = (0, 1) if is_forward or pooling.mode == "avg" else (0, 1, last)
        lanes = geometry.lanes(wide) if pooling.x.dtype in PACKED else 1
        defines = {
            **common_defines(pooling, device, geometry),
            "ADAPTIVE": int(geometry.is_adaptive),
            "LANES": lanes,
            "CHANNELS_INNER": int(lanes > 1 or geometry.is_channels_last((0, wide[-1]))),
        }
        texts = ("access.c", "bounds.c", "per_thread.c")
        source = Source(
            "pooling_window", read_text("gpu/pooling", *texts), tuple(defines.items()), spills=True
        )
        vectors = geometry.channels // lanes
        outputs = blocks_of(vectors * geometry.outputs, geometry.images)
        launches = [Launch("pooling_forward", outputs, THREADS)]
        if not is_forward:
            inputs = blocks_of(vectors * geometry.inputs, geometry.images)
            launches = [Launch("pooling_backward", inputs, THREADS)]
            if pooling.mode == "max":
                launches.insert(0, Launch("pooling_places", outputs, THREADS))
        return device.kernel(source, launches, last + 1, geometry.numbers())
