"""The algorithms that are programs over rows and nothing else: they say which program, and `Swept` does the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.reduction.generator import Program, build_sweeps, estimate_sweeps, workspace_sweeps
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor


class Rows(NamedTuple):
    """A program, its tensors (inputs first, then outputs), the axes that make a row, and what alpha leaves alone."""

    program: Program
    tensors: Sequence[TensorDescriptor]
    axes: Sequence[int]
    plain: tuple[int, ...] = ()


class Swept(Algorithm):
    """An algorithm of which only the program differs from others."""

    deterministic = True
    mode: ClassVar[str | None] = None
    """"along" or "across": where the vectors go, if that is not for the tensors to say."""

    @abstractmethod
    def rows(self, problem: Problem) -> Rows:
        """What to compute."""

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return f"{problem.kind} takes no epilogue" if epilogue is not None else None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        program, tensors, axes, _ = self.rows(problem)
        return workspace_sweeps(program, tensors, axes, device, mode=self.mode)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        program, tensors, axes, _ = self.rows(problem)
        return estimate_sweeps(program, tensors, axes, device, mode=self.mode)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        program, tensors, axes, plain = self.rows(problem)
        return build_sweeps(program, tensors, axes, device, plain, mode=self.mode)
