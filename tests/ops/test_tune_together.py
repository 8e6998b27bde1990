"""Several processes that divide one list of problems to measure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

import jitdnn as jd
from jitdnn.errors import InvalidArgument
from jitdnn.ops.tune_together import divided
from jitdnn.planner.store import Store
from jitdnn.problems import settled_problem
from process_groups import Ranks
from tune_processes import NAMES


class Group:
    """The first of two processes: what the other one says is made from what this one says."""

    rank, size = 0, 2

    def __init__(self, *others: Callable[[Any], Any]) -> None:
        self._others = list(others)

    def gather(self, data: bytes) -> list[bytes]:
        return [data, json.dumps(self._others.pop(0)(json.loads(data))).encode()]


def elsewhere(own: dict[str, Any]) -> dict[str, Any]:
    return {**own, "devices": [[name, "elsewhere", *where] for name, _, *where in own["devices"]]}


def test_problems_are_divided_by_their_work() -> None:
    problems = [settled_problem(name) for name in NAMES]
    parts = divided(problems, 2)
    assert sorted(map(str, [*parts[0], *parts[1]])) == sorted(map(str, problems))
    work = [sum(problem.flops for problem in part) for part in parts]
    assert max(work) < 0.6 * sum(work)
    assert divided(list(reversed(problems)), 2) == parts


def test_each_has_the_times_of_all() -> None:
    measured = jd.tune(NAMES[:1], store=Store(None), seconds=0.001).measured
    theirs = divided([settled_problem(name) for name in NAMES], 2)[1]
    rows = [replace(measured[0], problem=str(theirs[0]))]

    def found(own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        assert len(own) + len(theirs) == len(NAMES)
        told = [asdict(row) for row in rows]
        first = {"problem": str(theirs[0]), "device": 0, "measured": told, "failure": None}
        return [
            first,
            *({**first, "problem": str(each), "measured": [], "failure": "none"} for each in theirs[1:]),
        ]

    store, told = Store(None), []
    group: Any = Group(elsewhere, found)
    tuning = jd.tune(NAMES, store=store, seconds=0.001, group=group, progress=told.append)
    assert [str(each.problem) for each in tuning.problems] == [str(settled_problem(name)) for name in NAMES]
    assert len(told) == len(NAMES)
    assert {each.rank for each in tuning.problems} == {0, 1}
    assert set(tuning.failures) == set(theirs[1:])
    stored = {row.problem for row in store.rows()}
    assert str(theirs[0]) in stored
    assert len(stored) > 1


def test_what_cannot_be_divided_is_refused() -> None:
    same: Any = Group(lambda own: own)
    with pytest.raises(InvalidArgument, match="both measure on cpu:0"):
        jd.tune(NAMES, store=Store(None), group=same)
    other: Any = Group(lambda own: {**elsewhere(own), "problems": []})
    with pytest.raises(InvalidArgument, match="another list of 0 problems"):
        jd.tune(NAMES, store=Store(None), group=other)
    model: Any = Group(lambda own: {**own, "devices": [["slower", "elsewhere", "cpu", 0]]})
    with pytest.raises(InvalidArgument, match="process 1 'slower'"):
        jd.tune(NAMES, store=Store(None), group=model)


def test_two_processes_on_gloo_have_all_times(ranks: Ranks) -> None:
    first, second = ranks("tune_processes.tuned")
    assert first["rows"] == second["rows"]  # of each measurement the same seconds in both stores
    # and of the problems that they were divided into
    assert {row[0] for row in first["rows"]} >= {str(settled_problem(name)) for name in NAMES}
    assert sorted(first["ranks"]) == sorted(second["ranks"]) == [0, 0, 1, 1]
    assert not first["failures"]
