"""Group normalization by way of the channels, some images at a time: their second reading finds them in the cache."""

from __future__ import annotations

from jitdnn.kernels.formulas.group_norm import add_channels
from jitdnn.kernels.formulas.normalization import NormalizationPlan

_IMAGE = 0  # an axis of the grid
_PIECE_BYTES = 2 << 20  # of the tensors that are read twice


def plan_channels(plan: NormalizationPlan) -> None:
    """The steps in either direction."""
    problem = plan.problem
    read_twice = 2 if problem.direction == "bwd" else 1
    image = read_twice * problem.x.nbytes // max(1, problem.grid[_IMAGE])
    plan.cut = (_IMAGE, max(1, min(problem.grid[_IMAGE], _PIECE_BYTES // max(1, image))))
    add_channels(plan)
