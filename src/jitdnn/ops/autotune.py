"""Tuning parameters of kernels of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitdnn.handle import Handle, current_handle
from jitdnn.planner.autotune import Build, Tuned
from jitdnn.planner.autotune import autotune as search


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
    handle = handle or current_handle()
    return search(build, space, key, handle.device, seconds, is_fresh=is_fresh)
