"""What CUDA keeps, over a stand-in for NVIDIA's driver: code is unloaded, scratch memory and free blocks are bounded.

`test_runtime.py` runs this file in a process of its own, as `fake_driver_checks.py`.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from fake_driver import FAKE, calls, fail, fresh, launched, on_gpu
from jitdnn import retention
from jitdnn.devices import cuda, cuda_kernel, cuda_memory
from jitdnn.devices.gpu import Launch
from jitdnn.devices.scratch import Scratch
from jitdnn.tensor import DeviceArray

__all__ = ["fresh"]  # a fixture of every test


@pytest.fixture(autouse=True)
def nothing_unused() -> None:
    """No code waits to be unloaded."""
    jd.current_handle().forget()
    gc.collect()
    while cuda_kernel._unused:
        cuda_kernel.unload_unused()


def _unusual() -> DeviceArray:
    """An array of a type whose code no other test has given to a stream, so that it would stay."""
    return jd.to_device(np.ones((1, 2, 8, 8)), "cuda:0")


class TestCode:
    def test_is_unloaded_when_no_kernel_has_it(self) -> None:
        x, handle = _unusual(), jd.Handle("cuda")
        jd.max_pool(x, 2, handle=handle)
        unloads, synchronizations = calls("cuLibraryUnload"), calls("cuCtxSynchronize")
        handle.forget()
        assert calls("cuLibraryUnload") == unloads, "the GPU may run it still"
        fail("cuEventQuery", 600)
        handle.trim()
        assert calls("cuLibraryUnload") == unloads, "the event says that it does"
        handle.trim()
        assert calls("cuLibraryUnload") == unloads + 1
        handle.trim()
        assert calls("cuLibraryUnload") == unloads + 1
        assert calls("cuCtxSynchronize") == synchronizations, "nobody waits"
        loads = calls("cuLibraryLoadData")
        jd.max_pool(x, 2, handle=handle)
        assert calls("cuLibraryLoadData") == loads + 1, "and it is loaded again"

    def test_is_let_go_of_without_a_word_when_python_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The names of a module are None then, and what an object of it raises is printed."""
        raised: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", raised.append)
        x, handle = _unusual(), jd.Handle("cuda")
        jd.max_pool(x, 2, handle=handle)
        with monkeypatch.context() as ending:
            for name in ("_unused", "driver", "current", "unload_unused"):
                ending.setattr(cuda_kernel, name, None)
            handle.forget()
            gc.collect()
        assert not raised
        assert cuda_kernel._unused, "it was code that nobody has any more"

    def test_of_two_plans_is_loaded_once(self) -> None:
        first, second = jd.Handle("cuda"), jd.Handle("cuda")
        x, loads = _unusual(), calls("cuLibraryLoadData")
        jd.max_pool(x, 2, handle=first)
        jd.max_pool(x, 2, handle=second)
        assert calls("cuLibraryLoadData") == loads + 1
        unloads = calls("cuLibraryUnload")
        first.forget()
        first.trim()
        first.trim()
        assert calls("cuLibraryUnload") == unloads, "the other one needs it"
        jd.max_pool(x, 2, handle=second)
        second.forget()
        second.trim()
        second.trim()
        assert calls("cuLibraryUnload") == unloads + 1

    def test_that_a_graph_may_refer_to_stays(self) -> None:
        """What a stream is given may be captured, by whomever."""
        x, handle = on_gpu((1, 2, 16, 8)), jd.Handle("cuda", 0x40)
        jd.max_pool(x, 3, handle=handle)
        assert launched()[0] == 0x40
        unloads = calls("cuLibraryUnload")
        handle.forget()
        for _ in range(3):
            handle.trim()
        assert calls("cuLibraryUnload") == unloads
        loads = calls("cuLibraryLoadData")
        jd.max_pool(x, 3, handle=handle)
        assert calls("cuLibraryLoadData") == loads

    def test_is_bounded(self) -> None:
        """Handles that keep many libraries, as plans of ever new kinds would."""

        class Keeper:
            def __init__(self) -> None:
                self.recent: retention.Recent[int, cuda_kernel.LoadedLibrary] = retention.Recent(1 << 20)

            def age(self) -> None:
                self.recent.age()

            def halve(self) -> bool:
                return self.recent.halve()

        # what others keep goes first: dropped later it would be room for more of these
        retention.code.charge(0, 0)
        keeper, before = Keeper(), calls("cuLibraryLoadData") - calls("cuLibraryUnload")
        retention.code.register(keeper)
        most = retention.code.account.bytes + 100_000
        with jd.settings(code_limit=most):
            for number in range(100):
                keeper.recent.put(number, cuda_kernel._library(0, b"%9999d" % number, "some"))
                assert retention.code.account.bytes <= most
                loaded = calls("cuLibraryLoadData") - calls("cuLibraryUnload") - before
                assert loaded <= 25, "10 of them fit, and what was just dropped waits for its event"

    def test_is_not_counted_for_the_limit_once_it_has_to_stay(self) -> None:
        before = retention.code.account.bytes
        library = cuda_kernel.LoadedLibrary(0, b"x" * 1000, "some")
        assert retention.code.account.bytes == before + 1000
        library.keep()
        assert retention.code.account.bytes == before

    def test_leave_for_shared_memory_is_not_taken_back(self) -> None:
        """Kernels of one code ask for different sizes, and all of them run later."""
        library, before = cuda_kernel.LoadedLibrary(0, b"x" * 1000, "some"), calls("cuFuncSetAttribute")
        for size in (100_000, 60_000, 120_000):
            assert library.function(Launch("f", 1, 32, size))
        assert calls("cuFuncSetAttribute") == before + 2


class TestMemory:
    def test_scratch_of_many_streams_is_bounded(self) -> None:
        scratch = Scratch(cuda.device(0), {"scratch_limit": "256 KiB"})
        for stream in range(0x100, 0x100 + 16 * 200, 16):
            with scratch.reserve(stream, 100_000) as pointer:
                assert pointer
            assert scratch.bytes <= 1 << 18
        assert len(scratch._blocks) <= 70

    def test_scratch_beyond_the_limit_is_freed_after_the_call(self) -> None:
        scratch = Scratch(cuda.device(0), {"scratch_limit": "128 KiB"})
        at_once, in_order = calls("cuMemFree"), calls("cuMemFreeAsync")
        with scratch.reserve(0x10, 1 << 23):
            assert scratch.bytes == 1 << 23
        assert scratch.bytes == 0
        # a stream of another library, whose work may not have begun
        assert (calls("cuMemFree"), calls("cuMemFreeAsync")) == (at_once, in_order + 1)
        with scratch.reserve(0x10, 1 << 16):
            pass
        assert scratch.bytes == 1 << 16

    def test_free_blocks_of_many_sizes_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda_memory, "_MOST_SIZES", 8)
        monkeypatch.setattr(cuda_memory, "_kept", {})
        before = FAKE.fake_bytes()
        for size in range(100_000, 4_000_000, 60_000):
            jd.empty((size,), "u8", "cuda")
            assert len(cuda_memory._kept) <= 8
        assert FAKE.fake_bytes() - before <= 8 * (5 << 20)
        cuda_memory.trim(0)
        assert FAKE.fake_bytes() == before
