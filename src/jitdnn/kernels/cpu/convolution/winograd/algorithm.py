"""Convolution by Winograd's minimal filtering: forward and backward data with fewer multiplications.

F(m, r) makes m neighbouring results of r taps from alpha = m + r - 1 products instead of m r, on one axis or on two:
for 3 x 3 taps F(4, 3) takes 36 products instead of 144, F(2, 3) takes 16 instead of 36. The rounding errors grow with
alpha. See plan.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Kept
from jitdnn.kernels.algorithm import ARITHMETIC, Epilogue
from jitdnn.kernels.cpu.algorithm import FilterAlgorithm, Launch, code_key, pointer_count
from jitdnn.kernels.cpu.convolution.winograd.axes import Tiling, forwards
from jitdnn.kernels.cpu.convolution.winograd.candidates import tilings
from jitdnn.kernels.cpu.convolution.winograd.code import Memory, phases, trace
from jitdnn.kernels.cpu.convolution.winograd.cost import choose_plan, cycles
from jitdnn.kernels.cpu.convolution.winograd.error import error_of, plain_error, standard_error, storage_error
from jitdnn.kernels.cpu.convolution.winograd.functions import Traced
from jitdnn.kernels.cpu.convolution.winograd.plan import WinogradPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.schedule.cost import channels_last_group_cycles
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import HALVES
from jitdnn.tensor import TensorDescriptor, compute_dtype


class WinogradAlgorithm(FilterAlgorithm[Convolution]):
    """Tiles of at most ``max_m`` results an axis, fewer where the error would exceed ``_limit``."""

    problem = Convolution
    takes_float8 = False
    may_overwrite_operands = True
    max_m: ClassVar[int]

    @abstractmethod
    def _limit(self, problem: Convolution) -> float:
        """The largest relative error, before results are rounded to their type in memory."""

    def refusal(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_filter":
            return "it computes forward and backward data: take winograd_filter for the filter"
        if problem.is_integer or (problem.dtype not in ARITHMETIC and problem.dtype not in HALVES):
            return "its transforms are not exact in integers"
        if 0 in problem.x.shape or 0 in problem.y.shape:
            return "there is nothing to compute"
        correlations = self._correlations(problem)
        if any(c.taps == 0 for c in correlations):
            return "some positions meet no tap of the filter: the stride is larger than it is"
        if all(c.taps == 1 for c in correlations):
            return "each result has a single tap: there are no multiplications to save"
        if not all(self._tilings(problem, c) for c in correlations):
            return "the filter is too large, or dilated and strided, for tiles within the allowed error"
        return None

    def _correlations(
        self, problem: Convolution, operands: tuple[TensorDescriptor, ...] = ()
    ) -> list[Correlation]:
        return [forwards(c.merged()) for c in lower_convolution(problem, operands)]

    def _tilings(self, problem: Convolution, c: Correlation) -> tuple[Tiling, ...]:
        """Those that are exact enough."""
        return _exact_tilings(c, self.max_m, self._limit(problem))[0]

    def plans(
        self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None = None
    ) -> list[WinogradPlan]:
        """One for each correlation: a strided dgrad has one for each stride phase."""
        operands = epilogue.operands if epilogue else ()
        return [
            choose_plan(c, device.isa, self._tilings(problem, c), self._is_kept)
            for c in self._correlations(problem, operands)
        ]

    def _memory(self, plans: list[WinogradPlan], device: CpuDevice) -> tuple[list[Memory], int]:
        """Where each plan has its memory, and where the scratch of the threads begins, in elements.

        Prepacked filters of all plans are in memory at once; else the plans share the same memory, one after the other.
        """
        sizes = [p.shared_elements for p in plans]
        packed = max(p.packed_elements for p in plans)
        starts = [sum(sizes[:i]) if self._is_kept else 0 for i in range(len(plans))]
        shared = sum(sizes) if self._is_kept else max(sizes)
        return [Memory(start, shared, packed) for start in starts], shared + device.threads * packed

    def error_of(self, problem: Convolution) -> float:
        # the operands of an epilogue decide which axes are joined, but never one with several taps: the tilings that
        # are tried, and so the largest error, are the same
        limit = self._limit(problem)
        errors = [_exact_tilings(c, self.max_m, limit)[1] for c in self._correlations(problem)]
        return max(errors) + storage_error(problem, compute_dtype(problem.dtype))

    def spreads_to(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        for p in self.plans(problem, device, epilogue):
            if p.rows.spreads or p.columns.spreads:
                return f"the other results of a tile of {p.rows.m} x {p.columns.m}"
        return None

    def launch(self, problem: Convolution, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plans = self.plans(problem, device, epilogue)
        pointers, item = pointer_count(problem, epilogue), plans[0].item
        memory, scratch = self._memory(plans, device)

        def generate(module: Module, code: Sequence[tuple[WinogradPlan, Memory]]) -> None:
            traced: Traced = {}
            for number, (p, where) in enumerate(code):
                trace(module, f"part{number}_", p, pointers, epilogue, where, traced)

        pairs = [phases(p, f"part{number}_") for number, p in enumerate(plans)]
        steps, kept = [phase for pair in pairs for phase in pair], None
        if self._is_kept:
            steps = [first for first, _ in pairs] + [second for _, second in pairs]
            kept = Kept(scratch * item, len(plans))
        return Launch(
            problem, "winograd", code_key(epilogue), generate, steps, pointers,
            sum(cycles(p, self._is_kept) for p in plans), sum(tasks for _, (_, tasks) in pairs),
            (scratch + device.threads * max(p.thread_elements for p in plans)) * item, [scratch], kept,
            further_cycles=channels_last_group_cycles(problem, device),
            # the two classes, with and without prepacked weights, share the code of equal plans
            code=tuple(zip(plans, memory, strict=True)),
        )  # fmt: skip


@lru_cache(1024)
def _exact_tilings(c: Correlation, max_m: int, limit: float) -> tuple[tuple[Tiling, ...], float]:
    """The tilings that are exact enough, and the largest of their errors.

    A planner asks for them five times for each problem: for a refusal, the error, the plan, and what a NaN spreads to.
    """
    found = [(tiling, error) for tiling in tilings(c, max_m) if (error := error_of(c, tiling)) <= limit]
    return tuple(tiling for tiling, _ in found), max((error for _, error in found), default=0.0)


class Winograd4(WinogradAlgorithm):
    """Tiles of at most four results an axis; see the module's text."""

    name = "winograd_4"
    max_m = 4

    def _limit(self, problem: Convolution) -> float:
        return standard_error(problem, compute_dtype(problem.dtype))


class Winograd2(WinogradAlgorithm):
    """Tiles of two results an axis, as exact as a plain sum; see the module's text."""

    name = "winograd_2"
    max_m = 2

    def _limit(self, problem: Convolution) -> float:
        return plain_error(problem, compute_dtype(problem.dtype))
