"""Data-parallel training on 8 to 1,024 GPUs, simulated: python benchmarks/distributed_simulation.py [--plot
docs/plots/distributed.png]

What goes in is named in `Machine` and `Work`, each with where it comes from: counted (bytes and layers of the net as
this library builds it), assumed (speeds of links and GPUs, from makers' data sheets), or given (--seconds, a measured
time of an iteration on one GPU; without it compute is assumed, too).

An iteration: the forward pass, then the backward pass layer by layer, each in proportion to its operations. Gradients
leave in buckets as they are whole, one behind the other on one link; the update waits for the last. A bucket of B
bytes over n GPUs takes, as a ring, 2 (n - 1) / n B / bandwidth + 2 (n - 1) latency, or, as a tree over the hosts,
which libraries take for small buckets, 2 B / bandwidth + 2 log2(hosts) latency; inside of a host it is a ring. The
lesser one counts. Nothing else is in it: no stragglers, no input, no contention, so that what it says is a bound.
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
from jitdnn.caffe.gradient_buckets import BUCKET_BYTES, ready_behind

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: images of each GPU
BATCHES = {"caffenet": 256, "googlenet": 128, "resnet50": 128}


@dataclass(frozen=True)
class Machine:
    """Hosts of `per_host` GPUs. All of it is assumed, from data sheets of an H200 host, with what libraries reach."""

    per_host: int = 8
    inside: float = 360e9  # bytes/s of a GPU over NVLink: 450e9 by the data sheet, 80 % of it
    inside_latency: float = 4e-6  # seconds a step of a ring
    between: float = 40e9  # bytes/s of a GPU over its 400 Gbit/s network card, 80 % of it
    between_latency: float = 12e-6
    flops: float = 300e12  # of a GPU in bf16, in convolutions and products
    memory: float = 3.5e12  # bytes/s that the update moves
    overhead: float = 0.3e-3  # seconds of host and launches an iteration that nothing hides


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
    seconds = 2 * (inside - 1) / inside * bytes / machine.inside + 2 * (inside - 1) * machine.inside_latency
    if hosts == 1:
        return seconds
    # each GPU of a host exchanges its share with those of the other hosts
    share = bytes / inside
    ring = 2 * (hosts - 1) / hosts * share / machine.between + 2 * (hosts - 1) * machine.between_latency
    tree = 2 * share / machine.between + 2 * math.ceil(math.log2(hosts)) * machine.between_latency
    return seconds + min(ring, tree)


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
    compute = work.forward + done + work.update + machine.overhead
    shown = max(0.0, free - done)
    return {"seconds": compute + shown, "compute": compute, "exchange": total, "shown": shown}


def work_of(name: str, machine: Machine, measured: float | None = None, wire: int = 2) -> Work:
    """Of a net as it is built: operations and bytes are counted; `measured` seconds of an iteration replace what the
    assumed speed gives. `wire`: bytes of a number on the way."""
    batch = BATCHES[name]
    net = load_net(getattr(caffe_nets, name)(batch), "TRAIN", seed=0, shapes_only=True)
    flops = [_flops(net, index) for index in range(len(net.nodes))]
    forward = sum(flops) / machine.flops
    bytes_all = sum(parameter.blob.nbytes for parameter in net.parameters)
    update = 5 * bytes_all / machine.memory  # weight, gradient and history read, weight and history written
    scale = 1.0
    if measured is not None:
        scale = max(0.0, measured - update - machine.overhead) / (3 * forward)
    order = list(reversed(range(len(net.nodes))))
    backward = tuple(2 * flops[index] / machine.flops * scale for index in order)
    ready = ready_behind(net)
    by_layer = sorted(range(len(net.parameters)), key=lambda index: (-ready[index], -index))
    buckets: list[tuple[int, int]] = []
    size = 0
    for index in by_layer:
        size += net.parameters[index].blob.size * wire
        if size >= 4 * BUCKET_BYTES or index == by_layer[-1]:
            buckets.append((size, order.index(ready[index])))
            size = 0
    return Work(forward * scale, backward, tuple(buckets), update)


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
CHANGES = {
    "as assumed": {},
    "network twice as fast": {"between": 80e9},
    "half the latency": {"between_latency": 6e-6, "inside_latency": 2e-6},
    "GPU twice as fast": {"flops": 600e12},
    "no overhead of the host": {"overhead": 0.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", action="append", default=[], metavar="NET=SECONDS", help="measured on one GPU"
    )
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = {name: float(value) for name, value in (each.split("=") for each in options.seconds)}
    machine = Machine()
    every = {name: rows_of(name, machine, measured.get(name)) for name in BATCHES}
    say = sys.stdout.write
    if options.json:
        say(json.dumps({"machine": asdict(machine), "rows": every}, indent=1) + "\n")
    else:
        say("| net, images a GPU | " + " | ".join(str(count) for count in COUNTS[3:]) + " |\n")
        say("| --- |" + " --: |" * len(COUNTS[3:]) + "\n")
        for name, rows in every.items():
            say(
                f"| {name}, {BATCHES[name]} | "
                + " | ".join(f"{row['efficiency']:.3f}" for row in rows[3:])
                + " |\n"
            )
        say("\n| at 1,024 GPUs | " + " | ".join(BATCHES) + " |\n| --- |" + " --: |" * len(BATCHES) + "\n")
        for label, change in CHANGES.items():
            changed = replace(machine, **change)
            cells = [
                f"{rows_of(name, changed, measured.get(name))[-1]['efficiency']:.3f}" for name in BATCHES
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
        label = f"{name}, {BATCHES[name]} images a GPU"
        left.plot(counts, [row["efficiency"] for row in rows], marker="o", label=label)
        right.plot(counts[1:], [1e3 * row["exchange"] for row in rows[1:]], marker="o", label=name)
    left.set(xscale="log", xlabel="GPUs", ylabel="part of n times one GPU", ylim=(0, 1.05))
    right.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="exchange alone, ms an iteration")
    left.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
