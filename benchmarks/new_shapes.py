"""What another shape of a known model costs: seconds, and modules compiled, at a batch or length that was not seen.

    python benchmarks/new_shapes.py [NAME ...] [--json FILE]

Models of ONNX (those of `onnx_models.py` whose inputs have a free extent) run beside onnxruntime, networks of
`torch_peers.py` that were converted (`jitdnn.torch.convert`) beside PyTorch, one thread each. Of each shape: seconds of
the process's processors for the first run and for the second one, ours and theirs, and how many modules ours compiled.
The first shape begins with an empty cache of code and plans; the others are what this is about. Results are held
against the other side's.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Any], Sequence[Any]]

#: by name: the model of `onnx_models.py`, what changes, and how inputs are made of it
ONNX: dict[str, tuple[str, Sequence[int], Callable[[np.random.Generator, int], dict[str, Any]]]] = {
    "ppocr_rec batch": (
        "ppocr_rec", (8, 7, 5, 3), lambda r, n: {"x": r.random((n, 3, 48, 320), np.float32)},
    ),
    "ppocr_rec width": (
        "ppocr_rec", (320, 352, 384, 480, 400), lambda r, n: {"x": r.random((1, 3, 48, n), np.float32)},
    ),
    "mtcnn_r crops": (
        "mtcnn_r", (16, 15, 9, 5), lambda r, n: {"input_2": r.random((n, 24, 24, 3), np.float32)},
    ),
    "seizure_b batch": (
        "seizure_b", (8, 7, 5, 3), lambda r, n: {"x": r.standard_normal((n, 100, 600)).astype(np.float32)},
    ),
    "rxnmap atoms": (
        "rxnmap", (96, 90, 83, 70),
        lambda r, n: {
            "atoms": r.integers(3, 120, (1, n)), "neighbors": r.integers(2, 16, (1, n)),
            "distances": r.integers(2, 12, (1, n, n)), "roles": np.where(np.arange(n) < n // 2, 2, 3)[None],
        },
    ),
}  # fmt: skip
TORCH = {"resnet18": (8, 7, 5, 3), "mobilenet_v2": (8, 7, 5, 3)}


def timed(run: Run, inputs: Any) -> tuple[float, Sequence[Any]]:
    """Seconds of this process's processor, and the results."""
    start = time.process_time()
    found = run(inputs)
    return time.process_time() - start, found


def rows(name: str, kinds: Sequence[tuple[int, Any]], ours: Run, theirs: Run) -> list[dict[str, Any]]:
    from jitdnn.rtcg.use import noting

    found = []
    for extent, inputs in kinds:
        with noting() as use:
            first, results = timed(ours, inputs)
        again, _ = timed(ours, inputs)
        other, expected = timed(theirs, inputs)
        other_again, _ = timed(theirs, inputs)
        for a, b in zip(results, expected, strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            gap = np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)
            assert gap < 1e-3, f"{name} {extent}: results differ by {gap:.1e}"
        row = {
            "name": name, "extent": extent, "compiled": len(use.compiled), "first_s": first, "again_s": again,
            "their_first_s": other, "their_again_s": other_again,
        }  # fmt: skip
        print(
            f"{name:18} {extent:4}: {len(use.compiled):3} modules, {first:7.3f} s, again {again:.4f}; "
            f"theirs {other:.4f}, again {other_again:.4f}",
            flush=True,
        )
        found.append(row)
    return found


def of_onnx(name: str) -> list[dict[str, Any]]:
    import jitdnn.onnx
    import onnx_models

    given, extents, make = ONNX[name]
    (model,) = (model for model in onnx_models.MODELS if model.name == given)
    path = onnx_models.path_of(model, Path.home() / ".cache/jitdnn-benchmarks")
    random = np.random.default_rng(0)
    kinds = [(extent, make(random, extent)) for extent in extents]
    ours, theirs = jitdnn.onnx.load(path), onnx_models.Theirs(path, 1)
    return rows(name, kinds, lambda inputs: list(ours.run(inputs)), theirs.run)


def of_torch(name: str) -> list[dict[str, Any]]:
    import torch
    from torch_peers import network

    import jitdnn.torch

    torch.set_num_threads(1)
    model = network(name)
    converted = jitdnn.torch.convert(network(name))
    kinds = [(batch, torch.rand(batch, 3, 224, 224)) for batch in TORCH[name]]
    with torch.inference_mode():
        return rows(name, kinds, lambda x: [converted(x).numpy()], lambda x: [model(x).numpy()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*ONNX, *TORCH]))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import jitdnn as jd

    found = []
    for name in arguments.names or [*ONNX, *TORCH]:
        with tempfile.TemporaryDirectory() as empty, jd.settings(threads=1, cache_dir=empty):
            found += of_onnx(name) if name in ONNX else of_torch(name)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
