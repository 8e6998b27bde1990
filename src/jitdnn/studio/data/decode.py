"""Entries are decoded and written to their places, here or by processes.

A decoder that dies of a file takes its process with it: what that process had is done again, one entry at a time,
and the entry that it dies of again cannot be read.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.studio.data import arrays
from jitdnn.studio.data.dataset import PARTS
from jitdnn.studio.data.entries import Entry, Reader
from jitdnn.studio.data.hashes import alike_hash, exact_hash
from jitdnn.studio.processes import end_with_parent

#: entries that a process decodes at a time
CHUNK: Final = 64
#: entries that a decoder may die of, before it is the decoder that is broken
_MOST_DEATHS: Final = 20


class Cancelled(Exception):
    """Its owner does not want the data set any more."""


@dataclass
class Job:
    """An entry, and where it goes. `exact` and `alike` are its hashes; `error` says why it cannot be read."""

    entry: Entry
    part: str
    place: int
    exact: int = 0
    alike: int = 0
    error: str = ""


class Writer:
    """Reads entries and writes them to their places."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self.reader = reader
        names = [part for part in PARTS if (folder / f"{part}_data.npy").exists()]
        self.data = {part: arrays.writable(folder / f"{part}_data.npy") for part in names}
        self.labels = {part: arrays.writable(folder / f"{part}_label.npy") for part in names}

    def write(self, jobs: list[Job]) -> list[Job]:
        """Write the jobs, with their hashes, or the error of what cannot be read, filled in."""
        for job in jobs:
            try:
                image, label = self.reader.read(job.entry)
            except InvalidArgument as error:
                job.error = str(error)[:300]
                continue
            self.data[job.part][job.place] = image
            self.labels[job.part][job.place] = label
            job.exact, job.alike = exact_hash(image), alike_hash(image)
        return jobs


_writer: Writer | None = None


def _begin(folder: Path, reader: Reader) -> None:
    global _writer
    end_with_parent()
    os.nice(5)
    _writer = Writer(folder, reader)


def _write(jobs: list[Job]) -> list[Job]:
    assert _writer is not None
    return _writer.write(jobs)


def decoded(
    folder: Path, reader: Reader, jobs: list[Job], processes: int, is_cancelled: Callable[[], bool]
) -> Iterator[list[Job]]:
    """Decode all; yields chunks of `jobs` as they are done, with hashes and errors filled in.

    Raises Cancelled, and InvalidArgument where the decoder dies too often.
    """
    chunks = [range(start, min(start + CHUNK, len(jobs))) for start in range(0, len(jobs), CHUNK)]
    if not processes:
        writer = Writer(folder, reader)
        for chunk in chunks:
            _stop_if(is_cancelled)
            yield writer.write(jobs[chunk.start : chunk.stop])
        return
    left = set(chunks)
    while left:
        try:
            for chunk, done in _by_processes(
                folder, reader, jobs, sorted(left, key=min), processes, is_cancelled
            ):
                left.discard(chunk)
                jobs[chunk.start : chunk.stop] = done
                yield done
        except BrokenProcessPool:
            # those that were being read, or waited: one of the first ones it was
            for chunk in sorted(left, key=min)[: 3 * processes]:
                _carefully(folder, reader, jobs, chunk, is_cancelled)
                left.discard(chunk)
                yield jobs[chunk.start : chunk.stop]


def _by_processes(
    folder: Path,
    reader: Reader,
    jobs: list[Job],
    chunks: list[range],
    processes: int,
    is_cancelled: Callable[[], bool],
) -> Iterator[tuple[range, list[Job]]]:
    """Chunks as processes finish them. Raises BrokenProcessPool where one of them died."""
    with _pool(folder, reader, processes) as pool:
        running: dict[Future[list[Job]], range] = {}
        waiting = iter(chunks)
        try:
            while True:
                while len(running) < 3 * processes and (chunk := next(waiting, None)) is not None:
                    running[pool.submit(_write, jobs[chunk.start : chunk.stop])] = chunk
                if not running:
                    return
                for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
                _stop_if(is_cancelled)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _carefully(
    folder: Path, reader: Reader, jobs: list[Job], chunk: range, is_cancelled: Callable[[], bool]
) -> None:
    """Entries one by one, in a process that is replaced where it dies."""
    todo = list(chunk)
    while todo:
        with _pool(folder, reader, 1) as pool:
            _check_start(pool)
            try:
                while todo:
                    _stop_if(is_cancelled)
                    jobs[todo[0]] = pool.submit(_write, [jobs[todo[0]]]).result()[0]
                    del todo[0]
            except BrokenProcessPool:
                job = jobs[todo.pop(0)]
                job.error = "the process that decoded it died of it"
                if sum(job.error.startswith("the process that") for job in jobs) > _MOST_DEATHS:
                    raise InvalidArgument(
                        f"the decoder died of {_MOST_DEATHS} files, of {job.entry.name} for one: memory may be short"
                    ) from None


def _check_start(pool: ProcessPoolExecutor) -> None:
    """Raises DeviceError where processes do not even start: no file is to blame then."""
    try:
        pool.submit(_is_ready).result()
    except BrokenProcessPool:
        raise DeviceError(
            "processes that decode pictures die as they start: a script that makes a data set does so below "
            "`if __name__ == '__main__':`"
        ) from None


def _is_ready() -> bool:
    return _writer is not None


def _pool(folder: Path, reader: Reader, processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (folder, reader))


def _stop_if(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise Cancelled
