"""Batches made ahead: one thread reads records in order, others decode and transform them, the net takes them in order.

What is in a batch depends on its place alone: records are read by one thread, and what is random about each image is
drawn before it is decoded. Every batch carries the place and the state of the generator behind it, so that a resume
goes on from the last batch that was taken, whatever was made ahead of it.

Threads, as pillow and NumPy let go of Python's lock while they decode and convert. They are daemons that end when their
layer goes or the interpreter does; in a forked process, which has none of them, a layer starts new ones. Where a net
still waits for images that have to be decoded, and there are cores enough, each thread gets a process that does it
(decode_processes.py).
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import prod
from threading import Condition, Thread
from time import perf_counter
from typing import Any

import numpy as np

from jitdnn import log
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.decode_processes import (
    MOST_PROCESSES,
    DecodeProcess,
    ProcessEndedError,
    Recipe,
    can_start,
)
from jitdnn.caffe.decoding import Batch, Part, label_shape, make
from jitdnn.caffe.parts import Turns
from jitdnn.caffe.raw_images import RawForm
from jitdnn.caffe.sources import Source
from jitdnn.caffe.transform import Transform
from jitdnn.errors import InvalidArgument
from jitdnn.settings import available_cores, current

#: threads that decode for one layer: more than this many starve each other of Python's lock
MOST_WORKERS = 16
#: cores from which on processes decode where the net waits: fewer threads do not hold each other up
LEAST_CORES = 4
_MOST_WAITED = 0.05  # of the time, without processes
_WINDOW = 8  # batches over which that is looked at
_LEAST_BYTES = 1 << 18  # of a part: less is made sooner than it is handed over


@dataclass
class Waited:
    """How long a net has waited for its data: `seconds` of it in all, for so many `batches`."""

    seconds: float = 0.0
    batches: int = 0


class _Look:
    """Whether a net waits for its data, over some batches at a time and not for the first ones."""

    def __init__(self) -> None:
        self._batches = 0
        self._since = (0.0, 0.0)

    def is_starving(self, waited: Waited) -> bool:
        """Called for each batch."""
        self._batches += 1
        if self._batches % _WINDOW:
            return False
        (begin, before), now = self._since, perf_counter()
        self._since = now, waited.seconds
        return self._batches > _WINDOW and waited.seconds - before > _MOST_WAITED * (now - begin)


@dataclass(eq=False)
class _Work:
    """What the threads share."""

    source: Source
    transformer: Transform
    batch_size: int
    depth: int
    dtype: np.dtype[Any]
    rows: slice  # of each batch, those that are wanted
    turns: Turns  # of each batch, whether any is
    form: RawForm | None  # of batches whose images stay bytes
    workers: int  # threads that make parts
    changed: Condition = field(default_factory=Condition)
    batches: deque[Batch] = field(default_factory=deque)
    parts: deque[Part] = field(default_factory=deque)
    spare: list[Batch] = field(default_factory=list)
    is_stopped: bool = False
    threads: list[Thread] = field(default_factory=list)
    processes: deque[DecodeProcess] = field(default_factory=deque)  # that no thread has yet

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.parts.clear()
            self.changed.notify_all()


class Pipeline:
    """Makes the batches of one layer ahead, `depth` of them."""

    def __init__(
        self,
        source: Source,
        transformer: Transform,
        batch_size: int,
        dtype: np.dtype[Any],
        depth: int,
        place: int,
        random_state: Mapping[str, Any],
        waited: Waited,
        workers: int | None = None,
        rows: slice | None = None,
        turns: Turns | None = None,
        form: RawForm | None = None,
    ) -> None:
        """Start the threads; the first batch begins at `place`, with the generator (PCG64) in that state. `waited` is
        added to. Without `workers` there are as many as cores, 16 at most. With `rows` only these of each batch are
        decoded, with `turns` only batches whose turn it is. With `form` images stay bytes, in batches of that form,
        where those of a batch are bytes. The setting `data_processes` says how many processes decode from the start;
        where it is None, they are started when the net waits.
        """
        cores = available_cores()
        workers = min(cores, MOST_WORKERS) if workers is None else workers
        processes = current().data_processes
        self._process = os.getpid()
        self._waited = waited
        rows = slice(0, batch_size) if rows is None else rows
        turns = Turns(0, 1) if turns is None else replace(turns)
        self._work = _Work(source, transformer, batch_size, max(depth, 1), dtype, rows, turns, form, workers)
        self._look: _Look | None = None
        random = np.random.Generator(np.random.PCG64())
        random.bit_generator.state = random_state
        self._work.threads = [
            Thread(target=_feed, args=(self._work, place, random), daemon=True, name="jitdnn data"),
            *(_decoder(self._work) for _ in range(workers)),
        ]
        self._end = weakref.finalize(self, self._work.stop)
        self._end.atexit = False
        _running.add(self._work)
        for thread in self._work.threads:
            thread.start()
        if processes:
            self._start_processes(processes)
        elif processes is None and cores >= LEAST_CORES:
            self._look = _Look()

    def _start_processes(self, count: int) -> None:
        """Have so many processes decode, as soon as they are there."""
        self._look = None
        work = self._work
        source = work.source.for_process() if can_start() else None
        if source is None:
            return
        recipe = Recipe(source, work.transformer, work.form, work.dtype)
        starter = Thread(target=_start, args=(work, recipe, count), daemon=True, name="jitdnn start")
        work.threads.append(starter)
        starter.start()

    def take(self) -> Batch:
        """The next batch, in order; give it back (`give_back`) when it is copied.

        Raises what went wrong in making it; every later call raises it again.
        """
        work, start = self._work, perf_counter()
        with work.changed:
            while not (work.batches and work.batches[0].waiting == 0):
                if work.is_stopped:
                    raise InvalidArgument("the threads that make batches have ended")
                work.changed.wait()
            batch = work.batches[0]
            if batch.errors:
                raise batch.errors[min(batch.errors)]
            work.batches.popleft()
            work.changed.notify_all()
        self._waited.seconds += perf_counter() - start
        self._waited.batches += 1
        is_starving = self._look is not None and self._look.is_starving(self._waited)
        if is_starving and 2 * batch.decoded > len(batch.labels):
            self._start_processes(min(available_cores(), MOST_PROCESSES))
        return batch

    @property
    def is_mine(self) -> bool:
        """Whether this process started it: behind a fork its threads are not there."""
        return self._process == os.getpid()

    def give_back(self, batch: Batch) -> None:
        """Let the memory of a batch be used for another one."""
        if batch.labels.size:
            with self._work.changed:
                self._work.spare.append(batch)

    def stop(self) -> None:
        """End the threads; batches made ahead are lost."""
        self._end()


_running: weakref.WeakSet[_Work] = weakref.WeakSet()


def _behind_a_fork() -> None:
    """The threads are not there, and one of them may have held the lock."""
    for work in list(_running):
        work.changed, work.is_stopped, work.threads = Condition(), True, []
        work.parts.clear()
        work.processes.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_behind_a_fork)


@atexit.register
def _stop_all() -> None:
    """End all threads before the interpreter does, as a thread in the middle of C code would end with it."""
    for work in list(_running):
        work.stop()
        for thread in work.threads:
            if thread.ident is not None and thread.is_alive():
                thread.join(timeout=5.0)


def _feed(work: _Work, place: int, random: np.random.Generator) -> None:
    """Read the records of batch after batch and deal them out."""
    batch: Batch | None = None
    itemsize = 1 if work.form is not None else work.dtype.itemsize
    least = _LEAST_BYTES // max(1, prod(work.transformer.shape) * itemsize)
    try:
        with closing(_records(work, place)) as records:
            while True:
                with work.changed:
                    while len(work.batches) >= work.depth and not work.is_stopped:
                        work.changed.wait()
                    if work.is_stopped:
                        return
                    batch = work.spare.pop() if work.spare and work.turns.is_mine else None
                rows = work.rows if work.turns.is_mine else slice(0, 0)
                if batch is None:
                    batch = _new_batch(work, rows.stop - rows.start)
                found = []
                for row in range(work.batch_size):
                    record, place = next(records)
                    if rows.start <= row < rows.stop:
                        found.append(record)
                draws = work.transformer.draw(random, work.batch_size)[rows]
                batch.next_place, batch.random_state = place, dict(random.bit_generator.state)
                batch.refusal, batch.decoded = "", 0
                if batch.raw is not None:
                    batch.images = None
                work.turns.passed += 1
                step = max(-(-max(1, len(found)) // max(1, 2 * work.workers)), least)
                starts = range(0, len(found), step)
                parts = [Part(batch, i, found[i : i + step], draws[i : i + step]) for i in starts]
                batch.parts, batch.waiting = [] if batch.raw is None else parts, len(parts)
                with work.changed:
                    work.batches.append(batch)
                    work.parts.extend(parts)
                    work.changed.notify_all()
                batch = None
    except BaseException as error:  # told to the thread that takes the batch
        # without images: memory may be what is missing
        failed = Batch(np.empty(0), np.empty(0), 0, {}, errors={0: error})
        with work.changed:
            work.batches.append(failed)
            work.changed.notify_all()


def _records(work: _Work, place: int) -> Generator[tuple[Any, int]]:
    yield from work.source.records(place)


def _new_batch(work: _Work, images: int) -> Batch:
    labels = np.empty((images, *label_shape(work.source, work.transformer)), work.dtype)
    if work.form is not None:
        return Batch(None, labels, 0, {}, work.form.new(images))
    return Batch(_numbers(work, images), labels, 0, {})


def _numbers(work: _Work, images: int) -> Array:
    shape: Shape = (images, *work.transformer.shape)
    return np.empty(shape, work.dtype)


def _decoder(work: _Work) -> Thread:
    return Thread(target=_decode, args=(work,), daemon=True, name="jitdnn decode")


def _start(work: _Work, recipe: Recipe, count: int) -> None:
    """Start processes, side by side, and a thread for each that has none; hand each over when it can work."""
    started: list[DecodeProcess] = []
    try:
        for _ in range(count):
            started.append(DecodeProcess(recipe))
    except OSError as error:
        log.fallback_once(
            "processes that decode",
            f"{len(started)} of {count} processes that decode images started: {error}",
        )
    for process in started:
        is_there = process.wait()
        with work.changed:
            if is_there and not work.is_stopped:
                work.processes.append(process)
                if work.workers < count:
                    work.workers += 1
                    thread = _decoder(work)
                    work.threads.append(thread)
                    thread.start()
                continue
        process.end()


def _decode(work: _Work) -> None:
    """Make parts of batches until there are none to come."""
    process: DecodeProcess | None = None
    try:
        while True:
            with work.changed:
                while not work.parts and not work.is_stopped:
                    work.changed.wait()
                if work.is_stopped:
                    return
                part = work.parts.popleft()
                if process is None and work.processes:
                    process = work.processes.popleft()
            process = _decode_part(work, part, process)
            del part
    finally:
        if process is not None:
            process.end()


def _decode_part(work: _Work, part: Part, process: DecodeProcess | None) -> DecodeProcess | None:
    """Make a part, by the process if there is one; the process if it is still there."""
    batch = part.batch
    error: BaseException | None = None
    refusal: str | None = None
    try:
        if process is not None:
            try:
                refusal = process.make(part)
            except ProcessEndedError as ended:
                process.end()
                process = None
                log.tell(f"a process that decodes images was ended {ended}: its thread decodes from now on")
        if process is None:
            refusal = make(work.source, work.transformer, part)
    except BaseException as raised:  # told to the thread that takes the batch
        error = raised
    with work.changed:
        batch.waiting -= 1
        if part.is_decoded:
            batch.decoded += len(part.records)
        if error is not None:
            batch.errors[part.first] = error
        elif refusal is not None:
            batch.refusal = refusal
        if batch.waiting == 0:
            if batch.refusal and batch.images is None and not batch.errors:
                _make_again(work, batch)
            else:
                batch.parts = []
            work.changed.notify_all()
    return process


def _make_again(work: _Work, batch: Batch) -> None:
    """Have a batch transformed here whose images cannot all stay bytes."""
    try:
        batch.images = _numbers(work, len(batch.labels))
    except MemoryError as error:
        batch.errors[0] = error
        return
    batch.waiting = len(batch.parts)
    work.parts.extendleft(reversed(batch.parts))
