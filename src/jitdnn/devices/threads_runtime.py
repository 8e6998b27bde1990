"""The generated code that hands out the tasks of kernels to threads, whoever started them.

    phase  : one function and its number of tasks; the phases of a kernel run one after the other
    ticket : the number of a phase, never 0; it is in OPEN while tasks of the phase may be taken

A worker counts itself in ACTIVE before it looks at OPEN again, and the caller closes the phase before it waits for
ACTIVE to fall to 0. So no worker can see one phase's function with another's tasks.

Threads of even numbers take the first tasks that are left, the others the last: of a list of launches over the same
rows each finds most of what it reads in its own caches. Whoever counted itself in NEXT below the number of tasks has
one, from its end: as no more are taken from both ends together than there are, nobody takes another's.

`run` runs the phases of a launch with the workers that serve its control block for ever (`serve`, `threads_sleep.py`).
`run_shared` makes a control block on its stack and opens one OpenMP region for all phases: thread 0 of the team does
what `run` does, the others are the workers until it has ended, those beyond the kernel's threads return at once
(`threads_regions.py`, `openmp.py`).

`replay` and `replay_shared` do the same for a list of launches (`launch_list.py`), with one claim of the workers, or in
one region: first they move the addresses in the argument blocks to where the caller's memory is, then each launch runs,
and where `clock` is given the times of the start and of each launch's end are noted. A list that takes several threads
anywhere claims the workers at its start, and they do not go to sleep before it has ended (LISTED): launches on one
thread may take longer than a worker otherwise waits.
"""

from __future__ import annotations

import sys

from jitdnn.devices.threads_regions import REGIONS
from jitdnn.devices.threads_sleep import sleeping
from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

# Slots of 8 bytes in the control block; what different threads write lies on different cache lines.
_OPEN, _FUNCTION, _ARGS, _TASKS, _LIMIT, STOP = 0, 1, 2, 3, 4, 5
_NEXT, _FRONT, _ACTIVE, _BACK, _TICKET, _BUSY, _LISTED = 16, 24, 32, 40, 48, 49, 50
# of a control block with workers: the address of their cells (0 without), the cores of the process, the caller's core
CELLS, CORES, CALLERS_CORE = 56, 57, 58
SLOTS = 64
# and of the block of a parallel region, behind its control block
_ENTRIES, _LAUNCHES, _THREADS, _NUMBER, _CLOCK = range(SLOTS, SLOTS + 5)
ENTRY_SLOTS = (
    4  # of one launch: address and length of the table of its phases, its argument block, its threads
)
#: of a list of launches that is replayed: see `launch_list.py`
(
    STATE_LAUNCHES,
    STATE_THREADS,
    STATE_ENTRIES,
    STATE_BASES,
    STATE_NOW,
    STATE_STARTS,
    STATE_SLOTS,
    STATE_BLOCKS,
) = range(8)
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

define void @nothing(ptr %args, i64 %task, i64 %thread) {{
  ret void
}}

define internal i64 @ticks() {{
{ticks}
}}

define void @drain(ptr %control, i64 %thread) {{
entry:
  %function.at = getelementptr i64, ptr %control, i64 {function}
  %args.at = getelementptr i64, ptr %control, i64 {args}
  %tasks.at = getelementptr i64, ptr %control, i64 {tasks}
  %next.at = getelementptr i64, ptr %control, i64 {next}
  %front.at = getelementptr i64, ptr %control, i64 {front}
  %back.at = getelementptr i64, ptr %control, i64 {back}
  %function = load ptr, ptr %function.at
  %args = load ptr, ptr %args.at
  %tasks = load i64, ptr %tasks.at
  %parity = and i64 %thread, 1
  %is.back = icmp ne i64 %parity, 0
  %own.at = select i1 %is.back, ptr %back.at, ptr %front.at
  %last = sub i64 %tasks, 1
  br label %take
take:
  %taken = atomicrmw add ptr %next.at, i64 1 seq_cst
  %some = icmp slt i64 %taken, %tasks
  br i1 %some, label %work, label %done
work:
  %own = atomicrmw add ptr %own.at, i64 1 seq_cst
  %mirrored = sub i64 %last, %own
  %i = select i1 %is.back, i64 %mirrored, i64 %own
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
  %listed.at = getelementptr i64, ptr %control, i64 {listed}
  br label %wait
wait:
  %seen = phi i64 [%last, %entry], [%ticket, %leave]
  br label %spin
spin:
  %spins = phi i64 [0, %wait], [%spins.next, %patience], [%spins.next, %yield]
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
  br i1 %stopping, label %sleep, label %patience
patience:
  br i1 %long, label %tired, label %spin
tired:
  %listed = load atomic i64, ptr %listed.at seq_cst, align 8
  %stays = icmp slt i64 %thread, %listed
  br i1 %stays, label %yield, label %sleep
yield:
  {yield_core}
  br label %spin
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
  call void @rouse(ptr %control, i64 %thread, i64 %limit)
  call void @drain(ptr %control, i64 %thread)
  br label %leave
leave:
  %left = atomicrmw sub ptr %active.at, i64 1 seq_cst
  br label %wait
}}

define internal void @run_entries(ptr %control, ptr %entries, i64 %launches, i64 %most, ptr %clock) {{
entry:
  %function.to = getelementptr i64, ptr %control, i64 {function}
  %args.to = getelementptr i64, ptr %control, i64 {args}
  %tasks.to = getelementptr i64, ptr %control, i64 {tasks}
  %limit.to = getelementptr i64, ptr %control, i64 {limit}
  %next.to = getelementptr i64, ptr %control, i64 {next}
  %front.to = getelementptr i64, ptr %control, i64 {front}
  %back.to = getelementptr i64, ptr %control, i64 {back}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  %ticket.at = getelementptr i64, ptr %control, i64 {ticket}
  %busy.at = getelementptr i64, ptr %control, i64 {busy}
  %listed.at = getelementptr i64, ptr %control, i64 {listed}
  %is.list = icmp sgt i64 %launches, 1
  %is.shared = icmp sgt i64 %most, 1
  %is.timed = icmp ne ptr %clock, null
  br i1 %is.timed, label %start, label %first
start:
  %begun = call i64 @ticks()
  store i64 %begun, ptr %clock
  br label %first
first:
  br label %launch
launch:
  %n = phi i64 [0, %first], [%n.next, %next]
  %held = phi i1 [false, %first], [%owner, %next]
  %some = icmp slt i64 %n, %launches
  br i1 %some, label %read, label %finish
read:
  %slot = mul i64 %n, {entry_slots}
  %phases.at = getelementptr i64, ptr %entries, i64 %slot
  %count.at = getelementptr i64, ptr %phases.at, i64 1
  %block.at = getelementptr i64, ptr %phases.at, i64 2
  %threads.at = getelementptr i64, ptr %phases.at, i64 3
  %phases = load ptr, ptr %phases.at
  %count = load i64, ptr %count.at
  %args = load ptr, ptr %block.at
  %threads = load i64, ptr %threads.at
  %several = icmp sgt i64 %threads, 1
  %free = xor i1 %held, true
  %is.first = icmp eq i64 %n, 0
  %ahead = and i1 %is.first, %is.shared
  %wants = or i1 %several, %ahead
  %claims = and i1 %wants, %free
  br i1 %claims, label %claim, label %ready
claim:
  %claimed = cmpxchg ptr %busy.at, i64 0, i64 1 seq_cst seq_cst
  %won = extractvalue {{i64, i1}} %claimed, 1
  %announces = and i1 %won, %is.list
  br i1 %announces, label %announce, label %ready
announce:
  store atomic i64 %most, ptr %listed.at seq_cst, align 8
  call void @rouse(ptr %control, i64 0, i64 %most)
  br label %ready
ready:
  %owner = phi i1 [%held, %read], [%won, %claim], [true, %announce]
  %spreads = and i1 %owner, %several
  br label %phase
phase:
  %p = phi i64 [0, %ready], [%p.next, %advance]
  %more = icmp slt i64 %p, %count
  br i1 %more, label %begin, label %ended
begin:
  %row = mul i64 %p, 2
  %function.at = getelementptr i64, ptr %phases, i64 %row
  %row.tasks = add i64 %row, 1
  %tasks.at = getelementptr i64, ptr %phases, i64 %row.tasks
  %function = load ptr, ptr %function.at
  %tasks = load i64, ptr %tasks.at
  %single = icmp slt i64 %tasks, 2
  %shared = xor i1 %single, true
  %spread = and i1 %spreads, %shared
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
  store i64 0, ptr %front.to
  store i64 0, ptr %back.to
  %last = load i64, ptr %ticket.at
  %ticket = add i64 %last, 1
  store i64 %ticket, ptr %ticket.at
  store atomic i64 %ticket, ptr %control seq_cst, align 8
  call void @rouse(ptr %control, i64 0, i64 %threads)
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
ended:
  %n.next = add i64 %n, 1
  br i1 %is.timed, label %timed, label %next
timed:
  %now = call i64 @ticks()
  %now.at = getelementptr i64, ptr %clock, i64 %n.next
  store i64 %now, ptr %now.at
  br label %next
next:
  br label %launch
finish:
  br i1 %held, label %release, label %done
release:
  store atomic i64 0, ptr %listed.at seq_cst, align 8
  store atomic i64 0, ptr %busy.at seq_cst, align 8
  br label %done
done:
  ret void
}}

define void @run(ptr %control, ptr %phases, i64 %count, ptr %args, i64 %threads) {{
  %entry = alloca [{entry_slots} x i64]
  call void @enter(ptr %entry, ptr %phases, i64 %count, ptr %args, i64 %threads)
  call void @run_entries(ptr %control, ptr %entry, i64 1, i64 %threads, ptr null)
  ret void
}}

define internal void @enter(ptr %entry, ptr %phases, i64 %count, ptr %args, i64 %threads) {{
  %count.at = getelementptr i64, ptr %entry, i64 1
  %block.at = getelementptr i64, ptr %entry, i64 2
  %threads.at = getelementptr i64, ptr %entry, i64 3
  store ptr %phases, ptr %entry
  store i64 %count, ptr %count.at
  store ptr %args, ptr %block.at
  store i64 %threads, ptr %threads.at
  ret void
}}

define internal void @relocate(ptr %state, ptr %bases) {{
entry:
  %counts.at = getelementptr i64, ptr %state, i64 {state_bases}
  %now.at = getelementptr i64, ptr %state, i64 {state_now}
  %starts.at = getelementptr i64, ptr %state, i64 {state_starts}
  %slots.at = getelementptr i64, ptr %state, i64 {state_slots}
  %blocks.at = getelementptr i64, ptr %state, i64 {state_blocks}
  %count = load i64, ptr %counts.at
  %now = load ptr, ptr %now.at
  %starts = load ptr, ptr %starts.at
  %slots = load ptr, ptr %slots.at
  %blocks = load ptr, ptr %blocks.at
  br label %base
base:
  %b = phi i64 [0, %entry], [%b.next, %moved]
  %some = icmp slt i64 %b, %count
  br i1 %some, label %look, label %done
look:
  %old.at = getelementptr i64, ptr %now, i64 %b
  %new.at = getelementptr i64, ptr %bases, i64 %b
  %old = load i64, ptr %old.at
  %new = load i64, ptr %new.at
  %by = sub i64 %new, %old
  %b.next = add i64 %b, 1
  %stays = icmp eq i64 %by, 0
  br i1 %stays, label %moved, label %move
move:
  store i64 %new, ptr %old.at
  %first.at = getelementptr i64, ptr %starts, i64 %b
  %end.at = getelementptr i64, ptr %starts, i64 %b.next
  %first = load i64, ptr %first.at
  %end = load i64, ptr %end.at
  br label %slot
slot:
  %s = phi i64 [%first, %move], [%s.next, %patch]
  %more = icmp slt i64 %s, %end
  br i1 %more, label %patch, label %moved
patch:
  %place.at = getelementptr i64, ptr %slots, i64 %s
  %place = load i64, ptr %place.at
  %address.at = getelementptr i64, ptr %blocks, i64 %place
  %address = load i64, ptr %address.at
  %address.new = add i64 %address, %by
  store i64 %address.new, ptr %address.at
  %s.next = add i64 %s, 1
  br label %slot
moved:
  br label %base
done:
  ret void
}}

define void @replay(ptr %control, ptr %state, ptr %bases, ptr %clock) {{
  call void @relocate(ptr %state, ptr %bases)
  %launches.at = getelementptr i64, ptr %state, i64 {state_launches}
  %threads.at = getelementptr i64, ptr %state, i64 {state_threads}
  %entries.at = getelementptr i64, ptr %state, i64 {state_entries}
  %launches = load i64, ptr %launches.at
  %threads = load i64, ptr %threads.at
  %entries = load ptr, ptr %entries.at
  call void @run_entries(ptr %control, ptr %entries, i64 %launches, i64 %threads, ptr %clock)
  ret void
}}

define void @replay_shared(ptr %openmp, ptr %state, ptr %bases, ptr %clock) {{
  call void @relocate(ptr %state, ptr %bases)
  %launches.at = getelementptr i64, ptr %state, i64 {state_launches}
  %threads.at = getelementptr i64, ptr %state, i64 {state_threads}
  %entries.at = getelementptr i64, ptr %state, i64 {state_entries}
  %launches = load i64, ptr %launches.at
  %threads = load i64, ptr %threads.at
  %entries = load ptr, ptr %entries.at
  call void @share(ptr %openmp, ptr %entries, i64 %launches, i64 %threads, ptr %clock)
  ret void
}}
"""

_CLOCK_TICKS = """
  %time = alloca [2 x i64]
  %e = call i32 @clock_gettime(i32 {monotonic}, ptr %time)
  %s = load i64, ptr %time
  %ns.at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns.at
  %scaled = mul i64 %s, 1000000000
  %t = add i64 %scaled, %ns
  ret i64 %t
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
        declarations += "declare i32 @clock_gettime(i32, ptr)\n"
        ticks = _CLOCK_TICKS.format(monotonic=6 if sys.platform == "darwin" else 1)
    else:
        declarations += "declare i64 @llvm.readcyclecounter()\n"
        ticks = "  %t = call i64 @llvm.readcyclecounter()\n  ret i64 %t"
    sleep, names = sleeping()
    return (_RUNTIME + REGIONS + sleep).format(
        declarations=declarations, pause=pause, yield_core=yield_core, function=_FUNCTION, args=_ARGS, tasks=_TASKS,
        limit=_LIMIT, stop=STOP, next=_NEXT, front=_FRONT, back=_BACK, active=_ACTIVE, ticket=_TICKET, busy=_BUSY,
        listed=_LISTED, entries=_ENTRIES, launches=_LAUNCHES, threads=_THREADS, number=_NUMBER, clock=_CLOCK,
        region_slots=_REGION_SLOTS, entry_slots=ENTRY_SLOTS, state_launches=STATE_LAUNCHES,
        state_threads=STATE_THREADS, state_entries=STATE_ENTRIES, state_bases=STATE_BASES, state_now=STATE_NOW,
        state_starts=STATE_STARTS, state_slots=STATE_SLOTS, state_blocks=STATE_BLOCKS, idle_spins=_IDLE_SPINS,
        yield_spins=_YIELD_SPINS, ticks=ticks, cells=CELLS, cores=CORES, callers_core=CALLERS_CORE, **names,
    )  # fmt: skip


def runtime() -> Library:
    """The code, with the functions `run`, `replay`, `prepare`, `serve`, `wake`, `run_shared`, `replay_shared`, and
    `nothing`, a task that returns at once."""
    text = _runtime_text()
    with compiling():
        return load("threads", text, isa("host"), lambda module: module.write(text))
