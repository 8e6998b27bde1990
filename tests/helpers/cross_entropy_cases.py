"""What tests of cross-entropy share: problems from words, and inputs that have a meaning."""

from __future__ import annotations

import numpy as np

from cases import AnyArray, random_values
from jitdnn.problems import CrossEntropy, Problem, parse
from jitdnn.tensor import numpy_dtype


def cross_entropy(words: str, direction: str) -> Problem:
    return parse(f"cross_entropy_{direction} {words}" + (" save" if direction == "fwd" else ""))


def inputs_for(problem: Problem, seed: int = 0) -> list[AnyArray]:
    """Sources as they may be met: positive weights, probabilities that add up to 1, saved values that fit."""
    assert isinstance(problem, CrossEntropy)
    rng = np.random.default_rng(seed)
    values = {o.name: random_values(rng, o) for o in problem.sources}
    if "weight" in values:
        values["weight"] = np.abs(values["weight"]) + values["weight"].dtype.type(0.1)
    if problem.has_classes and 0 <= problem.ignore_index < problem.classes and values["target"].size > 1:
        values["target"].flat[0] = problem.ignore_index
        values["target"].flat[1:2] = (problem.ignore_index + 1) % problem.classes
    if not problem.has_classes:
        powers = np.exp(values["target"].astype(np.float64))
        values["target"] = (powers / powers.sum(axis=1, keepdims=True)).astype(numpy_dtype(problem.dtype))
    if problem.direction == "bwd":
        forward = CrossEntropy.make(
            "fwd", problem.x, problem.target, problem.reduction, problem.weight, problem.ignore_index,
            problem.smoothing, lse=True,
        )  # fmt: skip
        saved = forward.reference(*(values[o.name] for o in forward.sources))[1:]
        for name, result in zip(("lse", "total"), saved, strict=False):
            values[name] = result.astype(numpy_dtype(getattr(problem, name).dtype))
    return list(values.values())
