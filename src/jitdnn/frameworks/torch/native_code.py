"""Generated code that CPython calls as functions of an extension module, to launch kernels on tensors.

`launch` (native_launch.py), `convolve` (native_convolution.py), `run` (native_run.py), `gradients`
(native_gradients.py), `forward` and `recalled` (native_calls.py) are called as `METH_FASTCALL | METH_KEYWORDS`; the
object that they belong to is the address of a record in slots of 8 bytes. What changes from call to call lies on their
own stack, so that threads share nothing; the interpreter's lock is let go while the driver launches. What their text is
written in says native_text.py.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitdnn.devices.cuda_kernel import Frozen
from jitdnn.devices.tensor_map import ALIGNMENT
from jitdnn.frameworks.torch.native_calls_text import CALLS_TEXT, FORWARD_SLOTS, RECALLED_SLOTS
from jitdnn.frameworks.torch.native_common_text import COMMON_TEXT, KERNEL_SLOTS
from jitdnn.frameworks.torch.native_gradients_text import GRADIENTS_SLOTS, GRADIENTS_TEXT
from jitdnn.frameworks.torch.native_launch_text import CONVOLVE_SLOTS, LAUNCH_SLOTS, LAUNCH_TEXT
from jitdnn.frameworks.torch.native_run_text import RUN_SLOTS, RUN_TEXT
from jitdnn.frameworks.torch.native_text import SLOT, expanded
from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import isa
from jitdnn.rtcg.recording import compiling

#: bytes of the driver's configuration of a launch, and where the stream is in it
CONFIG_BYTES, _STREAM_BYTE = 56, 32
_FASTCALL, _KEYWORDS = 0x80, 0x02

#: by the name of a function, and "kernel", what slots its records have
_RECORDS = {
    "launch": LAUNCH_SLOTS,
    "convolve": CONVOLVE_SLOTS,
    "run": RUN_SLOTS,
    "gradients": GRADIENTS_SLOTS,
    "forward": FORWARD_SLOTS,
    "recalled": RECALLED_SLOTS,
    "kernel": KERNEL_SLOTS,
}


class _Method(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def method(
    name: str,
    objects: Mapping[str, Any],
    numbers: Mapping[str, int],
    keeps: object = None,
    behind: bytes = b"",
) -> Callable[..., Any]:
    """One of the functions, with a record of these objects and numbers by the names of their slots; what is not given
    is 0. `behind`: what stands in the record behind its last slot but one. All of it, and what it `keeps`, lives as
    long as the function."""
    library = _library()
    record = _record(name, {**{slot: id(one) for slot, one in objects.items()}, **numbers}, behind)
    made = _Method(name.encode(), library.address(name), _FASTCALL | _KEYWORDS, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object), ctypes.py_object
    # in the place of its module, which the function holds
    held = objects, record, keeps, made, library
    return make(ctypes.addressof(made), ctypes.addressof(record), held)  # type: ignore[no-any-return]


def _record(kind: str, values: Mapping[str, int], behind: bytes = b"") -> Any:
    slots = _RECORDS[kind]
    assert values.keys() <= set(slots)
    record = (ctypes.c_uint64 * (len(slots) + len(behind) // SLOT))(*(values.get(name, 0) for name in slots))
    if behind:
        ctypes.memmove(ctypes.addressof(record) + SLOT * (len(slots) - 1), behind, len(behind))
    return record


def kernel_record(
    places: Sequence[tuple[int, int]], frozen: Frozen | None = None, settings: object = None
) -> tuple[int, object]:
    """The address of a kernel's record, and what must live as long.

    `places`: where each of its addresses is, the number of an operand and bytes behind it, in the kernel's own order;
    `frozen`: what is launched on a GPU. `settings`: what the kernel is for, where it is told from others by them.
    """
    pointers = _numbers(places)
    values = {"pointers": len(places), "pointer_places": ctypes.addressof(pointers), "settings": id(settings)}
    kept: tuple[object, ...] = (settings, pointers)
    if frozen is not None:
        configs = b"".join(config + function.to_bytes(SLOT, "little") for config, function in frozen.launches)
        block, table, launches = map(_bytes, (frozen.arguments, frozen.table, configs))
        maps = _numbers(frozen.places)
        values |= {
            "mask": frozen.alignment - 1, "parameters": len(frozen.arguments) // SLOT,
            "block": ctypes.addressof(block), "table_bytes": len(frozen.table), "table": ctypes.addressof(table),
            "maps": len(frozen.places), "places": ctypes.addressof(maps), "launches": len(frozen.launches),
            "configs": ctypes.addressof(launches),
        }  # fmt: skip
        kept = (*kept, frozen, block, table, maps, launches)
    record = _record("kernel", values)
    return ctypes.addressof(record), (kept, record)


def _numbers(groups: Any) -> Any:
    """An array of the numbers in groups of them."""
    every = [number for one in groups for number in one]
    return (ctypes.c_int64 * max(1, len(every)))(*every)


def _bytes(content: bytes) -> Any:
    return ctypes.create_string_buffer(content, max(1, len(content)))


@functools.cache
def _library() -> Library:
    text = expanded(
        COMMON_TEXT + LAUNCH_TEXT + RUN_TEXT + GRADIENTS_TEXT + CALLS_TEXT,
        _RECORDS,
        {
            "alignment": ALIGNMENT - 1,
            "config_bytes": CONFIG_BYTES,
            "config_slots": CONFIG_BYTES // SLOT + 1,  # with the function behind it
            "stream_byte": _STREAM_BYTE,
            "config": LAUNCH_SLOTS.index("config"),
            "busy": RUN_SLOTS.index("busy"),
        },
    )
    with compiling():
        return load("launches on tensors", text, isa("host"), lambda module: module.write(text))
