"""Images a second of one and of several GPUs (or processes on processors), weak and strong, and how much of the
exchange is hidden:

    python benchmarks/distributed_scaling.py --net caffenet --gpus 2 --batch 256
    python benchmarks/distributed_scaling.py --net resnet50 --gpus 2 --batch 64 --math tf32 --data
    python benchmarks/distributed_scaling.py --net lenet --device cpu --gpus 2 --batch 64

With --data images come from memory-mapped arrays. --timeline FILE keeps when each kernel of two iterations ran on the
first GPU in the weak run (with --kind strong in that), by PyTorch's profiler; distributed_timeline.py draws it.

Weak: each process has --batch images. Strong: all together have them. "exchange alone" is the time of all buckets one
behind the other with nothing else going on, "hidden" the part of it that an iteration does not show: 1 - (iteration
with exchange - iteration without) / exchange alone. Lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import caffe_nets
import jitdnn as jd
from jitdnn.caffe import data_parallel, load_solver
from jitdnn.distributed import start

NETS = {"caffenet": caffe_nets.caffenet, "googlenet": caffe_nets.googlenet, "resnet50": caffe_nets.resnet50}
SIDES = {"caffenet": 227, "googlenet": 224, "resnet50": 224}
SOLVER = "base_lr: 0.001 lr_policy: 'fixed' momentum: 0.9 weight_decay: 0.0005 snapshot_after_train: false\n"


class Silent:
    """Works of gradients that are not sent."""

    def wait(self) -> None:
        pass


def text_of(options: argparse.Namespace, batch: int) -> str:
    if options.net == "lenet":
        return f"net: '{_lenet(options, batch)}'"
    net = NETS[options.net](batch)
    if options.data:
        first, rest = net.split("\n", 1)
        source = (
            f'layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "{options.folder}" '
            f"batch_size: {batch} }} transform_param {{ crop_size: {SIDES[options.net]} mirror: true }} }}"
        )
        assert "DummyData" in first
        net = source + rest
    return f"net_param {{ {net} }}"


def _lenet(options: argparse.Namespace, batch: int) -> str:
    from jitdnn.caffe import paths

    shipped = Path(paths.find("package:models/lenet.prototxt", None)).read_text()
    path = Path(options.folder) / f"lenet_{batch}_{os.getpid()}.prototxt"
    path.write_text(shipped.replace("batch_size: 64", f"batch_size: {batch}"))
    return str(path)


def work(options: argparse.Namespace) -> None:
    """One process: time iterations with and without the exchange, and the exchange alone."""
    with jd.settings(math=options.math):
        _work(options)


def _work(options: argparse.Namespace) -> None:
    rank = int(os.environ["RANK"])
    device = None if options.device == "cpu" else f"cuda:{rank}"
    group = start(device=device, timeout=120)
    if options.bucket_mib:
        data_parallel.BUCKET_BYTES_OF_GPUS = options.bucket_mib << 20
    more: dict[str, Any] = {} if device is None else {"device": device}
    made = load_solver(
        SOLVER + text_of(options, options.batch),
        seed=1,
        group=group,
        wire=options.wire,
        batch_norm=options.batch_norm,
        shards_state=options.shard_state,
        **more,
    )
    buckets = made._parallel.buckets

    def seconds(iterations: int) -> float:
        _settle(made)
        begin = time.perf_counter()
        made.step(iterations)
        _settle(made)
        return (time.perf_counter() - begin) / iterations

    seconds(options.warm)
    with_exchange = [seconds(options.iterations) for _ in range(options.turns)]
    if options.timeline and made.device is not None:
        profile(lambda: seconds(2), options.timeline if not rank else None)
    alone = []
    for _ in range(options.turns):
        group.gather(b"")
        _settle(made)
        begin = time.perf_counter()
        for bucket in buckets.buckets:
            group.start_sum(buckets.memory[bucket.start : bucket.stop], options.wire).wait()
        _settle(made)
        alone.append(time.perf_counter() - begin)
    own = made._parallel.group
    kept = own.start_sum
    own.start_sum = lambda array, wire="f32": Silent() if array.size > 3 else kept(array, wire)  # type: ignore[method-assign]
    if made._graph is not None:
        made._graph._pieces = []
    seconds(options.warm)
    without = [seconds(options.iterations) for _ in range(options.turns)]
    if not rank:
        row = {
            "seconds": statistics.median(with_exchange),
            "seconds_without_exchange": statistics.median(without),
            "exchange_alone": statistics.median(alone),
            "bytes": int(buckets.size) * 4,
            "buckets": len(buckets.buckets),
        }
        (Path(options.folder) / "row.json").write_text(json.dumps(row))
    group.close()


def profile(run: Callable[[], object], file: str | None) -> None:
    """Run it under PyTorch's profiler, and keep the stream, name, begin and length (us) of each kernel."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
    if file is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [
        [event["args"].get("stream"), event["name"], event["ts"], event["dur"]]
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    Path(file).write_text(json.dumps(kernels))


def _settle(made: Any) -> None:
    if made.device is not None:
        made.device.synchronize()


def spawn(options: argparse.Namespace, size: int, batch: int, folder: Path, *more: str) -> dict[str, Any]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = [
        sys.executable,
        __file__,
        *sys.argv[1:],
        "--worker",
        "--batch",
        str(batch),
        "--folder",
        str(folder),
        *more,
    ]
    processes = []
    for rank in range(size):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        given = {name: str(value) for name, value in place.items()}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        if options.device == "cpu":
            given["JITDNN_THREADS"] = str(options.threads)
        processes.append(subprocess.Popen(words, env={**os.environ, **given}))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"processes ended with {codes}")
    row: dict[str, Any] = json.loads((folder / "row.json").read_text())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", choices=(*NETS, "lenet"), default="caffenet")
    parser.add_argument("--gpus", type=int, default=2, help="processes, each with its GPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--wire", default="f32")
    parser.add_argument("--batch-norm", default="synchronized")
    parser.add_argument("--bucket-mib", type=int, help="size of a bucket on GPUs, instead of the library's")
    parser.add_argument("--shard-state", action="store_true", help="divide the solver's history (ZeRO-1)")
    parser.add_argument("--kind", choices=("weak", "strong", "both"), default="both")
    parser.add_argument(
        "--data", action="store_true", help="images from memory-mapped arrays, cropped and mirrored"
    )
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--math", default="fp32", help="of convolutions and products: fp32, tf32, bf16...")
    parser.add_argument("--timeline", help="file for the kernels of two iterations")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.data:
            random = np.random.default_rng(0)
            np.save(folder / "data.npy", random.integers(0, 256, (2048, 3, 256, 256), np.uint8))
            np.save(folder / "label.npy", random.integers(0, 1000, 2048))
        one = spawn(options, 1, options.batch, folder, "--timeline", "")
        kinds = ("weak", "strong") if options.kind == "both" else (options.kind,)
        for kind in kinds:
            batch = options.batch * (options.gpus if kind == "weak" else 1)
            more = () if kind == kinds[0] else ("--timeline", "")
            row = spawn(options, options.gpus, batch, folder, *more)
            shown = row["seconds"] - row["seconds_without_exchange"]
            speedup = one["seconds"] / row["seconds"] * (options.gpus if kind == "weak" else 1)
            line = {
                "net": options.net, "math": options.math, "kind": kind,
                "processes": options.gpus, "batch": batch, "wire": options.wire,
                "bucket_mib": options.bucket_mib, "shard_state": options.shard_state, **row,
                "one": one["seconds"], "images_a_second": batch / row["seconds"], "speedup": speedup,
                "hidden": 1 - max(0.0, shown) / row["exchange_alone"] if row["exchange_alone"] else 1.0,
            }  # fmt: skip
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
