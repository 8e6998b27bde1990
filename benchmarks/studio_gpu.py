"""Trainings at GPUs' places of a studio: `benchmarks/studio.py gpu` comes here.

Nets learn the digits that come with the package at the GPU's place, with each math, and LeNet at the processor's beside
them. What a run tells must be true: it runs where it was sent, its load, memory and temperature are drawn, it learns, a
pause and a killed worker lose no iteration, and where there are two GPUs one run takes both.
"""

# ruff: noqa: T201

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from studio_kills import workers_of

from jitdnn.studio import nets
from jitdnn.studio.client import Client
from jitdnn.studio.data.built_in import DIGITS
from jitdnn.studio.work.gpu_load import BUSY, DEGREES, MEMORY
from studio_browser import running

_PACE = "time/iteration"
#: net, side of its images, epochs, batch, learning rate
_TRAININGS = (
    ("lenet", 28, 10, 64, 0.01),
    ("resnet18", 64, 6, 64, 0.02),
    ("mobilenet_v2", 64, 6, 64, 0.02),
)


def gpu(home: Path, place: str = "cuda:0") -> None:
    """Train nets at a GPU's place, and LeNet at the processor's, too; exit with 1 where a promise does not hold."""
    with running(home) as server:
        studio = Client(home=home)
        devices = _devices(studio)
        print(f"places: {', '.join(devices)}")
        faults: list[str] = []
        if place not in devices:
            sys.exit(f"FAILED: {place} is no place of this machine")
        sets = {side: _digits(studio, side) for side in dict.fromkeys(each[1] for each in _TRAININGS)}
        for key, side, epochs, batch, rate in _TRAININGS:
            options = {"epochs": epochs, "batch": batch, "rate": rate, "patience": 0}
            for math in ("fp32", "tf32"):
                faults += _train(studio, sets[side], key, place, math, options)
        faults += _interrupted(home, studio, sets[28], place)
        if "cuda:1" in devices:
            server.ask("PATCH", "/api/settings", {"together": ["cuda:0+cuda:1"]})
            options = {"epochs": 6, "batch": 128, "rate": 0.02, "patience": 0}
            faults += _train(studio, sets[64], "resnet18", "cuda:0+cuda:1", "tf32", options)
        faults += _train(studio, sets[28], "lenet", "cpu", "fp32", {"epochs": 10, "batch": 64, "rate": 0.01})
    if faults:
        sys.exit("\n".join(["FAILED:", *faults]))
    print("each run was where it was sent, learned, and told its place's load")


def _devices(studio: Client) -> list[str]:
    end = time.monotonic() + 60
    while True:  # the server looks for GPUs behind its first answers
        devices = [each["device"] for each in studio.get("/api/queue")["places"]]
        if devices or time.monotonic() > end:
            return devices
        time.sleep(0.1)


def _digits(studio: Client, side: int) -> int:
    row = studio.create_dataset(DIGITS, f"Digits {side}", width=side, height=side, grey=True)
    if row["state"] != "ready":
        sys.exit(f"FAILED: a data set is {row['state']}: {row['message']}")
    return int(row["id"])


def _net(key: str) -> str:
    return str(next(each["text"] for each in nets.gallery("classification") if each["key"] == key))


def _train(
    studio: Client, dataset: int, key: str, wants: str, math: str, options: dict[str, Any]
) -> list[str]:
    begun = time.monotonic()
    started = studio.start(dataset, _net(key), f"{key} {wants} {math}", wants=wants, math=math, **options)
    run = studio.wait(started["id"], seconds=200)
    seconds = time.monotonic() - begun
    name = f"{key}, batch {options['batch']}, {wants}, {math}"
    if run["state"] != "done":
        return [f"{name}: {run['state']}: {run['message']}"]
    curves = studio.series(run["id"], (_PACE, BUSY, MEMORY, DEGREES))
    pace = median(_values(curves, _PACE) or [float("nan")])
    right = studio.evaluate(run["id"], part="test")["summary"]["accuracy"]
    told = ""
    if wants.startswith("cuda"):
        parts = [_values(curves, series) for series in (BUSY, MEMORY, DEGREES)]
        if not all(parts):
            return [f"{name}: no load was told"]
        told = (
            f"; load {len(parts[0])} times, median {100 * median(parts[0]):.0f} %, "
            f"memory to {100 * max(parts[1]):.1f} %, {min(parts[2]):.0f} to {max(parts[2]):.0f} degrees"
        )
    print(
        f"{name}: {seconds:.1f} s in all, {1e3 * pace:.2f} ms an iteration ({options['batch'] / pace:.0f} images/s), "
        f"test {100 * right:.1f} %{told}",
        flush=True,
    )
    return [] if right > 0.9 else [f"{name}: only {100 * right:.1f} % of the test images are right"]


def _interrupted(home: Path, studio: Client, dataset: int, place: str) -> list[str]:
    """A run is paused and resumed, and its worker killed: the same weights as of one that was let alone."""
    options = {"epochs": 20, "batch": 64, "rate": 0.01, "patience": 0, "math": "tf32"}
    found = []
    for is_disturbed in (False, True):
        run = studio.start(dataset, _net("lenet"), "interrupted", wants=place, **options)
        number = run["id"]
        if is_disturbed:
            _reach(studio, number, 200)
            studio.pause(number)
            if studio.wait(number, seconds=60)["state"] != "paused":
                return ["a run at a GPU was not paused within a minute"]
            studio.resume(number)
            _reach(studio, number, 500)
            workers = workers_of(home, number)
            if not workers:
                return ["the worker of a run at a GPU has no process that could be killed"]
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        row = studio.wait(number, seconds=200)
        losses = studio.series(number, ("loss",), most=100_000)["loss"]
        found.append((row["state"], [int(at or 0) for at in losses[0]], losses[1]))
    (state, at, losses), (other, at_other, losses_other) = found
    print(
        f"paused, resumed and killed: {other}, {len(at_other)} losses, {len(at)} undisturbed; "
        f"{'equal' if losses == losses_other else 'not equal'} bit by bit"
    )
    is_whole = state == other == "done" and at == at_other == sorted(set(at_other))
    return [] if is_whole else ["a run at a GPU lost or doubled iterations by a pause and a kill"]


def _reach(studio: Client, number: int, iteration: int) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        row = studio.run(number)
        if (row["iteration"] or 0) >= iteration or row["state"] not in ("queued", "running"):
            return
        time.sleep(0.02)


def _values(curves: dict[str, list[list[float | None]]], name: str) -> list[float]:
    return [value for value in curves.get(name, [[], []])[1] if value is not None]
