"""Many problems in several processes: a problem that kills its process, or does not end, is found and named."""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuzz.problem import OPERATIONS
from fuzz.run import GROUP, attempt
from fuzz.targets import target

_CURRENT = struct.Struct("qd")  # the number of the problem that a worker is at, and since when
_SECONDS = 300.0  # a problem that takes longer hangs
_ADDRESS_SPACE = 8 << 30  # of a worker, so that no argument can take the memory of the machine


@dataclass
class Tally:
    """What came of a campaign: counts by operation, and the faults."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    most_memory: int = 0

    def add(self, row: dict[str, Any]) -> None:
        """Count one structure's problems."""
        counts = self.counts.setdefault(row["operation"], Counter())
        counts.update(row["counts"])
        self.faults += row["faults"]
        self.met.update(row.get("met", {}))
        self.most_memory = max(self.most_memory, row.get("memory", 0))

    def total(self, what: str) -> int:
        return sum(counts[what] for counts in self.counts.values())

    def table(self) -> str:
        """Counts by operation, and of all."""
        heads = ("problems", "structures", "nonsense", "refused", "not_supported", "faults")
        lines = [f"{'operation':28}" + "".join(f"{head:>14}" for head in heads) + f"{'ms each':>10}"]
        for name, counts in sorted(self.counts.items()):
            each = counts["microseconds"] / 1e3 / max(1, counts["problems"])
            lines.append(f"{name:28}" + "".join(f"{counts[head]:>14}" for head in heads) + f"{each:>10.2f}")
        lines.append(f"{'all':28}" + "".join(f"{self.total(head):>14}" for head in heads))
        kinds = Counter(fault["kind"] for fault in self.faults)
        lines.append(
            f"{self.total('problems')} problems of {self.total('structures')} structures "
            f"and {len(self.counts)} operations "
            f"in {self.seconds:.0f} s: "
            + ", ".join(
                f"{kinds[k]} {k}" for k in ("wrong", "outside", "raw", "slow", "crash", "hang", "oracle")
            )
        )
        lines += [f"{count:8} {what}" for what, count in sorted(self.met.items())]
        lines.append(f"largest worker {self.most_memory / 2**20:.0f} MiB")
        return "\n".join(lines)


def schedule(seed: int, operations: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(operation, group) without end: each operation as often as it weighs, in random order."""
    order = random.Random(seed)
    deck = [name for name in operations for _ in range(OPERATIONS[name].weight)]
    following = dict.fromkeys(operations, 0)
    while True:
        order.shuffle(deck)
        for name in deck:
            yield name, following[name]
            following[name] += 1


class _Worker:
    """A process that runs groups of problems, and where it is."""

    def __init__(self, seed: int, where: str, group: int) -> None:
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._file.truncate(mmap.PAGESIZE)
        self._map = mmap.mmap(self._file.fileno(), mmap.PAGESIZE)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [
            sys.executable,
            str(Path(__file__).parent),
            "worker",
            str(seed),
            where,
            str(group),
            self._file.name,
        ]
        # PyTorch is an oracle on the CPU, and shall not look for GPUs
        hidden = {} if where == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            command,
            env=os.environ | hidden,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
        )
        self.task: tuple[str, int] | None = None
        self.buffer = b""

    def give(self, task: tuple[str, int]) -> None:
        self.task = task
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died between two tasks, which is seen when it is read from
            self.process.stdin.write(f"{task[0]} {task[1]}\n".encode())

    @property
    def current(self) -> tuple[int, float]:
        return _CURRENT.unpack_from(self._map)  # type: ignore[return-value]

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")[-2000:]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self._map, self._file, self.errors):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()


def run(
    seed: int, operations: Sequence[str], where: str, problems: int | None, seconds: float | None, workers: int,
    log: IO[str], group: int = GROUP, faults_file: Path | None = None,
) -> Tally:  # fmt: skip
    """Run problems until there were so many, or the time is over."""
    tally, start = Tally(), time.monotonic()
    tasks = schedule(seed, operations)
    given = 0
    faults_out = faults_file.open("a") if faults_file else None
    selector = selectors.DefaultSelector()

    def more() -> bool:
        is_time = seconds is None or time.monotonic() - start < seconds
        return is_time and (problems is None or given < problems)

    def begin(task: tuple[str, int] | None = None) -> None:
        nonlocal given
        worker = _Worker(seed, where, group)
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        worker.give(task or next(tasks))
        given += group if task is None else 0

    def note(row: dict[str, Any]) -> None:
        tally.add(row)
        for fault in row["faults"]:
            known = sum(
                f["operation"] == fault["operation"] and f["kind"] == fault["kind"] for f in tally.faults
            )
            if known <= 12:
                name = f"{seed} {fault['operation']} {fault['number']}"
                log.write(f"{fault['kind']}: {name}: {fault['message']}\n    {fault['problem']}\n")
                log.flush()
            if faults_out:
                faults_out.write(json.dumps({"seed": seed, "target": where, **fault}) + "\n")
                faults_out.flush()

    def lost(worker: _Worker, kind: str, why: str) -> None:
        """A worker died: its problem is a fault, and what follows in the group goes to another."""
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        assert worker.task is not None
        operation, _ = worker.task
        number, _ = worker.current
        words = worker.last_words()
        worker.end()
        fault = {
            "operation": operation,
            "number": number,
            "kind": kind,
            "message": f"{why} {words}",
            "problem": "",
        }
        note({"operation": operation, "counts": {"problems": 1, "faults": 1}, "faults": [fault]})
        if more():
            begin()

    for _ in range(workers):
        begin()
    shown = start
    while selector.get_map():
        for key, _ in selector.select(timeout=1.0):
            worker: _Worker = key.data
            assert worker.process.stdout is not None
            data = os.read(worker.process.stdout.fileno(), 1 << 20)
            if not data:
                code = worker.process.wait()
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                lost(worker, "crash", f"the process died: {name}")
                continue
            worker.buffer += data
            while b"\n" in worker.buffer:
                line, worker.buffer = worker.buffer.split(b"\n", 1)
                note(json.loads(line))
                if more():
                    worker.give(next(tasks))
                    given += group
                else:
                    selector.unregister(worker.process.stdout)
                    worker.end()
        for key in list(selector.get_map().values()):
            _, since = key.data.current
            if since and time.monotonic() - since > _SECONDS:
                lost(key.data, "hang", f"no end within {_SECONDS:.0f} s")
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            rate = tally.total("problems") / (shown - start)
            log.write(f"{shown - start:6.0f} s: {tally.total('problems')} problems, {rate:.0f} a second, "
                      f"{len(tally.faults)} faults\n")  # fmt: skip
            log.flush()
    tally.seconds = time.monotonic() - start
    if faults_out:
        faults_out.close()
    return tally


def work(seed: int, where: str, group: int, current: str) -> None:
    """A worker's life: groups of problems from standard input, a line of JSON for each."""
    with open(current, "r+b") as file:
        place = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    if where != "cuda":
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    chosen = target(where)
    output = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not meet the lines of JSON
    for line in sys.stdin:
        operation, index = line.split()
        counts: Counter[str] = Counter(structures=1)
        faults = []
        met: Counter[str] = Counter()
        begin = time.monotonic()
        for number in range(int(index) * group, (int(index) + 1) * group):
            _CURRENT.pack_into(place, 0, number, time.monotonic())
            outcome = attempt(seed, operation, number, chosen, group=group)
            counts["problems"] += 1
            met.update(outcome.met)
            counts["nonsense"] += outcome.nonsense
            if outcome.refused:
                is_missing = outcome.refused.startswith("NotSupported")
                counts["not_supported" if is_missing and not outcome.nonsense else "refused"] += 1
            if outcome.fault is not None:
                counts["faults"] += 1
                faults.append({
                    "operation": operation, "number": number, "kind": outcome.fault.kind,
                    "message": str(outcome.fault)[:1000], "problem": outcome.problem[:2000],
                })  # fmt: skip
        _CURRENT.pack_into(place, 0, 0, 0.0)
        counts["microseconds"] = int((time.monotonic() - begin) * 1e6)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        row = {"operation": operation, "counts": counts, "faults": faults, "met": met, "memory": memory}
        os.write(output, json.dumps(row).encode() + b"\n")
