"""Data-parallel training on 8 to 1,024 GPUs, simulated:

    python benchmarks/distributed_simulation.py [--plot docs/plots/distributed.png]

What goes in is named in `Machine`, `Work` and MEASURED, each with where it comes from: measured (an iteration
on one GPU), counted (bytes and layers of the net as this library builds it), assumed (links, from makers' data
sheets). --seconds takes the place of a measured time.

An iteration: the forward pass, then the backward pass layer by layer, each in proportion to its operations. Gradients
leave in the library's buckets as they are whole, one behind the other on one link; the update waits for the last. A
bucket of B bytes over n GPUs takes, as a ring, 2 (n - 1) / n B / bandwidth + 2 (n - 1) latency, or, as a tree over the
hosts, which libraries take for small buckets, 2 B / bandwidth + 2 log2(hosts) latency; inside of a host it is a ring.
The lesser one counts. Nothing else is in it: no stragglers, no input, no contention, so that what it says is a bound.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import caffe_nets
from jitdnn.caffe import Net, load_net
from jitdnn.caffe.data_parallel import BUCKET_BYTES_OF_GPUS
from jitdnn.caffe.gradient_buckets import cut

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: images of each GPU, and the seconds of an iteration on one H100 (docs/caffe_gpu.md): `python
#: benchmarks/caffe_training.py --net NET --batch IMAGES --device cuda --way ours`, caffenet in fp32, others in tf32
MEASURED = {"caffenet": (256, 17.8e-3), "googlenet": (128, 27.3e-3), "resnet50": (64, 28.1e-3)}


@dataclass(frozen=True)
class Machine:
    """Hosts of `per_host` GPUs. Links are assumed, from data sheets of an H100 host, with what libraries reach."""

    per_host: int = 8
    inside: float = 256e9  # bytes/s of a GPU over NVLink, as NCCL reached between two H200s
    inside_latency: float = 7e-6  # seconds a step of a ring, measured there too
    contention: float = (
        0.35  # of the ring's time in a host: so much longer take kernels beside it, measured there
    )
    between: float = 40e9  # bytes/s of a GPU over its 400 Gbit/s network card, 80 % of it
    between_latency: float = 12e-6
    speed: float = 1.0  # of a GPU, as a multiple of the measured one's
    flops: float | None = None  # of a GPU in convolutions and products, in the place of what was measured
    memory: float = 2.7e12  # bytes/s that the update moves: 3.35e12 by the data sheet, 80 % of it
    overhead: float = (
        0.3e-3  # seconds of host and launches: so much of what was measured, whatever the GPU's speed
    )
    wire: int = 4  # bytes of a number on the way: --wire f32, 2 with bf16


@dataclass(frozen=True)
class Work:
    """What a GPU does in an iteration."""

    forward: float  # seconds
    backward: tuple[float, ...]  # seconds of each layer, in the order in which they are done
    buckets: tuple[tuple[int, int], ...]  # bytes, and behind which of those layers they leave
    update: float


def exchange(bytes: int, gpus: int, machine: Machine) -> float:
    """Seconds of summing up so many bytes over so many GPUs."""
    if gpus == 1:
        return 0.0
    inside = min(gpus, machine.per_host)
    hosts = math.ceil(gpus / machine.per_host)
    seconds = moving(bytes, gpus, machine) + 2 * (inside - 1) * machine.inside_latency
    if hosts == 1:
        return seconds
    # each GPU of a host exchanges its share with those of the other hosts
    share = bytes / inside
    ring = 2 * (hosts - 1) / hosts * share / machine.between + 2 * (hosts - 1) * machine.between_latency
    tree = 2 * share / machine.between + 2 * math.ceil(math.log2(hosts)) * machine.between_latency
    return seconds + min(ring, tree)


def moving(bytes: int, gpus: int, machine: Machine) -> float:
    """Seconds of that in which bytes move between the GPUs of a host."""
    inside = min(gpus, machine.per_host)
    return 2 * (inside - 1) / inside * bytes / machine.inside


def iteration(work: Work, gpus: int, machine: Machine) -> dict[str, float]:
    """Seconds of an iteration, of its computing, of the exchange alone, and of what of it is not hidden."""
    done, ends = 0.0, []
    for seconds in work.backward:
        done += seconds
        ends.append(done)
    free = total = 0.0
    for size, layer in work.buckets:
        took = exchange(size, gpus, machine)
        total += took
        free = max(free, ends[layer]) + took
    shown = max(0.0, free - done)
    slowed = machine.contention * sum(moving(size, gpus, machine) for size, _ in work.buckets)
    compute = work.forward + done + work.update + machine.overhead + slowed
    return {"seconds": compute + shown, "compute": compute, "exchange": total, "shown": shown}


def work_of(name: str, machine: Machine, measured: float | None = None) -> Work:
    """Of a net as it is built. `measured`: seconds of an iteration on one GPU, None for those of MEASURED."""
    batch, seconds = MEASURED[name]
    net = load_net(getattr(caffe_nets, name)(batch), "TRAIN", seed=0, shapes_only=True)
    flops = [_flops(net, index) for index in range(len(net.nodes))]
    bytes_all = sum(parameter.blob.nbytes for parameter in net.parameters)
    update = 5 * bytes_all / machine.memory  # weight, gradient and history read, weight and history written
    if machine.flops is None:
        passes = max(0.0, (measured or seconds) - update - Machine.overhead) / machine.speed
        update /= machine.speed
        each = passes / (3 * sum(flops))
    else:
        each = 1 / machine.flops
    order = list(reversed(range(len(net.nodes))))
    backward = tuple(2 * flops[index] * each for index in order)
    made, _, _ = cut(net, BUCKET_BYTES_OF_GPUS)
    buckets = tuple(
        ((bucket.stop - bucket.start) * machine.wire, order.index(bucket.ready)) for bucket in made
    )
    return Work(sum(flops) * each, backward, buckets, update)


def _flops(net: Net, index: int) -> int:
    """Of the forward pass of a layer: two for each multiplication of a weight; others are small beside them."""
    node = net.nodes[index]
    if node.layer.type == "Convolution":
        weight, out = node.layer.weights[0].shape, node.top[0].shape
        return 2 * math.prod(out) * math.prod(weight[1:])
    if node.layer.type == "InnerProduct":
        return 2 * node.top[0].shape[0] * math.prod(node.layer.weights[0].shape)
    return 0


def rows_of(name: str, machine: Machine, measured: float | None) -> list[dict[str, Any]]:
    work = work_of(name, machine, measured)
    one = iteration(work, 1, machine)["seconds"]
    rows = []
    for gpus in COUNTS:
        found = iteration(work, gpus, machine)
        rows.append({"net": name, "gpus": gpus, **found, "efficiency": one / found["seconds"]})
    return rows


#: what would move the limit, each alone
CHANGES: dict[str, dict[str, Any]] = {
    "as measured": {},
    "gradients in bf16": {"wire": 2},
    "network twice as fast": {"between": 80e9},
    "half the latency": {"between_latency": 6e-6, "inside_latency": 2e-6},
    "GPU twice as fast": {"speed": 2.0},
    "GPU at 300 TFLOP/s": {"flops": 300e12},
    "GPU at 300 TFLOP/s, gradients in bf16": {"flops": 300e12, "wire": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", action="append", default=[], metavar="NET=SECONDS", help="of an iteration on one GPU"
    )
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = {name: float(value) for name, value in (each.split("=") for each in options.seconds)}
    machine = Machine()
    every = {name: rows_of(name, machine, measured.get(name)) for name in MEASURED}
    say = sys.stdout.write
    if options.json:
        say(json.dumps({"machine": asdict(machine), "rows": every}, indent=1) + "\n")
    else:
        say("| net, images a GPU | " + " | ".join(str(count) for count in COUNTS[3:]) + " |\n")
        say("| --- |" + " --: |" * len(COUNTS[3:]) + "\n")
        for name, rows in every.items():
            say(
                f"| {name}, {MEASURED[name][0]} | "
                + " | ".join(f"{row['efficiency']:.3f}" for row in rows[3:])
                + " |\n"
            )
        say("\n| at 1,024 GPUs | " + " | ".join(MEASURED) + " |\n| --- |" + " --: |" * len(MEASURED) + "\n")
        for label, change in CHANGES.items():
            changed = replace(machine, **change)
            cells = [
                f"{rows_of(name, changed, measured.get(name))[-1]['efficiency']:.3f}" for name in MEASURED
            ]
            say(f"| {label} | " + " | ".join(cells) + " |\n")
    if options.plot is not None:
        draw(every, options.plot)


def draw(every: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, rows in every.items():
        counts = [row["gpus"] for row in rows]
        label = f"{name}, {MEASURED[name][0]} images a GPU"
        (line,) = left.plot(counts, [row["efficiency"] for row in rows], marker="o", label=label)
        fast = rows_of(name, replace(Machine(), flops=300e12), None)
        dashed = "the same at 300 TFLOP/s" if name == next(iter(every)) else None
        left.plot(
            counts, [row["efficiency"] for row in fast], linestyle="--", color=line.get_color(), label=dashed
        )
        right.plot(counts[1:], [1e3 * row["exchange"] for row in rows[1:]], marker="o", label=name)
    left.set(xscale="log", xlabel="GPUs", ylabel="part of n times one GPU", ylim=(0.7, 1.01))
    right.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="exchange alone, ms an iteration")
    left.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
