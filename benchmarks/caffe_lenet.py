"""LeNet trained to the end by Caffe's own files: lenet_solver.prototxt as it stands, 10,000 iterations.

    python benchmarks/caffe_lenet.py CAFFE [--device cuda] [--seeds 1 2 3] [--way ours] [--way torch] [--images FOLDER]

CAFFE is a checkout of Caffe, or a folder with its examples/mnist. The digits are the package's 5,000 of MNIST, 4,000 to
train with and 1,000 to test with, as LMDB databases, where Caffe has 60,000 and 10,000. `--images` is a folder with
train-images-idx3-ubyte and the three other files of MNIST's format, .gz or not, to be taken in their place: 60,000 and
10,000 of Fashion-MNIST are in Debian's package dataset-fashion-mnist. `torch` trains the same net in
PyTorch, from the same weights and on the same batches in the same order, with torch.optim.SGD at the rates of the
solver's policy: what the net can learn from these digits.

Prints the accuracy and the loss of the test at every thousandth iteration, and at the end.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from caffe_example_files import lay_out

from jitdnn.caffe import Solver, load_solver
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datum import image_datum
from jitdnn.caffe.events import Event, Tested, WaitedForData

SOLVER = "examples/mnist/lenet_solver.prototxt"
EVERY = 1000


def ours(file: Path, seed: int, device: str | None) -> None:
    """Train by the solver."""
    start = perf_counter()
    waited, elapsed = 0.0, 0.0

    def listen(event: Event) -> None:
        nonlocal waited, elapsed
        if isinstance(event, Tested) and event.iteration % EVERY == 0:
            values = {output.name: output.value for output in event.outputs}
            say("ours", seed, event.iteration, values["accuracy"], values["loss"])
        if isinstance(event, WaitedForData):
            waited, elapsed = waited + event.seconds, elapsed + event.elapsed

    solver = load_solver(file, seed=seed, device=device, listener=listen)
    solver.solve()
    print(
        f"ours, seed {seed}: {solver.iteration} iterations with their tests took {perf_counter() - start:.0f} s; the "
        f"net waited for data {waited:.2f} s of {elapsed:.0f} s ({waited / max(elapsed, 1e-9):.1%})",
        flush=True,
    )


def theirs(file: Path, seed: int, device: str | None) -> None:
    """Train the same in PyTorch; batches and rates are the solver's."""
    import torch
    from caffe_in_torch import TorchNet

    solver = load_solver(file, seed=seed, device="cpu")
    where = "cuda" if (device or "").startswith("cuda") else "cpu"
    module = TorchNet(solver.net).to(where)
    decay = solver.parameter.weight_decay
    biases = [parameter for name, parameter in module.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in module.named_parameters() if name.endswith("weight")]
    optimizer = torch.optim.SGD(
        [{"params": weights}, {"params": biases}],
        momentum=solver.parameter.momentum,
        weight_decay=decay,
        lr=0.1,
    )
    batch = _batches(solver)
    test = solver.test_nets[0]
    for iteration in range(solver.parameter.max_iter):
        rate = solver.rate.at(iteration)
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, 2 * rate
        data, label = (torch.from_numpy(array).to(where) for array in batch())
        optimizer.zero_grad()
        module(data, label.long()).backward()
        optimizer.step()
        if (iteration + 1) % EVERY == 0:
            _copy_back(module, solver)
            results = [{name: float(value) for name, value in test.forward().items()} for _ in range(10)]
            means = {name: float(np.mean([each[name] for each in results])) for name in results[0]}
            say("torch", seed, iteration + 1, means["accuracy"], means["loss"])


def _batches(solver: Solver) -> Callable[[], tuple[Any, Any]]:
    """What gives the next batch of the layer that reads the data."""
    source = solver.net.nodes[0]

    def batch() -> tuple[Any, Any]:
        source.layer.forward(source.bottom, source.top)
        return source.top[0].data.copy(), source.top[1].data.copy()

    return batch


def _copy_back(module: Any, solver: Solver) -> None:
    """Give the weights of a module to the solver's nets."""
    blobs = [blob for blobs in solver.net.weights.values() for blob in blobs]
    for parameter, blob in zip(module.parameters(), blobs, strict=True):
        blob.data[...] = parameter.detach().cpu().numpy().reshape(blob.shape)


def read_idx(folder: Path, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a file of MNIST's format: two zeros, 8, the number of axes, the extents as 32 bits, the elements."""
    plain, packed = folder / name, folder / f"{name}.gz"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{folder / name} is no file of bytes in MNIST's format")
    shape = np.frombuffer(content, ">u4", content[3], 4).tolist()
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def write_images(folder: Path, target: Path) -> None:
    """mnist_train_lmdb and mnist_test_lmdb of other images, as Caffe's convert_mnist_data writes them."""
    target.mkdir(parents=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(folder, f"{prefix}-images-idx3-ubyte")
        labels = read_idx(folder, f"{prefix}-labels-idx1-ubyte")
        with new_database(target / f"mnist_{part}_lmdb", "lmdb") as writer:
            for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                writer.put(b"%08d" % number, image_datum(image[None], label))
        print(f"{part}: {len(images)} images of {images.shape[1:]}, {labels.max() + 1} classes", flush=True)


def say(way: str, seed: int, iteration: int, accuracy: float, loss: float) -> None:
    """Print the result of a test."""
    print(f"{way}, seed {seed}, iteration {iteration}: accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("caffe", type=Path)
    parser.add_argument("--device", help="cpu, or cuda")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--way", action="append", choices=("ours", "torch"), default=[])
    parser.add_argument("--images", type=Path, help="a folder with files of MNIST's format")
    options = parser.parse_args()
    source = options.caffe.resolve()
    images = None if options.images is None else options.images.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if images is not None:
            write_images(images, Path(folder) / "examples/mnist")
        file = lay_out(SOLVER, [source], Path(folder))
        if file is None:
            raise SystemExit(f"{source} has no {SOLVER}, or not its net")
        for seed in options.seeds:
            for way in options.way or ["ours"]:
                (ours if way == "ours" else theirs)(file, seed, options.device)


if __name__ == "__main__":
    main()
