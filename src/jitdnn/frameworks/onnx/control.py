"""Operators that run graphs: If, Loop and Scan. A body is a function of its inputs that gives its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    directions: Sequence[int] | None = None,
    site: Site,
) -> tuple[Any, ...]:
    """`body(*state, *elements)` gives the next state and elements to be stacked."""
    if site.version < 9:
        return _scan_of_version_8(values, body, num_scan_inputs, directions, site)
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


def _scan_of_version_8(
    values: tuple[Any, ...], body: Body, inputs: int, directions: Sequence[int] | None, site: Site
) -> tuple[Any, ...]:
    """The first axis is the batch, each element of which is scanned alone, over as many steps as the first operand
    says; outputs are filled up with zeros behind these."""
    lengths, *rest = values
    kept = len(rest) - inputs
    if not rest or not len(rest[0]):
        raise site.refuse("a scan over no elements has no shape for its outputs")
    steps = max((array.shape[1] for array in rest[kept:]), default=0)
    found = []
    for number in range(len(rest[0])):
        length = steps if lengths is None else int(lengths[number])
        scanned = [array[number, :length] for array in rest[kept:]]
        one = scan(
            *(array[number] for array in rest[:kept]), *scanned, body=body, num_scan_inputs=inputs,
            scan_input_directions=directions, site=replace(site, version=9),
        )  # fmt: skip
        missing = steps - length
        found.append(
            (*one[:kept], *(np.pad(y, [(0, missing)] + [(0, 0)] * (y.ndim - 1)) for y in one[kept:]))
        )
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


OPERATORS = table(If=if_, Loop=loop, Scan=scan)
