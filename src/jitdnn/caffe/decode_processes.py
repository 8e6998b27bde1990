"""Processes that decode images for the threads of a pipeline, one for each thread.

Pillow lets go of Python's lock while it decodes, but opening an image, taking it over as an array and cropping it hold
it, for a fifth to a third of an image's time: beyond a few threads they wait for each other. A process has a lock of
its own. It runs what the thread would (decoding.py), so images are the same, bit by bit, and writes them into memory
that both share, from where the thread copies them; what a database holds of encoded images goes the other way by such
memory. Pipes carry what is small.

A process ends with the one that it works for, however that ends, as nobody is left who asks.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe.blob import Shape
from jitdnn.caffe.decoding import Batch, Part, label_shape, make
from jitdnn.caffe.raw_images import RawForm
from jitdnn.caffe.sources import Source
from jitdnn.caffe.transform import Draw, Transform
from jitdnn.errors import InvalidArgument
from jitdnn.ops.worker import WorkerProcess, answer

#: processes for one layer at most: each takes some 80 MiB, and 32 were slower than 16 on 64 cores
MOST_PROCESSES = 16
_PIECE = 1 << 20  # bytes by which the shared memory grows
#: signals by which the code of a decoder ends a process, rather than somebody from outside
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")


def can_start() -> bool:
    """Whether this system has what they need: memory without a name that goes with its processes."""
    return hasattr(os, "memfd_create")


class ProcessEndedError(Exception):
    """The process is not there any more, for a reason that is not in the images."""


@dataclass(frozen=True)
class Recipe:
    """How records become images: all that a process is told at its start."""

    source: Source
    transformer: Transform
    form: RawForm | None
    dtype: np.dtype[Any]

    def batch(self, count: int, is_raw: bool, memory: _Memory) -> Batch:
        """So many images in memory, as bytes or as numbers."""
        labels = np.zeros((count, *label_shape(self.source, self.transformer)), self.dtype)
        if is_raw:
            assert self.form is not None
            return Batch(None, labels, 0, {}, replace(self.form, memory=memory.of).new(count))
        shape: Shape = (count, *self.transformer.shape)
        images = memory.of(prod(shape) * self.dtype.itemsize).view(self.dtype).reshape(shape)
        return Batch(images, labels, 0, {})


class _Memory:
    """Memory behind a file descriptor, which grows; its owner makes it."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._is_owner = descriptor is None
        self.descriptor = os.memfd_create("jitdnn images") if descriptor is None else descriptor
        self._mapped: mmap.mmap | None = None

    def of(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The first bytes of it."""
        if self._mapped is None or len(self._mapped) < size:
            pieces = -(-max(size, 1) // _PIECE) * _PIECE
            if self._is_owner:
                os.ftruncate(self.descriptor, pieces)
            self._mapped = mmap.mmap(self.descriptor, 0)
        return np.frombuffer(self._mapped, np.uint8, size)

    def close(self) -> None:
        os.close(self.descriptor)


class _Order(NamedTuple):
    """What a process is asked for."""

    records: bytes  # pickled; what is large in them lies in the shared memory, in pieces of these sizes
    sizes: list[int]
    draws: list[Draw | None]
    is_raw: bool


class _Made(NamedTuple):
    """Its answer: images are in the shared memory, unless there is an error."""

    labels: Any
    refusal: str | None
    is_decoded: bool
    error: BaseException | None


class DecodeProcess:
    """One of them. Starting one takes no longer than to ask the system for it; `wait` waits until it can work."""

    def __init__(self, recipe: Recipe) -> None:
        """Raises OSError where the system has none left."""
        self._recipe = recipe
        self._images, self._records = _Memory(), _Memory()
        try:
            form = None if recipe.form is None else replace(recipe.form, memory=_nowhere)
            told = pickle.dumps(replace(recipe, form=form))
            # it may be larger than what a pipe takes before its reader is there
            self._records.of(len(told))[:] = np.frombuffer(told, np.uint8)
            descriptors = self._images.descriptor, self._records.descriptor
            start = (*descriptors, len(told))
            self._process = WorkerProcess("jitdnn.caffe.decode_processes", start, descriptors)
        except BaseException:
            self._close()
            raise

    def wait(self) -> bool:
        """Whether it is there, when it is."""
        return self._process.ask(None) is True

    def make(self, part: Part) -> str | None:
        """As `decoding.make` does. Raises ProcessEndedError where the process is gone."""
        batch, recipe = part.batch, self._recipe
        is_raw = batch.raw is not None and batch.images is None
        found = recipe.batch(len(part.records), is_raw, self._images)
        made = self._process.ask(self._order(part, is_raw))
        if made is None:
            raise self._end_of(part)
        part.is_decoded = made.is_decoded
        if made.error is not None:
            raise made.error
        if made.refusal is not None:
            return str(made.refusal)
        batch.labels[part.rows] = made.labels
        if is_raw:
            assert batch.raw is not None
            assert found.raw is not None
            batch.raw.images[part.rows] = found.raw.images
            batch.raw.table[part.rows] = found.raw.table
        else:
            assert batch.images is not None
            batch.images[part.rows] = found.images
        return None

    def _order(self, part: Part, is_raw: bool) -> _Order:
        large: list[pickle.PickleBuffer] = []
        records = [_with_buffers(self._recipe.source.portable(record)) for record in part.records]
        told = pickle.dumps(records, 5, buffer_callback=large.append)
        views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in large]
        sizes = [len(view) for view in views]
        if views:
            np.concatenate(views, out=self._records.of(sum(sizes)))
        return _Order(told, sizes, part.draws, is_raw)

    def _end_of(self, part: Part) -> Exception:
        """Why it is gone: of the images, or for another reason."""
        number = self._process.signal()
        name = "" if number is None else signal.Signals(number).name
        if name not in _FAULTS:
            return ProcessEndedError(f"by {name}" if name else "without a word")
        first, last = (self._recipe.source.name_of(part.records[place]) for place in (0, -1))
        return InvalidArgument(
            f"the process that decoded {first} to {last} was ended by {name}: one of these {len(part.records)} "
            "is damaged in a way that its decoder does not survive"
        )

    def end(self) -> None:
        """End it."""
        self._process.end()
        self._close()

    def _close(self) -> None:
        self._images.close()
        self._records.close()


def _with_buffers(record: Any) -> Any:
    """The record, with what its pickle leaves to the shared memory."""
    if not isinstance(record, tuple) or not any(isinstance(item, memoryview) for item in record):
        return record
    return tuple(pickle.PickleBuffer(item) if isinstance(item, memoryview) else item for item in record)


def _nowhere(size: int) -> Any:
    raise AssertionError("the memory of a form is that of the process which has it")


def serve() -> None:
    """What the process does."""
    answer(_working)


@contextmanager
def _working(start: tuple[int, int, int]) -> Iterator[Callable[[_Order | None], object]]:
    images, given = _Memory(start[0]), _Memory(start[1])
    recipe: Recipe = pickle.loads(given.of(start[2]).tobytes())

    def work(order: _Order | None) -> object:
        if order is None:
            return True
        try:
            records = _records(order, given)
            batch = recipe.batch(len(records), order.is_raw, images)
            part = Part(batch, 0, records, order.draws)
            refusal = make(recipe.source, recipe.transformer, part)
        except BaseException as error:  # raised where it was asked for
            return _Made(None, None, True, _portable(error))
        return _Made(batch.labels, refusal, part.is_decoded, None)

    yield work


def _records(order: _Order, given: _Memory) -> list[Any]:
    """The records of an order; what is large in them lies in the shared memory until the next one."""
    whole = given.of(sum(order.sizes)).data if order.sizes else memoryview(b"")
    pieces, first = [], 0
    for size in order.sizes:
        pieces.append(whole[first : first + size])
        first += size
    found: list[Any] = pickle.loads(order.records, buffers=pieces)
    return found


def _portable(error: BaseException) -> BaseException:
    """The error, or its text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
