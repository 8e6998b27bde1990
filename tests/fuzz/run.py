"""Runs one problem and says what is wrong with it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import jitdnn as jd
from fuzz.draw import BYTES, Draw, packed
from fuzz.nonsense import spoil
from fuzz.problem import OPERATIONS, Array, Expected, Family, Fault, Named, Operand, Problem, Result
from fuzz.targets import Target
from fuzz.values import numbers, numpy_dtype, stored, wrong

GROUP = 16  # problems that share a structure
_ALPHAS = (1.0, 1.0, 1.0, 1.0, 2.0, 0.5, -1.0, -0.5, 1.7, 0.0)
_BETAS = (0.0, 0.0, 0.0, 1.0, -0.5, 0.3, 2.0)


@dataclass
class Outcome:
    """`fault`: None if all is as it must be. `refused`: the library's exception for a problem that it did not take.
    `met`: kinds of code, in words, that ran."""

    problem: str
    fault: Fault | None = None
    refused: str | None = None
    nonsense: bool = False
    met: Sequence[str] = ()
    tapes: tuple[list[int], list[int]] = ((), ())  # type: ignore[assignment]


def attempt(
    seed: int,
    operation: str,
    number: int,
    target: Target,
    tapes: tuple[Sequence[int], Sequence[int]] | None = None,
    group: int = GROUP,
) -> Outcome:
    """Make and run a problem. `tapes`: choices to make in place of random ones, of the structure and of the rest."""
    structure = Draw(f"{seed}/{operation}/{number // group}", tapes and tapes[0])
    draw = Draw(f"{seed}/{operation}/{number}/one", tapes and tapes[1])
    problem = OPERATIONS[operation].make(structure)
    if not isinstance(problem, Problem):
        return _of_family(problem, structure, draw, target)
    rng = np.random.default_rng(zlib.crc32(f"{seed}/{operation}/{number}".encode()))
    outcome = Outcome(str(problem))
    try:
        _run(problem, structure, draw, rng, target, outcome)
    except Fault as fault:
        outcome.fault = fault
    outcome.tapes = structure.tape, draw.tape
    return outcome


def _of_family(family: Family, structure: Draw, draw: Draw, target: Target) -> Outcome:
    """A problem that checks itself."""
    unit = family.one(draw)
    outcome = Outcome(str(unit))
    try:
        outcome.met, outcome.refused = unit.check(target)
    except Fault as fault:
        outcome.fault = fault
    except Exception as error:
        outcome.fault = Fault("raw", f"{type(error).__name__}: {error}")
    outcome.tapes = structure.tape, draw.tape
    return outcome


def _run(
    problem: Problem, structure: Draw, draw: Draw, rng: np.random.Generator, target: Target, outcome: Outcome
) -> None:
    flavour = problem.flavours[0] if draw.chance(0.6) else draw.pick(problem.flavours)
    alpha, beta = (draw.pick(_ALPHAS), draw.pick(_BETAS)) if problem.scales else (1.0, 0.0)
    if flavour in ("special", "infinite") and alpha == 0.0:
        alpha = 1.0  # zero times infinity is for the library to say
    target.begin()
    arrays, given = _place_operands(problem, flavour, draw, rng, target)
    outs, dtypes = _place_outs(problem, structure, draw, rng, target, arrays, given, beta)
    if not outs or any(out is None and not r.saved for out, r in zip(outs, problem.results, strict=True)):
        beta = 0.0
    previous = [None if out is None else out.view().copy() for out in outs]
    args = [_filled(value, given) for value in problem.args]
    kwargs = {name: _filled(value, given) for name, value in problem.kwargs.items()}
    if problem.scales:
        kwargs |= {"alpha": alpha, "beta": beta}
    if any(out is not None for out in outs):
        handed = [None if out is None else target.wrap(out, draw) for out in outs]
        kwargs["out"] = handed[0] if len(outs) == 1 else tuple(handed)
    values: Named = {name: place.view().copy() for name, place in arrays.items()}
    spoiled = spoil(args, kwargs, draw) if draw.chance(0.06) else None
    if spoiled:
        outcome.problem += f" with {spoiled}"
    outcome.nonsense = bool(spoiled) or problem.nonsense
    into = [result.name for result, out in zip(problem.results, outs, strict=False) if out is not None]
    outcome.problem += f" [{flavour}, alpha {alpha}, beta {beta}, out {into}]"
    written_to = [out for out in outs if out is not None]
    places = {id(place): place for place in (*arrays.values(), *written_to)}
    for place in places.values():
        place.note()
    function = problem.call or getattr(jd, problem.function)
    try:
        with np.errstate(all="ignore"), target.active(problem.settings):
            target.send(list(places.values()))
            made = function(*args, **kwargs)
            target.finish(list(places.values()))
    except jd.JitdnnError as error:
        outcome.refused = f"{type(error).__name__}: {error}"
        if not str(error).strip():
            raise Fault("raw", f"{type(error).__name__} without a word") from error
        target.finish(list(places.values()))
        if not all(place.is_unchanged() for place in places.values()):
            raise Fault("outside", f"memory was changed by a call that raised {outcome.refused}") from error
        if not spoiled and not problem.nonsense and not isinstance(error, jd.NotSupported):
            raise Fault("wrong", f"refused: {outcome.refused}") from error
        return
    except Exception as error:
        raise Fault("raw", f"{type(error).__name__}: {error}") from error
    written = {id(out) for out in outs if out is not None}
    written |= {id(arrays[one.name]) for one in problem.operands() if one.state}
    for name, place in arrays.items():
        if id(place) not in written and not place.is_unchanged():
            raise Fault("outside", f"{name} is only read, and was changed")
    for key, place in places.items():
        if key in written and not place.is_kept_beside():
            raise Fault("outside", "wrote beside an output")
    if spoiled or problem.nonsense:
        return  # it made sense after all; what it means is not known here
    _judge(problem, values, made, arrays, outs, dtypes, previous, alpha, beta, target)


def _judge(
    problem: Problem, values: Named, made: Any, arrays: dict[str, Any], outs: Sequence[Any], dtypes: Sequence[str],
    previous: Sequence[Array | None], alpha: float, beta: float, target: Target,
) -> None:  # fmt: skip
    results = problem.results
    returned = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(returned) != len(results):
        raise Fault("wrong", f"{len(returned)} results, must be {len(results)}")
    actual = [
        target.fetch(got) if out is None else out.view() for got, out in zip(returned, outs or returned, strict=True)
    ] if outs else [target.fetch(got) for got in returned]  # fmt: skip
    for got, result, dtype in zip(actual, results, dtypes, strict=True):
        if got.dtype != numpy_dtype(dtype):
            raise Fault("wrong", f"{result.name} is {got.dtype}, must be {dtype}")
    seen = {name: wide(array) for name, array in values.items()}
    try:
        with np.errstate(all="ignore"):
            said = problem.judge(values, actual) if problem.judge is not None else None
            expected = list(problem.oracle(seen)) if problem.oracle is not None else []
    except Exception as error:
        raise Fault("oracle", f"{type(error).__name__}: {error}") from error
    if said:
        raise Fault("wrong", said)
    if problem.oracle is None:
        return
    if target.has_tensor_cores:
        expected = [replace(one, error=one.error + one.on_tensor_cores) for one in expected]
    states = [one for one in problem.operands() if one.state]
    checks: list[tuple[str, Array, Expected, str, float, float, Array | None]] = []
    for got, one, result, dtype, before in zip(
        actual, expected, results, dtypes, previous or [None] * len(actual), strict=False
    ):
        factors = (1.0, 0.0) if result.saved else (alpha, beta)
        checks.append((result.name, got, one, dtype, *factors, before))
    for state, one in zip(states, expected[len(results) :], strict=True):
        checks.append((state.name, arrays[state.name].view(), one, state.dtype, 1.0, 0.0, None))
    for name, got, one, dtype, a, b, before in checks:
        said = wrong(got, one, dtype, a, b, before)
        if said:
            raise Fault("wrong", f"{name}: {said}")


def wide(array: Array) -> Array:
    """An array in the type that oracles compute with: reals in float64, integers and truths as they are."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def _place_operands(
    problem: Problem, flavour: str, draw: Draw, rng: np.random.Generator, target: Target
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Memory for each operand with its numbers in it, and the objects that are handed over."""
    arrays: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for one in problem.operands():
        place = _place(one.shape, one.dtype, one.strides, draw, target)
        if one.derive is not None:
            with np.errstate(all="ignore"):
                made = one.derive({name: wide(other.view()).copy() for name, other in arrays.items()})
        elif one.values is not None:
            made = one.values(rng, one.shape, flavour)
        else:
            made = numbers(rng, one.shape, one.dtype, flavour)
        place.view()[...] = stored(np.asarray(made), one.dtype)
        arrays[one.name], given[one.name] = place, target.wrap(place, draw, is_input=not one.state)
    return arrays, given


def _place(
    shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None, draw: Draw, target: Target
) -> Any:
    itemsize = BYTES[dtype]
    steps = tuple(stride * itemsize for stride in (packed(shape) if strides is None else strides))
    return target.place(shape, steps, numpy_dtype(dtype), draw.pick((1.0, 0.0, 0.4137)))


def _place_outs(
    problem: Problem, structure: Draw, draw: Draw, rng: np.random.Generator, target: Target,
    arrays: dict[str, Any], given: dict[str, Any], beta: float,
) -> tuple[list[Any], list[str]]:  # fmt: skip
    """For each result the memory that is given as `out`, or None; and its type."""
    outs: list[Any] = []
    dtypes: list[str] = []
    gives = problem.takes_out and structure.chance(0.6)
    for result in problem.results:
        if not gives or (len(problem.results) > 1 and structure.chance(0.25)):
            outs.append(None)
            dtypes.append(result.dtype)
            continue
        if result.in_place is not None and structure.chance(0.25):
            place = arrays[result.in_place]
            own = next(one for one in problem.operands() if one.name == result.in_place)
            is_apart = own.strides is None or structure_is_apart(own)
            if is_apart and own.dtype == result.dtype and own.shape == result.shape:
                outs.append(place)
                dtypes.append(result.dtype)
                continue
        dtype = structure.pick((result.dtype, *result.dtypes))
        strides = structure.strides(result.shape, is_output=True, itemsize=BYTES[dtype])
        place = _place(result.shape, dtype, strides, draw, target)
        if beta != 0 and not result.saved:
            place.view()[...] = stored(numbers(rng, result.shape, dtype, "whole"), dtype)
        outs.append(place)
        dtypes.append(dtype)
    return (outs if gives else [None] * len(problem.results)), dtypes


def structure_is_apart(operand: Operand) -> bool:
    """Whether every element of an operand has a place of its own, as an output must."""
    assert operand.strides is not None
    reach = 0
    for stride, extent in sorted(
        (abs(s), n) for s, n in zip(operand.strides, operand.shape, strict=True) if n > 1
    ):
        if stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


def _filled(value: Any, given: dict[str, Any]) -> Any:
    """An argument with arrays in the place of operands."""
    if isinstance(value, Operand):
        return given[value.name]
    if isinstance(value, (list, tuple)) and any(isinstance(one, Operand) for one in value):
        return type(value)(_filled(one, given) for one in value)
    return value


__all__ = ["GROUP", "Fault", "Outcome", "Result", "attempt", "wide"]
