"""Prepared launches on tensors as functions of CPython's that are generated code: results are allocated there, too.

A call that was made before is prepared for tensors of one form: what allocates its results, and a plan that takes
addresses (launch.py). In Python that is a call for each of these, a tuple of addresses, and the ways to the settings,
to the stream and through `ctypes`, as long as PyTorch takes for all of an activation. Generated code does the same:
`run(*inputs, ...)`, where what comes behind the inputs is not looked at, and gives the result, or all of them. Whatever
is otherwise than when it was made (settings, another stream than the default one, memory that no tensor map can name,
another GPU than the current one, another thread in the same launch, what the driver refuses) is called in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitdnn.devices import threads
from jitdnn.devices.cuda_driver import launch_address
from jitdnn.devices.cuda_kernel import WORKSPACE, FrozenPart
from jitdnn.devices.launch_list import LaunchList
from jitdnn.frameworks.torch.fresh import QUICK, fresh
from jitdnn.frameworks.torch.native_code import kernel_record, method
from jitdnn.frameworks.torch.native_convolution import stream_in_force
from jitdnn.recorders import recorders
from jitdnn.settings import IN_FORCE, current

_ON_GPU, _ON_CPU = 1, 0
_ARGUMENTS = 3
MOST_WORKSPACE = 1 << 20
"""Bytes: with more the kernels take longer than the host. PyTorch's allocator has them for the time of a call."""

#: the number of PyTorch's current GPU; where it cannot be asked, that of none
_current_gpu: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


class Place(NamedTuple):
    """Where an address that a plan takes is: that of an operand, inputs and then results, and so many bytes behind."""

    operand: int
    offset: int = 0


class OnGpu(NamedTuple):
    """The kernels of a plan, where its addresses are, and how many bytes of workspace it needs."""

    parts: Sequence[FrozenPart]
    places: Sequence[Place]
    workspace: int


def on_gpu(
    kernels: Sequence[OnGpu], index: int, inputs: int, results: Sequence[Callable[[], Tensor] | None],
    slow: Callable[..., Any], is_one: bool = False,
) -> Callable[..., Any] | None:  # fmt: skip
    """What runs plans, one after the other, on a GPU of this number; None where one needs more workspace.

    `results` allocate; `slow` is the same in Python. It gives a tuple, or `is_one` result alone. PyTorch allocates the
    plans' workspaces, each in the order of the stream as the results.
    """
    made, records, kept = [*results], list[int](), list[object]()
    is_alone = True
    for kernel in kernels:
        if kernel.workspace > MOST_WORKSPACE:
            return None
        space = inputs + len(made)  # workspace is one more operand
        if kernel.workspace:
            made.append(fresh((kernel.workspace,), (1,), torch.uint8, torch.device("cuda", index)))
        for part in kernel.parts:
            is_alone = is_alone and part.frozen.is_alone
            placed = _places(part, kernel.places, space if kernel.workspace else None)
            record, own = kernel_record(placed, part.frozen)
            records.append(record)
            kept.append(own)
    # which allocate on the current GPU: it is this one, or the call goes the long way
    made = [one and getattr(one, QUICK, one) for one in made]
    objects = {"index": index, **({} if is_alone else {"device": _current_gpu})}
    numbers = {"is_gpu": _ON_GPU, "driver": launch_address()}
    return _made(objects, numbers, kept, inputs, made, len(results), records, slow, is_one)


def _places(part: FrozenPart, places: Sequence[Place], space: int | None) -> list[Place]:
    """Where a kernel's addresses are, with those of its plan at these places. `space`: the operand that is
    workspace."""
    every = []
    for operand, offset in part.places:
        if operand == WORKSPACE:
            assert space is not None
            place = Place(space)
        else:
            place = places[operand]
        every.append(Place(place.operand, place.offset + offset))
    placed = [every[number] for number in part.frozen.order]
    if space is not None:  # its address is the one behind those of the operands
        placed.append(Place(space, part.workspace))
    return placed


def on_cpu(
    launches: LaunchList, inputs: int, results: Sequence[Callable[[], Tensor] | None], places: Sequence[Place],
    slow: Callable[..., Any], is_one: bool = False,
) -> Callable[..., Any] | None:  # fmt: skip
    """The same of a list of launches on a processor, whose memory is that of the addresses; None for those on several
    threads or with more workspace, and where each run is logged."""
    if launches.threads > 1 or launches.scratch > MOST_WORKSPACE or current().log == "debug":
        return None
    placed, made = [*places], [*results]
    if launches.scratch:
        placed.append(Place(inputs + len(made)))
        made.append(fresh((launches.scratch,), (1,), torch.uint8, torch.device("cpu")))
    replay, control, owner = threads.replayer(1)
    state = launches.new_state()
    record, own = kernel_record(placed)
    numbers = {"is_gpu": _ON_CPU, "driver": replay, "control": control, "state": state.address}
    kept = (owner, state, launches, own)
    return _made({}, numbers, kept, inputs, made, len(results), [record], slow, is_one)


def _made(
    objects: Mapping[str, Any], numbers: Mapping[str, int], kept: object, inputs: int,
    results: Sequence[Callable[[], Tensor] | None], returned: int, kernels: Sequence[int], slow: Callable[..., Any],
    is_one: bool,
) -> Callable[..., Any]:  # fmt: skip
    makers: list[Any] = []
    for make in results:  # with the three arguments of PyTorch's own function, or with none
        if isinstance(make, partial) and len(make.args) == _ARGUMENTS and not make.keywords:
            makers += [make.func, *make.args]
        else:
            makers += [make, None, None, None]
    every = (ctypes.py_object * max(1, len(makers)))(*makers)
    each = (ctypes.c_uint64 * len(kernels))(*kernels)
    override, defaults, name = IN_FORCE
    objects = {
        **objects, "slow": slow, "data_ptr": Tensor.data_ptr, "recorders": recorders, "override": override,
        "defaults": defaults, "default_name": name, "settings": current(), "stream": stream_in_force(), "none": None,
    }  # fmt: skip
    numbers = {
        **numbers, "inputs": inputs, "results": len(results), "returned": returned, "is_one": int(is_one),
        "makers": ctypes.addressof(every), "kernels": len(kernels), "kernel": ctypes.addressof(each),
    }  # fmt: skip
    return method("run", objects, numbers, (every, each, kept))
