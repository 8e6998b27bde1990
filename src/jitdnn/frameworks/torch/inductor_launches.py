"""Inductor's own kernels in the code of a graph that calls ours, launched by a shorter way.

Where a step waits for the host, most of what the host does are launches of Triton's kernels. Up to PyTorch 2.12 each
goes through what compiles, tunes, traces and profiles kernels, and works out its grid and the types of its arguments
anew. Where a graph's sizes are fixed all that is known once a kernel was launched: while nothing but its tensors has
changed, PyTorch's launcher in C++ is called with it at once. All this is private to PyTorch: a kernel of which
something is not as expected is launched as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

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

    __slots__ = ("_kernel", "run")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.run: Callable[..., Any] = self._first

    def _first(self, *args: Any, stream: int, **named: Any) -> Any:
        result = self._kernel.run(*args, stream=stream, **named)
        short = None if named else _short(self._kernel, args)
        self.run = self._kernel.run if short is None else short
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def _short(kernel: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """A kernel's launch with the numbers that it has just had, other tensors in front of them; None if it has none."""
    try:
        (launcher,) = kernel.launchers
        static = launcher.__globals__["runner"].__self__
        function, warps, shared, types = static.function, static.num_warps, static.shared, static.arg_tys
        launch = torch._C._StaticCudaLauncher._launch_kernel
        # addresses of memory that nothing uses
        scratch = bool(static.has_global_scratch) + bool(getattr(static, "has_profile_scratch", False))
        is_tuned = getattr(launcher.config, "found_by_coordesc", False) or not kernel.inductor_meta.get(
            "coordinate_descent_tuning", False
        )
        is_watched = launcher.store_cubin or any(
            getattr(kernel, what, False) for what in ("dump_launch_params", "triton_interpret")
        )
    except (ValueError, KeyError, AttributeError):
        return None
    count = sum(isinstance(one, Tensor) for one in args)
    given = _given(launcher, args)
    if function is None or not is_tuned or is_watched or given is None or len(given[1]) != len(types):
        return None
    (x, y, z), passed = given
    numbers, tail = args[count:], (*passed[count:], *(None,) * scratch)
    if any(one is not other for one, other in zip(args[:count], passed, strict=False)):
        return None
    if not all(isinstance(one, (int, float)) for one in (*numbers, *passed[count:])):
        return None
    types, slow = types + "O" * scratch, kernel.run

    def run(*args: Any, stream: int, **named: Any) -> Any:
        if args[count:] != numbers or named or profiler._is_profiler_enabled:
            return slow(*args, stream=stream, **named)
        launch(function, x, y, z, warps, shared, types, args[:count] + tail, stream)
        return None

    return run


def _given(launcher: Any, args: tuple[Any, ...]) -> tuple[tuple[int, int, int], tuple[Any, ...]] | None:
    """The grid and the arguments that a launcher gives the kernel, which is not launched."""
    noted: list[Any] = []
    names = {**launcher.__globals__, "runner": lambda *given: noted.append(given)}
    FunctionType(launcher.__code__, names, launcher.__name__, launcher.__defaults__, launcher.__closure__)(
        *args, stream=0
    )
    if len(noted) != 1 or len(noted[0]) < 4:
        return None
    x, y, z, _, *passed = noted[0]
    return (x, y, z), tuple(passed)
