"""Runs the calls of `parameter_cases` with every operand and output in other orders in memory, beside forbidden pages.

Its arguments are names of calls, its standard output says which one runs: a crash tells whose it was. In turn `t` the
operand of number `i` has an arrangement of the kind `i + t`: after all turns each has had every kind, and neighbours
have had different ones. Dtypes and the side of the page change with the turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guarded_memory import AnyArray, GuardedArray, nonsense
from jitdnn.tensor import packed_strides
from parameter_cases import CASES, Call


def _times(factor: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    return lambda shape: tuple(factor * step for step in packed_strides(shape))


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    rank = len(shape)
    return packed_strides(shape, (0, *range(2, rank), 1)) if rank > 2 else _times(1)(shape)


def _repeated(shape: Sequence[int]) -> tuple[int, ...]:
    """One element for the whole first axis, as `np.broadcast_to` makes it."""
    return (0, *packed_strides(shape)[1:])


# by turns; of each pair operands take one or the other, so that neighbours differ
ARRANGEMENTS = (
    (_channels_last, _repeated),
    (_times(3), _times(2)),
    (_times(-1), _times(-2)),
)
TURNS = len(ARRANGEMENTS)
BOUNDS = {"float64": 1e-11, "float32": 2e-5, "float16": 1e-2}


def _given(call: Call, dtype: str, arrangements: Sequence[Any]) -> dict[str, AnyArray]:
    """The operands' values: those that a stride of 0 repeats are the same along the first axis."""
    rng = np.random.default_rng(0)
    real = {name: torch.from_numpy(rng.standard_normal(shape)) for name, shape in call.shapes.items()}
    integers = {name: array.copy() for name, array in call.integers.items()}
    for values, arrangement in zip((real | integers).values(), arrangements, strict=False):
        if arrangement is _repeated:
            values[...] = values[:1] if isinstance(values, torch.Tensor) else values[:1].copy()
    everything: dict[str, Any] = real | {name: torch.from_numpy(a) for name, a in integers.items()}
    call.prepare(everything)
    result = {}
    for name, tensor in everything.items():
        is_wide = name in call.wide and dtype == "float16"
        result[name] = (
            tensor.numpy().astype("float32" if is_wide else dtype) if name in real else integers[name]
        )
    return result


def _truth(call: Call, given: dict[str, AnyArray]) -> list[AnyArray]:
    tensors = {
        name: torch.from_numpy(a.astype("float64") if name in call.shapes else a) for name, a in given.items()
    }
    return [result.detach().numpy() for result in call.expected(**tensors)]


def _arrangement(number: int, turn: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    kind, cycle = (number + turn) % TURNS, number // TURNS
    return ARRANGEMENTS[kind][(number + cycle) % 2 if kind else number % 2]


def _chosen(call: Call, turn: int) -> list[Callable[[Sequence[int]], tuple[int, ...]]]:
    """The arrangement of each operand."""
    names = [*call.shapes, *call.integers]
    chosen = [_arrangement(number, turn) for number in range(len(names))]
    shared = {*call.states, *call.unlike}
    return [
        _times(4) if c is _repeated and name in shared else c for name, c in zip(names, chosen, strict=True)
    ]


def check(call: Call, turn: int) -> None:
    """One turn of a call."""
    dtype = call.dtypes[turn % len(call.dtypes)]
    at_end = turn % 2 == 0
    chosen = _chosen(call, turn)
    given = _given(call, dtype, chosen)
    truth = _truth(call, given)
    placed = {
        name: GuardedArray(values, arrangement(values.shape), at_end)
        for (name, values), arrangement in zip(given.items(), chosen, strict=True)
    }
    outs = []
    for number, result in enumerate(truth[: len(truth) - len(call.states)]):
        kind = np.dtype("float32" if number in call.wide and dtype == "float16" else dtype)
        arrangement = _arrangement(number, turn)
        arrangement = _times(5) if arrangement is _repeated else arrangement
        outs.append(
            GuardedArray(np.full(result.shape, nonsense(kind), kind), arrangement(result.shape), at_end)
        )
    views = tuple(out.values for out in outs)
    call.run(out=views if len(views) > 1 else views[0], **{name: a.values for name, a in placed.items()})
    found = [*outs, *(placed[name] for name in call.states)]
    for name, array in placed.items():
        assert array.is_unchanged(gaps_only=name in call.states), f"{name} was written to"
    for number, (array, expected) in enumerate(zip(found, truth, strict=True)):
        assert array.is_unchanged(gaps_only=True), f"wrote between the elements of result {number}"
        got = array.values.astype("float64")
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(
            got, expected, rtol=0.0, atol=BOUNDS[dtype] * scale, err_msg=f"result {number}"
        )


def main() -> None:
    wrong = []
    for call in CASES:
        if call.name not in sys.argv[1:]:
            continue
        for turn in range(TURNS):
            chosen = [f(shape) for f, shape in zip(_chosen(call, turn), _shapes(call), strict=True)]
            sys.stdout.write(f"{call.name}, turn {turn}: strides {chosen}\n")
            sys.stdout.flush()
            try:
                check(call, turn)
            except AssertionError as error:
                wrong.append(f"{call.name}, turn {turn}, strides {chosen}: {error}")
    sys.exit("\n".join(wrong) or 0)


def _shapes(call: Call) -> list[tuple[int, ...]]:
    return [*call.shapes.values(), *(array.shape for array in call.integers.values())]


if __name__ == "__main__":
    main()
