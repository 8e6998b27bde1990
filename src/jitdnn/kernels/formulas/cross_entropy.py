"""Cross-entropy as programs over rows of classes: one or two passes over the scores forward, one backward.

    top = max(x)
    sum(exp(x - top)), x_t = sum(x where c = t), and w_t, sum(w), sum(w x) as weights and smoothing ask for them
    loss of the row; then, for a sum or a mean, a second kernel adds the losses of all rows

A class is compared with the number of every element of its row and never used as an address. dx is written in the
only pass over x; what it needs of weights and probabilities is summed before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue
from jitdnn.kernels.formulas.named_programs import Formula, NamedPlan, Names, Rows
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm
from jitdnn.problems.cross_entropy import CrossEntropy, rows_shape
from jitdnn.rtcg.expression import apply, where
from jitdnn.tensor import TensorDescriptor, compute_dtype

_SHORTEST = 12  # neighbours in a row that are worth a vector
_EXACT = 2**24  # classes from here on are not all numbers of f32


class CrossEntropyPlan(NamedPlan):
    """A plan whose tensors have the axes of x.

    `has_powers`: the target has the reduction "powers"; else the greatest score takes a pass of its own.
    """

    def __init__(self, problem: CrossEntropy, has_powers: bool) -> None:
        operands = problem.operands
        super().__init__(operands, {o.name: _on_rows(problem, o.name, o.descriptor) for o in operands})
        self.problem, self.has_powers = problem, has_powers
        self.real = compute_dtype(problem.dtype)

    def array(self, name: str) -> None:
        """One number a row, between steps."""
        rows = TensorDescriptor.packed(rows_shape(self.problem.x.shape), self.real)
        self.add_array(name, rows, rows.insert_axis(1))

    def classes_step(self, rows: Rows, row_outputs: Mapping[str, str]) -> None:
        """A step over the rows of classes."""
        problem = self.problem
        # short rows of neighbours: even a part of a vector at a time is faster than gathering
        is_short = problem.x.strides[1] == 1 and problem.classes >= _SHORTEST
        self.step(rows, row_outputs, (1,), self.real, vectors_over="elements" if is_short else None)


class RowCrossEntropy(RowAlgorithm[CrossEntropy]):
    """Passes over the rows of classes, of any strides; the losses of all rows are added by a second kernel."""

    problem = CrossEntropy
    takes_no_epilogue = "cross_entropy takes no epilogue"

    def refusal(self, problem: CrossEntropy, device: Device, epilogue: Epilogue | None) -> str | None:
        return super().refusal(problem, device, epilogue) or refusal(problem)

    def plan(self, problem: CrossEntropy, device: Device, epilogue: Epilogue | None) -> CrossEntropyPlan:
        return plan_of(problem, self.generator.has_joint)

    def error_of(self, problem: CrossEntropy) -> float:
        return error_bound_of(problem)


def refusal(problem: CrossEntropy) -> str | None:
    """What the programs cannot do."""
    if problem.classes >= _EXACT and compute_dtype(problem.dtype) == "f32":
        return f"{problem.classes} classes: from {_EXACT} on they are not all told apart in f32"
    return None


def error_bound_of(problem: CrossEntropy) -> float:
    """Exponentials, and the roundings of a sum over the classes."""
    own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    return 2.0 * own + computing * (40.0 + math.sqrt(problem.classes))


def _on_rows(problem: CrossEntropy, name: str, tensor: TensorDescriptor) -> TensorDescriptor:
    """A tensor with the axes of x, of extent 1 where it has none."""
    rank = len(problem.x.shape)
    if name == "weight":
        shape = (1, problem.classes, *(1,) * (rank - 2))
        return TensorDescriptor(
            shape, tuple(tensor.strides[0] * (axis == 1) for axis in range(rank)), tensor.dtype
        )
    if (
        tensor.shape == (1,)
        and name in ("loss", "dloss", "total")
        and (name == "total" or problem.reduction != "none")
    ):
        return TensorDescriptor((1,) * rank, (0,) * rank, tensor.dtype)
    if name in ("x", "dx") or (name == "target" and not problem.has_classes):
        return tensor
    strides = (tensor.strides[0], 0, *tensor.strides[1:])
    return TensorDescriptor((tensor.shape[0], 1, *tensor.shape[1:]), strides, tensor.dtype)


def plan_of(problem: CrossEntropy, has_powers: bool = False) -> CrossEntropyPlan:
    """The steps for a problem of either direction."""
    plan = CrossEntropyPlan(problem, has_powers)
    (_forward if problem.direction == "fwd" else _backward)(plan)
    return plan


def _is_target(v: Names) -> Any:
    return v.position == v.target


def _row_class(problem: CrossEntropy, value: Any, label: Any, ignored: float) -> Any:
    """The value of a row by its class: of those to be ignored, and NaN where there is no such class."""
    known = (label >= 0.0) & (label < float(problem.classes))
    return where(label == float(problem.ignore_index), ignored, where(known, value, math.nan))


def _smoothed(problem: CrossEntropy, v: Names) -> Any:
    """w_c q_c for probabilities."""
    e = problem.smoothing
    q = v.target if e == 0.0 else v.target * (1.0 - e) + e / problem.classes
    return q * v.weight if "weight" in v else q


def _class_sums(problem: CrossEntropy) -> dict[str, Formula]:
    """Sums over the weights that a row with a class needs."""
    sums: dict[str, Formula] = {}
    if problem.weight is not None:
        sums["own"] = lambda v: where(_is_target(v), v.weight, 0.0)
        if problem.smoothing:
            sums["all"] = lambda v: v.weight
    return sums


def _mass(problem: CrossEntropy, v: Names) -> Any:
    """a: the sum of b over a row with a class."""
    e = problem.smoothing
    own = v.own if "own" in v else 1.0
    if e == 0.0:
        return own
    every = v.all if "all" in v else float(problem.classes)
    return own * (1.0 - e) + every * (e / problem.classes)


def _forward(plan: CrossEntropyPlan) -> None:
    problem = plan.problem
    e, classes = problem.smoothing, problem.classes
    names = [o.name for o in problem.inputs]
    is_kept = problem.reduction == "none"
    outputs = ["loss"] if is_kept else ["losses"]
    if not is_kept:
        plan.array("losses")
    is_shared = problem.reduction == "mean" and problem.has_classes
    if is_shared:
        plan.array("shares")
        outputs.append("shares")
    outputs += ["lse"] if problem.lse is not None else []
    rows = Rows(names, outputs, position=problem.has_classes)
    first: dict[str, Formula] = {"label": lambda v: v.target} if problem.has_classes else {}
    joint: dict[tuple[str, str, str], Formula] = {}
    sums: dict[str, Formula] = {}
    if plan.has_powers:
        joint["powers", "top", "powers"] = lambda v: v.x
    else:
        rows.add_pass(first=first, most={"top": lambda v: v.x})
        first = {}
        sums["powers"] = lambda v: apply("exp", v.x - v.top)
    scalars: dict[str, Formula] = {"logs": lambda v: v.top + apply("log", v.powers)}
    if problem.has_classes:
        sums |= {"picked": lambda v: where(_is_target(v), v.x, 0.0), **_class_sums(problem)}
        if e:
            sums["moment"] = lambda v: v.x * v.weight if "weight" in v else v.x

        def loss(v: Names) -> Any:
            own = v.own if "own" in v else 1.0
            value = (v.logs - v.picked) * own
            if e:
                every = v.all if "all" in v else float(classes)
                value = value * (1.0 - e) + (v.logs * every - v.moment) * (e / classes)
            return _row_class(problem, value, v.label, 0.0)

        scalars["result"] = loss
        if is_shared:
            own: Formula = lambda v: v.own if "own" in v else 1.0  # noqa: E731
            scalars["share"] = lambda v: where(v.label == float(problem.ignore_index), 0.0, own(v))
    else:
        sums |= {"mass": lambda v: _smoothed(problem, v), "moment": lambda v: _smoothed(problem, v) * v.x}
        scalars["result"] = lambda v: v.logs * v.mass - v.moment
    rows.add_pass(first=first, add=sums, scalars=scalars, joint=joint)
    values = {outputs[0]: "result"} | ({"shares": "share"} if is_shared else {})
    plan.classes_step(rows, values | ({"lse": "logs"} if problem.lse is not None else {}))
    if not is_kept:
        _reduce(plan, is_shared)


def _reduce(plan: CrossEntropyPlan, is_shared: bool) -> None:
    """The sum or the mean of all losses."""
    problem = plan.problem
    count = 1
    for extent in rows_shape(problem.x.shape):
        count *= extent
    is_mean = problem.reduction == "mean"
    inputs = ["losses", "shares"] if is_shared else ["losses"]
    outputs = ["loss", "total"] if is_shared and problem.total is not None else ["loss"]
    # no rows have no mean: 0 / 0
    rows = Rows(inputs, outputs, {"rows": float(count)})
    sums: dict[str, Formula] = {"sum": lambda v: v.losses}
    if is_shared:
        sums["share"] = lambda v: v.shares
    result: Formula = lambda v: v.sum  # noqa: E731
    if is_mean:
        result = lambda v: v.sum / (v.share if "share" in v else v.rows)  # noqa: E731
    rows.add_pass(add=sums, scalars={"result": result})
    values = {"loss": "result"} | ({"total": "share"} if "total" in outputs else {})
    plan.step(rows, values, tuple(range(len(problem.x.shape))), plan.real)


def _backward(plan: CrossEntropyPlan) -> None:
    problem = plan.problem
    e, classes = problem.smoothing, problem.classes
    count = 1
    for extent in rows_shape(problem.x.shape):
        count *= extent
    rows = Rows([o.name for o in problem.inputs], ["dx"], {"rows": float(max(1, count))}, problem.has_classes)
    first: dict[str, Formula] = {"given": lambda v: v.dloss, "logs": lambda v: v.lse}
    if problem.total is not None:
        first["shares"] = lambda v: v.total
    sums: dict[str, Formula]
    if problem.has_classes:
        first["label"] = lambda v: v.target
        sums = _class_sums(problem)
    else:
        sums = {"mass": lambda v: _smoothed(problem, v)}

    def slope(v: Names) -> Any:
        value = v.given
        if problem.reduction == "mean":
            value = value / (v.shares if "shares" in v else v.rows)
        return _row_class(problem, value, v.label, 0.0) if problem.has_classes else value

    scalars: dict[str, Formula] = {"slope": slope}
    if problem.has_classes:
        # what is ignored gives 0 even where its slope is 0 / 0
        scalars["high"] = lambda v: v.slope * _mass(problem, v)
        own: Formula = lambda v: v.own if "own" in v else 1.0  # noqa: E731
        scalars["step"] = lambda v: v.slope * own(v) * (1.0 - e)
        scalars["rest"] = lambda v: v.slope * (e / classes)
    else:
        scalars["high"] = lambda v: v.slope * v.mass
    rows.add_pass(first=first, add=sums, scalars=scalars)

    def dx(v: Names) -> Any:
        value = v.high * apply("exp", v.x - v.logs)
        if not problem.has_classes:
            return value - v.slope * _smoothed(problem, v)
        value = value - where(_is_target(v), v.step, 0.0)
        if e:
            value = value - (v.rest * v.weight if "weight" in v else v.rest)
        return value

    rows.add_pass(writes={"dx": dx})
    plan.classes_step(rows, {})
