"""Bytes of processes that divide the solver's state: python benchmarks/distributed_memory.py

A net with CaffeNet's layers behind its convolutions (9216 to 4096 to 4096 to 1000, 58 million weights) and one
convolution trains with Adam in 1, 2 and 4 processes on gloo, with and without `--shard-state`, under `--memory least`.
"planned" is what the plan counts of weights, gradients, histories and activations in one process, "resident" the most
that it has in memory while two iterations run, less what it had before the solver was built; "history" the bytes of
the histories. Lines of JSON, of the process that takes most.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from process_groups import Ranks

DATA = """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: %d dim: 3
dim: 25 dim: 25 } shape { dim: %d } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 256 kernel_size: 5
stride: 4 weight_filler { type: "gaussian" std: 0.01 } } }
"""
PRODUCT = """layer { name: "%s" type: "InnerProduct" bottom: "%s" top: "%s" inner_product_param { num_output: %d
weight_filler { type: "constant" value: 0.001 } } }
"""


def net(batch: int) -> str:
    parts, bottom = [DATA % (batch, batch)], "conv"
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        parts.append(PRODUCT % (name, bottom, name, outputs))
        bottom = name
    parts.append('layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc8" bottom: "label" top: "loss" }')
    return "".join(parts)


def resident(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def measured(group: Any, batch: int, is_sharded: bool, wire: str) -> dict[str, int]:
    """What one process has."""
    from jitdnn.caffe import load_solver
    from jitdnn.settings import settings

    before = resident("VmRSS")
    text = f"type: 'Adam' base_lr: 1e-6 lr_policy: 'fixed' snapshot_after_train: false net_param {{ {net(batch)} }}"
    with settings(threads=1):
        together = {} if group.size == 1 else {"group": group, "shards_state": is_sharded, "wire": wire}
        made = load_solver(text, seed=1, memory_limit="least", **together)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        made.step(2)
    plan = made.net.memory_plan
    assert plan is not None
    return {
        "history": made.method.nbytes,
        "planned": plan.peak,
        "resident": resident("VmHWM") - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--processes", type=int, nargs="+", default=(1, 2, 4))
    options = parser.parse_args()
    os.environ |= {"JITDNN_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for size in options.processes:
        for is_sharded in (False, True)[: 1 if size == 1 else 2]:
            ranks = Ranks(size)
            found = ranks("distributed_memory.measured", options.batch, is_sharded, "f32", seconds=1200)
            ranks.close()
            row = {name: round(max(each[name] for each in found) / (1 << 20), 1) for name in found[0]}
            sys.stdout.write(
                json.dumps({"processes": size, "sharded": is_sharded, **row, "unit": "MiB"}) + "\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
