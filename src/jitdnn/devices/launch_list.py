"""Launches of a program noted once and replayed by one call of generated code.

    recorder = Recorder()
    arena = recorder.memory(address, size)    # its place in what `LaunchList.run` is given
    recorder.constant(address, size, owner)   # stays where it is, as it is
    with recorder:
        jd.conv(x, w, out=y)                  # of x, w and y every byte lies in one of these
    launches = recorder.finish()
    launches.run([address_of_another_arena])

Inside of the block kernels are chosen, compiled and noted, and do not run. A replay is no Python for each kernel: the
addresses in the argument blocks are moved to where the memory is now, then all launches run (`threads_runtime.py`).

What Python does in between is not replayed. So a launch is refused (NotRecordable) where one of its operands lies in
known memory and another does not, and so is code that looks at the memory itself: NumPy's products inside of im2col,
values that an op checks. Launches on no memory that moves, such as those of a signal handler or of the planner when it
measures, run as ever.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from jitdnn.devices import threads as native
from jitdnn.devices.host_scratch import HostScratch
from jitdnn.devices.threads import Table
from jitdnn.devices.threads_runtime import (
    ENTRY_SLOTS,
    STATE_BASES,
    STATE_BLOCKS,
    STATE_ENTRIES,
    STATE_LAUNCHES,
    STATE_NOW,
    STATE_SLOTS,
    STATE_STARTS,
    STATE_THREADS,
)
from jitdnn.errors import InvalidArgument
from jitdnn.recorders import NotRecordable, recorders

_SLOT = 8
_HEADER = 16  # slots of a state before its tables
_ALIGNMENT = 64
# where workspaces lie while launches are recorded: no address of a process, for nobody reads or writes there
_SCRATCH = 1 << 60
_PLACED, _PIECE_BITS = 1 << 61, 44  # and pieces of memory that others are put together in
_INTEGER = struct.Struct("q")
_CONSTANT, _WORKSPACE = -1, -2  # in place of the number of a piece of memory

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


class _Piece(NamedTuple):
    start: int
    end: int
    number: int


class _Note(NamedTuple):
    owner: object  # of the code
    phases: Table
    phase_count: int
    block: bytes
    threads: int
    moving: tuple[tuple[int, int], ...]  # (slot of the block, number of the memory that it points into)


class Recorder:
    """Notes the launches of one thread; see above. Used once, by the thread that enters it."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # by address; no two overlap
        self._addresses: list[int] = []
        self._notes: list[_Note] = []
        self._owners: dict[int, object] = {}
        #: addresses in constants that launches read
        self.reads: set[int] = set()
        self._passed: Sequence[int] = ()
        self._scratch = 0
        self._finished = False

    def __len__(self) -> int:
        """Launches so far."""
        return len(self._notes)

    def memory(self, address: int, size: int) -> int:
        """Say that so many bytes from an address on may lie elsewhere in a replay; returns their number, from 0 on.

        Raises InvalidArgument where they overlap others.
        """
        number = len(self._addresses)
        if size > 0:
            self._insert(_Piece(address, address + size, number))
        self._addresses.append(address)
        return number

    def constant(self, address: int, size: int, owner: object) -> None:
        """Say that so many bytes from an address on are the same in every replay; `owner` keeps them alive.

        Raises InvalidArgument where they overlap memory that moves.
        """
        self.keep(owner)
        start, end = address, address + size
        if size <= 0:
            return
        for other in self._overlapping(start, end):
            if other.number != _CONSTANT:
                break
            self._pieces.remove(other)
            start, end = min(start, other.start), max(end, other.end)
        self._insert(_Piece(start, end, _CONSTANT))

    def _overlapping(self, start: int, end: int) -> list[_Piece]:
        first = max(0, bisect_right(self._pieces, (start, 0, 0)) - 1)
        found = []
        for piece in self._pieces[first:]:
            if piece.start >= end:
                break
            if piece.end > start:
                found.append(piece)
        return found

    def _insert(self, piece: _Piece) -> None:
        for other in self._overlapping(piece.start, piece.end):
            raise InvalidArgument(
                f"{piece.end - piece.start} bytes at {piece.start:#x} overlap {other.end - other.start} at "
                f"{other.start:#x}: pieces of memory that are recorded must lie apart"
            )
        insort(self._pieces, piece)

    def _number(self, address: int) -> int | None:
        """Of the piece in which an address lies, None for other memory."""
        if address >= _SCRATCH:
            return _WORKSPACE
        place = bisect_right(self._pieces, (address, _SCRATCH, _SCRATCH)) - 1
        if place < 0 or address >= self._pieces[place].end:
            return None
        return self._pieces[place].number

    def __enter__(self) -> Self:
        if self._finished or recorders.get(get_ident()) is not None:
            raise InvalidArgument("launches of this thread are recorded already: recordings do not nest")
        recorders[get_ident()] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorders.pop(get_ident(), None)

    # what the parts of the library that launch kernels ask of a recorder: see recorders.py

    def takes(self, addresses: Sequence[int]) -> bool:
        return any(self._moves(self._number(address)) for address in addresses)

    @staticmethod
    def _moves(number: int | None) -> bool:
        return number is not None and number != _CONSTANT

    def scratch(self, size: int) -> int:
        if not size:
            return 0
        self._scratch = max(self._scratch, size)
        return _SCRATCH

    def keep(self, owner: object) -> None:
        self._owners[id(owner)] = owner

    @contextmanager
    def passing(self, addresses: Sequence[int]) -> Iterator[None]:
        outer, self._passed = self._passed, addresses
        try:
            yield
        finally:
            self._passed = outer

    def require_no_view(self, address: int) -> None:
        if self._moves(self._number(address)):
            raise NotRecordable(
                "Python looks at the memory of an operand, which a replay of launches would leave out"
            )

    def add(
        self, owner: object, phases: Table, count: int, block: bytes, threads: int,
        anchors: Sequence[tuple[int, int]],
    ) -> bool:  # fmt: skip
        numbers = [(slot, self._number(address)) for slot, address in anchors]
        moving = tuple(
            (slot, number) for slot, number in numbers if number is not None and self._moves(number)
        )
        if not moving:
            return False
        if any(number is None for _, number in numbers):
            raise NotRecordable(
                "a launch has operands in memory that the recording does not know: a temporary array, or an empty one"
            )
        constants = {address for slot, address in anchors if self._number(address) == _CONSTANT}
        self.reads |= constants.difference(self._passed)
        self._notes.append(_Note(owner, phases, count, block, threads, moving))
        return True

    def moving(self) -> list[frozenset[int]]:
        """Of each launch, the numbers of the memory that it reads or writes; -2 is its workspace."""
        return [frozenset(number for _, number in note.moving) for note in self._notes]

    def part(self, first: int, last: int, where: Mapping[int, tuple[int, int]], pieces: int) -> LaunchList:
        """The launches from one to before another, with memory put together.

        `where` says of each number of `memory` in which of so many `pieces` it is to lie, and at which byte: the
        list's `run` takes the addresses of those.
        """
        bases = [_PLACED + (number << _PIECE_BITS) for number in range(pieces)]
        notes = []
        for note in self._notes[first:last]:
            block = bytearray(note.block)
            moving = []
            for slot, number in note.moving:
                if number >= 0:
                    piece, offset = where[number]
                    (address,) = _INTEGER.unpack_from(block, _SLOT * slot)
                    _INTEGER.pack_into(
                        block, _SLOT * slot, address - self._addresses[number] + bases[piece] + offset
                    )
                    number = piece
                moving.append((slot, number))
            notes.append(note._replace(block=bytes(block), moving=tuple(moving)))
        has_scratch = any(number == _WORKSPACE for note in notes for _, number in note.moving)
        return LaunchList(notes, bases, self._scratch if has_scratch else 0, list(self._owners.values()))

    def finish(self) -> LaunchList:
        """What was recorded; nothing more can be."""
        self._finished = True
        return LaunchList(self._notes, self._addresses, self._scratch, list(self._owners.values()))


class LaunchList:
    """Launches that run one after the other in one call. Any number of threads may run it at once.

    `threads`: the most that one of them takes. `scratch`: bytes of workspace that they need together, one after the
    other in the same memory.
    """

    def __init__(
        self, notes: Sequence[_Note], addresses: Sequence[int], scratch: int, owners: list[object]
    ) -> None:
        self.scratch = scratch
        self.threads = max((note.threads for note in notes), default=1)
        self._owners = owners
        self._notes = list(notes)
        # the workspace is one more piece of memory, the last
        self._recorded = [*addresses, _SCRATCH] if scratch else list(addresses)
        self._pack = struct.Struct(f"{len(self._recorded)}q").pack
        self._blocks = b"".join(note.block for note in notes)
        lengths = [len(note.block) // _SLOT for note in notes]
        assert all(len(note.block) % _SLOT == 0 for note in notes)
        self._firsts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        moving: list[list[int]] = [[] for _ in self._recorded]
        for note, first in zip(notes, self._firsts.tolist(), strict=False):
            for slot, number in note.moving:
                moving[number if number >= 0 else -1].append(first + slot)
        self._slots: Integers = np.array([slot for slots in moving for slot in slots], np.int64)
        self._starts: Integers = np.cumsum([0, *(len(slots) for slots in moving)]).astype(np.int64)
        self._states: list[State] = []  # those that no run is using

    def __len__(self) -> int:
        """Launches."""
        return len(self._notes)

    def hollow(self) -> LaunchList:
        """The same launches, with as many tasks, none of which does anything: what is left is what they cost beside
        their kernels."""
        idle, notes = native.idle_task(), []
        for note in self._notes:
            table = type(note.phases)(*note.phases)
            table[: 2 * note.phase_count : 2] = [idle] * note.phase_count
            notes.append(note._replace(phases=table))
        addresses = self._recorded[: len(self._recorded) - bool(self.scratch)]
        return LaunchList(notes, addresses, self.scratch, self._owners)

    @property
    def owners(self) -> list[object]:
        """Of each launch, what holds its code: a `CpuKernel` mostly."""
        return [note.owner for note in self._notes]

    def run(self, addresses: Sequence[int], scratch: int = 0) -> None:
        """Run all launches; returns when the last has ended.

        `addresses`: where each piece of `Recorder.memory` lies now. `scratch`: the address of `self.scratch` bytes of
        workspace, a multiple of 64; 0 for memory that the list keeps itself.
        """
        self._run(addresses, scratch, None)

    def runner(self, blocks: HostScratch) -> Callable[[Sequence[int]], None]:
        """`run(addresses)` with workspace from `blocks`, for who calls it often: one function, without what only lists
        on several threads need."""
        states, pack, size, take, give_back = (
            self._states,
            self._pack,
            self.scratch,
            blocks.take,
            blocks.give_back,
        )
        if self.threads > 1:
            if not size:
                return self.run

            def run_on_several(addresses: Sequence[int]) -> None:
                block = take(size)
                try:
                    self.run(addresses, block.pointer)
                finally:
                    give_back(block)

            return run_on_several
        replay = native.serial_replay()

        def run(addresses: Sequence[int]) -> None:
            try:
                state = states.pop()
            except IndexError:
                state = State(self)
            replay(state.address, pack(*addresses), None)
            states.append(state)

        def run_with_workspace(addresses: Sequence[int]) -> None:
            block = take(size)
            try:
                try:
                    state = states.pop()
                except IndexError:
                    state = State(self)
                replay(state.address, pack(*addresses, block.pointer), None)
                states.append(state)
            finally:
                give_back(block)

        return run_with_workspace if size else run

    def times(self, addresses: Sequence[int], scratch: int = 0) -> list[int]:
        """Run all launches and return when the run began and when each launch ended, in nanoseconds of a clock of its
        own (on Windows ticks of the processor)."""
        clock = np.zeros(len(self._notes) + 1, np.int64)
        self._run(addresses, scratch, clock.ctypes.data)
        found: list[int] = clock.tolist()
        return found

    def _run(self, addresses: Sequence[int], scratch: int, clock: int | None) -> None:
        try:
            state = self._states.pop()  # atomic, so threads never get the same
        except IndexError:
            state = State(self)
        if self.scratch:
            bases = self._pack(*addresses, scratch or state.scratch(self.scratch))
        else:
            bases = self._pack(*addresses)
        # whoever is interrupted here loses the state, which is made again
        native.replay(state.address, bases, self.threads, clock)
        self._states.append(state)

    def new_state(self) -> State:
        """What a caller of `replay` that is not Python hands over: one run at a time."""
        return State(self)

    def state_arrays(self) -> tuple[Sequence[_Note], bytes, Integers, list[int], Integers, Integers]:
        """What states are made of."""
        return self._notes, self._blocks, self._firsts, self._recorded, self._starts, self._slots


class State:
    """What one run at a time writes to: the argument blocks, and where their addresses point.

    `address` is what the generated code takes. The launches must live as long.
    """

    def __init__(self, launches: LaunchList) -> None:
        notes, blocks, firsts, recorded, starts, slots = launches.state_arrays()
        entries = _HEADER + len(recorded)
        first_block = entries + ENTRY_SLOTS * len(notes)
        memory = np.zeros(first_block + len(blocks) // _SLOT, np.int64)
        self._memory = memory
        self._scratch: tuple[np.ndarray[Any, Any], int] | None = None
        self.address = start = int(memory.ctypes.data)
        memory[_HEADER:entries] = recorded
        memory[first_block:] = np.frombuffer(blocks, np.int64)
        for number, note in enumerate(notes):
            place = entries + ENTRY_SLOTS * number
            block = start + _SLOT * (first_block + int(firsts[number]))
            memory[place : place + ENTRY_SLOTS] = (
                _address_of(note.phases),
                note.phase_count,
                block,
                note.threads,
            )
        memory[STATE_LAUNCHES], memory[STATE_THREADS] = len(notes), launches.threads
        memory[STATE_ENTRIES] = start + _SLOT * entries
        memory[STATE_BASES], memory[STATE_NOW] = len(recorded), start + _SLOT * _HEADER
        memory[STATE_STARTS], memory[STATE_SLOTS] = starts.ctypes.data, slots.ctypes.data
        memory[STATE_BLOCKS] = start + _SLOT * first_block

    def scratch(self, size: int) -> int:
        """Memory for workspaces, for runs that are given none."""
        if self._scratch is None:
            memory = np.empty(size + _ALIGNMENT, np.uint8)
            start = int(memory.ctypes.data)
            self._scratch = memory, start + -start % _ALIGNMENT
        return self._scratch[1]


def _address_of(table: Table) -> int:
    return ctypes.addressof(table)
