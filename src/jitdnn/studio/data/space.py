"""Room on the disk: looked at before anything is begun."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from jitdnn.errors import InvalidArgument

#: what is left free for everything else
SPARE: Final = 256 << 20


def check_space(folder: Path, size: int) -> None:
    """Raises InvalidArgument where a data set of `size` bytes would fill the disk."""
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise InvalidArgument(
            f"the data set takes {size:,} bytes, and {free:,} are free where the studio keeps its "
            "data: smaller pictures "
            "take less, or make room"
        )
