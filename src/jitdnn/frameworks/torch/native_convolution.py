"""Calls of prepared convolutions on a GPU from the code of Inductor's graphs, by generated code.

What a text of settled.py names runs, on most calls, as launches of one kernel with other addresses. Once it has run so,
generated code does the same: it looks the text up, sees that nobody watches and that the settings are those of before,
writes the addresses into a copy of the arguments and of the tensor maps, and calls the driver. Whatever is otherwise
(another stream than the default one, memory that no tensor map can name, what the driver refuses) is called in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitdnn.devices.cuda_driver import launch_address
from jitdnn.devices.cuda_kernel import Frozen
from jitdnn.frameworks.torch.inductor_launches import SEEN
from jitdnn.frameworks.torch.kinds import observers, threads_apart, watching
from jitdnn.frameworks.torch.native_code import kernel_record, method
from jitdnn.settings import current

#: texts that are remembered: another thread may be launching what is forgotten
MOST = 4096


class Calls:
    """`call(a, b, [bias,] text, names, out=y)`, of texts that `keep` was told of; `slow` for all others."""

    def __init__(self, slow: Callable[..., Any]) -> None:
        #: by text, where the record of its kernel is
        self.records: dict[str, int] = {}
        self._kept: list[object] = []
        objects = {
            "records": self.records, "slow": slow, "data_ptr": Tensor.data_ptr, "seen": SEEN, "observers": observers,
            "apart": threads_apart, "watching": watching, "current": current, "stream": stream_in_force(), "index": 0,
            "none": None,
        }  # fmt: skip
        self.call = method("convolve", objects, {"driver": launch_address()}, self._kept)

    def keep(self, text: str, frozen: Frozen) -> None:
        """From now on a text means these launches, while the settings are those in force now."""
        if len(self._kept) < MOST:
            address, kept = kernel_record([(operand, 0) for operand in frozen.order], frozen, current())
            self._kept.append(kept)
            self.records[text] = address


def stream_in_force() -> Callable[[int], int]:
    """What gives the number of PyTorch's stream on a GPU; where it cannot, one that generated code does not take."""
    return getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda _: 1)
