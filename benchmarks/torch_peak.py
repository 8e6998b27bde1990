"""Peak memory of networks in PyTorch by each way to call them, every peer in a process of its own.

    python benchmarks/torch_peak.py [MODEL ...] [--what inference training] [--peer NAME ...] [--batch 8] [--side 224]
        [--threads 1] [--device cpu|cuda] [--calls 5] [--measure first|never]
        [--memory-limit 24MiB] [--limit 900] [--json FILE]

On a processor MiB of resident memory. "libraries" is what a network of a few layers costs so called: compilers,
tracers, threads. The others are above that, the model and its input: "first" is the peak of the first two calls, with
compiling and measuring, "kept" what is there between calls then, "steady" the peak of the calls that follow (the
system's high-water mark is set back between). On a GPU the same by its allocator. What earlier processes compiled is
taken from the disk, by all peers. --memory-limit is that of the peer `fused_limited`. Resident memory has holes of the
C library's heap, which grow by chance; with MALLOC_MMAP_THRESHOLD_=65536 in the environment it has nearly none.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from torch_peers import (
    INFERENCE,
    TRAINING,
    add,
    children,
    inference,
    names,
    network,
    training,
    without_dropout,
)

WAYS = {
    "inference": ("eager", "eager_last", "compile", "freezing", "freezing_ours", "fused"),
    "training": ("eager", "eager_last", "compile", "converted", "converted_last", "compile_ours"),
}
MIB = 2**20


class Processor:
    """Resident memory of this process, by Linux."""

    def forget(self) -> None:
        """Let the high-water mark be what is resident now."""
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what was given back may stay with the C library
        Path("/proc/self/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise KeyError(name)

    def now(self) -> int:
        return self._status("VmRSS")

    def peak(self) -> int:
        return self._status("VmHWM")


class Gpu:
    """Memory of PyTorch's allocator."""

    def forget(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def now(self) -> int:
        import torch

        return int(torch.cuda.memory_allocated())

    def peak(self) -> int:
        import torch

        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())


def row(arguments: argparse.Namespace) -> dict[str, Any]:
    """The peaks of one peer."""
    import torch

    torch.set_num_threads(arguments.threads)
    name, peer, what = arguments.models[0], arguments.peer[0], arguments.what[0]
    meter = Gpu() if arguments.device == "cuda" else Processor()
    model = network(name).to(arguments.device)
    x = torch.randn(arguments.batch, 3, arguments.side, arguments.side, device=arguments.device)
    labels = torch.randint(0, 10, (arguments.batch,), device=arguments.device)
    tiny = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10),
    )  # fmt: skip
    tiny = tiny.to(arguments.device).train(what == "training")

    def prepared(model: Any, x: Any) -> Any:
        if what == "training":
            return training(peer, model, x, labels, arguments.measure)[1]
        return inference(peer, model, x, arguments.measure, arguments.memory_limit)

    with torch.set_grad_enabled(what == "training"):
        (tiny(x[..., :16, :16]) ** 2).sum()  # PyTorch's own kernels and threads are there
        meter.forget()
        before = meter.now()
        run = prepared(tiny, x[..., :16, :16].contiguous())
        for _ in range(2):
            run()
        del run, tiny
        meter.forget()
        base = meter.now()
        if what == "training":
            model = without_dropout(model).train()
        run = prepared(model, x)
        del model, x  # peers that copy them have both else
        for _ in range(2):
            run()
        first = meter.peak()
        meter.forget()
        kept = meter.now()
        for _ in range(arguments.calls):
            run()
        steady = meter.peak()
    return {
        "model": name, "what": what, "batch": arguments.batch, "threads": arguments.threads,
        "device": arguments.device, "side": arguments.side, "measure": arguments.measure, "peer": peer,
        "memory_limit": arguments.memory_limit,
        "libraries MiB": (base - before) / MIB,
        "first MiB": (first - base) / MIB, "steady MiB": (steady - base) / MIB, "kept MiB": (kept - base) / MIB,
    }  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """A line for each peer, in MiB."""
    lines = [
        f"{'model':18s}{'what':11s}{'n':>3s}  {'peer':15s}{'libraries':>11s}{'first':>9s}{'kept':>9s}{'steady':>9s}"
    ]
    for one in rows:
        numbers = "".join(f"{one[f'{name} MiB']:9.0f}" for name in ("first", "kept", "steady"))
        numbers = f"{one['libraries MiB']:11.0f}{numbers}"
        lines.append(f"{one['model']:18s}{one['what']:11s}{one['batch']:3d}  {one['peer']:15s}{numbers}")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--what", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--peer", nargs="+", choices=sorted({*INFERENCE, *TRAINING}))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--memory-limit")
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = arguments.models or names()
    known = {"inference": INFERENCE, "training": TRAINING}
    asked = [
        (name, what, peer)
        for name, what in product(models, arguments.what)
        for peer in arguments.peer or WAYS[what]
        if peer in known[what]
    ]
    failures: list[str] = []
    if len(asked) == 1:
        arguments.models = models
        arguments.peer = [asked[0][2]]
        rows = [row(arguments)]
        sys.stderr.write(json.dumps(rows[0]) + "\n")
        if arguments.json is not None:
            add(rows, arguments.json)
    else:
        same = ["--batch", str(arguments.batch), "--side", str(arguments.side), "--device", arguments.device]
        same += ["--threads", str(arguments.threads), "--calls", str(arguments.calls)]
        same += ["--measure", arguments.measure]
        if arguments.memory_limit is not None:
            same += ["--memory-limit", arguments.memory_limit]
        calls = [
            (
                {
                    "model": name, "what": what, "batch": arguments.batch, "threads": arguments.threads,
                    "side": arguments.side, "device": arguments.device, "measure": arguments.measure, "peer": peer,
                    "memory_limit": arguments.memory_limit,
                },
                [name, "--what", what, "--peer", peer, *same],
            )
            for name, what, peer in asked
        ]  # fmt: skip
        rows, failures = children(__file__, calls, arguments.limit, arguments.json)
    report(rows)
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
