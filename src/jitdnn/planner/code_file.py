"""Compiled code and measured times in one file, to be taken in by another machine of the same kind.

    file: magic (8 bytes) | sha256 of the header (32) | its length (8, little-endian) | header, JSON | entries

The header lists the entries by key and size, in their order, and has the rows of the tuning store. Entries are as they
are in the code cache: each carries a hash over its key, its origin and its content.

Whoever takes in a file has this process, and later ones, run machine code that somebody else made. The hashes find
damage and mix-ups and are no signature. So nothing is taken in but by a command that says so, a file that others than
its owner may write is refused, and of its entries those alone are kept that are whole and whose origin (target,
architecture, compiler) is one that this machine has. Names come from keys, which are hex digits: no path is in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from jitdnn import limits, targets
from jitdnn.errors import DeviceError, InvalidArgument, StoreError
from jitdnn.files import write_whole
from jitdnn.planner.store import Measurement, Store
from jitdnn.rtcg.cache import CodeCache, Entry, Origin, seal, unseal
from jitdnn.rtcg.use import LookUp

_MAGIC = b"jdcode\x00\x01"
_KEY = re.compile(r"[0-9a-f]{64}")
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: modules of code, measured times, and the sha256 of the file, in hex."""

    modules: int
    times: int
    digest: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why modules of a file were not taken in, and how many; `origin` is None for damaged ones.

    `kind` is "damaged", "target" (nothing here runs such code), "architecture" or "compiler" (of another version).
    """

    kind: str
    reason: str
    modules: int
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.modules} modules left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class Merged:
    """What was taken in of a file: modules that are new here, those that were there already, measured times."""

    taken: int
    known: int
    times: int
    left_out: tuple[LeftOut, ...]
    digest: str


def export_code(
    path: Path, keys: Collection[str] | None = None, looked_up: Collection[LookUp] | None = None
) -> Exported:
    """Write code of the disk cache in force, and measured times, to `path`: by default all of it.

    `keys` are those of the code, and `looked_up` names the times (`rtcg.use`). Raises InvalidArgument if there is no
    disk cache, StoreError if the file cannot be written.
    """
    cache = _cache_on_disk("exported")
    entries = [(key, entry) for key, entry in _entries(cache, keys) if entry.origin is not None]
    sizes = [[key, len(seal(key, entry))] for key, entry in entries]
    rows = [
        row
        for row in Store.default().rows()
        if looked_up is None or (row.problem, row.epilogue, row.device) in looked_up
    ]
    header = json.dumps({"entries": sizes, "times": [asdict(row) for row in rows]}).encode()
    digest = hashlib.sha256()

    def write(file: BinaryIO) -> None:
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), 0o644)  # whatever the umask: others who may write are not believed
        pieces = [_MAGIC, hashlib.sha256(header).digest(), len(header).to_bytes(8, "little"), header]
        for piece in (*pieces, *(seal(key, entry) for key, entry in entries)):
            digest.update(piece)
            file.write(piece)

    try:
        write_whole(path, write)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return Exported(len(entries), len(rows), digest.hexdigest())


def merge_code(path: Path) -> Merged:
    """Take what this machine can run of a file into the disk cache in force, and its times into the store.

    The code will be run as this user's own: the caller vouches for it. What is damaged, or for other compilers and
    architectures, is left out. Code and times that are here stay; of two times the later one does.

    Raises InvalidArgument if there is no disk cache, StoreError for a file that is none of ours, whose header is
    damaged, or that others than its owner may write, with nothing taken in, and where the cache cannot be written.
    """
    cache = _cache_on_disk("taken in")
    here: dict[str, tuple[frozenset[Origin], str]] = {}
    taken = known = 0
    refused: Counter[tuple[str, str, Origin | None]] = Counter()
    with _opened(path) as (file, digest):
        sizes, rows = _header(path, file)
        for key, size in sizes:
            sealed = file.read(size)
            entry = unseal(key, sealed)
            why = _refusal(entry, here)
            if why is not None:
                refused[why] += 1
                continue
            assert entry is not None
            if cache.entry(key) is not None:
                known += 1
            else:
                cache.put(key, entry.content, entry.origin)
                if cache.entry(key) is None:
                    raise StoreError(
                        f"the code cache in {cache.directory} does not take code of {path}: it cannot be used"
                    )
                taken += 1
        while file.read(_PIECE):
            pass  # for the digest
    Store.default().add(rows)
    left_out = tuple(
        LeftOut(kind, reason, count, origin)
        for (kind, reason, origin), count in sorted(refused.items(), key=str)
    )
    return Merged(taken, known, len(rows), left_out, digest.hexdigest())


def _cache_on_disk(done: str) -> CodeCache:
    cache = CodeCache.default()
    if cache.directory is None:
        raise InvalidArgument(
            f"the setting cache is off, so there is no code on disk: it is {done} with cache=1"
        )
    return cache


def _entries(cache: CodeCache, keys: Collection[str] | None) -> Iterator[tuple[str, Entry]]:
    for key in cache.keys() if keys is None else sorted(keys):
        entry = cache.entry(key)
        if entry is not None:
            yield key, entry


class _Hashed:
    """A file that is read from its beginning to its end, and the hash of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        found = self._file.read(size)
        self._digest.update(found)
        return found

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[_Hashed, _Hashed]]:
    """A file that nobody but its owner may change. Raises StoreError."""
    try:
        # not blocked: a pipe may have that name
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is no ordinary file")
        if hasattr(os, "geteuid") and status.st_mode & 0o022:
            raise StoreError(
                f"{path} is not taken in: its code would be run, and others than its owner may write to it (mode "
                f"{stat.S_IMODE(status.st_mode):o}, chmod go-w would do)"
            )
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        hashed = _Hashed(file)
        try:
            yield hashed, hashed
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error


def _header(path: Path, file: _Hashed) -> tuple[list[tuple[str, int]], list[Measurement]]:
    """Keys and sizes of the entries, and measured times. Raises StoreError."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise StoreError(f"{path} is no file of compiled code, or one of another version of the library")
    digest, size = file.read(32), int.from_bytes(file.read(8), "little")
    if size > limits.CODE_HEADER:
        raise StoreError(
            f"{path}: its header says {size:,} bytes, and at most {limits.CODE_HEADER:,} are read"
        )
    text = file.read(size)
    if hashlib.sha256(text).digest() != digest:
        raise StoreError(f"{path} is damaged: its header has another hash")
    try:
        header: Any = json.loads(text)
        sizes = [(key, size) for key, size in header["entries"]]
        rows = [Measurement(**row) for row in header["times"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{path}: its header is none of a file of compiled code: {error}") from error
    if len(sizes) > limits.CODE_ENTRIES:
        raise StoreError(f"{path} has {len(sizes):,} modules, and at most {limits.CODE_ENTRIES:,} are read")
    for key, size in sizes:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise StoreError(
                f"{path}: {limits.shortened(repr(key), 100)} is no key: it must be 64 lower-case hex digits"
            )
        if type(size) is not int or not 0 <= size <= limits.CODE_BYTES:
            raise StoreError(
                f"{path}: a module of {limits.shortened(repr(size), 100)} bytes: at most {limits.CODE_BYTES:,} are read"
            )
    for row in rows:
        if not row.is_sane():
            raise StoreError(f"{path}: {limits.shortened(repr(row), 500)} is no measurement")
    return sizes, rows


def _refusal(
    entry: Entry | None, here: dict[str, tuple[frozenset[Origin], str]]
) -> tuple[str, str, Origin | None] | None:
    """Why this machine cannot run an entry: kind, words, origin; None if it can. `here` is filled as it is asked."""
    if entry is None:
        return "damaged", "they are damaged", None
    origin = entry.origin
    if origin is None:
        return "damaged", "they do not say what they are for", None
    told = limits.shortened(str(origin), 300)  # somebody else's words
    if origin.target not in here:
        here[origin.target] = _found_here(origin.target)
    origins, why_none = here[origin.target]
    if origin in origins:
        return None
    if not origins:
        return "target", f"{told}, and {why_none}", origin
    architectures = sorted({each.architecture for each in origins})
    if origin.architecture not in architectures:
        return "architecture", f"{told}, and here is {', '.join(architectures)}", origin
    compilers = sorted({each.compiler for each in origins})
    return "compiler", f"{told}, and here is {', '.join(compilers)}", origin


def _found_here(name: str) -> tuple[frozenset[Origin], str]:
    """What code of a target must say for this machine to run it, or why nothing runs here."""
    target = targets.find(name)
    if target is None:
        return frozenset(), f"there is no target {limits.shortened(name)} here"
    try:
        return frozenset(
            Origin(*each) for each in target.origins()
        ), target.missing() or "no device here runs it"
    except DeviceError as error:
        return frozenset(), str(error)
