"""The update of all weights, as Caffe's solvers do it.

For the gradients g of all weights w, summed over iter_size batches:

    clip       if clip_gradients >= 0 and ‖g‖ > clip_gradients:  g ← g · clip_gradients / ‖g‖   (all weights together)
    normalize  g ← g / iter_size
    decay      g ← g + λ w  (L2)   or   g ← g + λ sign(w)  (L1),   λ = weight_decay · decay_mult
    update     the rule of the solver's type (update_rules.py), and w ← w − d

Clipping reads all gradients once. All else is one kernel a weight, which reads w, g and the histories once, and writes
w and the histories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.update_rules import rule_of
from jitdnn.errors import InvalidArgument
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction

REGULARIZATIONS = ("L1", "L2")


class Updates:
    """The updates of the parameters.

    `history` has the first history of each by the parameter's name, and then a second one, where the type has two,
    by NAME/u (AdaDelta) or NAME/v (Adam): all first ones, then all second ones, which is the order of Caffe's files.
    """

    def __init__(
        self, solver: SolverParameter, parameters: Sequence[Parameter], keeps_updates: bool = False
    ) -> None:
        """Check the fields of the solver. With `keeps_updates` the gradients become what was taken from the weights
        (for snapshot_diff and debug_info); otherwise they are left alone.

        Raises InvalidArgument, and NotSupported for a type that does not exist.
        """
        if solver.regularization_type not in REGULARIZATIONS:
            raise InvalidArgument(
                f"regularization_type is {solver.regularization_type!r}{solver.where('regularization_type')}: "
                f"there are {', '.join(REGULARIZATIONS)}"
            )
        self.solver = solver
        self.parameters = parameters
        self.keeps_updates = keeps_updates
        self.rule = rule_of(solver)
        self.history: dict[str, Array] = {
            _key(parameter, name, index): np.zeros_like(parameter.blob.data)
            for index, name in enumerate(self.rule.histories)
            for parameter in parameters
        }
        self._step = elementwise(self.rule.text(solver.regularization_type == "L2", keeps_updates))
        self._squares = reduction("x: x * x", dtype="f64")

    def update(self, rate: float, iteration: int) -> None:
        """Update the weights and the histories by the gradients."""
        solver, rule = self.solver, self.rule
        factor, *constants = rule.numbers(solver, iteration)
        share = self._clip() / solver.iter_size
        for parameter in self.parameters:
            w, g = parameter.blob.data.reshape(-1), parameter.blob.diff.reshape(-1)
            histories = [
                self.history[_key(parameter, name, index)].reshape(-1)
                for index, name in enumerate(rule.histories)
            ]
            decay = solver.weight_decay * parameter.decay_mult
            numbers = (share, decay, rate * parameter.lr_mult * factor, *constants)
            out = (w, *histories, g) if self.keeps_updates else (w, *histories)
            self._step(w, g, *histories, *numbers, out=out)

    def _clip(self) -> float:
        """The factor that the norm of all gradients asks for."""
        limit = self.solver.clip_gradients
        if limit < 0:
            return 1.0
        squares = (self._squares(parameter.blob.diff.reshape(-1)) for parameter in self.parameters)
        norm = math.sqrt(sum(float(square.item()) for square in squares))
        return limit / norm if norm > limit else 1.0


def _key(parameter: Parameter, history: str, index: int) -> str:
    return f"{parameter.name}/{history}" if index else parameter.name
