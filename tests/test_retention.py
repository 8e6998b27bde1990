"""What lives as long as the process stays within its limits, is given back, and is made again where it is wanted."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn import retention
from jitdnn.devices.cpu import host
from jitdnn.handle import Handle, usage
from jitdnn.planner.plan import Request
from jitdnn.problems.convolution import Convolution
from jitdnn.retention import Account, CodeLimit, Recent
from jitdnn.rtcg import compile as compiling
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import isa
from paths import ROOT


class TestRecent:
    @given(limit=st.integers(1, 9), keys=st.lists(st.integers(0, 12), max_size=60))
    def test_what_is_used_stays_and_the_rest_goes(self, limit: int, keys: list[int]) -> None:
        """Against a model: the keys in the order of their last use."""
        recent: Recent[int, str] = Recent(limit)
        order: list[int] = []
        for key in keys:
            found = recent.recall(key)
            if key in order[-(limit // 2) :] and limit > 1:
                assert found is not None, "used since fewer than half of the limit others were"
            assert found in (None, str(key))
            if found is None:
                recent.put(key, str(key))
            order = [other for other in order if other != key] + [key]
            assert len(recent) <= max(2, limit)
            assert recent.get(key) == str(key)

    def test_ages(self) -> None:
        recent: Recent[str, int] = Recent(100)
        recent.put("a", 1)
        recent.put("b", 2)
        recent.age()
        assert (len(recent), recent.get("a")) == (2, None)
        assert recent.recall("a") == 1
        recent.age()
        assert (recent.recall("a"), recent.recall("b")) == (1, None)
        recent.clear()
        assert len(recent) == 0


def test_accounts_count_what_lives() -> None:
    account = Account()
    charges = [account.charge(size) for size in (10, 20, 30)]
    assert (account.bytes, account.count) == (60, 3)
    del charges[1]
    assert account.bytes == 40
    charges.clear()
    assert (account.bytes, account.count) == (0, 0)


class _Keeper:
    """Keeps charges by generations."""

    def __init__(self) -> None:
        self.recent: Recent[int, Any] = Recent(1 << 20)

    def age(self) -> None:
        self.recent.age()

    def halve(self) -> bool:
        return self.recent.halve()


def test_code_is_dropped_by_least_recent_use() -> None:
    code, keepers = CodeLimit(), [_Keeper(), _Keeper()]
    for keeper in keepers:
        code.register(keeper)
    for number in range(200):
        keeper = keepers[number % 2]
        if keepers[0].recent.recall(0) is None:
            assert number == 0, "what is always used stays"
        keeper.recent.put(number, code.charge(10, 100))
        assert code.account.bytes <= 100
        if number >= 4:
            assert keepers[1 - number % 2].recent.recall(number - 3) is not None, "it was used just now"
    del keepers[1]
    gc.collect()
    code.charge(10, 100)
    assert code.account.bytes <= 100, "a keeper that is gone keeps nothing"


def _library(number: int) -> compiling.Library:
    """A library of one function that is like no other."""
    text = f"define i64 @number() {{\n  ret i64 {number}\n}}\n"
    return compiling.load("retention", number, isa("host"), lambda module: module.write(text))


class TestCode:
    def test_is_freed_without_the_collector_of_cycles(self) -> None:
        with jd.settings(cache=False):
            library = _library(10**15)
            before, reference = retention.code.account.bytes, weakref.ref(library)
            gc.disable()
            try:
                del library
                assert reference() is not None, "kept for the next who wants it"
                retention.code.age()
                retention.code.age()
                assert reference() is None
            finally:
                gc.enable()
            assert retention.code.account.bytes < before

    def test_of_plans_is_freed_with_them(self) -> None:
        """Nothing in a plan refers to itself in a circle."""
        gc.collect()
        handle = Handle()
        words = "conv_fwd n1 c3 h11 w7 k5 r3 s3 f32 nchw"
        problem = jd.parse(words)
        gc.disable()
        try:
            reference = weakref.ref(handle.plan(problem))
            handle.forget()
            assert reference() is None
        finally:
            gc.enable()

    def test_is_bounded_and_made_again(self) -> None:
        retention.code.age()
        retention.code.age()
        in_use = retention.code.account.bytes
        with jd.settings(cache=False, code_limit=in_use + (1 << 20)):
            for number in range(60):
                address = _library(number).address("number")
                assert address
                assert retention.code.account.bytes <= in_use + (1 << 20)
            assert _library(0).address("number")

    def test_that_a_plan_needs_stays(self) -> None:
        x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
        y, handle = np.empty((1, 3, 4, 4), np.float32), Handle()
        plan = handle.plan(Convolution.make("fwd", x.shape, w.shape), Request())
        for _ in range(3):
            retention.code.age()
        assert handle.usage.plans == 0
        gc.collect()
        y[:] = np.nan
        handle.run(plan, [x.ctypes.data, w.ctypes.data, y.ctypes.data])
        np.testing.assert_array_equal(y, 18.0)

    def test_of_compilers_is_not_left_behind(self) -> None:
        """Resident memory of a process that compiles and drops; each compile once left its passes, 60 KiB or more."""
        program = """
import gc, os
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import compile_object
from jitdnn.rtcg.isa import isa

def some(count):
    for number in range(count):
        module = Module("m", isa("host"))
        module.write(f"define i64 @f(i64 %x) {{\\n  %y = add i64 %x, {number}\\n  ret i64 %y\\n}}\\n")
        compile_object(module)
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before = some(50)
print(some(300) - before)
"""
        if sys.platform != "linux":
            pytest.skip("reads /proc")
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
        )
        assert int(done.stdout) < 300 * 20_000


def _random_call(rng: random.Random, handle: Handle | None = None) -> None:
    """A small convolution or product like few others, checked: of whole numbers, so that all sums are exact."""
    whole = np.random.default_rng(rng.getrandbits(32))
    if rng.random() < 0.5:
        m, n, k = (rng.randint(1, 12) for _ in range(3))
        a, b = whole.integers(-4, 5, (m, k)), whole.integers(-4, 5, (k, n))
        got = jd.matmul(a.astype(np.float32), b.astype(np.float32), handle=handle)
        np.testing.assert_array_equal(got, a @ b)
        return
    c, k, r, s = (rng.randint(1, 3) for _ in range(4))
    h, w = rng.randint(3, 9), rng.randint(3, 9)
    x, f = whole.integers(-4, 5, (1, c, h, w)), whole.integers(-4, 5, (k, c, r, s))
    windows = np.lib.stride_tricks.sliding_window_view(x, (r, s), (2, 3))
    got = jd.conv(x.astype(np.float32), f.astype(np.float32), handle=handle)
    np.testing.assert_array_equal(got, np.einsum("nchwrs,kcrs->nkhw", windows, f))


def test_many_problems_within_small_limits() -> None:
    retention.code.age()
    retention.code.age()
    in_use, most = retention.code.account.bytes, 1 << 20
    with jd.settings(cache=False, plans_limit=16, code_limit=in_use + most, scratch_limit="64 KiB"):
        handle, rng = Handle(), random.Random(0)
        for _ in range(100):
            _random_call(rng, handle)
            used = handle.usage
            assert used.plans <= 16
            assert used.calls <= 16
            assert used.scratch <= 1 << 16
            assert used.code <= in_use + most
        rng = random.Random(0)
        for _ in range(20):  # the first ones, which were evicted
            _random_call(rng, handle)


def test_threads_evict_while_others_run() -> None:
    errors: list[BaseException] = []
    shared = Handle(cache=False, plans_limit=4, code_limit="256 KiB", scratch_limit="4 KiB")

    def work(number: int) -> None:
        try:
            rng = random.Random(number)
            with jd.settings(cache=False, plans_limit=6, code_limit="256 KiB"):
                for step in range(20):
                    _random_call(rng, shared if number % 2 else None)
                    if step % 5 == number % 5:
                        retention.code.age()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert shared.usage.plans <= 4


def test_threads_that_end_leave_nothing() -> None:
    with jd.settings(total_workspace=None):
        gc.collect()
        before = usage()
        seen: list[int] = []

        def work(number: int) -> None:
            with jd.current_handle().workspace(100_000):
                _random_call(random.Random(number % 4))
            seen.append(jd.current_handle().usage.scratch)

        gc.disable()
        try:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            after = usage()
        finally:
            gc.enable()
    assert min(seen) >= 100_000
    assert (after.handles, after.plans, after.calls) == (before.handles, before.plans, before.calls)
    assert after.scratch == before.scratch


class TestScratch:
    def test_beyond_the_limit_is_freed_after_the_call(self) -> None:
        handle = Handle(scratch_limit=10_000)
        with handle.workspace(10_001) as pointer:
            assert pointer % 64 == 0
        assert handle.usage.scratch == 0
        with handle.workspace(9_000):
            assert handle.usage.scratch == 9_000
            with handle.workspace(2_000):
                assert handle.usage.scratch == 9_000, "that of the inner block is not kept"
        assert handle.usage.scratch == 9_000
        with handle.workspace(9_500):
            pass
        assert handle.usage.scratch == 9_500, "the smaller one made room"

    def test_of_the_settings_in_force(self) -> None:
        handle = Handle()
        with jd.settings(scratch_limit="1 KiB"), handle.workspace(2048):
            pass
        assert handle.usage.scratch == 0
        with handle.workspace(2048):
            pass
        assert handle.usage.scratch == 2048

    def test_of_kept_filters(self) -> None:
        x = np.random.default_rng(0).standard_normal((1, 16, 30, 30)).astype(np.float32)
        w = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype(np.float32)
        kept = jd.KeptFilter(w)
        handle = Handle(scratch_limit="64 KiB")
        for size in range(24, 30):
            y = jd.conv(x[:, :, :size], kept, handle=handle)
            np.testing.assert_allclose(y, jd.conv(x[:, :, :size], w), rtol=1e-4, atol=1e-3)
            largest = max(prepared.memory.nbytes for _, prepared in kept._all())
            assert kept.nbytes <= max(1 << 16, 2 * largest)


def test_settings_of_ever_new_values_are_forgotten() -> None:
    from jitdnn import settings as module

    handle = Handle(threads=1)
    for number in range(3000):
        with jd.settings(workspace_limit=number):
            assert handle.settings.workspace_limit == number
    assert len(module._interned) <= 1024  # type: ignore[attr-defined]
    gc.collect()
    assert len(module._alive) <= 2000  # type: ignore[attr-defined]
    with jd.settings() as values:
        assert values.serial == module.current().serial, "what is in use is the same after all others"
    assert len(handle._resolved) <= 128


def test_unequal_settings_are_told_apart_after_some_were_forgotten() -> None:
    seen: dict[int, int] = {}
    for number in [*range(1500), *range(1500)]:
        with jd.settings(workspace_limit=number) as values:
            assert seen.setdefault(values.serial, number) == number


def test_handles_of_one_device_are_asked_too() -> None:
    device = host(1)
    handle = Handle(device)
    handle.plan(Convolution.make("fwd", (1, 1, 5, 5), (1, 1, 2, 2)))
    assert handle.usage.plans == 1
    retention.code.age()
    assert handle.usage.plans == 1, "used since the last time"
    retention.code.age()
    assert handle.usage.plans == 0


def test_a_module_is_compiled_in_a_context_of_its_own() -> None:
    """Types and constants stay as long as their context, and the global one stays for ever."""
    import llvmlite.binding as llvm

    module = Module("m", isa("host"))
    module.write("define i64 @f() {\n  ret i64 1\n}\n")
    code, _ = compiling.optimise(module)
    assert not isinstance(code._context, llvm.context.GlobalContextRef)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_is_flat() -> None:
    """A few hundred problems within small limits, after as many that filled them."""
    program = """
import gc, os, random, sys
sys.path[:0] = ["tests", "tests/helpers"]
import jitdnn as jd
from test_retention import _random_call

def some(count):
    for _ in range(count):
        _random_call(rng)
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

rng = random.Random(1)
with jd.settings(cache=False, plans_limit=8, code_limit="1 MiB", scratch_limit="1 MiB", threads=1):
    before = some(80)
    print(some(160) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600, cwd=ROOT
    )
    assert int(done.stdout) < 10 << 20, "a problem once left some 200 KiB"
