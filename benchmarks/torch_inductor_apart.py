"""The table of `torch_inductor.py` where compiling takes longest: each model and side a process, all compiling at once.

    python benchmarks/torch_inductor_apart.py [MODEL[,NAME=VALUE ...] ...] [--mode default reduce-overhead]
        [--seconds 3] [--pairs N] [--again] [--parts N] [--limit SECONDS] [--logs FOLDER] [--json FILE]
        [what torch_inductor.py takes: --batch, --dtype, ...]

Processes compile beside each other, but whatever is timed is alone on its GPU: kernels that are measured for the choice
between ours and PyTorch's, what Inductor measures itself, and a pair's steps. When both sides of a model are compiled
they run one after the other, and then in turns, a sample each, while everybody else of that GPU waits. On a machine of
eight cores or more some are left to what is timed, compilers run on the others. With several GPUs models are divided
among them. A row is printed, and appended to the JSON file, as soon as it is there.

Milliseconds are those of `torch_inductor.py`; `host ms` those until a step is enqueued on a GPU that has nothing to do,
`bound` whether a step takes as long as that: then faster kernels gain nothing. `peak MiB` is the most that PyTorch's
allocator had handed out in the steps behind the first one, weights included; steps that record CUDA graphs are among
them. `first s` is the first step with compiling, without the time that a process waited for its turn; what several
processes compile alike, one may find of another's. NAME=VALUE behind a model are options of our side, or its `batch`,
`mode` or `nice`, by how much less its compilers count than others'.
`--again` has only the first steps a second time in new processes, two models at a time: those of warm caches.
`--parts N` tells, in the logs, what the host's time goes to and which N kernels take longest (torch_inductor_parts.py).
Backward graphs are compiled with forward ones.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch_inductor
import torch_turns
from torch._functorch import config as functorch_config
from torch_inductor_pairs import SIDES, WANTED, parent
from torch_inductor_parts import host_parts, kernel_table
from torch_turns import Turn, move

SLOW = 0.1  # seconds of a step of which fewer are a sample


class PairTurn(Turn):
    """And for all the steps of a pair, when the parent says so."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments.lock, arguments.quiet, arguments.device == "cuda")
        self._lock = arguments.lock
        self._says = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what others print is none of the parent's

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Pairs that are ready wait in the block: who measures has a hundred turns before its graph is compiled."""
        with open(self._lock + WANTED, "a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def begin(self) -> None:
        """Wait for the parent's word that the steps of this pair may run."""
        self.give_memory(0)
        begin = perf_counter()
        self.tell({"ready": True})
        if not sys.stdin.readline():
            raise SystemExit("the parent has ended")
        self.waited += perf_counter() - begin
        self._depth += 1
        self._move_all(self._quiet)

    def end(self) -> None:
        """Leave the GPU to others, and its memory."""
        gc.collect()
        self.give_memory(0)
        self._depth -= 1
        self._move_all(self.others)

    def tell(self, what: dict[str, Any]) -> None:
        self._says.write(json.dumps(what) + "\n")
        self._says.flush()

    @staticmethod
    def _move_all(cores: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            move(int(thread), cores)


def take_turns(turn: PairTurn) -> None:
    """Have all that is measured while a graph is compiled measured alone."""
    from torch._inductor.fx_passes import pad_mm

    from jitdnn.frameworks.torch import choice, inductor_graph

    choice.measured = turn.alone(choice.measured)
    visit = inductor_graph.Rewriter._visit

    def visit_first(self: Any) -> None:
        with turn.wanted() if self._plans is None else nullcontext():
            visit(self)

    inductor_graph.Rewriter._visit = visit_first
    real = pad_mm.get_do_bench
    pad_mm.get_do_bench = lambda: turn.alone(real())


def child(arguments: argparse.Namespace) -> None:
    """One side of one model: what is compiled waits for the parent, and then does what it says."""
    if arguments.dtype == "f32":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    turn = PairTurn(arguments)
    torch_inductor.register()
    take_turns(turn)
    if arguments.explain:
        torch_inductor.explained()
    functorch_config.force_non_lazy_backward_lowering = True
    (name,) = arguments.models
    model, x, labels = torch_inductor.problem(name, arguments)
    for mode in arguments.mode:
        arguments.mode_has_graphs = mode in torch_inductor.GRAPHS
        Side(model, mode, turn, arguments).serve(x, labels)
        torch._dynamo.reset()
        turn.end()
        turn.tell({"ended": True})


class Side:
    """One compiled model that takes orders."""

    def __init__(self, model: Any, mode: str, turn: PairTurn, arguments: argparse.Namespace) -> None:
        self._turn, self._arguments, self._mode = turn, arguments, mode
        turn.waited = 0.0
        self._begin = perf_counter()  # torch.compile imports its compiler, or the first step does
        self._peer = torch_inductor.Peer(model, arguments.only == "ours", mode, arguments)

    def serve(self, x: Any, labels: Any) -> None:
        """Until the parent says that it was all."""
        step = partial(self._peer.step, x, labels)
        with first_waits(self._turn):
            loss = float(step())
        first = perf_counter() - self._begin - self._turn.waited
        self._peak()
        last = 0.0
        for _ in range(0 if self._arguments.is_first_only else torch_inductor.WARM):
            begin = perf_counter()
            step()
            self._wait()
            last = perf_counter() - begin
        told = {"loss": loss, "first s": first, "waited s": self._turn.waited, "batch": len(x)}
        self._turn.tell(told | {"peak": self._peak()})
        for line in sys.stdin:
            order = line.strip()
            if order == "sample":
                last = self._peer.seconds(x, labels, 2 if last > SLOW else torch_inductor.STEPS)
                self._wait()
                begin = perf_counter()
                step()
                host = perf_counter() - begin
                self._wait()
                self._turn.tell({"ms": 1e3 * last, "host ms": 1e3 * host})
            elif order == "parts":
                self._parts(step)
                self._turn.tell({})
            else:
                return

    def _parts(self, step: Callable[[], Any]) -> None:
        if self._arguments.device != "cuda":
            return
        host = host_parts(step)
        _, table = kernel_table(step, self._arguments.parts)
        name = f"{self._arguments.models[0]} {self._mode} {self._arguments.only}"
        sys.stderr.write(f"== {name}\n{host}\n{table}\n")
        sys.stderr.flush()

    def _wait(self) -> None:
        if self._arguments.device == "cuda":
            torch.cuda.synchronize()

    def _peak(self) -> float:
        """MiB of PyTorch's allocator on a GPU since this was asked last."""
        if self._arguments.device != "cuda":
            return math.nan
        self._wait()
        most = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return most


@contextmanager
def first_waits(turn: PairTurn) -> Iterator[None]:
    """The first call of compiled code in the block waits until it is this pair's turn."""
    from torch._inductor.output_code import CompiledFxGraph

    real = CompiledFxGraph.__call__

    def call(self: Any, inputs: Any) -> Any:
        CompiledFxGraph.__call__ = real
        turn.begin()
        return real(self, inputs)

    CompiledFxGraph.__call__ = call
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = real


def main() -> None:
    made = torch_inductor.parser(__doc__)
    made.set_defaults(seconds=3.0)
    made.add_argument("--pairs", type=int, default=0, help="how many models at a time [all]")
    made.add_argument("--again", action="store_true", help="first steps with warm caches, too")
    made.add_argument("--parts", type=int, default=0, help="how many kernels of a step are told")
    made.add_argument("--limit", type=float, default=math.inf, help="seconds after which it ends")
    made.add_argument("--logs", type=Path, help="a folder for what the processes tell")
    made.add_argument("--only", choices=SIDES, help=argparse.SUPPRESS)
    made.add_argument("--is-first-only", action="store_true", help=argparse.SUPPRESS)
    torch_turns.add_options(made)
    arguments = torch_inductor.parsed(made)
    if arguments.only is None:
        parent(arguments, __file__)
    else:
        child(arguments)


if __name__ == "__main__":
    main()
