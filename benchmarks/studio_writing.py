"""What share of a training in the studio goes to what it writes: `benchmarks/studio.py writing` comes here.

A worker trains the digits that come with the package in this process, by the options that a training has by itself, for
some epochs: first it waits for its files, then a thread writes them beside the training, as it is. Timed, on the clock
and as time of the training's thread on the processor: the snapshots, the weights of the best test, what is told to the
store (points, values, marks), all that the reporter does, the latter two included, tests, and the training.
"""

# ruff: noqa: T201

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitdnn.caffe import Solver
from jitdnn.caffe.files_beside import FilesBeside
from jitdnn.studio import nets
from jitdnn.studio.data import creation
from jitdnn.studio.data.built_in import DIGITS
from jitdnn.studio.data.options import Options
from jitdnn.studio.store import Row, Store
from jitdnn.studio.work import worker
from jitdnn.studio.work.reporter import Reporter
from jitdnn.studio.work.run_access import StoreRunAccess

#: net, side of its images, epochs
_TRAININGS = (("lenet", 28, 6), ("resnet18", 64, 2))
_TIMED: tuple[tuple[type, str, str], ...] = (
    (Solver, "_snapshot_beside", "snapshots"),
    (FilesBeside, "wait", "waiting for files"),
    (Reporter, "_save_best", "best weights"),
    (StoreRunAccess, "tell", "told to the store"),
    (Reporter, "__call__", "the reporter, with those"),
    (Solver, "test", "tests"),
    (Solver, "solve", "the training"),
)


def writing(home: Path) -> None:
    """Train the nets one after the other, and print the shares."""
    os.nice = lambda by: 0  # type: ignore[assignment, misc]
    signal.signal = lambda number, handler: handler  # type: ignore[assignment, misc]
    load = worker.load_solver
    with Store(home) as store:
        for key, side, epochs in _TRAININGS:
            number = creation.create(
                store, f"Digits {side}", DIGITS, Options(width=side, height=side, grey=True)
            )
            dataset = store.one("dataset", number)
            assert dataset is not None
            for is_beside in (False, True):
                worker.load_solver = lambda *a, is_beside=is_beside, **k: load(
                    *a, **(k | {"writes_beside": is_beside})
                )
                print("beside the training:" if is_beside else "waiting for files:")
                _train(store, dataset, key, side, epochs)


def _train(store: Store, dataset: Row, key: str, side: int, epochs: int) -> None:
    text = str(next(each["text"] for each in nets.gallery("classification") if each["key"] == key))
    options = {"epochs": epochs}
    run = store.insert("run", name=key, dataset=dataset["id"], options=options)
    most = nets.write(store.folder(run), text, options, dataset, store.home)
    store.update("run", run, max_iter=most, state="running", lease=1)
    spent, calls = _timed(lambda: worker.train(StoreRunAccess(store, run, 1)))
    row = store.one("run", run)
    assert row is not None
    size = max(file.stat().st_size for file in store.folder(run).glob("*.jdsnap"))
    print(f"{key} {side} x {side}, {row['state']} after {row['iteration']} iterations, {epochs} epochs, "
          f"snapshots of {size / 2**20:.2f} MiB", flush=True)  # fmt: skip
    clock, processor = spent["the training"]
    for name, (seconds, busy) in spent.items():
        print(f"  {name}: {calls[name]} times, {seconds:.3f} s ({seconds / clock:.2%}), "
              f"on the processor {busy:.3f} s ({busy / processor:.2%})", flush=True)  # fmt: skip


def _timed(run: Callable[[], object]) -> tuple[dict[str, tuple[float, float]], dict[str, int]]:
    spent: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    calls: dict[str, int] = defaultdict(int)
    kept = [(owner, method, getattr(owner, method)) for owner, method, _ in _TIMED]

    def wrap(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        depth = 0

        def timed(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            begun, busy = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                depth -= 1
                if not depth:  # tell calls itself
                    seconds, processor = spent[name]
                    spent[name] = (
                        seconds + time.perf_counter() - begun, processor + time.thread_time() - busy
                    )  # fmt: skip
                    calls[name] += 1

        return timed

    for owner, method, name in _TIMED:
        setattr(owner, method, wrap(getattr(owner, method), name))
    try:
        run()
    finally:
        for owner, method, function in kept:
            setattr(owner, method, function)
    return dict(spent), dict(calls)
