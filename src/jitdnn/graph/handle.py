"""The handle by which a graph's nodes are planned: kernels that are launches and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from jitdnn.devices.cpu import CpuDevice
from jitdnn.errors import JitdnnError
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import Problem

#: algorithms whose kernels are Python that calls NumPy or SciPy, at least in part
_HOST = frozenset({"fft", "im2col", "reference"})


class EngineHandle(Handle):
    """Chooses among kernels that can be recorded, and forgets none while its engine lives.

    `ran` has the plans of the calls since it was cleared.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ran: list[Plan] = []
        #: called before a plan is made that the handle does not have
        self.before_plan: Callable[[Problem, Request, Epilogue | None], None] | None = None

    @property
    def has_dot(self) -> bool:
        """Whether the device has instructions for dot products of 8-bit integers."""
        return isinstance(self.device, CpuDevice) and self.device.isa.has_dot

    def _make(self, key: Hashable, problem: Problem, request: Request, epilogue: Epilogue | None) -> Plan:
        if self.before_plan is not None:
            self.before_plan(problem, request, epilogue)
        return super()._make(key, problem, request, epilogue)

    def plan(
        self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None
    ) -> Plan:
        plan = super().plan(problem, request, epilogue)
        if _runs_python(plan):
            plan = self._other(plan, epilogue)
        return plan

    def run(
        self, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0, kept: int = 0
    ) -> None:
        self.ran.append(plan)
        super().run(plan, pointers, alpha, beta, kept)

    def _other(self, plan: Plan, epilogue: Epilogue | None) -> Plan:
        """The fastest plan of launches alone; the one that there is if there is no other."""
        open_ = [
            c for c in plan.candidates if c.refused is None and c.seconds is not None and c.name not in _HOST
        ]
        for candidate in sorted(open_, key=lambda c: c.seconds or 0.0):
            name = candidate.name.split(" ")[0]
            try:
                other = super().plan(plan.problem, replace(plan.request, algorithm=name), epilogue)
            except JitdnnError:
                continue
            if not _runs_python(other):
                return other
        return plan

    def age(self) -> None:
        """Nothing is dropped: launches that were recorded refer to what there is."""

    def halve(self) -> bool:
        return False


def _runs_python(plan: Plan) -> bool:
    return any(part.algorithm.name in _HOST for part in plan.parts)


def names_of(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The algorithms of plans, in words."""
    return tuple(plan.algorithm for plan in plans)
