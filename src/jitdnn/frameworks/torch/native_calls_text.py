"""The generated code of `forward` and `recalled`, which native_calls.py makes records for. It is a part of the text of
native_code.py."""

from __future__ import annotations

#: of a record of `forward`: all are objects but the numbers of operands, of constant arguments behind them, of what is
#: saved and of attributes, and where these are; `hooks` and what comes behind are 0 where no changes are watched
FORWARD_SLOTS = (
    "slow", "kernel", "operands", "behind", "arguments", "is_tuple", "saved", "saves", "to_save", "attributes", "names",
    "hooks", "none", "detach", "result", "version", "versions",
)  # fmt: skip
#: of a record of `recalled`: all are objects but the number of operands that `apply` takes
RECALLED_SLOTS = (
    "slow", "tensor", "parameter", "observers", "apart", "modes", "zero", "nested", "false", "enabled", "is_enabled",
    "count", "threads", "levels", "level_name", "level", "epochs", "epoch_name", "epoch", "dict_name", "options_name",
    "options", "own_name", "own_count", "weight_name", "weight", "bias_name", "bias", "tell", "told", "check", "true",
    "apply", "takes", "none",
)  # fmt: skip
CALLS_TEXT = """
define ptr @forward(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, {f_slow}
  %operands = field i64 %record, {f_operands}
  %wanted = add i64 %operands, 1
  %is_count = icmp eq i64 %given, %wanted
  %is_unnamed = icmp eq ptr %keywords, null
  %is_form = and i1 %is_count, %is_unnamed
  br i1 %is_form, label %asked, label %odd
odd:
  %odd_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %odd_result

; what hooks of what is saved are handed is more than a result whose changes are watched
asked:
  %hooks = field ptr %record, {f_hooks}
  %is_watched = icmp ne ptr %hooks, null
  br i1 %is_watched, label %hooked, label %gather
hooked:
  %no_hooks = field ptr %record, {f_none}
  %are_none = call i32 @gives(ptr %hooks, ptr %no_hooks)
  switch i32 %are_none, label %failed [i32 0, label %odd i32 1, label %gather]

; the operands behind the node, and constant arguments
gather:
  %behind = field i64 %record, {f_behind}
  %arguments = field ptr %record, {f_arguments}
  %all = add i64 %operands, %behind
  %each = alloca ptr, i64 %all
  %at_first = getelementptr ptr, ptr %args, i64 1
  %operand_bytes = shl i64 %operands, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %each, ptr %at_first, i64 %operand_bytes, i1 false)
  %at_behind = getelementptr ptr, ptr %each, i64 %operands
  %behind_bytes = shl i64 %behind, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %at_behind, ptr %arguments, i64 %behind_bytes, i1 false)
  %kernel = field ptr %record, {f_kernel}
  %result = call ptr @PyObject_Vectorcall(ptr %kernel, ptr %each, i64 %all, ptr null)
  %has_result = icmp ne ptr %result, null
  br i1 %has_result, label %save, label %failed

; what the backward pass reads: operands by their numbers, results by numbers below 0
save:
  %node = load ptr, ptr %args
  %tuple_number = field i64 %record, {f_is_tuple}
  %is_tuple = icmp ne i64 %tuple_number, 0
  %saved = field i64 %record, {f_saved}
  %saves = field ptr %record, {f_saves}
  %saves_any = icmp ne i64 %saved, 0
  br i1 %saves_any, label %room, label %attributes
room:
  %kept = call ptr @PyTuple_New(i64 %saved)
  %has_kept = icmp ne ptr %kept, null
  br i1 %has_kept, label %saves_each, label %failed_result
saves_each:
  %n = phi i64 [0, %room], [%n_next, %put]
  %more = icmp slt i64 %n, %saved
  br i1 %more, label %one, label %set
one:
  %at_number = getelementptr i64, ptr %saves, i64 %n
  %number = load i64, ptr %at_number
  %is_operand = icmp sge i64 %number, 0
  br i1 %is_operand, label %operand, label %of_results
operand:
  %at_operand = getelementptr ptr, ptr %each, i64 %number
  %given_operand = load ptr, ptr %at_operand
  br label %put
of_results:
  br i1 %is_tuple, label %item, label %put
item:
  %place = sub i64 -1, %number
  %found_item = call ptr @PyTuple_GetItem(ptr %result, i64 %place)
  %has_item = icmp ne ptr %found_item, null
  br i1 %has_item, label %put, label %failed_kept
put:
  %object = phi ptr [%given_operand, %operand], [%result, %of_results], [%found_item, %item]
  call void @Py_IncRef(ptr %object)
  %is_put = call i32 @PyTuple_SetItem(ptr %kept, i64 %n, ptr %object)
  %n_next = add i64 %n, 1
  br label %saves_each
set:
  %to_save = field ptr %record, {f_to_save}
  %is_set = call i32 @PyObject_SetAttr(ptr %node, ptr %to_save, ptr %kept)
  call void @Py_DecRef(ptr %kept)
  %was_set = icmp eq i32 %is_set, 0
  br i1 %was_set, label %attributes, label %failed_result

attributes:
  %count = field i64 %record, {f_attributes}
  %names = field ptr %record, {f_names}
  br label %attributes_each
attributes_each:
  %a = phi i64 [0, %attributes], [%a_next, %attribute]
  %more_attributes = icmp slt i64 %a, %count
  br i1 %more_attributes, label %attribute, label %done
attribute:
  %pair = shl i64 %a, 1
  %at_name = getelementptr ptr, ptr %names, i64 %pair
  %name = load ptr, ptr %at_name
  %at_value = getelementptr ptr, ptr %at_name, i64 1
  %value = load ptr, ptr %at_value
  %noted = call i32 @PyObject_SetAttr(ptr %node, ptr %name, ptr %value)
  %a_next = add i64 %a, 1
  %is_noted = icmp eq i32 %noted, 0
  br i1 %is_noted, label %attributes_each, label %failed_result

done:
  br i1 %is_tuple, label %first, label %only
only:
  br i1 %is_watched, label %watch, label %alone
alone:
  ret ptr %result

; a tensor of the same memory, which counts changes with the result, and their number now
watch:
  %detach = field ptr %record, {f_detach}
  %counter = call ptr @PyObject_CallOneArg(ptr %detach, ptr %result)
  %has_counter = icmp ne ptr %counter, null
  br i1 %has_counter, label %counter_kept, label %failed_result
counter_kept:
  %result_name = field ptr %record, {f_result}
  %counter_status = call i32 @PyObject_SetAttr(ptr %node, ptr %result_name, ptr %counter)
  %is_counted = icmp eq i32 %counter_status, 0
  br i1 %is_counted, label %counted, label %failed_counter
counted:
  %versions_name = field ptr %record, {f_versions}
  %version = call ptr @PyObject_GetAttr(ptr %counter, ptr %versions_name)
  call void @Py_DecRef(ptr %counter)
  %has_version = icmp ne ptr %version, null
  br i1 %has_version, label %version_kept, label %failed_result
version_kept:
  %version_name = field ptr %record, {f_version}
  %version_status = call i32 @PyObject_SetAttr(ptr %node, ptr %version_name, ptr %version)
  call void @Py_DecRef(ptr %version)
  %are_kept = icmp eq i32 %version_status, 0
  br i1 %are_kept, label %alone, label %failed_result

first:
  %first_item = call ptr @PyTuple_GetItem(ptr %result, i64 0)
  %has_first = icmp ne ptr %first_item, null
  br i1 %has_first, label %own, label %failed_result
own:
  call void @Py_IncRef(ptr %first_item)
  call void @Py_DecRef(ptr %result)
  ret ptr %first_item
failed_counter:
  call void @Py_DecRef(ptr %counter)
  br label %failed_result
failed_kept:
  call void @Py_DecRef(ptr %kept)
  br label %failed_result
failed_result:
  call void @Py_DecRef(ptr %result)
  ret ptr null
failed:
  ret ptr null
}}

; what a dictionary has under a name, which nobody but the dictionary owns, equals an object: 1, or 0, or -1
define internal i32 @has(ptr %dictionary, ptr %name, ptr %wanted) {{
  %found = call ptr @PyDict_GetItem(ptr %dictionary, ptr %name)
  %is_there = icmp ne ptr %found, null
  br i1 %is_there, label %compare, label %absent
compare:
  %is_it = icmp eq ptr %found, %wanted
  br i1 %is_it, label %same, label %other
same:
  ret i32 1
other:
  %equal = call i32 @PyObject_RichCompareBool(ptr %found, ptr %wanted, i32 2)
  ret i32 %equal
absent:
  ret i32 0
}}

define ptr @recalled(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, {c_slow}
  %none = field ptr %record, {c_none}
  %operands = alloca ptr, i64 3
  %is_two = icmp eq i64 %given, 2
  %is_unnamed = icmp eq ptr %keywords, null
  %is_form = and i1 %is_two, %is_unnamed
  br i1 %is_form, label %type, label %long
type:
  %module = load ptr, ptr %args
  %at_x = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %at_x
  %class = call ptr @PyObject_Type(ptr %x)
  call void @Py_DecRef(ptr %class)
  %tensor = field ptr %record, {c_tensor}
  %parameter = field ptr %record, {c_parameter}
  %is_tensor = icmp eq ptr %class, %tensor
  %is_parameter = icmp eq ptr %class, %parameter
  %is_own = or i1 %is_tensor, %is_parameter
  br i1 %is_own, label %watched, label %long
watched:
  %observers = field ptr %record, {c_observers}
  %observing = call i64 @PyObject_Size(ptr %observers)
  %apart = field ptr %record, {c_apart}
  %measuring = call i64 @PyObject_Size(ptr %apart)
  %watchers = or i64 %observing, %measuring
  %is_unwatched = icmp eq i64 %watchers, 0
  br i1 %is_unwatched, label %mode, label %long
mode:
  %modes = field ptr %record, {c_modes}
  %zero = field ptr %record, {c_zero}
  %is_plain = call i32 @gives(ptr %modes, ptr %zero)
  switch i32 %is_plain, label %failed [i32 0, label %long i32 1, label %nested]
nested:
  %nested_name = field ptr %record, {c_nested}
  %false = field ptr %record, {c_false}
  %is_nested = call ptr @PyObject_GetAttr(ptr %x, ptr %nested_name)
  %has_nested = icmp ne ptr %is_nested, null
  br i1 %has_nested, label %unnested, label %failed
unnested:
  call void @Py_DecRef(ptr %is_nested)
  %is_flat = icmp eq ptr %is_nested, %false
  br i1 %is_flat, label %recording, label %long
recording:
  %enabled = field ptr %record, {c_enabled}
  %is_enabled = field ptr %record, {c_is_enabled}
  %is_same_mode = call i32 @gives(ptr %enabled, ptr %is_enabled)
  switch i32 %is_same_mode, label %failed [i32 0, label %long i32 1, label %counted]
counted:
  %count = field ptr %record, {c_count}
  %threads = field ptr %record, {c_threads}
  %are_so_many = call i32 @gives(ptr %count, ptr %threads)
  switch i32 %are_so_many, label %failed [i32 0, label %long i32 1, label %levels]
levels:
  %level_names = field ptr %record, {c_levels}
  %level_name = field ptr %record, {c_level_name}
  %level = field ptr %record, {c_level}
  %is_level = call i32 @has(ptr %level_names, ptr %level_name, ptr %level)
  switch i32 %is_level, label %failed [i32 0, label %long i32 1, label %epochs]
epochs:
  %epoch_names = field ptr %record, {c_epochs}
  %epoch_name = field ptr %record, {c_epoch_name}
  %epoch = field ptr %record, {c_epoch}
  %is_epoch = call i32 @has(ptr %epoch_names, ptr %epoch_name, ptr %epoch)
  switch i32 %is_epoch, label %failed [i32 0, label %long i32 1, label %attributes]

; the module's own attributes: its options, and how many parameters there are, of which the first two may be operands
attributes:
  %dict_name = field ptr %record, {c_dict_name}
  %held = call ptr @PyObject_GetAttr(ptr %module, ptr %dict_name)
  %has_held = icmp ne ptr %held, null
  br i1 %has_held, label %options, label %failed
options:
  %options_name = field ptr %record, {c_options_name}
  %options_then = field ptr %record, {c_options}
  %is_options = call i32 @has(ptr %held, ptr %options_name, ptr %options_then)
  switch i32 %is_options, label %failed_held [i32 0, label %long_held i32 1, label %own]
own:
  %own_name = field ptr %record, {c_own_name}
  %parameters = call ptr @PyDict_GetItem(ptr %held, ptr %own_name)
  %has_parameters = icmp ne ptr %parameters, null
  br i1 %has_parameters, label %sized, label %long_held
sized:
  %size = call i64 @PyObject_Size(ptr %parameters)
  %size_then = field i64 %record, {c_own_count}
  %is_size = icmp eq i64 %size, %size_then
  br i1 %is_size, label %weights, label %long_held
weights:
  %weight_name = field ptr %record, {c_weight_name}
  %weight_found = call ptr @PyDict_GetItem(ptr %parameters, ptr %weight_name)
  %no_weight = icmp eq ptr %weight_found, null
  %weight = select i1 %no_weight, ptr %none, ptr %weight_found
  %weight_absent = icmp eq ptr %weight, %none
  %wants_weight = field i64 %record, {c_weight}
  %has_weight = zext i1 %weight_absent to i64
  %weight_differs = icmp eq i64 %has_weight, %wants_weight
  br i1 %weight_differs, label %long_held, label %biases
biases:
  %bias_name = field ptr %record, {c_bias_name}
  %bias_found = call ptr @PyDict_GetItem(ptr %parameters, ptr %bias_name)
  %no_bias = icmp eq ptr %bias_found, null
  %bias = select i1 %no_bias, ptr %none, ptr %bias_found
  %bias_absent = icmp eq ptr %bias, %none
  %wants_bias = field i64 %record, {c_bias}
  %has_bias = zext i1 %bias_absent to i64
  %bias_differs = icmp eq i64 %has_bias, %wants_bias
  br i1 %bias_differs, label %long_held, label %tell

; what else tells its calls apart
tell:
  call void @Py_IncRef(ptr %weight)
  call void @Py_IncRef(ptr %bias)
  call void @Py_DecRef(ptr %held)
  %teller = field ptr %record, {c_tell}
  %told_then = field ptr %record, {c_told}
  %told = call ptr @PyObject_CallOneArg(ptr %teller, ptr %module)
  %has_told = icmp ne ptr %told, null
  br i1 %has_told, label %compare_told, label %failed_weights
compare_told:
  %is_told = call i32 @PyObject_RichCompareBool(ptr %told, ptr %told_then, i32 2)
  call void @Py_DecRef(ptr %told)
  switch i32 %is_told, label %failed_weights [i32 0, label %long_weights i32 1, label %guarded]

; PyTorch's guards: x, and those of the parameters that there are
guarded:
  store ptr %x, ptr %operands
  %at_weight = getelementptr ptr, ptr %operands, i64 1
  store ptr %weight, ptr %at_weight
  %behind_weight = select i1 %weight_absent, i64 1, i64 2
  %at_bias = getelementptr ptr, ptr %operands, i64 %behind_weight
  store ptr %bias, ptr %at_bias
  %with_bias = add i64 %behind_weight, 1
  %guard_count = select i1 %bias_absent, i64 %behind_weight, i64 %with_bias
  %check = field ptr %record, {c_check}
  %checked = call ptr @PyObject_Vectorcall(ptr %check, ptr %operands, i64 %guard_count, ptr null)
  %has_checked = icmp ne ptr %checked, null
  br i1 %has_checked, label %hold, label %failed_weights
hold:
  call void @Py_DecRef(ptr %checked)
  %true = field ptr %record, {c_true}
  %is_alike = icmp eq ptr %checked, %true
  br i1 %is_alike, label %run, label %long_weights
run:
  store ptr %weight, ptr %at_weight
  %at_third = getelementptr ptr, ptr %operands, i64 2
  store ptr %bias, ptr %at_third
  %apply = field ptr %record, {c_apply}
  %takes = field i64 %record, {c_takes}
  %result = call ptr @PyObject_Vectorcall(ptr %apply, ptr %operands, i64 %takes, ptr null)
  call void @Py_DecRef(ptr %weight)
  call void @Py_DecRef(ptr %bias)
  ret ptr %result

long_weights:
  call void @Py_DecRef(ptr %weight)
  call void @Py_DecRef(ptr %bias)
  br label %long
long_held:
  call void @Py_DecRef(ptr %held)
  br label %long
long:
  %slow_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %slow_result
failed_weights:
  call void @Py_DecRef(ptr %weight)
  call void @Py_DecRef(ptr %bias)
  ret ptr null
failed_held:
  call void @Py_DecRef(ptr %held)
  ret ptr null
failed:
  ret ptr null
}}
"""
