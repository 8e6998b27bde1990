"""Stochastic gradient descent with momentum, as Caffe does it.

For the gradients g of all weights w, summed over iter_size batches:

    clip       if clip_gradients >= 0 and ‖g‖ > clip_gradients:  g ← g · clip_gradients / ‖g‖   (all weights
    together) normalize  g ← g / iter_size decay      g ← g + λ w  (L2)   or   g ← g + λ sign(w)  (L1),   λ =
    weight_decay · decay_mult update     h ← μ h + lr g,   w ← w − h,                        lr = rate ·
    lr_mult

The learning rate is inside of the history h: when it drops, the updates follow over the time that the
momentum keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.graph import Parameter
from jitdnn.caffe.schema import SolverParameter
from jitdnn.errors import InvalidArgument
from jitdnn.ops.tensor_ops import add

REGULARIZATIONS = ("L1", "L2")


class GradientDescent:
    """The updates of the parameters; `history` has the h of each."""

    def __init__(self, solver: SolverParameter, parameters: Sequence[Parameter]) -> None:
        """Check the fields of the solver; raises InvalidArgument."""
        if solver.regularization_type not in REGULARIZATIONS:
            raise InvalidArgument(
                f"regularization_type is {solver.regularization_type!r}: there are "
                f"{', '.join(REGULARIZATIONS)}"
            )
        if solver.momentum < 0:
            raise InvalidArgument(f"momentum is {solver.momentum:g}: it must not be negative")
        self.solver = solver
        self.parameters = parameters
        self.history: dict[str, Array] = {p.name: np.zeros_like(p.blob.data) for p in parameters}

    def update(self, rate: float) -> None:
        """Update the weights by their gradients, which are changed on the way."""
        solver = self.solver
        self._clip()
        for parameter in self.parameters:
            w, g, h = parameter.blob.data, parameter.blob.diff, self.history[parameter.name]
            if solver.iter_size > 1:
                g *= 1 / solver.iter_size
            decay = solver.weight_decay * parameter.decay_mult
            if decay:
                if solver.regularization_type == "L2":
                    add(w, out=g, alpha=decay, beta=1.0)
                else:
                    g += decay * np.sign(w)
            add(g, out=h, alpha=rate * parameter.lr_mult, beta=solver.momentum)
            add(h, out=w, alpha=-1.0, beta=1.0)

    def _clip(self) -> None:
        limit = self.solver.clip_gradients
        if limit < 0:
            return
        squares = (np.vdot(p.blob.diff, p.blob.diff) for p in self.parameters)
        norm = math.sqrt(sum(float(square) for square in squares))
        if norm > limit:
            for parameter in self.parameters:
                gradient = parameter.blob.diff
                gradient *= limit / norm
