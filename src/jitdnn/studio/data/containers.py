"""Folders and zip files of strangers: names and contents, within limits, and nothing outside of them.

Nothing is ever written under a name that came out of a zip file, links are not followed, and what is unpacked is
counted as it comes, whatever the file says of its size.
"""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final

from jitdnn import limits
from jitdnn.errors import InvalidArgument

MOST_FILES: Final = 200_000
MOST_FOLDER_FILES: Final = 5_000_000
MEMBER_BYTES: Final = 32 << 20
ALL_BYTES: Final = 4 << 30
#: what archives of other systems hold beside one's files
_IGNORED: Final = {"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"}


class Container(ABC):
    """Files by their relative names, `a/b.png`. It may be pickled, and then opens anew where it is unpickled."""

    path: PurePath

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files in a fixed order, without hidden ones. Raises InvalidArgument if there are
        too many.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file of at most MEMBER_BYTES. Raises InvalidArgument."""

    def text(self, name: str) -> str:
        """The content as text."""
        return self.read(name).decode("utf-8-sig", "replace")


class Folder(Container):
    """A folder of this machine."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self._odd: dict[str, str] = {}  # files whose names are no UTF-8, by the names that they are shown by

    def names(self) -> list[str]:
        found: list[str] = []
        for folder, folders, files in os.walk(self.path, followlinks=False):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            inside = os.path.relpath(folder, self.path)
            start = "" if inside == "." else f"{inside}{os.sep}"
            found += [start + name for name in sorted(files) if not is_hidden(name)]
            if len(found) > MOST_FOLDER_FILES:
                raise InvalidArgument(
                    f"{self.path} has more than {MOST_FOLDER_FILES:,} files: at most so many are taken"
                )
        found = found if os.sep == "/" else [name.replace(os.sep, "/") for name in found]
        self._odd = {_shown(name): name for name in found if _shown(name) != name}
        return [_shown(name) for name in found] if self._odd else found

    def read(self, name: str) -> bytes:
        try:
            # the name is of our own listing; a link that somebody has laid there since is not followed
            handle = os.open(
                self.path / self._odd.get(name, name),
                os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK,
            )
            with open(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise InvalidArgument(f"{name} is no regular file")
                content = file.read(MEMBER_BYTES + 1)
        except OSError as error:
            raise InvalidArgument(f"{name} cannot be read: {error.strerror or error}") from None
        if len(content) > MEMBER_BYTES:
            raise InvalidArgument(f"{name} has more than {MEMBER_BYTES:,} bytes")
        return content


class Zip(Container):
    """A zip file. All that is read from it counts towards ALL_BYTES."""

    path: Path

    def __init__(self, path: Path) -> None:
        """Raises InvalidArgument for what is no zip file, or names too many files."""
        self.path = path
        self._local = threading.local()
        self._read = 0
        try:
            infos = self._archive().infolist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise InvalidArgument(f"{path.name} is no zip file that can be read: {error}") from None
        if len(infos) > MOST_FILES:
            raise InvalidArgument(
                f"{len(infos):,} files are more than {MOST_FILES:,}: unpack them, and give the folder's path instead"
            )
        self._infos: dict[str, int] = {}
        total = 0
        for index, info in enumerate(infos):
            parts = PurePosixPath(info.filename).parts
            is_link = stat.S_ISLNK(info.external_attr >> 16)
            leads_out = ".." in parts or info.filename.startswith("/") or "\\" in info.filename
            if info.is_dir() or is_link or leads_out or any(map(is_hidden, parts)) or not parts:
                continue
            self._infos["/".join(parts)] = index
            total += info.file_size
        if total > ALL_BYTES:
            raise InvalidArgument(
                f"{path.name} unpacks to {total:,} bytes: at most {ALL_BYTES:,}. Is it a zip bomb? If "
                "it is not, unpack it "
                "and give the folder's path"
            )

    def names(self) -> list[str]:
        return sorted(self._infos)

    def read(self, name: str) -> bytes:
        archive = self._archive()
        try:
            with archive.open(archive.infolist()[self._infos[name]]) as file:
                content = file.read(MEMBER_BYTES + 1)
        except Exception as error:  # over damaged bytes, zipfile and its decoders may raise anything
            raise InvalidArgument(f"{name} cannot be unpacked: {error}") from None
        self._read += len(content)
        if len(content) > MEMBER_BYTES or self._read > ALL_BYTES:
            raise InvalidArgument(f"{name} unpacks to more than it may: is this a zip bomb?")
        return content

    def _archive(self) -> zipfile.ZipFile:
        """One for each thread and process."""
        found: zipfile.ZipFile | None = getattr(self._local, "archive", None)
        if found is None:
            found = self._local.archive = zipfile.ZipFile(self.path)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_infos": self._infos, "_read": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()


def open_container(path: Path) -> Container:
    """A folder or a zip file. Raises InvalidArgument for anything else."""
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return Zip(path)
    raise InvalidArgument(f"{limits.shortened(str(path))} is neither a folder nor a file on this machine")


def _shown(name: str) -> str:
    """A name as text that can be written down: bytes that are no UTF-8 as `\\xe9`."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is left out."""
    return name.startswith(".") or name in _IGNORED
