"""Training steps of networks on a GPU in eager PyTorch, stock and converted, in turns in one process.

    python benchmarks/torch_eager.py [MODEL[=BATCH] ...] [--processes 8] [--kernels 8] [--graphs] [--limit SECONDS]
        [what torch_inductor.py takes: --batch, --dtype, --seconds, ...]

Each model is a process, `--processes` of them at a time. They compile beside each other, but whatever runs on the GPU
is alone there, and on a machine of eight cores or more on cores that no compiler has: who compiles leaves the GPU to
the others. A row is printed as soon as it is there. `--processes 0`: one model after another in this process.
`first s`: the first step with compiling and measuring, without the time that a process waited for its turn.
Milliseconds are those of `torch_inductor.py`: `ours` by the way that the converted model
came to run its steps (see `jt.explain`), which is one of those behind it: layers as they were chosen, as the GPU's time
alone chooses them, as the host's and as the sum of both do, and all of them bypassed. `host ms` is the processor's time
until a step is enqueued on a GPU that has nothing to do, `GPU ms` the sum of its kernels by PyTorch's profiler, `MiB`
what a step takes at most of PyTorch's allocator beyond what was there before, each PyTorch's and that of the fastest
way that bypasses not all. With `--measure kernels` there is but one way, layers as the GPU's time alone chooses them,
which stands in all columns, and a model takes a third of the time. `--kernels N` lists the N kernels of both that take
longest. `--graphs` converts the model once more with `graphs=True`, and times these steps beside PyTorch's, in turns: a
second line.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch_inductor
import torch_turns
from torch_inductor import WARM, WARM_EAGER, Peer, host_seconds
from torch_turns import Turn

from jitdnn.frameworks.torch import step_graphs, steps

MODELS = (
    "wav2vec_conformer", "causal_conv1d", "timm:efficientnet_b0", "timm:mobilenetv2_100", "unet3d", "resnet50",
    "resnext50", "timm:regnety_032", "convnext_tiny", "timm:convnext_base", "x3d", "replknet",
)  # fmt: skip
OWN = {"chosen": steps.CHOSEN, "kernels": steps.KERNELS, "host": steps.HOST, "both": steps.BOTH}
WAYS = {**OWN, "bypassed": steps.STOCK}
QUIET = 2  # cores that are left to what is timed
LEARNING = 6  # steps in which modules come to remember their calls
HEAD = (
    f"{'model':22s}{'n':>4s}{'stock ms':>10s}{'ours':>8s}{'speed':>7s}{'chosen':>8s}{'kernels':>9s}{'host':>8s}"
    f"{'both':>8s}{'bypassed':>10s}{'host ms':>9s}{'ours':>8s}{'GPU ms':>9s}{'ours':>8s}{'MiB':>8s}{'ours':>8s}"
    f"{'first s':>9s}{'ours':>8s}"
)


def kernels(run: Callable[[], Any], count: int = 2) -> dict[str, tuple[int, float]]:
    """How often each kernel of a step runs, and its milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            run()
        torch.cuda.synchronize()
    return {
        one.key: (one.count // count, one.device_time_total / count / 1e3)
        for one in found.key_averages()
        if one.device_time_total
    }


def peak(run: Callable[[], Any]) -> float:
    """MiB that a step takes at most, beyond what is there before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def row(name: str, arguments: argparse.Namespace, turn: Turn | None = None) -> None:
    """Measure a model, whose name may have a batch behind it, and print its row."""
    name, _, batch = name.partition("=")
    if batch:
        arguments.batch, arguments.batch_is_given = int(batch), True
    made = torch_inductor.made(name, arguments)
    with nullcontext() if turn is None else turn.held():
        timed(name, made, arguments, turn)


def timed(name: str, made: torch.nn.Module, arguments: argparse.Namespace, turn: Turn | None) -> None:
    """The same of a network that is on the processor still, while nobody else has the GPU."""
    model, x, labels = torch_inductor.problem(name, arguments, made)
    peers = {who: Peer(model, who == "ours", "eager", arguments) for who in ("stock", "ours")}
    del model
    found: dict[str, Any] = {"model": name, "batch": len(x), "dtype": arguments.dtype}
    losses = {}
    runs = {who: partial(peer.step, x, labels) for who, peer in peers.items()}
    for who, run in runs.items():
        torch.cuda.synchronize()
        begin, waited = perf_counter(), turn.waited if turn else 0.0
        losses[who] = float(run())
        found[f"{who} first s"] = perf_counter() - begin - (turn.waited - waited if turn else 0.0)
    if arguments.compile:
        took = f"{found['stock first s']:.1f} and {found['ours first s']:.1f}"
        write(f"  {name}: first steps {took} s", sys.stderr)
        return
    has_ways = arguments.measure == "first"
    for who, run in runs.items():
        for _ in range(WARM if who == "stock" else WARM_EAGER if has_ways else LEARNING):
            run()
    most = 2e-2 if arguments.dtype != "f32" else 1e-4
    is_near = math.isclose(losses["stock"], losses["ours"], rel_tol=most, abs_tol=most)
    trial = steps.of(peers["ours"].model)
    if trial is None:
        found["decided"] = ""
        found.update(least(peers, x, labels, arguments.seconds, {}))
        found.update({f"{what} ms": found["ours ms"] for what in WAYS})
    else:
        decided, taken = trial.decision, trial.way
        found["decided"] = "" if decided is None else decided.reason
        for way in WAYS.values():  # modules remember their calls
            steps.force(peers["ours"].model, way)
            for _ in range(LEARNING):
                runs["ours"]()
        found.update(least(peers, x, labels, arguments.seconds, WAYS))
        found["ours ms"] = next(found[f"{what} ms"] for what, way in WAYS.items() if way == taken)
        steps.force(peers["ours"].model, WAYS[min(OWN, key=lambda what: found[f"{what} ms"])])
    tables = {}
    for who, run in runs.items():
        found[f"{who} host ms"] = 1e3 * host_seconds(run, clock=process_time)
        found[f"{who} MiB"] = peak(run)
        tables[who] = kernels(run)
        found[f"{who} GPU ms"] = sum(ms for _, ms in tables[who].values())
    found["speed"] = found["stock ms"] / found["ours ms"]
    write(line(found) + ("" if is_near else f"  the losses differ: {losses}"))
    for who, table in tables.items():
        for key, (count, ms) in sorted(table.items(), key=lambda one: -one[1][1])[: arguments.kernels]:
            write(f"    {who:6s}{count:5d} x {ms / max(1, count):8.4f} = {ms:8.3f} ms  {key[:90]}")
    if arguments.graphs:
        if trial is not None:
            steps.force(peers["ours"].model, steps.STOCK)
        found.update(replayed(peers["stock"], x, labels, arguments))
    if arguments.json is not None:
        with arguments.json.open("a") as kept:
            kept.write(json.dumps(found) + "\n")


def replayed(
    stock: Peer, x: torch.Tensor, labels: torch.Tensor, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Steps as CUDA graphs: milliseconds beside PyTorch's, the host's, and MiB of the allocator that both hold."""
    ours = Peer(stock.model, True, "eager", arguments, graphs=True)
    held = {}
    for who, peer in (("stock", stock), ("ours", ours)):
        for parameter in peer._parameters:
            parameter.grad = None
        free = held_now()
        for _ in range(1 if who == "stock" else LEARNING + 2):
            peer.step(x, labels)
        held[who] = (torch.cuda.memory_reserved() / 2**20 if who == "stock" else held_now()) - free
    run = partial(ours.step, x, labels)
    best = {"stock": math.inf, "ours": math.inf}
    end = perf_counter() + arguments.seconds
    while perf_counter() < end:
        for who, peer in (("stock", stock), ("ours", ours)):
            best[who] = min(best[who], peer.seconds(x, labels))
    host = host_seconds(run, clock=process_time)
    capture = step_graphs.of(ours.model)
    assert capture is not None
    write(
        f"  as graphs: {1e3 * best['stock']:.2f} and {1e3 * best['ours']:.2f} ms "
        f"({best['stock'] / best['ours']:.3f}), host {1e3 * host:.2f} ms, "
        f"{held['stock']:.0f} and {held['ours']:.0f} MiB held; {'; '.join(capture.reasons)}"
    )
    return {
        "graphs stock ms": 1e3 * best["stock"], "graphs ms": 1e3 * best["ours"], "graphs host ms": 1e3 * host,
        "graphs MiB": held["ours"], "stock held MiB": held["stock"],
    }  # fmt: skip


def held_now() -> float:
    """MiB that PyTorch's allocator holds without what nothing needs."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**20


def least(
    peers: dict[str, Peer], x: torch.Tensor, labels: torch.Tensor, seconds: float, ways: dict[str, str]
) -> dict[str, float]:
    """Milliseconds of a step of PyTorch's and of the converted model, by each way if it has some, samples in turns."""
    best = dict.fromkeys(("stock", *(ways or ("ours",))), math.inf)
    end = perf_counter() + seconds
    while perf_counter() < end:
        for what in best:
            if what in ways:
                steps.force(peers["ours"].model, ways[what])
            best[what] = min(best[what], peers["ours" if what in ways else what].seconds(x, labels))
    return {f"{what} ms": 1e3 * value for what, value in best.items()}


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    text = f"{found['model']:22s}{found['batch']:4d}{found['stock ms']:10.2f}{found['ours ms']:8.2f}"
    text += f"{found['speed']:7.3f}{found['chosen ms']:8.2f}{found['kernels ms']:9.2f}{found['host ms']:8.2f}"
    text += f"{found['both ms']:8.2f}{found['bypassed ms']:10.2f}"
    for what, width, digits in (("host ms", 9, 2), ("GPU ms", 9, 2), ("MiB", 8, 0), ("first s", 9, 2)):
        text += f"{found[f'stock {what}']:{width}.{digits}f}{found[f'ours {what}']:8.{digits}f}"
    return f"{text}  {found['decided']}"


def write(text: str, to: Any = sys.stdout) -> None:
    to.write(text + "\n")
    to.flush()


def apart(names: Sequence[str], arguments: argparse.Namespace) -> None:
    """Each model in a process of its own, so many at a time, for so many seconds at most."""
    end = perf_counter() + arguments.limit
    own = [word for word in sys.argv[1:] if word not in names]
    cores = sorted(os.sched_getaffinity(0))
    quiet = cores[:QUIET] if len(cores) >= 8 else []
    os.sched_setaffinity(0, set(cores).difference(quiet))
    with tempfile.TemporaryDirectory() as folder:
        lock = arguments.lock or str(Path(folder) / "lock")
        own += ["--processes", "0", "--lock", lock, "--quiet", arguments.quiet or ",".join(map(str, quiet))]

        def run(name: str) -> None:
            left = end - perf_counter()
            if left <= 0:
                return
            command = [sys.executable, __file__, name, *own]
            try:
                subprocess.run(command, timeout=left, env={"OMP_NUM_THREADS": "1", **os.environ})
            except subprocess.TimeoutExpired:
                write(f"{name}: no time was left")

        with ThreadPoolExecutor(arguments.processes) as pool:
            list(pool.map(run, names))


def main() -> None:
    made = torch_inductor.parser(__doc__)
    made.add_argument("--processes", type=int, default=8, help="models at a time; 0: one after another")
    made.add_argument("--limit", type=float, default=600.0, help="seconds after which it ends")
    made.add_argument("--kernels", type=int, default=0)
    made.add_argument("--graphs", action="store_true", help="also steps as CUDA graphs")
    made.add_argument("--compile", action="store_true", help="first steps alone")
    torch_turns.add_options(made)
    arguments = torch_inductor.parsed(made)
    arguments.mode_has_graphs = False
    if arguments.dtype == "f32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    names, is_child = arguments.models or list(MODELS), arguments.lock and not arguments.processes
    if not is_child:
        write(f"{arguments.dtype}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n{HEAD}")
    if arguments.processes:
        apart(names, arguments)
        return
    turn = None
    if is_child:
        turn = Turn(arguments.lock, arguments.quiet, True)
        torch_turns.release_to_compile(turn)
    for name in names:
        try:
            row(name, arguments, turn)
        except Exception as problem:  # the other models are measured
            write(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
