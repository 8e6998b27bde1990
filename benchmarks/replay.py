"""Whether a change moved anything: what is planned and generated for lists of problems, on machines on paper.

    python benchmarks/replay.py record before.txt [--suite classic] [--cpu avx512,neon] [--threads 1,8] [--arch sm_90a]
    python benchmarks/replay.py compare before.txt after.txt

A line for each problem and machine: algorithm, parts, workspace, and a hash of the LLVM IR or CUDA C of its kernels.
Nothing is compiled or run. The machines have fixed speeds, so that only the code of this package decides.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jitdnn as jd
from jitdnn.bench.suites import load
from jitdnn.devices import cuda
from jitdnn.devices.cpu import CpuDevice
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.problems.convolution import DIRECTIONS
from jitdnn.rtcg.isa import NAMES, isa
from jitdnn.rtcg.recording import recording

_CLOCK = 3e9  # Hz, of the paper processors: two multiply-adds of a vector each cycle
_BANDWIDTH = 2e10  # bytes per second of all threads
_WORKSPACE = 64 << 20
_C_NAME = re.compile(r"\b[A-Za-z_]\w*")
_GLOBAL, _LOCAL = (re.compile(sign + r'(?:"[^"]*"|[-\w.$]+)') for sign in "@%")
_C_COMMENT, _COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL), re.compile(r";[^\n]*")


@dataclass(frozen=True)
class PaperCpu(CpuDevice):
    """A processor of an instruction set with the same speed everywhere."""

    @property
    def name(self) -> str:
        return f"paper {self.isa.name} x{self.threads}"

    @property
    def bandwidth(self) -> float:
        return _BANDWIDTH

    def peak_flops(self, dtype: str) -> float:
        lanes = self.isa.lanes("f64" if dtype == "f64" else "f32")
        return 2 * 2 * lanes * _CLOCK * self.threads


def _machine(name: str) -> Any:
    if name.startswith("sm_"):
        return cuda.offline(name)
    processor, _, threads = name.partition(" x")
    return PaperCpu(isa(processor), int(threads))


def _canonical(text: str) -> str:
    """A text of LLVM IR or C without comments, its names replaced by numbers: renaming moves nothing.

    Names are numbered as they appear, those of IR's registers and blocks anew in each function.
    """
    if "\ndefine " not in text:
        return " ".join(_numbered(_C_NAME, _C_COMMENT.sub("", text)).split())
    text = " ".join(_numbered(_GLOBAL, _COMMENT.sub("", text)).split())
    return " define ".join(_numbered(_LOCAL, part) for part in text.split(" define "))


def _numbered(names: re.Pattern[str], text: str) -> str:
    numbers: dict[str, int] = {}
    return names.sub(lambda found: f"_{numbers.setdefault(found[0], len(numbers))}", text)


def _line(task: tuple[str, str, str]) -> str:
    machine, label, text = task
    problem, device = jd.parse(text), _machine(machine)
    with jd.settings(cache_dir=_folder, choice="get"):
        try:
            with recording() as made:
                plan = get(problem, device, Request(workspace_limit=_WORKSPACE))
        except jd.NotSupported as error:
            return f"{machine} | {label} | {text} | refused: {error.message} | -"
    digest = hashlib.sha256()
    for each in made:
        digest.update(f"{_canonical(each.text)}\0".encode())
    return f"{machine} | {label} | {text} | {plan.algorithm}, {plan.workspace} B | {digest.hexdigest()[:16]}"


_folder = Path()


def _start(folder: Path) -> None:
    global _folder
    _folder = folder


def _tasks(suites: list[str], machines: list[str]) -> Iterator[tuple[str, str, str]]:
    for machine in machines:
        for suite in suites:
            for layer in load(suite):
                for direction in DIRECTIONS:
                    dtype, layout = ("bf16", "nhwc") if machine.startswith("sm_") else ("f32", None)
                    problem = layer.stored(dtype, layout).towards(direction).problem
                    yield machine, f"{suite}:{layer.name}", str(problem)


def record(path: Path, suites: list[str], machines: list[str], every: int = 1) -> int:
    """Write the file of lines, of each ``every``-th problem."""
    tasks = list(dict.fromkeys(_tasks(suites, machines)))[::every]
    processes = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        open(path, "w", encoding="utf-8") as out,
        processes.Pool(len(os.sched_getaffinity(0)), _start, (Path(folder),)) as pool,
    ):
        for number, line in enumerate(pool.imap(_line, tasks, 16), 1):
            print(line, file=out)
            if number % 500 == 0:
                print(f"{number} of {len(tasks)}", file=sys.stderr, flush=True)
    return 0


def compare(before: Path, after: Path) -> int:
    """Print what differs; 1 if anything does."""
    old, new = (_read(path) for path in (before, after))
    found: Counter[str] = Counter()
    for key in old.keys() | new.keys():
        (plan, code), (plan_now, code_now) = old.get(key, ("absent", "")), new.get(key, ("absent", ""))
        if plan != plan_now:
            found["plans"] += 1
            print(f"{' | '.join(key)}\n    {plan}\n    {plan_now}")
        elif code != code_now:
            found["code"] += 1
            print(f"{' | '.join(key)}\n    {plan}: other code")
    same = len(old.keys() | new.keys()) - found.total()
    print(
        f"{same} problems are the same, {found['plans']} have other plans, {found['code']} the same plan and other code"
    )
    return int(bool(found))


def _read(path: Path) -> dict[tuple[str, str, str], tuple[str, str]]:
    lines = (line.split(" | ") for line in path.read_text(encoding="utf-8").splitlines())
    return {(machine, label, text): (plan, code) for machine, label, text, plan, code in lines}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("path", type=Path)
    recorder.add_argument(
        "--suite", default="classic,modern", help="names of `jitdnn bench --list`, separated by commas"
    )
    recorder.add_argument("--cpu", default=",".join(NAMES))
    recorder.add_argument("--threads", default="1,8")
    recorder.add_argument("--arch", default="sm_80,sm_90a")
    recorder.add_argument("--every", type=int, default=1, help="only each so-many-th problem: a quick look")
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    machines = [f"{name} x{n}" for name in given.cpu.split(",") if name for n in given.threads.split(",")]
    machines += [arch for arch in given.arch.split(",") if arch]
    return record(given.path, given.suite.split(","), machines, given.every)


if __name__ == "__main__":
    raise SystemExit(main())
