"""Solvers as pycaffe has them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import ClassVar

from jitdnn.caffe import paths
from jitdnn.caffe.load import is_text, parse_file
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.pycaffe import mode
from jitdnn.caffe.pycaffe.net import Net
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.solver import Solver as CoreSolver
from jitdnn.caffe.upgrade import upgrade_solver


class Solver:
    """A solver of a file: `net`, `test_nets`, `iter`, `param`; `core` is the library's own.

    The subclasses take the place of the file's own type; `get_solver` keeps it.
    """

    type: ClassVar[str | None] = None

    def __init__(self, solver_file: str | PathLike[str]) -> None:
        """Build the solver and its nets, as `jitdnn.caffe.load_solver` does. Raises as that does."""
        file: Path | None = None
        if isinstance(solver_file, str) and is_text(solver_file):
            parameter = parse(solver_file, SolverParameter)
        else:
            file = paths.find(solver_file)
            parameter = parse_file(file, SolverParameter)
        parameter = upgrade_solver(parameter)
        if self.type is not None:
            parameter.type = self.type
        self.core = CoreSolver(
            parameter,
            file=file,
            seed=mode.next_seed(),
            device=mode.device(),
            python_layers=mode.python_layers(),
            caffe_files=True,
            keep_blobs=True,
        )
        self.net = Net.of(self.core.net)
        self.test_nets = [Net.of(net) for net in self.core.test_nets]

    @property
    def iter(self) -> int:
        """The number of updates done."""
        return self.core.iteration

    @property
    def param(self) -> SolverParameter:
        """The fields of the file."""
        return self.core.parameter

    def step(self, iterations: int) -> None:
        """Run so many iterations, with the tests and snapshots that fall into them."""
        self.core.step(iterations)

    def solve(self, resume_file: str | PathLike[str] | None = None) -> None:
        """Train to the end, from a snapshot if one is named."""
        self.core.solve(None if resume_file is None else Path(resume_file))

    def restore(self, state_file: str | PathLike[str]) -> None:
        """Go on from a snapshot."""
        self.core.restore(Path(state_file))

    def snapshot(self) -> Path:
        """Write a snapshot, and return its file."""
        return self.core.snapshot()


class SGDSolver(Solver):
    type = "SGD"


class NesterovSolver(Solver):
    type = "Nesterov"


class AdaGradSolver(Solver):
    type = "AdaGrad"


class RMSPropSolver(Solver):
    type = "RMSProp"


class AdaDeltaSolver(Solver):
    type = "AdaDelta"


class AdamSolver(Solver):
    type = "Adam"


def get_solver(solver_file: str | PathLike[str]) -> Solver:
    """The solver of a file, of the type that the file says."""
    return Solver(solver_file)
