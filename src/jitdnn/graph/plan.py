"""What runs for one kind of inputs: lists of launches, functions of the host in between, and memory planned once."""

from __future__ import annotations

import copy
import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.graph.arena import Arena, Need, place
from jitdnn.graph.ir import AnyArray, Graph
from jitdnn.graph.lower.ahead import lowered
from jitdnn.graph.lower.builder import Builder, Event
from jitdnn.tensor import dtype_of
from jitdnn.tensor.array import address_of
from jitdnn.tensor.borrowed import strided_view

MOST_IDLE = 2  # places of a plan on a GPU that wait for a run


@dataclass(frozen=True)
class Host:
    """A function of the host: what it reads and writes, as (piece, offset, shape, strides in elements, dtype) or, of
    constants, the array."""

    run: Callable[..., Any]
    title: str
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]

    def results(
        self, arrays: Sequence[AnyArray], bodies: Any, like: Sequence[AnyArray]
    ) -> Sequence[AnyArray]:
        """What the function gives. Raises Unforeseen where that is of other kinds than these arrays."""
        found: Sequence[AnyArray] = self.run(arrays, bodies)
        for result, wanted in zip(found, like, strict=True):
            if np.shape(result) != wanted.shape or result.dtype != wanted.dtype:
                raise Unforeseen(self.title)
        return found


class Unforeseen(Exception):
    """A function of the host gave a result of another kind than was inferred; its title."""


class Plan:
    """A graph ready to run, by any number of threads at once.

    `events` say what was recorded for which nodes, `nbytes` are those of one arena, with the workspace of kernels.
    """

    def __init__(self, graph: Graph, builder: Builder) -> None:
        self.graph = graph
        builder = self._lowered(builder)
        self.events = builder.events
        self._outputs = [(tuple(array.shape), array.dtype) for _, array in builder.outputs]
        self._output_pieces = [builder.pieces.index(buffer) for buffer, _ in builder.outputs]
        self._arenas = builder.shared.arenas
        self._owners = (builder.shared, builder.handle, graph)
        originals = builder.shared.originals
        originals.read(builder.reads | builder.recorder.reads)
        if any(event.host is not None for event in builder.events):
            originals.stay()  # nobody knows what such a function reads
        self._settle(builder)

    @property
    def launches(self) -> int:
        """How many kernels a run launches."""
        return sum(len(step) for step in self._program if not isinstance(step, Host))

    def _lowered(self, builder: Builder) -> Builder:
        return lowered(builder)

    def _settle(self, b: Builder) -> None:
        """Place what lies in the arena, and cut the recording where functions of the host run."""
        used: dict[int, list[int]] = {}
        moving = b.recorder.moving()
        pieces_at = _Finder(b)
        for at, event in enumerate(b.events):
            touched: set[int | None] = {
                number for note in moving[event.first : event.last] for number in note if number >= 0
            }
            touched |= {pieces_at.number(a) for a in (*event.reads, *event.writes) if a.size}
            for number in touched:
                if number is not None and number >= 0:
                    used.setdefault(number, [at, at])[1] = at
        arena = [n for n, buffer in enumerate(b.pieces) if buffer.kind == "arena" and n in used]
        offsets, total = place([Need(b.pieces[n].bytes, *used[n]) for n in arena])
        where: dict[int, tuple[int, int]] = {n: (0, offset) for n, offset in zip(arena, offsets, strict=True)}
        given = [n for n, buffer in enumerate(b.pieces) if buffer.kind != "arena"]
        for position, number in enumerate(given, start=1):
            where[number] = (position, 0)
        self._order = [b.pieces[n].kind for n in given]
        self._program: list[Any] = []
        cut = 0
        for event in b.events:
            if event.host is None:
                continue
            self._add_launches(b, cut, event.first, where, len(given) + 1)
            cut = event.last
            self._program.append(
                Host(
                    event.host,
                    event.node.attributes["title"],
                    tuple(pieces_at.described(a, where) for a in event.reads),
                    tuple(pieces_at.described(a, where) for a in event.writes),
                )
            )
        self._add_launches(b, cut, len(b.recorder), where, len(given) + 1)
        scratch = max((step.scratch for step in self._program if not isinstance(step, Host)), default=0)
        self._scratch = total
        self.nbytes = total + scratch

    def _add_launches(self, b: Builder, first: int, last: int, where: Any, pieces: int) -> None:
        if last > first:
            self._program.append(b.recorder.part(first, last, where, pieces))

    def allocate(self) -> list[AnyArray]:
        """Memory for the outputs of a run."""
        return [np.empty(shape, dtype) for shape, dtype in self._outputs]

    def run(
        self, inputs: Sequence[AnyArray], bodies: Any = None, out: Sequence[AnyArray] | None = None
    ) -> list[AnyArray]:
        """The outputs for inputs that lie densely, in the order of the graph."""
        outputs = self.allocate() if out is None else list(out)
        arena = self._arenas.take(self.nbytes)
        addresses = [arena.address, *map(address_of, inputs), *map(address_of, outputs)]
        scratch = arena.address + self._scratch
        for step in self._program:
            if not isinstance(step, Host):
                step.run(addresses, scratch if step.scratch else 0)
            else:
                self._host(step, addresses, bodies)
        self._arenas.give(arena)
        return outputs

    def _host(self, step: Host, addresses: Sequence[int], bodies: Any) -> None:
        made = [_real(one, addresses) for one in step.writes]
        results = step.results([_real(one, addresses) for one in step.reads], bodies, made)
        for result, target in zip(results, made, strict=True):
            target[...] = result

    def hollow(self) -> Plan:
        """The same without what the host runs, and with kernels that do nothing: its runs take what a run costs beside
        them, and leave their outputs as they are."""
        found = copy.copy(self)
        found._program = [step.hollow() for step in self._program if not isinstance(step, Host)]
        return found

    def times(self, inputs: Sequence[AnyArray], bodies: Any = None) -> list[float]:
        """Seconds of each event, in the order of `events`, measured in one run."""
        outputs, arena = self.allocate(), Arena(self.nbytes)
        for memory in (
            arena.memory,
            *outputs,
        ):  # or the kernels' times would be those of the system's page faults
            memory.fill(0)
        addresses = [arena.address, *map(address_of, inputs), *map(address_of, outputs)]
        found: list[float] = []
        launches: list[float] = []
        hosts: list[float] = []
        for step in self._program:
            if not isinstance(step, Host):
                ticks = step.times(addresses, arena.address + self._scratch if step.scratch else 0)
                launches += [(b - a) * 1e-9 for a, b in itertools.pairwise(ticks)]
            else:
                begun = time.perf_counter()
                self._host(step, addresses, bodies)
                hosts.append(time.perf_counter() - begun)
        for event in self.events:
            found.append(hosts.pop(0) if event.host is not None else sum(launches[event.first : event.last]))
        return found


def _real(one: Any, addresses: Sequence[int]) -> AnyArray:
    if isinstance(one, np.ndarray):
        return one
    piece, offset, shape, strides, dtype = one
    if not shape:
        return strided_view(addresses[piece] + offset, (1,), (1,), dtype).reshape(())
    return strided_view(addresses[piece] + offset, shape, strides, dtype)


class _Finder:
    """Which piece of memory an array of the builder lies in."""

    def __init__(self, b: Builder) -> None:
        pairs = sorted((buffer.address, n) for n, buffer in enumerate(b.pieces))
        self._starts = [address for address, _ in pairs]
        self._numbers = [n for _, n in pairs]
        self._pieces = b.pieces

    def number(self, array: AnyArray) -> int | None:
        address = int(array.__array_interface__["data"][0])
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        buffer = self._pieces[self._numbers[at]]
        return self._numbers[at] if address < buffer.address + max(1, buffer.bytes) else None

    def described(self, array: AnyArray, where: dict[int, tuple[int, int]]) -> Any:
        number = self.number(array) if array.size else None
        if number is None:
            return array
        piece, start = where[number]
        offset = start + int(array.__array_interface__["data"][0]) - self._pieces[number].address
        strides = tuple(s // array.itemsize for s in array.strides)
        return piece, offset, tuple(array.shape), strides, dtype_of(array.dtype)


__all__ = ["Event", "Plan"]
