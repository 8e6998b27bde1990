"""Launches of CUDA kernels on the addresses of tensors, as a function of CPython's that is generated code.

In Python a launch by `ctypes` takes the host some microseconds beside the driver's own, most of them to look at
arguments, to gather addresses and to convert them. The generated function compares the numbers among its arguments with
those of the launch that was prepared, asks each tensor for its address, and calls the driver. Whatever is not as
prepared, and what the driver refuses, goes to the function that was given for that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import profiler

from jitdnn.frameworks.torch.native_code import method
from jitdnn.frameworks.torch.native_text import SLOT


class Prepared:
    """A launch with the numbers `expected` behind its tensors, which other tensors will be given to.

    `config`: the driver's configuration, whose stream is that of each call; `numbers`: what the kernel is given behind
    the addresses of the tensors, 8 bytes each. `launch` is the address of cuLaunchKernelEx. `call(*tensors, *expected,
    stream=...)` launches; with anything else, while PyTorch's profiler is on, and where the driver refuses, it is
    `slow(*args, stream=...)`.
    """

    __slots__ = ("call",)

    def __init__(
        self, slow: Callable[..., Any], tensors: int, expected: Sequence[Any], function: int, config: bytes,
        numbers: bytes, launch: int,
    ) -> None:  # fmt: skip
        objects = {
            "slow": slow, "data_ptr": Tensor.data_ptr, "names": vars(profiler), "name": "_is_profiler_enabled",
            "false": False, "none": None,
        }  # fmt: skip
        wanted = (ctypes.py_object * max(1, len(expected)))(*expected)
        packed = ctypes.create_string_buffer(numbers, max(SLOT, len(numbers)))
        values = {
            "tensors": tensors, "arguments": tensors + len(expected), "parameters": tensors + len(numbers) // SLOT,
            "driver": launch, "function": function, "expected": ctypes.addressof(wanted),
            "numbers": ctypes.addressof(packed),
        }  # fmt: skip
        self.call = method("launch", objects, values, (wanted, packed), config)
