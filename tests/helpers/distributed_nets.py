"""Nets and trainings that tests run in one process and in several (process_groups.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from jitdnn.caffe import Solver, load_solver
from jitdnn.caffe.events import Displayed, Event, Iterated, Snapshotted, Tested
from jitdnn.settings import settings

GAUSSIAN = 'weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.1 }'


def write_data(folder: Path) -> None:
    """Images of 3 x 12 x 12 in four classes that can be told apart, and label 3 that some losses ignore."""
    random = np.random.default_rng(7)
    labels = random.integers(0, 4, 46)
    centres = random.normal(size=(4, 3, 12, 12))
    data = (centres[labels] + random.normal(size=(46, 3, 12, 12))).astype(np.float32)
    np.savez(folder / "images.npz", data=data, label=labels)
    mapped = folder / "mapped"
    mapped.mkdir(exist_ok=True)
    np.save(mapped / "data.npy", data)
    np.save(mapped / "label.npy", labels)


def source(folder: Path, name: str, batch: int, phase: str, transform: str = "") -> str:
    return (
        f'layer {{ name: "d{phase}" type: "Data" top: "data" top: "label" include {{ phase: {phase} }} '
        f'data_param {{ source: "{folder / name}" batch_size: {batch} }} transform_param {{ {transform} }} }}'
    )


def convolution(name: str, bottom: str, outputs: int, more: str = "kernel_size: 3 pad: 1") -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {outputs} {more} {GAUSSIAN} }} }}"
    )


def product(name: str, bottom: str, outputs: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" '
        f"inner_product_param {{ num_output: {outputs} {GAUSSIAN} }} }}"
    )


def pool(name: str, bottom: str, kind: str = "MAX", window: str = "kernel_size: 2 stride: 2") -> str:
    return (
        f'layer {{ name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{name}" '
        f"pooling_param {{ pool: {kind} {window} }} }}"
    )


def in_place(kind: str, blob: str, more: str = "") -> str:
    return f'layer {{ name: "{kind} {blob}" type: "{kind}" bottom: "{blob}" top: "{blob}" {more} }}'


def loss(bottom: str, more: str = "") -> str:
    return (
        f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{bottom}" bottom: "label" top: "loss" {more} }}'
        f'layer {{ name: "accuracy" type: "Accuracy" bottom: "{bottom}" bottom: "label" top: "accuracy" }}'
    )


def lenet(folder: Path, sizes: tuple[int, int, int] = (20, 50, 500)) -> str:
    """LeNet's layers, and its sizes if no others are given, on handwritten digits."""
    digits = "package:data/mnist_5k.npz#train"
    parts = [
        f'layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{digits}" batch_size: 4 }} '
        "transform_param { scale: 0.00390625 } }",
        convolution("conv1", "data", sizes[0], "kernel_size: 5"),
        pool("pool1", "conv1"),
        convolution("conv2", "pool1", sizes[1], "kernel_size: 5"),
        pool("pool2", "conv2"),
        product("ip1", "pool2", sizes[2]),
        in_place("ReLU", "ip1"),
        product("ip2", "ip1", 10),
        loss("ip2"),
    ]
    return "".join(parts)


def cifar10_full(folder: Path) -> str:
    """The layers of cifar10_full, fewer channels, with dropout; images are cropped and mirrored at random."""
    transform = "crop_size: 11 mirror: true mean_value: 0.1"
    norm = "lrn_param { local_size: 3 alpha: 5e-05 beta: 0.75 norm_region: WITHIN_CHANNEL }"
    lrns = [
        f'layer {{ name: "norm{i}" type: "LRN" bottom: "pool{i}" top: "norm{i}" {norm} }}' for i in (1, 2)
    ]
    parts = [
        source(folder, "images.npz", 6, "TRAIN", transform),
        source(folder, "images.npz", 5, "TEST", "crop_size: 11"),
        convolution("conv1", "data", 8, "kernel_size: 5 pad: 2"),
        pool("pool1", "conv1", window="kernel_size: 3 stride: 2"),
        in_place("ReLU", "pool1"),
        lrns[0],
        convolution("conv2", "norm1", 8, "kernel_size: 5 pad: 2"),
        in_place("ReLU", "conv2"),
        pool("pool2", "conv2", "AVE", "kernel_size: 3 stride: 2"),
        lrns[1],
        in_place("Dropout", "norm2", "dropout_param { dropout_ratio: 0.3 }"),
        product("ip1", "norm2", 4),
        loss("ip1"),
    ]
    return "".join(parts)


def normalized(folder: Path, batch: int = 8) -> str:
    """Convolutions with BatchNorm and Scale; a loss and an accuracy that leave a label out."""
    ignoring = "loss_param { ignore_label: 3 }"
    parts = [
        source(folder, "mapped", batch, "TRAIN", "mirror: true"),
        source(folder, "mapped", 7, "TEST"),
    ]
    bottom = "data"
    for name in ("conv1", "conv2"):
        parts += [
            convolution(name, bottom, 6),
            in_place("BatchNorm", name),
            in_place("Scale", name, "scale_param { bias_term: true }"),
            in_place("ReLU", name),
        ]
        bottom = name
    parts += [
        pool("pool", "conv2", "AVE", "kernel_size: 4 stride: 4"),
        product("ip", "pool", 4),
        loss("ip", ignoring),
    ]
    text = "".join(parts)
    return text.replace(
        'top: "accuracy" }', 'top: "accuracy" top: "each" accuracy_param { ignore_label: 3 } }'
    )


def small_lenet(folder: Path) -> str:
    return lenet(folder, (4, 6, 20))


NETS = {
    "lenet": lenet,
    "small lenet": small_lenet,
    "cifar10_full": cifar10_full,
    "normalized": normalized,
}
RATES = {"lenet": 0.003, "small lenet": 0.01, "cifar10_full": 0.01, "normalized": 0.02}
TESTED = "test_iter: 3 test_interval: 10 test_initialization: true"


def solver_of(folder: Path, net: str, more: str = "", **options: Any) -> tuple[Solver, dict[str, list[Any]]]:
    """A solver of one of NETS, or of a net's text, and lists that fill with what it tells."""
    told: dict[str, list[Any]] = {"loss": [], "test": [], "display": []}

    def listen(event: Event) -> None:
        if isinstance(event, Iterated):
            told["loss"].append(float(event.loss))
        if isinstance(event, Tested):
            told["test"].append([output.value for output in event.outputs] + [event.loss or 0.0])
        if isinstance(event, Displayed):
            told["display"].append([event.loss, *(output.value for output in event.outputs)])

    text = NETS[net](folder) if net in NETS else net
    rate = f"base_lr: {RATES.get(net, 0.01)}"
    if "momentum" not in more:
        more += " momentum: 0.9"
    parameter = (
        f"{rate} lr_policy: 'fixed' weight_decay: 0.001 snapshot_after_train: false max_iter: 1000 {more} "
        f"net_param {{ {text} }}"
    )
    with settings(threads=1):
        made = load_solver(parameter, seed=5, listener=listen, **options)
    return made, told


def trained(
    folder: Path, net: str, steps: int, more: str = "", **options: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """Losses, tests, displays and weights of a training."""
    made, told = solver_of(folder, net, more, **options)
    with settings(threads=1):
        made.step(steps)
        if made.test_nets:
            made.test_all()
    return results(made, told)


def results(made: Solver, told: dict[str, list[Any]]) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {name: np.array(values) for name, values in told.items()}
    arrays |= {f"weight {each.name}": each.blob.data.copy() for each in made.net.parameters}
    for layer in made.net.layers:
        if layer.type == "BatchNorm":
            arrays |= {
                f"statistics {layer.name}/{i}": blob.data.copy() for i, blob in enumerate(layer.weights)
            }
    return arrays


FULL = f"{TESTED} test_compute_loss: true display: 5"
SOLVERS = {
    "SGD": "type: 'SGD' clip_gradients: 0.5 iter_size: 2",
    "Nesterov": "type: 'Nesterov' iter_size: 3 regularization_type: 'L1'",
    "AdaGrad": "type: 'AdaGrad' momentum: 0",
    "RMSProp": "type: 'RMSProp' momentum: 0 clip_gradients: 2",
    "AdaDelta": "type: 'AdaDelta' momentum: 0.95 delta: 1e-6",
    "Adam": "type: 'Adam' momentum: 0.9",
}


SHARDED = {kind: SOLVERS[kind] for kind in ("SGD", "AdaDelta", "Adam")}


def runs(folder: Path, group: Any) -> dict[str, Any]:
    """Every training by name: what it needs to be called with."""
    together = {} if group is None else {"group": group}
    found: dict[str, Any] = {
        # in double precision, where what rounding differs by does not grow in 200 iterations
        "small lenet": lambda: trained(folder, "small lenet", 200, dtype="f64", **together),
        "cifar10_full": lambda: trained(
            folder, "cifar10_full", 200, "test_iter: 3 test_interval: 100", dtype="f64", **together
        ),
        "normalized": lambda: trained(folder, "normalized", 200, FULL, dtype="f64", **together),
        "normalized f32": lambda: trained(folder, "normalized", 20, FULL, **together),
        "uneven": lambda: trained(
            folder, cifar10_full(folder).replace("batch_size: 6", "batch_size: 5"), 6, **together
        ),
        "limited": lambda: limited(folder, SOLVERS["Adam"], **together),
    }
    for kind, more in SOLVERS.items():
        found[kind] = lambda more=more: trained(folder, "cifar10_full", 6, more, **together)
    if group is not None:
        found["resumed"] = lambda: resumed(folder, "one.jdsnap", "two.jdsnap", group=group)
        found["sharded limited"] = lambda: limited(folder, SOLVERS["Adam"], group=group, shards_state=True)
        found["sharded in pieces"] = lambda: in_pieces(folder, SOLVERS["Adam"], group)
        found["again"] = lambda: trained(folder, "normalized", 20, FULL, group=group)
        found["bf16"] = lambda: trained(folder, "cifar10_full", 10, group=group, wire="bf16")
        found["local"] = lambda: trained(folder, "normalized", 10, FULL, group=group, batch_norm="local")
        for kind, more in SHARDED.items():
            found[f"sharded {kind}"] = lambda more=more: trained(
                folder, "cifar10_full", 6, more, group=group, shards_state=True
            )
    return found


def limited(folder: Path, more: str, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Four iterations in the least memory; with the bytes of the histories, here and in all processes, and those of
    all that the plan keeps.
    """
    made, told = solver_of(folder, "normalized", more, memory_limit="least", **options)
    with settings(threads=1):
        made.step(4)
    plan = made.net.memory_plan
    assert plan is not None
    whole = np.array([made.method.nbytes])
    if "group" in options:
        options["group"].sum(whole)
    return results(made, told) | {"bytes": np.array([made.method.nbytes, whole[0], plan.peak])}


def in_pieces(folder: Path, more: str, group: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Six iterations with divided state, in buckets of 1 KiB: a weight lies in several."""
    with mock.patch("jitdnn.caffe.data_parallel.BUCKET_BYTES", 1024):
        made, told = solver_of(folder, "cifar10_full", more, group=group, shards_state=True)
    assert made._parallel is not None
    sizes = [bucket.stop - bucket.start for bucket in made._parallel.buckets.buckets]
    assert max(sizes) == 256 < max(each.blob.size for each in made.net.parameters)
    with settings(threads=1):
        made.step(6)
    return results(made, told)


def resumed(folder: Path, resume: str, snapshot: str, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Five iterations, from a snapshot if there is one, then a snapshot, and five more."""
    made, told = solver_of(folder, "normalized", FULL, **options)
    with settings(threads=1):
        if resume:
            made.restore(folder / resume)
        made.step(5)
        made.snapshot(folder / snapshot)
        made.step(5)
    return results(made, told)


def train(
    group: Any, folder: Path, net: str, steps: int, more: str, dtype: str
) -> dict[str, np.ndarray[Any, Any]]:
    """`trained`, in one of several processes."""
    return trained(folder, net, steps, more, dtype=dtype, group=group)


def asked(group: Any, folder: Path) -> tuple[list[int], int]:
    """At which iterations snapshots are taken, and where the training ends, if process 1 alone asks for a snapshot
    behind iteration 3, when the processes have agreed on that one, and to stop behind iteration 6.
    """
    taken: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, Snapshotted):
            taken.append(event.iteration)
        if isinstance(event, Iterated) and group.rank == 1:
            if event.iteration == 3:
                made.ask_for_snapshot()
            if event.iteration == 6:
                made.stop()

    text = f"base_lr: 0.01 lr_policy: 'fixed' net_param {{ {NETS['normalized'](folder)} }}"
    made = load_solver(text, seed=5, listener=listen, group=group, snapshot_prefix=str(folder / "asked"))
    with settings(threads=1):
        made.step(20)
    return taken, made.iteration


def run(group: Any, folder: Path, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """One of `runs`, in one of several processes."""
    arrays: dict[str, np.ndarray[Any, Any]] = runs(folder, group)[name]()
    return arrays


def broadcasts(group: Any) -> list[np.ndarray[Any, Any]]:
    """Arrays of several types and orders of axes behind one broadcast, of which few go together."""
    random = np.random.default_rng(group.rank)
    arrays = [
        random.random((3, 5)),
        random.random(7).astype(np.float32),
        np.ascontiguousarray(random.random((2, 3, 4, 5)).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        np.zeros((0, 4)),
        random.integers(0, 9, 40),
        random.random(()).reshape(()),
        random.random(100).astype(np.float32),
    ]
    with mock.patch("jitdnn.distributed.group.TOGETHER", 130):
        group.broadcast_all(arrays)
    return arrays
