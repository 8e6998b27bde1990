"""Where sources may lie: uploads in the studio's home, and folders of this machine below the roots in the settings."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from jitdnn.errors import InvalidArgument
from jitdnn.limits import shortened
from jitdnn.studio.data.space import check_space
from jitdnn.studio.store import Store

LARGEST_UPLOAD: Final = 2 << 30
SUFFIXES: Final = (".zip", ".csv", ".tsv", ".npz")
#: seconds that an upload is kept of which nothing was made
_KEPT = 24 * 3600.0


def roots(store: Store) -> list[Path]:
    """The folders below which data may be read; the user's home where the settings name none."""
    found = store.setting("roots") or [str(Path.home())]
    return [Path(root).expanduser().resolve() for root in found]


def server_path(store: Store, text: str) -> Path:
    """A folder or file of this machine. Raises InvalidArgument for what is not there, or lies outside of the roots."""
    if not text.strip() or "\0" in text or len(text) > 4096:
        raise InvalidArgument(f"{shortened(text)} is no folder on the machine that runs the studio")
    try:
        path = Path(text.strip()).expanduser().resolve()
        allowed = roots(store)
        if not any(path.is_relative_to(root) for root in allowed):
            shown = " or ".join(str(root) for root in allowed)
            raise InvalidArgument(
                f"{path} does not lie in {shown}: the settings say where data may be read from"
            )
        if path.is_relative_to(store.home.resolve()):
            raise InvalidArgument(f"{path} lies in the studio's own folder")
        if not path.exists():
            raise InvalidArgument(f"{path} is not there, on the machine that runs the studio")
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{shortened(text)} cannot be looked for: {error}") from None
    return path


def suggestions(store: Store, text: str, most: int = 20) -> list[str]:
    """Folders whose paths begin so, for a field that completes them."""
    try:
        path = Path(text).expanduser()
        parent, start = (path, "") if text.endswith("/") else (path.parent, path.name)
        server_path(store, str(parent))
        found = [
            entry
            for entry in parent.iterdir()
            if entry.name.startswith(start) and not entry.name.startswith(".") and entry.is_dir()
        ]
    except (InvalidArgument, OSError, RuntimeError, ValueError):
        return []
    return sorted(str(entry) for entry in found)[:most]


async def keep_upload(home: Path, name: str, pieces: AsyncIterator[bytes]) -> str:
    """Write an uploaded file, counted as it comes; return its token. Raises InvalidArgument for one that is too
    large or of no kind that is read, and leaves nothing of it then.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"{shortened(name)}: a file that ends in {', '.join(SUFFIXES)} is needed")
    folder = home / "uploads"
    folder.mkdir(parents=True, exist_ok=True)
    forget_old(folder)
    token = secrets.token_hex(16)
    path = folder / f"{token}{suffix}"
    count = 0
    try:
        with open(path, "xb") as file:
            async for piece in pieces:
                count += len(piece)
                if count > LARGEST_UPLOAD:
                    raise InvalidArgument(
                        f"that is more than {LARGEST_UPLOAD:,} bytes: put it into a folder of the "
                        "machine that runs the "
                        "studio, and give its path"
                    )
                if not count % (1 << 26) < len(piece):
                    check_space(folder, 0)
                await asyncio.to_thread(file.write, piece)  # others are answered meanwhile
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return token


def uploaded(home: Path, token: str) -> Path:
    """The file of an upload. Raises InvalidArgument for one that is not there (any more)."""
    if len(token) == 32 and set(token) <= set("0123456789abcdef"):
        for suffix in SUFFIXES:
            path = home / "uploads" / f"{token}{suffix}"
            if path.is_file():
                return path
    raise InvalidArgument("that upload is not there any more: send the file again")


def forget_old(folder: Path) -> None:
    """Remove uploads that nobody has made anything of for a day."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > _KEPT:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
