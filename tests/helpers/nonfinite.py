"""Where a NaN or an infinity may arrive: which results of a convolution read which elements, and who spreads them.

The oracle goes over the taps with index arrays and booleans, without any arithmetic of a convolution. `read_by` marks
the results that pair a marked element with an element of the other operand; `met_by` adds those that pair it with
padding, of which nothing is promised: 0 times infinity is NaN, and some algorithms leave such products out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cases import AnyArray, Buffer, make_case
from jitdnn.problems import Convolution

VALUES = (np.nan, np.inf, -np.inf)

Tap = tuple[tuple[int, ...], list[tuple[AnyArray, AnyArray]]]
Indices = tuple[AnyArray, ...]


@functools.lru_cache(maxsize=4)
def _taps(problem: Convolution) -> list[Tap]:
    """Each tap's place in w, and on each axis the positions of y and of x that it pairs; taps on padding alone are left
    out."""
    found = []
    for place in itertools.product(*map(range, problem.filter_spatial)):
        axes = []
        for axis, number in enumerate(place):
            flipped = problem.filter_spatial[axis] - 1 - number
            tap = flipped if problem.mode == "convolution" else number
            o = np.arange(problem.output_spatial[axis])
            i = o * problem.stride[axis] - problem.padding[axis][0] + tap * problem.dilation[axis]
            inside = (i >= 0) & (i < problem.spatial[axis])
            axes.append((o[inside], i[inside]))
        if all(len(o) for o, _ in axes):
            found.append((place, axes))
    return found


@functools.lru_cache(maxsize=4)  # one problem is asked about hundreds of times
def _pairs(problem: Convolution) -> list[tuple[Indices, Indices, Indices]]:
    """Of each tap and group: its elements in w, those of y and those of x that it pairs."""
    found = []
    k, c = problem.k // problem.groups, problem.c // problem.groups
    for (place, axes), g in itertools.product(_taps(problem), range(problem.groups)):
        ks, cs = range(g * k, g * k + k), range(g * c, g * c + c)
        tap = np.ix_(ks, range(c), *([t] for t in place))
        in_y = np.ix_(range(problem.n), ks, *(o for o, _ in axes))
        in_x = np.ix_(range(problem.n), cs, *(i for _, i in axes))
        found.append((tap, in_y, in_x))
    return found


def read_by(problem: Convolution, first: AnyArray, second: AnyArray) -> AnyArray:
    """The results, as booleans, that read one of the elements marked in the two inputs."""
    result, ones = np.zeros(problem.output.shape, bool), (1,) * len(problem.spatial)
    k, c = problem.k // problem.groups, problem.c // problem.groups
    rest = (0, *range(2, 2 + len(ones)))
    for tap, in_y, in_x in _pairs(problem):
        if problem.direction == "fwd":
            of_w = second[tap].any(axis=1).reshape(1, k, *ones)
            result[in_y] |= first[in_x].any(axis=1, keepdims=True) | of_w
        elif problem.direction == "bwd_data":
            of_w = second[tap].any(axis=0).reshape(1, c, *ones)
            result[in_x] |= first[in_y].any(axis=1, keepdims=True) | of_w
        else:
            of_x, of_dy = first[in_x].any(axis=rest), second[in_y].any(axis=rest)
            result[tap] |= (of_x[None, :] | of_dy[:, None]).reshape(k, c, *ones)
    return result


def met_by(problem: Convolution, first: AnyArray, second: AnyArray) -> AnyArray:
    """Those, and the results that pair an element marked in the second input with padding."""
    result, ones = read_by(problem, first, second), (1,) * len(problem.spatial)
    space = tuple(range(2, 2 + len(ones)))
    if problem.direction == "fwd":
        result |= second.any(axis=(1, *space)).reshape(1, -1, *ones)
    elif problem.direction == "bwd_data":
        of_w = second.any(axis=space).reshape(problem.groups, -1, second.shape[1]).any(axis=1)
        result |= of_w.reshape(1, -1, *ones)
    else:
        result |= second.any(axis=(0, *space)).reshape(-1, 1, *ones)
    return result


def unread(problem: Convolution) -> AnyArray:
    """The elements of the first input, as booleans, that no result reads."""
    mask = np.ones(problem.inputs[0].descriptor.shape, bool)
    side = 0 if problem.direction == "bwd_data" else 1
    for _, axes in _taps(problem):
        mask[np.ix_(*map(range, mask.shape[:2]), *(pair[side] for pair in axes))] = False
    return mask


Run = Callable[[list[Buffer], Buffer], None]


@functools.lru_cache(maxsize=2)  # the algorithms of a problem are asked one after another
def _trials(problem: Convolution, count: int, seed: int) -> list[tuple[int, AnyArray, AnyArray, AnyArray]]:
    """Which input, its elements that are marked, the results that read them, and those that may meet them."""
    rng = np.random.default_rng(seed)
    shapes = [operand.descriptor.shape for operand in problem.inputs]
    marked = [(0, unread(problem))]
    for number, shape in enumerate(shapes):
        size = math.prod(shape)
        for flat in {0, size - 1, *rng.choice(size, min(count, size), replace=False)}:
            marked.append((number, np.arange(size).reshape(shape) == flat))
    trials = []
    for number, mask in marked:
        marks = [mask if i == number else np.zeros(shape, bool) for i, shape in enumerate(shapes)]
        trials.append((number, mask, read_by(problem, *marks), met_by(problem, *marks)))
    return trials


def spread_of(problem: Convolution, run: Run, count: int = 8, seed: int = 0) -> bool:
    """Whether what is not finite reaches results that do not read it, tried at ``count`` places of each input.

    ``run`` fills the output from the inputs. Raises AssertionError if it does not reach a result that reads it.
    """
    case, output = make_case(problem), Buffer(problem.output)
    clean = [buffer.values.copy() for buffer in case.inputs]
    is_spread = False
    for trial, (number, mask, read, met) in enumerate(_trials(problem, count, seed)):
        case.inputs[number].values[mask] = VALUES[trial % len(VALUES)]
        output.values[...] = 1.0
        run(case.inputs, output)
        case.inputs[number].values[...] = clean[number]
        found = ~np.isfinite(output.values.astype(np.float64))
        assert found[read].all(), "something that is not finite is lost"
        is_spread |= bool((found & ~met).any())
    return is_spread


def runner(kernel: Any, room: int) -> Run:
    """To run a kernel of the processor."""
    memory = np.zeros(room + 64, np.uint8)
    workspace = memory.ctypes.data + -memory.ctypes.data % 64 if room else 0

    def run(inputs: list[Buffer], output: Buffer) -> None:
        memory.fill(0xFF)
        kernel(None, [buffer.pointer for buffer in (*inputs, output)], 1.0, 0.0, workspace)

    return run
