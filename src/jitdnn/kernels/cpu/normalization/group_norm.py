"""Group normalization by way of the channels, some images at a time: their second reading finds them in the cache."""

from __future__ import annotations

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.formulas.group_norm import add_channels
from jitdnn.kernels.formulas.normalization import NormalizationPlan
from jitdnn.rtcg.processor import Processor

_IMAGE = 0  # an axis of the grid


def plan_channels(plan: NormalizationPlan, processor: Processor) -> None:
    """The steps in either direction."""
    problem = plan.problem
    read_twice = 2 if problem.direction == "bwd" else 1
    image = read_twice * problem.x.nbytes // max(1, problem.grid[_IMAGE])
    piece = processor.l3(cost.NORMALIZATION_PIECE_L3)
    plan.cut = (_IMAGE, max(1, min(problem.grid[_IMAGE], piece // max(1, image))))
    add_channels(plan)
