"""Calls of prepared convolutions on a GPU from the code of Inductor's graphs, by generated code.

What a text of settled.py names runs, on most calls, as launches of one kernel with other addresses. Once it has run so,
generated code does the same: it looks the text up, sees that nobody watches and that the settings are those of before,
writes the addresses into a copy of the arguments and of the tensor maps, and calls the driver. Whatever is otherwise
(another stream than the default one, memory that no tensor map can name, what the driver refuses) is called in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitdnn.devices.cuda_driver import launch_address
from jitdnn.devices.cuda_kernel import Frozen
from jitdnn.frameworks.torch.inductor_launches import SEEN
from jitdnn.frameworks.torch.kinds import observers, threads_apart, watching
from jitdnn.frameworks.torch.native_code import RECORD_SLOTS, STATE_SLOTS, method
from jitdnn.settings import current

#: texts that are remembered: another thread may be launching what is forgotten
MOST = 4096


class Calls:
    """`call(a, b, [bias,] text, names, out=y)`, of texts that `keep` was told of; `slow` for all others."""

    def __init__(self, slow: Callable[..., Any]) -> None:
        #: by text, where its record is
        self.records: dict[str, int] = {}
        self._kept: list[object] = []
        objects: tuple[Any, ...] = (
            self.records, slow, Tensor.data_ptr, SEEN, observers, threads_apart, watching, current, stream_in_force(),
            0, None,
        )  # fmt: skip
        assert len(objects) == len(STATE_SLOTS)
        self._state = (ctypes.py_object * len(objects))(*objects)
        self.call, self._code = method("convolve", ctypes.addressof(self._state))

    def keep(self, text: str, frozen: Frozen) -> None:
        """From now on a text means these launches, while the settings are those in force now."""
        if len(self._kept) >= MOST:
            return
        values = current()
        block = ctypes.create_string_buffer(frozen.arguments, len(frozen.arguments))
        table = ctypes.create_string_buffer(frozen.table, max(1, len(frozen.table)))
        places = (ctypes.c_int64 * max(1, 3 * len(frozen.places)))(*(n for one in frozen.places for n in one))
        configs = b"".join(config + function.to_bytes(8, "little") for config, function in frozen.launches)
        launches = ctypes.create_string_buffer(configs, len(configs))
        order = (ctypes.c_int64 * len(frozen.order))(*frozen.order)
        numbers = (
            id(values), len(frozen.order), ctypes.addressof(order), frozen.alignment - 1, len(frozen.arguments) // 8,
            ctypes.addressof(block), len(frozen.table), ctypes.addressof(table),
            len(frozen.places), ctypes.addressof(places), len(frozen.launches), ctypes.addressof(launches),
            launch_address(),
        )  # fmt: skip
        assert len(numbers) == len(RECORD_SLOTS)
        record = (ctypes.c_uint64 * len(numbers))(*numbers)
        self._kept.append((values, order, block, table, places, launches, record, frozen))
        self.records[text] = ctypes.addressof(record)


def stream_in_force() -> Callable[[int], int]:
    """What gives the number of PyTorch's stream on a GPU; where it cannot, one that generated code does not take."""
    return getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda _: 1)
