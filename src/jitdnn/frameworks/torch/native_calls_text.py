"""The generated code of `forward` and `recalled`, which native_calls.py makes records for."""

from __future__ import annotations

#: of a record of `forward`: all are objects but the numbers of operands, of constant arguments behind them, of what is
#: saved and of attributes, and where these are; `hooks` and what comes behind are 0 where no changes are watched
FORWARD_SLOTS = (
    "slow", "kernel", "operands", "behind", "arguments", "is_tuple", "saved", "saves", "to_save", "attributes", "names",
    "hooks", "none", "detach", "result", "version", "versions",
)  # fmt: skip
#: of a record of `recalled`: all are objects but how many parameters the module has, whether two of them are its weight
#: and its bias, and the number of operands that `apply` takes
RECALLED_SLOTS = (
    "slow", "tensor", "parameter", "observers", "apart", "modes", "zero", "nested", "false", "enabled", "is_enabled",
    "count", "threads", "levels", "level_name", "level", "epochs", "epoch_name", "epoch", "dict_name", "options_name",
    "options", "own_name", "own_count", "weight_name", "weight", "bias_name", "bias", "tell", "told", "check", "true",
    "apply", "takes", "none",
)  # fmt: skip
CALLS_TEXT = """
define ptr @forward(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, forward.slow
  %operands = field i64 %record, forward.operands
  %wanted = add i64 %operands, 1
  %is_form = call i1 @are(i64 %given, i64 %wanted, ptr %keywords)
  require %is_form else long

; what hooks of what is saved are handed is more than a result whose changes are watched
  %hooks = field ptr %record, forward.hooks
  %is_watched = icmp ne ptr %hooks, null
  if %is_watched
    %none = field ptr %record, forward.none
    %are_none = call i32 @gives(ptr %hooks, ptr %none) else long, failed
  end

; the operands behind the node, and constant arguments
  %behind = field i64 %record, forward.behind
  %arguments = field ptr %record, forward.arguments
  %all = add i64 %operands, %behind
  %each = alloca ptr, i64 %all
  %at_first = getelementptr ptr, ptr %args, i64 1
  %operand_bytes = shl i64 %operands, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %each, ptr %at_first, i64 %operand_bytes, i1 false)
  %at_behind = getelementptr ptr, ptr %each, i64 %operands
  %behind_bytes = shl i64 %behind, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %at_behind, ptr %arguments, i64 %behind_bytes, i1 false)
  %kernel = field ptr %record, forward.kernel
  %result = call ptr @PyObject_Vectorcall(ptr %kernel, ptr %each, i64 %all, ptr null) else failed

; what the backward pass reads: operands by their numbers, results by numbers below 0
  %node = load ptr, ptr %args
  %tuple_number = field i64 %record, forward.is_tuple
  %is_tuple = icmp ne i64 %tuple_number, 0
  %saved = field i64 %record, forward.saved
  %saves = field ptr %record, forward.saves
  %saves_any = icmp ne i64 %saved, 0
  if %saves_any
    %kept = call ptr @PyTuple_New(i64 %saved) else failed_result
    for %n in %saved
      %number = item i64 %saves, %n
      %is_operand = icmp sge i64 %number, 0
      br i1 %is_operand, label %operand, label %of_results
operand:
      %given_operand = item ptr %each, %number
      br label %put
of_results:
      br i1 %is_tuple, label %of_several, label %put
of_several:
      %place = sub i64 -1, %number
      %one_result = call ptr @PyTuple_GetItem(ptr %result, i64 %place)
      %is_one = icmp ne ptr %one_result, null
      br i1 %is_one, label %put, label %failed_kept
put:
      %object = phi ptr [%given_operand, %operand], [%result, %of_results], [%one_result, %of_several]
      call void @Py_IncRef(ptr %object)
      %is_put = call i32 @PyTuple_SetItem(ptr %kept, i64 %n, ptr %object)
    end
    %to_save = field ptr %record, forward.to_save
    %save_status = call i32 @PyObject_SetAttr(ptr %node, ptr %to_save, ptr %kept)
    drop %kept
    %are_saved = icmp eq i32 %save_status, 0
    require %are_saved else failed_result
  end
  %attributes = field i64 %record, forward.attributes
  %names = field ptr %record, forward.names
  for %a in %attributes
    %pair = shl i64 %a, 1
    %behind_name = add i64 %pair, 1
    %name = item ptr %names, %pair
    %value = item ptr %names, %behind_name
    %status = call i32 @PyObject_SetAttr(ptr %node, ptr %name, ptr %value)
    %is_noted = icmp eq i32 %status, 0
    require %is_noted else failed_result
  end
  require %is_tuple else alone
  %first = call ptr @PyTuple_GetItem(ptr %result, i64 0) else failed_result
  call void @Py_IncRef(ptr %first)
  drop %result
  ret ptr %first

; a tensor of the same memory, which counts changes with the result, and their number now
alone:
  if %is_watched
    %detach = field ptr %record, forward.detach
    %counter = call ptr @PyObject_CallOneArg(ptr %detach, ptr %result) else failed_result
    %result_name = field ptr %record, forward.result
    %counter_status = call i32 @PyObject_SetAttr(ptr %node, ptr %result_name, ptr %counter)
    %is_counted = icmp eq i32 %counter_status, 0
    require %is_counted else failed_counter
    %versions = field ptr %record, forward.versions
    %version = call ptr @PyObject_GetAttr(ptr %counter, ptr %versions) else failed_counter
    drop %counter
    %version_name = field ptr %record, forward.version
    %version_status = call i32 @PyObject_SetAttr(ptr %node, ptr %version_name, ptr %version)
    drop %version
    %is_version = icmp eq i32 %version_status, 0
    require %is_version else failed_result
  end
  ret ptr %result
long:
  %slow_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %slow_result
failed_counter:
  drop %counter
  br label %failed_result
failed_kept:
  drop %kept
  br label %failed_result
failed_result:
  drop %result
  ret ptr null
failed:
  ret ptr null
}

; what a dictionary has under a name, which nobody but the dictionary owns, equals an object: 1, or 0, or -1
define internal i32 @has(ptr %dictionary, ptr %name, ptr %wanted) {
  %found = call ptr @PyDict_GetItem(ptr %dictionary, ptr %name) else absent
  %is_it = icmp eq ptr %found, %wanted
  require %is_it else other
  ret i32 1
other:
  %equal = call i32 @PyObject_RichCompareBool(ptr %found, ptr %wanted, i32 2)
  ret i32 %equal
absent:
  ret i32 0
}

; a module's parameter of this name, which the dictionary owns; None where there is none
define internal ptr @parameter(ptr %parameters, ptr %name, ptr %none) {
  %found = call ptr @PyDict_GetItem(ptr %parameters, ptr %name)
  %is_absent = icmp eq ptr %found, null
  %parameter = select i1 %is_absent, ptr %none, ptr %found
  ret ptr %parameter
}

define ptr @recalled(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %operands = alloca ptr, i64 3
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, recalled.slow
  %none = field ptr %record, recalled.none
  %is_form = call i1 @are(i64 %given, i64 2, ptr %keywords)
  require %is_form else long
  %module = load ptr, ptr %args
  %x = item ptr %args, 1
  %class = call ptr @PyObject_Type(ptr %x)
  drop %class
  %tensor = field ptr %record, recalled.tensor
  %parameter = field ptr %record, recalled.parameter
  %is_tensor = icmp eq ptr %class, %tensor
  %is_parameter = icmp eq ptr %class, %parameter
  %is_own = or i1 %is_tensor, %is_parameter
  require %is_own else long
  %observers = field ptr %record, recalled.observers
  %apart = field ptr %record, recalled.apart
  %is_unwatched = call i1 @is_unwatched(ptr %observers, ptr %apart)
  require %is_unwatched else long
  %modes = field ptr %record, recalled.modes
  %zero = field ptr %record, recalled.zero
  %are_no_modes = call i32 @gives(ptr %modes, ptr %zero) else long, failed
  %nested = field ptr %record, recalled.nested
  %false = field ptr %record, recalled.false
  %is_nested = call ptr @PyObject_GetAttr(ptr %x, ptr %nested) else failed
  drop %is_nested
  %is_flat = icmp eq ptr %is_nested, %false
  require %is_flat else long
  %enabled = field ptr %record, recalled.enabled
  %is_enabled = field ptr %record, recalled.is_enabled
  %is_same_mode = call i32 @gives(ptr %enabled, ptr %is_enabled) else long, failed
  %count = field ptr %record, recalled.count
  %threads = field ptr %record, recalled.threads
  %are_so_many = call i32 @gives(ptr %count, ptr %threads) else long, failed
  %levels = field ptr %record, recalled.levels
  %level_name = field ptr %record, recalled.level_name
  %level = field ptr %record, recalled.level
  %is_level = call i32 @has(ptr %levels, ptr %level_name, ptr %level) else long, failed
  %epochs = field ptr %record, recalled.epochs
  %epoch_name = field ptr %record, recalled.epoch_name
  %epoch = field ptr %record, recalled.epoch
  %is_epoch = call i32 @has(ptr %epochs, ptr %epoch_name, ptr %epoch) else long, failed

; the module's own attributes: its options, and how many parameters there are, of which the first two may be operands
  %dict_name = field ptr %record, recalled.dict_name
  %held = call ptr @PyObject_GetAttr(ptr %module, ptr %dict_name) else failed
  %options_name = field ptr %record, recalled.options_name
  %options = field ptr %record, recalled.options
  %are_options = call i32 @has(ptr %held, ptr %options_name, ptr %options) else long_held, failed_held
  %own_name = field ptr %record, recalled.own_name
  %parameters = call ptr @PyDict_GetItem(ptr %held, ptr %own_name) else long_held
  %size = call i64 @PyObject_Size(ptr %parameters)
  %own_count = field i64 %record, recalled.own_count
  %is_size = icmp eq i64 %size, %own_count
  require %is_size else long_held
  %weight_name = field ptr %record, recalled.weight_name
  %weight = call ptr @parameter(ptr %parameters, ptr %weight_name, ptr %none)
  %has_weight = icmp ne ptr %weight, %none
  %weights = zext i1 %has_weight to i64
  %weights_then = field i64 %record, recalled.weight
  %is_weight = icmp eq i64 %weights, %weights_then
  require %is_weight else long_held
  %bias_name = field ptr %record, recalled.bias_name
  %bias = call ptr @parameter(ptr %parameters, ptr %bias_name, ptr %none)
  %has_bias = icmp ne ptr %bias, %none
  %biases = zext i1 %has_bias to i64
  %biases_then = field i64 %record, recalled.bias
  %is_bias = icmp eq i64 %biases, %biases_then
  require %is_bias else long_held
  call void @Py_IncRef(ptr %weight)
  call void @Py_IncRef(ptr %bias)
  drop %held

; what else tells its calls apart
  %tell = field ptr %record, recalled.tell
  %told_then = field ptr %record, recalled.told
  %told = call ptr @PyObject_CallOneArg(ptr %tell, ptr %module) else failed_weights
  %is_told = call i32 @PyObject_RichCompareBool(ptr %told, ptr %told_then, i32 2)
  drop %told
  switch i32 %is_told, label %failed_weights [i32 0, label %long_weights i32 1, label %guarded]

; PyTorch's guards: x, and those of the parameters that there are
guarded:
  store ptr %x, ptr %operands
  put ptr %weight, %operands, 1
  %behind_weight = add i64 %weights, 1
  put ptr %bias, %operands, %behind_weight
  %all = add i64 %behind_weight, %biases
  %check = field ptr %record, recalled.check
  %true = field ptr %record, recalled.true
  %are_alike = call i32 @says_true(ptr %check, ptr %operands, i64 %all, ptr %true) else long_weights, failed_weights
  put ptr %weight, %operands, 1
  put ptr %bias, %operands, 2
  %apply = field ptr %record, recalled.apply
  %takes = field i64 %record, recalled.takes
  %result = call ptr @PyObject_Vectorcall(ptr %apply, ptr %operands, i64 %takes, ptr null)
  drop %weight
  drop %bias
  ret ptr %result

long_weights:
  drop %weight
  drop %bias
  br label %long
long_held:
  drop %held
  br label %long
long:
  %slow_result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %slow_result
failed_weights:
  drop %weight
  drop %bias
  ret ptr null
failed_held:
  drop %held
  ret ptr null
failed:
  ret ptr null
}
"""
