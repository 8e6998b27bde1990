"""Tuning ahead: everything is measured once, by all devices given, and what was measured is never lost."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jitdnn
from jitdnn.devices import cpu, opencl
from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.handle import Handle, find_device
from jitdnn.kernels.algorithm import Kernel
from jitdnn.ops.tune import TunedProblem, _Worker, tune
from jitdnn.planner.find import find
from jitdnn.planner.net import plan_net
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from planner_fakes import DEVICE, PROBLEM, Fake, Machine, Planning, Table

TINY = Convolution.make("fwd", (2, 3, 9, 8), (4, 3, 3, 3), padding=(1, 1))
MANY = [Convolution.make("fwd", (n, 3, 8, 8), (4, 3, 3, 3)) for n in (1, 5, 2, 4, 3)]


class OnDevice(Fake):
    """Notes which device builds it, and in which thread."""

    def build(self, problem: Any, device: Any, epilogue: Any = None) -> Kernel:
        self.calls.append((device.number, problem.n, threading.get_ident(), 0))
        inner = super().build(problem, device, epilogue)

        def kernel(stream: Any, pointers: Any, alpha: float, beta: float, workspace: int) -> None:
            threading.Event().wait(2e-3)  # lets the others go on
            inner(stream, pointers, alpha, beta, workspace)

        return kernel


class Numbered(Machine):
    """A machine with a number: equal in all that is stored to its sisters."""

    def __init__(self, number: int, name: str = "fake machine") -> None:
        super().__init__(name=name)
        object.__setattr__(self, "number", number)


class TestDevices(Planning):
    def test_several_share_the_work_and_each_problem_is_measured_once(self, table: Table) -> None:
        fake = OnDevice("only")
        table(fake)
        store = Store(None)
        told: list[TunedProblem] = []
        devices = [Numbered(number) for number in range(3)]
        done = tune(
            MANY, devices=devices, seconds=0.01, store=store, progress=told.append, division="undivided"
        )
        built = [call for call in fake.calls if len(call) == 4 and isinstance(call[1], int)]
        assert Counter(call[1] for call in built) == Counter([1, 2, 3, 4, 5])
        assert len({call[0] for call in built}) > 1, "not one device alone"
        assert [each.problem for each in done.problems] == MANY
        assert len(told) == 5
        assert {row.problem for row in done.measured} == {str(problem) for problem in MANY}
        assert {row.device for row in store.rows()} == {"fake machine"}

    def test_the_largest_is_dealt_out_first(self, table: Table) -> None:
        table(Fake("only"))
        told: list[int] = []
        tune(
            MANY, devices=[DEVICE], seconds=0.01, store=Store(None), division="undivided",
            progress=lambda result: told.append(result.problem.n),  # type: ignore[attr-defined]
        )  # fmt: skip
        assert told == [5, 4, 3, 2, 1]

    def test_devices_of_several_models_are_refused(self, table: Table) -> None:
        table(Fake("only"))
        with pytest.raises(InvalidArgument, match=r"device 0 is 'fake machine', device 1 is 'other'"):
            tune([PROBLEM], devices=[DEVICE, Machine(name="other")], store=Store(None))
        with pytest.raises(InvalidArgument, match="no devices"):
            tune([PROBLEM], devices=[])

    def test_a_device_twice_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="device 1 is the same as one before it"):
            tune([PROBLEM], devices=[DEVICE, DEVICE], store=Store(None))
        with pytest.raises(InvalidArgument, match="the same"):
            tune([TINY], devices=["cpu", "cpu"], store=Store(None))

    def test_what_one_device_raises_ends_the_call(self, table: Table) -> None:
        class Broken(Fake):
            def build(self, problem: Any, device: Any, epilogue: Any = None) -> Kernel:
                if device.number == 1:
                    raise ZeroDivisionError("a fault")
                threading.Event().wait(0.02)
                return super().build(problem, device, epilogue)

        table(Broken("only"))
        with pytest.raises(ZeroDivisionError, match="a fault"):
            tune(
                MANY,
                devices=[Numbered(0), Numbered(1)],
                seconds=0.01,
                store=Store(None),
                division="undivided",
            )


class TestStored(Planning):
    def test_what_is_known_is_not_measured_again(self, table: Table) -> None:
        one, two = Fake("one", sleep=1e-3), Fake("two", sleep=1e-3, needs=100)
        table(one, two)
        store = Store(None)
        first = tune([PROBLEM, str(PROBLEM)], devices=[DEVICE], seconds=0.01, store=store)
        assert len(first.problems) == 1, "the same problem is one"
        assert {row.algorithm for row in first.measured} == {"one", "two"}
        assert first.known == ()
        before = store.rows()
        calls = len(one.calls) + len(two.calls)
        second = tune([PROBLEM], devices=[DEVICE], seconds=0.01, store=store)
        assert (second.measured, second.known) == ((), (PROBLEM,))
        assert store.rows() == before
        assert len(one.calls) + len(two.calls) == calls

    def test_parts_are_measured_ahead(self, table: Table) -> None:
        slow, fast = Fake("slow", sleep=2e-3), Fake("fast", sleep=1e-4, needs=100)
        table(slow, fast)
        store = Store(None)
        tuning = tune([PROBLEM], devices=[DEVICE], seconds=0.01, store=store, workspace_limit=1000)
        assert len({row.problem for row in tuning.measured}) > 1
        slow.calls.clear()
        fast.calls.clear()
        request = Request(choice="find", workspace_limit=1000)
        plan_net((("a", PROBLEM),), DEVICE, request, 500, store=store, seconds=0.01)
        assert slow.calls == fast.calls == [], "all that a smaller total needs is there"

    def test_an_interrupt_keeps_what_was_measured(self, table: Table) -> None:
        table(Fake("only"))
        store = Store(None)

        def stop(result: TunedProblem) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tune(MANY, devices=[DEVICE], seconds=0.01, store=store, progress=stop, division="undivided")
        assert [row.problem for row in store.rows()] == [str(MANY[1])]

    def test_what_nothing_takes_is_told_and_the_rest_goes_on(self, table: Table) -> None:
        class Small(Fake):
            def refuse(self, problem: Any, device: Any, epilogue: Any = None) -> str | None:
                return "too many images" if problem.n > 4 else None

        table(Small("small"))
        done = tune(MANY, devices=[DEVICE], seconds=0.01, store=Store(None), division="undivided")
        assert list(done.failures) == [MANY[1]]
        assert "too many images" in done.failures[MANY[1]]
        assert len(done.measured) == 4

    def test_a_total_limits_the_parts(self, table: Table) -> None:
        class Wide(Fake):  # fits where images are taken one by one
            def workspace(self, problem: Any, device: Any, epilogue: Any = None) -> int:
                return 400 * problem.n

        small = Fake("small", seconds=1e-2, sleep=1e-2)
        table(small, Wide("wide", sleep=1e-3), Fake("large", needs=1000, sleep=1e-3))
        store = Store(None)
        tune([PROBLEM], devices=[DEVICE], seconds=0.01, store=store, total_workspace=500)
        parts = [row for row in store.rows() if row.problem != str(PROBLEM)]
        assert "wide" in {row.algorithm for row in parts}
        assert "large" not in {row.algorithm for row in parts}


class TestWhatInvalidates(Planning):
    """A stored time counts for the device, driver, library and version of the algorithm that it was taken with."""

    def measured_again(
        self, table: Table, store: Store, device: Machine = DEVICE, version: int = 1
    ) -> set[str]:
        one, two = Fake("one", version=version), Fake("two", needs=10)
        table(one, two)
        tune([PROBLEM], devices=[device], seconds=0.01, store=store, division="undivided")
        return {fake.name for fake in (one, two) if fake.builds}

    def test_each_of_them(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(None)
        assert self.measured_again(table, store) == {"one", "two"}
        assert self.measured_again(table, store) == set()
        # another driver makes another name of a GPU
        assert self.measured_again(table, store, Machine(name="H100 sm_90a CUDA 13.0")) == {"one", "two"}
        assert self.measured_again(table, store, Machine(name="H100 sm_90a CUDA 13.1")) == {"one", "two"}
        assert self.measured_again(table, store, Machine(name="H100 sm_90a CUDA 13.0")) == set()
        # an algorithm, or the vendor's library, that changed
        assert "one" in self.measured_again(table, store, version=2)
        assert self.measured_again(table, store) == set(), "times of the version before are still there"
        monkeypatch.setattr(jitdnn, "__version__", "99.0")
        assert self.measured_again(table, store) == {"one", "two"}
        monkeypatch.undo()
        assert self.measured_again(table, store) == set()

    def test_rows_of_others_are_kept_and_not_used(self, table: Table, tmp_path: Path) -> None:
        theirs = Store(None)
        table(Fake("one"), Fake("two", needs=10))
        tune([PROBLEM], devices=[Machine(name="theirs")], seconds=0.01, store=theirs, division="undivided")
        theirs.export(tmp_path / "theirs.jsonl")
        mine = Store(None)
        assert mine.merge(tmp_path / "theirs.jsonl") == 2
        assert mine.look_up(str(PROBLEM), "", DEVICE.name) == {}
        assert self.measured_again(table, mine) == {"one", "two"}
        assert {row.device for row in mine.rows()} == {"theirs", DEVICE.name}
        # and given back, they are theirs
        mine.export(tmp_path / "both.jsonl")
        back = Store(None)
        assert back.merge(tmp_path / "both.jsonl") == 4
        assert self.measured_again(table, back, Machine(name="theirs")) == set()

    def test_rows_of_a_small_limit_do_not_hide_what_needs_a_larger_one(self, table: Table) -> None:
        small = Fake("small", sleep=4e-3)
        large = Fake("large", sleep=5e-4, needs=10**6, seconds=5e-3)  # it wins by what is measured alone
        table(small, Fake("slow", sleep=9e-3), large)  # with a single one there is nothing to measure
        store = Store(None)
        options: dict[str, Any] = {"store": store, "seconds": 0.01, "is_fresh": False}
        undivided = Request(workspace_limit=100, division="undivided")
        assert find(PROBLEM, DEVICE, undivided, **options).algorithm == "small"
        assert large.builds == 0
        assert (
            find(PROBLEM, DEVICE, replace(undivided, workspace_limit=10**6), **options).algorithm == "large"
        )
        calls = len(large.calls)
        # and the other way round: what was measured without a limit is known to all
        assert find(PROBLEM, DEVICE, undivided, **options).algorithm == "small"
        assert find(PROBLEM, DEVICE, replace(undivided, workspace_limit=None), **options).algorithm == "large"
        assert len(large.calls) == calls


class TestOnThisMachine:
    def test_tiny_problems_on_the_processor(self, tmp_path: Path) -> None:
        with jitdnn.settings(cache_dir=tmp_path, workspace_limit=0, division="undivided", threads=2):
            tuning = tune([str(TINY)], seconds=0.01)
            assert tuning.device_name == cpu.host(2).name
            assert not tuning.failures
            assert Store.default().rows() == sorted(tuning.measured, key=lambda row: row.key)
            known = {row.algorithm for row in tuning.measured if row.problem == str(TINY)}
            with Handle() as handle:
                plan = handle.plan(TINY)
            assert plan.algorithm in known
            assert {c.source for c in plan.candidates if c.chosen} == {"stored"}

    @pytest.mark.parametrize(("device", "has_disk"), [("cpu", False), ("cpu", True), ("opencl:0", True)])
    def test_a_process_of_its_own_measures_the_same(
        self, tmp_path: Path, device: str, has_disk: bool
    ) -> None:
        """As each GPU but the first has one."""
        if device != "cpu" and not opencl.device_count():
            pytest.skip("no OpenCL device: Debian's pocl-opencl-icd is one")
        request = Request(choice="find", division="undivided", workspace_limit=0)
        store = Store(tmp_path / "times.sqlite" if has_disk else None)
        with jitdnn.settings(cache_dir=tmp_path, threads=2):
            worker = _Worker(device, 1, request, store, 0.01)
            try:
                found = worker.measure(TINY)
                assert found is not None
                assert {row.device for row in found.measured} == {find_device(device).name}
                assert (found.device, found.failure, found.was_known) == (1, None, False)
                assert store.rows() == sorted(found.measured, key=lambda row: row.key)
                again = worker.measure(TINY)
                assert again is not None
                assert again.was_known
                failed = worker.measure(Convolution.make("fwd", (1, 1, 2, 2), (1, 1, 1, 1), dtype="f64"))
                assert failed is not None
            finally:
                worker.end()
            assert worker.measure(TINY) is None, "what is dead says nothing"

    def test_a_worker_knows_what_is_in_memory(self, tmp_path: Path) -> None:
        request = Request(choice="find", division="undivided", workspace_limit=0)
        store = Store(None)
        with jitdnn.settings(cache_dir=tmp_path, threads=2):
            tune([TINY], seconds=0.01, store=store, division="undivided", workspace_limit=0)
            worker = _Worker("cpu", 1, request, store, 0.01)
            try:
                found = worker.measure(TINY)
            finally:
                worker.end()
        assert found is not None
        assert found.was_known

    def test_bad_input(self) -> None:
        with pytest.raises(ParseError):
            tune(["conv_fwd x"])
        with pytest.raises(InvalidArgument, match="the device is 'tpu'"):
            tune([TINY], devices=["tpu"])
        with pytest.raises(InvalidArgument, match="no setting"):
            tune([TINY], memory=3)

    def test_nothing_to_do(self) -> None:
        assert tune([], store=Store(None)).measured == ()
