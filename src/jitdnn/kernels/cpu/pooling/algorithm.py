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
from functools import partial
from math import prod
from typing import Any

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Epilogue,
    Kernel,
    PlannedAlgorithm,
    TypedAlgorithm,
    summation_bound,
)
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed, stream_bytes
from jitdnn.kernels.cpu.pooling import (
    cost,
    over_channels_code,
    over_rows_code,
    over_window_code,
    separable_code,
    unpooling_code,
)
from jitdnn.kernels.cpu.pooling.geometry import AXES, Axis, Geometry, arithmetic_of
from jitdnn.kernels.cpu.pooling.plan import (
    UNPOOLING_SLOTS,
    UNPOOLING_TENSORS,
    ChannelPlan,
    PoolingPlan,
    RowPlan,
    UnpoolingPlan,
    WindowPlan,
    accumulator_bytes,
    accumulator_over_channels,
    accumulator_over_rows,
    common_fields,
    row_vectors,
    unpooling_pitch,
    unpooling_plan,
)
from jitdnn.kernels.cpu.pooling.separable_plan import MOST_TERMS, SeparablePlan, block_of, passes_of
from jitdnn.kernels.cpu.pooling.separable_plan import cycles as separable_cycles
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.unpooling import Unpooling
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import HALVES, ITEM_BYTES, Isa
from jitdnn.tensor import compute_dtype

_TASK_CYCLES = 5e4  # of a task, at least
_MOST_ROW_VECTORS = 8  # vectors of one row that are in registers at once
_MOST_UNROLLED = 4  # rows of a window
_SHORT_ROW = 4  # vectors of outputs: up to here a row's extents are compiled in, and its masks are constants


@dataclass(frozen=True)
class _Launch:
    """The plan of a kernel, what traces it, and how many units it has."""

    problem: Pooling
    plan: PoolingPlan
    trace: Callable[[Module], None]
    cycles: float  # of one thread
    units: int
    sizes: dict[str, int]  # values of the plan's slots that are not the geometry's or the units'
    workspace: int


class PoolingAlgorithm(PlannedAlgorithm[Pooling, _Launch, CpuDevice]):
    """What the four algorithms share."""

    problem = Pooling
    deterministic = True
    takes_no_epilogue = "pooling takes no epilogue"

    def refusal(self, problem: Pooling, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        geometry = Geometry.of(problem)
        keeps_positions = problem.mode == "max" and (
            problem.direction == "bwd" or problem.indices is not None
        )
        if keeps_positions and geometry.inputs >= 2**31:
            return f"a plane of x has {geometry.inputs} elements: positions in it must fit 31 bits"
        return self._refuse(problem, geometry, device)

    @abstractmethod
    def _refuse(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> str | None:
        """The constraint that fails, or None."""

    @abstractmethod
    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice, lanes: int) -> _Launch:
        """The kernel's plan and units; lanes of the arithmetic."""

    def plan(self, problem: Pooling, device: CpuDevice, epilogue: Epilogue | None) -> _Launch:
        return self._launch(problem, Geometry.of(problem), device, device.isa.lanes(arithmetic_of(problem)))

    def workspace_of(self, plan: _Launch, device: CpuDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: _Launch, device: CpuDevice) -> float:
        return seconds_of(plan.problem, device, plan.cycles, max(1, int(plan.cycles / _TASK_CYCLES)))

    def error_of(self, problem: Pooling) -> float:
        return summation_bound(problem)

    def kernel_of(self, plan: _Launch, device: CpuDevice) -> Kernel:
        code = plan.plan
        library = load(f"pooling_{self.name}", code, device.isa, plan.trace)
        tasks, per_task = split_units(plan.units, device, self.seconds_of(plan, device) * device.threads)
        values = Geometry.of(plan.problem).values(units=plan.units, per_task=per_task, **plan.sizes)
        return CpuKernel(library, [("pooling", tasks)], code.tensors, device.threads, code.slots.pack(values))


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

    def _refuse(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> str | None:
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

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice, lanes: int) -> _Launch:
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
        sizes, room = accumulator_over_rows(geometry, lanes), 0
        if problem.direction == "bwd" and not geometry.is_partition:
            room = accumulator_bytes(sizes, plan.computing, device.threads)
        cycles = cost.cycles_over_rows(problem, geometry, lanes)
        trace = partial(over_rows_code.trace, plan=plan)
        return _Launch(problem, plan, trace, cycles, units, sizes, room)


def _unrolled(axis: Axis) -> int:
    return axis.window if axis.window <= _MOST_UNROLLED else 0


class PoolingChannels(PoolingAlgorithm):
    """Vectorized over channels that are neighbours in memory: channels-last tensors."""

    name = "channels"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> str | None:
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

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice, lanes: int) -> _Launch:
        is_forward = problem.direction == "fwd"
        rows = geometry.images * (_rows_of_outputs(geometry) if is_forward else 1)
        vectors, has_tail = cost.choose_channel_vectors(problem, geometry, lanes)
        group = lanes * vectors
        if is_forward and not has_tail and rows >= 2 * device.threads:
            group = (
                geometry.channels
            )  # there are rows enough for all threads: a unit has all channels of a pixel
        x, accumulates_rows = (
            geometry.strides[0 if is_forward else 1],
            self._accumulates_rows(problem, geometry),
        )
        fields: dict[str, Any] = common_fields(problem, geometry)
        plan = ChannelPlan(
            **fields,
            vectors=vectors,
            has_tail=has_tail,
            accumulates_rows=accumulates_rows,
            nontemporal=is_streamed(problem.output, device.isa.processor),
            prefetches=x[1] == 1 and problem.x.nbytes >= stream_bytes(device.isa.processor),
            is_contiguous=tuple(strides[1] == 1 for strides in geometry.strides),
        )
        groups = ceil_div(geometry.channels, group)
        sizes = accumulator_over_channels(geometry, lanes * vectors)
        room = accumulator_bytes(sizes, plan.computing, device.threads) if accumulates_rows else 0
        sizes |= {"group": group, "groups": groups}
        cycles = self._cycles(problem, geometry, lanes)
        trace = partial(over_channels_code.trace, plan=plan)
        return _Launch(problem, plan, trace, cycles, rows * groups, sizes, room)


class PoolingStrided(PoolingChannels):
    """Vectors gathered from channels at any distance: for every memory layout, without workspace in f32 and f64."""

    name = "strided"

    def _refuse(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> str | None:
        is_dense = all(strides[1] == 1 for strides in geometry.strides)
        channels = PoolingChannels()
        if is_dense and self._accumulates_rows(problem, geometry) == channels._accumulates_rows(
            problem, geometry
        ):
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

    def _refuse(self, problem: Pooling, geometry: Geometry, device: CpuDevice) -> str | None:
        if gaps := _gaps_in_rows(problem, geometry):
            return gaps
        overlaps = any(axis.out > 1 and axis.stride < axis.span for axis in geometry.axes)
        if problem.direction == "bwd" and problem.dtype in HALVES and overlaps:
            return f"windows overlap, and sums of {problem.dtype} are not kept in dx: other algorithms keep them in f32"
        if geometry.axes[2].dilation > 1:
            return f"the elements of a window lie {geometry.axes[2].dilation} apart in a row: they must be adjacent"
        return None

    def _launch(self, problem: Pooling, geometry: Geometry, device: CpuDevice, lanes: int) -> _Launch:
        fields: dict[str, Any] = common_fields(problem, geometry)
        # the gradient of a maximum is added to one element of its window: dx is set to beta * dx first in any case
        fields["is_partition"] = geometry.is_partition and problem.mode == "avg"
        plan = WindowPlan(**fields)
        units = geometry.images * geometry.channels
        if problem.direction == "fwd":
            units *= _rows_of_outputs(geometry)
        cycles = cost.cycles_over_window(problem, geometry, lanes)
        return _Launch(problem, plan, partial(over_window_code.trace, plan=plan), cycles, units, {}, 0)


class PoolingSeparable(CpuAlgorithm[Pooling]):
    """One axis after the other, long windows in a few passes, for inputs with contiguous rows: channels first."""

    name = "separable"
    problem = Pooling
    takes_no_epilogue = "pooling takes no epilogue"

    def refusal(self, problem: Pooling, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        geometry = Geometry.of(problem)
        if problem.direction == "bwd" or problem.indices is not None:
            return "it computes the results of forward pooling, without indices"
        if gaps := _gaps_in_rows(problem, geometry):
            return gaps
        if geometry.is_adaptive:
            return "the windows are of unequal size: here they must all be alike, as of output extents that divide x's"
        if geometry.has_empty_windows:
            return "some windows have no element in the image"
        if geometry.axes[1].extent != 1 or geometry.axes[1].window != 1:
            return "there are three axes of space: it takes one or two"
        for axis in (geometry.axes[0], geometry.axes[2]):
            if passes_of(axis.window, problem.mode) is None:
                return f"a factor of the window's {axis.window} is more than {MOST_TERMS}, the most that a pass adds up"
        if not block_of(geometry, problem.mode, arithmetic_of(problem), device.isa.processor):
            extent, span = geometry.axes[2].extent, geometry.axes[0].span
            return f"{span} rows of a window, of {extent} elements each, fill the cache"
        return None

    def launch(self, problem: Pooling, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        geometry, computing = Geometry.of(problem), arithmetic_of(problem)
        x, y = (tuple(strides[i] for i in (0, 1, 2, 4)) for strides in geometry.strides)
        plan = SeparablePlan(
            mode=problem.mode, counts_padding=problem.count_include_pad, dtype=problem.dtype, computing=computing,
            images=geometry.images, channels=geometry.channels, axes=(geometry.axes[0], geometry.axes[2]),
            x=x, y=y, lanes=device.isa.lanes(computing),
            block=block_of(geometry, problem.mode, computing, device.isa.processor),
            streams=is_streamed(problem.output, device.isa.processor),
        )  # fmt: skip
        cycles = separable_cycles(plan)
        units = plan.images * plan.channels * plan.blocks
        tasks, per_task = split_units(units, device, cycles / device.isa.processor.clock)
        room = device.threads * plan.thread_elements * ITEM_BYTES[computing]
        return Launch(
            problem, f"pooling_{self.name}", plan, partial(separable_code.trace, plan=plan), [("pooling", tasks)], 2,
            cycles, tasks, room, (per_task,),
        )  # fmt: skip


class ScatterUnpooling(TypedAlgorithm[Unpooling, CpuDevice]):
    """Values are scattered one by one into a plane of workspace, which is stored once; gradients are gathered."""

    name = "scatter"
    problem = Unpooling
    deterministic = True
    takes_no_epilogue = "unpooling takes no epilogue"

    def _sizes(self, problem: Unpooling, isa: Isa) -> tuple[UnpoolingPlan, int]:
        """What is compiled, and elements of workspace of a thread."""
        lanes = isa.lanes(compute_dtype(problem.dtype))
        plan = unpooling_plan(problem, lanes, is_streamed(problem.output, isa.processor))
        return plan, unpooling_pitch(plan, problem, lanes)

    def workspace_of(self, plan: Unpooling, device: CpuDevice) -> int:
        if plan.direction == "bwd":
            return 0
        return device.threads * self._sizes(plan, device.isa)[1] * ITEM_BYTES[compute_dtype(plan.dtype)]

    def seconds_of(self, plan: Unpooling, device: CpuDevice) -> float:
        cycles = cost.cycles_of_unpooling(plan, device.isa.lanes(compute_dtype(plan.dtype)))
        return seconds_of(plan, device, cycles, max(1, int(cycles / _TASK_CYCLES)))

    def error_of(self, problem: Unpooling) -> float:
        return UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: Unpooling, device: CpuDevice) -> Kernel:
        code, pitch = self._sizes(plan, device.isa)
        library = load("unpooling", code, device.isa, partial(unpooling_code.trace, plan=code))
        images, channels = plan.large.shape[:2]
        blocks = ceil_div(channels, code.planes)
        units = images * blocks if plan.output.size else 0
        tasks, per_task = split_units(units, device, self.seconds_of(plan, device) * device.threads)
        values = {
            "units": units, "per_task": per_task, "blocks": blocks, "channels": channels,
            "pitch": pitch, "size": prod(plan.large.shape[2:]),
        }  # fmt: skip
        for name, tensor in (("small", plan.small), ("large", plan.large)):
            values |= {f"{name}{a}": extent for a, extent in enumerate(_three_axes(tensor.shape[2:], 1))}
        for t, operand in enumerate(plan.operands):
            strides = operand.descriptor.strides
            padded = [*strides[:2], *_three_axes(strides[2:], 0)]
            values |= {f"stride{t}.{a}": stride for a, stride in enumerate(padded)}
        return CpuKernel(
            library, [("unpooling", tasks)], UNPOOLING_TENSORS, device.threads, UNPOOLING_SLOTS.pack(values)
        )


def _three_axes(numbers: Sequence[int], filler: int) -> list[int]:
    """Numbers of 1 to 3 axes as those of three, the missing ones first."""
    return [filler] * (AXES - len(numbers)) + list(numbers)
