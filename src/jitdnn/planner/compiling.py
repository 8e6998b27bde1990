"""A pool of threads that compile: compilers of GPUs work outside of Python's lock.

A `Task` is done once, by a thread of the pool or by whoever waits for it and finds that nobody has begun: so nobody
waits for work that waits in turn. The threads are daemons, as many as there are cores, and each ends when nothing is
left. At the end of the process what was not begun is dropped, and what is being compiled is waited for: compilers do
not survive that the interpreter goes while they work.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any, TypeVar

from jitdnn import locks
from jitdnn.rtcg.missing import Missing, gathering
from jitdnn.settings import available_cores

T = TypeVar("T")

#: tasks that wait for a thread; who has more compiles them himself
MOST_TASKS = 4096
_LAST_SECONDS = 30.0  # that the end of the process waits for a compiler
_tasks: weakref.WeakSet[Task] = weakref.WeakSet()


class Task:
    """Something to be done once, and the exception that it ended with. Any thread may run it or wait for it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._is_free = deque([True])  # whoever pops it has the task: that is atomic
        self._owner: int | None = None
        self._done = threading.Event()
        self.error: Exception | None = None
        _tasks.add(self)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def run(self) -> None:
        """Do it, unless somebody has begun. An interrupt leaves it to the next one; other exceptions become `error`."""
        try:
            self._is_free.pop()
        except IndexError:
            return
        try:
            self._owner = threading.get_ident()
            assert self._work is not None
            try:
                self._work()
            except Exception as error:
                self.error = error
        except BaseException:
            self._owner = None
            self._is_free.append(True)
            raise
        self._work = self._owner = None
        self._done.set()

    def wait(self) -> None:
        """Return when it is done; done here if nobody has begun."""
        self.run()
        work = self._work
        if work is not None and self._owner == threading.get_ident():
            work()  # a signal handler in the middle of it, which cannot wait for its own thread
            return
        self._done.wait()

    def begin_again(self) -> None:
        """In a forked child, where those who had begun are not."""
        if not self.is_done:
            self._done = threading.Event()
            self._owner = None
            self._is_free = deque([True])


class Pool:
    """At most `most` threads that do the longest tasks first, and those alike in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: list[tuple[int, int, Task]] = []  # a heap
        self._numbers = itertools.count()
        self._threads: set[threading.Thread] = set()
        self._lock = locks.lock()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether no more tasks are taken now."""
        return self._is_closed or len(self._left) >= MOST_TASKS

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def submit(self, task: Task, length: int = 0) -> Task:
        """Have a task done some time; not if the pool is full: whoever waits for it does it."""
        with self._lock:
            if self.is_full:
                return task
            heapq.heappush(self._left, (-length, next(self._numbers), task))
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name="jitdnn-compile", daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError:  # no more threads: those that there are do it, or whoever waits
                    self._threads.discard(thread)
        return task

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._threads.discard(threading.current_thread())
                    return
                _, _, task = heapq.heappop(self._left)
            task.run()
            del task  # what it refers to is not kept until the next one comes

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Drop what was not begun and wait for the rest, for so long at most."""
        with self._lock:
            self._is_closed = True
            self._left.clear()
            threads = tuple(self._threads)
        until = monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))

    def forget_threads(self) -> None:
        """In a forked child, which has none of them."""
        self._left.clear()
        self._threads.clear()


pool = Pool(available_cores())
atexit.register(pool.close)


def _after_fork() -> None:
    pool.forget_threads()
    for task in tuple(_tasks):
        task.begin_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def begin(missing: Sequence[Missing]) -> list[Task]:
    """Have code compiled by the pool, each module once, the longest first: so none is left to one core at the end."""
    tasks = []
    different = {each.key: each for each in missing}.values()
    for each in sorted(different, key=lambda each: -each.length):
        # settings in force belong to the thread: each task takes them along
        tasks.append(pool.submit(Task(_in_context(each.compile)), each.length))
    return tasks


def _in_context(work: Callable[[], Any]) -> Callable[[], Any]:
    context = copy_context()
    return lambda: context.run(work)


def compile_all(missing: Sequence[Missing]) -> None:
    """Compile code, several modules at once on several cores. Raises what the first that failed raised."""
    if len({each.key for each in missing}) == 1:
        missing[0].compile()
        return
    tasks = begin(missing)
    for task in tasks:
        task.wait()
    for task in tasks:
        if task.error is not None:
            raise task.error


def whole(make: Callable[[], T], compiling: Callable[[Sequence[Missing]], object] = compile_all) -> T:
    """What `make` builds with all of its code: what is missing is given to `compiling` first, at once."""
    with gathering() as missing:
        made = make()
    if not missing:
        return made
    compiling(missing)
    return make()
