"""Tuning parameters of kernels of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jitdnn.arguments import flag, real_number, sequence, shown, text
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle, settled_handle
from jitdnn.planner.autotune import Build, Tuned
from jitdnn.planner.autotune import autotune as search

_MOST_VALUES = 1 << 20
_MOST_CHARACTERS = 1 << 16


def autotune(
    build: Build,
    space: Mapping[str, Sequence[Any]],
    key: str,
    seconds: float = 1.0,
    is_fresh: bool = False,
    handle: Handle | None = None,
) -> Tuned:
    """Find the fastest configuration of a kernel in a space of parameters, within about `seconds`.

    `build(**config)` makes a function without arguments that runs the kernel once; it raises one of this package's
    errors for a configuration that cannot be. `space` gives the values of each parameter. All combinations are built,
    run and measured against each other in rounds, in random order until the time is over; at least one is.

    Times are kept in the tuning store under `key` and the device: the next process gets the answer without measuring,
    unless `is_fresh`. The key must name everything that the times depend on, sizes and types above all.

    Returns what was found, with `config`, `seconds` and `explain()`. Raises InvalidArgument for an empty space,
    NotSupported, with all reasons, if nothing can be built.
    """
    handle = settled_handle(handle)
    if not callable(build):
        raise InvalidArgument(f"build is {shown(build)}: it must be a function of the parameters")
    if not isinstance(space, Mapping):
        raise InvalidArgument(
            f"space is {shown(space)}: it must have the values of each parameter, by its name"
        )
    values = {text(name, "a parameter"): sequence(each, name, _MOST_VALUES) for name, each in space.items()}
    if math.prod(map(len, values.values())) > _MOST_VALUES:
        raise InvalidArgument(f"space has more than {_MOST_VALUES} configurations: give fewer values")
    seconds = real_number(seconds, "seconds", 0.0)
    return search(
        build,
        values,
        text(key, "key", _MOST_CHARACTERS),
        handle.device,
        seconds,
        is_fresh=flag(is_fresh, "is_fresh"),
    )
