"""Grouped convolutions with few channels a group, by `mma` on several neighbouring groups at a time.

Sixteen neighbouring channels are one operand of the matrix units whatever groups they belong to: the filter is laid
out block-diagonally, with zeros between groups. That wastes three quarters of the products of groups of four, and
still leaves them cheaper than the memory: 64x128x56x56 of 32 groups, 3x3, bf16 on an H100 moves 103 MB, 34 us at
3.0 TB/s, while its products take 10 to 13 us.

Channels-last pixels of whole 16 bytes go through shared memory (shared_memory.py): 41 to 47 us for that
layer. All others go from global memory straight into registers, two rows ahead of the products where registers allow:
58 us, since registers hold too little of what is under way. An infinity in one group makes NaN of the others in its
sixteen channels. The filter's gradient: wgrad.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, product

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import compiled
from jitdnn.kernels.cuda.convolution.few_channels.epilogue import in_store, pointers_of
from jitdnn.kernels.cuda.convolution.few_channels.geometry import (
    HALVES,
    Shape,
    farthest,
    power_of_two,
    strides_of,
)
from jitdnn.kernels.cuda.convolution.grouped.geometry import Plan, axis_defines, meeting, roles, vector_of
from jitdnn.kernels.cuda.convolution.grouped.shared_memory import image_tiles
from jitdnn.kernels.cuda.convolution.grouped.wgrad import filter_plans, tiled_plans
from jitdnn.kernels.cuda.gemm.code import ByAlignment
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem

MOST_CHANNELS = (
    64  # of a group; half as many for the filter's gradient, and where pixels are no whole 16 bytes
)
_MOST_FRAGMENTS = 80  # registers of the filter
_FOLDER = "cuda/convolution/grouped"
_CLOCK = 1.755e9
_REGISTERS = 65536


class Grouped(Algorithm):
    """All directions; see the module's text."""

    name = "grouped"
    problem = Convolution
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.is_integer or problem.dtype not in HALVES:
            return f"it multiplies bf16 and f16, not {problem.x.dtype}: direct takes every type"
        if problem.groups == 1:
            return "there is one group: it takes groups of channels, several at a time"
        if 0 in problem.x.shape or 0 in problem.y.shape:
            return "a tensor is empty: direct takes those"
        c, k = problem.w.shape[1], problem.k // problem.groups
        if max(c, k) > MOST_CHANNELS:
            return (
                f"a group has {c} channels in and {k} out, and more than {MOST_CHANNELS} are better off without their "
                "neighbours: implicit_gemm takes large groups"
            )
        if epilogue is not None and problem.direction == "bwd_filter":
            return "a filter's gradient takes no epilogue here"
        shape = Shape(problem)
        if shape.taps[0] != 1 or shape.stride[0] != 1 or shape.before[0] or shape.spatial[0] != shape.out[0]:
            return "along d it takes one tap, stride 1 and no padding: direct takes any"
        if problem.direction == "bwd_data" and max(shape.dilation) != 1:
            return f"backward data must have dilation 1, it is {problem.dilation}: direct takes any"
        if farthest(problem.w) >= 1 << 30:
            return "the filter spans more than 2^30 elements of memory: pack it"
        if self.plan_of(problem, device) is None:
            return (
                f"a filter of {problem.filter_spatial} taps, {c} channels in and {k} out does not fit into registers, "
                f"or its pixels are no whole 16 bytes: implicit_gemm takes large filters"
            )
        return None

    def plan_of(self, problem: Convolution, device: Device) -> Plan | None:
        """How the problem is cut on this device; None if the filter does not fit into registers."""
        return plan_of(problem, device)  # type: ignore[arg-type]

    def plan(self, problem: Convolution, device: Device) -> Plan:
        """The same for a problem that is not refused."""
        plan = self.plan_of(problem, device)
        assert plan is not None
        return plan

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            return 0
        plan = self.plan(problem, device)
        return (
            4 * math.prod(problem.w.shape) * max(plan.workers, self.anywhere(problem, device, plan).workers)
        )

    def anywhere(self, problem: Convolution, device: Device, plan: Plan) -> Plan:
        """The plan for operands at any address."""
        if not plan.shared:
            return plan.elementwise
        gpu: GpuDevice = device  # type: ignore[assignment]
        return _registers(problem, gpu.multiprocessors, gpu.bandwidth).elementwise

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(problem, Convolution)
        return self.plan(problem, device).seconds

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "other taps, where the tiles of dy end beyond it and are filled with zeros"
        return "the other groups of its sixteen channels"

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(problem, Convolution)
        plan = self.plan(problem, device)

        def kernel(plan: Plan) -> GpuKernel:
            return compiled(
                device, source(problem, plan, epilogue), launches(problem, plan), pointers_of(epilogue)
            )

        plain = self.anywhere(problem, device, plan)
        return kernel(plan) if plan == plain else ByAlignment(kernel(plan), kernel(plain), plan.alignments)


def source(problem: Convolution, plan: Plan, epilogue: Epilogue | None = None) -> Source:
    """The text of the kernels."""
    halves = read_text("cuda/convolution/few_channels", "half_mma.cuh")
    if problem.direction == "bwd_filter":
        first = "wgrad_shared_memory.cu" if plan.shared else "wgrad_registers.cu"
        text = halves + read_text(_FOLDER, "stage.cuh", first, "wgrad_reduce.cu")
        # the sums of nine taps leave few registers: some that say which rows there are go to memory, 8 to 24 bytes
        return Source("grouped_filter", text, plan.defines, dialect="cuda", spills=not plan.shared)
    image, name, file = (
        ("image", "grouped_tiles", "shared_memory.cu")
        if plan.shared
        else ("image[h]", "grouped", "registers.cu")
    )
    functions, hooks = in_store(problem, epilogue, (f"{image} / PLANES", f"{image} % PLANES", "y", "x"))
    text = (
        halves
        + functions
        + "\n"
        + read_text("cuda/convolution/few_channels", "store.cuh")
        + "\n"
        + read_text(_FOLDER, "common.cuh", "stage.cuh", file)
    )
    return Source(name, text, (*plan.defines, *hooks.items()), dialect="cuda")


def launches(problem: Convolution, plan: Plan) -> tuple[Launch, ...]:
    """What one call runs."""
    if problem.direction != "bwd_filter":
        return (
            Launch("grouped_tiles" if plan.shared else "grouped", plan.groups, plan.threads, plan.shared),
        )
    first = Launch("grouped_filter", plan.groups, plan.threads, plan.shared)
    if plan.shared and plan.workers == 1:
        return (first,)
    names = dict(plan.defines)
    places = 256 // int(str(names["SUM_SHARES"])) * int(str(names["SUM_VECTOR"]))
    finish = Launch("grouped_filter_sum", -(-math.prod(problem.w.shape) // places), 256)
    return first, finish


def plan_of(problem: Convolution, device: GpuDevice) -> Plan | None:
    """The cheapest plan; None if the filter does not fit into registers."""
    return _best(problem, device.multiprocessors, device.bandwidth, device.shared_bytes)


@lru_cache(512)
def _best(problem: Convolution, multiprocessors: int, bandwidth: float, shared_bytes: int) -> Plan | None:
    if problem.direction == "bwd_filter":
        anywhere = [*filter_plans(problem, multiprocessors, bandwidth)]
        tiled = tiled_plans(problem, multiprocessors, bandwidth, shared_bytes)
    else:
        anywhere = [*image_plans(problem, multiprocessors, bandwidth)]
        tiled = image_tiles(problem, multiprocessors, bandwidth, shared_bytes)
    if not anywhere:
        return None
    is_large = max(problem.w.shape[1], problem.k // problem.groups) > MOST_CHANNELS // 2
    plans: Iterable[Plan] = tiled if is_large else chain(tiled, anywhere)
    return min(plans, key=lambda plan: plan.seconds, default=None)


@lru_cache(512)
def _registers(problem: Convolution, multiprocessors: int, bandwidth: float) -> Plan:
    """The plan for operands at any address."""
    plans = filter_plans if problem.direction == "bwd_filter" else image_plans
    return min(plans(problem, multiprocessors, bandwidth), key=lambda plan: plan.seconds)


def image_plans(problem: Convolution, multiprocessors: int, bandwidth: float) -> Iterator[Plan]:
    """Every plan of forward and backward data."""
    shape = Shape(problem)
    is_forward = problem.direction == "fwd"
    source, result = (problem.x, problem.y) if is_forward else (problem.y, problem.x)
    group_in, group_out = source.shape[1] // problem.groups, result.shape[1] // problem.groups
    slice_groups = max(1, 16 // group_in)
    steps = -(-slice_groups * group_in // 16)
    slice_in, slice_out = slice_groups * group_in, slice_groups * group_out
    taps = math.prod(shape.taps)
    tiles = min(4, -(-slice_out // 8))
    while tiles > 1 and 2 * taps * steps * tiles > _MOST_FRAGMENTS:
        tiles = tiles // 2 if tiles != 3 else 2
    tiles = 2 if tiles == 3 else tiles
    if 2 * taps * steps * tiles > _MOST_FRAGMENTS:
        return
    h, w = (meeting(shape, axis, is_forward) for axis in (1, 2))
    parts = -(-slice_out // (8 * tiles))
    slices = -(-problem.groups // slice_groups)
    _, s_c, *space = strides_of(source)
    piece = 4 * steps
    is_whole = steps <= 2 and slice_in % piece == 0 and source.shape[1] % piece == 0
    is_wide = s_c == 1 and is_whole and power_of_two((*space, strides_of(source)[0]), 8) >= piece
    vector, result_c = vector_of(result)
    others = 12 if h.unit * w.unit > 1 else 36 if w.step == 1 else 44  # registers
    for rows, ahead in product((1, 2, 3, 4, 5, 6, 7, 8, 10), (1, 2)):
        if rows > 1 and rows >= h.blocks + 2:
            continue
        registers = (
            4 * tiles * rows * h.unit * w.unit
            + 2 * taps * steps * tiles
            + 4 * steps * w.reach * (ahead + 1)
            + others
        )
        if registers > 250:
            continue
        resident = max(1, min(8, _REGISTERS // (128 * max(64, -(-registers // 8) * 8))))
        strips = problem.n * shape.out[0] * -(-w.blocks // 8)
        units = -(-strips // 2) * -(-h.blocks // rows)
        kinds = slices * parts
        warps = multiprocessors * resident * 4
        workers = max(1, min(units, warps // kinds))
        turns = -(-units // workers)
        workers = -(-units // turns)
        source_rows = (rows - 1) * h.step + h.reach
        # clocks of a multiprocessor for a unit: first-level reads, products
        products = rows * taps * steps * tiles * (w.unit * h.unit if is_forward else 1)
        reads = source_rows * w.reach * 2 * steps * (4 if is_wide else 40)
        stores = rows * h.unit * w.unit * 2 * (4 if vector > 1 else 30)
        unit = max(1.6 * products, reads + stores) + 40
        total = workers * kinds
        sharing = -(-total // multiprocessors)
        # a row waits for memory, the longer the more of its pixels are its own; two rows do not wait together for long
        latency = (600 + 25 * (7 * w.step + w.reach)) / (1.0 if ahead == 1 else 1.6)
        compute = turns * (max(sharing * unit * 1.2, source_rows * latency) + 900) + 2500
        refetched = source.size * (source_rows / (rows * h.step) - 1) * 0.2
        memory = 2 * (source.size + result.size + max(0.0, refetched)) / bandwidth
        if total < multiprocessors * 8:
            memory *= 1.3
        # lanes that read a pixel for several taps wait for each: as measured on an H100
        memory *= 1.3 if w.step == 1 and w.reach > 1 else 1.1
        seconds = max(memory, compute / _CLOCK) + 0.15 * min(memory, compute / _CLOCK) + 6e-6
        defines = shape.defines() | roles(problem, source, result) | axis_defines(h, w) | {
            "IS_FORWARD": int(is_forward), "GROUP_IN": group_in, "GROUP_OUT": group_out, "SLICE_GROUPS": slice_groups,
            "CHANNEL_STEPS": steps, "TILE_N": tiles, "TILE_ROWS": rows, "WORKERS": workers, "BLOCK_THREADS": 128,
            "RESIDENT": resident, "AHEAD": ahead, "SOURCE_PIECE": piece * is_wide,
            "RESULT_VECTOR": vector, "RESULT_C": result_c,
        }  # fmt: skip
        yield Plan(tuple(defines.items()), 128, -(-total // 4), seconds, workers)
