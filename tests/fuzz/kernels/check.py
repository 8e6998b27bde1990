"""One kernel on one problem: planned by a number, run in memory that shows misuse, held against the float64 reference.

Of each problem the kernel runs twice. Once on small whole numbers, whose sums are exact in every arithmetic but that of
transforms: each result is then the reference's, rounded to its type, and one wrong element among thousands is seen.
Once on normal numbers with alpha and beta, within the kernel's error bound.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

import cases
from cases import Case, compare, make_case
from fuzz.kernels.plans import any_plan
from fuzz.problem import Fault
from harness import run
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.reference import rounded

_PLANNING_SECONDS = 3.0
"""Of processor time for refusal and plan of a small problem, at most: mostly a fraction of a second."""
_ALIGNED, _ODD = 128, 1031
_DEVICES = itertools.count()


@dataclass
class KernelProblem:
    """A problem for one algorithm, with the plan of number `plan`, on a GPU of so many multiprocessors.

    `is_exact`: products are summed as they are. `is_aligned`: operands begin at multiples of 16 bytes. `data`: the
    number that the operands are made by; `inputs`: of the problem and that number, where normal
    numbers make no sense. `sizes`: norms of the terms of each result, where these may cancel.
    `l2_bytes`: of a cache that small tensors exceed, which some plans depend on; None for that of the device.
    """

    name: str
    algorithm: Any
    problem: Any
    epilogue: Epilogue | None
    multiprocessors: int
    plan: int
    alpha: float
    beta: float
    data: int
    is_exact: bool = True
    is_aligned: bool = True
    inputs: Callable[[Any, int], Sequence[Any]] | None = None
    sizes: Callable[[Case], Sequence[float]] | None = None
    l2_bytes: int | None = None

    def __str__(self) -> str:
        fused = f" epilogue {self.epilogue}" if self.epilogue else ""
        where = f"{self.multiprocessors} multiprocessors, plan {self.plan}"
        where += f", {self.l2_bytes} bytes of L2" if self.l2_bytes else ""
        scales = f"alpha {self.alpha}, beta {self.beta}{'' if self.is_aligned else ', any address'}"
        tensors = ", ".join(
            f"{o.name} {'x'.join(map(str, o.descriptor.shape))} strides {o.descriptor.strides}"
            for o in self.problem.operands
        )
        return f"{self.name}: {self.problem}{fused} ({tensors}; {where}; {scales})"

    def check(self, target: Any) -> tuple[Sequence[str], str | None]:
        """What was met, and the refusal if there is one. Raises Fault."""
        # a device of which nobody has made plans
        number = next(_DEVICES)
        facts = replace(target.gpu.facts, model=f"emulated {number}", multiprocessors=self.multiprocessors)
        facts = replace(facts, l2_bytes=self.l2_bytes or facts.l2_bytes)
        device = replace(target.gpu, name=f"emulated {number}", facts=facts)
        with any_plan(self.plan), _guards(_ALIGNED if self.is_aligned else _ODD):
            begin = time.process_time()
            reason = self.algorithm.refuse(self.problem, device, self.epilogue)
            seconds = 1.0 if reason else self.algorithm.estimate(self.problem, device, self.epilogue)
            spent = time.process_time() - begin
            if spent > _PLANNING_SECONDS:
                raise Fault("slow", f"{spent:.1f} s of processor to plan")
            if reason is not None:
                if not reason.strip():
                    raise Fault("raw", "refused without a word")
                return [f"refused by {self.name}"], reason
            if not 0 < seconds < np.inf:
                raise Fault("wrong", f"the estimate is {seconds} s")
            room = self.algorithm.workspace(self.problem, device, self.epilogue)
            kernel = self.algorithm.build(self.problem, device, self.epilogue)
            try:
                if self.is_exact and self.epilogue is None:
                    case = make_case(self.problem, None, self.data, whole_numbers(self.problem, self.data))
                    _compare_exactly(run(device, kernel, case, room), case)
                given = self.inputs(self.problem, self.data) if self.inputs else None
                case = make_case(self.problem, self.epilogue, self.data, given)
                if self.sizes:
                    case.scales = [max(pair) for pair in zip(case.scales, self.sizes(case), strict=True)]
                results = run(device, kernel, case, room, self.alpha, self.beta)
                compare(results, case, self.alpha, self.beta, self.algorithm.error_bound(self.problem))
            except AssertionError as error:
                kind = "outside" if "wrote" in str(error) else "wrong"
                raise Fault(kind, str(error)) from error
            return list(_met(self.name, self.algorithm, self.problem, device, self.epilogue)), None


@contextmanager
def _guards(elements: int) -> Iterator[None]:
    with patch.object(cases, "GUARD", elements):
        yield


def whole_numbers(problem: Any, seed: int) -> list[Any]:
    """From -2 to 2, more of them 0 the longer sums are."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, operand.descriptor.shape).astype(np.float64) for operand in problem.sources]


def _compare_exactly(actual: list[Any], case: Case) -> None:
    for operand, found, result in zip(case.problem.outputs, actual, case.results, strict=True):
        expected = rounded(result, found.dtype)
        same = (found == expected) | ((found != found) & (expected != expected))
        if same.all():
            continue
        wrong = np.argwhere(~same)
        first = tuple(int(n) for n in wrong[0])
        raise AssertionError(
            f"{operand.name}: {len(wrong)} of {found.size} results of whole numbers are not exact, "
            f"from {first} to {tuple(int(n) for n in wrong[-1])}: {found[first]!r}, must be {expected[first]!r}"
        )


def _met(name: str, algorithm: Any, problem: Any, device: Any, epilogue: Epilogue | None) -> Iterator[str]:
    """What a kernel is made of, in words."""
    yield f"kernel {name}"
    sizes = getattr(algorithm, "sizes", None)
    if sizes is None or not name.startswith("wgmma"):
        return
    plan = sizes(problem, device, epilogue) if not hasattr(problem, "convolution") else sizes(problem, device)
    if not isinstance(plan, Plan):
        return
    blocking = plan.blocking
    what = "filter" if plan.is_wgrad else "data"
    yield f"{what}: tile {blocking.tile}"
    yield f"{what}: {plan.phases} phases"
    yield f"{what}: rank {plan.rank}, rows of {plan.row_bytes} bytes, stages of {blocking.row}"
    flags = {
        "split": blocking.is_split, "clusters": blocking.tile.cluster > 1,
        "parts of equal length": blocking.sharers > 0,
        "B kept": blocking.keeps_b, "B kept of several tiles across": blocking.kept_across > 1,
        "results leave at once": blocking.leaves_at_once, "results in boxes": plan.is_in_boxes,
        "vectors": plan.is_vector, "packed": any(plan.packs), "pixels are columns": plan.pixels_are_columns,
        "pairs of phases": plan.is_paired, "taps share rows": blocking.lines.taps > 1, "ring": plan.takes_ring,
        "A lies across": plan.is_a_mn_major, "B lies across": plan.is_b_mn_major, "a segment": plan.segment > 0,
        f"{plan.dtypes[0]} to {plan.result}": True,
        "phases with a small L2": plan.phases > 1 and device.facts.l2_bytes < 1 << 20,
        "split with a small L2": blocking.is_split and device.facts.l2_bytes < 1 << 20,
        "asks for the next stages": plan.takes_ring and plan.tables.numbers[-1] > 0 and not plan.is_paired,
    }  # fmt: skip
    yield from (f"{what}: {flag}" for flag, is_met in flags.items() if is_met)


__all__ = ["KernelProblem"]
