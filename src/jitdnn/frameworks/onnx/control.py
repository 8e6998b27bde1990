"""Operators that run graphs: If, Loop and Scan. A body is a function of its inputs that gives its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Site, table

Body = Callable[..., tuple[Any, ...]]


def if_(condition: Any, /, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    return then_branch() if np.asarray(condition).item() else else_branch()


def loop(limit: Any, condition: Any, /, *carried: Any, body: Body, site: Site) -> tuple[Any, ...]:
    """`body(iteration, condition, *carried)` gives the next condition, the carried values, and elements to
    be stacked."""
    most = None if limit is None else int(np.asarray(limit).item())
    goes_on = condition is None or bool(np.asarray(condition).item())
    state = list(carried)
    stacks: list[list[Any]] = [[] for _ in range(len(site.wanted) - len(state))]
    count = 0
    while goes_on and (most is None or count < most):
        results = body(np.array(count, np.int64), np.array(goes_on), *state)
        goes_on = bool(np.asarray(results[0]).item())
        state = list(results[1 : 1 + len(carried)])
        for stack, element in zip(stacks, results[1 + len(carried) :], strict=True):
            stack.append(element)
        count += 1
    if stacks and not count:
        raise site.refuse("a loop that runs not once and stacks outputs has no shape for them")
    return (*state, *(np.stack(stack) for stack in stacks))


def scan(
    *values: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    site: Site,
) -> tuple[Any, ...]:
    """`body(*state, *elements)` gives the next state and elements to be stacked."""
    if site.version < 9:
        raise site.refuse("the form of version 8, with a batch axis, is not covered")
    state = list(values[: len(values) - num_scan_inputs])
    kept = len(state)
    scanned = []
    for number, array in enumerate(values[kept:]):
        along = np.moveaxis(array, scan_input_axes[number] if scan_input_axes else 0, 0)
        backwards = scan_input_directions is not None and scan_input_directions[number]
        scanned.append(along[::-1] if backwards else along)
    stacks: list[list[Any]] = [[] for _ in range(len(site.wanted) - kept)]
    for elements in zip(*scanned, strict=True):
        results = body(*state, *(np.asarray(element) for element in elements))
        state = list(results[:kept])
        for stack, element in zip(stacks, results[kept:], strict=True):
            stack.append(element)
    outputs = []
    for number, stack in enumerate(stacks):
        if not stack:
            raise site.refuse("a scan over no elements has no shape for its stacked outputs")
        backwards = scan_output_directions is not None and scan_output_directions[number]
        axis = scan_output_axes[number] if scan_output_axes else 0
        outputs.append(np.stack(stack[::-1] if backwards else stack, axis))
    return (*state, *outputs)


OPERATORS = table(If=if_, Loop=loop, Scan=scan)
