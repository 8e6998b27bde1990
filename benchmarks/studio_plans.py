"""What a plan of LeNet takes where nothing is in any cache: `benchmarks/studio.py plan` comes here.

Each plan is made in a new process; seconds are of its processor, which other programs on the machine lengthen less than
those of a clock.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

_DIGITS = {
    "id": 1, "name": "digits", "task": "classification", "shape": [1, 28, 28], "train": 4000, "val": 500, "test": 500,
    "classes": [str(digit) for digit in range(10)],
}  # fmt: skip
#: of a plan: with which ways in less workspace
_KINDS = {
    "undivided": "algorithms of whole layers",
    "above": "with ways in 4 MiB of workspace and more",
    "every": "with every way",
}


def plans(times: int) -> None:
    """Print what plans take, and how far the times of layers differ between those that look for more ways."""
    from jitdnn.planner.net import FLOOR

    told: dict[str, Any] = {}
    for kind, about in _KINDS.items():
        found = [_in_a_process(kind) for _ in range(times)]
        told[kind] = found[0]
        print(
            f"{about}: median {median(each['seconds'] for each in found):.2f} s of the processor beyond "
            f"{median(each['imports'] for each in found):.2f} s of imports ({times} processes)"
        )
    apart, worst = told["every"]["apart"], told["every"]["worst"]
    print(
        f"layers whose algorithm another search would choose otherwise: {apart} of {told['every']['count']}"
    )
    limit = f"{FLOOR >> 20} MiB and more"
    print(f"under any limit of {limit} a layer takes at most {worst:.4f} times as long as with every way")


def _in_a_process(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"JITDNN_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, __file__, kind], env=environment, capture_output=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _plan(kind: str) -> dict[str, Any]:
    begun = process_time()
    import jitdnn.kernels.cpu.table  # noqa: F401
    from jitdnn.planner import net
    from jitdnn.studio import nets

    text = next(each["text"] for each in nets.gallery() if each["key"] == "lenet")
    floor = net.FLOOR
    if kind == "every":
        net.FLOOR = 0
    imports = process_time() - begun
    begun = process_time()
    options = {"alternatives": kind != "undivided", "seconds": 1e6}
    found = nets.plan(text, {"batch": 64}, _DIGITS, Path(os.environ["JITDNN_CACHE_DIR"]), **options)["layers"]
    told: dict[str, Any] = {"imports": imports, "seconds": process_time() - begun, "count": len(found)}
    if kind != "every":
        return told
    net.FLOOR = floor  # with the same facts of this processor, and costs that are known by now
    others = nets.plan(text, {"batch": 64}, _DIGITS, Path(os.environ["JITDNN_CACHE_DIR"]), **options)[
        "layers"
    ]
    told["apart"] = sum(one["algorithm"] != two["algorithm"] for one, two in zip(found, others, strict=True))
    told["worst"] = max(
        _fastest(two, limit) / _fastest(one, limit)
        for one, two in zip(found, others, strict=True)
        for limit in (floor, *(p["workspace"] for p in one["front"] if p["workspace"] > floor))
    )
    return told


def _fastest(layer: dict[str, Any], limit: int) -> float:
    return float(min(point["seconds"] for point in layer["front"] if point["workspace"] <= limit))


if __name__ == "__main__":
    print(json.dumps(_plan(sys.argv[1])))
