"""Sweeps: many trainings that differ in a few options, chosen by Optuna, as children of a parent run."""

from jitdnn.studio.sweeps.plan import Plan, create
from jitdnn.studio.sweeps.service import Sweeps, importances, trials
from jitdnn.studio.sweeps.space import Choice, Range, Space, parse_space

__all__ = ["Choice", "Plan", "Range", "Space", "Sweeps", "create", "importances", "parse_space", "trials"]
