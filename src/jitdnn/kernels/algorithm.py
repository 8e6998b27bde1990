"""The contract between the planner and every way to run a problem.

An `Algorithm` says what it cannot do and why, what memory it needs, how long it should take and how exact
it is; `build` turns it into a `Kernel`, a callable over raw pointers. Neither ever sees an array: the planner
can ask all of them about a problem, and compile the winner, before a single element exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast
from zlib import crc32

from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import Expression
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor, compute_dtype

UNIT_ROUNDOFF = {
    "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3, "f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53,
    "i8": 0.5, "u8": 0.5,
}  # fmt: skip
STRICT_ROUNDOFFS, STANDARD_ROUNDOFFS = 32.0, 84.0
"""Unit roundoffs that each accuracy allows at least."""
ARITHMETIC = {"f32": "fp32", "f64": "fp64"}


class Device(Protocol):
    """What a cost model may know of the machine; `devices/` holds the real ones."""

    @property
    def target(self) -> str:
        """The table of algorithms to read, `"cpu"` for one."""

    @property
    def name(self) -> str:
        """Chip, instruction set and threads: the name under which measurements are stored."""

    @property
    def threads(self) -> int:
        """Host threads a kernel may use."""

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth in bytes a second."""

    def peak_flops(self, dtype: str) -> float:
        """Peak arithmetic rate of all threads together in operations a second."""


@dataclass(frozen=True)
class Epilogue:
    """Work fused into the end of a kernel: `dst = alpha * expression(acc, *operands) + beta * dst`.

    The expression's first input is the accumulated result, the others are `operands` in order. Every operand
    descriptor already has the output's shape; a broadcast axis has stride 0.
    """

    expression: Expression
    operands: tuple[TensorDescriptor, ...] = ()

    def __str__(self) -> str:
        operands = ", ".join(str(operand) for operand in self.operands)
        return f"{self.expression} over ({operands})" if operands else str(self.expression)


class Kernel(Protocol):
    """A compiled problem. It writes every element of its output and nothing outside output and workspace."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        """Run on `stream` (None on the CPU).

        `pointers` are the addresses of the elements at index 0 of the problem's operands (inputs, then outputs)
        and of the epilogue's, in this order. `workspace` is a 64-byte aligned address of as many bytes as the algorithm
        asked for (0 if none). With `beta == 0` the output is never read.
        """


class Algorithm(ABC):
    """One way to run one kind of problem on one kind of device.

    `name` is unique among the algorithms of a problem, and is what a user asks for. `version` is another one after
    every change that may change the speed: measurements of another version are never used. Those that run other
    algorithms have one by `version_over`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    problem: ClassVar[type[Problem]]
    deterministic: ClassVar[bool]
    """Bit-identical results from run to run on one device."""
    takes_float8: ClassVar[bool] = True
    """Whether it reads 8-bit reals (`Problem.has_float8`)."""
    only_by_name: ClassVar[str | None] = None
    """Why the planner does not choose it unless it is asked for by name; None if it may."""
    may_overwrite_operands: ClassVar[bool] = False
    """Whether an operand of the epilogue may be the result's own memory, where both lie alike: each element of the
    result is written once, after all that is read of the operands for it. No element is read for another one."""
    has_exact_products: ClassVar[bool] = True
    """Whether products are those of the numbers as they are, which "strict" accuracy asks for in `fp32` and `fp64`."""
    is_elementwise: ClassVar[bool] = False
    """Of products that are not: whether they keep as many bits of numbers that are far smaller than others of their
    tensor, so that the error of each result is relative to its own terms. That takes longer, and is done for
    "elementwise" accuracy alone."""
    rounded: ClassVar[tuple[str, ...]] = ()
    """Algorithms that take fewer products of the tensor cores where a request allows factors to be rounded: with one of
    them this one is never faster."""

    @abstractmethod
    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        """Say which constraint fails, in words a user can act on; None to accept."""

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        """Bytes of scratch memory that the kernel needs beside its operands: that built with this epilogue.

        The operands of an epilogue are laid out as they please, and decide with the tensors how a problem is cut.
        """
        return 0

    @abstractmethod
    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        """Expected seconds for one call of the kernel built with this epilogue."""

    def costs(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> tuple[int, float]:
        """`workspace` and `estimate`, from one plan where both follow from a plan."""
        return self.workspace(problem, device, epilogue), self.estimate(problem, device, epilogue)

    def least_seconds(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        """Seconds that `estimate` does not come below, known in a fraction of the time that it takes; 0 if nothing is.

        It is asked before `refuse`, and of problems that this refuses may say anything but raise.
        """
        return 0.0

    @abstractmethod
    def error_bound(self, problem: Problem) -> float:
        """Largest relative error `||out - reference|| / ||reference||` on well-conditioned data, with any epilogue.

        That is for alpha 1 and beta 0; where terms of the result cancel, the norm is that of the terms. With other
        factors the error is |alpha| times that of the result, and two unit roundoffs of ||alpha * result|| +
        ||beta * out|| more, for the factors in the type of the arithmetic and their products: the sum may cancel.
        """

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        """Which results a NaN or an infinity of an input may reach that do not read it, in words; None: it does not.

        A result reads the elements that its definition pairs or sums, those that it multiplies by padding included:
        0 times infinity is NaN wherever the product is written out. Sums that hold other elements times zero, or
        where these cancel, spread.
        """
        return None

    def arithmetic(self, problem: Problem) -> str:
        """The math mode in which products are summed: one of the names of the `math` setting."""
        return ARITHMETIC[compute_dtype(problem.dtype)]

    def with_kept_filter(self) -> Algorithm | None:
        """The same algorithm for callers that keep its prepared filter; None if it prepares nothing.

        It has this one's name and refusals. Its kernels have `kept` (`devices.cpu_kernel.Kept`), `keep` and `run_kept`,
        and take a workspace that begins with the kept bytes; its estimate leaves out what is prepared. Where nothing is
        prepared ahead of a problem `kept` is None.
        """
        return None

    @abstractmethod
    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        """Make the kernel. Takes no arrays and launches nothing, so it may run in any thread or process."""


def version_over(own: int, others: Iterable[Algorithm]) -> int:
    """The version of an algorithm that runs others: another one after each change of its `own` or of one of theirs.

    It is the CRC-32 of all of them, with their names: in a sum the change of one could make up for that of another.
    """
    return crc32(repr((own, [(other.name, other.version) for other in others])).encode())


def keeping_filter(
    algorithm: Algorithm, problem: Problem, device: Device, epilogue: Epilogue | None
) -> Algorithm:
    """The algorithm as it is fastest for callers that keep a filter: prepared once, or anew by each call.

    A prepared filter may be several times as large as the filter, and is read from memory where the other is made and
    used in the cache.
    """
    kept = algorithm.with_kept_filter()
    if kept is None or algorithm.refuse(problem, device, epilogue) is not None:
        return kept or algorithm
    is_faster = kept.estimate(problem, device, epilogue) <= algorithm.estimate(problem, device, epilogue)
    return kept if is_faster else algorithm


def fastest(
    algorithms: Sequence[Algorithm],
    problem: Problem,
    device: Device,
    epilogue: Epilogue | None = None,
    is_allowed: Callable[[Algorithm], bool] = lambda _: True,
) -> Algorithm | None:
    """The algorithm of the least estimate of those that take the problem, of equals the first; None if none does.

    `is_allowed`: whether one that takes it may be the one. Those that say what they do not come below are asked last,
    and not where another one takes less.
    """
    bounds = [(one.least_seconds(problem, device, epilogue), at) for at, one in enumerate(algorithms)]
    best = inf, -1
    for least, at in sorted(bounds):
        if least > best[0]:
            break
        one = algorithms[at]
        if one.refuse(problem, device, epilogue) is None and is_allowed(one):
            best = min(best, (one.estimate(problem, device, epilogue), at))
    return algorithms[best[1]] if best[1] >= 0 else None


OwnProblem = TypeVar("OwnProblem", bound=Problem)
OwnDevice = TypeVar("OwnDevice", bound=Device)
Plan = TypeVar("Plan")


class PlannedAlgorithm(Algorithm, Generic[OwnProblem, Plan, OwnDevice]):
    """An algorithm that says everything of a plan, in the types of its own problems and devices.

        refusal        what it cannot do
        plan           the sizes from which workspace, time and code follow
        workspace_of   bytes, from the plan
        seconds_of     expected seconds, from the plan
        error_of       the error bound of a problem
        kernel_of      the kernel, from the plan
        spreads_to     which results a NaN reaches that do not read it
        least_of       what its seconds do not come below

    The planner calls the methods of `Algorithm`; these narrow the types, make the plan, and call the above.
    """

    takes_no_epilogue: ClassVar[str | None] = None
    """The refusal of every epilogue, in which {kind} is the kind of the problem; None if there may be one."""

    def refusal(self, problem: OwnProblem, device: OwnDevice, epilogue: Epilogue | None) -> str | None:
        """Which constraint fails, in words a user can act on; None if there is a plan."""
        return None

    @abstractmethod
    def plan(self, problem: OwnProblem, device: OwnDevice, epilogue: Epilogue | None) -> Plan:
        """The sizes for a problem that is not refused."""

    def workspace_of(self, plan: Plan, device: OwnDevice) -> int:
        """Bytes of scratch memory."""
        return 0

    @abstractmethod
    def seconds_of(self, plan: Plan, device: OwnDevice) -> float:
        """Expected seconds of one call."""

    @abstractmethod
    def error_of(self, problem: OwnProblem) -> float:
        """The largest relative error, as `error_bound` defines it."""

    @abstractmethod
    def kernel_of(self, plan: Plan, device: OwnDevice) -> Kernel:
        """Make the kernel."""

    def spreads_to(self, problem: OwnProblem, device: OwnDevice, epilogue: Epilogue | None) -> str | None:
        """What `spreads` says of a problem that is not refused."""
        return None

    def least_of(self, problem: OwnProblem, device: OwnDevice, epilogue: Epilogue | None) -> float:
        """What `least_seconds` says, also of a problem that is refused."""
        return 0.0

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None and self.takes_no_epilogue is not None:
            return self.takes_no_epilogue.format(kind=problem.kind)
        if not self.takes_float8 and problem.has_float8:
            return "it does not read 8-bit reals: transform(x, dtype=...) makes a copy of another type"
        return self.refusal(self._own(problem), cast(OwnDevice, device), epilogue)

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return self.workspace_of(self._plan(problem, device, epilogue), cast(OwnDevice, device))

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.seconds_of(self._plan(problem, device, epilogue), cast(OwnDevice, device))

    def costs(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> tuple[int, float]:
        plan, own = self._plan(problem, device, epilogue), cast(OwnDevice, device)
        return self.workspace_of(plan, own), self.seconds_of(plan, own)

    def least_seconds(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        return self.least_of(self._own(problem), cast(OwnDevice, device), epilogue)

    def error_bound(self, problem: Problem) -> float:
        return self.error_of(self._own(problem))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return self.kernel_of(self._plan(problem, device, epilogue), cast(OwnDevice, device))

    def spreads(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return self.spreads_to(self._own(problem), cast(OwnDevice, device), epilogue)

    def _plan(self, problem: Problem, device: Device, epilogue: Epilogue | None) -> Plan:
        return self.plan(self._own(problem), cast(OwnDevice, device), epilogue)

    def _own(self, problem: Problem) -> OwnProblem:
        assert isinstance(problem, self.problem), f"{self.name} does not run {problem.kind}"
        return cast(OwnProblem, problem)


class TypedAlgorithm(PlannedAlgorithm[OwnProblem, OwnProblem, OwnDevice]):
    """An algorithm that plans nothing but what its kernel is built with: the problem is the plan."""

    def plan(self, problem: OwnProblem, device: OwnDevice, epilogue: Epilogue | None) -> OwnProblem:
        return problem


class PlannedKernel(NamedTuple):
    """What an algorithm chose for a problem: bytes of workspace, expected seconds, and what makes the kernel."""

    workspace: int
    seconds: float
    build: Callable[[], Kernel]


class KernelAlgorithm(PlannedAlgorithm[OwnProblem, PlannedKernel, OwnDevice]):
    """An algorithm whose plan is all that the planner asks for: it has a refusal, a plan, and an error bound."""

    deterministic = True

    def workspace_of(self, plan: PlannedKernel, device: OwnDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: PlannedKernel, device: OwnDevice) -> float:
        return plan.seconds

    def error_of(self, problem: OwnProblem) -> float:
        return summation_bound(problem)

    def kernel_of(self, plan: PlannedKernel, device: OwnDevice) -> Kernel:
        return plan.build()


def terms(problem: Problem) -> int:
    """Products summed into one output element, on average (half the operations an output element costs)."""
    return max(1, problem.flops // (2 * max(1, problem.output.size)))


def storing_roundoff(problem: Problem) -> float:
    """The unit roundoff of the problem's dtype, or that of the result where it is a coarser real."""
    stored = problem.output.dtype
    return max(UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[stored] if stored in REAL_DTYPES else 0.0)


def summation_bound(problem: Problem) -> float:
    """Relative error to declare for a plain sum in the arithmetic of the problem's dtype, rounded to that dtype.

    Rounding errors of a sum of n terms behave as a random walk: u * sqrt(n) times 0.4 for terms of random
    sign and 0.33 for positive ones (u is the unit roundoff); the constants here leave a factor of two and
    cover the few roundings outside the sum.
    """
    own, computing = storing_roundoff(problem), UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    rounding = 2.0 * own if own > computing else 0.0
    return rounding + computing * (4.0 + sqrt(terms(problem)))
