"""Processes that answer pages: results and errors as they are, limits that hold, nothing left behind."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from jitdnn.errors import InvalidArgument, JitdnnError, ParseError
from jitdnn.studio.work import inspector as inspectors
from jitdnn.studio.work.inspector import Inspector, InspectorDied, InspectorTimeout
from other_processes import is_running, wait_until

MEMORY = 3 << 30


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail(error: Exception) -> None:
    raise error


def fail_unpicklably() -> None:
    raise Unpicklable(1, 2)


def allocate(gigabytes: int) -> int:
    return len(bytearray(gigabytes << 30))


def only_map(gigabytes: int) -> int:
    """Addresses, as a driver or a large file takes them."""
    return len(
        mmap.mmap(-1, gigabytes << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    )


def with_inspector(work: Callable[[Inspector], Awaitable[None]], **options: float) -> None:
    async def run() -> None:
        inspector = Inspector(1, memory=MEMORY, **options)  # type: ignore[arg-type]
        try:
            await work(inspector)
        finally:
            inspector.close()

    asyncio.run(run())


def test_results_errors_and_limits() -> None:
    async def work(inspector: Inspector) -> None:
        first = await inspector.inspect(os.getpid)
        assert first != os.getpid()
        assert await inspector.inspect(divmod, 17, 5) == (3, 2)
        with pytest.raises(ParseError, match="line 3, column 4: no") as caught:
            await inspector.inspect(fail, ParseError("no", "text", 3, 4))
        assert caught.value.line == 3
        with pytest.raises(JitdnnError, match="Unpicklable: 1 and 2"):
            await inspector.inspect(fail_unpicklably)
        with pytest.raises(InspectorDied, match="more memory than it may have") as died:
            await inspector.inspect(allocate, 8)
        assert died.value.status == 507
        assert await inspector.inspect(only_map, 64) == 64 << 30
        with pytest.raises(InspectorDied, match="was killed"):
            await inspector.inspect(os.kill, await inspector.inspect(os.getpid), signal.SIGKILL)
        second = await inspector.inspect(os.getpid)
        assert second != first
        with pytest.raises(InspectorTimeout, match=r"longer than 0\.2 seconds"):
            await inspector.inspect(time.sleep, 60, seconds=0.2)
        third = await inspector.inspect(os.getpid)
        assert third != second
        task = asyncio.create_task(inspector.inspect(time.sleep, 60))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await inspector.inspect(os.getpid) != third

    with_inspector(work)


def leave_a_child() -> None:
    """Sleeps, and so does a child that holds the same end of the pipe."""
    if os.fork() == 0:
        for stream in range(3):
            os.close(stream)
        time.sleep(15)
        os._exit(0)
    time.sleep(60)


def test_nobody_waits_for_a_call_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, call = threading.Event(), inspectors._Process.call

    def told(process: inspectors._Process, message: bytes, seconds: float) -> object:
        try:
            return call(process, message, seconds)
        finally:
            ended.set()

    monkeypatch.setattr(inspectors._Process, "call", told)

    async def work(inspector: Inspector) -> None:
        await inspector.inspect(os.getpid)
        ended.clear()
        task = asyncio.create_task(inspector.inspect(leave_a_child))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, 4)

    with_inspector(work)


def test_idle_processes_are_ended() -> None:
    async def work(inspector: Inspector) -> None:
        first = await inspector.inspect(os.getpid)
        await asyncio.sleep(0.1)
        inspector.tidy()
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)

    with_inspector(work, idle=0.05)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="processes is 0"):
        Inspector(0)


def test_processes_end_with_a_server_that_is_killed() -> None:
    code = """
import asyncio, os, time
from jitdnn.studio.work.inspector import Inspector
async def main():
    inspector = Inspector(1)
    print(await inspector.inspect(os.getpid), flush=True)
    await inspector.inspect(time.sleep, 600)
if __name__ == "__main__":
    asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        server.kill()
        assert server.stdout.read() == ""  # the child holds the pipe until it ends
        server.wait()
    wait_until(lambda: not is_running(child), 60)


def test_a_process_that_was_started_for_nobody_is_used_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Started] = []

    class Started(inspectors._Process):
        def __init__(self, memory: int | None) -> None:
            time.sleep(0.2)
            super().__init__(memory)
            made.append(self)

    monkeypatch.setattr(inspectors, "_Process", Started)

    async def work(inspector: Inspector) -> None:
        call = asyncio.create_task(inspector.inspect(os.getpid))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while not made:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert await inspector.inspect(divmod, 17, 5) == (3, 2)
        assert len(made) == 1

    with_inspector(work)
