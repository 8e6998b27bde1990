"""Turns on a GPU: whoever measures or times something there is alone, on cores of its own, while others compile."""

from __future__ import annotations

import argparse
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

import torch


class Turn:
    """Being alone on a GPU, by a lock that its processes share, and this process's way to it.

    `lock`: a file; `quiet`: the numbers of cores, with commas between them, that no compiler has.
    """

    def __init__(self, lock: str, quiet: str, is_on_gpu: bool) -> None:
        self.waited = 0.0
        self.others = os.sched_getaffinity(0)
        self._file = open(lock, "a")  # noqa: SIM115
        self._quiet = {int(one) for one in quiet.split(",") if one}
        self._depth = 0
        self._is_on_gpu = is_on_gpu

    @contextmanager
    def held(self) -> Iterator[None]:
        """Alone in the block, this thread on a core of its own."""
        if self._depth:
            yield
            return
        self.give_memory(256 << 20)
        self._take()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Others have the GPU in the block, in which this thread compiles or waits for who does."""
        if not self._depth or (self._is_on_gpu and torch.cuda.is_current_stream_capturing()):
            yield
            return
        self._leave()
        try:
            yield
        finally:
            self._take()

    def alone(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, alone."""

        def call(*args: Any, **named: Any) -> Any:
            with self.held():
                return function(*args, **named)

        return call

    def give_memory(self, most: int) -> None:
        """All but so many bytes of what PyTorch's allocator keeps."""
        if self._is_on_gpu and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > most:
            torch.cuda.empty_cache()

    def _take(self) -> None:
        begin = perf_counter()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.waited += perf_counter() - begin
        self._depth += 1
        move(0, self._quiet)

    def _leave(self) -> None:
        if self._is_on_gpu:
            torch.cuda.synchronize()
        move(0, self.others)
        self._depth -= 1
        fcntl.flock(self._file, fcntl.LOCK_UN)


def move(thread: int, cores: set[int]) -> None:
    """Have a thread, or the calling one (0), run on these cores; none: where it does."""
    if cores:
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, cores)


def release_to_compile(turn: Turn) -> None:
    """Have threads that hold the turn leave it while they compile kernels, or wait for the pool that does."""
    from jitdnn.devices import cuda_compile
    from jitdnn.planner import compiling

    kept, wait, work = cuda_compile._kept, compiling.Task.wait, compiling.Pool._work

    def compiled(*given: Any) -> bytes:
        if threading.current_thread() in compiling.pool._threads:
            return kept(*given)
        with turn.released():
            return kept(*given)

    def waited(task: compiling.Task) -> None:
        if task.is_done:
            return
        with turn.released():
            wait(task)

    def worked(pool: compiling.Pool) -> None:
        move(0, turn.others)
        work(pool)

    cuda_compile._kept = compiled
    compiling.Task.wait = waited  # type: ignore[method-assign]
    compiling.Pool._work = worked  # type: ignore[method-assign]


def add_options(made: argparse.ArgumentParser) -> None:
    """How a benchmark shares a GPU with another one, and what its processes are told of their turns."""
    made.add_argument("--lock", help="a file: whoever names it, too, is never on the GPU at the same time")
    made.add_argument("--quiet", default="", help=argparse.SUPPRESS)
