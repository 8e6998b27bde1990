"""The generated code of `launch` and `convolve`, which the code of Inductor's graphs calls; native_launch.py and
native_convolution.py make records for them."""

from __future__ import annotations

#: of a record of `launch`; the last is the driver's configuration itself
LAUNCH_SLOTS = (
    "tensors", "arguments", "parameters", "slow", "data_ptr", "names", "name", "false", "none", "driver", "function",
    "expected", "numbers", "config",
)  # fmt: skip
#: of the record of all calls of `convolve`; those of kernels (native_common_text.py) are by texts in `records`
CONVOLVE_SLOTS = (
    "records", "slow", "data_ptr", "seen", "observers", "apart", "watching", "current", "stream", "index", "none",
    "driver",
)  # fmt: skip
LAUNCH_TEXT = """
define ptr @launch(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %tensors = field i64 %record, launch.tensors
  %arguments = field i64 %record, launch.arguments
  %parameters = field i64 %record, launch.parameters
  %slow = field ptr %record, launch.slow
  %are_so_many = icmp eq i64 %given, %arguments
  require %are_so_many else long
  %is_form = call i1 @is_one_named(ptr %keywords)
  require %is_form else long
  %names = field ptr %record, launch.names
  %name = field ptr %record, launch.name
  %false = field ptr %record, launch.false
  %is_profiled = call ptr @PyDict_GetItem(ptr %names, ptr %name)
  %is_not = icmp eq ptr %is_profiled, %false
  require %is_not else long

  %expected = field ptr %record, launch.expected
  %numbers = sub i64 %arguments, %tensors
  for %n in %numbers
    %place = add i64 %n, %tensors
    %number = item ptr %args, %place
    %wanted = item ptr %expected, %n
    %is_equal = call i32 @PyObject_RichCompareBool(ptr %number, ptr %wanted, i32 2) else long, failed
  end

; addresses of tensors, and what is packed behind them
  %values = alloca i64, i64 %parameters
  %addresses = alloca ptr, i64 %parameters
  %config = alloca [{config_bytes} x i8], align 8
  %data_ptr = field ptr %record, launch.data_ptr
  for %i in %tensors
    %tensor = item ptr %args, %i
    %at_value = getelementptr i64, ptr %values, i64 %i
    %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_value)
    require %has_address else failed
  end
  call void @point(ptr %addresses, i64 0, ptr %values, i64 %tensors)
  %packed = field ptr %record, launch.numbers
  %constants = sub i64 %parameters, %tensors
  call void @point(ptr %addresses, i64 %tensors, ptr %packed, i64 %constants)

  %at_config = getelementptr i64, ptr %record, i64 {config}
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %at_config, i64 {config_bytes}, i1 false)
  %stream = item ptr %args, %given
  %at_stream = getelementptr i8, ptr %config, i64 {stream_byte}
  %has_stream = call i1 @number(ptr %stream, ptr %at_stream)
  require %has_stream else failed
  %function = field ptr %record, launch.function
  %driver = field ptr %record, launch.driver
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %driver(ptr %config, ptr %function, ptr %addresses, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_launched = icmp eq i32 %status, 0
  require %is_launched else long
  %none = field ptr %record, launch.none
  call void @Py_IncRef(ptr %none)
  ret ptr %none
long:
  %result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %result
failed:
  ret ptr null
}

define ptr @convolve(ptr %self, ptr %args, i64 %given, ptr %keywords) {
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %record, convolve.slow
  %none = field ptr %record, convolve.none
  %count = sub i64 %given, 1
  %tensors = sub i64 %given, 2
  %are_enough = icmp sge i64 %given, 4
  require %are_enough else long
  %is_form = call i1 @is_one_named(ptr %keywords)
  require %is_form else long
  %records = field ptr %record, convolve.records
  %text = item ptr %args, %tensors
  %found = call ptr @PyDict_GetItem(ptr %records, ptr %text)
  %is_known = icmp ne ptr %found, null
  require %is_known else long

; a graph, whose other kernels are launched faster once it was seen
  %graph = item ptr %args, %count
  %has_graph = icmp ne ptr %graph, %none
  if %has_graph
    %seen = field ptr %record, convolve.seen
    %has_seen = call ptr @PyDict_GetItem(ptr %graph, ptr %seen)
    %is_seen = icmp ne ptr %has_seen, null
    require %is_seen else long
  end

; who watches may be another thread's
  %observers = field ptr %record, convolve.observers
  %apart = field ptr %record, convolve.apart
  %is_unwatched = call i1 @is_unwatched(ptr %observers, ptr %apart)
  %is_watched = xor i1 %is_unwatched, true
  if %is_watched
    %watching = field ptr %record, convolve.watching
    %watchers = call ptr @PyObject_CallNoArgs(ptr %watching) else failed
    %own = call i64 @PyObject_Size(ptr %watchers)
    drop %watchers
    %is_own_unwatched = icmp eq i64 %own, 0
    require %is_own_unwatched else long
  end

  %current = field ptr %record, convolve.current
  %now = call ptr @PyObject_CallNoArgs(ptr %current) else failed
  drop %now
  %kernel = call ptr @PyLong_AsVoidPtr(ptr %found)
  %then = field ptr %kernel, kernel.settings
  %is_same = icmp eq ptr %now, %then
  %pointers = field i64 %kernel, kernel.pointers
  %are_so_many = icmp eq i64 %count, %pointers
  %is_prepared = and i1 %is_same, %are_so_many
  require %is_prepared else long
  %in_force = field ptr %record, convolve.stream
  %index = field ptr %record, convolve.index
  %is_default = call i32 @is_default(ptr %in_force, ptr %index) else long, failed

; a, b, the result, and a bias, as a plan takes them
  %operands = alloca i64, i64 %count, align 8
  %data_ptr = field ptr %record, convolve.data_ptr
  for %i in %count
    %is_input = icmp slt i64 %i, 2
    %is_result = icmp eq i64 %i, 2
    %before = sub i64 %i, 1
    %behind = select i1 %is_result, i64 %given, i64 %before
    %place = select i1 %is_input, i64 %i, i64 %behind
    %tensor = item ptr %args, %place
    %at_operand = getelementptr i64, ptr %operands, i64 %i
    %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_operand)
    require %has_address else failed
  end

  %parameters = field i64 %kernel, kernel.parameters
  %values = alloca i64, i64 %parameters, align 8
  %places = add i64 %parameters, 1
  %addresses = alloca ptr, i64 %places
  %table_room = call i64 @table_room(ptr %kernel)
  %table = alloca i8, i64 %table_room, align 64
  %are_given = call i1 @prepare(ptr %kernel, ptr %operands, ptr %values, ptr %table, ptr %addresses)
  require %are_given else long
  %driver = field ptr %record, convolve.driver
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 @enqueue(ptr %driver, ptr %kernel, ptr %addresses, i32 0)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_launched = icmp eq i32 %status, 0
  require %is_launched else long
  call void @Py_IncRef(ptr %none)
  ret ptr %none
long:
  %result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %result
failed:
  ret ptr null
}
"""
