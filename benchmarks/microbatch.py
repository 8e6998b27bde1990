"""What dividing convolutions gains where workspace is limited: a network's convolutions, undivided against divided.

    python benchmarks/microbatch.py net alexnet_ucudnn --target cuda --vendor only --limits 8MiB,64MiB,512MiB
    python benchmarks/microbatch.py budget alexnet_ucudnn --target cuda --vendor only --total 120MiB --each 64MiB
    python benchmarks/microbatch.py layers deepbench --target cuda --vendor only --limits 64MiB,128MiB --direction fwd
    python benchmarks/microbatch.py vendors resnet18 --target cuda --limits 64MiB
    python benchmarks/microbatch.py space sd_vae_dec_512 --target cuda --vendor also --limits 64MiB --direction fwd

`net`: one iteration, every convolution of the network as often as it has it, in all directions one after another on one
stream with one workspace; what is printed was measured on the kernels that the planner took, undivided and divided in
turn. `budget`: workspace of all kernels together against as much for each. `layers`: each alone. `vendors`: cuDNN's
algorithms, ours, and both. `space`: layers of one image under a limit against no limit. Parts are measured once and
kept in the store (--estimate takes the cost models' word instead). No time is printed for a layer whose divided result
is not the undivided one's.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.bench.suites import Layer, built_in
from jitdnn.handle import find_device
from jitdnn.planner.budget import divide
from jitdnn.planner.choose import build_partition
from jitdnn.planner.division import Partition
from jitdnn.planner.fronts import Point
from jitdnn.planner.net import survey_partitions
from jitdnn.planner.net_plan import Partitions
from jitdnn.planner.operands import make_operand
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.settings import current, format_bytes, parse_bytes, settings
from jitdnn.tensor import numpy_dtype

GUARD = 256  # bytes behind the workspace that no kernel may touch
ROUNDS = 9


@dataclass
class Item:
    """One convolution of the network in one direction, and what the planner knows of it."""

    label: str
    count: int
    problem: Convolution
    partitions: Partitions


class Bench:
    """A device, its stream, and operands to run on."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device: Any = find_device(options.target)
        self.is_gpu = targets.is_gpu(self.device.target)
        self._own = self.device.own_stream() if self.is_gpu else None
        self.stream = self.device.stream(self._own) if self.is_gpu else None
        self.options = options
        self.store = Store.default()
        self._memory: list[Any] = []

    def survey(self, layers: Sequence[Layer], vendor: str) -> list[Item]:
        """The fronts of all layers in the directions wanted."""
        items = []
        directions = DIRECTIONS if self.options.direction == "all" else (self.options.direction,)
        request = replace(Request.of(current()), vendor=vendor, workspace_limit=None)
        for layer in layers:
            for direction in directions:
                problem = layer.towards(direction).problem
                assert isinstance(problem, Convolution)
                start = perf_counter()
                found = survey_partitions(problem, self.device, request, self.store, self.options.seconds)
                items.append(Item(f"{layer.name} {direction}", layer.count, problem, found))
                note(
                    f"{layer.label} {direction}: {len(found.front)} partitions in {perf_counter() - start:.1f} s"
                )
        return items

    def run(
        self, item: Item, partition: Partition
    ) -> Callable[[Any, Sequence[int], float, float, int], None]:
        return build_partition(item.problem, self.device, None, partition)[1]

    def place(self, size: int) -> int:
        """The address of so many bytes, which stay until `free`."""
        if self.is_gpu:
            self._memory.append(self.device.allocate(max(size, 1), self.stream))
            return int(self._memory[-1].pointer)
        self._memory.append(np.zeros(size + 64, np.uint8))
        start: int = self._memory[-1].ctypes.data
        return start + -start % 64

    def free(self) -> None:
        self.wait()
        self._memory.clear()
        if self.is_gpu:
            self.device.trim()

    def wait(self) -> None:
        if self.is_gpu:
            self.device.synchronize(self.stream)

    def write(self, pointer: int, data: np.ndarray) -> None:
        if self.is_gpu:
            self.device.write(pointer, data, self.stream)
        else:
            _bytes_at(pointer, data.nbytes)[:] = data.view(np.uint8).reshape(-1)

    def read(self, pointer: int, data: np.ndarray) -> np.ndarray:
        if self.is_gpu:
            self.device.read(data, pointer, self.stream)
        else:
            data.view(np.uint8).reshape(-1)[:] = _bytes_at(pointer, data.nbytes)
        return data

    def operands(self, problem: Convolution, is_filled: bool) -> list[int]:
        pointers = []
        for number, operand in enumerate(problem.operands):
            buffer, first = make_operand(operand.descriptor, operand.values)
            start = self.place(buffer.nbytes)
            if is_filled and number < 2:
                self.write(start, buffer)
            pointers.append(start + first - buffer.ctypes.data)
        return pointers

    def seconds(self, give: Callable[[], None]) -> float:
        if self.is_gpu:
            return float(self.device.measure(self.stream, give))
        start = perf_counter()
        give()
        return perf_counter() - start

    def compare(self, jobs: Sequence[Sequence[tuple[Item, Partition]]]) -> list[float]:
        """Seconds of each list of jobs, run in turn, medians; raises SystemExit if results or guards are wrong."""
        arena_bytes = max(partition.workspace for job in jobs for _, partition in job)
        arena = self.place(arena_bytes + GUARD)
        guard = np.full(GUARD, 0xA5, np.uint8)
        shared: dict[Convolution, list[int]] = {}
        for job in jobs:
            for item, _ in job:
                if item.problem not in shared:
                    shared[item.problem] = self.operands(item.problem, True)
        runs = [[(item, partition, self.run(item, partition)) for item, partition in job] for job in jobs]
        first: dict[Convolution, np.ndarray] = {}
        for job in runs:
            for item, partition, run in job:
                self.write(arena + partition.workspace, guard)
                run(self.stream, shared[item.problem], 1.0, 0.0, arena)
                output = item.problem.output
                result = self.read(shared[item.problem][-1], np.empty(output.size, numpy_dtype(output.dtype)))
                if not np.array_equal(
                    self.read(arena + partition.workspace, np.empty(GUARD, np.uint8)), guard
                ):
                    sys.exit(
                        f"{item.label}: {partition.summary.name} wrote behind its {partition.workspace} bytes"
                    )
                expected = first.setdefault(item.problem, result)
                bound = 2 * max(partition.summary.error_bound or 0.0, 1e-6)
                error = _distance(result, expected)
                if not error <= bound:
                    sys.exit(
                        f"{item.label}: {partition.summary.name} differs by {error:.1e}, more than {bound:.1e}"
                    )
        samples: list[list[float]] = [[] for _ in jobs]
        for _ in range(ROUNDS + 1):
            for number, job in enumerate(runs):

                def give(job: Any = job) -> None:
                    for item, _, run in job:
                        for _ in range(item.count):
                            run(self.stream, shared[item.problem], 1.0, 0.0, arena)

                samples[number].append(self.seconds(give))
        self.free()
        return [median(each[1:]) for each in samples]


def _bytes_at(pointer: int, size: int) -> np.ndarray:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


def _distance(result: np.ndarray, expected: np.ndarray) -> float:
    a, b = (np.asarray(each, np.float32) for each in (result, expected))
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def total(points: Sequence[tuple[Item, Point]]) -> float:
    return sum(item.count * point.seconds for item, point in points)


def choices(items: Sequence[Item], limit: int | None, is_divided: bool) -> list[tuple[Item, Point]]:
    """The fastest partition of each under a limit, skipping what nothing can run so."""
    found = []
    for item in items:
        front = item.partitions.front if is_divided else item.partitions.whole
        point = next((p for p in reversed(front) if limit is None or p.workspace <= limit), None)
        if point is None:
            sys.exit(f"{item.label}: nothing runs in {limit} bytes")
        found.append((item, point))
    return found


def jobs_of(points: Sequence[tuple[Item, Point]]) -> list[tuple[Item, Partition]]:
    return [(item, point.what) for item, point in points]


def report(bench: Bench, row: dict[str, Any]) -> None:
    if bench.options.json:
        with Path(bench.options.json).open("a", encoding="utf-8") as file:
            row |= {"device": bench.device.name, "command": " ".join(sys.argv[1:])}
            file.write(json.dumps(row) + "\n")


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def print_partitions(points: Sequence[tuple[Item, Point]], others: Sequence[tuple[Item, Point]]) -> None:
    for (item, point), (_, other) in zip(points, others, strict=True):
        if point.what.summary.name != other.what.summary.name:
            print(
                f"    {item.label}: {other.what.summary.name} {ms(other.seconds)} -> {point.what.summary.name} "
                f"{ms(point.seconds)}, {format_bytes(point.workspace)}"
            )


def bench_net(bench: Bench, layers: Sequence[Layer]) -> None:
    items = bench.survey(layers, bench.options.vendor)
    unlimited = choices(items, None, False)
    (best,) = bench.compare([jobs_of(unlimited)])
    print(f"any workspace: {ms(best)} ({ms(total(unlimited))} expected), {format_bytes(most(unlimited))}")
    for limit in bench.options.limits:
        whole, divided = choices(items, limit, False), choices(items, limit, True)
        one, two = bench.compare([jobs_of(whole), jobs_of(divided)])
        print(
            f"{format_bytes(limit)} a layer: undivided {ms(one)} ({ms(total(whole))} expected), divided {ms(two)} "
            f"({ms(total(divided))} expected), {one / two:.2f}x"
        )
        print_partitions(divided, whole)
        report(bench, {"what": "net", "limit": limit, "undivided": one, "divided": two, "unlimited": best})


def name_of(points: Sequence[tuple[Item, Point]]) -> str:
    name: str = points[0][1].what.summary.name
    return name


def most(points: Sequence[tuple[Item, Point]]) -> int:
    return max(point.workspace for _, point in points)


def bench_budget(bench: Bench, layers: Sequence[Layer]) -> None:
    items = [replace(item, count=1) for item in bench.survey(layers, bench.options.vendor)]
    each = bench.options.each
    whole = choices(items, each, False)
    for budget in bench.options.total:
        start = perf_counter()
        points = divide([item.partitions.front for item in items], budget)
        thinking = perf_counter() - start
        shared = list(zip(items, points, strict=True))
        one, two = bench.compare([jobs_of(whole), jobs_of(shared)])
        used, reserved = sum(point.workspace for point in points), each * len(items)
        print(
            f"{len(items)} kernels: {format_bytes(each)} for each, {format_bytes(reserved)} in all, "
            f"undivided: {ms(one)}; {format_bytes(budget)} in all, {format_bytes(used)} used: {ms(two)}, "
            f"{one / two:.2f}x (the budget was divided in {ms(thinking)})"
        )
        print_partitions(shared, whole)
        report(bench, {"what": "budget", "each": each, "total": budget, "undivided": one, "divided": two})


def bench_layers(bench: Bench, layers: Sequence[Layer]) -> None:
    gains: dict[int, list[float]] = {limit: [] for limit in bench.options.limits}
    for item in bench.survey(layers, bench.options.vendor):
        cells = []
        for limit in bench.options.limits:
            whole, divided = choices([item], limit, False), choices([item], limit, True)
            if divided[0][1].what.summary.name == whole[0][1].what.summary.name:
                gains[limit].append(1.0)
                cells.append("1.00")
                continue
            one, two = bench.compare([jobs_of(whole), jobs_of(divided)])
            gains[limit].append(one / two)
            cells.append(f"{one / two:.2f} ({divided[0][1].what.summary.name} {ms(two)})")
            report(bench, {"what": "layer", "problem": str(item.problem), "limit": limit, "gain": one / two})
        if any(cell != "1.00" for cell in cells):
            print(f"{item.label}: {'; '.join(cells)}", flush=True)
    for limit, found in gains.items():
        better = [gain for gain in found if gain > 1.05]
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(
            f"{format_bytes(limit)}: {len(better)} of {len(found)} gain more than 5 %, best {max(found):.2f}, worst "
            f"{min(found):.2f}, geometric mean {mean:.2f}"
        )


def bench_vendors(bench: Bench, layers: Sequence[Layer]) -> None:
    found = {vendor: bench.survey(layers, vendor) for vendor in ("only", "off", "also")}
    for limit in bench.options.limits:
        points = {vendor: choices(items, limit, True) for vendor, items in found.items()}
        times = bench.compare([jobs_of(each) for each in points.values()])
        words = {"only": "cuDNN's", "off": "ours", "also": "both"}
        print(
            f"{format_bytes(limit)}: "
            + ", ".join(f"{words[vendor]} {ms(t)}" for vendor, t in zip(points, times, strict=True))
        )
        theirs = sum("cudnn" in point.what.summary.name for _, point in points["also"])
        print(f"    of both: {theirs} of cuDNN's, {len(points['also']) - theirs} of ours")
        report(bench, {"what": "vendors", "limit": limit} | dict(zip(points, times, strict=True)))


def bench_space(bench: Bench, layers: Sequence[Layer]) -> None:
    worst = 0.0
    for item in bench.survey(layers, bench.options.vendor):
        free = choices([item], None, False)
        for limit in bench.options.limits:
            whole, limited = choices([item], limit, False), choices([item], limit, True)
            best, one, two = bench.compare([jobs_of(free), jobs_of(whole), jobs_of(limited)])
            worst = max(worst, two / best)
            print(
                f"{item.label}: any {ms(best)} {name_of(free)} {format_bytes(most(free))}; "
                f"{format_bytes(limit)}: undivided {ms(one)}, {two / best:.2f} of any by {name_of(limited)}",
                flush=True,
            )
            report(
                bench,
                {"what": "space", "problem": str(item.problem), "limit": limit, "any": best, "limited": two},
            )
    print(f"worst {worst:.2f} of unlimited")


MODES = {
    "net": bench_net,
    "budget": bench_budget,
    "layers": bench_layers,
    "vendors": bench_vendors,
    "space": bench_space,
}


def sizes(text: str) -> list[int]:
    return [parse_bytes(part) or 0 for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("suite", help="a suite or network of `jitdnn bench --list`")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--vendor", default="off", choices=("off", "also", "only"))
    parser.add_argument("--limits", type=sizes, default=sizes("8MiB,64MiB,512MiB"))
    parser.add_argument("--total", type=sizes, default=sizes("120MiB"))
    parser.add_argument("--each", type=parse_bytes, default=64 << 20)
    parser.add_argument("--direction", default="all", choices=(*DIRECTIONS, "all"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--layout")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--division", default="power_of_two")
    parser.add_argument("--axes", default="any", choices=("any", "batch"))
    parser.add_argument("--match", default="", help="only layers with this in their label")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="to measure a whole problem; parts get a tenth"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="plan by the cost models, measure nothing else"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json")
    options = parser.parse_args()
    layers = [layer for layer in built_in()[options.suite] if options.match in layer.label]
    if options.batch:
        layers = [layer.with_batch(options.batch) for layer in layers]
    layers = [layer.stored(options.dtype, options.layout) for layer in layers]
    values: dict[str, object] = {
        "choice": "get" if options.estimate else "find",
        "division": options.division,
        "division_axes": options.axes,
        "math": options.math,
    }
    if options.threads:
        values["threads"] = options.threads
    with settings(**values):
        MODES[options.mode](Bench(options), layers)


if __name__ == "__main__":
    main()
