"""What the generated code of all functions calls (native_code.py), and the kernels of a plan as records."""

from __future__ import annotations

#: of a kernel: how many addresses of tensors it is given, and where each is: the number of an operand, and bytes behind
#: it; what these must not have in common; what it is given, of which the addresses come first; a table of tensor maps,
#: and which words of it are addresses; its launches, with their configurations; and the settings that it is for, where
#: these are not the caller's. On a processor there is one, a list of launches, with the addresses alone
KERNEL_SLOTS = (
    "pointers", "pointer_places", "mask", "parameters", "block", "table_bytes", "table", "maps", "places", "launches",
    "configs", "settings",
)  # fmt: skip
COMMON_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_Type(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PyObject_SetAttr(ptr, ptr, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyDict_GetItem(ptr, ptr)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_New(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; a number that an object is, of 64 bits, at a place; false where it is none, which is raised then
define internal i1 @number(ptr %object, ptr %at) {
  %value = call i64 @PyLong_AsUnsignedLongLong(ptr %object)
  store i64 %value, ptr %at
  %is_good = icmp ne i64 %value, -1
  require %is_good else suspect
  ret i1 true
suspect:
  %error = call ptr @PyErr_Occurred()
  %is_value = icmp eq ptr %error, null
  ret i1 %is_value
}

; where a tensor's elements begin, in the same way
define internal i1 @address(ptr %data_ptr, ptr %tensor, ptr %at) {
  %object = call ptr @PyObject_CallOneArg(ptr %data_ptr, ptr %tensor) else failed
  %is_good = call i1 @number(ptr %object, ptr %at)
  drop %object
  ret i1 %is_good
failed:
  ret i1 false
}

; whether there are so many arguments, and none by a name
define internal i1 @are(i64 %given, i64 %wanted, ptr %keywords) {
  %are_so_many = icmp eq i64 %given, %wanted
  %are_unnamed = icmp eq ptr %keywords, null
  %are_both = and i1 %are_so_many, %are_unnamed
  ret i1 %are_both
}

; whether one of the arguments has a name
define internal i1 @is_one_named(ptr %keywords) {
  %are_there = icmp ne ptr %keywords, null
  require %are_there else none
  %named = call i64 @PyTuple_Size(ptr %keywords)
  %is_one = icmp eq i64 %named, 1
  ret i1 %is_one
none:
  ret i1 false
}

; whether nobody is told of calls, of any thread
define internal i1 @is_unwatched(ptr %observers, ptr %apart) {
  %observing = call i64 @PyObject_Size(ptr %observers)
  %measuring = call i64 @PyObject_Size(ptr %apart)
  %watchers = or i64 %observing, %measuring
  %is_unwatched = icmp eq i64 %watchers, 0
  ret i1 %is_unwatched
}

; whether what a call gives, which is dropped, equals an object: 1, or 0, or -1 where something was raised
define internal i32 @gives(ptr %function, ptr %wanted) {
  %object = call ptr @PyObject_CallNoArgs(ptr %function) else failed
  %equal = call i32 @PyObject_RichCompareBool(ptr %object, ptr %wanted, i32 2)
  drop %object
  ret i32 %equal
failed:
  ret i32 -1
}

; whether a function in C++ says True of so many operands, in the same way
define internal i32 @says_true(ptr %function, ptr %operands, i64 %count, ptr %true) {
  %object = call ptr @PyObject_Vectorcall(ptr %function, ptr %operands, i64 %count, ptr null) else failed
  drop %object
  %is_true = icmp eq ptr %object, %true
  %answer = zext i1 %is_true to i32
  ret i32 %answer
failed:
  ret i32 -1
}

; whether the stream in force on a GPU is the default one, in the same way
define internal i32 @is_default(ptr %in_force, ptr %index) {
  %stream = alloca i64
  %has_stream = call i1 @address(ptr %in_force, ptr %index, ptr %stream)
  require %has_stream else failed
  %number = load i64, ptr %stream
  %is_zero = icmp eq i64 %number, 0
  %answer = zext i1 %is_zero to i32
  ret i32 %answer
failed:
  ret i32 -1
}

; where each of so many values lies, from a place among the addresses on
define internal void @point(ptr %addresses, i64 %first, ptr %values, i64 %count) {
  for %n in %count
    %at_value = getelementptr i64, ptr %values, i64 %n
    %place = add i64 %n, %first
    put ptr %at_value, %addresses, %place
  end
  ret void
}

; a kernel's addresses of tensors, from those of the operands: all bits that one of them has
define internal i64 @gather(ptr %kernel, ptr %operands, ptr %values) {
  %pointers = field i64 %kernel, kernel.pointers
  %places = field ptr %kernel, kernel.pointer_places
  for %n in %pointers, i64 %bits from 0 by %bits_next
    %first = shl i64 %n, 1
    %second = add i64 %first, 1
    %operand = item i64 %places, %first
    %offset = item i64 %places, %second
    %base = item i64 %operands, %operand
    %value = add i64 %base, %offset
    put i64 %value, %values, %n
    %bits_next = or i64 %bits, %value
  end
  ret i64 %bits
}

; the bytes of a kernel's table, or of the room for none
define internal i64 @table_room(ptr %kernel) {
  %bytes = field i64 %kernel, kernel.table_bytes
  %has_table = icmp ne i64 %bytes, 0
  %room = select i1 %has_table, i64 %bytes, i64 64
  ret i64 %room
}

; what a kernel is given for these operands: its values, and where each lies, behind its table of tensor maps;
; false where an address is not aligned as it needs
define internal i1 @prepare(ptr %kernel, ptr %operands, ptr %values, ptr %table, ptr %addresses) {
  %parameters = field i64 %kernel, kernel.parameters
  %block = field ptr %kernel, kernel.block
  %block_bytes = shl i64 %parameters, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %block, i64 %block_bytes, i1 false)
  %bits = call i64 @gather(ptr %kernel, ptr %operands, ptr %values)
  %mask = field i64 %kernel, kernel.mask
  %odd = and i64 %bits, %mask
  %is_even = icmp eq i64 %odd, 0
  require %is_even else unaligned
  %table_bytes = field i64 %kernel, kernel.table_bytes
  %has_table = icmp ne i64 %table_bytes, 0
  if %has_table
    %kept = field ptr %kernel, kernel.table
    call void @llvm.memcpy.p0.p0.i64(ptr %table, ptr %kept, i64 %table_bytes, i1 false)
    store ptr %table, ptr %addresses
    %maps = field i64 %kernel, kernel.maps
    %places = field ptr %kernel, kernel.places
    for %n in %maps
      %first = mul i64 %n, 3
      %second = add i64 %first, 1
      %third = add i64 %first, 2
      %word = item i64 %places, %first
      %operand = item i64 %places, %second
      %offset = item i64 %places, %third
      %base = item i64 %values, %operand
      %address = add i64 %base, %offset
      %rest = and i64 %address, {alignment}
      %is_aligned = icmp eq i64 %rest, 0
      require %is_aligned else unaligned
      put i64 %address, %table, %word
    end
  end
  %head = zext i1 %has_table to i64
  call void @point(ptr %addresses, i64 %head, ptr %values, i64 %parameters)
  ret i1 true
unaligned:
  ret i1 false
}

; launches of a kernel by their configurations, unless a status is that of a refusal; until the driver refuses one: its
; status
define internal i32 @enqueue(ptr %driver, ptr %kernel, ptr %addresses, i32 %before) {
  %launches = field i64 %kernel, kernel.launches
  %configs = field ptr %kernel, kernel.configs
  for %n in %launches, i32 %status from %before by %status_next
    %is_fine = icmp eq i32 %status, 0
    require %is_fine else refused
    %place = mul i64 %n, {config_slots}
    %config = getelementptr i64, ptr %configs, i64 %place
    %at_function = getelementptr i8, ptr %config, i64 {config_bytes}
    %function = load ptr, ptr %at_function
    %status_next = call i32 %driver(ptr %config, ptr %function, ptr %addresses, ptr null)
  end
  ret i32 %status
refused:
  ret i32 %status
}
"""
