"""Programs over rows written with names for numbers, and kernels of several such programs in a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.devices.cpu import CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.sweeps import build_sweeps, estimate_sweeps, workspace_sweeps
from jitdnn.kernels.cpu.sweeps_program import Program, Sweep
from jitdnn.problems.normalization import Normalization
from jitdnn.rtcg.expression import Expression, Graph, Traced
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
        self, inputs: Sequence[str], outputs: Sequence[str], parameters: Mapping[str, float] | None = None
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.parameters = dict(parameters or {})
        self.values = list(self.parameters)
        self.sweeps: list[Sweep] = []

    def sweep(
        self,
        first: Mapping[str, Formula] | None = None,
        add: Mapping[str, Formula] | None = None,
        scalars: Mapping[str, Formula] | None = None,
        writes: Mapping[str, Formula] | None = None,
    ) -> None:
        """One more sweep: values of the first element, sums, numbers made of them, and elements to write."""
        before = [*self.inputs, *self.values]
        reductions = []
        for kind, formulas in (("first", first or {}), ("add", add or {})):
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
        return Program(tuple(self.sweeps), rows, tuple(self.parameters.values()))


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

    def build(self, device: Device, pointers: int) -> CpuKernel:
        return build_sweeps(
            self.program, self.tensors, self.axes, device, self.plain, self.operands, pointers, self.compute
        )

    def estimate(self, device: Device) -> float:
        return estimate_sweeps(self.program, self.tensors, self.axes, device, self.compute)

    def workspace(self, device: Device) -> int:
        return workspace_sweeps(self.program, self.tensors, self.axes, device, self.compute)


class Chain:
    """Kernels one after the other, which share pointers, and arrays between them in the workspace."""

    def __init__(self, kernels: Sequence[CpuKernel], arrays: Sequence[int], start: int) -> None:
        self._kernels, self._arrays, self._start = kernels, arrays, start

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self._arrays))
        for kernel in self._kernels:
            kernel(stream, every, alpha, beta, workspace + self._start)


class Plan:
    """How a problem is done: steps, and the arrays that they leave for each other."""

    def __init__(self, problem: Normalization) -> None:
        self.problem = problem
        self.steps: list[Step] = []
        self.numbers = {operand.name: n for n, operand in enumerate(problem.operands)}
        self.tensors = {name: problem.on_grid(name) for name in self.numbers}
        self.offsets: list[int] = []
        self.pointers = len(self.numbers)
        self.room = 0

    def array(self, name: str, same: Sequence[int]) -> None:
        """An array between steps, on the grid, of one number where the axes `same` are counted as one."""
        grid, dtype = self.problem.grid, self.problem.statistic_dtype
        packed = TensorDescriptor.packed([1 if a in same else n for a, n in enumerate(grid)], dtype)
        self.numbers[name] = self.pointers
        self.pointers += 1
        self.tensors[name] = packed.broadcast_to(grid)
        self.offsets.append(self.room)
        self.room += -(-packed.nbytes // 64) * 64

    def alias(self, name: str, other: str) -> None:
        """Another name for a tensor."""
        self.numbers[name], self.tensors[name] = self.numbers[other], self.tensors[other]

    def step(
        self, rows: Rows, row_outputs: Mapping[str, str], axes: Sequence[int], compute: str | None = None
    ) -> None:
        """Add a step of the program `rows` over the tensors of its names."""
        roles = {operand.name: operand.role for operand in self.problem.operands}
        names = (*rows.inputs, *rows.outputs)
        plain = [n for n, name in enumerate(rows.outputs) if roles.get(name, "saved") in ("saved", "state")]
        tensors = tuple(self.tensors[name] for name in names)
        numbers = tuple(self.numbers[name] for name in names)
        self.steps.append(
            Step(rows.program(row_outputs), tensors, numbers, tuple(axes), tuple(plain), compute)
        )

    def build(self, device: Device) -> Chain | CpuKernel:
        kernels = [step.build(device, self.pointers) for step in self.steps]
        return (
            kernels[0] if len(kernels) == 1 and not self.offsets else Chain(kernels, self.offsets, self.room)
        )

    def estimate(self, device: Device) -> float:
        return sum(step.estimate(device) for step in self.steps)

    def workspace(self, device: Device) -> int:
        return self.room + max(step.workspace(device) for step in self.steps)
