"""Workers: what they tell is what the solver does, and whatever happens on the way, the end is the same."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitdnn.caffe import events, load_solver
from jitdnn.settings import settings
from jitdnn.studio.store import Store
from jitdnn.studio.work import kept_settings, worker
from jitdnn.studio.work.reporter import Reporter
from jitdnn.studio.work.run_access import LeaseLost, Report, StoreRunAccess
from studio_runs import NET, Worker, begin, curves_of, make_run, row_of, start_worker, weights_of

MAX_ITER = 240


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("os.nice", lambda by: by)
    monkeypatch.setattr("signal.signal", lambda number, handler: handler)
    with Store(tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """Curves and weights of a run that nothing happened to, in a process of its own."""
    with Store(tmp_path_factory.mktemp("undisturbed")) as store:
        run = make_run(store, MAX_ITER)
        assert start_worker(store, run, begin(store, run)).wait(100) == 0, _log(store, run)
        assert row_of(store, run)["state"] == "done"
        return curves_of(store, run), weights_of(store, run, MAX_ITER)


def _log(store: Store, run: int) -> str:
    return (store.folder(run) / "worker.log").read_text()


class Asked(StoreRunAccess):
    """A access whose user acts as soon as an iteration is told of."""

    def __init__(self, store: Store, run: int, lease: int, at: int, act: Callable[[], object]) -> None:
        super().__init__(store, run, lease)
        self.at, self.act = at, act
        self.writes: list[int] = []

    def tell(self, report: Report, *, is_lasting: bool = False) -> str:
        if report.values.get("iteration", -1) >= self.at:
            self.at = 1 << 60
            self.act()
        self.writes.append(len(report.points))
        return super().tell(report, is_lasting=is_lasting)


def test_what_is_told_is_what_the_solver_does(store: Store) -> None:
    run = make_run(store, 50, snapshot=20, test=15)
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 0
    told: list[events.Event] = []
    folder = store.folder(run)
    kept = sorted(file.name for file in folder.glob("snap_iter_*"))
    assert kept == ["snap_iter_40.jdsnap", "snap_iter_50.jdsnap"]
    solver = load_solver(
        folder / "solver.prototxt", listener=told.append, snapshot_prefix=str(folder / "other")
    )
    solver.solve()
    losses = [(event.iteration, event.loss) for event in told if isinstance(event, events.Iterated)]
    tests = {
        event.iteration: {o.name: o.value for o in event.outputs}
        for event in told
        if isinstance(event, events.Tested)
    }
    curves = curves_of(store, run)
    assert curves["loss"][0] == [at for at, _ in losses] == list(range(1, 51))
    assert curves["loss"][1] == pytest.approx([loss for _, loss in losses], abs=1e-7)
    assert curves["lr"][1] == pytest.approx([0.05] * 40 + [0.04] * 10)
    assert curves["val accuracy"] == [
        list(tests),
        pytest.approx([t["accuracy"] for t in tests.values()], abs=1e-7),
    ]
    assert curves["val loss"] == [list(tests), pytest.approx([t["loss"] for t in tests.values()], abs=1e-7)]
    row = row_of(store, run)
    later = {at: test["accuracy"] for at, test in tests.items() if at}
    assert row["best"] == max(later.values())
    assert later[row["best_at"]] == row["best"]
    assert (row["state"], row["iteration"], row["best_of"]) == ("done", 50, "val accuracy")
    assert row["speed"] > 0
    assert row["bytes"] > 0
    marks = [mark["text"] for mark in store.rows("SELECT text FROM mark WHERE run = ? ORDER BY seq", run)]
    assert (marks[0], marks[-1]) == ("training begins", "done")


def test_pause_and_go_on_change_nothing(store: Store, undisturbed: tuple[dict, dict]) -> None:
    run = make_run(store, MAX_ITER)
    for at in (33, 90, 165):
        access = Asked(store, run, begin(store, run), at, lambda: store.update("run", run, intent="pause"))
        assert worker.train(access) == 0
        row = row_of(store, run)
        assert (row["state"], row["intent"]) == ("paused", "")
        assert at <= row["iteration"] < MAX_ITER
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 0
    assert row_of(store, run)["state"] == "done"
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


OTHERWISE = (
    "import os",
    "os.environ |= {'JITDNN_THREADS': '3', 'JITDNN_CPU': 'plain', 'JITDNN_CHOICE': 'find'}",
    "os.environ |= {'JITDNN_ACCURACY': 'strict', 'JITDNN_DEVICE_FILE': ''}",
    "import jitdnn.settings; jitdnn.settings._process_default = None",
)


def test_a_run_goes_on_with_the_algorithms_that_it_began_with(
    store: Store, undisturbed: tuple[dict, dict]
) -> None:
    """Another number of threads, instruction set, choice and facts of the processor: nothing of it counts any more."""
    run = make_run(store, MAX_ITER)
    process = start_worker(store, run, begin(store, run))
    _wait_for(lambda: row_of(store, run)["iteration"] > 20)
    process.kill()
    process.wait()
    assert start_worker(store, run, begin(store, run), *OTHERWISE).wait(60) == 0, _log(store, run)
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]
    # what a run begins with does count
    other = make_run(store, MAX_ITER)
    assert start_worker(store, other, begin(store, other), *OTHERWISE).wait(60) == 0, _log(store, other)
    assert weights_of(store, other, MAX_ITER) != undisturbed[1]


def test_on_another_processor_a_run_goes_on_and_says_so(store: Store) -> None:
    run = make_run(store, 60, snapshot=20)
    access = Asked(store, run, begin(store, run), 30, lambda: store.update("run", run, intent="pause"))
    assert worker.train(access) == 0
    kept = store.folder(run) / "settings.json"
    text = kept.read_text()
    kept.write_text(text.replace('"machine": "', '"machine": "another '))
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 0
    assert row_of(store, run)["state"] == "done"
    assert kept.read_text() == text
    marks = [mark["text"] for mark in store.rows("SELECT text FROM mark WHERE run = ? ORDER BY seq", run)]
    assert any(mark.startswith("on another kind of device from here on") for mark in marks)
    for damage in ("", "[]", '{"machine": "x", "settings": {"threads": 0}}'):
        kept.write_text(damage)
        assert kept_settings.keep(store.folder(run), "cpu")[0] != []
        assert kept.read_text() == text


@pytest.mark.parametrize(
    ("asked", "machine", "wanted"), [("tf32", "fp32", "tf32"), ("fp32", "tf32", "fp32"), ("", "tf32", "tf32")]
)
def test_products_are_computed_in_what_the_run_asks_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, asked: str, machine: str, wanted: str
) -> None:
    """It is kept from the first start on, whatever the machine's settings are later; a processor says it cannot."""
    run = make_run(store, 40, options={"math": asked})
    access = Asked(store, run, begin(store, run), 5, lambda: store.update("run", run, intent="pause"))
    with settings(math=machine):
        assert worker.train(access) == 0
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 0
    assert row_of(store, run)["state"] == "done"
    kept = json.loads((store.folder(run) / "settings.json").read_text())
    assert kept["settings"]["math"] == wanted
    marks = [mark["text"] for mark in store.rows("SELECT text FROM mark WHERE run = ? ORDER BY seq", run)]
    assert sum("no matrix units for tf32" in mark for mark in marks) == (wanted == "tf32")


def test_stop_keeps_what_was_learnt(store: Store) -> None:
    run = make_run(store, 5_000, test=0)
    access = Asked(store, run, begin(store, run), 30, lambda: store.update("run", run, intent="stop"))
    assert worker.train(access) == 0
    row = row_of(store, run)
    assert (row["state"], row["message"]) == ("stopped", "")
    assert (store.folder(run) / f"snap_iter_{row['iteration']}.jdsnap").exists()
    assert (store.folder(run) / "best.npz").exists()  # the last ones, as none were tested


def test_a_signal_takes_a_snapshot_and_leaves(store: Store, undisturbed: tuple[dict, dict]) -> None:
    run = make_run(store, MAX_ITER)
    process = start_worker(store, run, begin(store, run))
    _wait_for(lambda: row_of(store, run)["iteration"] > 10)
    process.terminate()
    assert process.wait(60) == worker.LEFT, _log(store, run)
    row = row_of(store, run)
    assert row["state"] == "running"  # the queue sees that the process is gone
    assert (store.folder(run) / f"snap_iter_{row['iteration']}.jdsnap").exists()
    assert start_worker(store, run, begin(store, run)).wait(60) == 0
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


def test_patience_is_that_of_an_undisturbed_run(store: Store) -> None:
    options = {"options": {"patience": 2}, "rate": 1e-9, "test": 10}  # no test is better for long
    first, second = (make_run(store, 400, **options) for _ in range(2))  # type: ignore[arg-type]
    assert worker.train(StoreRunAccess(store, first, begin(store, first))) == 0
    row = row_of(store, first)
    assert row["state"] == "stopped"
    assert row["message"] == "stopped early: no better loss in 2 tests"
    at = row["iteration"] - 7
    access = Asked(
        store, second, begin(store, second), at, lambda: store.update("run", second, intent="pause")
    )
    assert worker.train(access) == 0
    assert row_of(store, second)["state"] == "paused"
    assert worker.train(StoreRunAccess(store, second, begin(store, second))) == 0
    again = row_of(store, second)
    assert {name: again[name] for name in ("state", "iteration", "message", "best", "best_at")} == {
        name: row[name] for name in ("state", "iteration", "message", "best", "best_at")
    }


@pytest.mark.parametrize("resumed_at", [None, 10, 20, 30, 40])
def test_of_equal_accuracies_the_smaller_loss_is_best(store: Store, resumed_at: int | None) -> None:
    """Whatever the tests are after which a run goes on, the weights that are kept are the same."""
    tests = {
        10: (0.5, 0.9), 20: (1.0, 0.8), 30: (1.0, 0.9), 40: (1.0, 0.2), 50: (0.9, 0.1), 60: (1.0, float("nan")),
    }  # fmt: skip
    wanted = [10, 20, 40]
    run = make_run(store)
    lease = begin(store, run)
    accesses = [StoreRunAccess(store, run, lease) for _ in range(2 if resumed_at else 1)]
    solver = load_solver(store.folder(run) / "solver.prototxt")
    for access in accesses:
        is_first = access is accesses[0]
        kept: list[int] = []
        at = [0]
        reporter = Reporter(access, row_of(store, run))
        reporter.solver = solver
        start = 0 if is_first or resumed_at is None else resumed_at
        reporter(events.Started(start, 100, "small", "step"))
        solver.save_weights_beside = (  # type: ignore[method-assign]
            lambda path, then, kept=kept, at=at: (kept.append(at[0]), then())
        )
        for now, (accuracy, loss) in tests.items():
            if now >= start and (not is_first or resumed_at is None or now <= resumed_at):
                outputs = (events.Output("accuracy", accuracy, 0.0), events.Output("loss", loss, 1.0))
                at[0] = now
                reporter(events.Tested(now, 0, outputs, None))
        assert kept == [
            # the test where a run goes on is run again, and its weights are kept again
            each
            for each in wanted
            if each >= start and (not is_first or each <= (resumed_at or 100))
        ]
    row = row_of(store, run)
    assert (row["best"], row["best_at"], row["best_of"]) == (1.0, 40, "val accuracy")


def test_what_is_told_of_best_weights_is_told_once_they_are_there(store: Store) -> None:
    run = make_run(store)
    lease = begin(store, run)
    solver = load_solver(store.folder(run) / "solver.prototxt")
    waiting: list[Callable[[], object]] = []
    solver.save_weights_beside = lambda path, then: waiting.append(then)  # type: ignore[method-assign]

    def reporter_at(start: int) -> Reporter:
        reporter = Reporter(StoreRunAccess(store, run, lease), row_of(store, run))
        reporter.solver = solver
        reporter(events.Started(start, 100, "small", "step"))
        return reporter

    reporter = reporter_at(0)
    outputs = (events.Output("accuracy", 0.5, 0.0), events.Output("loss", 0.9, 1.0))
    reporter(events.Tested(10, 0, outputs, None))
    assert curves_of(store, run)["val accuracy"] == [[10], [0.5]]
    assert row_of(store, run)["best_at"] is None
    waiting.pop()()
    reporter.flush(11)
    assert row_of(store, run)["best_at"] == 10
    reporter(events.Tested(20, 0, (events.Output("accuracy", 0.75, 0.0), *outputs[1:]), None))
    # the worker is killed behind a snapshot at 30, before it told of what had become whole before that
    reporter_at(30).flush(30)
    row = row_of(store, run)
    assert (row["best"], row["best_at"], row["best_of"]) == (0.75, 20, "val accuracy")


def test_a_loss_that_is_no_number_ends_the_run_before_a_snapshot(store: Store) -> None:
    run = make_run(store, 100, rate=1e30)
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 1
    row = row_of(store, run)
    assert row["state"] == "failed"
    assert "the loss is no number since iteration" in row["message"]
    assert list(store.folder(run).glob("*.jdsnap")) == []
    assert None in store.series(run, "loss")[1]


@pytest.mark.parametrize("net", [NET.replace('"ReLU"', '"RelU"'), "layer {"])
def test_a_run_that_cannot_begin_says_why(store: Store, net: str) -> None:
    run = make_run(store, 100, net=net)
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 1
    row = row_of(store, run)
    assert row["state"] == "failed"
    assert "line" in row["message"]


def test_a_worker_whose_lease_is_over_writes_nothing_more(store: Store) -> None:
    run = make_run(store, 5_000)
    access = Asked(store, run, begin(store, run), 30, lambda: begin(store, run))
    with pytest.raises(LeaseLost, match="lease 1 is over"):
        worker.train(access)
    assert store.series(run, "loss")[0][-1] < 30
    row = row_of(store, run)
    assert (row["state"], row["lease"]) == ("running", 2)
    store.forget_run(run)
    with pytest.raises(LeaseLost):
        access.tell(Report(marks=[(1, "still here")]))
    assert store.rows("SELECT * FROM mark") == []


def test_of_two_workers_with_one_run_one_writes(store: Store, undisturbed: tuple[dict, dict]) -> None:
    run = make_run(store, MAX_ITER)
    first = start_worker(store, run, begin(store, run))
    _wait_for(lambda: row_of(store, run)["iteration"] > 5)
    second = start_worker(store, run, begin(store, run))
    assert first.wait(60) == worker.LOST
    assert second.wait(60) == 0, _log(store, run)
    assert row_of(store, run)["state"] == "done"
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


def test_killed_at_random_moments_no_point_is_lost_or_doubled(
    store: Store, undisturbed: tuple[dict, dict]
) -> None:
    run, kills = make_run(store, MAX_ITER), 0
    moments = random.Random(7)
    while kills < 5:
        before = row_of(store, run)["iteration"]
        process = start_worker(
            store,
            run,
            begin(store, run),
            "import time; import jitdnn.caffe.solver as s",
            "run = s.Solver._tell; s.Solver._tell = lambda *a: (time.sleep(0.003), run(*a))[1]",
        )
        _wait_for_progress(store, run, before, process)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        if process.wait() == 0:
            break
        kills += 1
    assert kills >= 3
    if row_of(store, run)["state"] != "done":
        assert start_worker(store, run, begin(store, run)).wait(60) == 0, _log(store, run)
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


def test_a_full_disk_interrupts_and_the_run_can_go_on(store: Store, undisturbed: tuple[dict, dict]) -> None:
    """Snapshots first: no file may grow beyond 1,000 bytes. Then the store's file: it may have no more pages."""
    run = make_run(store, MAX_ITER)
    for limit, words in (
        (
            [
                "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
                "from jitdnn.caffe import snapshot; write = snapshot.write_whole",
                "def short(path, content):",
                "  resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))",
                "  try: write(path, content)",
                "  finally: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
                "snapshot.write_whole = short",
            ],
            "File too large",
        ),
        (
            [
                "from jitdnn.studio.store import Store; connect = Store._connect",
                "def limited(self):",
                "  db = connect(self); db.execute('PRAGMA max_page_count = 1'); return db",
                "Store._connect = limited",
            ],
            "full",
        ),
    ):
        lease = begin(store, run)
        assert start_worker(store, run, lease, *limit).wait(60) == worker.UNWRITTEN, _log(store, run)
        assert words in _log(store, run)
        state = row_of(store, run)["state"]
        assert state in ("interrupted", "running")  # what cannot write cannot say that it ends, either
    assert start_worker(store, run, begin(store, run)).wait(60) == 0
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


def test_a_clock_that_is_set_back_changes_nothing(
    store: Store, undisturbed: tuple[dict, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(store, MAX_ITER)
    real, calls = time.time, [0]

    def back() -> float:
        calls[0] += 1
        return real() - 3600 * calls[0]

    monkeypatch.setattr(time, "time", back)
    access = Asked(store, run, begin(store, run), 100, lambda: store.update("run", run, intent="pause"))
    assert worker.train(access) == 0
    assert worker.train(StoreRunAccess(store, run, begin(store, run))) == 0
    assert calls[0] > 5
    assert 0 < row_of(store, run)["seconds"] < 600
    assert curves_of(store, run) == undisturbed[0]
    assert weights_of(store, run, MAX_ITER) == undisturbed[1]


def _wait_for_progress(store: Store, run: int, before: int, process: Worker) -> None:
    _wait_for(lambda: row_of(store, run)["iteration"] != before or process.poll() is not None)


def _wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
