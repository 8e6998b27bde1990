"""SIGKILL in the middle of a write: nothing committed is lost, nothing is half there.

    python tests/faults/kill.py store --times 10000
    python tests/faults/kill.py code --times 10000
    python tests/faults/kill.py snapshot --times 1000

A forked child writes without a pause. It says through a pipe which write it begins, and which it has committed. The
parent kills it at a random moment of a write (the duration is measured first, and the moments are spread over it and
somewhat beyond), then reads what was acknowledged before, and looks at the disk:

- what was acknowledged is there, whole, with the content that was written last;
- what was begun and not acknowledged is there whole, or as if it had never been begun;
- nothing was found damaged, and the next child goes on from what is there.

Prints the counts; ends with 1 at the first loss, which it describes. The same seed kills at the same planned moments.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

MESSAGE = struct.Struct("<cqd")  # what, which write, when (of the clock that all processes share)
BEGIN, COMMITTED = b"b", b"c"


class Lost(Exception):
    """What must never happen."""


class Subject(Protocol):
    """Something that is written. Numbers of writes count up, from child to child."""

    def write(self) -> Iterator[int]:
        """In the child: begin write after write, giving each one's number when it begins and again when it is done."""

    def look(self, committed: list[int], begun: int | None) -> bool:
        """In the parent, after the kill: whether `begun` is there. Raises Lost."""

    def finish(self) -> None:
        """In the parent, at the end."""


def child(subject: Subject, pipe: int) -> None:
    begun = False
    for number in subject.write():
        begun = not begun
        os.write(pipe, MESSAGE.pack(BEGIN if begun else COMMITTED, number, time.perf_counter()))


def start(subject: Subject) -> tuple[int, int]:
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(ours)
            child(subject, theirs)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(3)
    os.close(theirs)
    return process, ours


def messages(pipe: int, wanted: int | None = None) -> list[tuple[bytes, int, float]]:
    """The next `wanted` messages, or all that come until the child is dead."""
    content = b""
    while wanted is None or len(content) < wanted * MESSAGE.size:
        size = 1 << 16 if wanted is None else wanted * MESSAGE.size - len(content)
        some = os.read(pipe, size)
        if not some:
            break
        content += some
    return [MESSAGE.unpack_from(content, place) for place in range(0, len(content), MESSAGE.size)]


def told(heard: list[tuple[bytes, int, float]]) -> tuple[list[int], int | None]:
    """The writes that were acknowledged, and the one that was begun and not."""
    committed = [number for kind, number, _ in heard if kind == COMMITTED]
    return committed, heard[-1][1] if heard and heard[-1][0] == BEGIN else None


def duration(subject: Subject) -> float:
    """The seconds that most writes take (nine of ten)."""
    process, pipe = start(subject)
    heard = messages(pipe, 80)
    stop(process)
    heard += messages(pipe)
    os.close(pipe)
    subject.look(*told(heard))
    moments = [moment for _, _, moment in heard[:80]]
    return sorted(end - begin for begin, end in zip(moments[::2], moments[1::2], strict=True))[36]


def stop(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise Lost(f"a writer ended by itself, with {os.waitstatus_to_exitcode(status)}")


def run(subject: Subject, times: int, seed: int) -> dict[str, float]:
    """Kill `times` writers; the counts. Raises Lost."""
    chance = random.Random(seed)
    typical = duration(subject)
    counts = {
        "kills": 0,
        "inside a write": 0,
        "begun and there": 0,
        "begun and absent": 0,
        "committed": 0,
        "lost": 0,
    }
    for _ in range(times):
        process, pipe = start(subject)
        heard = messages(pipe, 1 + 2 * chance.choice((0, 0, 0, 1, 2)))
        until = heard[-1][2] + chance.uniform(0.0, 1.3) * typical
        while time.perf_counter() < until:
            pass
        stop(process)
        heard += messages(pipe)
        os.close(pipe)
        committed, begun = told(heard)
        is_there = subject.look(committed, begun)
        counts["kills"] += 1
        counts["committed"] += len(committed)
        if begun is not None:
            counts["inside a write"] += 1
            counts["begun and there" if is_there else "begun and absent"] += 1
    subject.finish()
    return {**counts, "milliseconds of most writes": round(1e3 * typical, 3)}


class Code:
    """Entries of the code cache under few keys, each write a new content: a kill meets new and replaced entries."""

    KEYS = 40

    def __init__(self, folder: Path) -> None:
        from jitdnn.rtcg.cache import CodeCache

        self.folder, self.cache = folder / "code", CodeCache
        self.there: dict[int, int] = {}
        self.number = 0

    def content(self, number: int) -> bytes:
        size = random.Random(number).choice((0, 100, 5_000, 60_000, 400_000))
        return hashlib.shake_128(str(number).encode()).digest(size) + number.to_bytes(8, "little")

    def key(self, number: int) -> str:
        return hashlib.sha256(str(random.Random(-number).randrange(self.KEYS)).encode()).hexdigest()

    def write(self) -> Iterator[int]:
        cache = self.cache(self.folder, 1 << 30)
        number = self.number
        while True:
            key, content = self.key(number), self.content(number)
            yield number
            cache.put(key, content)
            yield number
            number += 1

    def look(self, committed: list[int], begun: int | None) -> bool:
        cache = self.cache(self.folder, 1 << 30)
        for number in committed:
            self.there[self.key(number)] = number
        is_there = False
        if begun is not None:
            found = cache.get(self.key(begun))
            is_there = found == self.content(begun)
            if is_there:
                self.there[self.key(begun)] = begun
        keys = {self.key(number) for number in (*committed, *(() if begun is None else (begun,)))}
        self.compare(cache, keys)
        self.number = max([self.number, *committed, -1 if begun is None else begun]) + 1
        if self.number % 200 == 0:
            self.finish()
        return is_there

    def compare(self, cache: object, keys: set[str]) -> None:
        for key in keys:
            wanted = None if key not in self.there else self.content(self.there[key])
            found = cache.get(key)
            if found != wanted:
                what = "is gone" if found is None else f"has {len(found)} other bytes"
                raise Lost(f"entry {key}, committed by write {self.there.get(key)}, {what}")

    def finish(self) -> None:
        cache = self.cache(self.folder, 1 << 30)
        self.compare(cache, set(self.there))
        cache.put("0" * 64, b"")  # a process that lives clears up
        left = list(self.folder.glob("*.tmp"))
        if left:
            raise Lost(f"{len(left)} files of dead writers stay: {left[0]}")


class Rows:
    """Transactions of several rows in the tuning store; every so often a new database."""

    def __init__(self, folder: Path) -> None:
        from jitdnn.planner import store

        self.module, self.folder = store, folder
        self.number, self.rounds = 0, 0
        self.wanted: set[int] = set()

    @property
    def path(self) -> Path:
        return self.folder / f"tuning-{self.rounds // 25}.sqlite"

    def rows(self, number: int) -> list[object]:
        count = random.Random(number).randrange(1, 12)
        return [
            self.module.Measurement(
                f"problem {number}",
                "",
                "machine",
                "0.1.0",
                f"algorithm {n}",
                n,
                0.5 + n,
                number,
                1e9 + number,
            )
            for n in range(count)
        ]

    def write(self) -> Iterator[int]:
        store = self.module.Store(self.path)
        number = self.number
        while True:
            rows = self.rows(number)
            yield number
            store.add(rows)
            yield number
            number += 1

    def look(self, committed: list[int], begun: int | None) -> bool:
        found = self.read()
        self.wanted.update(committed)
        is_there = begun is not None and begun in found
        if is_there:
            self.wanted.add(begun)
        self.compare(found)
        self.number = max([self.number, *committed, -1 if begun is None else begun]) + 1
        self.rounds += 1
        if self.rounds % 25 == 0:
            self.wanted = set()
            for file in self.folder.glob("tuning-*"):
                file.unlink()
        return is_there

    def read(self) -> dict[int, list[object]]:
        found: dict[int, list[object]] = {}
        for row in self.module.Store(self.path).rows():
            found.setdefault(row.workspace, []).append(row)
        return found

    def compare(self, found: dict[int, list[object]]) -> None:
        for number in self.wanted - set(found):
            raise Lost(f"the rows of write {number} are gone")
        for number, rows in found.items():
            if number not in self.wanted:
                raise Lost(f"rows of write {number}, which nobody has committed")
            if sorted(rows, key=lambda row: row.key) != sorted(self.rows(number), key=lambda row: row.key):
                raise Lost(f"{len(rows)} rows of write {number}, and there were {len(self.rows(number))}")
        aside = list(self.folder.glob("*.damaged-*"))
        if aside:
            raise Lost(f"a store was found damaged: {aside[0]}")

    def finish(self) -> None:
        self.compare(self.read())


NET = """
  net_param {{
    layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{source}" batch_size: 4 }} }}
    layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
             convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }}
    layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
             inner_product_param {{ num_output: 200 weight_filler {{ type: "gaussian" std: 0.1 }} }} }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
  }}
  lr_policy: "fixed" base_lr: 0.01 momentum: 0.9 max_iter: 1000000 snapshot_prefix: "{prefix}"
"""


class Snapshots:
    """A training that is killed and goes on from its newest snapshot, held against one that nobody has killed."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        from jitdnn.caffe import load_solver, snapshot

        numbers = np.random.default_rng(0)
        images = numbers.integers(0, 256, (30, 2, 12, 12), np.uint8)
        np.savez(folder / "images.npz", data=images, label=numbers.integers(0, 10, 30))
        self.folder, self.prefix, self.snapshot = folder, str(folder / "run"), snapshot
        text = NET.format(source=folder / "images.npz", prefix=self.prefix)
        self.undisturbed, self.checker = load_solver(text, seed=5), load_solver(text, seed=6)
        self.states: dict[int, str] = {}
        self.undisturbed.snapshot()

    def state_of(self, solver: object) -> str:
        digest = hashlib.sha256()
        for parameter in solver.net.parameters:
            digest.update(parameter.blob.data.tobytes())
            digest.update(solver.method.history[parameter.name].tobytes())
        return digest.hexdigest()

    def state(self, iteration: int) -> str:
        """What an undisturbed training holds after `iteration`."""
        while self.undisturbed.iteration < iteration:
            self.undisturbed.step(1)
            self.states[self.undisturbed.iteration] = self.state_of(self.undisturbed)
        return self.states[iteration]

    def write(self) -> Iterator[int]:
        solver = self.checker
        solver.restore(self.snapshot.newest(self.prefix))
        while True:
            solver.step(1)
            yield solver.iteration
            solver.snapshot()
            yield solver.iteration

    def look(self, committed: list[int], begun: int | None) -> bool:
        is_there = False
        for iteration in (*committed, *(() if begun is None else (begun,))):
            path = self.snapshot.path_of(self.prefix, iteration)
            if iteration == begun and not path.exists():
                continue
            is_there = iteration == begun
            self.restore(path, iteration)  # raises if it is damaged
        newest = self.snapshot.newest(self.prefix)
        last = begun if is_there else max(committed, default=None)
        if newest is None or (last is not None and newest != self.snapshot.path_of(self.prefix, last)):
            raise Lost(f"the newest snapshot is {newest}, and iteration {last} was written")
        iteration = int(newest.stem.rpartition("_")[2])
        if iteration:
            self.restore(newest, iteration)
        self.checker.restore(newest)
        self.checker.step(1)
        if self.state_of(self.checker) != self.state(iteration + 1):
            raise Lost(f"the training that goes on from {newest} is another one")
        for path in self.folder.glob("run_iter_*"):
            if path != newest:
                path.unlink()
        return is_there

    def restore(self, path: Path, iteration: int) -> None:
        self.checker.restore(path)
        if self.state_of(self.checker) != self.state(iteration):
            raise Lost(f"{path} is of another state")

    def finish(self) -> None:
        self.checker.restore(self.snapshot.newest(self.prefix))
        self.checker.snapshot()
        left = list(self.folder.glob(".*"))
        if left:
            raise Lost(f"{len(left)} files of dead writers stay: {left[0]}")


SUBJECTS = {"store": Rows, "code": Code, "snapshot": Snapshots}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jitdnn-kill-", dir=given.folder))
    os.environ["JITDNN_CACHE_DIR"] = str(folder / "cache")
    start = time.time()
    try:
        counts = run(SUBJECTS[given.subject](folder), given.times, given.seed)
    except Lost as error:
        sys.stdout.write(f"LOST: {error}\n  seed {given.seed}; the files are in {folder}\n")
        return 1
    shutil.rmtree(folder)
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    sys.stdout.write(f"{given.subject}: {said}; {time.time() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
