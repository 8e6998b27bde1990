"""The handle by which a graph's nodes are planned: kernels that are launches and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from jitdnn.devices.gpu import Graph
from jitdnn.devices.gpu_launches import GpuRecorder
from jitdnn.errors import JitdnnError, NotSupported
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.tables import table
from jitdnn.planner.choose import NotCompiled, get
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.attention import Attention
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.missing import Missing

#: algorithms whose kernels are Python that calls NumPy or SciPy, at least in part
_HOST = frozenset({"fft", "im2col", "reference"})


class EngineHandle(Handle):
    """Chooses among kernels that can be recorded, and forgets none while its engine lives.

    `ran` has the plans of the calls since it was cleared. On a GPU `recorder` takes the launches while there is one:
    then nothing runs.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ran: list[Plan] = []
        self.recorder: GpuRecorder | None = None
        self._lacking: list[Missing] | None = None
        #: called before a plan is made that the handle does not have
        self.before_plan: Callable[[Problem, Request, Epilogue | None], None] | None = None

    @property
    def has_dot(self) -> bool:
        """Whether the device has instructions for dot products of 8-bit integers."""
        isa = getattr(self.device, "isa", None)  # that of a processor
        return isa is not None and bool(isa.has_dot)

    @property
    def has_attention(self) -> bool:
        """Whether attention as one is faster than products around a softmax: on processors, and where the GPU's kernels
        use its tensor cores as its products do."""
        gpu = self.on_gpu
        is_fast = gpu is None or gpu.tensor_flops("f16") > 0
        return is_fast and bool(table(self.device.target).get((Attention, "fwd")))

    def _make(self, key: Hashable, problem: Problem, request: Request, epilogue: Epilogue | None) -> Plan:
        if self.before_plan is not None:
            self.before_plan(problem, request, epilogue)
        if self._lacking is None:
            return super()._make(key, problem, request, epilogue)
        try:
            plan = get(problem, self.device, request, epilogue, waits=False)
        except NotCompiled as error:
            self._lacking += error.missing
            return cast(Plan, None)  # which stands for nothing to run
        return self._plans.put(key, plan, self.settings.plans_limit)

    @contextmanager
    def looking(self) -> Iterator[list[Missing]]:
        """In a `with` block plans whose code is not compiled yet are not made: what they lack is put into the list."""
        found: list[Missing] = []
        self._lacking = found
        try:
            yield found
        finally:
            self._lacking = None

    @contextmanager
    def noting(self, recorder: GpuRecorder) -> Iterator[None]:
        """In a `with` block launches on the GPU are noted, and nothing runs."""
        self.recorder, self.graph = recorder, cast(Graph, recorder)  # which keeps what calls use
        try:
            yield
        finally:
            self.recorder = self.graph = None

    def plan(
        self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None
    ) -> Plan:
        plan = super().plan(problem, request, epilogue)
        if plan is None or not _runs_python(plan):
            return plan
        if self.on_gpu is not None:
            raise NotSupported(f"{self.on_gpu.target} has no kernels for {problem}")
        return self._other(plan, epilogue)

    def run(
        self, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0, kept: int = 0
    ) -> None:
        self.ran.append(plan)
        super().run(plan, pointers, alpha, beta, kept)

    def run_on_gpu(
        self, stream: Any, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        self.ran.append(plan)
        super().run_on_gpu(stream, plan, pointers, alpha, beta)

    def launch(
        self, stream: Any, kernel: Kernel, pointers: Sequence[int], alpha: float, beta: float, bytes: int
    ) -> None:
        if self.recorder is None:
            super().launch(stream, kernel, pointers, alpha, beta, bytes)
        else:
            self.recorder.add(kernel, pointers, alpha, beta, bytes)

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


class _Dry(Handle):
    """A handle whose calls are checked, and neither planned nor run: what is left are shapes."""

    launches = False

    def plan(self, problem: Any, request: Any = None, epilogue: Any = None) -> Any:
        return None


dry = _Dry(target="cpu")
