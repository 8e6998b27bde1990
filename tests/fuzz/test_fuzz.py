"""The fuzzer itself: it covers what is public, repeats what it names, and finds faults that are planted."""

from __future__ import annotations

import ctypes
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from fuzz import campaign
from fuzz.draw import Draw
from fuzz.operations import OPERATIONS
from fuzz.problem import Expected, Operand, Operation, Problem, Result
from fuzz.run import GROUP, Fault, attempt
from fuzz.shrink import shrink, tapes_of
from fuzz.targets import target
from jitdnn.devices.host_scratch import HostScratch
from jitdnn.tensor import array as arrays

# what needs no problems of its own: it measures, starts processes, or is a constant or an exception
_ELSEWHERE = {
    "autotune", "chain", "tune", "warm", "current_handle", "DeviceArray", "MultiHeadGradients", "MultiHeadSaved",
    "Prologue",
}  # fmt: skip
SEED = 1


@pytest.fixture(autouse=True, scope="module")
def _library_as_it_was() -> Iterator[None]:
    """A target has the library allocate between forbidden pages: not for other tests of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostScratch, "_made", HostScratch._made)
        patch.setattr(arrays, "_empty", arrays._empty)
        target.cache_clear()
        yield
    target.cache_clear()


def _public() -> set[str]:
    stub = Path(jd.__file__).with_name("__init__.pyi").read_text()
    names = set(re.findall(r" as (\w+)$", stub, re.MULTILINE))
    return {
        name for name in names if not isinstance(getattr(jd, name), type) or name not in jd.errors.__dict__
    }


def test_every_public_function_is_covered() -> None:
    covered = {name for one in OPERATIONS.values() for name in one.functions}
    assert _public() - covered - _ELSEWHERE == set()
    assert covered - _public() == set()


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_a_problem_is_made_again_by_its_name(name: str) -> None:
    first, second = (OPERATIONS[name].make(Draw(f"{SEED}/{name}/3")) for _ in range(2))
    # functions of formulas are made anew, at other addresses
    assert re.sub("0x[0-9a-f]+", "", str(first)) == re.sub("0x[0-9a-f]+", "", str(second))


@pytest.mark.parametrize("name", sorted(name for name, one in OPERATIONS.items() if one.runs_on("cpu")))
def test_some_problems(name: str) -> None:
    for number in range(0, 3 * GROUP, GROUP):
        outcome = attempt(SEED, name, number, target("cpu"))
        assert outcome.fault is None, f"{outcome.problem}\n{outcome.fault}"


def _planted(call: Callable[..., Any]) -> Operation:
    """An operation that doubles, by way of `call`."""

    def make(draw: Draw) -> Problem:
        shape = draw.shape(draw.whole(1, 3), empty=False)
        x = Operand("x", shape, "f32", draw.strides(shape))
        return Problem(
            "planted", [x], {}, [Result("y", shape, "f32")], lambda a: [Expected(2 * a["x"])], scales=False, call=call,
        )  # fmt: skip

    return Operation("planted", make)


def _doubled(x: Any, out: Any = None) -> Any:
    x = np.asarray(x)
    made = np.empty(x.shape, np.float32) if out is None else out
    made = made.numpy() if hasattr(made, "numpy") else made
    made[...] = 2 * x
    return out if out is not None else made


def _wrong_element(x: Any, out: Any = None) -> Any:
    made = _doubled(x, out)
    if np.asarray(made).size > 5:
        np.asarray(made)[...].flat[5] += 1e-3
        array = np.asarray(made)
        array[np.unravel_index(5, array.shape)] += 1e-3
    return made


def _writes_beside(x: Any, out: Any = None) -> Any:
    made = _doubled(x, out)
    if out is not None:
        array = np.asarray(made)
        ctypes.c_float.from_address(array.ctypes.data - array.itemsize).value = 0.0
    return made


def _writes_an_input(x: Any, out: Any = None) -> Any:
    made = _doubled(x, out)
    array = np.asarray(x)
    if array.dtype == np.float32 and array.size:  # and not what makes no sense
        ctypes.c_float.from_address(array.ctypes.data).value = 7.5
    return made


def _raises(x: Any, out: Any = None) -> Any:
    raise ValueError("no exception of the library")


def _refuses(x: Any, out: Any = None) -> Any:
    raise jd.InvalidArgument("x is as it should be, and refused")


def _found(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Kinds of faults, and the first problem that has each."""
    monkeypatch.setitem(OPERATIONS, "planted", operation)
    kinds: dict[str, int] = {}
    for number in range(60):
        outcome = attempt(SEED, "planted", number, target("cpu"), group=1)
        if outcome.fault is not None and not outcome.nonsense:
            kinds.setdefault(outcome.fault.kind, number)
    return kinds


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (_wrong_element, "wrong"),
        (_raises, "raw"),
        (_refuses, "wrong"),
        (_writes_an_input, "outside"),
    ],
)
def test_planted_faults_are_found(call: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(_found(_planted(_doubled), monkeypatch)) == set()
    assert kind in _found(_planted(call), monkeypatch)


def test_writing_beside_an_output_is_found_or_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the output begins at a page, the write is one that no process survives: only the others are tried."""
    chosen = target("cpu")
    place = chosen.place
    monkeypatch.setattr(chosen, "place", lambda shape, strides, dtype, at: place(shape, strides, dtype, 0.5))
    assert "outside" in _found(_planted(_writes_beside), monkeypatch)


def test_shrinking_finds_the_smallest_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    number = _found(_planted(_wrong_element), monkeypatch)["wrong"]
    tapes = tapes_of(SEED, "planted", number, group=1)
    small = shrink(SEED, "planted", number, "cpu", tapes, "wrong", seconds=20, group=1)
    outcome = attempt(SEED, "planted", number, target("cpu"), small, group=1)
    assert isinstance(outcome.fault, Fault)
    assert outcome.fault.kind == "wrong"
    shape = OPERATIONS["planted"].make(Draw("", small[0])).operands()[0].shape
    assert np.prod(shape) <= 7


def test_a_campaign_survives_its_workers() -> None:
    """A worker whose process dies is replaced, and the problem that it died of is named."""
    log = io.StringIO()
    tally = campaign.run(SEED, ["fill", "concat"], "cpu", 64, None, 1, log)
    assert tally.total("problems") >= 64
    assert tally.faults == []

    class Dying(campaign._Worker):
        is_first = True

        def give(self, task: tuple[str, int]) -> None:
            super().give(task)
            if Dying.is_first:
                Dying.is_first = False
                self.process.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "_Worker", Dying)
        tally = campaign.run(SEED, ["fill"], "cpu", 48, None, 1, log)
    assert [fault["kind"] for fault in tally.faults] == ["crash"]
    assert "SIGKILL" in tally.faults[0]["message"]
    assert tally.total("problems") >= 32
