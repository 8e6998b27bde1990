"""Convolution by Winograd's minimal filtering: forward and backward data with fewer multiplications.

F(m, r) makes m neighbouring results of r taps from m + r - 1 products where m r are written, on one axis or on two: for
3 x 3 taps F(4, 3) takes 36 products for 144, F(2, 3) takes 16 for 36. The rounding errors grow with m. See plan.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from jitdnn.devices.cpu import CpuDevice, CpuKernel, Kept
from jitdnn.kernels.algorithm import ARITHMETIC, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.convolution.winograd.candidates import Tiling, tilings
from jitdnn.kernels.cpu.convolution.winograd.code import Memory, phases, trace_winograd
from jitdnn.kernels.cpu.convolution.winograd.cost import choose_winograd, cycles
from jitdnn.kernels.cpu.convolution.winograd.error import error_of, plain_error, standard_error, storage_error
from jitdnn.kernels.cpu.convolution.winograd.functions import Shared
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan, forwards
from jitdnn.kernels.cpu.correlation import Correlation, lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles, seconds_of, useful_threads
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import HALVES, ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype


class WinogradAlgorithm(Algorithm):
    """Tiles of at most ``outputs`` results an axis, fewer where the error would exceed ``_limit``."""

    problem = Convolution
    deterministic = True
    outputs: ClassVar[int]

    def __init__(self, is_kept: bool = False) -> None:
        self._is_kept = is_kept

    def with_kept_filter(self) -> WinogradAlgorithm:
        return type(self)(is_kept=True)

    @abstractmethod
    def _limit(self, problem: Problem) -> float:
        """The largest relative error, before results are rounded to their type in memory."""

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        assert isinstance(problem, Convolution)
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: take winograd_filter for the filter"
        if problem.is_integer or (problem.dtype not in ARITHMETIC and problem.dtype not in HALVES):
            return "its transforms are not exact in whole numbers"
        if 0 in problem.x.shape or 0 in problem.y.shape:
            return "there is nothing to compute"
        parts = self._correlations(problem)
        if any(part.taps == 0 for part in parts):
            return "some positions meet no tap of the filter: the stride is larger than it is"
        if all(part.taps == 1 for part in parts):
            return "each result has a single tap: there are no multiplications to save"
        if not all(self._ways(problem, part) for part in parts):
            return "the filter is too large, or dilated and strided, for tiles within the allowed error"
        return None

    def _correlations(
        self, problem: Convolution, operands: tuple[TensorDescriptor, ...] = ()
    ) -> list[Correlation]:
        return [forwards(part.merged()) for part in lower_convolution(problem, operands)]

    def _ways(self, problem: Problem, c: Correlation) -> tuple[Tiling, ...]:
        """The tiles that are exact enough."""
        limit = self._limit(problem)
        return tuple(way for way in tilings(c, self.outputs) if error_of(c, *way) <= limit)

    def _parts(
        self, problem: Problem, device: Device, epilogue: Epilogue | None = None
    ) -> list[WinogradPlan]:
        assert isinstance(problem, Convolution)
        assert isinstance(device, CpuDevice)
        operands = epilogue.operands if epilogue else ()
        return [
            choose_winograd(part, device.isa, self._ways(problem, part), self._is_kept)
            for part in self._correlations(problem, operands)
        ]

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        assert isinstance(device, CpuDevice)
        return self._workspace(self._parts(problem, device, epilogue), device)

    def _workspace(self, parts: list[WinogradPlan], device: CpuDevice) -> int:
        own = max(part.own_elements for part in parts)
        return (self._memory(parts, device)[1] + device.threads * own) * ITEM_BYTES[parts[0].c.dtype]

    def _memory(self, parts: list[WinogradPlan], device: CpuDevice) -> tuple[list[Memory], int]:
        """Where each part has its memory, and where the scratch of the threads begins, in elements.

        A kept filter is there as a whole; else the parts follow each other in the same memory.
        """
        sizes = [part.shared_elements for part in parts]
        staged = max(part.staged_elements for part in parts)
        starts = [sum(sizes[:i]) if self._is_kept else 0 for i in range(len(parts))]
        shared = sum(sizes) if self._is_kept else max(sizes)
        return [Memory(start, shared, staged) for start in starts], shared + device.threads * staged

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        tasks = sum(phases(p, "")[1][1] for p in parts)
        counted = sum(cycles(p, self._is_kept) for p in parts) + channels_last_group_cycles(problem)
        return seconds_of(problem, device, counted, tasks)

    def error_bound(self, problem: Problem) -> float:
        # the operands of an epilogue decide which axes are joined, but never one with several taps: the tiles of those
        # that are tried, and so the largest error, are the same
        assert isinstance(problem, Convolution)
        errors = [
            error_of(part, *way) for part in self._correlations(problem) for way in self._ways(problem, part)
        ]
        return max(errors) + storage_error(problem, compute_dtype(problem.dtype))

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        for part in self._parts(problem, device, epilogue):
            if part.rows.spreads or part.columns.spreads:
                return f"the other results of a tile of {part.outputs[0]} x {part.outputs[1]}"
        return None

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        assert isinstance(device, CpuDevice)
        parts = self._parts(problem, device, epilogue)
        pointers = 3 + (len(epilogue.operands) if epilogue else 0)

        memory, scratch = self._memory(parts, device)

        def generate(module: Module) -> None:
            shared: Shared = {}
            for number, (part, where) in enumerate(zip(parts, memory, strict=True)):
                trace_winograd(module, f"part{number}_", part, pointers, epilogue, where, shared)

        # kernels that are cut alike share their code: those of both classes, with and without a kept filter
        cuts = [(p.tiled, p.outputs, p.parts, p.is_filter_first, p.block, p.portion) for p in parts]
        library = load("winograd", (str(problem), str(epilogue), cuts, memory), device.isa, generate)
        pairs = [phases(part, f"part{number}_") for number, part in enumerate(parts)]
        steps = [phase for pair in pairs for phase in pair]
        kept = None
        if self._is_kept:
            steps = [first for first, _ in pairs] + [second for _, second in pairs]
            kept = Kept(scratch * ITEM_BYTES[parts[0].c.dtype], len(parts))
        threads = useful_threads(device, sum(cycles(p, self._is_kept) for p in parts))
        needed = self._workspace(parts, device)
        return CpuKernel(library, steps, pointers, threads, [scratch], kept, needed)


class Winograd4(WinogradAlgorithm):
    """Tiles of at most four results an axis; see the module's text."""

    name = "winograd_4"
    outputs = 4

    def _limit(self, problem: Problem) -> float:
        return standard_error(problem, compute_dtype(problem.dtype))


class Winograd2(WinogradAlgorithm):
    """Tiles of two results an axis, as exact as a plain sum; see the module's text."""

    name = "winograd_2"
    outputs = 2

    def _limit(self, problem: Problem) -> float:
        return plain_error(problem, compute_dtype(problem.dtype))
