"""Nets of the studio: a gallery, what is wrong with a text and where, and the files that a worker trains from."""

from jitdnn.studio.nets.asked import settled
from jitdnn.studio.nets.checks import check
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.gallery import gallery
from jitdnn.studio.nets.graph import graph
from jitdnn.studio.nets.options import MATHS, MEANS, Options
from jitdnn.studio.nets.plans import plan
from jitdnn.studio.nets.preview import preview
from jitdnn.studio.nets.rate_finder import find_rate
from jitdnn.studio.nets.runs import write
from jitdnn.studio.nets.schedules import SCHEDULES

__all__ = [
    "MATHS",
    "MEANS",
    "SCHEDULES",
    "DataFacts",
    "Options",
    "check",
    "find_rate",
    "gallery",
    "graph",
    "plan",
    "preview",
    "settled",
    "write",
]
