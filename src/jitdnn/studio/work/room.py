"""Disk: what runs take up, what is free, what can be removed and what depends on it."""

from __future__ import annotations

import shutil
from pathlib import Path

from jitdnn.studio.store import Row, Store

_LEAST_FREE = 1 << 30
_SNAPSHOTS = 4  # the last two, one that is being written, and the best weights


def missing_room(store: Store, run: Row) -> str:
    """Why a run should not start now for want of disk, "" if there is room for its snapshots and a reserve."""
    sizes = [file.stat().st_size for file in _files(store.folder(run["id"])) if file.suffix == ".jdsnap"]
    needed = int(store.setting("least_free", _LEAST_FREE)) + _SNAPSHOTS * max(sizes, default=0)
    free = shutil.disk_usage(store.home).free
    if free >= needed:
        return ""
    return f"waits for room on the disk: {free >> 20:,} MiB are free, and {needed >> 20:,} MiB should be"


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
