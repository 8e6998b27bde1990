"""Compiled kernels of processors: what a launch takes, and how traced code reads it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.devices import threads as native
from jitdnn.devices.threads import Table, phase_table
from jitdnn.recorders import recorder_here, recorders
from jitdnn.rtcg.builder import Builder
from jitdnn.rtcg.compile import Library


@dataclass(frozen=True)
class Kept:
    """What a kernel prepares from its filter alone, so that a caller may have it done once and keep it.

    The first ``phases`` phases read only the filter and write only the first ``bytes`` bytes of the workspace;
    the later ones read these bytes through ``Arguments.kept`` and write none of them. ``layout`` says how they lie,
    where that does not depend on all of the problem: kernels of one algorithm and layout share what one prepared.
    """

    bytes: int
    phases: int
    layout: str = ""


class CpuKernel:
    """Compiled code and how to launch it: phases of (function name, tasks), one after the other.

    Every task gets the argument block: the pointers, the workspace, alpha and beta as doubles, where the
    prepared filter lies, then ``extras``, the integers that the code takes at run time. ``threads`` share the tasks of
    a phase; where no phase has several, one runs them all. ``workspace``: the bytes of it that the code uses, where
    whoever made the kernel says so.
    """

    def __init__(
        self, library: Library, phases: Sequence[tuple[str, int]], pointers: int, threads: int,
        extras: Sequence[int] = (), kept: Kept | None = None, workspace: int | None = None,
    ) -> None:  # fmt: skip
        self._library = library  # the code lives as long as the kernel
        self._names = list(phases)
        self._phases = [(library.address(name), tasks) for name, tasks in phases]
        self._table = phase_table(self._phases)
        self._count = len(self._phases)
        self._threads = threads if any(tasks > 1 for _, tasks in phases) else 1
        self._extras = struct.pack(f"{len(extras)}q", *extras)
        self._pointers = pointers
        self._pack = struct.Struct(f"{pointers + 1}q2dq{len(self._extras)}s").pack
        self.kept = kept
        self.workspace = workspace
        if kept is not None:
            self._leading = phase_table(self._phases[: kept.phases])
            self._later = phase_table(self._phases[kept.phases :])

    def record(self) -> dict[str, Any]:
        """What the kernel is made of, in words and numbers; "library" is the key of its code, None if it has none."""
        return {
            "library": self._library.key, "phases": self._names, "pointers": self._pointers, "threads": self._threads,
            "extras": self._extras.hex(), "kept": self.kept and [self.kept.bytes, self.kept.phases, self.kept.layout],
            "workspace": self.workspace,
        }  # fmt: skip

    @classmethod
    def from_record(cls, library: Library, record: Mapping[str, Any]) -> CpuKernel:
        """The kernel of a `record`, without "library", and of its code. Raises ValueError, TypeError and KeyError for
        what is no record."""
        extras = bytes.fromhex(record["extras"])
        kept = record["kept"]
        return cls(
            library, [(str(name), int(tasks)) for name, tasks in record["phases"]], record["pointers"],
            record["threads"], struct.unpack(f"{len(extras) // 8}q", extras), Kept(*kept) if kept else None,
            record["workspace"],
        )  # fmt: skip

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        block = self._pack(*pointers, workspace, alpha, beta, workspace, self._extras)
        if recorders and self._is_noted(self._table, self._count, block, pointers, workspace, workspace):
            return
        native.launch(self._table, self._count, block, self._threads)

    def _is_noted(
        self, table: Table, count: int, block: bytes, pointers: Sequence[int], workspace: int, kept: int
    ) -> bool:
        """Whether somebody records the launches of this thread and has noted this one, so that it is not to run."""
        recorder = recorder_here()
        if recorder is None:
            return False
        anchors = list(enumerate(pointers))
        if workspace:
            anchors.append((self._pointers, workspace))
        if kept:
            anchors.append((self._pointers + 3, kept))
        return recorder.add(self, table, count, block, self._threads, anchors)

    def keep(self, stream: Any, pointers: Sequence[int], memory: int) -> None:
        """Prepare the filter: run the leading phases, which fill ``kept.bytes`` bytes at ``memory``.

        ``memory`` is 64-byte aligned. Of the ``pointers`` only the filter's is used.
        """
        assert self.kept is not None
        block = self._pack(*pointers, memory, 1.0, 0.0, memory, self._extras)
        native.launch(self._leading, self.kept.phases, block, self._threads)

    def run_kept(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int, memory: int
    ) -> None:
        """Run the other phases with what ``keep`` left at ``memory``; the filter itself is not read.

        ``workspace`` has ``kept.bytes`` bytes less than an ordinary call needs.
        """
        assert self.kept is not None
        # where the workspace would begin if the prepared filter lay in it: nobody touches those bytes
        start = workspace - self.kept.bytes
        block = self._pack(*pointers, start, alpha, beta, memory, self._extras)
        count = self._count - self.kept.phases
        if recorders and self._is_noted(self._later, count, block, pointers, workspace, memory):
            return
        native.launch(self._later, count, block, self._threads)


class WithTables:
    """A kernel and the tables that it reads, which live as long as it does; their addresses are among its extras."""

    def __init__(self, kernel: CpuKernel, tables: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.kernel, self.tables = kernel, tables

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        self.kernel(stream, pointers, alpha, beta, workspace)


def launch(
    owner: object,
    phases: Sequence[tuple[int, int]],
    block: bytes,
    threads: int,
    anchors: Sequence[tuple[int, int]],
) -> None:
    """Run (function address, tasks) one after the other, every task with the argument block.

    ``anchors``: (slot of the block, address that is in it). ``owner`` keeps the code alive.
    """
    table = phase_table(phases)
    recorder = recorder_here()
    if recorder is None or not recorder.add(owner, table, len(phases), block, threads, anchors):
        native.launch(table, len(phases), block, threads)


class Arguments:
    """The argument block of ``CpuKernel`` as traced code reads it."""

    def __init__(self, k: Builder, args: Any, pointers: int) -> None:
        self.k, self.args, self._pointers = k, args, pointers

    def pointer(self, number: int, dtype: str) -> Any:
        """The pointer to operand ``number``."""
        return self.k.pointer(self.args, number, dtype)

    def workspace(self, dtype: str) -> Any:
        return self.k.pointer(self.args, self._pointers, dtype)

    def alpha(self, dtype: str) -> Any:
        return self.k.number(self.args, self._pointers + 1, dtype)

    def beta(self, dtype: str) -> Any:
        return self.k.number(self.args, self._pointers + 2, dtype)

    def kept(self, dtype: str) -> Any:
        """What the leading phases made of the filter: the start of the workspace, or memory of the caller."""
        return self.k.pointer(self.args, self._pointers + 3, dtype)

    def extra(self, number: int) -> Any:
        """Integer ``number`` of the kernel's extras."""
        return self.args.load(first_extra(self._pointers) + number)


def first_extra(pointers: int) -> int:
    """The slot of the argument block in which the extras of a kernel of so many pointers begin."""
    return pointers + 4
