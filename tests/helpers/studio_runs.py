"""Small runs for the tests of the studio: data, a net with all that a resume could lose, and a row in the store."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.studio.store import Row, Store
from jitdnn.studio.work import worker

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["jitdnn.studio.work.worker", "jitdnn.caffe.databases", "llvmlite.binding"])

# dropout, random crops and mirrors, a test that does not end where the data do
NET = """
name: "small"
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        data_param { source: "images.npz" batch_size: 7 }
        transform_param { crop_size: 6 mirror: true scale: 0.01 } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
        data_param { source: "images.npz" batch_size: 5 }
        transform_param { crop_size: 6 scale: 0.01 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "net.prototxt"
type: "SGD" lr_policy: "step" stepsize: 40 gamma: 0.8 base_lr: %(rate)g momentum: 0.9 weight_decay: 0.001
max_iter: %(max_iter)d snapshot: %(snapshot)d random_seed: 5 display: 0
"""


def make_run(
    store: Store,
    max_iter: int = 60,
    *,
    snapshot: int = 20,
    test: int = 15,
    rate: float = 0.05,
    net: str = NET,
    **values: Any,
) -> int:
    """Add a queued run of `max_iter` iterations, with its files, and return its number."""
    options = {"batch": 7} | values.pop("options", {})
    run = store.insert("run", name="small", max_iter=max_iter, options=options, **values)
    folder = store.folder(run)
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 40)
    data = random.integers(0, 100, (40, 2, 8, 9)) + 50 * labels[:, None, None, None]
    np.savez(folder / "images.npz", data=data.astype(np.uint8), label=labels)
    (folder / "net.prototxt").write_text(net)
    fields = {"max_iter": max_iter, "snapshot": snapshot, "rate": rate}
    testing = f"test_interval: {test} test_iter: 3\n" if test else ""
    (folder / "solver.prototxt").write_text(SOLVER % fields + testing)
    return run


def begin(store: Store, run: int) -> int:
    """What the queue does at a start: a new lease, the state running. Returns the lease."""
    row = store.one("run", run)
    assert row is not None
    store.update("run", run, state="running", lease=row["lease"] + 1, intent="")
    return int(row["lease"]) + 1


class Worker:
    """A worker's process, forked from one that has imported everything already."""

    def __init__(self, home: Path, run: int, lease: int, before: str) -> None:
        self._process = _CONTEXT.Process(target=_work, args=(str(home), str(run), str(lease), before))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float = 100.0) -> int:
        """The exit code; a worker that takes longer is killed."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"the worker runs for longer than {seconds} seconds")
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()


def start_worker(store: Store, run: int, lease: int, *before: str) -> Worker:
    """The worker of a lease as a process; `before` are lines of Python that it runs first."""
    return Worker(store.home, run, lease, "\n".join(before))


def _work(home: str, run: str, lease: str, before: str) -> None:
    log = os.open(f"{home}/runs/{run}/worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    exec(before, {})
    sys.exit(worker.main([home, run, lease]))


def row_of(store: Store, run: int) -> Row:
    """The row of a run that is there."""
    row = store.one("run", run)
    assert row is not None
    return row


def curves_of(store: Store, run: int) -> dict[str, list[list[float]]]:
    """All points of a run but the times, after a check that each is there once."""
    found = store.since(run, 0, most=10_000_000).points
    for name, (iterations, _) in found.items():
        assert len(set(iterations)) == len(iterations), name
    plain = {
        name: sorted(zip(*pair, strict=True)) for name, pair in found.items() if not name.startswith("time/")
    }
    return {name: [list(column) for column in zip(*points, strict=True)] for name, points in plain.items()}


def weights_of(store: Store, run: int, max_iter: int) -> dict[str, bytes]:
    """The bytes of all arrays of the last snapshot, those of the best weights, and the states of generators."""
    from jitdnn.caffe import snapshot

    folder: Path = store.folder(run)
    last = snapshot.read(folder / f"snap_iter_{max_iter}.jdsnap")
    found = {f"last/{name}": array.tobytes() for name, array in last.arrays.items()}
    with np.load(folder / "best.npz") as best:
        found |= {f"best/{name}": best[name].tobytes() for name in best.files}
    return found | {"layers": repr(last.meta["layers"]).encode()}
