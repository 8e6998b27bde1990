"""The generated code of `gradients`, which native_gradients.py makes records for."""

from __future__ import annotations

#: of a record of `gradients`: all are objects but the number of tensors that are kept
GRADIENTS_SLOTS = (
    "slow", "run", "check", "saved", "needed", "needs", "enabled", "threads", "count", "observers", "apart", "none",
    "true", "false", "kept", "result", "version", "versions", "retained",
)  # fmt: skip
GRADIENTS_TEXT = """
define ptr @gradients(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %held = alloca ptr
  store ptr null, ptr %held
  %three = alloca ptr, i64 3
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, gradients.slow
  %none = field ptr %record, gradients.none
  %false = field ptr %record, gradients.false
  %kept_count = field i64 %record, gradients.kept
  %result_name = field ptr %record, gradients.result
  %has_result = icmp ne ptr %result_name, %none
  %more_kept = zext i1 %has_result to i64
  %saved_and_dy = add i64 %kept_count, 1
  %all = add i64 %saved_and_dy, %more_kept
  %operands = alloca ptr, i64 %all
  %is_form = call i1 @are(i64 %given, i64 2, ptr %keywords)
  require %is_form else long
  %node = load ptr, ptr %args
  %dy = item ptr %args, 1
  %observers = field ptr %record, gradients.observers
  %apart = field ptr %record, gradients.apart
  %is_unwatched = call i1 @is_unwatched(ptr %observers, ptr %apart)
  require %is_unwatched else long
  %enabled = field ptr %record, gradients.enabled
  %is_off = call i32 @gives(ptr %enabled, ptr %false) else long, failed
  %threads = field ptr %record, gradients.threads
  %are_threads_told = icmp ne ptr %threads, %none
  if %are_threads_told
    %count = field ptr %record, gradients.count
    %are_so_many = call i32 @gives(ptr %count, ptr %threads) else long, failed
  end
  %needs = field ptr %record, gradients.needs
  %are_needs_told = icmp ne ptr %needs, %none
  if %are_needs_told
    %needed = field ptr %record, gradients.needed
    %needs_now = call ptr @PyObject_GetAttr(ptr %node, ptr %needed) else failed
    %are_needs = call i32 @PyObject_RichCompareBool(ptr %needs_now, ptr %needs, i32 2)
    drop %needs_now
    switch i32 %are_needs, label %failed [i32 0, label %long i32 1, label %same_needs]
same_needs:
  end

; what was saved, which checkpoints hand out once
  %saved = field ptr %record, gradients.saved
  %kept = call ptr @PyObject_GetAttr(ptr %node, ptr %saved) else failed
  %kept_size = call i64 @PyTuple_Size(ptr %kept)
  %is_size = icmp eq i64 %kept_size, %kept_count
  require %is_size else long_kept
  store ptr %dy, ptr %operands
  for %n in %kept_count
    %tensor = call ptr @PyTuple_GetItem(ptr %kept, i64 %n)
    %place = add i64 %n, 1
    put ptr %tensor, %operands, %place
  end

; a result that the node has besides, unless it was changed in place, which its version tells
  if %has_result
    %result = call ptr @PyObject_GetAttr(ptr %node, ptr %result_name) else failed_kept
    store ptr %result, ptr %held
    %is_there = icmp ne ptr %result, %none
    require %is_there else long_kept
    %versions = field ptr %record, gradients.versions
    %version_now = call ptr @PyObject_GetAttr(ptr %result, ptr %versions) else failed_kept
    %version = field ptr %record, gradients.version
    %version_then = call ptr @PyObject_GetAttr(ptr %node, ptr %version) else failed_version
    %is_same = call i32 @PyObject_RichCompareBool(ptr %version_now, ptr %version_then, i32 2)
    drop %version_now
    drop %version_then
    switch i32 %is_same, label %failed_kept [i32 0, label %long_kept i32 1, label %unchanged]
unchanged:
    put ptr %result, %operands, %saved_and_dy
  end
  %check = field ptr %record, gradients.check
  %true = field ptr %record, gradients.true
  %are_alike = call i32 @says_true(ptr %check, ptr %operands, i64 %all, ptr %true) else long_kept, failed_kept

; where nothing keeps the graph, nor does the node keep its result
  if %has_result
    %retained = field ptr %record, gradients.retained
    %goes = call i32 @gives(ptr %retained, ptr %false)
    switch i32 %goes, label %failed_kept [i32 0, label %run i32 1, label %forget]
forget:
    %status = call i32 @PyObject_SetAttr(ptr %node, ptr %result_name, ptr %none)
    %is_forgotten = icmp eq i32 %status, 0
    require %is_forgotten else failed_kept
  end
  br label %run
run:
  %launch = field ptr %record, gradients.run
  %found = call ptr @PyObject_Vectorcall(ptr %launch, ptr %operands, i64 %all, ptr null)
  %held_then = load ptr, ptr %held
  drop %held_then
  drop %kept
  ret ptr %found

; where nothing is held there is no object to drop, which Py_DecRef sees
long_kept:
  %held_long = load ptr, ptr %held
  drop %held_long
  store ptr %node, ptr %three
  put ptr %dy, %three, 1
  put ptr %kept, %three, 2
  %found_long = call ptr @PyObject_Vectorcall(ptr %slow, ptr %three, i64 3, ptr null)
  drop %kept
  ret ptr %found_long
long:
  %found_slow = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %found_slow
failed_version:
  drop %version_now
  br label %failed_kept
failed_kept:
  %held_failed = load ptr, ptr %held
  drop %held_failed
  drop %kept
  ret ptr null
failed:
  ret ptr null
}
"""
