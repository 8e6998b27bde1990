"""A cache of compiled code on disk, shared by all processes of a user.

What it guarantees:

- `get` returns exactly the bytes that were `put` under the key, or None. Every entry carries a checksum over
  its key and its content; one that does not match (truncated, damaged, renamed) is deleted, never returned.
- Readers never see half an entry: it is written beside its place and renamed into it. A process killed in the
  middle of a write leaves a temporary file, which a later writer removes.
- No call raises because of the disk. Where the folder cannot be written or is full, entries are kept in this
  process's memory instead, and one warning says so.
- The folder holds at most `limit` bytes, give or take a sixteenth of it for every process that writes at the
  moment. The entries whose last use is longest ago go first.

It does not promise that an entry is still there: callers must be able to compile again.

    entry: magic (8 bytes) | sha256 of key and content (32) | length of content (8, little-endian) | content
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitdnn import log
from jitdnn.errors import InvalidArgument
from jitdnn.settings import current

_MAGIC = b"jitdnn\x00\x01"
_HEADER = len(_MAGIC) + 32 + 8
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"[0-9a-f]{64}\.bin")
_TEMPORARY_SUFFIX = ".tmp"
_ABANDONED_SECONDS = 3600.0  # no writer needs an hour for one entry


_here = threading.local()


def compiled_here() -> int:
    """How many modules this thread has compiled, for whatever target: none for code that was in a cache."""
    return getattr(_here, "compiled", 0)


def note_compiled() -> None:
    """Whoever compiles a module says so."""
    _here.compiled = compiled_here() + 1


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is in a cache. `path` is None if it lives in memory only; `bytes` include the headers."""

    path: Path | None
    entries: int
    bytes: int
    limit: int


def _seal(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + content).digest()
    return _MAGIC + digest + len(content).to_bytes(8, "little") + content


def _unseal(key: str, entry: bytes) -> bytes | None:
    content = entry[_HEADER:]
    return content if entry == _seal(key, content) else None


class CodeCache:
    """Compiled objects by key; `key` is the hex sha256 of everything that the object depends on.

    Safe to use from any number of threads and processes at once. `directory=None` keeps everything in memory.
    """

    def __init__(self, directory: Path | None, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._memory: dict[str, bytes] = {}
        # bytes that this process may write before it has to look at the whole folder again
        self._allowance = 0

    @staticmethod
    def default() -> CodeCache:
        """The cache that the settings in force ask for; the same object for the same settings."""
        values = current()
        key = (values.cache_dir if values.cache else None, values.cache_limit)
        found = _caches.get(key)
        if found is None:
            folder = None if key[0] is None else key[0] / "code"
            found = _caches.setdefault(key, CodeCache(folder, values.cache_limit))
        return found

    def get(self, key: str) -> bytes | None:
        """Return the content kept under `key`, or None. Raises InvalidArgument if `key` is no hex sha256."""
        path = self._path(key)
        if key in self._memory or path is None:
            return self._memory.get(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        content = _unseal(key, entry)
        if content is None:
            with suppress(OSError):
                path.unlink()
            log.fallback_once(
                ("damaged cache entry", self.directory),
                f"a damaged entry was deleted from the code cache in {self.directory} and is compiled again",
            )
            return None
        with suppress(OSError):
            os.utime(path)  # the time of last use; the file system's own is often switched off
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`. Raises InvalidArgument if `key` is no hex sha256, and nothing else."""
        path = self._path(key)
        entry = _seal(key, content)
        if path is None or len(entry) > self.limit:
            self._remember(key, content)
            return
        temporary = path.with_name(f"{key}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
        try:
            # nobody else may plant code here that this user would run
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._allowance < len(entry):
                self._evict(len(entry))
            temporary.write_bytes(entry)
            os.replace(temporary, path)
            self._allowance -= len(entry)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            self._remember(key, content)
            log.fallback_once(
                ("unwritable cache", self.directory),
                f"the code cache in {self.directory} cannot be written ({error.strerror or error}): compiled "
                "code is kept in memory, and the next process compiles it again; "
                "set JITDNN_CACHE_DIR to a folder that has room",
            )

    def stats(self) -> CacheStats:
        """Count what is there now."""
        sizes = [len(content) + _HEADER for content in self._memory.values()]
        sizes += [size for _, size, _ in self._entries()]
        return CacheStats(self.directory, len(sizes), sum(sizes), self.limit)

    def clear(self) -> None:
        """Delete every entry and what killed writers left behind, as far as the folder can be written."""
        self._memory.clear()
        self._allowance = 0
        for path, _, _ in self._entries(with_temporaries=True):
            with suppress(OSError):
                path.unlink()

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise InvalidArgument(f"{key!r} is no key of the code cache: it must be 64 lower-case hex digits")
        return None if self.directory is None else self.directory / f"{key}.bin"

    def _remember(self, key: str, content: bytes) -> None:
        self._memory[key] = content
        while len(self._memory) > 1 and sum(map(len, self._memory.values())) > self.limit:
            self._memory.pop(next(iter(self._memory)), None)

    def _entries(self, with_temporaries: bool = False) -> list[tuple[Path, int, float]]:
        """List (path, bytes, time of last use); files that are none of ours are never touched."""
        found: list[tuple[Path, int, float]] = []
        if self.directory is None:
            return found
        with suppress(OSError), os.scandir(self.directory) as files:
            for file in files:
                is_temporary = file.name.endswith(_TEMPORARY_SUFFIX) and _KEY.match(file.name)
                if _ENTRY.fullmatch(file.name) or (with_temporaries and is_temporary):
                    # another process may delete it meanwhile
                    with suppress(OSError):
                        status = file.stat()
                        found.append((Path(file.path), status.st_size, status.st_mtime))
        return found

    def _evict(self, wanted: int) -> None:
        """Make room for `wanted` bytes, delete what killed writers left, and set the allowance anew."""
        abandoned = time.time() - _ABANDONED_SECONDS
        entries = []
        for path, size, used in self._entries(with_temporaries=True):
            if path.name.endswith(_TEMPORARY_SUFFIX):
                if used < abandoned:
                    with suppress(OSError):
                        path.unlink()
            else:
                entries.append((used, size, path))
        total = sum(size for _, size, _ in entries)
        step = self.limit // 16
        if total + wanted > self.limit:
            for _, size, path in sorted(entries):
                if total + wanted <= self.limit - step:
                    break
                with suppress(OSError):
                    path.unlink()
                    total -= size
        self._allowance = max(wanted, min(step, self.limit - total))


_caches: dict[tuple[Path | None, int], CodeCache] = {}
