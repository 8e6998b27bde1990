"""Losses of two processes (gloo, processors) against one process's: python benchmarks/distributed_losses.py

LeNet, the layers of cifar10_full with dropout, crops and mirroring, and a net with BatchNorm and ignored labels
(tests/helpers/distributed_nets.py), 200 iterations each in double and in single precision, and again by two new
processes. A row has the largest difference of a loss from one process's, relative to that loss and to the largest one;
the largest difference of a weight; and whether both runs of two processes, and both processes, have the same bits.
Fails where a loss is farther off than --bound times the largest, or bits differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

import distributed_nets
from process_groups import Ranks

NETS = ("lenet", "cifar10_full", "normalized")


def row_of(folder: Path, net: str, dtype: str, steps: int) -> dict[str, Any]:
    tested = "" if net == "lenet" else "test_iter: 3 test_interval: 100"
    one = distributed_nets.trained(folder, net, steps, tested, dtype=dtype)
    found = []
    for _ in range(2):
        ranks = Ranks(2)
        found += ranks("distributed_nets.train", folder, net, steps, tested, dtype, seconds=3600)
        ranks.close()
    first = found[0]
    apart = np.abs(first["loss"] - one["loss"])
    return {
        "net": net,
        "dtype": dtype,
        "iterations": steps,
        "loss_from": float(one["loss"][:10].mean()),
        "loss_to": float(one["loss"][-10:].mean()),
        "apart": float((apart / one["loss"].max()).max()),
        "apart_of_each": float((apart / one["loss"]).max()),
        "weights_apart": max(
            float(np.abs(first[name] - array).max())
            for name, array in one.items()
            if name.startswith("weight")
        ),
        "is_bit_equal": all(
            np.array_equal(array, other[name]) for name, array in first.items() for other in found[1:]
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--dtypes", nargs="+", choices=("f64", "f32"), default=("f64", "f32"))
    parser.add_argument("--bound", type=float, default=1e-5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        distributed_nets.write_data(folder)
        for dtype in options.dtypes:
            for net in options.nets:
                rows.append(row_of(folder, net, dtype, options.iterations))
                sys.stdout.write(json.dumps(rows[-1]) + "\n")
                sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["apart"] > options.bound or not row["is_bit_equal"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
