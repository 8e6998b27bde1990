"""Sweeps: the space, the choice of trials, pruning, and a service whose servers may change at any moment."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.studio import nets
from jitdnn.studio.store import Row, Store
from jitdnn.studio.sweeps import (
    Choice,
    Plan,
    Range,
    Space,
    Sweeps,
    create,
    importances,
    parse_space,
    service,
    trials,
)
from jitdnn.studio.sweeps.plan import check
from jitdnn.studio.sweeps.suggest import Trial, should_stop, suggest
from jitdnn.studio.work import control
from jitdnn.studio.work.inspector import InspectorDied

pytest.importorskip("optuna", reason="the extra `sweeps`")

NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: {{hidden}} weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
layer { name: "scores" type: "InnerProduct" bottom: "ip" top: "scores"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "scores" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""
SPACE = Space(
    {"rate": Range(1e-4, 1e-1, log=True), "hidden": Range(4, 16), "solver": Choice(("SGD", "Adam"))}
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as made:
        yield made


@pytest.fixture
def dataset(store: Store) -> Row:
    """Thirty images of three classes, as the studio keeps them."""
    counts = {"train": 18, "val": 6, "test": 6}
    number = store.insert("dataset", name="tiny", shape=[1, 6, 6], classes=["a", "b", "c"], **counts)
    folder = store.data_folder(number)
    folder.mkdir(parents=True)
    for part, count in counts.items():
        np.save(folder / f"{part}_data.npy", np.zeros((count, 1, 6, 6), np.uint8))
        np.save(folder / f"{part}_label.npy", np.arange(count) % 3)
    row = store.one("dataset", number)
    assert row is not None
    return row


def begin(store: Store, dataset: Row, plan: Plan, text: str = NET, **options: Any) -> int:
    return create(
        store,
        plan,
        name="sweep",
        dataset=dataset,
        net_name="small",
        text=text,
        options={"batch": 6} | options,
    )


def children(store: Store, sweep: int) -> list[Row]:
    return store.rows("SELECT * FROM run WHERE parent = ? ORDER BY id", sweep)


def row_of(store: Store, run: int) -> Row:
    row = store.one("run", run)
    assert row is not None
    return row


def train(store: Store, row: Row, accuracies: list[float], state: str = "done") -> None:
    store.add_points(
        row["id"], [("val accuracy", 10 * k, value) for k, value in enumerate([0.0, *accuracies])]
    )
    store.update("run", row["id"], state=state)


def run_all(
    store: Store, sweep: int, judge: Callable[[dict[str, Any]], float], make: Callable[[], Sweeps]
) -> None:
    """Step until the sweep is over, each trial ending as soon as it is there."""
    for _ in range(1000):
        make().step()
        if row_of(store, sweep)["state"] != "running":
            return
        for row in children(store, sweep):
            if row["state"] == "queued":
                train(store, row, [judge(row["trial"]["values"])])
    pytest.fail("the sweep does not end")


def test_lines_of_a_form_are_a_space() -> None:
    text = "rate: 1e-4 to 1e-1 log\n\n batch: 32, 64 # powers\nhidden: 16 to 64 step 16\n"
    text += "solver: SGD, Adam\nclip: 0 to 2.5"
    found = parse_space(text)
    assert found.dimensions == {
        "rate": Range(1e-4, 1e-1, log=True),
        "batch": Choice((32, 64)),
        "hidden": Range(16, 64, step=16),
        "solver": Choice(("SGD", "Adam")),
        "clip": Range(0, 2.5),
    }
    assert Space.of(found.plain() | {}) == found
    assert [found.dimensions["hidden"].is_whole, found.dimensions["clip"].is_whole] == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("rate 1", 1, "NAME: VALUE"),
        ("a: 1\nrate:", 2, "NAME: VALUE"),
        ("a: 1\na: 2", 2, "twice"),
        ("a: 2 to 1", 1, "second must be greater"),
        ("a: 0 to 1 log", 1, "starts above 0"),
        ("a: 0 to 1 step 2", 1, "do not fit its range"),
        ("a: 1, 1", 1, "each once"),
        ("a-b: 1", 1, "no name of an option"),
        ("a: 1e400 to 1e401", 1, "finite"),
    ],
)
def test_lines_that_are_wrong_are_told_by_number(text: str, line: int, words: str) -> None:
    with pytest.raises(ParseError, match=words) as caught:
        parse_space(text)
    assert caught.value.line == line


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_text_is_a_space_or_an_error_of_ours(text: str) -> None:
    try:
        found = parse_space(text)
    except InvalidArgument:
        return
    assert Space.of(found.plain()) == found


def test_plans_that_do_not_fit_are_refused() -> None:
    for values, words in (
        ({"sampler": "best"}, "sampler is 'best': choose one of tpe, random, grid"),
        ({"pruner": "x"}, "none, median, halving, hyperband"),
        ({"trials": 0}, "trials is 0"),
        ({"parallel": -1}, "parallel is 0"),
        ({"metric": "loss"}, "a series of tests"),
        ({"sampler": "grid", "space": {"rate": {"low": 0.0, "high": 1.0}}}, "a grid needs steps"),
        ({"space": {"rate": {"low": 0.0}}}, "rate has no 'high'"),
        ({"space": {}}, "0 options vary"),
        ({"colour": 1}, "a sweep has no 'colour'"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Plan.of({"space": {"rate": {"values": [0.1]}}} | values)
    plan = Plan(SPACE)
    assert Plan.of(plan.plain()) == plan
    text, options = check(plan, NET, {"batch": 6})
    assert "num_output: 4 " in text
    assert options == {"batch": 6, "rate": 1e-4, "solver": "SGD"}
    with pytest.raises(
        InvalidArgument, match=r"hidden is no option of a training, and the net has no \{\{hidden\}\}"
    ):
        check(plan, NET.replace("{{hidden}}", "3"), {})
    with pytest.raises(InvalidArgument, match="line 5 of the net has the variable hidden"):
        check(Plan(Space({"rate": Choice((0.1,))})), NET, {})
    with pytest.raises(InvalidArgument, match="momentum is '7'"):
        check(plan, NET, {"momentum": 7})


def test_a_grid_tries_each_combination_once(store: Store, dataset: Row) -> None:
    space = Space({"rate": Choice((0.1, 0.01)), "hidden": Range(4, 8, step=2)})
    sweep = begin(store, dataset, Plan(space, sampler="grid", trials=100, parallel=4))
    service = Sweeps(store)
    run_all(store, sweep, lambda values: values["rate"] / values["hidden"], lambda: service)
    found = [row["trial"]["values"] for row in children(store, sweep)]
    assert found == [{"rate": rate, "hidden": hidden} for rate in (0.1, 0.01) for hidden in (4, 6, 8)]
    row = row_of(store, sweep)
    assert (row["state"], row["iteration"], row["max_iter"]) == ("done", 6, 6)
    assert (row["best"], row["best_at"]) == (0.1 / 4, children(store, sweep)[0]["id"])
    first = children(store, sweep)[0]
    assert first["options"]["rate"] == 0.1
    assert first["max_iter"] > 0
    assert "num_output: 4" in (store.folder(first["id"]) / "net.prototxt").read_text()


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_servers_may_change_at_any_moment(store: Store, dataset: Row, sampler: str) -> None:
    """The same trials whether one service lives throughout or each step is another one's."""
    plan = Plan(SPACE, sampler=sampler, trials=14, parallel=1)
    found = []
    for is_one in (True, False):
        sweep = begin(store, dataset, plan)
        service = Sweeps(store)
        run_all(
            store, sweep, lambda v: v["hidden"] / 16 - abs(math.log10(v["rate"]) + 2),
            (lambda service=service: service) if is_one else (lambda: Sweeps(store)),
        )  # fmt: skip
        found.append([row["trial"]["values"] for row in children(store, sweep)])
        assert row_of(store, sweep)["state"] == "done"
    assert found[0] == found[1]
    assert len({tuple(values.items()) for values in found[0]}) == 14
    matter = importances(store, row_of(store, sweep))
    assert matter.keys() == SPACE.dimensions.keys()
    assert sum(matter.values()) == pytest.approx(1)


def test_tpe_finds_better_values_than_chance() -> None:
    """Of a smooth function of two options; the mean of the last ten trials, over five seeds."""
    space = Space({"x": Range(-5.0, 5.0), "y": Range(-5.0, 5.0)})

    def last(sampler: str, seed: int) -> float:
        known: list[Trial] = []
        plan = Plan(space, sampler=sampler, trials=40, seed=1000 * seed, metric="val loss")
        for _ in range(40):
            values = suggest(plan, known)
            known.append(Trial(values, (float(values["x"]) ** 2 + (float(values["y"]) - 2) ** 2,), "done"))
        return float(np.mean([trial.tests[0] for trial in known[-10:]]))

    assert np.mean([last("tpe", k) for k in range(5)]) < 0.5 * np.mean([last("random", k) for k in range(5)])


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_trials_without_hope_end_early(store: Store, dataset: Row, pruner: str) -> None:
    space = Space({"rate": Choice(tuple(0.01 * k for k in range(1, 8)))})
    sweep = begin(
        store,
        dataset,
        Plan(space, sampler="grid", trials=7, parallel=7, pruner=pruner),
        NET.replace("{{hidden}}", "5"),
    )
    service = Sweeps(store)
    service.step()
    rows = children(store, sweep)
    for row in rows[:5]:
        train(store, row, [0.5, 0.6, 0.7])
    train(store, rows[5], [0.1, 0.1], "running")
    train(store, rows[6], [0.8, 0.9], "running")
    service.step()
    assert row_of(store, rows[5]["id"])["intent"] == "stop"
    assert row_of(store, rows[6]["id"])["intent"] == ""
    store.update("run", rows[5]["id"], state="stopped", intent="")  # its worker obeys
    store.update("run", rows[6]["id"], state="done")
    service.step()
    assert row_of(store, sweep)["state"] == "done"
    assert [row["state"] for row in trials(store, row_of(store, sweep))] == ["done"] * 5 + ["pruned", "done"]
    assert row_of(store, sweep)["best_at"] == rows[6]["id"]
    assert not should_stop(Plan(space, sampler="grid"), [Trial({"rate": 0.01}, (0.1,), "running")], 0)


def test_brackets_of_hyperband_judge_some_trials_later() -> None:
    """Nine of 17 trials from their first test on, five from the third, three from the ninth, each among its own."""
    plan = Plan(SPACE, sampler="random", trials=17, pruner="hyperband")

    def ended(tests: int) -> list[int]:
        """Which of 17 trials end after so many tests, if the later ones are better."""
        known = [Trial({}, (0.01 * k,) * tests, "running") for k in range(17)]
        return [k for k in range(17) if should_stop(plan, known, k)]

    after = [set(ended(tests)) for tests in (1, 2, 3, 8, 9)]
    assert [len(each) for each in after] == [6, 6, 10, 10, 12]  # of 9 the best 3 go on, of 5 one, of 3 one
    assert after[0] == after[1] <= after[2] == after[3] <= after[4]
    assert 16 not in after[4]
    assert not ended(0)


def test_pause_stop_and_go_on_reach_the_trials(store: Store, dataset: Row) -> None:
    sweep = begin(store, dataset, Plan(SPACE, trials=6, parallel=2))
    Sweeps(store).step()
    first, second = children(store, sweep)
    store.update("run", first["id"], state="running")
    assert control.pause(store, sweep) == "running"
    Sweeps(store).step()
    assert row_of(store, sweep)["state"] == "paused"
    assert row_of(store, first["id"])["intent"] == "pause"
    assert row_of(store, second["id"])["state"] == "paused"
    store.update("run", first["id"], state="paused", intent="")
    Sweeps(store).step()
    assert len(children(store, sweep)) == 2
    assert control.resume(store, sweep) == "queued"
    Sweeps(store).step()
    assert [row["state"] for row in children(store, sweep)] == ["queued", "queued"]
    train(store, first, [0.5])
    Sweeps(store).step()
    assert [row["state"] for row in children(store, sweep)] == ["done", "queued", "queued"]
    control.stop(store, sweep)
    Sweeps(store).step()
    assert row_of(store, sweep)["state"] == "stopped"
    assert [row["state"] for row in children(store, sweep)] == ["done", "stopped", "stopped"]


def test_trials_that_cannot_begin_are_told_and_end_the_sweep(store: Store, dataset: Row) -> None:
    sweep = begin(store, dataset, Plan(SPACE, trials=9, parallel=1), NET.replace("ReLU", "RLU"))
    for _ in range(5):
        Sweeps(store).step()
    row = row_of(store, sweep)
    assert row["state"] == "failed"
    assert "the first 3 trials failed: " in row["message"]
    assert [child["state"] for child in children(store, sweep)] == ["failed"] * 3


def test_what_a_killed_server_left_half_written_is_removed(store: Store, dataset: Row) -> None:
    sweep = begin(store, dataset, Plan(SPACE, trials=3, parallel=1))
    Sweeps(store).step()
    [first] = children(store, sweep)
    half = store.insert(
        "run", name="half", parent=sweep, state="preparing", trial={"number": 2, "values": {}},
    )  # fmt: skip
    assert [row["id"] for row in trials(store, row_of(store, sweep))] == [first["id"]]
    assert store.one("run", half) is not None
    Sweeps(store).step()
    assert store.one("run", half) is None
    assert [row["id"] for row in children(store, sweep)] == [first["id"]]


def test_trials_that_failed_teach_where_not_to_look() -> None:
    """Rates above 0.1 diverge; after some trials TPE keeps below, more often than chance."""
    space = Space({"rate": Range(1e-4, 10.0, log=True)})

    def diverging(sampler: str, seed: int) -> int:
        known: list[Trial] = []
        plan = Plan(space, sampler=sampler, trials=30, seed=1000 * seed)
        for _ in range(30):
            rate = float(suggest(plan, known)["rate"])
            tests = (0.5,) if rate < 0.1 else ()  # the others are all alike
            known.append(Trial({"rate": rate}, tests, "done" if tests else "failed"))
        return sum(trial.state == "failed" for trial in known[-15:])

    assert sum(diverging("tpe", k) for k in range(4)) < 0.7 * sum(diverging("random", k) for k in range(4))


def test_trials_begin_from_uploaded_weights(store: Store, dataset: Row) -> None:
    text = NET.replace("{{hidden}}", "4")
    (store.home / "weights").mkdir()
    np.savez(store.home / "weights" / "mine.npz", **{"ip/0": np.full((4, 36), 0.5, np.float32)})  # type: ignore[arg-type]
    plan = Plan(Space({"rate": Choice((0.1, 0.2))}), sampler="grid", trials=2, parallel=2)
    sweep = begin(store, dataset, plan, text, weights="file:mine.npz")
    Sweeps(store).step()
    assert [row["message"] for row in children(store, sweep)] == ["", ""]
    for row in children(store, sweep):
        with np.load(store.folder(row["id"]) / "start.npz") as start:
            assert (start["ip/0"] == 0.5).all()


def test_sweeps_go_on_after_a_look_that_failed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = asyncio.Event()
    sweeps = Sweeps(store)
    results = iter([sqlite3.OperationalError("database or disk is full")])

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def step() -> None:
            if (error := next(results, None)) is not None:
                raise error
            loop.call_soon_threadsafe(looks.set)

        monkeypatch.setattr(sweeps, "step", step)
        monkeypatch.setattr(service, "PERIOD", 0.01)
        serving = asyncio.create_task(sweeps.serve())
        try:
            await asyncio.wait_for(looks.wait(), 5)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(serve())


def test_a_trial_that_ends_while_its_sweep_is_paused_is_no_failure(
    store: Store, dataset: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps, number = Sweeps(store), begin(store, dataset, Plan(SPACE, sampler="random", trials=3, parallel=1))
    sweeps.step()
    store.update("run", number, intent="pause")
    pause = control.pause

    def late(store: Store, run: int) -> str:
        store.update("run", run, state="done")
        return pause(store, run)

    monkeypatch.setattr(control, "pause", late)
    sweeps.step()
    row = store.one("run", number)
    assert row is not None
    assert (row["state"], row["message"]) == ("paused", "")


class Apart:
    """In place of the inspector: notes what it is asked, and does it here, or dies as one that is closed."""

    def __init__(self, is_closing: bool = False) -> None:
        self.asked: list[Any] = []
        self._is_closing = is_closing

    async def inspect(self, function: Any, *arguments: Any) -> Any:
        self.asked.append(function)
        if self._is_closing:
            await asyncio.sleep(0.05)  # meanwhile the service is cancelled
            raise InspectorDied("the studio is ending")
        return await asyncio.to_thread(function, *arguments)


def _serve(sweeps: Sweeps, is_enough: Callable[[], bool]) -> None:
    async def serve() -> None:
        serving = asyncio.create_task(sweeps.serve())
        for _ in range(500):
            await asyncio.sleep(0.01)
            if is_enough():
                break
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await asyncio.sleep(0.1)

    asyncio.run(serve())


def test_nets_of_trials_are_built_and_weights_read_apart_from_the_server(store: Store, dataset: Row) -> None:
    apart: Any = Apart()
    number = begin(store, dataset, Plan(SPACE, sampler="random", trials=2, parallel=2))
    _serve(
        Sweeps(store, inspector=apart),
        lambda: [r["state"] for r in children(store, number)] == ["queued"] * 2,
    )
    assert apart.asked == [nets.write] * 2
    assert [row["max_iter"] > 0 for row in children(store, number)] == [True] * 2


def test_a_server_that_ends_while_a_trial_is_written_fails_neither_trial_nor_sweep(
    store: Store, dataset: Row
) -> None:
    apart: Any = Apart(is_closing=True)
    number = begin(store, dataset, Plan(SPACE, sampler="random", trials=2, parallel=1))
    _serve(Sweeps(store, inspector=apart), lambda: bool(apart.asked))
    assert row_of(store, number)["state"] == "running"
    _serve(Sweeps(store), lambda: bool(children(store, number)))  # the next server makes it anew
    assert [(row["state"], row["trial"]["number"]) for row in children(store, number)] == [("queued", 1)]


def test_a_trial_that_no_process_can_build_says_so(store: Store, dataset: Row) -> None:
    apart: Any = Apart()
    apart.inspect = _dies
    number = begin(store, dataset, Plan(SPACE, sampler="random", trials=1, parallel=1))
    _serve(
        Sweeps(store, inspector=apart), lambda: any(r["state"] == "failed" for r in children(store, number))
    )
    (trial,) = children(store, number)
    assert (trial["state"], trial["message"]) == ("failed", "it needs more memory")


async def _dies(*_: Any) -> Any:
    raise InspectorDied("it needs more memory")
