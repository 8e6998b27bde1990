"""Files that a thread writes while training goes on: weights and snapshots, of copies, in the order of their coming."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from jitdnn.caffe.blob import Array

T = TypeVar("T")

_MOST: Final = 2  # files that wait or are written at a time, each of a copy of the weights


class FilesBeside:
    """Files of one training. Only its own thread calls this.

    Without `is_beside` each is written at once, of the arrays themselves. Behind a file that fails none is written, and
    each call about them raises its error.
    """

    def __init__(self, *, is_beside: bool) -> None:
        self._is_beside = is_beside
        self._pool: ThreadPoolExecutor | None = None
        self._files: deque[tuple[Future[Any], Callable[[Any], object]]] = deque()
        self._error: BaseException | None = None

    def kept(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays as they are now, for as long as the file takes."""
        return {name: array.copy() if self._is_beside else array for name, array in arrays.items()}

    def put(self, write: Callable[[], T], then: Callable[[T], object]) -> None:
        """Have a file written, and `then` called with what `write` gave, by this thread, once it is whole."""
        if not self._is_beside:
            then(write())
            return
        while len(self._files) >= _MOST:
            self._take()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "jitdnn files")
        self._files.append((self._pool.submit(self._write, write), then))

    def look(self) -> None:
        """Tell of the files that have become whole, and raise what one failed with."""
        while self._files and self._files[0][0].done():
            self._take()

    def wait(self) -> None:
        """Wait until all files are whole. Raises what one failed with."""
        while self._files:
            self._take()

    @contextmanager
    def until_written(self) -> Iterator[None]:
        """A block behind which no file is being written; where it raises, those that are begun still become whole."""
        try:
            yield
            self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            self._pool = None
            self._files.clear()
            self._error = None

    def _take(self) -> None:
        file, then = self._files.popleft()
        then(file.result())

    def _write(self, write: Callable[[], T]) -> T:
        if self._error is not None:  # of a file before
            raise self._error
        try:
            return write()
        except BaseException as error:
            self._error = error
            raise
