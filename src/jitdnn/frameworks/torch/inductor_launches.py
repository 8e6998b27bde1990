"""Inductor's own kernels in the code of a graph that calls ours, launched by a shorter way.

Where a step waits for the host, most of what the host does are launches of Triton's kernels. Up to PyTorch 2.12 each
goes through what compiles, tunes, traces and profiles kernels, works out its grid and the types of its arguments anew,
and asks the driver about every address. Where a graph's sizes are fixed all that is known once a kernel was launched:
while nothing but its tensors has changed, generated code calls the driver with it at once. All this is private to
PyTorch: a kernel of which something is not as expected is launched as before.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from torch import Tensor

from jitdnn.devices.cuda_driver import LaunchConfig, launch_address
from jitdnn.frameworks.torch.native_launch import Prepared

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
#: global names of a graph's code, if it is code that calls
Names = dict[str, Any] | None
#: among the names of code that has been seen
SEEN = "jitdnn_has_seen"


def shorten(names: dict[str, Any]) -> None:
    """Have the kernels among the global names of a graph's code launched so."""
    names[SEEN] = True
    own = getattr(sys.modules.get(_HEURISTICS), "CachingAutotuner", None)
    if own is None or hasattr(own, "_build_fast_launcher"):  # later versions have a short way of their own
        return
    for name, one in list(names.items()):
        if type(one) is own:
            names[name] = _Kernel(one)


class _Kernel:
    """In the place of a kernel of Triton's: its first launch is Inductor's own, which also tunes it."""

    __slots__ = ("_kernel", "_short", "run")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._short: Prepared | None = None
        self.run: Callable[..., Any] = self._first

    def _first(self, *args: Any, stream: int, **named: Any) -> Any:
        result = self._kernel.run(*args, stream=stream, **named)
        self._short = None if named else _short(self._kernel, args)
        self.run = self._kernel.run if self._short is None else self._short.call
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def _short(kernel: Any, args: tuple[Any, ...]) -> Prepared | None:
    """A kernel's launch with the numbers that it has just had, other tensors in front of them; None if it has none."""
    try:
        (found,) = kernel.launchers
        static = found.__globals__["runner"].__self__
        function, types = static.function, static.arg_tys
        # addresses of memory that nothing uses
        scratch = bool(static.has_global_scratch) + bool(getattr(static, "has_profile_scratch", False))
        is_tuned = getattr(found.config, "found_by_coordesc", False) or not kernel.inductor_meta.get(
            "coordinate_descent_tuning", False
        )
        is_watched = found.store_cubin or any(
            getattr(kernel, what, False) for what in ("dump_launch_params", "triton_interpret")
        )
        grid, passed = _given(found, args)
        count = sum(isinstance(one, Tensor) for one in args)
        packed = _packed(types[count:], passed[count:]) + bytes(8 * scratch)
    except (ValueError, KeyError, AttributeError, struct.error):
        return None
    if not function or not is_tuned or is_watched or types[:count] != "O" * count:
        return None
    if not all(one is other and one.is_cuda for one, other in zip(args[:count], passed, strict=False)):
        return None
    config = bytes(LaunchConfig(*grid, 32 * static.num_warps, 1, 1, static.shared))
    return Prepared(kernel.run, count, args[count:], function, config, packed, launch_address())


#: of Triton's types as PyTorch's launcher abbreviates them, those of `struct`
_FORMATS = {
    "i": "i",
    "l": "q",
    "b": "b",
    "h": "h",
    "B": "B",
    "H": "H",
    "I": "I",
    "K": "Q",
    "f": "f",
    "d": "d",
}


def _packed(types: str, numbers: Sequence[Any]) -> bytes:
    """Numbers as a kernel takes them, 8 bytes each. Raises ValueError and KeyError for what is none."""
    each = (struct.pack(_FORMATS[one], number) for one, number in zip(types, numbers, strict=True))
    return b"".join(one.ljust(8, b"\0") for one in each)


def _given(found: Any, args: tuple[Any, ...]) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    """The grid and the arguments that a launcher gives the kernel, which is not launched. Raises ValueError."""
    noted: list[Any] = []
    names = {**found.__globals__, "runner": lambda *given: noted.append(given)}
    FunctionType(found.__code__, names, found.__name__, found.__defaults__, found.__closure__)(
        *args, stream=0
    )
    ((x, y, z, _, *passed),) = noted
    return (x, y, z), tuple(passed)
