"""Generated code that CPython calls as functions of an extension module, to launch CUDA kernels on tensors.

`launch` (native_launch.py), `convolve` (native_convolution.py), `run` (native_run.py), `gradients`
(native_gradients.py), `forward` and `recalled` (native_calls.py) are called as `METH_FASTCALL | METH_KEYWORDS`; the
object that they belong to is the address of a record in slots of 8 bytes. What changes from call to call lies on their
own stack, so that threads share nothing; the interpreter's lock is let go while the driver launches.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any

from jitdnn.devices.tensor_map import ALIGNMENT
from jitdnn.frameworks.torch.native_calls_text import CALLS_TEXT, FORWARD_SLOTS, RECALLED_SLOTS
from jitdnn.frameworks.torch.native_gradients_text import GRADIENTS_SLOTS, GRADIENTS_TEXT
from jitdnn.frameworks.torch.native_run_text import KERNEL_SLOTS, RUN_SLOTS, RUN_TEXT
from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

SLOT = 8
#: bytes of the driver's configuration of a launch, and where the stream is in it
CONFIG_BYTES, _STREAM_BYTE = 56, 32
_FASTCALL, _KEYWORDS = 0x80, 0x02

#: of a record of `launch`; the last is the configuration itself
LAUNCH_SLOTS = (
    "tensors", "arguments", "parameters", "slow", "data_ptr", "names", "name", "false", "none", "launch", "function",
    "expected", "numbers", "config",
)  # fmt: skip
#: of the record of all calls of `convolve`
STATE_SLOTS = (
    "records", "slow", "data_ptr", "seen", "observers", "apart", "watching", "current", "stream", "index", "none",
)  # fmt: skip
#: and of the one of a text
RECORD_SLOTS = (
    "settings", "pointers", "order", "mask", "parameters", "block", "table_bytes", "table", "maps", "places",
    "launches", "configs", "launch",
)  # fmt: skip
#: of a launch: its configuration, and the function behind it
CONFIG_SLOTS = CONFIG_BYTES // SLOT + 1

#: `field TYPE RECORD, SLOT` stands for what reads a slot of a record
_FIELD = re.compile(r"(%\w+) = field (\w+) (%\w+), (\d+)")
_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyErr_Occurred()
declare i64 @PyTuple_Size(ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyDict_GetItem(ptr, ptr)
declare ptr @PyObject_Type(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; a number that an object is, of 64 bits, at a place; false where it is none, which is raised then
define internal i1 @number(ptr %object, ptr %at) {{
  %value = call i64 @PyLong_AsUnsignedLongLong(ptr %object)
  store i64 %value, ptr %at
  %is_suspect = icmp eq i64 %value, -1
  br i1 %is_suspect, label %suspect, label %good
suspect:
  %error = call ptr @PyErr_Occurred()
  %is_good = icmp eq ptr %error, null
  ret i1 %is_good
good:
  ret i1 true
}}

; where a tensor's elements begin, in the same way
define internal i1 @address(ptr %data_ptr, ptr %tensor, ptr %at) {{
  %object = call ptr @PyObject_CallOneArg(ptr %data_ptr, ptr %tensor)
  %has_object = icmp ne ptr %object, null
  br i1 %has_object, label %convert, label %failed
convert:
  %is_good = call i1 @number(ptr %object, ptr %at)
  call void @Py_DecRef(ptr %object)
  ret i1 %is_good
failed:
  ret i1 false
}}

; writes addresses into the words of a table that are maps', each from a value and an offset: whether all are aligned
define internal i1 @place_maps(ptr %table, ptr %places, i64 %count, ptr %values) {{
entry:
  br label %each
each:
  %n = phi i64 [0, %entry], [%n_next, %aligned]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %one, label %done
one:
  %place = mul i64 %n, 3
  %at_word = getelementptr i64, ptr %places, i64 %place
  %word = load i64, ptr %at_word
  %at_operand = getelementptr i64, ptr %at_word, i64 1
  %operand = load i64, ptr %at_operand
  %at_offset = getelementptr i64, ptr %at_word, i64 2
  %offset = load i64, ptr %at_offset
  %at_base = getelementptr i64, ptr %values, i64 %operand
  %base = load i64, ptr %at_base
  %address = add i64 %base, %offset
  %rest = and i64 %address, {alignment}
  %is_aligned = icmp eq i64 %rest, 0
  br i1 %is_aligned, label %aligned, label %odd
aligned:
  %at_mapped = getelementptr i64, ptr %table, i64 %word
  store i64 %address, ptr %at_mapped
  %n_next = add i64 %n, 1
  br label %each
odd:
  ret i1 false
done:
  ret i1 true
}}

; where each of so many values lies, from a place among the addresses on
define internal void @point(ptr %addresses, i64 %first, ptr %values, i64 %count) {{
entry:
  br label %each
each:
  %n = phi i64 [0, %entry], [%n_next, %one]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %one, label %done
one:
  %at_value = getelementptr i64, ptr %values, i64 %n
  %place = add i64 %n, %first
  %at_address = getelementptr ptr, ptr %addresses, i64 %place
  store ptr %at_value, ptr %at_address
  %n_next = add i64 %n, 1
  br label %each
done:
  ret void
}}

; launches of a kernel by their configurations, until the driver refuses one: its status
define internal i32 @enqueue(ptr %driver, ptr %configs, i64 %launches, ptr %addresses) {{
entry:
  br label %each
each:
  %n = phi i64 [0, %entry], [%n_next, %one]
  %status = phi i32 [0, %entry], [%status_next, %one]
  %more = icmp slt i64 %n, %launches
  %is_fine = icmp eq i32 %status, 0
  %goes_on = and i1 %more, %is_fine
  br i1 %goes_on, label %one, label %done
one:
  %place = mul i64 %n, {config_slots}
  %config = getelementptr i64, ptr %configs, i64 %place
  %at_function = getelementptr i8, ptr %config, i64 {config_bytes}
  %function = load ptr, ptr %at_function
  %status_next = call i32 %driver(ptr %config, ptr %function, ptr %addresses, ptr null)
  %n_next = add i64 %n, 1
  br label %each
done:
  ret i32 %status
}}

define ptr @launch(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %record = call ptr @PyLong_AsVoidPtr(ptr %self)
  %tensors = load i64, ptr %record
  %arguments = field i64 %record, {arguments}
  %parameters = field i64 %record, {parameters}
  %slow = field ptr %record, {slow}
  %expected = field ptr %record, {expected}
  %as_many = icmp eq i64 %given, %arguments
  %has_keywords = icmp ne ptr %keywords, null
  %is_form = and i1 %as_many, %has_keywords
  br i1 %is_form, label %count, label %long

count:
  %named = call i64 @PyTuple_Size(ptr %keywords)
  %is_one = icmp eq i64 %named, 1
  br i1 %is_one, label %profiled, label %long

profiled:
  %names = field ptr %record, {names}
  %name = field ptr %record, {name}
  %false = field ptr %record, {false}
  %is_profiled = call ptr @PyDict_GetItem(ptr %names, ptr %name)
  %is_not = icmp eq ptr %is_profiled, %false
  br i1 %is_not, label %numbers, label %long

numbers:
  %n = phi i64 [%tensors, %profiled], [%n_next, %equal]
  %more_numbers = icmp slt i64 %n, %arguments
  br i1 %more_numbers, label %number, label %room
number:
  %at_number = getelementptr ptr, ptr %args, i64 %n
  %number_given = load ptr, ptr %at_number
  %n_expected = sub i64 %n, %tensors
  %at_wanted = getelementptr ptr, ptr %expected, i64 %n_expected
  %wanted = load ptr, ptr %at_wanted
  %compared = call i32 @PyObject_RichCompareBool(ptr %number_given, ptr %wanted, i32 2)
  %is_equal = icmp eq i32 %compared, 1
  br i1 %is_equal, label %equal, label %unequal
unequal:
  %is_raised = icmp slt i32 %compared, 0
  br i1 %is_raised, label %failed, label %long
equal:
  %n_next = add i64 %n, 1
  br label %numbers

room:
  %values = alloca i64, i64 %parameters
  %addresses = alloca ptr, i64 %parameters
  %config = alloca [{config_bytes} x i8], align 8
  %data_ptr = field ptr %record, {data_ptr}
  br label %pointers
pointers:
  %i = phi i64 [0, %room], [%i_next, %have]
  %more_tensors = icmp slt i64 %i, %tensors
  br i1 %more_tensors, label %pointer, label %constants
pointer:
  %at_tensor = getelementptr ptr, ptr %args, i64 %i
  %tensor = load ptr, ptr %at_tensor
  %at_value = getelementptr i64, ptr %values, i64 %i
  %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_value)
  br i1 %has_address, label %have, label %failed
have:
  %at_address = getelementptr ptr, ptr %addresses, i64 %i
  store ptr %at_value, ptr %at_address
  %i_next = add i64 %i, 1
  br label %pointers

constants:
  %packed = field ptr %record, {numbers}
  br label %constant
constant:
  %c = phi i64 [%tensors, %constants], [%c_next, %copy]
  %more_constants = icmp slt i64 %c, %parameters
  br i1 %more_constants, label %copy, label %run
copy:
  %c_packed = sub i64 %c, %tensors
  %at_packed = getelementptr i64, ptr %packed, i64 %c_packed
  %at_constant = getelementptr ptr, ptr %addresses, i64 %c
  store ptr %at_packed, ptr %at_constant
  %c_next = add i64 %c, 1
  br label %constant

run:
  %at_config = getelementptr i64, ptr %record, i64 {config}
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %at_config, i64 {config_bytes}, i1 false)
  %at_stream_given = getelementptr ptr, ptr %args, i64 %given
  %stream = load ptr, ptr %at_stream_given
  %at_stream = getelementptr i8, ptr %config, i64 {stream_byte}
  %has_stream = call i1 @number(ptr %stream, ptr %at_stream)
  br i1 %has_stream, label %enqueue, label %failed
enqueue:
  %function = field ptr %record, {function}
  %driver = field ptr %record, {launch}
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %driver(ptr %config, ptr %function, ptr %addresses, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_launched = icmp eq i32 %status, 0
  br i1 %is_launched, label %done, label %long
done:
  %none = field ptr %record, {none}
  call void @Py_IncRef(ptr %none)
  ret ptr %none
long:
  %result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %result
failed:
  ret ptr null
}}

define ptr @convolve(ptr %self, ptr %args, i64 %given, ptr %keywords) {{
entry:
  %state = call ptr @PyLong_AsVoidPtr(ptr %self)
  %slow = field ptr %state, {s_slow}
  %count = sub i64 %given, 1
  %tensors = sub i64 %given, 2
  %is_form = icmp sge i64 %given, 4
  %has_keywords = icmp ne ptr %keywords, null
  %may_be = and i1 %is_form, %has_keywords
  br i1 %may_be, label %named, label %long
named:
  %names = call i64 @PyTuple_Size(ptr %keywords)
  %is_one = icmp eq i64 %names, 1
  br i1 %is_one, label %known, label %long
known:
  %records = load ptr, ptr %state
  %at_text = getelementptr ptr, ptr %args, i64 %tensors
  %text = load ptr, ptr %at_text
  %found = call ptr @PyDict_GetItem(ptr %records, ptr %text)
  %is_known = icmp ne ptr %found, null
  br i1 %is_known, label %unseen, label %long
unseen:
  %before_names = sub i64 %given, 1
  %at_graph = getelementptr ptr, ptr %args, i64 %before_names
  %graph = load ptr, ptr %at_graph
  %no_graph = field ptr %state, {s_none}
  %has_graph = icmp ne ptr %graph, %no_graph
  br i1 %has_graph, label %of_graph, label %observed
of_graph:
  %seen = field ptr %state, {s_seen}
  %has_seen = call ptr @PyDict_GetItem(ptr %graph, ptr %seen)
  %is_seen = icmp ne ptr %has_seen, null
  br i1 %is_seen, label %observed, label %long
observed:
  %observers = field ptr %state, {s_observers}
  %observing = call i64 @PyObject_Size(ptr %observers)
  %apart = field ptr %state, {s_apart}
  %measuring = call i64 @PyObject_Size(ptr %apart)
  %watchers = or i64 %observing, %measuring
  %is_unwatched = icmp eq i64 %watchers, 0
  br i1 %is_unwatched, label %settings, label %watched
watched:
  %watching = field ptr %state, {s_watching}
  %own_watchers = call ptr @PyObject_CallNoArgs(ptr %watching)
  %has_watchers = icmp ne ptr %own_watchers, null
  br i1 %has_watchers, label %watchers_here, label %failed
watchers_here:
  %watchers_count = call i64 @PyObject_Size(ptr %own_watchers)
  call void @Py_DecRef(ptr %own_watchers)
  %is_alone = icmp eq i64 %watchers_count, 0
  br i1 %is_alone, label %settings, label %long
settings:
  %current = field ptr %state, {s_current}
  %now = call ptr @PyObject_CallNoArgs(ptr %current)
  %has_now = icmp ne ptr %now, null
  br i1 %has_now, label %same, label %failed
same:
  call void @Py_DecRef(ptr %now)
  %record = call ptr @PyLong_AsVoidPtr(ptr %found)
  %then = field ptr %record, {r_settings}
  %is_same = icmp eq ptr %now, %then
  %pointer_count = field i64 %record, {r_pointers}
  %is_count = icmp eq i64 %count, %pointer_count
  %is_prepared = and i1 %is_same, %is_count
  br i1 %is_prepared, label %stream, label %long
stream:
  %room = alloca i64
  %in_force = field ptr %state, {s_stream}
  %index = field ptr %state, {s_index}
  %has_stream = call i1 @address(ptr %in_force, ptr %index, ptr %room)
  br i1 %has_stream, label %default, label %failed
default:
  %number = load i64, ptr %room
  %is_default = icmp eq i64 %number, 0
  br i1 %is_default, label %copies, label %long

copies:
  %parameters = field i64 %record, {r_parameters}
  %value_bytes = shl i64 %parameters, 3
  %values = alloca i64, i64 %parameters, align 8
  %block = field ptr %record, {r_block}
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %block, i64 %value_bytes, i1 false)
  %operands = alloca i64, i64 %count, align 8
  %places = add i64 %parameters, 1
  %addresses = alloca ptr, i64 %places
  %table_bytes = field i64 %record, {r_table_bytes}
  %has_table = icmp ne i64 %table_bytes, 0
  %table_room = select i1 %has_table, i64 %table_bytes, i64 64
  %table = alloca i8, i64 %table_room, align 64
  %data_ptr = field ptr %state, {s_data_ptr}
  br label %pointers

; a, b, the result, and a bias, as a plan takes them
pointers:
  %i = phi i64 [0, %copies], [%i_next, %pointed]
  %bits = phi i64 [0, %copies], [%bits_next, %pointed]
  %more_pointers = icmp slt i64 %i, %count
  br i1 %more_pointers, label %pointer, label %aligned
pointer:
  %is_input = icmp slt i64 %i, 2
  %is_result = icmp eq i64 %i, 2
  %before = sub i64 %i, 1
  %behind = select i1 %is_result, i64 %given, i64 %before
  %place = select i1 %is_input, i64 %i, i64 %behind
  %at_tensor = getelementptr ptr, ptr %args, i64 %place
  %tensor = load ptr, ptr %at_tensor
  %at_operand_given = getelementptr i64, ptr %operands, i64 %i
  %has_address = call i1 @address(ptr %data_ptr, ptr %tensor, ptr %at_operand_given)
  br i1 %has_address, label %pointed, label %failed
pointed:
  %operand_given = load i64, ptr %at_operand_given
  %bits_next = or i64 %bits, %operand_given
  %i_next = add i64 %i, 1
  br label %pointers
aligned:
  %mask = field i64 %record, {r_mask}
  %odd = and i64 %bits, %mask
  %is_even = icmp eq i64 %odd, 0
  br i1 %is_even, label %ordered, label %long
ordered:
  %order = field ptr %record, {r_order}
  br label %sorted
sorted:
  %o = phi i64 [0, %ordered], [%o_next, %sort]
  %more_sorted = icmp slt i64 %o, %count
  br i1 %more_sorted, label %sort, label %tables
sort:
  %at_which = getelementptr i64, ptr %order, i64 %o
  %which = load i64, ptr %at_which
  %at_which_given = getelementptr i64, ptr %operands, i64 %which
  %sorted_address = load i64, ptr %at_which_given
  %at_sorted = getelementptr i64, ptr %values, i64 %o
  store i64 %sorted_address, ptr %at_sorted
  %o_next = add i64 %o, 1
  br label %sorted

tables:
  br i1 %has_table, label %maps, label %without
maps:
  %kept = field ptr %record, {r_table}
  call void @llvm.memcpy.p0.p0.i64(ptr %table, ptr %kept, i64 %table_bytes, i1 false)
  %map_count = field i64 %record, {r_maps}
  %map_places = field ptr %record, {r_places}
  store ptr %table, ptr %addresses
  %are_aligned = call i1 @place_maps(ptr %table, ptr %map_places, i64 %map_count, ptr %values)
  br i1 %are_aligned, label %without, label %long

without:
  %first = zext i1 %has_table to i64
  call void @point(ptr %addresses, i64 %first, ptr %values, i64 %parameters)
  br label %run

run:
  %launches = field i64 %record, {r_launches}
  %configs = field ptr %record, {r_configs}
  %driver = field ptr %record, {r_launch}
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 @enqueue(ptr %driver, ptr %configs, i64 %launches, ptr %addresses)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_fine = icmp eq i32 %status, 0
  br i1 %is_fine, label %done, label %long
done:
  %none = field ptr %state, {s_none}
  call void @Py_IncRef(ptr %none)
  ret ptr %none
long:
  %result = call ptr @PyObject_Vectorcall(ptr %slow, ptr %args, i64 %given, ptr %keywords)
  ret ptr %result
failed:
  ret ptr null
}}
"""


class _Method(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def method(name: str, record: int, keeps: object = None) -> tuple[Callable[..., Any], object]:
    """One of the functions with the record at an address, and what must live as long as it is called. `keeps` does."""
    library = _library()
    made = _Method(name.encode(), library.address(name), _FASTCALL | _KEYWORDS, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object), ctypes.py_object
    # in the place of its module, which the function holds
    return make(ctypes.addressof(made), record, (keeps, made, library)), (library, made)


@functools.cache
def _library() -> Library:
    slots = {
        **{name: n for n, name in enumerate(LAUNCH_SLOTS)},
        **{f"s_{name}": n for n, name in enumerate(STATE_SLOTS)},
        **{f"r_{name}": n for n, name in enumerate(RECORD_SLOTS)},
        **{f"u_{name}": n for n, name in enumerate(RUN_SLOTS)},
        **{f"k_{name}": n for n, name in enumerate(KERNEL_SLOTS)},
        **{f"g_{name}": n for n, name in enumerate(GRADIENTS_SLOTS)},
        **{f"f_{name}": n for n, name in enumerate(FORWARD_SLOTS)},
        **{f"c_{name}": n for n, name in enumerate(RECALLED_SLOTS)},
    }
    text = _FIELD.sub(
        r"\1.at = getelementptr i64, ptr \3, i64 \4\n  \1 = load \2, ptr \1.at",
        (_TEXT + RUN_TEXT + GRADIENTS_TEXT + CALLS_TEXT).format(
            **slots,
            config_bytes=CONFIG_BYTES,
            config_slots=CONFIG_SLOTS,
            stream_byte=_STREAM_BYTE,
            alignment=ALIGNMENT - 1,
        ),
    )
    with compiling():
        return load("launches on tensors", text, isa("host"), lambda module: module.write(text))
