"""A run of the whole suite leaves out tests of large files, each of which has its turn on another day."""

from __future__ import annotations

import pytest

import turns


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


@pytest.mark.parametrize("count", [1, 2, 4, 9, 10, 11, 100])
def test_every_case_has_a_turn(count: int) -> None:
    names = [f"test[{number}]" for number in range(count)]
    days = [turns.of_the_day(names, day) for day in range(17, 17 + turns.DAYS)]
    assert set().union(*days) == set(names)
    assert sum(map(len, days)) == count
    assert all(count // turns.DAYS <= len(taken) <= -(-count // turns.DAYS) for taken in days)


def test_small_files_begin_on_different_days() -> None:
    first = {
        day
        for file in range(60)
        for day in range(turns.DAYS)
        if turns.of_the_day([f"tests/gpu/test_{file}.py::test_one"], day)
    }
    assert first == set(range(turns.DAYS))


def test_only_files_of_the_list_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"kernels/test_a.py": 9, "studio/test_b.py": 9}
    items = [
        _Item(f"tests/{file}::test_{number}") for file, count in files.items() for number in range(count)
    ]
    monkeypatch.setenv(turns.DAY, "5")
    kept, waiting = turns.split(items)
    assert {item.nodeid.partition("::")[0] for item in waiting} == {"tests/kernels/test_a.py"}
    assert len(waiting) in (8, 9)
    assert kept == [item for item in items if item not in waiting]


def test_tests_and_cases_of_a_file_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(f"tests/distributed/test_d.py::test_{number}") for number in range(turns.DAYS)]
    items += [_Item(f"tests/distributed/test_d.py::test_many[{number}]") for number in range(turns.DAYS)]
    taken = []
    for day in range(5, 5 + turns.DAYS):
        monkeypatch.setenv(turns.DAY, str(day))
        taken.append({item.nodeid for item in turns.split(items)[0]})
    assert set().union(*taken) == {item.nodeid for item in items}
    assert set(map(len, taken)) == {2}


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


def test_walks_run_whole_on_days_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(f"tests/{file}::test_{number}") for file in turns.WALKS for number in range(3)]
    seen: list[str] = []
    for day in range(7, 7 + turns.FEW_DAYS):
        monkeypatch.setenv(turns.DAY, str(day))
        kept, waiting = turns.split(items)
        files = {item.nodeid.partition("::")[0] for item in kept}
        assert 0 < len(files) < len(turns.WALKS)
        assert not files & {item.nodeid.partition("::")[0] for item in waiting}
        seen += [item.nodeid for item in kept]
    assert sorted(seen) == sorted(item.nodeid for item in items)
