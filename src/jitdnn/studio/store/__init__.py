"""What the studio knows: one SQLite file that the server and its workers share."""

from jitdnn.studio.store.folders import (
    BEST,
    ORIGINAL,
    SOLVER,
    data_folder,
    original_text,
    plain_files,
    run_folder,
)
from jitdnn.studio.store.series import Since
from jitdnn.studio.store.store import Row, Store

__all__ = [
    "BEST",
    "ORIGINAL",
    "SOLVER",
    "Row",
    "Since",
    "Store",
    "data_folder",
    "original_text",
    "plain_files",
    "run_folder",
]
