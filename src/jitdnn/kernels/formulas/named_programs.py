"""Programs over rows written with names for numbers, and plans of several such programs, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.kernels.formulas.row_programs import Program, Sweep
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.expression import Expression, Graph, Traced, finish
from jitdnn.tensor import TensorDescriptor

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
        joint: Mapping[tuple[str, str, str], Formula] | None = None,
    ) -> None:
        """One more sweep: values of the first element, sums, maxima (`most`), numbers made of them, and elements to
        write. `joint` reductions are named by their kind and their two results."""
        before = [*self.inputs, *(["position"] if self.position else []), *self.values]
        reductions = []
        for kind, formulas in (("first", first or {}), ("add", add or {}), ("max", most or {})):
            for name, formula in formulas.items():
                reductions.append((kind, _traced(before, formula)))
                self.values.append(name)
        for (kind, *names), formula in (joint or {}).items():
            reductions.append((kind, _traced(before, formula)))
            self.values += names
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
    return finish(graph, graph.lift(formula(Names(graph, names))))


@dataclass(frozen=True)
class Step:
    """One kernel of a chain: a program over these tensors, which are numbered by `operands`."""

    program: Program
    tensors: tuple[TensorDescriptor, ...]
    operands: tuple[int, ...]
    axes: tuple[int, ...]
    plain: tuple[int, ...] = ()
    compute: str | None = None

    def shortened(self, axis: int, extent: int) -> Step:
        """The step over so many indices of an axis."""
        tensors = tuple(_shortened(tensor, {axis: extent}) for tensor in self.tensors)
        return replace(self, tensors=tensors)


class Plan:
    """How a problem is done: steps, and the arrays that they leave for each other.

    With `cut` = (axis, extent) the grid is done in pieces of so many indices of an axis that no step sums over: all
    steps for one piece, while it is in the cache, then for the next. Steps that are `last` follow over all of it.

    `has_moments`: the target has the reduction "moments"; else there are sums in f64, or several sweeps.
    """

    def __init__(self, problem: Normalization, has_moments: bool = False) -> None:
        self.problem, self.has_moments = problem, has_moments
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

    def pieces(self) -> Iterator[tuple[int, list[Step]]]:
        """Where each piece begins, and its steps."""
        if self.cut is None:
            yield 0, self.steps
            return
        axis, extent = self.cut
        whole = self.problem.grid[axis]
        for start in range(0, whole, extent):
            yield start, [step.shortened(axis, min(extent, whole - start)) for step in self.steps]


def _shortened(tensor: TensorDescriptor, extents: Mapping[int, int]) -> TensorDescriptor:
    """The tensor with other extents of some axes."""
    shape = tuple(extents.get(axis, extent) for axis, extent in enumerate(tensor.shape))
    return TensorDescriptor(shape, tensor.strides, tensor.dtype)
