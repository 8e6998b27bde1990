"""A cache of compiled code on disk, shared by all processes of a user.

What it guarantees:

- `get` returns exactly the bytes that were `put` under the key, or None. Every entry carries a checksum over
  its key and its content; one that does not match (truncated, damaged, renamed) is deleted, never returned.
- Readers never see half an entry: it is written beside its place and renamed into it. A process killed in the
  middle of a write leaves a temporary file, which a later writer removes.
- Nothing is believed that another user may have written: the folder and every entry must belong to the user
  of this process, and nobody else may write to them. That is asked of what was opened, not of its name, and
  links are not followed. What is refused is not used, and one warning says why.
- No call raises because of the disk. Where the folder cannot be written or is full, entries are kept in this
  process's memory instead, and one warning says so.
- The folder holds at most `limit` bytes, give or take a sixteenth of it for every process that writes at the
  moment. The entries whose last use is longest ago go first.

It does not promise that an entry is still there: callers must be able to compile again. Nor does the checksum keep
the user from the user: it finds damage and mix-ups, and whoever may write as this user may make one that fits.

    entry: magic (8 bytes) | sha256 of the key and all that follows (32)
           | lengths of origin and content (2 and 8, little-endian) | origin | content

The origin says where the code runs and who compiled it. It is for whoever hands code on (`planner/code_file.py`): the
key depends on all of it already.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jitdnn import log
from jitdnn.errors import InvalidArgument
from jitdnn.retention import Recent
from jitdnn.rtcg.use import note_key
from jitdnn.settings import current

_MAGIC = b"jitdnn\x00\x02"
_LENGTHS = len(_MAGIC) + 32
_HEADER = _LENGTHS + 2 + 8
_MOST_ORIGIN = (1 << 16) - 1
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"[0-9a-f]{64}\.bin")
_TEMPORARY_SUFFIX = ".tmp"
_ABANDONED_SECONDS = 3600.0  # no writer needs an hour for one entry
# a number means a process only on the host that it was given on, and hosts may share a folder
_HOST = re.sub(r"[^\w-]", "_", os.uname().nodename) if hasattr(os, "uname") else ""
_WRITER = re.compile(rf"[0-9a-f]{{64}}\.{_HOST}\.(\d+)\.[0-9a-f]+{re.escape(_TEMPORARY_SUFFIX)}")
# where the system lacks them: folders that are not opened, links that are followed, users that nobody can tell
_HAS_FOLDERS = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# not blocked: a pipe may have that name
_READ = os.O_RDONLY | _NO_LINKS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Origin(NamedTuple):
    """Where code of the cache runs, and who compiled it, in words: `("cuda", "sm_90a", "nvrtc 13.0")`."""

    target: str
    architecture: str
    compiler: str

    def __str__(self) -> str:
        return f"{self.target} code for {self.architecture} by {self.compiler}"


class Entry(NamedTuple):
    """What is kept under a key; `origin` is None for what is no code."""

    origin: Origin | None
    content: bytes


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is in a cache. `path` is None if it lives in memory only; `bytes` include the headers."""

    path: Path | None
    entries: int
    bytes: int
    limit: int


class _Refused(OSError):
    """A file or folder that is not believed."""


def refusal(status: os.stat_result, writers: int = 0o022) -> str | None:
    """Why what has this status is not this user's own: its owner, or `writers`, others who may write. None if it is."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    if status.st_mode & writers:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o}, chmod go-w would do)"
    return None


def _require_own(descriptor: int) -> os.stat_result:
    """The status of something open. Raises _Refused if others may have written to it."""
    status = os.fstat(descriptor)
    reason = refusal(status)
    if reason is not None:
        raise _Refused(errno.EPERM, reason)
    return status


def _is_orphan(name: str) -> bool:
    """Whether a temporary file was left by a process of this host that is no more."""
    match = _WRITER.fullmatch(name)
    if match is None or not hasattr(os, "fork"):  # elsewhere nobody can be asked without being ended
        return False
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def seal(key: str, entry: Entry) -> bytes:
    """An entry as it is on the disk."""
    origin = b"" if entry.origin is None else "\n".join(entry.origin).encode()
    if len(origin) > _MOST_ORIGIN:
        raise InvalidArgument(
            f"the origin of code has {len(origin)} bytes, and at most {_MOST_ORIGIN} are kept"
        )
    rest = (
        len(origin).to_bytes(2, "little") + len(entry.content).to_bytes(8, "little") + origin + entry.content
    )
    return _MAGIC + hashlib.sha256(key.encode() + rest).digest() + rest


def unseal(key: str, sealed: bytes) -> Entry | None:
    """The entry of these bytes; None if they are damaged, or those of another key."""
    size = int.from_bytes(sealed[_LENGTHS : _LENGTHS + 2], "little")
    try:
        words = sealed[_HEADER : _HEADER + size].decode().split("\n")
        entry = Entry(Origin(*words) if size else None, sealed[_HEADER + size :])
    except (ValueError, TypeError):  # no text, or not three pieces of it
        return None
    return entry if sealed == seal(key, entry) else None


class CodeCache:
    """Compiled objects by key; `key` is the hex sha256 of everything that the object depends on.

    Safe to use from any number of threads and processes at once. `directory=None` keeps everything in memory: at most
    `limit` bytes, and at most `memory_limit` where that is given.
    """

    def __init__(self, directory: Path | None, limit: int, memory_limit: int | None = None) -> None:
        self.directory = directory
        self.limit = limit
        self._memory_limit = limit if memory_limit is None else min(limit, memory_limit)
        # those that were not used for longest first
        self._memory: dict[str, bytes] = {}
        # bytes that this process may write before it has to look at the whole folder again
        self._allowance = 0

    @staticmethod
    def default() -> CodeCache:
        """The cache that the settings in force ask for; the same object for the same settings."""
        values = current()
        key = (values.cache_dir if values.cache else None, values.cache_limit, values.code_limit)
        found = _caches.recall(key)
        if found is None:
            folder = None if key[0] is None else key[0] / "code"
            found = _caches.put(key, CodeCache(folder, values.cache_limit, values.code_limit))
        return found

    def get(self, key: str) -> bytes | None:
        """Return the content kept under `key`, or None. Raises InvalidArgument if `key` is no hex sha256."""
        found = self._get(key)
        if found is not None:
            note_key(key)
        return found

    def has(self, key: str) -> bool:
        """Whether there is something under `key`, which `get` may still refuse."""
        if not self._is_on_disk(key):
            return key in self._memory
        assert self.directory is not None
        return key in self._memory or (self.directory / f"{key}.bin").exists()

    def _get(self, key: str) -> bytes | None:
        is_on_disk = self._is_on_disk(key)
        remembered = self._memory.get(key)
        if remembered is not None:
            self._remember(key, remembered)
        if remembered is not None or not is_on_disk:
            return remembered
        found = self.entry(key)
        return None if found is None else found.content

    def entry(self, key: str) -> Entry | None:
        """What the disk has under `key`, with its origin, or None. Raises InvalidArgument if `key` is no hex sha256."""
        if not self._is_on_disk(key):
            return None
        try:
            with self._opened() as folder:
                return self._read(folder, key)
        except _Refused as error:
            self._say_refused(error)
        except OSError:
            return None
        return None

    def keys(self) -> list[str]:
        """The keys of what is on the disk, in order."""
        return sorted(name.removesuffix(".bin") for name, _, _ in self._entries())

    def put(self, key: str, content: bytes, origin: Origin | None = None) -> None:
        """Keep `content` under `key`. Raises InvalidArgument if `key` is no hex sha256, and nothing else."""
        is_on_disk = self._is_on_disk(key)
        note_key(key)
        entry = seal(key, Entry(origin, content))
        if not is_on_disk or len(entry) > self.limit:
            self._remember(key, content)
            return
        try:
            with self._opened(is_made=True) as folder:
                if self._allowance < len(entry):
                    self._evict(len(entry))
                self._write(folder, key, entry)
                self._allowance -= len(entry)
        except _Refused as error:
            self._remember(key, content)
            self._say_refused(error)
        except OSError as error:
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
        for name, _, _ in self._entries(with_temporaries=True):
            with suppress(OSError):
                os.unlink(os.path.join(str(self.directory), name))

    def _is_on_disk(self, key: str) -> bool:
        if not _KEY.fullmatch(key):
            raise InvalidArgument(f"{key!r} is no key of the code cache: it must be 64 lower-case hex digits")
        return self.directory is not None

    @contextmanager
    def _opened(self, is_made: bool = False) -> Iterator[int | None]:
        """The folder as a descriptor, which stays that very folder whatever its name comes to mean."""
        assert self.directory is not None
        if is_made:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _HAS_FOLDERS:
            yield None
            return
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS)
        try:
            _require_own(folder)
            yield folder
        finally:
            os.close(folder)

    def _in(self, folder: int | None, name: str) -> str:
        """A name as the functions of `os` take it, with `dir_fd=folder`."""
        return name if folder is not None else os.path.join(str(self.directory), name)

    def _read(self, folder: int | None, key: str) -> Entry | None:
        """An entry; one that is damaged, or not this user's, is deleted. Raises OSError."""
        name = self._in(folder, f"{key}.bin")
        why = "damaged"
        try:
            descriptor = os.open(name, _READ, dir_fd=folder)
            try:
                content = None
                if stat.S_ISREG(_require_own(descriptor).st_mode):
                    with open(descriptor, "rb", closefd=False) as file:
                        content = unseal(key, file.read())
                if content is not None:
                    if os.utime in os.supports_fd:  # the time of last use; the file system's own is often off
                        with suppress(OSError):
                            os.utime(descriptor)
                    return content
            finally:
                os.close(descriptor)
        except _Refused as error:
            why = f"refused ({error.strerror})"
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            why = "refused (it is a link)"
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        log.fallback_once(
            ("damaged cache entry", self.directory),
            f"a {why} entry was deleted from the code cache in {self.directory} and is compiled again",
        )
        return None

    def _write(self, folder: int | None, key: str, entry: bytes) -> None:
        """Write an entry beside its place and rename it into it. Raises OSError, and leaves nothing then."""
        temporary = self._in(folder, f"{key}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS | getattr(os, "O_BINARY", 0)
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb", buffering=0) as file:
                rest = memoryview(entry)
                while rest:
                    rest = rest[file.write(rest) :]
            os.replace(temporary, self._in(folder, f"{key}.bin"), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def _say_refused(self, error: _Refused) -> None:
        log.fallback_once(
            ("refused cache", self.directory),
            f"the code cache in {self.directory} is not used, because code that others may have put there would be "
            f"run: {error.strerror}. Compiled code is kept in memory, and the next process compiles it again; "
            "set JITDNN_CACHE_DIR to a folder of this user's own",
        )

    def _remember(self, key: str, content: bytes) -> None:
        """Keep an entry in memory, as the last one used."""
        self._memory.pop(key, None)
        self._memory[key] = content
        while len(self._memory) > 1 and sum(map(len, tuple(self._memory.values()))) > self._memory_limit:
            with suppress(StopIteration, RuntimeError):  # another thread is at it
                self._memory.pop(next(iter(self._memory)), None)

    def _entries(self, with_temporaries: bool = False) -> list[tuple[str, int, float]]:
        """List (name, bytes, time of last use); files that are none of ours are never touched."""
        found: list[
            tuple[str, int, float]
        ] = []  # no `Path`, which takes longer than all else of 50,000 files
        if self.directory is None:
            return found
        with suppress(OSError), os.scandir(self.directory) as files:
            for file in files:
                is_temporary = file.name.endswith(_TEMPORARY_SUFFIX) and _KEY.match(file.name)
                if _ENTRY.fullmatch(file.name) or (with_temporaries and is_temporary):
                    # another process may delete it meanwhile
                    with suppress(OSError):
                        status = file.stat()
                        found.append((file.name, status.st_size, status.st_mtime))
        return found

    def _evict(self, wanted: int) -> None:
        """Make room for `wanted` bytes, delete what killed writers left, and set the allowance anew."""
        abandoned = time.time() - _ABANDONED_SECONDS
        entries = []
        folder = str(self.directory)
        for name, size, used in self._entries(with_temporaries=True):
            if name.endswith(_TEMPORARY_SUFFIX):
                if used < abandoned or _is_orphan(name):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
            else:
                entries.append((used, size, name))
        total = sum(size for _, size, _ in entries)
        step = self.limit // 16
        if total + wanted > self.limit:
            for _, size, name in sorted(entries):
                if total + wanted <= self.limit - step:
                    break
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
                    total -= size
        self._allowance = max(wanted, min(step, self.limit - total))


_caches: Recent[tuple[Path | None, int, int], CodeCache] = Recent(128)
