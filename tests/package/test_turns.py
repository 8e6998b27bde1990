"""A run of the whole suite leaves out cases of large tables, each of which has its turn on another day."""

from __future__ import annotations

import pytest

import turns


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 100])
def test_every_case_has_a_turn_and_no_day_has_none(count: int) -> None:
    names = [f"test[{number}]" for number in range(count)]
    days = [turns.of_the_day(names, day) for day in range(17, 17 + turns.DAYS)]
    assert set().union(*days) == set(names)
    assert all(1 <= len(taken) <= max(-(-count // turns.DAYS), turns.DAYS - 1) for taken in days)


def test_only_large_tables_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("tests/kernels/test_a.py::test_one", "tests/studio/test_b.py::test_two")
    items = [_Item(f"{file}[{number}]") for file in files for number in range(9)]
    alone = _Item("tests/gpu/test_c.py::test_alone")
    monkeypatch.setenv(turns.DAY, "5")
    kept, waiting = turns.split([*items, alone])
    assert alone in kept
    assert {item.nodeid.partition("[")[0] for item in waiting} == {files[0]}
    assert len(waiting) == 7
    assert [item for item in items if item in kept] == [item for item in kept if item is not alone]


def test_tests_of_processes_take_turns_within_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(f"tests/distributed/test_d.py::test_{number}") for number in range(7)]
    taken = []
    for day in range(5, 5 + turns.DAYS):
        monkeypatch.setenv(turns.DAY, str(day))
        taken.append({item.nodeid for item in turns.split(items)[0]})
    assert set().union(*taken) == {item.nodeid for item in items}
    assert max(map(len, taken)) == 2


def test_named_paths_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(turns.DAY, "5")
    turns.set_day(is_whole_suite=False)
    items = [_Item(f"tests/kernels/test_a.py::test_one[{number}]") for number in range(9)]
    assert turns.split(items) == (items, [])
    assert turns.header() is None


def test_a_day_is_repeated_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "THOROUGH", False)
    monkeypatch.setenv(turns.DAY, "5")
    turns.set_day(is_whole_suite=True)
    assert f"{turns.DAY}=5" in str(turns.header())
    monkeypatch.setattr(turns, "THOROUGH", True)
    turns.set_day(is_whole_suite=True)
    assert turns.header() is None
