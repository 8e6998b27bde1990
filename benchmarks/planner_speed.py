"""How long the planner thinks: dividing a batch of 256 into parts, and a budget of workspace among 159 kernels.

    python benchmarks/planner_speed.py [--rounds 15]

Only arithmetic, on made-up times: nothing is run on a device. Prints the median and the longest of several rounds, each
on other numbers. 562 points are those of ResNet-50 (53 convolutions in 3 directions) in the paper on μ-cuDNN.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

from jitdnn.planner.budget import divide
from jitdnn.planner.fronts import Point, fastest, front, micro_batches, sizes

BATCH = 256
KERNELS = 159
POINTS = 562
SHARES = (0.02, 0.1, 0.3, 0.7)


def parts(seed: int, policy: str) -> dict[int, list[Point]]:
    """Six ways to run each size, faster with more workspace, none of which beats another."""
    rng = random.Random(seed)
    return {
        size: [
            Point(
                size * (1 + rng.random()) * 2**-n + 0.3 * n, int(size * 1000 * 4**n * (1 + rng.random())), n
            )
            for n in range(6)
        ]
        for size in sizes(BATCH, policy)
    }


def kernels(seed: int) -> list[tuple[Point, ...]]:
    """Fronts of few points, with times and bytes of several magnitudes."""
    rng = random.Random(seed)
    found = []
    for _ in range(KERNELS):
        seconds, need, least = 10 ** rng.uniform(-4.5, -2), 0.0, 10 ** rng.uniform(5, 8)
        points = []
        for number in range(rng.choice([1, 2, 3, 3, 4, 4, 5, 6])):
            points.append(Point(seconds, int(need) // 256 * 256, number))
            seconds *= rng.uniform(0.5, 0.98)
            need = max(need, least) * rng.uniform(1.2, 3)
        found.append(front(points))
    return found


def networks() -> Iterator[list[tuple[Point, ...]]]:
    """Made-up networks with as many points as the paper's."""
    for seed in itertools.count():
        fronts = kernels(seed)
        if sum(map(len, fronts)) == POINTS:
            yield fronts


def share(fronts: list[tuple[Point, ...]], part: float) -> int:
    """A budget between the least that the kernels can do with and what they would like."""
    least, most = (sum(points[end].workspace for points in fronts) for end in (0, -1))
    return least + int((most - least) * part)


def report(name: str, calls: list[Callable[[], object]]) -> None:
    """Print the median and the longest of the calls."""
    calls[0]()
    times = []
    for call in calls:
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e3)
    print(f"{name:58s}{median(times):9.2f} ms{max(times):9.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = range(parser.parse_args().rounds)

    print(f"{'':58s}{'median':>12s}{'longest':>12s}")
    for policy in ("power_of_two", "all"):
        tables = [parts(seed, policy) for seed in rounds]
        report(f"fastest, batch {BATCH}, {policy}", [partial(fastest, BATCH, t, 10**8) for t in tables])
        report(f"micro_batches, batch {BATCH}, {policy}", [partial(micro_batches, BATCH, t) for t in tables])
    nets = list(itertools.islice(networks(), len(rounds)))
    for part in SHARES:
        report(
            f"divide, {KERNELS} kernels, {POINTS} points, {part:.0%} of the bytes wished",
            [partial(divide, net, share(net, part)) for net in nets],
        )
    streams = [number % 3 for number in range(KERNELS)]
    # half of what the largest kernels of the streams would like
    halves = [
        sum(max(points[-1].workspace for points in net[first::3]) for first in range(3)) // 2 for net in nets
    ]
    report(
        f"divide, {KERNELS} kernels, {POINTS} points, three streams",
        [partial(divide, net, half, streams) for net, half in zip(nets, halves, strict=True)],
    )


if __name__ == "__main__":
    main()
