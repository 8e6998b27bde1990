"""The table of `torch_inductor.py` where compiling takes longest: each model and side a process, all compiling at once.

    python benchmarks/torch_inductor_apart.py [MODEL ...] [--mode default reduce-overhead] [--samples 10] [--again]
        [what torch_inductor.py takes: --batch, --dtype, ...]

Every process compiles its side of a model and runs the first steps, in all modes, beside the others. When all are ready
they time in turns, a sample at a time, nobody else on the GPU. A row is printed as soon as both sides of it are there.
Milliseconds are those of `torch_inductor.py`; `host ms` those until a step is enqueued on a GPU that has nothing to do,
`kernels ms` the sum of its kernels by PyTorch's profiler, and `bound` which of the two is more: where it is the host,
faster kernels gain nothing. `peak MiB` is the most that PyTorch's allocator had handed out in the steps behind the
first one, weights included; steps that record CUDA graphs are among them.
`--parts N` tells beside that, to stderr, what the host's time goes to and which N kernels take longest
(torch_inductor_parts.py). Backward graphs are compiled with forward ones, so that nobody keeps activations meanwhile.
`--in-turn` has ours of each model wait until stock's is compiled in the first mode, for machines of few processors: it
finds those of Triton's kernels that are the same, so that its `first s` is not that of empty caches.
`--again` does all of it a second time in new processes: with what the first ones have kept, `first s` are those of warm
caches.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import torch
import torch_inductor
from torch._functorch import config as functorch_config
from torch_inductor_parts import host_parts, kernel_table

SIDES = ("stock", "ours")
HEAD = (
    f"{'model':20s}{'mode':16s}{'n':>4s}{'stock ms':>9s}{'ours':>8s}{'speed':>7s}{'host ms':>10s}{'ours':>8s}"
    f"{'kernels ms':>12s}{'ours':>8s}{'peak MiB':>10s}{'ours':>8s}"
    f"{'bound':>7s}{'ours':>6s}{'first s':>10s}{'ours':>8s}"
)


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def is_free(path: Path) -> bool:
    """Whether nobody holds it."""
    try:
        with held(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return True
    except BlockingIOError:
        return False


def child(arguments: argparse.Namespace) -> None:
    """One side of one model: a line of JSON for each mode."""
    begun, lock, compiling = perf_counter(), Path(arguments.lock), Path(arguments.lock + ".compiling")
    if arguments.dtype == "f32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch_inductor.register()
    if arguments.explain:
        torch_inductor.explained()
    functorch_config.force_non_lazy_backward_lowering = True
    (name,) = arguments.models
    cells = []
    with held(compiling, fcntl.LOCK_SH):
        compiled = Path(f"{lock}.{name}")
        while arguments.in_turn and arguments.only == "ours" and not compiled.exists():
            sleep(0.1)
        model, x, labels = torch_inductor.problem(name, arguments)
        for mode in arguments.mode:
            if cells and perf_counter() - begun > arguments.ready:
                break
            arguments.mode_has_graphs = mode in torch_inductor.GRAPHS
            begin = perf_counter()  # torch.compile imports its compiler, or the first step does
            peer = torch_inductor.Peer(model, arguments.only == "ours", mode, arguments)
            loss = float(with_memory(partial(peer.step, x, labels), arguments))
            first = perf_counter() - begin
            warm = (
                torch_inductor.WARM_EAGER
                if mode == "eager" and arguments.only == "ours"
                else torch_inductor.WARM
            )
            peak_mebibytes(arguments)
            for _ in range(warm):
                with_memory(partial(peer.step, x, labels), arguments)
            peak = peak_mebibytes(arguments)
            rest(arguments)
            cells.append((mode, peer, loss, first, peak))
            write(f"  {name} {mode} {arguments.only}: first step {first:.1f} s", sys.stderr)
            compiled.touch()  # kernels of Triton's are the same in all modes
    while perf_counter() - begun < arguments.ready and not is_free(compiling):
        sleep(0.1)
    for mode, peer, loss, first, peak in cells:
        arguments.mode_has_graphs = mode in torch_inductor.GRAPHS
        best, host = math.inf, math.inf
        for _ in range(arguments.samples):
            with held(lock, fcntl.LOCK_EX):
                peer.step(x, labels)
                best = min(best, peer.seconds(x, labels))
                for _ in range(3):
                    wait(arguments)
                    begin = perf_counter()
                    peer.step(x, labels)
                    host = min(host, perf_counter() - begin)
                rest(arguments)
            sleep(0.02)
        with held(lock, fcntl.LOCK_EX):
            step = partial(peer.step, x, labels)
            kernels = math.nan
            if arguments.device == "cuda" and arguments.parts:
                host_table = host_parts(step)
                kernels, table = kernel_table(step, arguments.parts)
                write(f"== {name} {mode} {arguments.only}\n{host_table}\n{table}", sys.stderr)
            elif arguments.device == "cuda":
                kernels = torch_inductor.kernel_seconds(step)
            rest(arguments)
        cell = {"model": name, "mode": mode, "side": arguments.only, "batch": len(x), "loss": loss}
        cell |= {"first s": first, "ms": 1e3 * best, "host ms": 1e3 * host, "kernels ms": 1e3 * kernels}
        cell["peak"] = peak
        write(json.dumps(cell))


def with_memory(run: Callable[[], Any], arguments: argparse.Namespace) -> Any:
    """What it gives, once others leave enough of the GPU's memory."""
    for _ in range(60):
        try:
            return run()
        except torch.OutOfMemoryError:
            pass
        rest(arguments)
        sleep(1.0)
    return run()


def wait(arguments: argparse.Namespace) -> None:
    if arguments.device == "cuda":
        torch.cuda.synchronize()


def peak_mebibytes(arguments: argparse.Namespace) -> float:
    """Of PyTorch's allocator on a GPU since this was asked last."""
    if arguments.device != "cuda":
        return math.nan
    wait(arguments)
    most = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return most


def rest(arguments: argparse.Namespace) -> None:
    """Leave the GPU to others, and its memory but for what graphs have recorded."""
    wait(arguments)
    if arguments.device == "cuda" and not arguments.mode_has_graphs:
        torch.cuda.empty_cache()


def parent(arguments: argparse.Namespace) -> None:
    """All sides of all models at once, and their rows."""
    names = arguments.models or list(torch_inductor.MODELS)
    given = sys.argv[1 + len(arguments.models) :]
    with tempfile.TemporaryDirectory() as folder:
        lock = arguments.lock or str(Path(folder) / "lock")
        for _ in range(2 if arguments.again else 1):
            running = []
            for name in names:
                for side in SIDES:
                    command = [sys.executable, __file__, name, *given, "--only", side, "--lock", lock]
                    running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            rows(running)


def rows(running: Sequence[subprocess.Popen[str]]) -> None:
    """Print rows as they come."""
    lines: Queue[str | None] = Queue()

    def read(one: subprocess.Popen[str]) -> None:
        assert one.stdout is not None
        for line in one.stdout:
            lines.put(line)
        one.wait()
        lines.put(None)

    for one in running:
        Thread(target=read, args=(one,)).start()
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    speeds: list[float] = []
    write(HEAD)
    left = len(running)
    while left:
        line = lines.get()
        if line is None:
            left -= 1
            continue
        cell = json.loads(line)
        both = seen.setdefault((cell["model"], cell["mode"]), {})
        both[cell["side"]] = cell
        if len(both) < len(SIDES):
            continue
        stock, ours = (both[side] for side in SIDES)
        bounds = f"{torch_inductor.bound(stock):>7s}{torch_inductor.bound(ours):>6s}"
        speeds.append(stock["ms"] / ours["ms"])
        differ = "" if math.isclose(stock["loss"], ours["loss"], rel_tol=2e-2) else "  the losses differ"
        write(
            f"{cell['model']:20s}{cell['mode']:16s}{cell['batch']:4d}{stock['ms']:9.2f}{ours['ms']:8.2f}"
            f"{speeds[-1]:7.3f}{stock['host ms']:10.2f}{ours['host ms']:8.2f}"
            f"{stock['kernels ms']:12.2f}{ours['kernels ms']:8.2f}{stock['peak']:10.0f}{ours['peak']:8.0f}"
            f"{bounds}{stock['first s']:10.1f}"
            f"{ours['first s']:8.1f}{differ}"
        )
    if speeds:
        mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
        write(f"stock / ours: geometric mean {mean:.3f}, least {min(speeds):.3f}")


def write(line: str, to: Any = sys.stdout) -> None:
    to.write(line + "\n")
    to.flush()


def main() -> None:
    made = torch_inductor.parser(__doc__)
    made.add_argument("--samples", type=int, default=10)
    made.add_argument(
        "--ready", type=float, default=900, help="seconds after which compiling is not waited for"
    )
    made.add_argument("--again", action="store_true", help="with warm caches, too")
    made.add_argument("--in-turn", action="store_true")
    made.add_argument("--parts", type=int, default=0, help="how many kernels of a step are told")
    made.add_argument("--only", choices=SIDES, help=argparse.SUPPRESS)
    made.add_argument("--lock", help="a file that other runs of this script at the same time are given, too")
    arguments = torch_inductor.parsed(made)
    if arguments.only is None:
        parent(arguments)
    else:
        child(arguments)


if __name__ == "__main__":
    main()
