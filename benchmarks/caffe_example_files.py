"""A folder as a checkout of Caffe: its solvers and nets at their paths, and beside them small data in the formats that
the nets name: LMDB and LevelDB databases, lists of images, lists of windows, mean images.

The digits are real (the package's 5,000 of MNIST), all other images are made: a class is a place and a colour.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import jitdnn
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datasets import compute_mean, convert_imageset
from jitdnn.caffe.datum import image_datum
from jitdnn.caffe.pycaffe import NetSpec, layers, params

Bytes = NDArray[np.uint8]
Examples = Iterable[tuple[Bytes, int]]
"""Images (C, H, W) with their labels."""

CLASSES = 10

#: the solvers of Caffe 1.0, each with the nets that it names; those of lenet_auto_solver are written by a program
SOLVERS: dict[str, tuple[str, ...]] = {
    "models/bvlc_alexnet/solver.prototxt": ("models/bvlc_alexnet/train_val.prototxt",),
    "models/bvlc_reference_caffenet/solver.prototxt": ("models/bvlc_reference_caffenet/train_val.prototxt",),
    "models/bvlc_googlenet/solver.prototxt": ("models/bvlc_googlenet/train_val.prototxt",),
    "models/bvlc_googlenet/quick_solver.prototxt": ("models/bvlc_googlenet/train_val.prototxt",),
    "models/finetune_flickr_style/solver.prototxt": ("models/finetune_flickr_style/train_val.prototxt",),
    "examples/finetune_pascal_detection/pascal_finetune_solver.prototxt": (
        "examples/finetune_pascal_detection/pascal_finetune_trainval_test.prototxt",
    ),
    "examples/siamese/mnist_siamese_solver.prototxt": ("examples/siamese/mnist_siamese_train_test.prototxt",),
    "examples/mnist/lenet_auto_solver.prototxt": (),
    "examples/mnist/lenet_consolidated_solver.prototxt": (),
    **{
        f"examples/mnist/{name}.prototxt": ("examples/mnist/lenet_train_test.prototxt",)
        for name in (
            "lenet_solver", "lenet_multistep_solver", "lenet_adadelta_solver", "lenet_solver_adam",
            "lenet_solver_rmsprop",
        )
    },
    **{
        f"examples/mnist/mnist_autoencoder_solver{name}.prototxt": (
            "examples/mnist/mnist_autoencoder.prototxt",
        )
        for name in ("", "_adadelta", "_adagrad", "_nesterov")
    },
    **{
        f"examples/cifar10/cifar10_{name}.prototxt": (f"examples/cifar10/cifar10_{net}.prototxt",)
        for name, net in (
            ("quick_solver", "quick_train_test"), ("quick_solver_lr1", "quick_train_test"),
            ("full_solver", "full_train_test"), ("full_solver_lr1", "full_train_test"),
            ("full_solver_lr2", "full_train_test"), ("full_sigmoid_solver", "full_sigmoid_train_test"),
            ("full_sigmoid_solver_bn", "full_sigmoid_train_test_bn"),
        )
    },
}  # fmt: skip


def lay_out(solver: str, sources: Sequence[Path], folder: Path) -> Path | None:
    """Copy a solver and its nets from where they are found below `sources` to their paths below `folder`, and write
    their data. Returns the solver's path, None if one of the files is in none of the sources.

    A file is found by its name and its folder's, so that a checkout of Caffe will do, and copies of parts of it.
    """
    for name in (solver, *SOLVERS[solver]):
        path = folder / name
        found = [
            file
            for source in sources
            for file in sorted(source.rglob(path.name))
            if file.parent.name == path.parent.name
        ]
        if not found:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found[0], path)
    group = Path(solver).parts[1]
    if group == "mnist":
        write_digits(folder / "examples/mnist")
        if "auto" in solver:
            _write_auto_nets(folder)
    elif group == "siamese":
        write_pairs(folder / "examples/siamese")
    elif group == "cifar10":
        write_small_images(folder / "examples/cifar10")
    else:
        write_large_images(folder)
    return folder / solver


# ---- what is written


def write_digits(folder: Path) -> None:
    """mnist_train_lmdb and mnist_test_lmdb: 4,000 and 1,000 digits."""
    for part in ("train", "test"):
        _write_database(folder / f"mnist_{part}_lmdb", digits(part))


def digits(part: str) -> Iterator[tuple[Bytes, int]]:
    """The package's digits of a part, "train" or "test"."""
    with np.load(Path(jitdnn.__file__).parent / "data" / "mnist_5k.npz") as arrays:
        images, labels = arrays[f"{part}_data"], arrays[f"{part}_label"]
    return zip(images, labels.tolist(), strict=True)


def write_pairs(folder: Path) -> None:
    """mnist_siamese_train_leveldb and _test_leveldb: two digits as channels, with label 1 if they are of one class."""
    for part in ("train", "test"):
        found = list(digits(part))
        chosen = np.random.default_rng(0).integers(0, len(found), (2000, 2)).tolist()
        pairs = ((found[first], found[second]) for first, second in chosen)
        examples = ((np.concatenate([a[0], b[0]]), int(a[1] == b[1])) for a, b in pairs)
        _write_database(folder / f"mnist_siamese_{part}_leveldb", examples, "leveldb")


def write_small_images(folder: Path, count: int = 1000) -> None:
    """cifar10_train_lmdb, cifar10_test_lmdb and mean.binaryproto: colour images of 32 x 32."""
    for seed, part in enumerate(("train", "test")):
        _write_database(folder / f"cifar10_{part}_lmdb", made_images(count, 32, seed))
    if not (folder / "mean.binaryproto").exists():
        compute_mean(folder / "cifar10_train_lmdb", folder / "mean.binaryproto")


def write_large_images(folder: Path, count: int = 80) -> None:
    """JPEG files of several sizes, lists of them, lists of windows, LMDB databases of 256 x 256 (one of bytes, one of
    JPEGs) and their mean, where ImageNet, Flickr's styles and Pascal's detections are for Caffe.
    """
    images = folder / "data/images"
    if images.exists():
        return
    images.mkdir(parents=True)
    random = np.random.default_rng(2)
    lines, windows = [], []
    for number, (image, label) in enumerate(made_images(count, 256, 2)):
        height, width = (int(extent) for extent in random.integers(200, 400, 2))
        picture = Image.fromarray(np.ascontiguousarray(image[::-1].transpose(1, 2, 0)))
        path = images / f"{number}.jpg"
        picture.resize((width, height)).save(path, quality=90)
        lines.append(f"{path} {label}\n")
        windows.append(_windows(number, path, height, width, label, random))
    for part in ("train", "test"):
        _write_text(folder / f"data/flickr_style/{part}.txt", "".join(lines))
    for part in ("trainval", "test"):
        path = folder / f"examples/finetune_pascal_detection/window_file_2007_{part}.txt"
        _write_text(path, "".join(windows))
    databases, mean = folder / "examples/imagenet", folder / "data/ilsvrc12/imagenet_mean.binaryproto"
    for part, encoding in (("train", ""), ("val", "jpg")):
        listed = folder / f"data/ilsvrc12/{part}.txt"
        _write_text(listed, "".join(lines))
        database = databases / f"ilsvrc12_{part}_lmdb"
        database.parent.mkdir(parents=True, exist_ok=True)
        convert_imageset(listed, "", database, resize=(256, 256), shuffle_seed=0, encode_type=encoding)
    compute_mean(databases / "ilsvrc12_train_lmdb", mean)


def _windows(
    number: int, path: Path, height: int, width: int, label: int, random: np.random.Generator
) -> str:
    """An image of a list of windows: the object, which fills most of it, and three that meet it little (class 0)."""
    lines = [f"{label + 1} 0.9 {width // 8} {height // 8} {width - width // 8} {height - height // 8}"]
    for _ in range(3):
        left, top = int(random.integers(0, width // 2)), int(random.integers(0, height // 2))
        lines.append(f"{label + 1} 0.1 {left} {top} {left + width // 3} {top + height // 3}")
    return "\n".join([f"# {number}", str(path), "3", str(height), str(width), str(len(lines)), *lines]) + "\n"


def made_images(count: int, side: int, seed: int) -> Iterator[tuple[Bytes, int]]:
    """Images (3, side, side): noise, and a bright stripe whose place and channel tell the class."""
    random = np.random.default_rng(seed)
    stripe = side // CLASSES
    for index in range(count):
        label = index % CLASSES
        coarse = random.integers(0, 120, (3, 16, 16), np.uint8)
        image = coarse.repeat(side // 16, 1).repeat(side // 16, 2)
        image[label % 3, label * stripe : (label + 1) * stripe] = 250
        yield image, label


def _write_database(path: Path, examples: Examples, backend: str = "lmdb") -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_database(path, backend) as writer:
        for number, (image, label) in enumerate(examples):
            writer.put(b"%08d" % number, image_datum(image, label))


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_auto_nets(folder: Path) -> None:
    """mnist/lenet_auto_train.prototxt and _test: LeNet as a program with pycaffe's NetSpec."""
    for part, batch in (("train", 64), ("test", 100)):
        n = NetSpec()
        n.data, n.label = layers.Data(
            batch_size=batch,
            backend=params.Data.LMDB,
            source=f"examples/mnist/mnist_{part}_lmdb",
            transform_param={"scale": 1 / 255},
            ntop=2,
        )
        filler = {"type": "xavier"}
        n.conv1 = layers.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=filler)
        n.pool1 = layers.Pooling(n.conv1, kernel_size=2, stride=2, pool=params.Pooling.MAX)
        n.conv2 = layers.Convolution(n.pool1, kernel_size=5, num_output=50, weight_filler=filler)
        n.pool2 = layers.Pooling(n.conv2, kernel_size=2, stride=2, pool=params.Pooling.MAX)
        n.fc1 = layers.InnerProduct(n.pool2, num_output=500, weight_filler=filler)
        n.relu1 = layers.ReLU(n.fc1, in_place=True)
        n.score = layers.InnerProduct(n.relu1, num_output=10, weight_filler=filler)
        n.loss = layers.SoftmaxWithLoss(n.score, n.label)
        _write_text(folder / f"mnist/lenet_auto_{part}.prototxt", str(n.to_proto()))
