"""What the tests of the normalizations share: inputs that have a meaning, orders in memory, rows that cancel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cases import ARRANGEMENTS, make_case
from jitdnn.problems import parse
from jitdnn.problems.normalization import Normalization
from jitdnn.tensor import TensorDescriptor, numpy_dtype

AnyArray = np.ndarray[Any, Any]


def normalization(text: str) -> Normalization:
    problem = parse(text)
    assert isinstance(problem, Normalization)
    return problem


def inputs_of(problem: Normalization, seed: int = 0, mean: float = 0.0) -> list[AnyArray]:
    """Normal numbers, x's around `mean`; variances and rstd are positive."""
    rng, arrays = np.random.default_rng(seed), []
    for operand in problem.sources:
        shape, dtype = operand.descriptor.shape, numpy_dtype(operand.descriptor.dtype)
        if operand.name in ("running_var", "rstd"):
            values = rng.uniform(0.5, 2.0, shape)
        else:
            values = rng.standard_normal(shape) + (
                mean if operand.name in ("x", "mean", "running_mean") else 0.0
            )
        arrays.append(values.astype(dtype))
    return arrays


def check_it(problem: Normalization, **options: Any) -> set[str]:
    """`check` with inputs that have a meaning."""
    from conformance import check

    return check(problem, inputs=inputs_of(problem), **options)


def rearranged(problem: Normalization, arrangement: str) -> Normalization:
    """All tensors in that order of memory; where elements are shared, only those that are read."""
    is_shared = arrangement in ("repeated", "overlapping")
    outputs = {operand.name for operand in problem.outputs}
    changed = {}
    for operand in problem.operands:
        tensor = operand.descriptor
        order = "gaps" if is_shared and operand.name in outputs else arrangement
        changed[operand.name] = TensorDescriptor(
            tensor.shape, ARRANGEMENTS[order](tensor.shape), tensor.dtype
        )
    return replace(problem, **changed)  # type: ignore[arg-type]


def everything(problem: Normalization, arrays: list[AnyArray], threads: int = 1) -> dict[str, list[AnyArray]]:
    """All outputs of every algorithm but the reference, and under "reference" those of the definition."""
    from conformance import accepting, run
    from jitdnn.devices.cpu import host

    case, device = make_case(problem, given=arrays), host(threads)
    found = {"reference": case.results}
    for algorithm in accepting(problem, device):
        if algorithm.name != "reference":
            found[algorithm.name] = run(
                algorithm.build(problem, device), case, algorithm.workspace(problem, device)
            )
    return found
