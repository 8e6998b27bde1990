"""The algorithms written in plain C, which every GPU target has."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.problems.problem import Problem

# (problem class, direction or None for problems that have only one)
PLAIN: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {}
