"""Calls that a module has made before as generated code: what tells that a call is one of these, and the forward pass
of its node of autograd.

In Python that is a call for each of the two, for what is in force, for the look-up and for what is saved: a third of
what PyTorch takes for all of an activation. Generated code asks the same, one after the other, and takes the way in
Python (operator_calls.py) where any answer is another one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from jitdnn.frameworks.torch import kinds
from jitdnn.frameworks.torch.kinds import observers, threads_apart
from jitdnn.frameworks.torch.native_code import method
from jitdnn.frameworks.torch.native_gradients import KEPT_RESULT, KEPT_VERSION, VERSIONS
from jitdnn.frameworks.torch.registry import hooks_of_saved

_CONSTANT = (torch.memory_format,)
"""Classes of attributes of a node that are the same in all calls of one form."""
_WEIGHT, _BIAS = "weight", "bias"


class Saves(NamedTuple):
    """What the forward pass of a node keeps: operands by their numbers, results, from the first on, by -1, -2 ...;
    attributes besides; whether the results are a tuple; and whether changes of the result are watched: by a
    tensor that counts them with it, where nobody has hooks of what is saved (native_gradients.py)."""

    places: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]
    is_tuple: bool
    is_watched: bool = False


class _Noting:
    """In the place of a node, what is kept."""

    saved: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved = tensors


def saves_of(
    keep: Callable[..., None], operands: Sequence[Any], result: Any, arguments: Any, is_watched: bool = False
) -> Saves | None:
    """What `keep(node, x, result, arguments, *parameters)` keeps; None where that is more than tensors of these and
    attributes that are always the same. `is_watched`: as of `Saves`."""
    node = _Noting()
    x, *parameters = operands
    try:
        keep(node, x, result, arguments, *parameters)
    except AttributeError:  # it asks the node for more
        return None
    noted = {name: value for name, value in vars(node).items() if name != "saved"}
    if is_watched and None in (noted.pop(KEPT_RESULT, None), noted.pop(KEPT_VERSION, None)):
        return None  # hooks saw it
    if any(type(value) not in _CONSTANT for value in noted.values()):
        return None
    is_tuple = type(result) is tuple
    results = result if is_tuple else (result,)
    every = [*enumerate(operands), *((-1 - number, one) for number, one in enumerate(results))]
    places = []
    for one in node.saved:
        place = next((number for number, other in every if other is one), None)
        if place is None:
            return None
        places.append(place)
    return Saves(tuple(places), tuple(noted.items()), is_tuple, is_watched)


def forward(
    slow: Callable[..., Any],
    kernel: Callable[..., Any],
    operands: int,
    arguments: Sequence[Any],
    saves: Saves,
) -> Callable[..., Any]:
    """The forward pass of nodes: `kernel(*operands, *arguments)`, of whose results the first is given and what `saves`
    says is kept; `slow(node, *operands)` is the same in Python."""
    behind = (ctypes.py_object * max(1, len(arguments)))(*arguments)
    places = (ctypes.c_int64 * max(1, len(saves.places)))(*saves.places)
    pairs: list[Any] = [one for pair in saves.attributes for one in pair]
    names = (ctypes.py_object * max(1, len(pairs)))(*pairs)
    numbers = {
        "operands": operands, "behind": len(arguments), "arguments": ctypes.addressof(behind),
        "is_tuple": int(saves.is_tuple), "saved": len(saves.places), "saves": ctypes.addressof(places),
        "attributes": len(saves.attributes), "names": ctypes.addressof(names),
    }  # fmt: skip
    objects: dict[str, Any] = {"slow": slow, "kernel": kernel, "to_save": "to_save"}
    if saves.is_watched:
        objects |= {
            "hooks": partial(hooks_of_saved, False), "none": None, "detach": Tensor.detach, "result": KEPT_RESULT,
            "version": KEPT_VERSION, "versions": VERSIONS,
        }  # fmt: skip
    return method("forward", objects, numbers, (behind, places, names))


def recalled(
    slow: Callable[..., Any], apply: Callable[..., Any], takes: int, check: Callable[..., bool],
    state: tuple[Any, ...], modes: Callable[[], int], tell: Callable[[Any], Any],
) -> Callable[[Any, Any], Any]:  # fmt: skip
    """`found(module, x)`: `apply` of x, and of the module's weight and bias where it `takes` 2 or 3 operands, where the
    call is one in whose `state` (operator_calls.py) and on whose tensors it was made, by `check`; else what `slow` of
    the two gives. `tell(module)` gives the end of the state."""
    is_enabled, threads, level, epoch, options, no_weight, no_bias, own, _, told = state
    objects: dict[str, Any] = {
        "slow": slow, "tensor": Tensor, "parameter": Parameter, "observers": observers, "apart": threads_apart,
        "modes": modes, "zero": 0, "nested": "is_nested", "false": False, "enabled": torch.is_grad_enabled,
        "is_enabled": is_enabled, "count": torch.get_num_threads, "threads": threads, "levels": vars(forward_ad),
        "level_name": "_current_level", "level": level, "epochs": vars(kinds), "epoch_name": "epoch", "epoch": epoch,
        "dict_name": "__dict__", "options_name": "_jitdnn_options", "options": options, "own_name": "_parameters",
        "weight_name": _WEIGHT, "bias_name": _BIAS, "tell": tell, "told": told, "check": check, "true": True,
        "apply": apply, "none": None,
    }  # fmt: skip
    numbers = {
        "own_count": own, "weight": int(not no_weight), "bias": int(not no_bias), "takes": takes,
    }  # fmt: skip
    return method("recalled", objects, numbers)
