"""Data sets: from pictures, tables and databases to memory-mapped arrays, and what is known about them."""

from jitdnn.studio.data.dataset import PARTS, Dataset, open_dataset
from jitdnn.studio.data.options import MODES, Options

__all__ = ["MODES", "PARTS", "Dataset", "Options", "open_dataset"]
