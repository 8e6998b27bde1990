"""Many processes at once from an empty cache: the same kernels and different ones, one store.

    python tests/faults/crowd.py --processes 64

Each process waits for the same moment, then computes with kernels that all want and with kernels of its own, and
records times. Checked: every result against NumPy, every entry of the code cache whole, every row of the store there,
nothing moved aside as damaged. The library may be two copies that differ by a line (`--copies 2`), side by side in one
cache folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jitdnn

WORKER = """
import os, sys, time
import numpy as np
import jitdnn as jd
from jitdnn.planner.store import Store
number, start = int(sys.argv[1]), float(sys.argv[2])
while time.time() < start:
    time.sleep(0.001)
x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
w = np.ones((4, 3, 3, 3), np.float32)
shared = [8 * n + number % 3 for n in range(2)]  # some common, some in another order
for n in (*shared, 1000 + number):
    y = jd.elementwise(f"x: {n} * x + 1")(x)
    np.testing.assert_allclose(y, np.float32(n) * x + 1, rtol=1e-5, atol=1e-5)
windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3)).sum((1, 4, 5))
np.testing.assert_allclose(jd.conv(x, w), np.repeat(windows[:, None], 4, 1), rtol=1e-4, atol=1e-4)
store = Store.default()
for n in range(5):
    store.record(f"problem {number} {n}", "", "machine", [("a", 1, 0.5, 0), ("b", 1, 0.25, 0)])
print("right", flush=True)
"""


def crowd(processes: int, folder: Path, copies: int = 1) -> dict[str, int]:
    """Run them; the counts. Raises AssertionError."""
    from jitdnn.planner.store import Store
    from jitdnn.rtcg.cache import CodeCache

    sources = [Path(jitdnn.__file__).parent.parent]
    for number in range(1, copies):
        source = folder / f"copy {number}"
        shutil.copytree(
            sources[0] / "jitdnn", source / "jitdnn", ignore=shutil.ignore_patterns("__pycache__")
        )
        with (source / "jitdnn" / "problems" / "problem.py").open("a") as file:
            file.write(f"\n# copy {number}\n")
        sources.append(source)
    cache, running = folder / "cache", []
    start = time.time() + 0.3 + 0.05 * processes
    for number in range(processes):
        environment = {
            **os.environ, "PYTHONPATH": str(sources[number % copies]), "JITDNN_CACHE_DIR": str(cache),
            "JITDNN_THREADS": "1", "JITDNN_LOG": "warning", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        arguments = [sys.executable, "-c", WORKER, str(number), str(start)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running.append(subprocess.Popen(arguments, env=environment, cwd=folder, text=True, **pipes))
    try:
        for process in running:
            output, errors = process.communicate(timeout=1200)
            assert (process.returncode, output, errors) == (0, "right\n", ""), (process.returncode, errors)
    finally:
        for process in running:
            process.kill()
    entries = sorted((cache / "code").iterdir())
    code = CodeCache(cache / "code", 1 << 30)
    for entry in entries:
        assert entry.suffix == ".bin", f"{entry.name} is left"
        assert code.get(entry.stem) is not None, f"{entry.name} is damaged"
    (path,) = cache.glob("tuning-*.sqlite")
    rows = Store(path).rows()
    assert len(rows) == 10 * processes, f"{len(rows)} rows of {10 * processes}"
    assert not list(cache.glob("*.damaged-*"))
    return {"processes": processes, "right": len(running), "entries": len(entries), "rows": len(rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--copies", type=int, default=1, help="copies of the library that differ")
    given = parser.parse_args()
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="jitdnn-crowd-") as folder:
        counts = crowd(given.processes, Path(folder), given.copies)
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    sys.stdout.write(f"{said}; {time.time() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
