"""The generated code of `gradients`, which native_gradients.py makes records for. It is a part of the text of
native_code.py."""

from __future__ import annotations

#: of a record of `gradients`: all are objects but the number of tensors that are kept
GRADIENTS_SLOTS = (
    "slow", "run", "check", "saved", "needed", "needs", "enabled", "threads", "count", "observers", "apart", "none",
    "true", "false", "kept", "result", "version", "versions", "retained",
)  # fmt: skip
GRADIENTS_TEXT = """
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PyObject_SetAttr(ptr, ptr, ptr)
declare ptr @PyTuple_GetItem(ptr, i64)

; whether what a call gives, which is dropped, equals an object: 1, or 0, or -1 where something was raised
define internal i32 @gives(ptr %function, ptr %wanted) {{
  %object = call ptr @PyObject_CallNoArgs(ptr %function)
  %is_there = icmp ne ptr %object, null
  br i1 %is_there, label %compare, label %raised
compare:
  %equal = call i32 @PyObject_RichCompareBool(ptr %object, ptr %wanted, i32 2)
  call void @Py_DecRef(ptr %object)
  ret i32 %equal
raised:
  ret i32 -1
}}

define ptr @gradients(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, {g_slow}
  %none = field ptr %record, {g_none}
  %kept_count = field i64 %record, {g_kept}
  %result_name = field ptr %record, {g_result}
  %has_result = icmp ne ptr %result_name, %none
  %more_kept = zext i1 %has_result to i64
  %saved_and_dy = add i64 %kept_count, 1
  %all = add i64 %saved_and_dy, %more_kept
  %operands = alloca ptr, i64 %all
  %held = alloca ptr
  store ptr null, ptr %held
  %three = alloca ptr, i64 3
  %is_two = icmp eq i64 %given, 2
  %is_unnamed = icmp eq ptr %keywords, null
  %is_form = and i1 %is_two, %is_unnamed
  br i1 %is_form, label %watched, label %odd
odd:
  %odd_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %odd_result
watched:
  %node = load ptr, ptr %args
  %at_dy = getelementptr ptr, ptr %args, i64 1
  %dy = load ptr, ptr %at_dy
  %observers = field ptr %record, {g_observers}
  %observing = call i64 @PyObject_Size(ptr %observers)
  %apart = field ptr %record, {g_apart}
  %measuring = call i64 @PyObject_Size(ptr %apart)
  %watchers = or i64 %observing, %measuring
  %is_unwatched = icmp eq i64 %watchers, 0
  br i1 %is_unwatched, label %recording, label %long
recording:
  %enabled = field ptr %record, {g_enabled}
  %false = field ptr %record, {g_false}
  %is_off = call i32 @gives(ptr %enabled, ptr %false)
  switch i32 %is_off, label %failed [i32 0, label %long i32 1, label %counted]
counted:
  %threads = field ptr %record, {g_threads}
  %is_any = icmp eq ptr %threads, %none
  br i1 %is_any, label %needing, label %count
count:
  %counting = field ptr %record, {g_count}
  %are_so_many = call i32 @gives(ptr %counting, ptr %threads)
  switch i32 %are_so_many, label %failed [i32 0, label %long i32 1, label %needing]
needing:
  %needs = field ptr %record, {g_needs}
  %needs_any = icmp eq ptr %needs, %none
  br i1 %needs_any, label %saved, label %need
need:
  %needed = field ptr %record, {g_needed}
  %now_needed = call ptr @PyObject_GetAttr(ptr %node, ptr %needed)
  %has_needed = icmp ne ptr %now_needed, null
  br i1 %has_needed, label %compare_needs, label %failed
compare_needs:
  %same_needs = call i32 @PyObject_RichCompareBool(ptr %now_needed, ptr %needs, i32 2)
  call void @Py_DecRef(ptr %now_needed)
  switch i32 %same_needs, label %failed [i32 0, label %long i32 1, label %saved]

; which checkpoints hand out once
saved:
  %name = field ptr %record, {g_saved}
  %kept = call ptr @PyObject_GetAttr(ptr %node, ptr %name)
  %has_kept = icmp ne ptr %kept, null
  br i1 %has_kept, label %size, label %failed
size:
  %kept_size = call i64 @PyTuple_Size(ptr %kept)
  %is_size = icmp eq i64 %kept_size, %kept_count
  br i1 %is_size, label %first, label %long_kept
first:
  store ptr %dy, ptr %operands
  br label %each
each:
  %n = phi i64 [0, %first], [%n_next, %one]
  %more = icmp slt i64 %n, %kept_count
  br i1 %more, label %one, label %rest
one:
  %tensor = call ptr @PyTuple_GetItem(ptr %kept, i64 %n)
  %n_next = add i64 %n, 1
  %at_operand = getelementptr ptr, ptr %operands, i64 %n_next
  store ptr %tensor, ptr %at_operand
  br label %each
rest:
  br i1 %has_result, label %own, label %check

; a result that the node has besides, unless it was changed in place, which its version tells
own:
  %result_kept = call ptr @PyObject_GetAttr(ptr %node, ptr %result_name)
  store ptr %result_kept, ptr %held
  %has_own = icmp ne ptr %result_kept, null
  br i1 %has_own, label %given_back, label %failed_kept
given_back:
  %is_gone = icmp eq ptr %result_kept, %none
  br i1 %is_gone, label %long_kept, label %now
now:
  %version_name = field ptr %record, {g_versions}
  %version_now = call ptr @PyObject_GetAttr(ptr %result_kept, ptr %version_name)
  %has_now = icmp ne ptr %version_now, null
  br i1 %has_now, label %before, label %failed_kept
before:
  %noted_name = field ptr %record, {g_version}
  %version_then = call ptr @PyObject_GetAttr(ptr %node, ptr %noted_name)
  %has_then = icmp ne ptr %version_then, null
  br i1 %has_then, label %versions, label %failed_version
versions:
  %is_same = call i32 @PyObject_RichCompareBool(ptr %version_now, ptr %version_then, i32 2)
  call void @Py_DecRef(ptr %version_now)
  call void @Py_DecRef(ptr %version_then)
  switch i32 %is_same, label %failed_kept [i32 0, label %long_kept i32 1, label %unchanged]
unchanged:
  %at_own = getelementptr ptr, ptr %operands, i64 %saved_and_dy
  store ptr %result_kept, ptr %at_own
  br label %check

check:
  %guards = field ptr %record, {g_check}
  %checked = call ptr @PyObject_Vectorcall(ptr %guards, ptr %operands, i64 %all, ptr null)
  %has_checked = icmp ne ptr %checked, null
  br i1 %has_checked, label %hold, label %failed_kept
hold:
  call void @Py_DecRef(ptr %checked)
  %true = field ptr %record, {g_true}
  %is_alike = icmp eq ptr %checked, %true
  br i1 %is_alike, label %release, label %long_kept
release:
  br i1 %has_result, label %ask, label %run
ask:
  %retained = field ptr %record, {g_retained}
  %not_retained = field ptr %record, {g_false}
  %goes = call i32 @gives(ptr %retained, ptr %not_retained)
  switch i32 %goes, label %failed_kept [i32 0, label %run i32 1, label %forget]
forget:
  %forgot = call i32 @PyObject_SetAttr(ptr %node, ptr %result_name, ptr %none)
  %is_forgotten = icmp eq i32 %forgot, 0
  br i1 %is_forgotten, label %run, label %failed_kept
run:
  %launch = field ptr %record, {g_run}
  %result = call ptr @PyObject_Vectorcall(ptr %launch, ptr %operands, i64 %all, ptr null)
  %held_then = load ptr, ptr %held
  call void @Py_DecRef(ptr %held_then)
  call void @Py_DecRef(ptr %kept)
  ret ptr %result

; where nothing is held there is no object to drop, which Py_DecRef sees
long_kept:
  %held_long = load ptr, ptr %held
  call void @Py_DecRef(ptr %held_long)
  store ptr %node, ptr %three
  %at_dy_given = getelementptr ptr, ptr %three, i64 1
  store ptr %dy, ptr %at_dy_given
  %at_kept_given = getelementptr ptr, ptr %three, i64 2
  store ptr %kept, ptr %at_kept_given
  %slow_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %three, i64 3, ptr null)
  call void @Py_DecRef(ptr %kept)
  ret ptr %slow_result
long:
  %long_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 2, ptr null)
  ret ptr %long_result
failed_version:
  call void @Py_DecRef(ptr %version_now)
  br label %failed_kept
failed_kept:
  %held_failed = load ptr, ptr %held
  call void @Py_DecRef(ptr %held_failed)
  call void @Py_DecRef(ptr %kept)
  ret ptr null
failed:
  ret ptr null
}}
"""
