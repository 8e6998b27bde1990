"""Memory of CUDA over a stand-in for NVIDIA's driver: when it is allocated, kept and freed.

`test_runtime.py` runs this file in a process of its own, as `fake_driver_checks.py`.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import jitdnn as jd
from fake_driver import FAKE, calls, fail, fresh, on_gpu
from jitdnn.devices import cuda
from jitdnn.devices.scratch import Scratch

__all__ = ["fresh"]  # a fixture of every test


def test_memory_is_freed_in_the_order_of_its_stream() -> None:
    size = 5 << 20
    before, frees = FAKE.fake_bytes(), calls("cuMemFreeAsync")
    x = jd.empty((2, size // 2), "u8", "cuda")
    assert FAKE.fake_bytes() == before + size
    view = x[1:]
    del x
    assert calls("cuMemFreeAsync") == frees, "the view keeps it"
    del view
    assert FAKE.fake_bytes() == before
    assert calls("cuMemFreeAsync") == frees + 1


def test_small_blocks_are_kept_for_their_stream() -> None:
    before, allocations = FAKE.fake_bytes(), calls("cuMemAllocAsync")
    x = jd.empty((900,), "u8", "cuda")
    pointer = x.pointer
    assert FAKE.fake_bytes() == before + 1024
    del x
    side = jd.Handle("cuda", cuda.device().own_stream())
    other = jd.empty((1000,), "u8", handle=side)
    assert other.pointer != pointer, "another stream"
    x = jd.empty((1000,), "u8", "cuda")
    assert x.pointer == pointer
    assert jd.empty((1000,), "u8", "cuda").pointer != pointer
    assert calls("cuMemAllocAsync") == allocations + 3
    del x, other
    assert FAKE.fake_bytes() == before + 3072
    side.trim()
    assert FAKE.fake_bytes() == before


def test_not_too_many_blocks_are_kept() -> None:
    before = FAKE.fake_bytes()
    held = [jd.empty((1 << 20,), "u8", "cuda") for _ in range(10)]
    assert FAKE.fake_bytes() == before + (10 << 20)
    held.clear()
    assert FAKE.fake_bytes() == before + (4 << 20)
    fail("cuMemAllocAsync", 2)
    assert jd.empty((512,), device="cuda").size == 512
    assert FAKE.fake_bytes() == before + 2048, "what was kept is given back where there is no room"


def test_memory_that_several_streams_used_is_freed_after_all_of_them() -> None:
    x = on_gpu()
    first, second = jd.Handle("cuda", 0x90), jd.Handle("cuda", 0xA0)
    waits = calls("cuStreamWaitEvent")
    for _ in range(2):
        jd.max_pool(x, 2, handle=first)
    assert calls("cuStreamWaitEvent") == waits, "to_device has waited itself"
    jd.max_pool(x, 2, handle=second)
    assert calls("cuStreamWaitEvent") == waits + 1
    frees = calls("cuMemFree_v2")
    del x
    assert calls("cuMemFree_v2") == frees + 1


@pytest.mark.parametrize("is_own", [False, True])
def test_memory_of_a_pool_is_freed_behind_all_streams_that_are_there(is_own: bool) -> None:
    """`cuMemFree` of such memory waits for none of them."""

    class Stream:
        def __init__(self, ptr: int) -> None:
            self.ptr = ptr

    x = on_gpu()
    streams: list[Any] = [
        cuda.device().own_stream() if is_own else Stream(0xC0 + number) for number in range(2)
    ]
    for each in streams:
        jd.max_pool(x, 2, handle=jd.Handle("cuda", each))
    names = ("cuMemFree_v2", "cuMemFreeAsync", "cuStreamWaitEvent")
    before = [calls(name) for name in names]
    del x
    assert [calls(name) - b for name, b in zip(names, before, strict=True)] == [0, 1, 1]


def test_without_room_one_line_says_so() -> None:
    fail("cuMemAllocAsync", 2)
    expected = r"^no memory for 2 KiB on NVIDIA Fake 0 cuda:0, 1 GiB of 80 GiB are free$"
    with pytest.raises(jd.DeviceError, match=expected):
        jd.empty((512,), device="cuda")


def test_memory_dropped_in_a_capture_is_freed_later() -> None:
    x, held = on_gpu(), cuda.device().own_stream()
    FAKE.fake_set_capturing(held.handle)
    x.memory.streams = frozenset((held.handle,))
    frees = calls("cuMemFreeAsync")
    del x
    assert calls("cuMemFreeAsync") == frees
    FAKE.fake_set_capturing(None)
    on_gpu()
    assert calls("cuMemFreeAsync") >= frees + 1


class TestScratch:
    def test_grows_and_is_shared_by_calls_of_a_stream(self) -> None:
        device = cuda.device(0)
        scratch = Scratch(device)
        with scratch.reserve(0x10, 1000) as first:
            pass
        with scratch.reserve(0x10, 500) as second:
            assert second == first
        with scratch.reserve(0x20, 500) as third:
            assert third != first
        frees = calls("cuMemFreeAsync")
        with scratch.reserve(0x10, 1 << 20):
            assert calls("cuMemFreeAsync") == frees + 1
        assert scratch.bytes == (1 << 20) + (1 << 16)
        scratch.trim()
        assert scratch.bytes == 0

    def test_what_a_graph_refers_to_stays(self) -> None:
        scratch = Scratch(cuda.device(0))
        FAKE.fake_set_capturing(0x10)
        allocations = calls("cuMemAlloc_v2")
        with scratch.reserve(0x10, 1000) as first:
            pass
        assert calls("cuMemAlloc_v2") == allocations + 1, "not in the order of the stream, which is captured"
        FAKE.fake_set_capturing(None)
        scratch.trim()
        before = FAKE.fake_bytes()
        with scratch.reserve(0x10, 1 << 20) as larger:
            assert larger != first
        assert FAKE.fake_bytes() == before + (1 << 20)

    def test_launches_of_threads_are_not_mixed(self) -> None:
        scratch, inside, clashes = Scratch(cuda.device(0)), [0], [0]

        def work() -> None:
            for size in range(1, 200):
                with scratch.reserve(0x10, 100 * size):
                    inside[0] += 1
                    clashes[0] += inside[0] != 1
                    inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clashes == [0]

    def test_given_back_after_an_error(self) -> None:
        scratch = Scratch(cuda.device(0))
        fail("cuMemAllocAsync", 2)
        with pytest.raises(MemoryError):
            scratch.reserve(0x10, 1000)
        with scratch.reserve(0x10, 1000) as pointer:
            assert pointer
