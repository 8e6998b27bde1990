"""The part of the generated code for threads that runs in regions of OpenMP: `run_shared` and what both it and
`replay_shared` open (`threads_runtime.py`, whose names of slots stand in braces)."""

REGIONS = """
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
  %entries.at = getelementptr i64, ptr %control, i64 {entries}
  %launches.at = getelementptr i64, ptr %control, i64 {launches}
  %clock.at = getelementptr i64, ptr %control, i64 {clock}
  %entries = load ptr, ptr %entries.at
  %launches = load i64, ptr %launches.at
  %clock = load ptr, ptr %clock.at
  call void @run_entries(ptr %control, ptr %entries, i64 %launches, i64 %threads, ptr %clock)
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
  %entries = alloca [{entry_slots} x i64]
  call void @enter(ptr %entries, ptr %phases, i64 %count, ptr %args, i64 %threads)
  br label %look
look:
  %p = phi i64 [0, %entry], [%p.next, %single]
  %some = icmp slt i64 %p, %count
  br i1 %some, label %phase, label %alone
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
alone:
  %threads.at = getelementptr i64, ptr %entries, i64 3
  store i64 1, ptr %threads.at
  call void @run_entries(ptr null, ptr %entries, i64 1, i64 1, ptr null)
  ret void
open:
  call void @share(ptr %openmp, ptr %entries, i64 1, i64 %threads, ptr null)
  ret void
}}

define internal void @share(ptr %openmp, ptr %entries, i64 %launches, i64 %threads, ptr %clock) {{
  %control = alloca [{region_slots} x i64], align 128
  %stop.at = getelementptr i64, ptr %control, i64 {stop}
  %active.at = getelementptr i64, ptr %control, i64 {active}
  %ticket.at = getelementptr i64, ptr %control, i64 {ticket}
  %busy.at = getelementptr i64, ptr %control, i64 {busy}
  %listed.at = getelementptr i64, ptr %control, i64 {listed}
  %cells.at = getelementptr i64, ptr %control, i64 {cells}
  %entries.at = getelementptr i64, ptr %control, i64 {entries}
  %launches.at = getelementptr i64, ptr %control, i64 {launches}
  %threads.at = getelementptr i64, ptr %control, i64 {threads}
  %number.at = getelementptr i64, ptr %control, i64 {number}
  %clock.at = getelementptr i64, ptr %control, i64 {clock}
  store i64 0, ptr %control
  store i64 0, ptr %stop.at
  store i64 0, ptr %active.at
  store i64 0, ptr %ticket.at
  store i64 0, ptr %busy.at
  store i64 0, ptr %listed.at
  store ptr null, ptr %cells.at
  store ptr %entries, ptr %entries.at
  store i64 %launches, ptr %launches.at
  store i64 %threads, ptr %threads.at
  store ptr %clock, ptr %clock.at
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
