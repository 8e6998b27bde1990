"""The generated code of `run`, which native_run.py makes records for: results allocated, addresses placed, launches."""

from __future__ import annotations

#: of a record of `run`; `busy` is written to
RUN_SLOTS = (
    "inputs", "results", "returned", "is_one", "is_gpu", "slow", "none", "data_ptr", "override", "defaults",
    "default_name", "settings", "recorders", "stream", "index", "device", "makers", "kernels", "kernel", "driver",
    "control", "state", "busy",
)  # fmt: skip
RUN_TEXT = """
; drop so many results
define internal void @drop_all(ptr %objects, i64 %count) {
  for %n in %count
    %object = item ptr %objects, %n
    drop %object
  end
  ret void
}

; what a maker gives, which is a function, and three arguments or None where it takes none
define internal ptr @made(ptr %maker, ptr %none) {
  %function = load ptr, ptr %maker
  %at_first = getelementptr ptr, ptr %maker, i64 1
  %first = load ptr, ptr %at_first
  %has_arguments = icmp ne ptr %first, %none
  require %has_arguments else alone
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %at_first, i64 3, ptr null)
  ret ptr %result
alone:
  %result_alone = call ptr @PyObject_CallNoArgs(ptr %function)
  ret ptr %result_alone
}

define ptr @run(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %own_room = alloca ptr
  %left = alloca i64
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs = field i64 %record, run.inputs
  %results = field i64 %record, run.results
  %slow = field ptr %record, run.slow
  %none = field ptr %record, run.none
  %gpu = field i64 %record, run.is_gpu
  %is_gpu = icmp ne i64 %gpu, 0
  %are_enough = icmp sge i64 %given, %inputs
  %are_unnamed = icmp eq ptr %keywords, null
  %is_form = and i1 %are_enough, %are_unnamed
  require %is_form else long

; the settings in force, as settings.py has them, whose function in Python a thread of PyTorch's engine is slow to run
  %override = field ptr %record, run.override
  %own_status = call i32 @PyContextVar_Get(ptr %override, ptr null, ptr %own_room)
  %has_status = icmp eq i32 %own_status, 0
  require %has_status else failed
  %own_settings = load ptr, ptr %own_room
  drop %own_settings
  %is_none = icmp eq ptr %own_settings, %none
  %is_nothing = icmp eq ptr %own_settings, null
  %is_of_process = or i1 %is_none, %is_nothing
  br i1 %is_of_process, label %of_process, label %own
of_process:
  %defaults = field ptr %record, run.defaults
  %default_name = field ptr %record, run.default_name
  %default_settings = call ptr @PyDict_GetItem(ptr %defaults, ptr %default_name)
  br label %in_force
own:
  br label %in_force
in_force:
  %now = phi ptr [%own_settings, %own], [%default_settings, %of_process]
  %then = field ptr %record, run.settings
  %is_same = icmp eq ptr %now, %then
  require %is_same else long
  br i1 %is_gpu, label %on_gpu, label %on_cpu
on_cpu:
  %recorders = field ptr %record, run.recorders
  %recording = call i64 @PyObject_Size(ptr %recorders)
  %is_unrecorded = icmp eq i64 %recording, 0
  br i1 %is_unrecorded, label %addressed, label %long
on_gpu:
  %stream = field ptr %record, run.stream
  %index = field ptr %record, run.index
  %is_default = call i32 @is_default(ptr %stream, ptr %index) else long, failed
  %device = field ptr %record, run.device
  %are_several = icmp ne ptr %device, null
  if %are_several
    %is_its_gpu = call i32 @gives(ptr %device, ptr %index) else long, failed
  end
  br label %addressed

addressed:
  %operand_count = add i64 %inputs, %results
  %operands = alloca i64, i64 %operand_count
  %objects = alloca ptr, i64 %results
  %data_ptr = field ptr %record, run.data_ptr
  %makers = field ptr %record, run.makers
  for %i in %inputs
    %tensor = item ptr %args, %i
    %at_input = getelementptr i64, ptr %operands, i64 %i
    store i64 0, ptr %at_input
    %is_input = icmp ne ptr %tensor, %none
    if %is_input
      %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_input)
      require %has_address else failed
    end
  end
  for %r in %results
    store i64 %r, ptr %left
    %r_maker = mul i64 %r, 4
    %r_operand = add i64 %inputs, %r
    %maker = item ptr %makers, %r_maker
    %at_result = getelementptr i64, ptr %operands, i64 %r_operand
    %at_object = getelementptr ptr, ptr %objects, i64 %r
    store ptr %none, ptr %at_object
    %is_result = icmp ne ptr %maker, %none
    br i1 %is_result, label %result, label %no_result
result:
    %at_maker = getelementptr ptr, ptr %makers, i64 %r_maker
    %object = call ptr @made(ptr %at_maker, ptr %none) else drop_failed
    store ptr %object, ptr %at_object
    %r_made = add i64 %r, 1
    store i64 %r_made, ptr %left
    %has_result = call i1 @address(ptr %data_ptr, ptr %object, ptr %at_result)
    require %has_result else drop_failed
    br label %placed
no_result:
    call void @Py_IncRef(ptr %none)
    br label %placed
placed:
  end
  %driver = field ptr %record, run.driver
  %kernels = field i64 %record, run.kernels
  %kernel_records = field ptr %record, run.kernel
  br i1 %is_gpu, label %prepare, label %replay

; on a processor: one run at a time, others take the long way
replay:
  %list = load ptr, ptr %kernel_records
  %pointers = field i64 %list, kernel.pointers
  %list_values = alloca i64, i64 %pointers
  %bits = call i64 @gather(ptr %list, ptr %operands, ptr %list_values)
  %at_busy = getelementptr i64, ptr %record, i64 {busy}
  %busy = load i64, ptr %at_busy
  %is_free = icmp eq i64 %busy, 0
  require %is_free else drop_long
  store i64 1, ptr %at_busy
  %control = field ptr %record, run.control
  %state = field ptr %record, run.state
  %own_thread = call ptr @PyEval_SaveThread()
  call void %driver(ptr %control, ptr %state, ptr %list_values, ptr null)
  call void @PyEval_RestoreThread(ptr %own_thread)
  store i64 0, ptr %at_busy
  br label %done

; what each kernel is given, before any of them is launched
prepare:
  %prepared = alloca ptr, i64 %kernels
  for %k in %kernels
    %kernel = item ptr %kernel_records, %k
    %parameters = field i64 %kernel, kernel.parameters
    %values = alloca i64, i64 %parameters, align 8
    %places = add i64 %parameters, 1
    %addresses = alloca ptr, i64 %places
    %table_room = call i64 @table_room(ptr %kernel)
    %table = alloca i8, i64 %table_room, align 64
    %are_given = call i1 @prepare(ptr %kernel, ptr %operands, ptr %values, ptr %table, ptr %addresses)
    require %are_given else drop_long
    put ptr %addresses, %prepared, %k
  end
  %thread = call ptr @PyEval_SaveThread()
  for %q in %kernels, i32 %so_far from 0 by %status
    %queued = item ptr %kernel_records, %q
    %its_addresses = item ptr %prepared, %q
    %status = call i32 @enqueue(ptr %driver, ptr %queued, ptr %its_addresses, i32 %so_far)
  end
  call void @PyEval_RestoreThread(ptr %thread)
  %are_launched = icmp eq i32 %so_far, 0
  br i1 %are_launched, label %done, label %drop_long

; what is not returned is workspace
done:
  %returned = field i64 %record, run.returned
  %at_hidden = getelementptr ptr, ptr %objects, i64 %returned
  %hidden = sub i64 %results, %returned
  call void @drop_all(ptr %at_hidden, i64 %hidden)
  store i64 %returned, ptr %left
  %one = field i64 %record, run.is_one
  %are_several_results = icmp eq i64 %one, 0
  require %are_several_results else only
  %tuple = call ptr @PyTuple_New(i64 %returned) else drop_failed
  for %f in %returned
    %item = item ptr %objects, %f
    %is_set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %f, ptr %item)
  end
  ret ptr %tuple
only:
  %only_one = load ptr, ptr %objects
  ret ptr %only_one

drop_long:
  call void @drop_all(ptr %objects, i64 %results)
  br label %long
long:
  %slow_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %slow_result
drop_failed:
  %left_now = load i64, ptr %left
  call void @drop_all(ptr %objects, i64 %left_now)
  ret ptr null
failed:
  ret ptr null
}
"""
