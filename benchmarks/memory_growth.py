"""Whether the process grows: random problems of many operations, one after another, and the resident memory meanwhile.

    python benchmarks/memory_growth.py [--seconds 180] [--seed 0] [--threads 1] [--plans 4096] [--code 256MiB]

Every problem is another one: shapes, types, strides, formulas. Each thread runs in its default handle, and a thread
ends after a while and another takes its place. The code cache and the store are in a folder that is deleted afterwards,
within limits of their own. Prints a line every few seconds, and a verdict: what was added in the second half of the
time, which is flat if it is less than a twentieth of what the process has, and the slope there. The limits must be
reached in the first half.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.handle import usage
from jitdnn.planner.store import Store
from jitdnn.rtcg.cache import CodeCache
from jitdnn.settings import format_bytes

Array = np.ndarray[Any, Any]
MIB = 2.0**20
PROBLEMS_A_THREAD = 200
FLAT = 0.05


def resident() -> int:
    """Bytes of the process in memory."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def array(rng: random.Random, *shape: int, kinds: Sequence[str] = ("f4", "f4", "f8", "f2")) -> Array:
    """Ones, of any of these types, some of them strided."""
    kind = rng.choice(kinds)
    if rng.random() < 0.2:
        return np.ones((*shape[:-1], 2 * shape[-1]), kind)[..., ::2]
    return np.ones(shape, kind)


def image(rng: random.Random, **options: Any) -> Array:
    n, c, h, w = rng.randint(1, 3), rng.randint(1, 24), rng.randint(5, 30), rng.randint(5, 30)
    return array(rng, n, c, h, w, **options)


def convolution(rng: random.Random) -> None:
    x = image(rng, kinds=("f4", "f4", "f8"))
    k, r, s = rng.randint(1, 24), rng.randint(1, 4), rng.randint(1, 4)
    w = np.ones((k, x.shape[1], r, s), x.dtype)
    more: dict[str, Any] = {"stride": rng.randint(1, 2), "padding": rng.randint(0, 2)}
    y = jd.conv(x, w, epilogue=rng.choice([None, jd.relu, jd.gelu]), **more)
    if rng.random() < 0.3:
        jd.conv_backward_data(y, w, x.shape, **more)
    if rng.random() < 0.3:
        jd.conv_backward_filter(x, y, w.shape, **more)


def found(rng: random.Random) -> None:
    """A choice by measuring, which is stored."""
    with jd.settings(choice="find"):
        jd.max_pool(image(rng), rng.randint(1, 4))


def limited(rng: random.Random) -> None:
    """Other settings each time."""
    with jd.settings(workspace_limit=rng.randint(0, 1 << 20)):
        jd.conv(np.ones((1, 3, 9, 9), np.float32), np.ones((4, 3, 3, 3), np.float32))


def product(rng: random.Random) -> None:
    m, n, k = (rng.randint(1, 80) for _ in range(3))
    a = array(rng, m, k, kinds=("f4", "f8"))
    jd.matmul(a, np.ones((n, k), a.dtype).T)


def formula(rng: random.Random) -> None:
    a, b = rng.random(), rng.randint(1, 5)
    x = array(rng, rng.randint(1, 9), rng.randint(1, 99))
    jd.elementwise(lambda x: jd.tanh(x * a + b) - x**b)(x)


def rows(rng: random.Random) -> None:
    a = rng.random()
    jd.reduction(lambda x: x * a)(array(rng, rng.randint(1, 9), rng.randint(1, 99)), axes=rng.choice([0, 1]))


OPERATIONS: tuple[Callable[[random.Random], Any], ...] = (
    convolution,
    convolution,
    found,
    limited,
    product,
    formula,
    rows,
    lambda rng: jd.relu(image(rng)),
    lambda rng: jd.gelu(array(rng, rng.randint(1, 999))),
    lambda rng: jd.max_pool(image(rng), rng.randint(1, 5), stride=rng.randint(1, 3)),
    lambda rng: jd.avg_pool(image(rng), rng.randint(1, 5), padding=0),
    lambda rng: jd.softmax(array(rng, rng.randint(1, 20), rng.randint(1, 300))),
    lambda rng: jd.layer_norm(array(rng, rng.randint(1, 20), rng.randint(1, 300), kinds=("f4", "f8"))),
    lambda rng: jd.batch_norm(image(rng, kinds=("f4",))),
    lambda rng: jd.lrn(image(rng, kinds=("f4",)), size=rng.choice([3, 5, 7])),
    lambda rng: jd.reduce(image(rng), rng.choice(["add", "max", "avg"]), axes=rng.choice([0, 1, (2, 3), None])),
    lambda rng: jd.resize(image(rng, kinds=("f4",)), size=(rng.randint(1, 20), rng.randint(1, 20))),
    lambda rng: jd.transform(array(rng, rng.randint(1, 99), rng.randint(1, 99)), dtype=rng.choice(["f4", "f8"])),
)  # fmt: skip


class Run:
    """Problems in threads until the time is up."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.problems, self.errors = 0, list[str]()
        self._seed, self._end = seed, time.monotonic() + seconds
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def work(self, number: int) -> None:
        """A thread after another."""
        life = 0
        while not self.is_over:
            life += 1
            thread = threading.Thread(target=self._live, args=(f"{self._seed} {number} {life}",))
            thread.start()
            thread.join()

    def _live(self, seed: str) -> None:
        rng = random.Random(seed)
        for _ in range(PROBLEMS_A_THREAD):
            if self.is_over:
                return
            operation = rng.choice(OPERATIONS)
            try:
                operation(rng)
            except jd.InvalidArgument as error:  # a window larger than its image, for one
                if len(self.errors) < 3:
                    self.errors.append(f"{operation.__name__}: {error}")
            with self._lock:
                self.problems += 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument(
        "--every", type=float, default=0.0, help="seconds between lines; 0: a 24th of the time"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads that call, at a time")
    parser.add_argument("--plans", default="4096", help="plans_limit")
    parser.add_argument("--code", default="256MiB", help="code_limit")
    parser.add_argument("--json", type=Path, help="write the samples to this file")
    given = parser.parse_args()
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        # the process's own, as threads take theirs from the environment
        os.environ |= {
            "JITDNN_CACHE_DIR": folder, "JITDNN_CACHE_LIMIT": "64MiB", "JITDNN_STORE_LIMIT": "1MiB",
            "JITDNN_PLANS_LIMIT": given.plans, "JITDNN_CODE_LIMIT": given.code, "JITDNN_THREADS": "1",
        }  # fmt: skip
        run = Run(given.seed, given.seconds)
        start = time.monotonic()
        threads = [threading.Thread(target=run.work, args=(number,)) for number in range(given.threads)]
        for thread in threads:
            thread.start()
        print(
            "seconds  problems   resident       code   plans   calls  handles    scratch      cache      store"
        )
        while not run.is_over:
            time.sleep(min(given.every or given.seconds / 24, given.seconds))
            used, cache, store = usage(), CodeCache.default().stats().bytes, Store.default().stats().bytes
            sample = {
                "seconds": time.monotonic() - start, "problems": run.problems, "resident": resident(),
                **used._asdict(), "cache": cache, "store": store,
            }  # fmt: skip
            samples.append(sample)
            print(
                f"{sample['seconds']:7.0f} {run.problems:9} {format_bytes(sample['resident']):>10} "
                f"{format_bytes(used.code):>10} {used.plans:7} {used.calls:7} {used.handles:8} "
                f"{format_bytes(used.scratch):>10} {format_bytes(cache):>10} {format_bytes(store):>10}",
                flush=True,
            )
        for thread in threads:
            thread.join()
    for error in run.errors:
        print(f"refused, as it should be: {error}")
    if given.json:
        given.json.write_text(json.dumps(samples), encoding="utf-8")
    half = samples[len(samples) // 2 :]
    times = np.array([one["seconds"] for one in half])
    memory = np.array([one["resident"] for one in half]) / MIB
    added = memory[-1] - memory[0]
    slope = float(np.polyfit(times, memory, 1)[0]) * 3600 if len(half) > 1 else 0.0
    is_flat = added < FLAT * memory[-1]
    print(
        f"{'flat' if is_flat else 'NOT flat'}: {added:+.1f} MiB in the second half of {given.seconds:.0f} s and "
        f"{run.problems} problems, {slope:+.0f} MiB an hour there; most resident {max(memory):.0f} MiB"
    )
    sys.exit(not is_flat)


if __name__ == "__main__":
    main()
