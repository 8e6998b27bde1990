"""The algorithm of last resort: every problem's own float64 definition, run as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Algorithm,
    Device,
    Epilogue,
    Kernel,
    storing_roundoff,
    terms,
)
from jitdnn.problems.problem import Problem
from jitdnn.tensor import FLOAT8_LARGEST, dtype_name, view

# The definitions are NumPy loops over float64 copies. Seen on one core: 2e9 operations a second where there
# are many to an output, 1e7 outputs a second where there are few, 1e8 elements copied to float64 and read again where
# there are few operations to each (6e7 where the sums go across rows), 0.3 ms for the smallest problem, and 30 us each
# time around a loop in Python, as for each element of a pooling window.
OPERATIONS_A_SECOND = 2e9
ELEMENTS_A_SECOND = 1e8
OUTPUTS_A_SECOND = 1e7
SECONDS_A_CALL = 3e-4
SECONDS_A_STATEMENT = 3e-5


def rounded(result: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Float64 numbers as kernels store them: rounded to the nearest, integers saturated (NaN is 0).

    What is beyond the range of a real type becomes infinity, of 8 bits its largest number.
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = np.nan_to_num(np.rint(result), nan=0.0)
        is_low, is_high = whole <= limits.min, whole >= limits.max
        inside = np.where(is_low | is_high, 0.0, whole).astype(dtype)
        return np.where(is_low, limits.min, np.where(is_high, limits.max, inside)).astype(dtype)
    most = FLOAT8_LARGEST.get(dtype_name(dtype) or "")
    if most is not None:
        result = np.clip(result, -most, most)
    with np.errstate(over="ignore"):
        return result.astype(dtype)


class _ReferenceKernel:
    def __init__(self, problem: Problem, epilogue: Epilogue | None) -> None:
        self.problem = problem
        self.epilogue = epilogue
        self.descriptors = [operand.descriptor for operand in problem.operands]
        self._is_source = [operand in problem.sources for operand in problem.operands]

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        count = len(self.descriptors)
        arrays = [view(*pair) for pair in zip(pointers[:count], self.descriptors, strict=True)]
        outputs = self.problem.outputs
        results = self.problem.reference(
            *(a for a, source in zip(arrays, self._is_source, strict=True) if source)
        )
        if self.epilogue is not None:
            operands = zip(pointers[count:], self.epilogue.operands, strict=True)
            fused = [view(*pair).astype(np.float64) for pair in operands]
            results = np.asarray(self.epilogue.expression.evaluate(results, *fused), np.float64)
        if len(outputs) == 1:
            results = (results,)
        for operand, output, result in zip(outputs, arrays[count - len(outputs) :], results, strict=True):
            result = np.asarray(result, np.float64)
            is_scaled = operand.role in ("in", "out")
            if is_scaled and alpha != 1.0:
                result = alpha * result
            if is_scaled and beta != 0.0:
                result = result + beta * output.astype(np.float64)
            output[...] = rounded(result, output.dtype)


class Reference(Algorithm):
    """Evaluate the problem's definition in float64 with NumPy, on the host.

    It takes every problem on every host device. It is slow, and its temporaries are NumPy's own: they are not
    part of the workspace.
    """

    name = "reference"
    problem = Problem
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return f"it runs in host memory, not on {device.target}" if targets.is_gpu(device.target) else None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        operations, outputs = problem.flops / OPERATIONS_A_SECOND, problem.output.size / OUTPUTS_A_SECOND
        copies = sum(operand.descriptor.size for operand in problem.sources) / ELEMENTS_A_SECOND
        return SECONDS_A_CALL + operations + copies + outputs + SECONDS_A_STATEMENT * (problem.statements - 1)

    def error_bound(self, problem: Problem) -> float:
        # the definition sums in float64, in an order that depends on the strides
        return 2.0 * storing_roundoff(problem) + UNIT_ROUNDOFF["f64"] * (4.0 + sqrt(terms(problem)))

    def arithmetic(self, problem: Problem) -> str:
        return "fp64"

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return _ReferenceKernel(problem, epilogue)


REFERENCE = Reference()
