"""Algorithms that are programs over rows and nothing else, for the generator of any target.

A `Step` is a program over tensors: one kernel. A `RowPlan` has the steps of a problem in order, and the arrays that
they leave for each other in the workspace:

    workspace:  [array 0][array 1]...[what the kernel of a step needs for itself]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from jitdnn.errors import InvalidShape
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel, OwnProblem, PlannedAlgorithm
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype


@dataclass(frozen=True)
class Step:
    """A program over tensors, inputs first, then outputs, each broadcast to one shape.

    Tensors may have extent 1 where others have more; row outputs must, or stride 0, along the reduced `axes`. `plain`:
    outputs (by position among them) that alpha and beta do not touch. `operands`: the number of each tensor's pointer
    (in order if None); a state is an input and an output of one number. `compute`: "f32" or "f64" to compute in, by
    default what the tensors' dtypes ask for. `vectors_over`: "elements" asks for vectors of elements of a row, "rows"
    for vectors of many rows, where a target has the choice.

    An output may be the very tensor of an input that has every element of the row: elements are read before they are
    written.
    """

    program: Program
    tensors: tuple[TensorDescriptor, ...]
    axes: tuple[int, ...]
    plain: tuple[int, ...] = ()
    operands: tuple[int, ...] | None = None
    compute: str | None = None
    vectors_over: str | None = None

    @property
    def inputs(self) -> int:
        return len(self.tensors) - self.program.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all tensors broadcast to. Raises InvalidShape."""
        ranks = {len(tensor.shape) for tensor in self.tensors}
        if len(ranks) != 1:
            raise InvalidShape(f"tensors of {sorted(ranks)} dimensions: all must have as many")
        shape = []
        for extents in zip(*(tensor.shape for tensor in self.tensors), strict=True):
            others = {extent for extent in extents if extent != 1} or {1}
            if len(others) > 1:
                raise InvalidShape(f"extents {extents} of one axis: each must be 1 or that of the others")
            shape.append(others.pop())
        return tuple(shape)

    @property
    def computing(self) -> str:
        """The type of the arithmetic: outputs of integers, such as positions, do not decide it."""
        inputs, outputs = self.tensors[: self.inputs], self.tensors[self.inputs :]
        dtypes = [*(t.dtype for t in inputs), *(t.dtype for t in outputs if t.dtype in REAL_DTYPES)]
        return self.compute or compute_dtype(*dtypes)

    def shortened(self, axis: int, extent: int) -> Step:
        """The step over so many indices of an axis."""
        return replace(self, tensors=tuple(shortened(tensor, {axis: extent}) for tensor in self.tensors))


def shortened(tensor: TensorDescriptor, extents: Mapping[int, int]) -> TensorDescriptor:
    """The tensor with other extents of some axes."""
    shape = tuple(extents.get(axis, extent) for axis, extent in enumerate(tensor.shape))
    return TensorDescriptor(shape, tensor.strides, tensor.dtype)


class RowKernel(Protocol):
    """What a target makes of a step."""

    def workspace(self) -> int:
        """Bytes for results of parts of rows."""

    def estimate(self) -> float:
        """Expected seconds."""

    def build(self) -> Kernel:
        """Make the kernel."""


class RowGenerator(Protocol):
    """What makes kernels of programs over rows for a target."""

    name: str
    """The name of algorithms that are programs over rows."""
    has_joint: bool
    """Whether it knows the reductions "moments" and "powers"."""

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        """Why a device cannot run programs over such tensors; None if it can."""

    def prefers_joint(self, step: Step, device: Device) -> bool:
        """Whether joint reductions are faster because each pass reads the rows from memory."""

    def kernel(self, step: Step, device: Device, pointers: int | None = None, pieces: int = 1) -> RowKernel:
        """The kernel of a step.

        It takes so many `pointers`, by default one for each tensor. `pieces`: of how many such calls this is one, all
        with large tensors between them.
        """


class RowPlan:
    """How a problem is done: steps, and the arrays that they leave for each other.

    With `cut` = (axis, extent) the tensors are worked through in pieces of so many indices of an axis that no step sums
    over: all steps for one piece, while it is in the cache, then for the next. Steps that are `last` follow over all.
    """

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = list(steps)
        self.last: list[Step] = []
        self.cut: tuple[int, int] | None = None
        self.tensors: dict[int, TensorDescriptor] = {}  # by the number of the pointer
        self.pointers: int | None = None
        self.offsets: list[
            int
        ] = []  # of the arrays in the workspace; their pointers follow those of the operands
        self.room = 0  # bytes of all arrays

    def pieces(self) -> Iterator[tuple[int, list[Step]]]:
        """Where each piece begins, and its steps."""
        if self.cut is None:
            yield 0, self.steps
            return
        axis, extent = self.cut
        whole = self.steps[0].tensors[0].shape[axis]
        for start in range(0, whole, extent):
            yield start, [step.shortened(axis, min(extent, whole - start)) for step in self.steps]

    @property
    def is_single(self) -> bool:
        """Whether the kernel of the only step is that of the problem."""
        return len(self.steps) == 1 and not self.last and self.cut is None and not self.offsets


class Chain:
    """Kernels one after the other, which share pointers, and arrays between them in the workspace.

    Each piece is (index of the axis that is cut, kernels): the kernels run with all pointers moved there. `steps` are
    the bytes from one index of that axis to the next, for each pointer.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[int, Sequence[Kernel]]],
        steps: Sequence[int],
        offsets: Sequence[int],
        room: int,
    ) -> None:
        self.pieces, self.steps, self.offsets, self.room = pieces, steps, offsets, room

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self.offsets))
        workspace += self.room
        for index, kernels in self.pieces:
            here = [p + index * step for p, step in zip(every, self.steps, strict=True)] if index else every
            for kernel in kernels:
                kernel(stream, here, alpha, beta, workspace)

    def several(self, pointers: int) -> list[tuple[Kernel, tuple[tuple[int, int], ...], int]]:
        """The kernels of a call with so many pointers: each with the places of its own, (one of the call's, or -1 for
        the workspace, and bytes from there), and where its workspace begins."""
        every = [*((number, 0) for number in range(pointers)), *((-1, offset) for offset in self.offsets)]
        return [
            (
                kernel,
                tuple((of, at + index * step) for (of, at), step in zip(every, self.steps, strict=True)),
                self.room,
            )
            for index, kernels in self.pieces
            for kernel in kernels
        ]


class RowAlgorithm(PlannedAlgorithm[OwnProblem, RowPlan, Device]):
    """An algorithm of which only the programs differ from others: a subclass makes the plan."""

    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"
    own_name: ClassVar[str | None] = None
    """The name on every target, if it is not that of the generator."""

    def __init__(self, generator: RowGenerator) -> None:
        self.generator = generator
        self.name = self.own_name or generator.name  # type: ignore[misc]  # one name in each table

    def refusal(self, problem: OwnProblem, device: Device, epilogue: Epilogue | None) -> str | None:
        return self.generator.refuse([operand.descriptor for operand in problem.operands], device)

    def workspace_of(self, plan: RowPlan, device: Device) -> int:
        steps = {step for _, steps in plan.pieces() for step in steps} | {*plan.last}
        needs = (self.generator.kernel(step, device).workspace() for step in steps)
        return plan.room + max(needs, default=0)

    def seconds_of(self, plan: RowPlan, device: Device) -> float:
        return sum(self.generator.kernel(step, device).estimate() for step in (*plan.steps, *plan.last))

    def kernel_of(self, plan: RowPlan, device: Device) -> Kernel:
        if plan.is_single:
            return self.generator.kernel(plan.steps[0], device, plan.pointers).build()
        pieces = list(plan.pieces())
        built: dict[int, list[Kernel]] = {}  # by the extent of a piece
        chain: list[tuple[int, Sequence[Kernel]]] = []
        for start, steps in pieces:
            extent = steps[0].tensors[0].shape[plan.cut[0]] if plan.cut else 0
            if extent not in built:
                built[extent] = [self._built(step, device, plan, len(pieces)) for step in steps]
            chain.append((start, built[extent]))
        chain.append((0, [self._built(step, device, plan) for step in plan.last]))
        bytes_between = [0] * (plan.pointers or 0)
        if plan.cut:
            for number, tensor in plan.tensors.items():
                bytes_between[number] = tensor.strides[plan.cut[0]] * DTYPES[tensor.dtype]
        return Chain(chain, bytes_between, plan.offsets, plan.room)

    def _built(self, step: Step, device: Device, plan: RowPlan, pieces: int = 1) -> Kernel:
        return self.generator.kernel(step, device, plan.pointers, pieces).build()
