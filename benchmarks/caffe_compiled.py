"""A net layer by layer, as `net.forward` runs it, against the same net compiled (`net.compiled()`), sides in turns.

    JITDNN_THREADS=1 python benchmarks/caffe_compiled.py [--net mobilenet ...] [--batch 1 8] [--rounds 15]

Prints for each net and batch the least time of each side, the median of the rounds' ratios, the extremes, kernels of
the plan, and the bytes of the blobs beside those of the plan's arena. `net.forward` fuses layers in place
(`fuse=True`), as it does where nobody says otherwise.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np
from caffe_deploy_nets import NAMES, deploy_net
from caffe_opencv import with_weights

from jitdnn.caffe import Net, NetState
from jitdnn.settings import format_bytes


def measure(name: str, batch: int, rounds: int) -> None:
    """Print the line of a net."""
    net = Net(deploy_net(name), NetState(phase="TEST"), seed=1)
    with_weights(net, np.random.default_rng(0))
    shape = (batch, *net.blobs["data"].shape[1:])
    net.reshape(data=shape)
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    compiled = net.compiled()
    sides = {"forward": lambda: net.forward(data=data), "compiled": lambda: compiled.forward(data=data)}
    for run in sides.values():
        for _ in range(2):
            run()
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sorted(sides, reverse=bool(number % 2)):
            start = perf_counter()
            sides[side]()
            times[side].append(perf_counter() - start)
    ratios = [a / b for a, b in zip(times["forward"], times["compiled"], strict=True)]
    told = compiled.explain(measure=False, data=data).splitlines()[0].split(",")
    blobs = sum(blob.nbytes for blob in net.blobs.values() if blob.owner is blob and blob.has_data)
    print(
        f"| {name} | {batch} | {1e3 * min(times['forward']):.1f} | {1e3 * min(times['compiled']):.1f} | "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) | {told[0].split(' and')[0]} | "
        f"{format_bytes(blobs)}, {told[1].strip().removesuffix(' of arena')} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", nargs="+", choices=NAMES, default=["resnet50", "mobilenet", "googlenet"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print("| net | N | forward, ms | compiled, ms | ratio | plan | blobs, arena |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.net:
        for batch in options.batch:
            measure(name, batch, options.rounds)


if __name__ == "__main__":
    main()
