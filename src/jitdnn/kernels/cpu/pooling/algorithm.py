"""Pooling on processors: four algorithms, by the axis that is vectorized; and unpooling (unpooling_code.py).

rows       over a row of outputs, for channels-first tensors                    over_rows_code.py
channels   over channels that are neighbours in memory: channels-last tensors   over_channels_code.py
window     over the window, for few and large windows: global pooling of nchw   over_window_code.py
strided    over channels at any distance, gathered: everything                  over_channels_code.py
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed, stream_bytes
from jitdnn.kernels.cpu.pooling import (
    cost,
    over_channels_code,
    over_rows_code,
    over_window_code,
    unpooling_code,
)
from jitdnn.kernels.cpu.pooling.geometry import AXES, Axis, Geometry, arithmetic_of
from jitdnn.kernels.cpu.pooling.plan import (
    UNPOOLING_SLOTS,
    UNPOOLING_TENSORS,
    ChannelPlan,
    PoolingPlan,
    RowPlan,
    WindowPlan,
    accumulator_bytes,
    accumulator_over_channels,
    accumulator_over_rows,
    common_fields,
    row_vectors,
    unpooling_pitch,
    unpooling_plan,
)
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.problem import Problem
from jitdnn.problems.unpooling import Unpooling
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import HALVES, ITEM_BYTES
from jitdnn.tensor import compute_dtype

_MOST_ROW_VECTORS = 8  # vectors of one row that are in registers at once
_MOST_UNROLLED = 4  # rows of a window
_SHORT_ROW = 4  # vectors of outputs: up to here a row's extents are compiled in, and its masks are constants


@dataclass(frozen=True)
class _Launch:
    """The plan of a kernel, what traces it, and how many units it has."""

    plan: PoolingPlan
    trace: Callable[[Module], None]
    units: int
    sizes: dict[str, int]  # values of the plan's slots that are not the geometry's or the units'


class PoolingAlgorithm(Algorithm):
    """What the four algorithms share."""

    problem = Pooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "pooling takes no epilogue"
        pooling = cast(Pooling, problem)
        geometry = Geometry.of(pooling)
        keeps_positions = pooling.mode == "max" and (
            pooling.direction == "bwd" or pooling.indices is not None
        )
        if keeps_positions and geometry.inputs >= 2**31:
            return f"a plane of x has {geometry.inputs} elements: positions in it must fit 31 bits"
        return self._refuse(pooling, geometry, device)

    @abstractmethod
    def _refuse(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        """The constraint that fails, or None."""

    @abstractmethod
    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        """Estimated cycles of one thread."""

    @abstractmethod
    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> _Launch:
        """The kernel's plan and units."""

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        lanes = processor.isa.lanes(arithmetic_of(pooling))
        cycles = self._cycles(pooling, Geometry.of(pooling), lanes)
        return seconds_of(problem, processor, cycles, max(1, int(cycles / 5e4)))

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry = Geometry.of(pooling)
        launch = self._launch(pooling, geometry, processor)
        plan, units = launch.plan, launch.units
        library = load(f"pooling_{self.name}", plan, processor.isa, launch.trace)
        tasks, per_task = split_units(units, device, self.estimate(problem, device) * device.threads)
        values = geometry.values(units=units, per_task=per_task, **launch.sizes)
        threads = device.threads if tasks > 1 else 1
        return CpuKernel(library, [("pooling", tasks)], plan.tensors, threads, plan.slots.pack(values))


def _rows_of_outputs(geometry: Geometry) -> int:
    """Rows of outputs of a plane."""
    return geometry.axes[0].out * geometry.axes[1].out


def _gaps_in_rows(problem: Pooling, geometry: Geometry) -> str | None:
    """The refusal of an x or dx whose rows are not contiguous."""
    for operand, strides in zip(problem.operands, geometry.strides, strict=True):
        if operand.name in ("x", "dx") and strides[4] != 1:
            return (
                f"neighbours in a row of {operand.name} are {strides[4]} elements apart: they must be "
                "adjacent, as in the layout nchw"
            )
    return None


class PoolingRows(PoolingAlgorithm):
    """Vectorized over rows of outputs, for inputs with contiguous rows: channels-first tensors."""

    name = "rows"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        if gaps := _gaps_in_rows(problem, geometry):
            return gaps
        if geometry.is_adaptive:
            return "the windows are of unequal size: here they must all be alike, as of output extents that divide x's"
        axis = geometry.axes[2]
        vectors = row_vectors(axis)
        if vectors > _MOST_ROW_VECTORS:
            return (
                f"window {axis.window}, stride {axis.stride} and dilation {axis.dilation} need {vectors} vectors "
                f"of a row at once, at most {_MOST_ROW_VECTORS} are kept"
            )
        return None

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        return cost.cycles_over_rows(problem, geometry, lanes)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, dtype = Geometry.of(pooling), arithmetic_of(pooling)
        if pooling.direction == "fwd" or geometry.is_partition:
            return 0
        sizes = accumulator_over_rows(geometry, processor.isa.lanes(dtype))
        return accumulator_bytes(sizes, dtype, device.threads)

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> _Launch:
        lanes = device.isa.lanes(arithmetic_of(problem))
        a0, a1, a2 = geometry.axes
        outputs = geometry.strides[1 if problem.direction == "fwd" else 0]
        fields: dict[str, Any] = common_fields(problem, geometry)
        plan = RowPlan(
            **fields,
            stride=a2.stride,
            window=a2.window,
            dilation=a2.dilation,
            is_clipped=a2.is_clipped,
            row=(a2.extent, a2.out, a2.before) if a2.out <= _SHORT_ROW * lanes else None,
            unrolled=(_unrolled(a0), _unrolled(a1)),
            clips=(a0.is_clipped, a1.is_clipped),
            has_empty_windows=geometry.has_empty_windows,
            is_contiguous=outputs[4] == 1,
            nontemporal=is_streamed(problem.output, device.isa.processor),
        )
        units = geometry.images * geometry.channels
        if problem.direction == "fwd":
            units *= _rows_of_outputs(geometry)
        sizes = accumulator_over_rows(geometry, lanes)
        return _Launch(plan, lambda module: over_rows_code.trace(module, plan), units, sizes)


def _unrolled(axis: Axis) -> int:
    return axis.window if axis.window <= _MOST_UNROLLED else 0


class PoolingChannels(PoolingAlgorithm):
    """Vectorized over channels that are neighbours in memory: channels-last tensors."""

    name = "channels"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        for operand, strides in zip(problem.operands, geometry.strides, strict=True):
            if strides[1] != 1:
                return (
                    f"channels of {operand.name} are {strides[1]} elements apart: they must be neighbours, "
                    "as in the layout nhwc"
                )
        return None

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        return cost.cycles_over_channels(problem, geometry, lanes)

    def _accumulates_rows(self, problem: Pooling, geometry: Geometry) -> bool:
        return problem.direction == "bwd" and not geometry.is_partition

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, dtype = Geometry.of(pooling), arithmetic_of(pooling)
        if not self._accumulates_rows(pooling, geometry):
            return 0
        lanes = processor.isa.lanes(dtype)
        vectors, _ = cost.choose_channel_vectors(pooling, geometry, lanes)
        return accumulator_bytes(accumulator_over_channels(geometry, lanes * vectors), dtype, device.threads)

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> _Launch:
        lanes = device.isa.lanes(arithmetic_of(problem))
        is_forward = problem.direction == "fwd"
        rows = geometry.images * (_rows_of_outputs(geometry) if is_forward else 1)
        vectors, has_tail = cost.choose_channel_vectors(problem, geometry, lanes)
        group = lanes * vectors
        if is_forward and not has_tail and rows >= 2 * device.threads:
            group = (
                geometry.channels
            )  # there are rows enough for all threads: a unit has all channels of a pixel
        x = geometry.strides[0 if is_forward else 1]
        fields: dict[str, Any] = common_fields(problem, geometry)
        plan = ChannelPlan(
            **fields,
            vectors=vectors,
            has_tail=has_tail,
            accumulates_rows=self.workspace(problem, device) > 0,
            nontemporal=is_streamed(problem.output, device.isa.processor),
            prefetches=x[1] == 1 and problem.x.nbytes >= stream_bytes(device.isa.processor),
            is_contiguous=tuple(strides[1] == 1 for strides in geometry.strides),
        )
        groups = ceil_div(geometry.channels, group)
        sizes = {"group": group, "groups": groups} | accumulator_over_channels(geometry, lanes * vectors)
        return _Launch(plan, lambda module: over_channels_code.trace(module, plan), rows * groups, sizes)


class PoolingStrided(PoolingChannels):
    """Vectors gathered from channels at any distance: for every memory layout, without workspace in f32 and f64."""

    name = "strided"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        is_dense = all(strides[1] == 1 for strides in geometry.strides)
        if is_dense and self.workspace(problem, device) == PoolingChannels().workspace(problem, device):
            return "all channels are neighbours in memory: 'channels' is the same without the gathers"
        return None

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        return cost.cycles_strided(problem, geometry, lanes)

    def _accumulates_rows(self, problem: Pooling, geometry: Geometry) -> bool:
        # sums of half precision would be rounded at every window if they were added up in dx
        return problem.dtype in HALVES and super()._accumulates_rows(problem, geometry)


class PoolingWindow(PoolingAlgorithm):
    """Vectorized over the window, for inputs with contiguous rows: global pooling of nchw tensors."""

    name = "window"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        if gaps := _gaps_in_rows(problem, geometry):
            return gaps
        overlaps = any(axis.out > 1 and axis.stride < axis.span for axis in geometry.axes)
        if problem.direction == "bwd" and problem.dtype in HALVES and overlaps:
            return f"windows overlap, and sums of {problem.dtype} are not kept in dx: other algorithms keep them in f32"
        if geometry.axes[2].dilation > 1:
            return f"the elements of a window lie {geometry.axes[2].dilation} apart in a row: they must be adjacent"
        return None

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        return cost.cycles_over_window(problem, geometry, lanes)

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> _Launch:
        fields: dict[str, Any] = common_fields(problem, geometry)
        # the gradient of a maximum is added to one element of its window: dx is set to beta * dx first in any case
        fields["is_partition"] = geometry.is_partition and problem.mode == "avg"
        plan = WindowPlan(**fields)
        units = geometry.images * geometry.channels
        if problem.direction == "fwd":
            units *= _rows_of_outputs(geometry)
        return _Launch(plan, lambda module: over_window_code.trace(module, plan), units, {})


class ScatterUnpooling(Algorithm):
    """Values are scattered one by one into a plane of workspace, which is stored once; gradients are gathered."""

    name = "scatter"
    problem = Unpooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "unpooling takes no epilogue" if epilogue is not None else None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        unpooling, dtype = cast(Unpooling, problem), compute_dtype(problem.dtype)
        if unpooling.direction == "bwd":
            return 0
        isa = cast(CpuDevice, device).isa
        lanes = isa.lanes(dtype)
        plan = unpooling_plan(unpooling, lanes, is_streamed(problem.output, isa.processor))
        return device.threads * unpooling_pitch(plan, unpooling, lanes) * ITEM_BYTES[dtype]

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        processor = cast(CpuDevice, device)
        lanes = processor.isa.lanes(compute_dtype(problem.dtype))
        cycles = cost.cycles_of_unpooling(cast(Unpooling, problem), lanes)
        return seconds_of(problem, processor, cycles, max(1, int(cycles / 5e4)))

    def error_bound(self, problem: Problem) -> float:
        return UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        unpooling, processor = cast(Unpooling, problem), cast(CpuDevice, device)
        lanes = processor.isa.lanes(compute_dtype(problem.dtype))
        plan = unpooling_plan(unpooling, lanes, is_streamed(problem.output, processor.isa.processor))
        library = load("unpooling", plan, processor.isa, lambda module: unpooling_code.trace(module, plan))
        images, channels = unpooling.large.shape[:2]
        blocks = ceil_div(channels, plan.planes)
        units = images * blocks if problem.output.size else 0
        tasks, per_task = split_units(units, device, self.estimate(problem, device) * device.threads)
        values = {
            "units": units, "per_task": per_task, "blocks": blocks, "channels": channels,
            "pitch": unpooling_pitch(plan, unpooling, lanes), "size": prod(unpooling.large.shape[2:]),
        }  # fmt: skip
        for name, tensor in (("small", unpooling.small), ("large", unpooling.large)):
            values |= {f"{name}{a}": extent for a, extent in enumerate(_three_axes(tensor.shape[2:], 1))}
        for t, operand in enumerate(problem.operands):
            strides = operand.descriptor.strides
            padded = [*strides[:2], *_three_axes(strides[2:], 0)]
            values |= {f"stride{t}.{a}": stride for a, stride in enumerate(padded)}
        threads = device.threads if tasks > 1 else 1
        return CpuKernel(
            library, [("unpooling", tasks)], UNPOOLING_TENSORS, threads, UNPOOLING_SLOTS.pack(values)
        )


def _three_axes(numbers: Sequence[int], filler: int) -> list[int]:
    """Numbers of 1 to 3 axes as those of three, the missing ones first."""
    return [filler] * (AXES - len(numbers)) + list(numbers)
