"""Functions of C that XLA calls, each of which replays a list of launches: no Python runs in them.

XLA's typed calls (`XLA_FFI_Handler` of `xla/ffi/api/c_api.h`) get a structure with the addresses of the arrays. The
code here is generated once: a table of contexts, and as many handlers, each of which reads its own entry. A context has
the state of a launch list (`devices/launch_list.py`); a lock in it lets one call at a time move the addresses and run.

A handler runs on the thread that calls it and on the workers of the pool, which it wakes. Numbers in the code are
offsets in XLA's structures: see `interface.py`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from jitdnn.devices.launch_list import LaunchList
from jitdnn.devices.threads import replayer
from jitdnn.frameworks.jax.interface import minor
from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa

_COUNT = 64  # handlers of one table
_SLOTS = 8  # of a context: lock, control block, state, arguments, results, workspace, whether there is one, `replay`
_RUN = """
declare i32 @sched_yield()
@contexts = internal global [{size} x i64] zeroinitializer, align 64

define ptr @table() {{
  ret ptr @contexts
}}

define internal void @collect(ptr %list, i64 %count, ptr %bases) {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %buffer.at = getelementptr ptr, ptr %list, i64 %i
  %buffer = load ptr, ptr %buffer.at
  %data.at = getelementptr i8, ptr %buffer, i64 24
  %data = load i64, ptr %data.at
  %base.at = getelementptr i64, ptr %bases, i64 %i
  store i64 %data, ptr %base.at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define internal ptr @run(ptr %frame, ptr %context) {{
entry:
  %extension.at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension.at
  %is.extended = icmp ne ptr %extension, null
  br i1 %is.extended, label %extended, label %staged
extended:
  %type.at = getelementptr i8, ptr %extension, i64 8
  %type = load i32, ptr %type.at
  %is.question = icmp eq i32 %type, 1
  br i1 %is.question, label %answer, label %staged
answer:
  %metadata.at = getelementptr i8, ptr %extension, i64 24
  %metadata = load ptr, ptr %metadata.at
  %major.at = getelementptr i8, ptr %metadata, i64 24
  store i32 0, ptr %major.at
  %minor.at = getelementptr i8, ptr %metadata, i64 28
  store i32 {minor}, ptr %minor.at
  %traits.at = getelementptr i8, ptr %metadata, i64 32
  store i32 0, ptr %traits.at
  ret ptr null
staged:
  %stage.at = getelementptr i8, ptr %frame, i64 32
  %stage = load i32, ptr %stage.at
  %is.execution = icmp eq i32 %stage, 3
  br i1 %is.execution, label %take, label %nothing
take:
  %old = cmpxchg ptr %context, i64 0, i64 1 seq_cst seq_cst
  %is.taken = extractvalue {{ i64, i1 }} %old, 1
  br i1 %is.taken, label %work, label %wait
wait:
  %yielded = call i32 @sched_yield()
  br label %take
work:
  %control.at = getelementptr i64, ptr %context, i64 1
  %state.at = getelementptr i64, ptr %context, i64 2
  %arguments.at = getelementptr i64, ptr %context, i64 3
  %results.at = getelementptr i64, ptr %context, i64 4
  %workspace.at = getelementptr i64, ptr %context, i64 5
  %replay.at = getelementptr i64, ptr %context, i64 7
  %control = load ptr, ptr %control.at
  %state = load ptr, ptr %state.at
  %arguments = load i64, ptr %arguments.at
  %results = load i64, ptr %results.at
  %workspace = load i64, ptr %workspace.at
  %replay = load ptr, ptr %replay.at
  %both = add i64 %arguments, %results
  %room = add i64 %both, 1
  %bases = alloca i64, i64 %room
  %args.at = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %args.at
  call void @collect(ptr %args, i64 %arguments, ptr %bases)
  %rets.at = getelementptr i8, ptr %frame, i64 112
  %rets = load ptr, ptr %rets.at
  %bases.results = getelementptr i64, ptr %bases, i64 %arguments
  call void @collect(ptr %rets, i64 %results, ptr %bases.results)
  %last.at = getelementptr i64, ptr %bases, i64 %both
  store i64 %workspace, ptr %last.at
  call void %replay(ptr %control, ptr %state, ptr %bases, ptr null)
  store atomic i64 0, ptr %context seq_cst, align 8
  br label %nothing
nothing:
  ret ptr null
}}
"""
_HANDLER = """
define ptr @handler_{number}(ptr %frame) {{
  %context = getelementptr i64, ptr @contexts, i64 {first}
  %error = call ptr @run(ptr %frame, ptr %context)
  ret ptr %error
}}
"""


class Handlers:
    """Handlers in use: each keeps what it runs for ever, as XLA keeps its address."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._table: Any = None
        self._used = 0
        self._kept: list[object] = []

    def add(self, launches: LaunchList, arguments: int, results: int) -> int:
        """The address of a function that replays launches over so many arguments and results, in this order."""
        if self._library is None or self._used == _COUNT:
            self._begin()
        assert self._library is not None
        state = launches.new_state()
        replay, control, owner = replayer(launches.threads)
        workspace = state.scratch(launches.scratch) if launches.scratch else 0
        number, self._used = self._used, self._used + 1
        self._kept.append((launches, state, owner, self._library))
        self._table[number * _SLOTS : (number + 1) * _SLOTS] = (
            0, control, state.address, arguments, results, workspace, bool(workspace), replay,
        )  # fmt: skip
        return int(self._library.address(f"handler_{number}"))

    def _begin(self) -> None:
        copies = len(self._kept) // _COUNT
        text = _RUN.format(size=_COUNT * _SLOTS, minor=minor()) + "".join(
            _HANDLER.format(number=number, first=number * _SLOTS) for number in range(_COUNT)
        )
        self._library = load(f"jax handlers {copies}", text, isa("host"), lambda module: module.write(text))
        address = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._library.address("table"))()
        self._table = np.ctypeslib.as_array((ctypes.c_int64 * (_COUNT * _SLOTS)).from_address(address))
        self._used = 0
