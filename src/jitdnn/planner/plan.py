"""The planner's answer: which kernel runs, what else was considered, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.planner import workspace as policies
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.recording import recording
from jitdnn.settings import Settings, format_bytes
from jitdnn.tensor import DeviceId

if TYPE_CHECKING:
    from jitdnn.devices.cpu_kernel import Kept


@dataclass(frozen=True)
class Request:
    """What a caller asks of a plan; the fields mean what the settings of the same names mean.

    `workspace_limit` is in bytes, None for no limit. `algorithm` asks for one by name: it is used, or
    NotSupported says why it cannot be. `keeps_filter`: the caller will have the filter prepared once and keep it, so
    that preparing it does not count; such calls are not divided.
    """

    workspace_limit: int | None = policies.FASTEST
    deterministic: bool = False
    math: str = "fp32"
    accuracy: str = "standard"
    algorithm: str | None = None
    choice: str = "get"
    keeps_filter: bool = False
    division: str = "power_of_two"
    division_axes: str = "any"
    vendor: str = "off"

    @classmethod
    def of(cls, values: Settings, algorithm: str | None = None) -> Request:
        """The request that the settings make."""
        return cls(
            values.workspace_limit,
            values.deterministic,
            values.math,
            values.accuracy,
            algorithm,
            values.choice,
            division=values.division,
            division_axes=values.division_axes,
            vendor=values.vendor,
        )

    def __str__(self) -> str:
        words = [policies.describe(self.workspace_limit), self.math, f"{self.accuracy} accuracy"]
        if self.deterministic:
            words.append("deterministic")
        if self.algorithm is not None:
            words.append(f"algorithm {self.algorithm}")
        if self.keeps_filter:
            words.append("the prepared filter is kept")
        return ", ".join(words)


DEFERRED = "deferred"
"""The source of the seconds that nobody has asked for."""


@dataclass(frozen=True)
class Candidate:
    """One algorithm as the planner saw it.

    `refused` says why it cannot be used (None: it could). `seconds`, `workspace` (bytes) and `error_bound`
    are None where the algorithm itself refused, so that there is nothing to know. `source` of the seconds:
    "estimate" of the cost model, "measured" now, or "stored" by an earlier measurement; "deferred" where the request
    refuses the algorithm whatever it costs, so that it was not asked. `spreads`: which results a NaN
    or an infinity of an input may reach that do not read it, in words (None: none).
    """

    name: str
    refused: str | None
    seconds: float | None
    source: str
    workspace: int | None
    error_bound: float | None
    deterministic: bool
    chosen: bool = False
    spreads: str | None = None


@dataclass(frozen=True)
class Part:
    """A part of the problem and the kernel that runs it, built with the part's share of the epilogue."""

    problem: Problem
    algorithm: Algorithm
    kernel: Kernel
    epilogue: Epilogue | None = None


Complete = Callable[[Sequence[Candidate]], list[Candidate]]
"""Candidates with those asked that were deferred."""


class Pending(Protocol):
    """The kernel that was chosen for a plan, while it is being compiled and another one stands in."""

    name: str
    """Of the algorithm, and the parts that it divides the problem into."""

    @property
    def is_done(self) -> bool:
        """Whether compiling it is over."""

    def wait(self) -> None:
        """Return when the chosen kernel has taken over. Raises what compiling it raised."""

    def check(self) -> None:
        """Raise what compiling it raised, if that is over."""


_stood_in: ContextVar[list[Pending] | None] = ContextVar("jitdnn_stood_in", default=None)


@contextmanager
def noting_stand_ins() -> Iterator[list[Pending]]:
    """Note in the list for which chosen kernels others stood in, in calls of this thread or task."""
    found: list[Pending] = []
    token = _stood_in.set(found)
    try:
        yield found
    finally:
        _stood_in.reset(token)


def note_stand_in(pending: Pending) -> None:
    """A kernel ran in place of the one that is pending."""
    found = _stood_in.get()
    if found is not None:
        found.append(pending)


class Plan:
    """A problem ready to run, and how it was decided.

    `parts` are several where the problem is divided, which then run one after another in the same workspace. `run`
    is the kernel of all of them: calling it allocates nothing, compiles nothing and waits for nothing. `workspace` is
    the scratch memory that it must be given, in bytes; `seconds` the time it is expected to take.

    While the chosen kernel is being compiled in the background (`compile="background"`) all this is of the kernel that
    runs meanwhile, and `pending` is the other one, which takes its place in this very object. Whoever runs the
    plan of a GPU by hand calls `wait` before, or takes kernel and workspace from `launch`, where they are together.

    Where the request keeps the filter and the kernel prepares one, `kept` says how many bytes (None if not): then
    `run.keep` fills as many with the prepared filter, `run.run_kept` takes them beside `workspace - kept.bytes` bytes
    of scratch memory, and plans of one `kept_key` share them.
    """

    __slots__ = (
        "__weakref__",
        "_candidates",
        "_complete",
        "algorithm",
        "device",
        "device_id",
        "epilogue",
        "is_simple",
        "kept",
        "kept_key",
        "launch",
        "parts",
        "pending",
        "problem",
        "request",
        "run",
        "seconds",
        "workspace",
    )

    def __init__(
        self,
        problem: Problem,
        epilogue: Epilogue | None,
        parts: Sequence[Part],
        run: Kernel,
        candidates: Sequence[Candidate],
        request: Request,
        device: Device,
        device_id: DeviceId | None = None,
        complete: Complete | None = None,
    ) -> None:
        #: what asks the algorithms that were not asked because the request refuses them
        self._complete = complete
        self.problem = problem
        self.epilogue = epilogue
        self.request = request
        self.device = device
        #: the GPU that it runs on, None for the processor
        self.device_id = device_id
        self._runs(parts, run, candidates)
        #: the chosen kernel, as long as another one runs
        self.pending: Pending | None = None
        #: whether the kernel is all that a call runs: it is given no workspace, and no other one comes
        self.is_simple = not self.workspace

    def _runs(self, parts: Sequence[Part], run: Kernel, candidates: Sequence[Candidate]) -> None:
        """Have this kernel run from now on."""
        (chosen,) = (candidate for candidate in candidates if candidate.chosen)
        assert chosen.seconds is not None
        assert chosen.workspace is not None
        self.parts = list(parts)
        self._candidates = list(candidates)
        self.seconds = chosen.seconds
        self.workspace = chosen.workspace
        self.run: Any = run
        self.kept: Kept | None = getattr(run, "kept", None) if self.request.keeps_filter else None
        self.kept_key = ""
        if self.kept is not None:
            algorithm = parts[0].algorithm
            layout = self.kept.layout and f"{self.kept.layout}, {self.kept.bytes} bytes"
            of = layout or f"{self.problem} with {self.epilogue}"
            self.kept_key = f"{algorithm.name} {algorithm.version} on {self.device.name}: {of}"
        #: name of the algorithm that runs, and into which parts it divides the problem
        self.algorithm = chosen.name
        #: kernel and workspace, read at once: a thread may run the plan while another one has a kernel take over
        self.launch: tuple[Any, int] = run, self.workspace

    @property
    def candidates(self) -> list[Candidate]:
        """All algorithms as the planner saw them, and divisions; those that the request refuses are asked now."""
        complete, self._complete = self._complete, None
        if complete is not None:
            self._candidates = complete(self._candidates)
        return self._candidates

    @property
    def candidates_so_far(self) -> list[Candidate]:
        """The same without those that nobody asked for what they cost."""
        return self._candidates

    def stands_in_for(self, pending: Pending) -> None:
        """Have calls run this plan's kernel only until that of `pending` is there."""
        self.pending, self.is_simple = pending, False

    def take_over(self, other: Plan) -> None:
        """Run the kernel of another plan of the same problem from now on, also in calls that know this plan."""
        self._complete = other._complete
        self._runs(other.parts, other.run, other._candidates)
        # only now, for other threads may be in the middle of a call: whoever sees these finds the new kernel
        self.pending = None
        self.is_simple = not self.workspace

    def wait(self) -> Plan:
        """Return this plan when it runs the kernel that was chosen for it. Raises what compiling that raised."""
        pending = self.pending
        if pending is not None:
            pending.wait()
        return self

    def __str__(self) -> str:
        return (
            f"{self.algorithm} ({format_seconds(self.seconds)}, {format_bytes(self.workspace)} of workspace)"
        )

    def __repr__(self) -> str:
        return f"<Plan {self} for {self.problem}>"

    @property
    def device_name(self) -> str:
        """What the plan was made for: processor or GPU, instruction set or architecture, threads."""
        return self.device.name

    def code(self, form: str | None = None) -> str:
        """The code that runs, as text: every module or source of the kernels once, with its name before it.

        `form`: "ir" (LLVM IR as traced) or "asm" (assembler after LLVM's passes) on the CPU, "cuda" (C++) or "ptx" on
        CUDA, "opencl" (C); by default the first of them. It is generated anew. Raises InvalidArgument for a form that
        the target does not have, NotSupported for algorithms that generate none (the reference, those of cuDNN).
        """
        with recording() as made:
            each = dict.fromkeys((part.algorithm, part.problem, part.epilogue) for part in self.parts)
            for algorithm, problem, epilogue in each:
                algorithm.build(problem, self.device, epilogue)
        if not made:
            raise NotSupported(f"{self.algorithm} generates no code", {})
        known = [each for each in (made[0].form, made[0].machine_form) if each]
        if form is not None and form not in known:
            raise InvalidArgument(
                f"form is {shown(form)}: a plan on {self.device_name} has {' and '.join(known)}"
            )
        mark = ";" if made[0].form == "ir" else "//"
        each_once = {(one.name, one.text): one for one in made}.values()
        texts = (
            f"{mark} {one.name}\n{one.machine() if form == one.machine_form else one.text}"
            for one in each_once
        )
        return "\n".join(texts)

    def explain(self) -> str:
        """A table of every candidate: chosen, slower, or refused and why."""
        lines = [str(self.problem)]
        if self.epilogue is not None:
            lines.append(f"with epilogue {self.epilogue}")
        lines += [f"on {self.device_name}: {self.request}"]
        if self.request.keeps_filter:
            kept = format_bytes(self.kept.bytes) if self.kept else "nothing: it reads the filter as it is"
            lines += [f"{self.algorithm} keeps {kept}"]
        pending = self.pending
        if pending is not None:
            lines += [
                f"{self.algorithm} runs for now: {pending.name} is being compiled, and takes over when it is there"
            ]
        spreads = next(candidate.spreads for candidate in self._candidates if candidate.chosen)
        if spreads is not None:
            lines += [
                f"a NaN or an infinity in an input may reach {spreads}, which do not read it: strict accuracy "
                "(JITDNN_ACCURACY=strict) takes what keeps it to those that do"
            ]
        lines += [""]
        return "\n".join(lines) + candidate_table(self.candidates)


def format_seconds(seconds: float) -> str:
    """Seconds for a reader, three digits: `12.3 us`, `4.56 ms`, `7.89 s`."""
    for scale, unit in ((1e6, "us"), (1e3, "ms"), (1.0, "s")):
        value = seconds * scale
        if value < 999.5 or unit == "s":
            break
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


_HEADINGS = ("", "algorithm", "time", "source", "workspace", "error bound", "deterministic", "")


def candidate_table(candidates: Sequence[Candidate]) -> str:
    """The candidates as lines of text: the chosen one, the slower ones by time, then the refused ones."""
    order = sorted(candidates, key=lambda c: (not c.chosen, c.refused is not None, c.seconds or 0.0))
    best = order[0].seconds if order and order[0].chosen else None
    rows = [_HEADINGS, *(_row(candidate, best) for candidate in order)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    text = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"\n{line.rstrip()}" for line in text)


def _row(candidate: Candidate, best: float | None) -> tuple[str, ...]:
    if candidate.chosen:
        remark = "chosen"
    elif candidate.refused is not None:
        remark = f"refused: {candidate.refused}"
    elif best and candidate.seconds is not None:
        ratio = candidate.seconds / best
        remark = f"{ratio:.2f}x the time" if ratio < 10 else f"{ratio:.0f}x the time"
    else:
        remark = ""
    return (
        ">" if candidate.chosen else "",
        candidate.name,
        "-" if candidate.seconds is None else format_seconds(candidate.seconds),
        "-" if candidate.seconds is None else candidate.source,
        "-" if candidate.workspace is None else format_bytes(candidate.workspace),
        "-" if candidate.error_bound is None else f"{candidate.error_bound:.1e}",
        "yes" if candidate.deterministic else "no",
        remark,
    )
