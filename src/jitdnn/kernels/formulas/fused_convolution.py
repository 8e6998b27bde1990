"""Convolutions with a prologue and sums by channel as kernels one after the other, for any target.

    workspace:  [z, or y in the order of x][what the kernel of each step needs for itself]

z is what the convolution reads: activation(scale * x + shift), rounded to the type of x. The convolution is run by the
algorithm of the target that should be fastest, and sums are those of the results as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from jitdnn.kernels.algorithm import (
    STANDARD_ROUNDOFFS,
    STRICT_ROUNDOFFS,
    UNIT_ROUNDOFF,
    Algorithm,
    Device,
    Epilogue,
    Kernel,
    KernelAlgorithm,
    PlannedKernel,
    fastest,
    summation_bound,
    version_over,
)
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.kernels.formulas.reduce import own_program
from jitdnn.kernels.formulas.row_algorithms import RowGenerator, Step
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.rtcg.activations import activation
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides

_ALIGNMENT = 256
SUMS_WITHOUT_EPILOGUE = (
    "sums by channel are those of the convolution itself: with an epilogue they are not computed"
)
_SUMS = own_program((trace(lambda y: y), trace(lambda y: y * y)), ("add", "add"))


@lru_cache(64)
def prologue_expression(function: str, coef: float | None) -> Expression:
    """activation(x * scale + shift) as an expression of (x, scale, shift)."""
    known = activation(function, coef).forward

    def of(x: Any, scale: Any, shift: Any) -> Any:
        return known.of(x * scale + shift)

    return trace(of)


def spread(tensor: TensorDescriptor, shape: Sequence[int]) -> TensorDescriptor:
    """One number a channel with the shape of an (N, C, space) tensor."""
    for axis in (1,) * (len(shape) - 2):
        tensor = tensor.insert_axis(axis)
    return tensor.broadcast_to(tuple(shape))


@dataclass(frozen=True)
class _Steps:
    """The convolution that is run, the algorithm that runs it, and bytes: of z, and of each step's own workspace."""

    convolution: Convolution
    inner: Algorithm
    z_bytes: int
    workspace: int
    seconds: float


class _Kernels:
    """Prologue, convolution, sums."""

    def __init__(
        self,
        problem: FusedConvolution,
        prologue: Kernel | None,
        convolution: Kernel | None,
        sums: Kernel | None,
        room: int,
    ) -> None:
        self.prologue, self.convolution, self.sums = prologue, convolution, sums
        self._room = room
        self._inputs = len(problem.inputs)
        self._outputs = len(problem.outputs)

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        x, second, *parameters = pointers[: self._inputs]
        y, *sums = pointers[self._inputs : self._inputs + self._outputs]
        inner = workspace + self._room
        if self.prologue is not None:
            self.prologue(stream, (x, *parameters, workspace), 1.0, 0.0, 0)
            x = workspace
        if sums:  # neither alpha nor beta touches what is summed
            alpha, beta = 1.0, 0.0
        if self.convolution is not None:
            behind = pointers[self._inputs + self._outputs :]
            self.convolution(stream, (x, second, y, *behind), alpha, beta, inner)
        if self.sums is not None:
            self.sums(stream, (y, *sums), 1.0, 0.0, inner)


class SeparateKernels(KernelAlgorithm[FusedConvolution, Device]):
    """A pass over x, the convolution, and a pass over y.

    `math` is what the convolution may be computed in; without `is_exact` it may be by fewer multiplications, or
    products of parts of numbers, within standard accuracy.
    """

    problem = FusedConvolution

    def __init__(
        self,
        convolutions: dict[str, tuple[Algorithm, ...]],
        elementwise: ElementwiseGenerator,
        rows: RowGenerator,
        is_exact: bool = True,
        math: str = "fp32",
    ) -> None:
        """`convolutions`: those that may run the convolution, by direction."""
        self._convolutions, self._elementwise, self._rows = convolutions, elementwise, rows
        self._is_exact, self._math = is_exact, math
        others = (one for table in convolutions.values() for one in table)
        self.version = version_over(self.version, others)  # type: ignore[misc]
        self.name = "separate_kernels" + ("" if is_exact else "_fast" if math == "fp32" else f"_{math}")  # type: ignore[misc]
        self.has_exact_products = is_exact  # type: ignore[misc]
        self._steps: Any = lru_cache(256)(
            self._plan_of
        )  # devices have hashes, as far as typing knows not all

    def refusal(self, problem: FusedConvolution, device: Device, epilogue: Epilogue | None) -> str | None:
        if epilogue is not None and problem.has_sums:
            return SUMS_WITHOUT_EPILOGUE
        if not self._is_exact and problem.dtype != "f32":
            return (
                f"it saves multiplications of f32, not of {problem.dtype}: separate_kernels takes every type"
            )
        if self._steps(problem, device, epilogue) is None:
            return f"no algorithm takes {problem.convolution}"
        return None

    def arithmetic(self, problem: Any) -> str:
        return "fp64" if problem.dtype == "f64" else self._math

    def error_of(self, problem: FusedConvolution) -> float:
        return self._inner_error(problem) + self._own_error(problem)

    @staticmethod
    def _stored_unit(problem: FusedConvolution) -> float:
        """The coarsest rounding on the way: z is stored as x is, and sums are of a y that was stored."""
        stored = [problem.dtype]
        stored += [problem.convolution.x.dtype] if problem.has_prologue else []
        stored += [problem.convolution.y.dtype] if problem.has_sums else []
        return max(UNIT_ROUNDOFF[dtype] for dtype in stored)

    def _own_error(self, problem: FusedConvolution) -> float:
        """Of the prologue, z as it is stored, and sums of a y that was stored."""
        return (2.0 + self._elementwise.function_error) * self._stored_unit(problem)

    def _inner_error(self, problem: FusedConvolution) -> float:
        """The error that the convolution may declare: with that around it, what the accuracy allows."""
        unit = max(self._stored_unit(problem), 2.0**-11 if self._math == "tf32" else 0.0)
        whole = (STRICT_ROUNDOFFS if self._is_exact else STANDARD_ROUNDOFFS) * unit
        return max(summation_bound(problem.convolution), whole - self._own_error(problem))

    def spreads_to(self, problem: FusedConvolution, device: Device, epilogue: Epilogue | None) -> str | None:
        steps = self._steps(problem, device, epilogue)
        return steps.inner.spreads(steps.convolution, device, epilogue) if steps else None

    def plan(self, problem: FusedConvolution, device: Device, epilogue: Epilogue | None) -> PlannedKernel:
        steps = self._steps(problem, device, epilogue)
        assert steps is not None, problem
        return PlannedKernel(
            steps.workspace, steps.seconds, lambda: self._build(problem, steps, device, epilogue)
        )

    def _plan_of(self, problem: FusedConvolution, device: Device, epilogue: Epilogue | None) -> _Steps | None:
        own = problem.convolution
        z_bytes, seconds = 0, 0.0
        if problem.has_prologue and own.x.size:
            x = own.x
            own = replace(own, x=TensorDescriptor(x.shape, packed_strides(x.shape, x.order), x.dtype))
            z_bytes = -(-own.x.nbytes // _ALIGNMENT) * _ALIGNMENT
            seconds = self._elementwise.estimate(
                self._expression(problem), self._tensors(problem, own), device
            )
        inner = fastest(
            self._convolutions[own.direction],
            own,
            device,
            epilogue,
            lambda other: self._takes(other, problem, own),
        )
        if inner is None:
            return None
        room = inner.workspace(own, device, epilogue)
        seconds += inner.estimate(own, device, epilogue)
        if problem.has_sums:
            kernel = self._rows.kernel(self._sums(problem), device)
            room, seconds = max(room, kernel.workspace()), seconds + kernel.estimate()
        return _Steps(own, inner, z_bytes, z_bytes + room, seconds)

    def _takes(self, other: Algorithm, problem: FusedConvolution, own: Convolution) -> bool:
        if other.error_bound(own) > self._inner_error(problem) or not other.deterministic:
            return False
        if self._is_exact and not other.has_exact_products:
            return False
        return other.arithmetic(own) != "tf32" or self._math == "tf32"

    @staticmethod
    def _expression(problem: FusedConvolution) -> Expression:
        return prologue_expression(problem.activation, problem.coef)

    @staticmethod
    def _tensors(problem: FusedConvolution, own: Convolution) -> list[TensorDescriptor]:
        """Of the prologue: x, scale, shift, z."""
        assert problem.scale is not None
        assert problem.shift is not None
        x = problem.convolution.x
        return [x, spread(problem.scale, x.shape), spread(problem.shift, x.shape), own.x]

    @staticmethod
    def _sums(problem: FusedConvolution) -> Step:
        """The pass over y: a row is all that has one channel, or one channel of one image."""
        y = problem.convolution.y
        axes = (*(() if problem.is_by_image else (0,)), *range(2, len(y.shape)))
        tensors = [y]
        for tensor in (problem.sums, problem.squares):
            assert tensor is not None
            for axis in axes:
                tensor = tensor.insert_axis(axis)
            tensors.append(tensor)
        return Step(_SUMS, tuple(tensors), axes, plain=(0, 1))

    def _build(
        self, problem: FusedConvolution, steps: _Steps, device: Device, epilogue: Epilogue | None
    ) -> Kernel:
        prologue = None
        if problem.has_prologue and steps.convolution.x.size:
            prologue = self._elementwise.build(
                self._expression(problem), self._tensors(problem, steps.convolution), device,
                computing=compute_dtype(problem.dtype),
            )  # fmt: skip
        convolution = steps.inner.build(steps.convolution, device, epilogue) if problem.output.size else None
        sums = self._rows.kernel(self._sums(problem), device).build() if problem.has_sums else None
        return _Kernels(problem, prologue, convolution, sums, steps.z_bytes)
