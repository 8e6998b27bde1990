"""The generated code that hands out the tasks of kernels to threads, whoever started them.

    phase  : one function and its number of tasks; the phases of a kernel run one after the other
    ticket : the number of a phase, never 0; it is in OPEN while tasks of the phase may be taken

A worker counts itself in ACTIVE before it looks at OPEN again, and the caller closes the phase before it waits for
ACTIVE to fall to 0. So no worker can see one phase's function with another's tasks.

`run` runs phases with the workers that serve its control block for ever (`worker`, `threads.py`). `run_shared` makes a
control block on its stack and opens one OpenMP region for all phases: thread 0 of the team calls `run`, the others are
the workers until it has ended, those beyond the kernel's threads return at once (`openmp.py`).
"""

from __future__ import annotations

import sys

from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

# Slots of 8 bytes in the control block; what different threads write lies on different cache lines.
_OPEN, _FUNCTION, _ARGS, _TASKS, _LIMIT, STOP = 0, 1, 2, 3, 4, 5
_NEXT, _ACTIVE, _TICKET, _BUSY = 16, 32, 48, 49
SLOTS = 64
# and of the block of a parallel region, behind its control block
_PHASES, _COUNT, _BLOCK, _THREADS, _NUMBER = range(SLOTS, SLOTS + 5)
_REGION_SLOTS = SLOTS + 16
_IDLE_SPINS = 20_000  # about half a millisecond of pauses before a worker sleeps
_YIELD_SPINS = 2_000  # a caller that waits longer than this lets other threads have its core

_RUNTIME = """
{declarations}
define void @serial(ptr %function, ptr %args, i64 %tasks) {{
entry:
  %some = icmp sgt i64 %tasks, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void %function(ptr %args, i64 %i, i64 0)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %tasks
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define void @drain(ptr %control, i64 %thread) {{
entry:
  %function.at = getelementptr i64, ptr %control, i64 {function}
  %args.at = getelementptr i64, ptr %control, i64 {args}
  %tasks.at = getelementptr i64, ptr %control, i64 {tasks}
  %next.at = getelementptr i64, ptr %control, i64 {next}
  %function = load ptr, ptr %function.at
  %args = load ptr, ptr %args.at
  %tasks = load i64, ptr %tasks.at
  br label %take
take:
  %i = atomicrmw add ptr %next.at, i64 1 seq_cst
  %some = icmp slt i64 %i, %tasks
  br i1 %some, label %work, label %done
work:
  call void %function(ptr %args, i64 %i, i64 %thread)
  br label %take
done:
  ret void
}}

define i64 @worker(ptr %control, i64 %thread, i64 %last) {{
entry:
  %limit.at = getelementptr i64, ptr %control, i64 {limit}
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  br label %wait
wait:
  %seen = phi i64 [%last, %entry], [%ticket, %leave]
  br label %spin
spin:
  %spins = phi i64 [0, %wait], [%spins.next, %idle]
  %ticket = load atomic i64, ptr %control seq_cst, align 8
  %closed = icmp eq i64 %ticket, 0
  %old = icmp eq i64 %ticket, %seen
  %nothing = or i1 %closed, %old
  br i1 %nothing, label %idle, label %enter
idle:
  {pause}
  %stopped = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopping = icmp ne i64 %stopped, 0
  %spins.next = add i64 %spins, 1
  %long = icmp sgt i64 %spins.next, {idle_spins}
  %quit = or i1 %stopping, %long
  br i1 %quit, label %sleep, label %spin
sleep:
  ret i64 %seen
enter:
  %entered = atomicrmw add ptr %active.at, i64 1 seq_cst
  %again = load atomic i64, ptr %control seq_cst, align 8
  %same = icmp eq i64 %again, %ticket
  br i1 %same, label %allowed, label %leave
allowed:
  %limit = load i64, ptr %limit.at
  %wanted = icmp slt i64 %thread, %limit
  br i1 %wanted, label %work, label %leave
work:
  call void @drain(ptr %control, i64 %thread)
  br label %leave
leave:
  %left = atomicrmw sub ptr %active.at, i64 1 seq_cst
  br label %wait
}}

define void @run(ptr %control, ptr %phases, i64 %count, ptr %args, i64 %threads) {{
entry:
  %function.to = getelementptr i64, ptr %control, i64 {function}
  %args.to = getelementptr i64, ptr %control, i64 {args}
  %tasks.to = getelementptr i64, ptr %control, i64 {tasks}
  %limit.to = getelementptr i64, ptr %control, i64 {limit}
  %next.to = getelementptr i64, ptr %control, i64 {next}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  %ticket.at = getelementptr i64, ptr %control, i64 {ticket}
  %busy.at = getelementptr i64, ptr %control, i64 {busy}
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %claim, label %ready
claim:
  %claimed = cmpxchg ptr %busy.at, i64 0, i64 1 seq_cst seq_cst
  %won = extractvalue {{i64, i1}} %claimed, 1
  br label %ready
ready:
  %owner = phi i1 [false, %entry], [%won, %claim]
  br label %phase
phase:
  %p = phi i64 [0, %ready], [%p.next, %advance]
  %more = icmp slt i64 %p, %count
  br i1 %more, label %begin, label %finish
begin:
  %row = mul i64 %p, 2
  %function.at = getelementptr i64, ptr %phases, i64 %row
  %row.tasks = add i64 %row, 1
  %tasks.at = getelementptr i64, ptr %phases, i64 %row.tasks
  %function = load ptr, ptr %function.at
  %tasks = load i64, ptr %tasks.at
  %single = icmp slt i64 %tasks, 2
  %shared = xor i1 %single, true
  %spread = and i1 %owner, %shared
  br i1 %spread, label %open, label %serial
serial:
  call void @serial(ptr %function, ptr %args, i64 %tasks)
  br label %advance
open:
  store ptr %function, ptr %function.to
  store ptr %args, ptr %args.to
  store i64 %tasks, ptr %tasks.to
  store i64 %threads, ptr %limit.to
  store i64 0, ptr %next.to
  %last = load i64, ptr %ticket.at
  %ticket = add i64 %last, 1
  store i64 %ticket, ptr %ticket.at
  store atomic i64 %ticket, ptr %control seq_cst, align 8
  call void @drain(ptr %control, i64 0)
  store atomic i64 0, ptr %control seq_cst, align 8
  br label %join
join:
  %waited = phi i64 [0, %open], [%waited.next, %again]
  %active = load atomic i64, ptr %active.at seq_cst, align 8
  %busy = icmp ne i64 %active, 0
  br i1 %busy, label %patience, label %advance
patience:
  {pause}
  %waited.next = add i64 %waited, 1
  %long = icmp sgt i64 %waited.next, {yield_spins}
  br i1 %long, label %yield, label %again
yield:
  {yield_core}
  br label %again
again:
  br label %join
advance:
  %p.next = add i64 %p, 1
  br label %phase
finish:
  br i1 %owner, label %release, label %done
release:
  store atomic i64 0, ptr %busy.at seq_cst, align 8
  br label %done
done:
  ret void
}}

define internal void @region(ptr %control) {{
entry:
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %threads.at = getelementptr i64, ptr %control, i64 {threads}
  %number.at = getelementptr i64, ptr %control, i64 {number}
  %threads = load i64, ptr %threads.at
  %omp_get_thread_num = load ptr, ptr %number.at
  %number = call i32 %omp_get_thread_num()
  %thread = zext i32 %number to i64
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %launch, label %others
launch:
  %phases.at = getelementptr i64, ptr %control, i64 {phases}
  %count.at = getelementptr i64, ptr %control, i64 {count}
  %block.at = getelementptr i64, ptr %control, i64 {block}
  %phases = load ptr, ptr %phases.at
  %count = load i64, ptr %count.at
  %args = load ptr, ptr %block.at
  call void @run(ptr %control, ptr %phases, i64 %count, ptr %args, i64 %threads)
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  ret void
others:
  %wanted = icmp slt i64 %thread, %threads
  br i1 %wanted, label %work, label %done
work:
  %last = phi i64 [0, %others], [%seen, %more]
  %seen = call i64 @worker(ptr %control, i64 %thread, i64 %last)
  %stopped = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopping = icmp ne i64 %stopped, 0
  br i1 %stopping, label %done, label %more
more:
  {yield_core}
  br label %work
done:
  ret void
}}

define void @run_shared(ptr %openmp, ptr %phases, i64 %count, ptr %args, i64 %threads) {{
entry:
  %control = alloca [{region_slots} x i64], align 128
  br label %look
look:
  %p = phi i64 [0, %entry], [%p.next, %single]
  %some = icmp slt i64 %p, %count
  br i1 %some, label %phase, label %serial
phase:
  %row = mul i64 %p, 2
  %row.tasks = add i64 %row, 1
  %tasks.at = getelementptr i64, ptr %phases, i64 %row.tasks
  %tasks = load i64, ptr %tasks.at
  %several = icmp sgt i64 %tasks, 1
  br i1 %several, label %open, label %single
single:
  %p.next = add i64 %p, 1
  br label %look
serial:
  call void @run(ptr %control, ptr %phases, i64 %count, ptr %args, i64 1)
  ret void
open:
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  %ticket.at = getelementptr i64, ptr %control, i64 {ticket}
  %busy.at = getelementptr i64, ptr %control, i64 {busy}
  %phases.at = getelementptr i64, ptr %control, i64 {phases}
  %count.at = getelementptr i64, ptr %control, i64 {count}
  %block.at = getelementptr i64, ptr %control, i64 {block}
  %threads.at = getelementptr i64, ptr %control, i64 {threads}
  %number.at = getelementptr i64, ptr %control, i64 {number}
  store i64 0, ptr %control
  store i64 0, ptr %stop.at
  store i64 0, ptr %active.at
  store i64 0, ptr %ticket.at
  store i64 0, ptr %busy.at
  store ptr %phases, ptr %phases.at
  store i64 %count, ptr %count.at
  store ptr %args, ptr %block.at
  store i64 %threads, ptr %threads.at
  %team.at = getelementptr ptr, ptr %openmp, i64 1
  %thread.at = getelementptr ptr, ptr %openmp, i64 2
  %GOMP_parallel = load ptr, ptr %openmp
  %omp_get_max_threads = load ptr, ptr %team.at
  %omp_get_thread_num = load ptr, ptr %thread.at
  store ptr %omp_get_thread_num, ptr %number.at
  %own = trunc i64 %threads to i32
  %full = call i32 %omp_get_max_threads()
  %alone = icmp slt i32 %full, 2
  %team = select i1 %alone, i32 %own, i32 %full
  call void %GOMP_parallel(ptr @region, ptr %control, i32 %team, i32 0)
  ret void
}}
"""


def _runtime_text() -> str:
    """The LLVM IR for this machine."""
    host = isa("host").triple
    pause, declarations = "", ""
    if host.startswith(("x86_64", "i686")):
        pause, declarations = "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"
    elif host.startswith(("aarch64", "arm64")):
        pause, declarations = "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"
    yield_core = ""
    if sys.platform != "win32":
        yield_core = "%y = call i32 @sched_yield()"
        declarations += "declare i32 @sched_yield()\n"
    return _RUNTIME.format(
        declarations=declarations, pause=pause, yield_core=yield_core,
        function=_FUNCTION, args=_ARGS, tasks=_TASKS, limit=_LIMIT, stop=STOP, next=_NEXT, active=_ACTIVE,
        ticket=_TICKET, busy=_BUSY, phases=_PHASES, count=_COUNT, block=_BLOCK, threads=_THREADS, number=_NUMBER,
        region_slots=_REGION_SLOTS, idle_spins=_IDLE_SPINS, yield_spins=_YIELD_SPINS,
    )  # fmt: skip


def runtime() -> Library:
    """The code, with the functions `run`, `worker` and `run_shared`."""
    text = _runtime_text()
    with compiling():
        return load("threads", text, isa("host"), lambda module: module.write(text))
