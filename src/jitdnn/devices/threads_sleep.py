"""The part of the generated code for threads by which the workers of `threads.py` sleep and wake, without Python
(`threads_runtime.py`, whose names of slots stand in braces).

Each worker has a cell with a flag (1 while it sleeps), a lock and a condition. It sets the flag before it looks a last
time whether there is work; who opens a phase looks at flags after that. So either the worker sees the phase or it is
woken. Thread n wakes threads 2n + 1 and 2n + 2, as far as the launch takes so many, when it opens a phase, enters one
or wakes up itself: the caller pays for two, and hundreds wake in the time of ten.

Linux wakes a thread on the core of whoever wakes it, and takes milliseconds to move it from there. So a worker that was
woken leaves the caller's core to the caller from then on.
"""

from __future__ import annotations

import sys

#: workers and the caller: cells that there are
MOST_THREADS = 1024
# slots of 8 bytes in a cell, which has cache lines of its own: the flag, the core that is left to the caller, the
# lock, the condition, and cores as sched_setaffinity takes them
CELL_SLOTS = 48
_CORE, _LOCK, _CONDITION, _OWN_CORES = 1, 8, 16, 32
#: cores that a mask of affinity has bits for
MASK_CORES = 1024

_SLEEP = """
define internal ptr @cell(ptr %control, i64 %thread) {{
  %cells.at = getelementptr i64, ptr %control, i64 {cells}
  %cells = load ptr, ptr %cells.at
  %place = mul i64 %thread, {cell_slots}
  %cell = getelementptr i64, ptr %cells, i64 %place
  ret ptr %cell
}}

define void @prepare(ptr %control, i64 %thread) {{
  %cell = call ptr @cell(ptr %control, i64 %thread)
  %core.at = getelementptr i64, ptr %cell, i64 {core}
  %lock = getelementptr i64, ptr %cell, i64 {lock}
  %condition = getelementptr i64, ptr %cell, i64 {condition}
  store i64 -1, ptr %core.at
  {begin_lock}
  {begin_condition}
  ret void
}}

define void @wake(ptr %control, i64 %thread) {{
  %cell = call ptr @cell(ptr %control, i64 %thread)
  %lock = getelementptr i64, ptr %cell, i64 {lock}
  %condition = getelementptr i64, ptr %cell, i64 {condition}
  {acquire}
  store atomic i64 0, ptr %cell seq_cst, align 8
  {signal}
  {release}
  ret void
}}

define internal void @rouse(ptr %control, i64 %thread, i64 %threads) {{
entry:
  %cells.at = getelementptr i64, ptr %control, i64 {cells}
  %cells = load ptr, ptr %cells.at
  %is.region = icmp eq ptr %cells, null
  %twice = mul i64 %thread, 2
  %first = add i64 %twice, 1
  %behind = add i64 %twice, 3
  %is.few = icmp slt i64 %threads, {most_threads}
  %many = select i1 %is.few, i64 %threads, i64 {most_threads}
  %is.less = icmp slt i64 %many, %behind
  %end = select i1 %is.less, i64 %many, i64 %behind
  br i1 %is.region, label %done, label %next
next:
  %n = phi i64 [%first, %entry], [%n.next, %more]
  %some = icmp slt i64 %n, %end
  br i1 %some, label %look, label %done
look:
  %cell = call ptr @cell(ptr %control, i64 %n)
  %flag = load atomic i64, ptr %cell seq_cst, align 8
  %sleeps = icmp ne i64 %flag, 0
  br i1 %sleeps, label %note, label %more
note:
  %is.caller = icmp eq i64 %thread, 0
  br i1 %is.caller, label %place, label %go
place:
  {note_core}
  br label %go
go:
  call void @wake(ptr %control, i64 %n)
  br label %more
more:
  %n.next = add i64 %n, 1
  br label %next
done:
  ret void
}}

define internal void @sleep(ptr %control, i64 %thread, i64 %seen) {{
entry:
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %listed.at = getelementptr i64, ptr %control, i64 {listed}
  %cell = call ptr @cell(ptr %control, i64 %thread)
  %lock = getelementptr i64, ptr %cell, i64 {lock}
  %condition = getelementptr i64, ptr %cell, i64 {condition}
  {acquire}
  store atomic i64 1, ptr %cell seq_cst, align 8
  %ticket = load atomic i64, ptr %control seq_cst, align 8
  %stop = load atomic i64, ptr %stop.at seq_cst, align 8
  %listed = load atomic i64, ptr %listed.at seq_cst, align 8
  %is.open = icmp ne i64 %ticket, 0
  %is.new = icmp ne i64 %ticket, %seen
  %is.work = and i1 %is.open, %is.new
  %is.end = icmp ne i64 %stop, 0
  %is.list = icmp slt i64 %thread, %listed
  %is.some = or i1 %is.work, %is.end
  %stays = or i1 %is.some, %is.list
  br i1 %stays, label %stay, label %look
stay:
  store atomic i64 0, ptr %cell seq_cst, align 8
  {release}
  ret void
look:
  %flag = load atomic i64, ptr %cell seq_cst, align 8
  %sleeps = icmp ne i64 %flag, 0
  br i1 %sleeps, label %wait, label %woken
wait:
  {wait}
  br label %look
woken:
  {release}
  %threads = load atomic i64, ptr %listed.at seq_cst, align 8
  call void @rouse(ptr %control, i64 %thread, i64 %threads)
  {leave_core}
  ret void
}}

define void @serve(ptr %control, i64 %thread) {{
entry:
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  br label %work
work:
  %last = phi i64 [0, %entry], [%seen, %rest]
  %seen = call i64 @worker(ptr %control, i64 %thread, i64 %last)
  %stopped = load atomic i64, ptr %stop.at seq_cst, align 8
  %stops = icmp ne i64 %stopped, 0
  br i1 %stops, label %done, label %rest
rest:
  call void @sleep(ptr %control, i64 %thread, i64 %seen)
  br label %work
done:
  ret void
}}
"""

_POSIX = {
    "begin_lock": "%b = call i32 @pthread_mutex_init(ptr %lock, ptr null)",
    "begin_condition": "%c = call i32 @pthread_cond_init(ptr %condition, ptr null)",
    "acquire": "%a = call i32 @pthread_mutex_lock(ptr %lock)",
    "signal": "%s = call i32 @pthread_cond_signal(ptr %condition)",
    "wait": "%w = call i32 @pthread_cond_wait(ptr %condition, ptr %lock)",
}
_POSIX_NAMES = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
"""
_RELEASE_POSIX = "call i32 @pthread_mutex_unlock(ptr %lock)"  # twice in a function: its result has no name
# slim locks and conditions of Windows are zeros when they begin
_WINDOWS = {
    "begin_lock": "",
    "begin_condition": "",
    "acquire": "call void @AcquireSRWLockExclusive(ptr %lock)",
    "signal": "call void @WakeConditionVariable(ptr %condition)",
    "wait": "%w = call i32 @SleepConditionVariableSRW(ptr %condition, ptr %lock, i32 -1, i32 0)",
}
_WINDOWS_NAMES = """
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare void @WakeConditionVariable(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
"""
_LINUX_NAMES = """
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i64 @llvm.vector.reduce.or.v16i64(<16 x i64>)
"""
_NOTE_CORE = """
  %callers.at = getelementptr i64, ptr %control, i64 {callers_core}
  %number = call i32 @sched_getcpu()
  %callers = sext i32 %number to i64
  store i64 %callers, ptr %callers.at
"""
_LEAVE = """
define internal void @leave(ptr %control, ptr %cell) {{
entry:
  %cores.at = getelementptr i64, ptr %control, i64 {cores}
  %callers.at = getelementptr i64, ptr %control, i64 {callers_core}
  %left.at = getelementptr i64, ptr %cell, i64 {core}
  %own = getelementptr i64, ptr %cell, i64 {own_cores}
  %cores = load ptr, ptr %cores.at
  %callers = load i64, ptr %callers.at
  %left = load i64, ptr %left.at
  %is.unknown = icmp eq ptr %cores, null
  %is.left = icmp eq i64 %callers, %left
  %is.outside = icmp uge i64 %callers, {mask_cores}
  %is.done = or i1 %is.unknown, %is.left
  %stays = or i1 %is.done, %is.outside
  br i1 %stays, label %done, label %choose
choose:
  store i64 %callers, ptr %left.at
  %all = load <16 x i64>, ptr %cores, align 8
  store <16 x i64> %all, ptr %own, align 8
  %word = lshr i64 %callers, 6
  %place = and i64 %callers, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  %word.at = getelementptr i64, ptr %own, i64 %word
  %old = load i64, ptr %word.at
  %new = and i64 %old, %others
  store i64 %new, ptr %word.at
  %rest = load <16 x i64>, ptr %own, align 8
  %any = call i64 @llvm.vector.reduce.or.v16i64(<16 x i64> %rest)
  %none = icmp eq i64 %any, 0
  br i1 %none, label %done, label %move
move:
  %e = call i32 @sched_setaffinity(i32 0, i64 128, ptr %own)
  br label %done
done:
  ret void
}}
"""


def sleeping() -> tuple[str, dict[str, object]]:
    """The code for this system, and what stands in its braces beside the slots of the control block."""
    on_windows, on_linux = sys.platform == "win32", sys.platform == "linux"
    text = _SLEEP.replace("{note_core}", _NOTE_CORE if on_linux else "")
    text += _WINDOWS_NAMES if on_windows else _POSIX_NAMES
    if on_linux:
        text += _LEAVE + _LINUX_NAMES
    names: dict[str, object] = dict(_WINDOWS if on_windows else _POSIX)
    names |= {
        "release": "call void @ReleaseSRWLockExclusive(ptr %lock)" if on_windows else _RELEASE_POSIX,
        "leave_core": "call void @leave(ptr %control, ptr %cell)" if on_linux else "",
        "most_threads": MOST_THREADS,
        "cell_slots": CELL_SLOTS,
        "core": _CORE,
        "lock": _LOCK,
        "condition": _CONDITION,
        "own_cores": _OWN_CORES,
        "mask_cores": MASK_CORES,
    }
    return text, names
