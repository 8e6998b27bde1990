"""Programs over rows written with names for numbers, and kernels of several such programs in a chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.devices.cpu import CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.sweeps import build_sweeps, estimate_sweeps, workspace_sweeps
from jitdnn.kernels.row_programs import Program, Sweep
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.expression import Expression, Graph, Traced
from jitdnn.tensor import DTYPES, TensorDescriptor

Formula = Callable[["Names"], Any]


class Names:
    """The numbers that a formula may use, by name."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self._graph, self._names = graph, names

    def __getattr__(self, name: str) -> Traced:
        return self._graph.input(self._names.index(name))

    def __contains__(self, name: str) -> bool:
        return name in self._names


class Rows:
    """A program that is being written, with names for inputs, outputs and the values of a row."""

    def __init__(
        self, inputs: Sequence[str], outputs: Sequence[str], parameters: Mapping[str, float] | None = None,
        position: bool = False,
    ) -> None:  # fmt: skip
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.position = position  # elements know their place in the row, by this name
        self.parameters = dict(parameters or {})
        self.values = list(self.parameters)
        self.sweeps: list[Sweep] = []

    def sweep(
        self,
        first: Mapping[str, Formula] | None = None,
        add: Mapping[str, Formula] | None = None,
        scalars: Mapping[str, Formula] | None = None,
        writes: Mapping[str, Formula] | None = None,
        most: Mapping[str, Formula] | None = None,
    ) -> None:
        """One more sweep: values of the first element, sums, maxima (`most`), numbers made of them, and elements to
        write."""
        before = [*self.inputs, *(["position"] if self.position else []), *self.values]
        reductions = []
        for kind, formulas in (("first", first or {}), ("add", add or {}), ("max", most or {})):
            for name, formula in formulas.items():
                reductions.append((kind, _traced(before, formula)))
                self.values.append(name)
        made = []
        for name, formula in (scalars or {}).items():
            made.append(_traced(self.values, formula))
            self.values.append(name)
        written = [(self.outputs.index(name), _traced(before, f)) for name, f in (writes or {}).items()]
        self.sweeps.append(Sweep(tuple(reductions), tuple(made), tuple(written)))

    def program(self, row_outputs: Mapping[str, str]) -> Program:
        """The program; `row_outputs` says which value of the row is written to which output."""
        rows = tuple(
            (self.outputs.index(name), self.values.index(value)) for name, value in row_outputs.items()
        )
        return Program(tuple(self.sweeps), rows, tuple(self.parameters.values()), self.position)


def _traced(names: Sequence[str], formula: Formula) -> Expression:
    graph = Graph(tuple(names))
    return graph.finish(graph.lift(formula(Names(graph, names))))


@dataclass(frozen=True)
class Step:
    """One kernel of a chain: a program over these tensors, which are numbered by `operands`."""

    program: Program
    tensors: tuple[TensorDescriptor, ...]
    operands: tuple[int, ...]
    axes: tuple[int, ...]
    plain: tuple[int, ...] = ()
    compute: str | None = None

    def build(self, device: Device, pointers: int, pieces: int = 1) -> CpuKernel:
        return build_sweeps(
            self.program, self.tensors, self.axes, device, self.plain, self.operands, pointers, self.compute,
            pieces=pieces,
        )  # fmt: skip

    def shortened(self, axis: int, extent: int) -> Step:
        """The step over so many indices of an axis."""
        tensors = tuple(_shortened(tensor, {axis: extent}) for tensor in self.tensors)
        return replace(self, tensors=tensors)

    def estimate(self, device: Device) -> float:
        return estimate_sweeps(self.program, self.tensors, self.axes, device, self.compute)

    def workspace(self, device: Device) -> int:
        return workspace_sweeps(self.program, self.tensors, self.axes, device, self.compute)


class Chain:
    """Kernels one after the other, which share pointers, and arrays between them in the workspace.

    Each entry of `turns` is (indices of the axis that is cut to go back by, kernels): the kernels run with all
    pointers moved there. `moves` are the bytes from one index of that axis to the next, for each pointer.
    """

    def __init__(
        self,
        turns: Sequence[tuple[int, Sequence[CpuKernel]]],
        moves: Sequence[int],
        arrays: Sequence[int],
        start: int,
    ) -> None:
        self._turns, self._moves, self._arrays, self._start = turns, moves, arrays, start

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self._arrays))
        workspace += self._start
        for index, kernels in self._turns:
            here = [p + index * move for p, move in zip(every, self._moves, strict=True)] if index else every
            for kernel in kernels:
                kernel(stream, here, alpha, beta, workspace)


class Plan:
    """How a problem is done: steps, and the arrays that they leave for each other.

    With `cut` = (axis, extent) the grid is done in pieces of so many indices of an axis that no step sums over: all
    steps for one piece, while it is in the cache, then for the next. Steps that are `last` follow over all of it.
    """

    def __init__(self, problem: Normalization) -> None:
        self.problem = problem
        self.steps: list[Step] = []
        self.last: list[Step] = []
        self.cut: tuple[int, int] | None = None
        self.numbers = {operand.name: n for n, operand in enumerate(problem.operands)}
        self.tensors = {name: problem.on_grid(name) for name in self.numbers}
        self.offsets: list[int] = []
        self.pointers = len(self.numbers)
        self.room = 0

    def array(self, name: str, same: Sequence[int], dtype: str | None = None) -> None:
        """An array between steps, on the grid, of one number where the axes `same` are counted as one."""
        grid = self.problem.grid
        packed = TensorDescriptor.packed(
            [1 if a in same else n for a, n in enumerate(grid)], dtype or self.problem.statistic_dtype
        )
        self.numbers[name] = self.pointers
        self.pointers += 1
        self.tensors[name] = packed.broadcast_to(grid)
        self.offsets.append(self.room)
        self.room += -(-packed.nbytes // 64) * 64

    def alias(self, name: str, other: str) -> None:
        """Another name for a tensor."""
        self.numbers[name], self.tensors[name] = self.numbers[other], self.tensors[other]

    def step(
        self,
        rows: Rows,
        row_outputs: Mapping[str, str],
        axes: Sequence[int],
        compute: str | None = None,
        single: Sequence[int] = (),
        is_last: bool = False,
    ) -> None:
        """Add a step of the program `rows` over the tensors of its names, at index 0 of the axes `single`."""
        roles = {operand.name: operand.role for operand in self.problem.operands}
        names = (*rows.inputs, *rows.outputs)
        plain = [n for n, name in enumerate(rows.outputs) if roles.get(name, "saved") in ("saved", "state")]
        tensors = tuple(_shortened(self.tensors[name], dict.fromkeys(single, 1)) for name in names)
        numbers = tuple(self.numbers[name] for name in names)
        step = Step(rows.program(row_outputs), tensors, numbers, tuple(axes), tuple(plain), compute)
        (self.last if is_last else self.steps).append(step)

    def build(self, device: Device) -> Chain | CpuKernel:
        if len(self.steps) == 1 and not self.last and self.cut is None and not self.offsets:
            return self.steps[0].build(device, self.pointers)
        turns: list[tuple[int, Sequence[CpuKernel]]] = []
        known: dict[int, Sequence[CpuKernel]] = {}
        pieces = list(self._pieces())
        for start, steps in pieces:
            extent = steps[0].tensors[0].shape[self.cut[0]] if self.cut else 0
            if extent not in known:
                known[extent] = [step.build(device, self.pointers, len(pieces)) for step in steps]
            turns.append((start, known[extent]))
        turns.append((0, [step.build(device, self.pointers) for step in self.last]))
        moves = [0] * self.pointers
        if self.cut:
            for name, number in self.numbers.items():
                tensor = self.tensors[name]
                moves[number] = tensor.strides[self.cut[0]] * DTYPES[tensor.dtype]
        return Chain(turns, moves, self.offsets, self.room)

    def _pieces(self) -> Iterator[tuple[int, list[Step]]]:
        """Where each piece begins, and its steps."""
        if self.cut is None:
            yield 0, self.steps
            return
        axis, extent = self.cut
        whole = self.problem.grid[axis]
        for start in range(0, whole, extent):
            yield start, [step.shortened(axis, min(extent, whole - start)) for step in self.steps]

    def estimate(self, device: Device) -> float:
        return sum(step.estimate(device) for step in (*self.steps, *self.last))

    def workspace(self, device: Device) -> int:
        pieces = [step for _, steps in self._pieces() for step in steps]
        return self.room + max((step.workspace(device) for step in {*pieces, *self.last}), default=0)


def _shortened(tensor: TensorDescriptor, extents: Mapping[int, int]) -> TensorDescriptor:
    """The tensor with other extents of some axes."""
    shape = tuple(extents.get(axis, extent) for axis, extent in enumerate(tensor.shape))
    return TensorDescriptor(shape, tensor.strides, tensor.dtype)
