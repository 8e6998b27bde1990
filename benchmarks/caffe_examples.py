"""Trains all 25 solvers of Caffe 1.0 for some iterations on data in Caffe's formats, which are written first.

    python benchmarks/caffe_examples.py CAFFE [MORE...] [--iterations 20] [--large 3] [--only lenet] [--device cuda]

CAFFE is a checkout of Caffe, or a folder with parts of it; in MORE the files are looked for that it does not have. They
are taken as they are; only `test_iter` is 1 batch, instead of up to 1000. The nets with over ten million weights run
`--large` iterations. For each solver: the net tests, trains, tests, takes a snapshot, and other solvers go on from it,
and from the .solverstate beside it, with the same weights. The two that finetune start from the weights that the solver
of CaffeNet left.

A row has the losses of the first and the last iteration, and an output of the test before and after. Ends with 1 if a
solver failed or was not found.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import tempfile
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from caffe_example_files import SOLVERS, lay_out

from jitdnn.caffe import Solver, SolverParameter, upgrade
from jitdnn.caffe.events import Event, Iterated, Snapshotted, Tested

LARGE = 10_000_000
FINETUNED = ("finetune_flickr_style", "finetune_pascal_detection")
START = "models/bvlc_reference_caffenet/caffenet_train.caffemodel"


def solver_of(file: Path, device: str | None, told: list[Event]) -> Solver:
    """The solver of a file, with tests of one batch."""
    parameter = upgrade(file)
    assert isinstance(parameter, SolverParameter)
    parameter.test_iter = [1] * len(parameter.test_iter)
    return Solver(parameter, file=file, listener=told.append, seed=1, device=device, caffe_files=True)


def train(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train, test, take a snapshot and go on from it; what there is to tell of it."""
    told: list[Event] = []
    start = perf_counter()
    solver = solver_of(file, options.device, told)
    if file.parent.name in FINETUNED and Path(START).exists():
        solver.net.load_weights(START)
    # biases before a contrastive loss have no gradient: it reads differences
    trained = [each for each in solver.net.parameters if each.lr_mult and each.name.endswith("/0")]
    before = [each.blob.data.copy() for each in trained]
    solver.step(options.large if solver.net.weight_count > LARGE else options.iterations)
    solver.test_all()
    solver.snapshot()
    if file.parent.name == "bvlc_reference_caffenet":
        solver.net.save_weights(START)
    losses = [float(event.loss) for event in told if isinstance(event, Iterated)]
    if not np.isfinite(losses).all():
        raise ArithmeticError(f"losses {losses}")
    still = [each.name for each, a in zip(trained, before, strict=True) if np.array_equal(a, each.blob.data)]
    if still:
        raise ArithmeticError(f"these weights did not change: {', '.join(still)}")
    written = [event for event in told if isinstance(event, Snapshotted)][-1]
    for path in (written.path, *(path for path in written.beside if "solverstate" in path.name)):
        _check_resumed(solver, file, path, options.device)
    tests = [event for event in told if isinstance(event, Tested)]
    return {
        "type": solver.parameter.type,
        "weights": solver.net.weight_count,
        "iterations": solver.iteration,
        "losses": (losses[0], losses[-1]),
        "tests": " → ".join(_shown(test) for test in (tests[0], tests[-1])[len(tests) == 1 :]),
        "files": " ".join(sorted({path.suffix for path in (written.path, *written.beside)})),
        "seconds": perf_counter() - start,
    }


def _check_resumed(solver: Solver, file: Path, snapshot: Path, device: str | None) -> None:
    """Raises if another solver that takes up a snapshot has other weights, or cannot go on."""
    other = solver_of(file, device, [])
    other.restore(snapshot)
    pairs = zip(solver.net.parameters, other.net.parameters, strict=True)
    if other.iteration != solver.iteration or any(
        not np.array_equal(a.blob.data, b.blob.data) for a, b in pairs
    ):
        raise ArithmeticError(f"{snapshot} has other weights than the solver that wrote it")


def _shown(test: Tested) -> str:
    """The accuracy of a test, or else its first output."""
    names = ("accuracy", "loss3/top-1")
    chosen = [output for output in test.outputs if output.name in names] or list(test.outputs)
    return f"{chosen[0].name} {chosen[0].value:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("caffe", type=Path, nargs="+")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--large", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the solver's path")
    parser.add_argument(
        "--device", help="cpu, or cuda (by default what the solver says, where there is a GPU)"
    )
    parser.add_argument("--folder", type=Path, help="where the checkout is laid out (a temporary folder)")
    options = parser.parse_args()
    sources = [source.resolve() for source in options.caffe]
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        chosen = [name for name in SOLVERS if options.only in name]
        # the one that leaves the weights for finetuning comes first
        for name in sorted(chosen, key=lambda name: "caffenet/" not in name):
            try:
                file = lay_out(name, sources, folder)
                if file is None:
                    print(f"| {name} | its files are not there |", flush=True)
                    failed += 1
                    continue
                row = train(file, options)
            except Exception:
                traceback.print_exc()
                print(f"| {name} | FAILED |", flush=True)
                failed += 1
                continue
            first, last = row["losses"]
            print(
                f"| {name} | {row['type']} | {row['weights']:,} | {row['iterations']} | {first:.4g} → {last:.4g} "
                f"| {row['tests']} | {row['files']} | {row['seconds']:.0f} s |",
                flush=True,
            )
    print(f"{len(chosen) - failed} of {len(chosen)} trained")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
