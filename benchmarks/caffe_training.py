"""Training iterations (forward, backward, update) of Caffe's nets: ours, Caffe's own way in this framework, PyTorch.

    python benchmarks/caffe_training.py [--net caffenet] [--batch 256] [--device cuda] [--math fp32] [--steps 20]
        [--way ours] [--way ours-no-graph] [--way caffe] [--way torch] [--way torch-last] [--json FILE]

Ways, each in a process of its own, one after another:

    ours              as it is; ours-no-graph: without CUDA graphs; ours-unfused: without fusion either;
                      ours-limited: under a limit on memory (--memory), on the processor; ours-packed: blobs
                      of a GPU as (N, C, H, W); ours-kept: all blobs keep data and gradient after an iteration
    caffe             im2col and a product by BLAS for each image (caffe_im2col.py); on the processor algorithm="im2col"
                      for convolutions instead, which multiplies by NumPy's BLAS. All blobs are kept, as Caffe's
    torch             the same net in eager PyTorch (caffe_in_torch.py) with torch.optim.SGD; torch-last: channels last;
                      torch-bf16: channels last, autocast to bfloat16

A row has the milliseconds of an iteration (the median of single ones, each waited for, and the mean of all without
waiting), the processor's time of all threads, seconds (compilers and all) and loss of the first iteration, and the
bytes of device memory that the process holds after all of them (on the processor: the greatest resident size).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

import jitdnn as jd
from caffe_nets import NETS
from jitdnn.caffe import Solver, load_net, load_solver

SOLVER = (
    'base_lr: 0.0001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 max_iter: 1000000 random_seed: 1 '
    "snapshot_after_train: false "
)
WAYS = ("ours", "caffe", "torch")


def ours(options: argparse.Namespace, way: str) -> tuple[Callable[[], Any], Callable[[], None], Any]:
    """A step of a solver, what waits for it, and the solver."""
    text = f"net_param {{ {NETS[options.net](options.batch)} }} {SOLVER}"
    arguments: dict[str, Any] = {
        "device": options.device,
        "graph": way in ("ours", "ours-packed", "ours-kept"),
    }
    arguments["fuse"] = way in ("ours", "ours-no-graph", "ours-limited", "ours-packed", "ours-kept")
    arguments["keep_blobs"] = way in ("ours-kept", "caffe")
    arguments["channels_last"] = False if way in ("ours-packed", "caffe") else None
    if way == "ours-limited":
        arguments["memory_limit"] = options.memory
    context: Any = nullcontext()
    if way == "caffe":
        if options.device == "cpu":
            arguments["algorithm"] = "im2col"
        else:
            from caffe_im2col import caffes_own_way

            context = caffes_own_way()
    with context:
        solver = load_solver(text, **arguments)
    device = solver.net.device
    return lambda: solver.step(1), (lambda: None) if device is None else device.synchronize, solver


def theirs(options: argparse.Namespace, way: str) -> tuple[Callable[[], Any], Callable[[], None], Any]:
    """A step of PyTorch, what waits for it, and what returns the loss."""
    import torch
    from caffe_in_torch import TorchNet

    where = "cuda" if options.device.startswith("cuda") else "cpu"
    is_tf32 = options.math == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = True
    net = load_net(NETS[options.net](options.batch), "TRAIN", seed=1)
    module = TorchNet(net).to(where)
    data, label = (torch.from_numpy(_first(net, name)).to(where) for name in ("data", "label"))
    label = label.long()
    if way != "torch":
        module, data = (
            module.to(memory_format=torch.channels_last),
            data.to(memory_format=torch.channels_last),
        )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0001, momentum=0.9, weight_decay=0.0005)
    cast = torch.autocast(where, torch.bfloat16) if way == "torch-bf16" else nullcontext()
    losses: list[Any] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = module(data, label)
        loss.backward()
        optimizer.step()
        losses[:] = [losses[0] if losses else loss.detach()]

    return step, torch.cuda.synchronize if where == "cuda" else lambda: None, losses


def _first(net: Any, name: str) -> np.ndarray[Any, Any]:
    """What a source fills a blob with."""
    net.nodes[0].layer.forward(net.nodes[0].bottom, net.nodes[0].top)
    return np.array(net.blobs[name].data)


def memory_in_use(device: str) -> int:
    """Bytes of the GPU that are not free, or the greatest resident size of this process."""
    if device == "cpu":
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not device.startswith("cuda"):
        return 0
    from jitdnn.devices.cuda_driver import check, current, driver

    with current(0):
        free, total = check(driver().cuMemGetInfo(), "memory")
    return int(total) - int(free)


def measure(options: argparse.Namespace, way: str) -> dict[str, Any]:
    """Time one way in this process."""
    before = memory_in_use(options.device) if options.device != "cpu" else 0
    with jd.settings(math=options.math):
        step, wait, state = (theirs if way.startswith("torch") else ours)(options, way)
        first, begin = None, perf_counter()
        for _ in range(options.warm):
            step()
            wait()
            if first is None:
                first_seconds = perf_counter() - begin
                first = float(state._losses[-1]) if isinstance(state, Solver) else float(state[0])
        single = []
        for _ in range(options.steps):
            start = perf_counter()
            step()
            wait()
            single.append(perf_counter() - start)
        start, used = perf_counter(), process_time()
        for _ in range(options.steps):
            step()
        wait()
        mean = (perf_counter() - start) / options.steps
        used = (process_time() - used) / options.steps
    return {
        "net": options.net,
        "batch": options.batch,
        "device": options.device,
        "math": options.math,
        "way": way,
        "ms": 1e3 * statistics.median(single),
        "ms_mean": 1e3 * mean,
        "ms_processor": 1e3 * used,
        "images_per_second": options.batch / mean,
        "first_seconds": first_seconds,
        "first_loss": first,
        "bytes": memory_in_use(options.device) - before,
    }


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", choices=NETS, default="caffenet")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=4, help="iterations before the clock starts")
    parser.add_argument("--threads", type=int, help="of the processor")
    parser.add_argument("--way", action="append", default=[])
    parser.add_argument(
        "--memory", default="least", help="of ours-limited: 900MiB, or the least that there is"
    )
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    parser.add_argument("--here", action="store_true", help="measure the one way in this process")
    options = parser.parse_args()
    if options.here:
        say(json.dumps(measure(options, options.way[0])))
        return
    rows: list[dict[str, Any]] = []
    shared = ("net", "batch", "device", "math", "steps", "warm", "memory")
    given = [part for name in shared for part in (f"--{name}", str(getattr(options, name)))]
    for way in options.way or WAYS:
        command = [sys.executable, __file__, *given, "--way", way, "--here"]
        environment = dict(os.environ)
        if options.threads:
            names = ("JITDNN_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            environment |= dict.fromkeys(names, str(options.threads))
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            say(f"{way}: failed with {done.returncode}")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        ratio = f"{row['ms_mean'] / rows[0]['ms_mean']:.2f} x {rows[0]['way']}"
        say(
            f"{row['net']} N={row['batch']} {row['device']} {row['math']} {way}: {row['ms_mean']:.2f} ms ({ratio}; "
            f"single {row['ms']:.2f}, processor's time {row['ms_processor']:.2f}), "
            f"{row['images_per_second']:.0f} images/s, first after {row['first_seconds']:.1f} s, "
            f"loss {row['first_loss']:.4f}, "
            f"{row['bytes'] / 2**20:.0f} MiB",
        )
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
