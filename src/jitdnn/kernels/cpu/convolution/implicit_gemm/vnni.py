"""Convolution of 8-bit integers with four multiply-adds a lane: AVX-512's dot products of quads of channels.

The implicit GEMM of plan.py, in which an element is a quad of channels (vnni_packing.py): one instruction,
vpdpbusd, adds four products to each 32-bit sum. Any stride, dilation, padding, groups, layout and channel count. Sums
are exact; they become reals as they are stored, for the epilogue and the scaling, and integers again by rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel, Kept
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel, summation_bound
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni_packing import (
    QUAD,
    QuadPanels,
    trace_quad_input_tile,
    trace_quad_panel,
)
from jitdnn.kernels.cpu.correlation import Correlation, lower_convolution
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore
from jitdnn.kernels.cpu.microkernel.gemm import Products
from jitdnn.kernels.cpu.microkernel.packing import plan_panels
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, split_index
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Function, Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

# products of -128 by -128 whose sum would not fit into 32 bits
_TOO_MANY = 1 << 17
_PACK = 1.3  # cycles to pack one quad of the filter


@dataclass(frozen=True, kw_only=True)
class VnniPlan(ImplicitGemmPlan):
    """A correlation whose depth counts quads of 8-bit channels, with sums of type i32."""

    channels_read: int  # of a group
    computing: str  # the type of the epilogue

    @classmethod
    def of(cls, c: Correlation, processor: Isa) -> VnniPlan:
        """The way to compute a correlation of 8-bit integers, which is stated in single channels and reals."""
        quads = replace(
            c,
            dtype="i32",
            depth=ceil_div(c.depth, QUAD),
            x=replace(c.x, dtype="i8"),
            w=replace(c.w, dtype="i8"),
        )
        return cls(quads, processor, channels_read=c.depth, computing=c.dtype, packs_ahead=True)

    @cached_property
    def panels(self) -> QuadPanels:
        side = self.tile.box[0] if self.vectorizes_pixels else self.tile.vectors * self.lanes
        plain = plan_panels(self.c, side)
        return QuadPanels(plain.lanes, plain.count, plain.taps, plain.depth)

    def trimmed_axes(self, c: Correlation, box: tuple[int, ...]) -> list[int]:
        """None: the padding takes part, so that sums of all pixels begin with the same values."""
        return []

    @property
    def may_wait(self) -> bool:
        """False: a block's quads are copied at once."""
        return False

    @property
    def asks_ahead(self) -> bool:
        """False: x is read by single channels."""
        return False

    def pack_cycles(self) -> float:
        return _PACK * self.c.group_count * self.panels.count * self.panels.panel_size

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        return [(f"{prefix}pack", self.c.group_count * self.panels.count), (f"{prefix}tiles", self.tasks)]

    def _trace_pack(self, module: Module, prefix: str, pointers: int, number: int) -> None:
        c, panels = self.c, self.panels
        pack = trace_quad_panel(module, f"{prefix}panel", c, panels, self.channels_read)
        with module.task(f"{prefix}pack") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            group, panel = split_index(task, (c.group_count, panels.count))
            w = arguments.pointer(number, c.w.dtype) + group_offset(group, c.groups, c.w.groups)
            k.call(pack, w, self.filter_panels(arguments) + task * panels.panel_size, panel * panels.lanes)

    def trace_input_tile_of(self, module: Module, name: str) -> Function:
        return trace_quad_input_tile(module, name, self.c, self.input_tile, self.channels_read)

    @property
    def _products(self) -> Products:
        lanes, at = self.lanes, self.panels.start
        if self.vectorizes_pixels:
            return Products(
                lambda k, one, vector, total: k.dot(vector, one, total),
                lambda panel, _, row, vector: panel.splat(at + row, lanes),
            )
        return Products(Builder.dot, lambda _, panel, row, vector: panel.load(at + vector * lanes, lanes))

    def tile_store(self, epilogue: Epilogue | None) -> TileStore:
        store = super().tile_store(epilogue)
        vectors = store.vectors * self.lanes // self.isa.lanes(self.computing)
        return replace(store, dtype=self.computing, vectors=vectors, sums=f"i32:{self.computing}")


class Vnni(Algorithm):
    """Forward, of 8-bit integers; see the module's text."""

    name = "vnni"
    problem = Convolution
    deterministic = True

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> Vnni:
        return Vnni(is_kept=True)

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if not problem.is_integer:
            return f"it convolves 8-bit integers, forward: x is {problem.x.dtype} and this is {problem.direction}"
        if not isinstance(device, CpuDevice) or not device.isa.has_dot:
            return "it needs a processor with the instruction vpdpbusd, which is part of AVX-512 VNNI"
        products = math.prod(problem.w.shape[1:])
        if products >= _TOO_MANY:
            return (
                f"an output has {products} products, whose sum may not fit into 32 bits: it takes fewer than "
                f"{_TOO_MANY}"
            )
        return None

    def _part(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> VnniPlan:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        (whole,) = lower_convolution(problem, epilogue.operands if epilogue else ())
        return VnniPlan.of(whole.merged(), device.isa)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(device, CpuDevice)
        return self._part(problem, device, epilogue).workspace(device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        part = self._part(problem, device, epilogue)
        cycles = part.cycles() - (part.pack_cycles() if self._is_kept else 0.0)
        return seconds_of(problem, device, cycles, part.tasks)

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        part = self._part(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)
        library = load(
            self.name, (str(problem), str(epilogue)), device.isa,
            lambda module: part.trace(module, "", pointers, (0, 1, 2), epilogue),
        )  # fmt: skip
        kept = Kept(part.all_panels * ITEM_BYTES[part.c.dtype], 1)
        threads = useful_threads(device, part.cycles())
        needed = part.workspace(device.threads)
        return CpuKernel(library, part.phases(""), pointers, threads, kept=kept, workspace=needed)
