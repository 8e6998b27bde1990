"""The generated code of `run`, which native_run.py makes records for: results allocated, addresses placed, launches.

It is a part of the text of native_code.py, whose functions for addresses and launches it calls.
"""

from __future__ import annotations

#: of a record of `run`; `busy` is written to
RUN_SLOTS = (
    "inputs", "results", "returned", "is_one", "is_gpu", "slow", "none", "data_ptr", "override", "defaults",
    "default_name", "settings", "recorders", "stream", "index", "device", "makers", "kernels", "kernel", "driver",
    "control", "state", "busy",
)  # fmt: skip
#: and of each kernel that it launches; on a processor there is one, a list of launches, with the pointers alone
KERNEL_SLOTS = (
    "pointers", "pointer_places", "mask", "parameters", "block", "table_bytes", "table", "maps", "places", "launches",
    "configs",
)  # fmt: skip
RUN_TEXT = """
declare i32 @PyContextVar_Get(ptr, ptr, ptr)

; drop so many results
define internal void @drop(ptr %objects, i64 %count) {{
entry:
  br label %each
each:
  %n = phi i64 [0, %entry], [%n_next, %one]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %one, label %done
one:
  %at = getelementptr ptr, ptr %objects, i64 %n
  %object = load ptr, ptr %at
  call void @Py_DecRef(ptr %object)
  %n_next = add i64 %n, 1
  br label %each
done:
  ret void
}}

define ptr @run(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs = field i64 %record, {u_inputs}
  %results = field i64 %record, {u_results}
  %slow = field ptr %record, {u_slow}
  %none = field ptr %record, {u_none}
  %gpu = field i64 %record, {u_is_gpu}
  %is_gpu = icmp ne i64 %gpu, 0
  %is_enough = icmp sge i64 %given, %inputs
  %is_unnamed = icmp eq ptr %keywords, null
  %is_form = and i1 %is_enough, %is_unnamed
  br i1 %is_form, label %settings, label %long

; the settings in force, as settings.py has them, whose function in Python a thread of PyTorch's engine is slow to run
settings:
  %override = field ptr %record, {u_override}
  %override_room = alloca ptr
  %override_status = call i32 @PyContextVar_Get(ptr %override, ptr null, ptr %override_room)
  %has_status = icmp eq i32 %override_status, 0
  br i1 %has_status, label %overridden, label %failed
overridden:
  %own_settings = load ptr, ptr %override_room
  call void @Py_DecRef(ptr %own_settings)
  %has_none = icmp eq ptr %own_settings, %none
  %has_nothing = icmp eq ptr %own_settings, null
  %is_of_process = or i1 %has_none, %has_nothing
  br i1 %is_of_process, label %of_process, label %same
of_process:
  %defaults = field ptr %record, {u_defaults}
  %default_name = field ptr %record, {u_default_name}
  %default_settings = call ptr @PyDict_GetItem(ptr %defaults, ptr %default_name)
  br label %same
same:
  %now = phi ptr [%own_settings, %overridden], [%default_settings, %of_process]
  %then = field ptr %record, {u_settings}
  %is_same = icmp eq ptr %now, %then
  br i1 %is_same, label %where, label %long
where:
  %room = alloca i64
  br i1 %is_gpu, label %stream, label %recording
recording:
  %recorders = field ptr %record, {u_recorders}
  %recording_count = call i64 @PyObject_Size(ptr %recorders)
  %is_unrecorded = icmp eq i64 %recording_count, 0
  br i1 %is_unrecorded, label %rooms, label %long
stream:
  %in_force = field ptr %record, {u_stream}
  %index = field ptr %record, {u_index}
  %has_stream = call i1 @address(ptr %in_force, ptr %index, ptr %room)
  br i1 %has_stream, label %default, label %failed
default:
  %stream_number = load i64, ptr %room
  %is_default = icmp eq i64 %stream_number, 0
  br i1 %is_default, label %gpus, label %long
gpus:
  %device = field ptr %record, {u_device}
  %is_alone = icmp eq ptr %device, null
  br i1 %is_alone, label %rooms, label %which_gpu
which_gpu:
  %gpu_now = call ptr @PyObject_CallNoArgs(ptr %device)
  %has_gpu = icmp ne ptr %gpu_now, null
  br i1 %has_gpu, label %compare_gpu, label %failed
compare_gpu:
  %compared_gpu = call i32 @PyObject_RichCompareBool(ptr %gpu_now, ptr %index, i32 2)
  call void @Py_DecRef(ptr %gpu_now)
  %is_its_gpu = icmp eq i32 %compared_gpu, 1
  br i1 %is_its_gpu, label %rooms, label %other_gpu
other_gpu:
  %is_raised = icmp slt i32 %compared_gpu, 0
  br i1 %is_raised, label %failed, label %long

rooms:
  %operand_count = add i64 %inputs, %results
  %operands = alloca i64, i64 %operand_count
  %objects = alloca ptr, i64 %results
  %data_ptr = field ptr %record, {u_data_ptr}
  %makers = field ptr %record, {u_makers}
  br label %inputs_each
inputs_each:
  %i = phi i64 [0, %rooms], [%i_next, %have]
  %more_inputs = icmp slt i64 %i, %inputs
  br i1 %more_inputs, label %input, label %results_each
input:
  %at_input = getelementptr ptr, ptr %args, i64 %i
  %tensor = load ptr, ptr %at_input
  %at_operand = getelementptr i64, ptr %operands, i64 %i
  %is_none = icmp eq ptr %tensor, %none
  br i1 %is_none, label %absent, label %present
absent:
  store i64 0, ptr %at_operand
  br label %have
present:
  %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_operand)
  br i1 %has_address, label %have, label %failed
have:
  %i_next = add i64 %i, 1
  br label %inputs_each

results_each:
  %r = phi i64 [0, %inputs_each], [%r_next, %placed]
  %more_results = icmp slt i64 %r, %results
  br i1 %more_results, label %result, label %values
result:
  %r_maker = mul i64 %r, 4
  %at_maker = getelementptr ptr, ptr %makers, i64 %r_maker
  %maker = load ptr, ptr %at_maker
  %at_object = getelementptr ptr, ptr %objects, i64 %r
  %r_next = add i64 %r, 1
  %r_operand = add i64 %inputs, %r
  %at_result = getelementptr i64, ptr %operands, i64 %r_operand
  %is_nothing = icmp eq ptr %maker, %none
  br i1 %is_nothing, label %nothing, label %something
nothing:
  call void @Py_IncRef(ptr %none)
  store ptr %none, ptr %at_object
  br label %placed
something:
  %at_first = getelementptr ptr, ptr %at_maker, i64 1
  %first = load ptr, ptr %at_first
  %has_no_form = icmp eq ptr %first, %none
  br i1 %has_no_form, label %alone, label %quick
alone:
  %made_alone = call ptr @PyObject_CallNoArgs(ptr %maker)
  br label %made
quick:
  %made_quick = call ptr @PyObject_Vectorcall(ptr %maker, ptr %at_first, i64 3, ptr null)
  br label %made
made:
  %object = phi ptr [%made_alone, %alone], [%made_quick, %quick]
  %is_made = icmp ne ptr %object, null
  br i1 %is_made, label %note, label %drop_failed
note:
  store ptr %object, ptr %at_object
  %has_result = call i1 @address(ptr %data_ptr, ptr %object, ptr %at_result)
  br i1 %has_result, label %placed, label %drop_failed
placed:
  br label %results_each

values:
  %driver = field ptr %record, {u_driver}
  %kernels = field i64 %record, {u_kernels}
  %kernel_records = field ptr %record, {u_kernel}
  %prepared = alloca ptr, i64 %kernels
  br label %kernels_each

; what each kernel is given, before any of them is launched
kernels_each:
  %k = phi i64 [0, %values], [%k_next, %ready]
  %more_kernels = icmp slt i64 %k, %kernels
  br i1 %more_kernels, label %kernel_one, label %enqueue
kernel_one:
  %at_kernel = getelementptr ptr, ptr %kernel_records, i64 %k
  %kernel = load ptr, ptr %at_kernel
  %k_next = add i64 %k, 1
  %parameters = field i64 %kernel, {k_parameters}
  %pointers = field i64 %kernel, {k_pointers}
  %each_place = field ptr %kernel, {k_pointer_places}
  %value_count = select i1 %is_gpu, i64 %parameters, i64 %pointers
  %block_bytes = shl i64 %parameters, 3
  %values_at = alloca i64, i64 %value_count, align 8
  %block = field ptr %kernel, {k_block}
  call void @llvm.memcpy.p0.p0.i64(ptr %values_at, ptr %block, i64 %block_bytes, i1 false)
  br label %pointers_each
pointers_each:
  %p = phi i64 [0, %kernel_one], [%p_next, %pointer]
  %bits = phi i64 [0, %kernel_one], [%bits_next, %pointer]
  %more_pointers = icmp slt i64 %p, %pointers
  br i1 %more_pointers, label %pointer, label %pointed
pointer:
  %p_double = shl i64 %p, 1
  %at_which = getelementptr i64, ptr %each_place, i64 %p_double
  %which = load i64, ptr %at_which
  %at_offset = getelementptr i64, ptr %at_which, i64 1
  %offset = load i64, ptr %at_offset
  %at_base = getelementptr i64, ptr %operands, i64 %which
  %base = load i64, ptr %at_base
  %value = add i64 %base, %offset
  %at_value = getelementptr i64, ptr %values_at, i64 %p
  store i64 %value, ptr %at_value
  %bits_next = or i64 %bits, %value
  %p_next = add i64 %p, 1
  br label %pointers_each
pointed:
  br i1 %is_gpu, label %aligned, label %free

; on a processor: one run at a time, others take the long way
free:
  %at_busy = getelementptr i64, ptr %record, i64 {u_busy}
  %busy = load i64, ptr %at_busy
  %is_free = icmp eq i64 %busy, 0
  br i1 %is_free, label %replay, label %drop_long
replay:
  store i64 1, ptr %at_busy
  %control = field ptr %record, {u_control}
  %state = field ptr %record, {u_state}
  %own_thread = call ptr @PyEval_SaveThread()
  call void %driver(ptr %control, ptr %state, ptr %values_at, ptr null)
  call void @PyEval_RestoreThread(ptr %own_thread)
  store i64 0, ptr %at_busy
  br label %done

aligned:
  %mask = field i64 %kernel, {k_mask}
  %odd = and i64 %bits, %mask
  %is_even = icmp eq i64 %odd, 0
  br i1 %is_even, label %tables, label %drop_long
tables:
  %table_bytes = field i64 %kernel, {k_table_bytes}
  %has_table = icmp ne i64 %table_bytes, 0
  %table_room = select i1 %has_table, i64 %table_bytes, i64 64
  %table = alloca i8, i64 %table_room, align 64
  %places = add i64 %parameters, 1
  %addresses = alloca ptr, i64 %places
  %at_prepared = getelementptr ptr, ptr %prepared, i64 %k
  store ptr %addresses, ptr %at_prepared
  br i1 %has_table, label %maps, label %without
maps:
  %kept = field ptr %kernel, {k_table}
  call void @llvm.memcpy.p0.p0.i64(ptr %table, ptr %kept, i64 %table_bytes, i1 false)
  %map_count = field i64 %kernel, {k_maps}
  %map_places = field ptr %kernel, {k_places}
  store ptr %table, ptr %addresses
  %are_aligned = call i1 @place_maps(ptr %table, ptr %map_places, i64 %map_count, ptr %values_at)
  br i1 %are_aligned, label %without, label %drop_long
without:
  %head = zext i1 %has_table to i64
  call void @point(ptr %addresses, i64 %head, ptr %values_at, i64 %parameters)
  br label %ready
ready:
  br label %kernels_each

enqueue:
  %thread = call ptr @PyEval_SaveThread()
  br label %queue
queue:
  %q = phi i64 [0, %enqueue], [%q_next, %queue_one]
  %so_far = phi i32 [0, %enqueue], [%status, %queue_one]
  %more_queue = icmp slt i64 %q, %kernels
  %is_going = icmp eq i32 %so_far, 0
  %queues_on = and i1 %more_queue, %is_going
  br i1 %queues_on, label %queue_one, label %launched
queue_one:
  %at_queued = getelementptr ptr, ptr %kernel_records, i64 %q
  %queued_kernel = load ptr, ptr %at_queued
  %at_given = getelementptr ptr, ptr %prepared, i64 %q
  %given_addresses = load ptr, ptr %at_given
  %launches = field i64 %queued_kernel, {k_launches}
  %configs = field ptr %queued_kernel, {k_configs}
  %q_next = add i64 %q, 1
  %status = call i32 @enqueue(ptr %driver, ptr %configs, i64 %launches, ptr %given_addresses)
  br label %queue
launched:
  call void @PyEval_RestoreThread(ptr %thread)
  br i1 %is_going, label %done, label %drop_long

; what is not returned is workspace
done:
  %returned = field i64 %record, {u_returned}
  %at_hidden = getelementptr ptr, ptr %objects, i64 %returned
  %hidden = sub i64 %results, %returned
  call void @drop(ptr %at_hidden, i64 %hidden)
  %one = field i64 %record, {u_is_one}
  %is_one = icmp ne i64 %one, 0
  br i1 %is_one, label %single, label %several
single:
  %only = load ptr, ptr %objects
  ret ptr %only
several:
  %tuple = call ptr @PyTuple_New(i64 %returned)
  %has_tuple = icmp ne ptr %tuple, null
  br i1 %has_tuple, label %fill, label %drop_failed
fill:
  %f = phi i64 [0, %several], [%f_next, %filled]
  %more_fill = icmp slt i64 %f, %returned
  br i1 %more_fill, label %filled, label %full
filled:
  %at_filled = getelementptr ptr, ptr %objects, i64 %f
  %filled_object = load ptr, ptr %at_filled
  %set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %f, ptr %filled_object)
  %f_next = add i64 %f, 1
  br label %fill
full:
  ret ptr %tuple

drop_long:
  call void @drop(ptr %objects, i64 %results)
  br label %long
long:
  %result_slow = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %result_slow
drop_failed:
  %left = phi i64 [%r, %made], [%r_next, %note], [%returned, %several]
  call void @drop(ptr %objects, i64 %left)
  ret ptr null
failed:
  ret ptr null
}}
"""
