"""Copies into other layouts, with borders, folded or joined: elementwise loops over parts of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.formulas.transform import Part, build_parts, concatenate_parts, transform_parts
from jitdnn.kernels.gpu.elementwise.generator import (
    build_elementwise,
    estimate_elementwise,
    refuse_elementwise,
)
from jitdnn.problems.problem import Problem
from jitdnn.problems.transform import Concatenate, Transform


class _Parts(Algorithm):
    name = "elementwise"
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "copies take no epilogue: use jd.elementwise instead"
        return refuse_elementwise([operand.descriptor for operand in problem.operands], device)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        parts = [part for part in self._parts(problem) if part[1][-1][1].size]
        return 1e-7 + sum(estimate_elementwise(e, [d for _, d in tensors], device) for e, tensors in parts)

    def error_bound(self, problem: Problem) -> float:
        return 2.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        return build_parts(
            self._parts(problem),
            lambda expression, tensors, computing: build_elementwise(
                expression, tensors, device, computing=computing
            ),
        )

    def _parts(self, problem: Problem) -> Iterator[Part]:
        raise NotImplementedError


class CopyTransform(_Parts):
    """One pass over the elements, and one over each side of the border."""

    problem = Transform

    def _parts(self, problem: Problem) -> Iterator[Part]:
        return transform_parts(cast(Transform, problem))


class CopyConcatenate(_Parts):
    """One pass over each part."""

    problem = Concatenate

    def _parts(self, problem: Problem) -> Iterator[Part]:
        return concatenate_parts(cast(Concatenate, problem))
