"""The first training step of a converted model beside PyTorch's own, and what it spends on compiling and measuring.

    JITDNN_CACHE_DIR=FOLDER python benchmarks/torch_first_step.py [MODEL ...] [--batch 8] [--side 224] [--threads 1]

Of a processor, each model in a process of its own: seconds of processor time, and of the clock in brackets. With an
empty folder kernels are compiled and measured; a second run of the same command has what was kept. MODEL: as in
`torch_inductor.py`.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any


class Spent:
    """Seconds of processor time and of the clock within functions, those of inner calls counted once."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def watch(self, owner: Any, name: str, what: str) -> None:
        function, depth = getattr(owner, name), [0]

        def run(*given: Any, **named: Any) -> Any:
            depth[0] += 1
            begin = process_time(), perf_counter()
            try:
                return function(*given, **named)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    found = self.seconds[what]
                    found[0] += process_time() - begin[0]
                    found[1] += perf_counter() - begin[1]
                    found[2] += 1

        setattr(owner, name, run)


def timed(run: Callable[[], Any]) -> str:
    begin = process_time(), perf_counter()
    run()
    return f"{process_time() - begin[0]:.2f} ({perf_counter() - begin[1]:.1f})"


def child(name: str, options: argparse.Namespace) -> None:
    import torch
    from torch_peers import network, without_dropout

    import jitdnn.torch as jt
    from jitdnn.frameworks.torch import choice, kinds
    from jitdnn.handle import Handle
    from jitdnn.rtcg import compile as compiling

    torch.set_num_threads(options.threads)
    spent = Spent()
    spent.watch(kinds.Computation, "choose", "choosing, all together")
    spent.watch(Handle, "plan", "planning, with compiling")
    spent.watch(compiling, "_emit", "compiling by LLVM")
    spent.watch(choice, "_measured", "measuring")
    stock = without_dropout(network(name)).train()
    ours = jt.convert(copy.deepcopy(stock))
    x = torch.randn(options.batch, 3, options.side, options.side)
    labels = torch.randint(0, stock(x[:2]).shape[1], (options.batch,))
    for model, who in ((stock, "PyTorch"), (ours, "converted")):
        for step in ("first", "second"):
            took = timed(lambda m=model: torch.nn.functional.cross_entropy(m(x), labels).backward())
            print(f"{name} {who}, {step} step: {took} s")
    for what, (seconds, clock, count) in spent.seconds.items():
        print(f"  {what}: {seconds:.2f} ({clock:.1f}) s, {count:.0f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet18", "mobilenet_v2"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        child(*options.models, options)
        return
    for name in options.models:
        given = [
            "--batch",
            str(options.batch),
            "--side",
            str(options.side),
            "--threads",
            str(options.threads),
        ]
        subprocess.run([sys.executable, __file__, name, *given, "--here"], check=True)


if __name__ == "__main__":
    main()
