"""Kernels on the OpenMP threads that PyTorch has started in this process.

Two pools of threads that spin take the cores from each other. Where PyTorch runs on the processor, its OpenMP library
(libgomp, libiomp5 or libomp) is loaded already, and all three export `GOMP_parallel`, by which a compiler starts a
parallel region. The function is looked up as the dynamic linker did it for PyTorch, so it is the same library and the
same threads; none is ever loaded here.

A launch is one parallel region for all its phases, with a control block on the caller's stack: callers do not know of
each other, and OpenMP may grant any number of threads. The region asks for PyTorch's team (`omp_get_max_threads`),
whatever the threads of the kernel, because libgomp ends and starts threads when the size changes from region to region.
Threads beyond those of the kernel return at once. Where PyTorch keeps to one thread, it asks for those of the kernel.

After a fork OpenMP's threads are gone and libgomp waits for them for ever, so a process that was forked, and has not
replaced its program since, uses threads of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from jitdnn import log
from jitdnn.devices.threads_runtime import runtime
from jitdnn.locks import lock

_FORKED = 0x40  # PF_FORKNOEXEC in the flags of /proc/self/stat: forked, and no program executed since
_FLAGS = 6  # their column behind the program's name

# what a launch calls, in the order of its table of addresses
_NAMES = ("GOMP_parallel", "omp_get_max_threads", "omp_get_thread_num")


def _functions(torch: ModuleType) -> list[int] | None:
    """The addresses of the functions of the OpenMP library that PyTorch calls, None if it calls none of them.

    The linker looks among what is loaded for everybody first, `LD_PRELOAD` above all, then among what the library
    itself needs.
    """
    scopes: list[str | None] = [None]
    if torch.__file__ is not None:
        scopes.append(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for name in scopes:
        try:
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return [ctypes.cast(library[one], ctypes.c_void_p).value or 0 for one in _NAMES]
        except (AttributeError, OSError):
            continue
    return None


def _was_forked() -> bool:
    """Whether this process came from another by a fork and still runs its program. Linux only."""
    try:
        text = Path("/proc/self/stat").read_text(errors="replace")
        return bool(int(text.rpartition(")")[2].split()[_FLAGS]) & _FORKED)
    except (OSError, ValueError, IndexError):
        return True  # nobody knows, so nothing is risked


class SharedThreads:
    """Launches on the threads of the OpenMP library with these ``functions``."""

    def __init__(self, functions: Sequence[int]) -> None:
        self._library = runtime()
        self._functions = (ctypes.c_int64 * len(_NAMES))(*functions)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        call = ctypes.CFUNCTYPE(None, pointer, pointer, integer, pointer, integer)
        self._run = call(self._library.address("run_shared"))
        replay = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer)
        self._replay = replay(self._library.address("replay_shared"))

    def launch(self, phases: ctypes.Array[ctypes.c_int64], count: int, args: bytes, threads: int) -> None:
        """Run phases as ``ThreadPool.launch`` does; any number of callers may do so at once."""
        self._run(self._functions, phases, count, args, threads)

    def replay(self, state: int, bases: bytes, clock: int | None) -> None:
        """Run a list of launches, some of them on several threads, as ``ThreadPool.replay`` does: in one region."""
        self._replay(self._functions, state, bases, clock)

    def replayer(self) -> tuple[int, int]:
        """The address of the code behind `replay`, and its first argument."""
        return self._library.address("replay_shared"), ctypes.addressof(self._functions)


_FORK = "this process was forked, and OpenMP's threads are not there after a fork"
_lock = lock()
_shared: SharedThreads | None = None
_refusal = "" if sys.platform == "linux" else "it is done on Linux only"  # why there will never be one


def shared(policy: str) -> SharedThreads | None:
    """PyTorch's threads, None where kernels have threads of their own.

    ``policy`` is the setting `thread_pool`. What is found holds for the process; before PyTorch is imported the look
    costs one dictionary's.
    """
    if policy == "own":
        return None
    if _shared is not None:
        return _shared
    if not _refusal and "torch" in sys.modules:
        _look(sys.modules["torch"])
    if _shared is None and policy == "openmp":
        log.fallback_once(
            "no OpenMP threads to share",
            "thread_pool=openmp, but kernels run on threads of their own: "
            + (_refusal or "PyTorch is not imported in this process"),
        )
    return _shared


def _look(torch: ModuleType) -> None:
    global _shared, _refusal
    openmp = getattr(getattr(torch, "backends", None), "openmp", None)
    if openmp is None or not hasattr(torch, "get_num_threads"):
        return  # another thread is still importing it
    with _lock:
        if _shared is not None or _refusal:
            return
        if _was_forked():
            _refusal = _FORK
            return
        functions = _functions(torch) if openmp.is_available() else None
        if functions is None:
            _refusal = "no OpenMP library was found that PyTorch uses"
            return
        made = SharedThreads(functions)
        if not _refusal:  # a signal handler may have forked
            _shared = made


def _forget() -> None:
    """In a forked child: OpenMP's threads are not there, and libgomp would wait for them."""
    global _shared, _refusal
    _shared = None
    _refusal = _FORK


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
