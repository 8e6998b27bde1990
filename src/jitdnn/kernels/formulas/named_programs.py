"""Programs over rows written with names for numbers, and plans of several such programs, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitdnn.kernels.formulas.row_algorithms import RowPlan, Step, shortened
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.problems.problem import Operand
from jitdnn.rtcg.expression import Expression, Graph, Traced, finish
from jitdnn.tensor import TensorDescriptor

Formula = Callable[["Names"], Any]
_ALIGNMENT = 64  # bytes, of arrays in the workspace


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
        self.passes: list[Pass] = []

    def add_pass(
        self,
        first: Mapping[str, Formula] | None = None,
        add: Mapping[str, Formula] | None = None,
        scalars: Mapping[str, Formula] | None = None,
        writes: Mapping[str, Formula] | None = None,
        most: Mapping[str, Formula] | None = None,
        joint: Mapping[tuple[str, str, str], Formula] | None = None,
    ) -> None:
        """One more pass: values of the first element, sums, maxima (`most`), numbers made of them, and elements to
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
        self.passes.append(Pass(tuple(reductions), tuple(made), tuple(written)))

    def program(self, row_outputs: Mapping[str, str]) -> Program:
        """The program; `row_outputs` says which value of the row is written to which output."""
        rows = tuple(
            (self.outputs.index(name), self.values.index(value)) for name, value in row_outputs.items()
        )
        return Program(tuple(self.passes), rows, tuple(self.parameters.values()), self.position)


def _traced(names: Sequence[str], formula: Formula) -> Expression:
    graph = Graph(tuple(names))
    return finish(graph, graph.lift(formula(Names(graph, names))))


class NamedPlan(RowPlan):
    """A plan that is being written, with names for the tensors of its steps."""

    def __init__(self, operands: Sequence[Operand], tensors: Mapping[str, TensorDescriptor]) -> None:
        super().__init__()
        self.numbers = {operand.name: number for number, operand in enumerate(operands)}
        self.named = dict(tensors)
        self.tensors = {number: self.named[name] for name, number in self.numbers.items()}
        self.pointers = len(self.numbers)
        self._scaled = {operand.name for operand in operands if operand.role not in ("saved", "state")}

    def add_array(self, name: str, packed: TensorDescriptor, tensor: TensorDescriptor) -> None:
        """An array between steps, which they see as this tensor."""
        assert self.pointers is not None
        self.numbers[name] = self.pointers
        self.named[name] = self.tensors[self.pointers] = tensor
        self.pointers += 1
        self.offsets.append(self.room)
        self.room += -(-packed.nbytes // _ALIGNMENT) * _ALIGNMENT

    def alias(self, name: str, other: str) -> None:
        """Another name for a tensor."""
        self.numbers[name], self.named[name] = self.numbers[other], self.named[other]

    def step(
        self,
        rows: Rows,
        row_outputs: Mapping[str, str],
        axes: Sequence[int],
        compute: str | None = None,
        single: Sequence[int] = (),
        is_last: bool = False,
        vectors_over: str | None = None,
    ) -> None:
        """Add a step of the program `rows` over the tensors of its names, at index 0 of the axes `single`."""
        names = (*rows.inputs, *rows.outputs)
        plain = tuple(n for n, name in enumerate(rows.outputs) if name not in self._scaled)
        tensors = tuple(shortened(self.named[name], dict.fromkeys(single, 1)) for name in names)
        numbers = tuple(self.numbers[name] for name in names)
        step = Step(rows.program(row_outputs), tensors, tuple(axes), plain, numbers, compute, vectors_over)
        (self.last if is_last else self.steps).append(step)
