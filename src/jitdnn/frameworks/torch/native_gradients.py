"""The backward pass of a node of autograd as generated code, where it is prepared launches alone.

PyTorch's engine calls it with the node and the gradient of its result, on GPUs in a thread of its own, whose processor
has none of Python's objects at hand: each that is touched there costs more than it looks. Generated code asks whether
gradients are recorded and whether somebody watches, gets what was saved, has PyTorch's guards compare it with what the
launches were prepared for, and runs these (native_run.py). All else goes to the function in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.kinds import observers, threads_apart
from jitdnn.frameworks.torch.native_code import method
from jitdnn.frameworks.torch.registry import is_graph_kept

_NAMES = ("saved_tensors", "needs_input_grad")
KEPT_RESULT, KEPT_VERSION, VERSIONS = "result", "version", "_version"
"""The attributes of a node that keeps its result besides, and its version at first; and that of tensors' versions."""


def gradients(
    slow: Callable[[Any, Tensor, Any], Any], run: Callable[..., Any], check: Callable[..., bool], kept: int,
    threads: int | None, needs: tuple[bool, ...] | None, has_result: bool = False,
) -> Any:  # fmt: skip
    """A method of nodes that takes the gradient of the result and gives those of the operands.

    `run(dy, *saved)` gives them where `check(dy, *saved)` holds for so many saved tensors, with so many threads of
    PyTorch's (None for any), where the node needs these (None for any); `slow(node, dy, saved or None)` does else.
    `has_result`: behind what is saved comes the `result` that the node has, if its version is the node's `version`; it
    goes where the graph is not kept.
    """
    saved, needed = _NAMES
    enabled, count = torch.is_grad_enabled, torch.get_num_threads
    objects: dict[str, Any] = {
        "slow": slow, "run": run, "check": check, "saved": saved, "needed": needed, "needs": needs, "enabled": enabled,
        "threads": threads, "count": count, "observers": observers, "apart": threads_apart, "none": None, "true": True,
        "false": False, "result": KEPT_RESULT if has_result else None, "version": KEPT_VERSION, "versions": VERSIONS,
        "retained": is_graph_kept,
    }  # fmt: skip
    call = method("gradients", objects, {"kept": kept})
    make = ctypes.pythonapi.PyInstanceMethod_New  # which binds to a node, as functions in Python do
    make.argtypes, make.restype = (ctypes.py_object,), ctypes.py_object
    return make(call)
