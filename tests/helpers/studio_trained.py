"""A home of the studio with trained runs, made once a process: what evaluation, looking inside and export are tested
with."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe import Net, NetParameter, NetState, load_solver, parse
from jitdnn.studio.data import creation
from jitdnn.studio.store import Store

DIGITS_NET = """
name: "small"
layer { name: "digits" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "../../data/1#train" batch_size: 64 }
  transform_param { scale: 0.0125 crop_size: 26 } }
layer { name: "digits" type: "Data" top: "data" top: "label" include { phase: TEST }
  data_param { source: "../../data/1#test" batch_size: 100 }
  transform_param { scale: 0.0125 crop_size: 26 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1"
  inner_product_param { num_output: 32 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.1 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = """net: "net.prototxt" test_iter: 5 test_interval: 1000 base_lr: 0.02 momentum: 0.9 weight_decay: 0.0005
lr_policy: "poly" power: 1 max_iter: 160 snapshot: 80 random_seed: 3 display: 0"""

# of each other task a net that nobody trained: its answers are known by running it another way
HEADS = {
    "multi-label": 'layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "ip" bottom: "label" top: "loss" }',
    "regression": 'layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }',
}
BODY = """
layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "nowhere" batch_size: 4 }}
  transform_param {{ {transform} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 6 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
{head}
"""
VECTOR = """layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
PIXELS = """layer { name: "score" type: "Convolution" bottom: "conv" top: "score"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss"
  loss_param { ignore_label: 255 } }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy" }"""


# single-shot detection: two prior boxes in each of 3 x 2 cells, for two classes and the background
BOXES = """layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 4
stride: 4 } } layer { name: "loc" type: "Convolution" bottom: "pool" top: "loc"
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "gaussian" std: 0.001 } } }
layer { name: "loc_p" type: "Permute" bottom: "loc" top: "loc_p" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_f" type: "Flatten" bottom: "loc_p" top: "loc_f" }
layer { name: "conf" type: "Convolution" bottom: "pool" top: "conf"
  convolution_param { num_output: 6 kernel_size: 1 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "conf_p" type: "Permute" bottom: "conf" top: "conf_p"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_r" type: "Reshape" bottom: "conf_p" top: "conf_r"
  reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param { axis: 2 } }
layer { name: "conf_f" type: "Flatten" bottom: "conf_s" top: "conf_f" }
layer { name: "prior" type: "PriorBox" bottom: "pool" bottom: "data" top: "prior"
  prior_box_param { min_size: 4 max_size: 6 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
layer { name: "found" type: "DetectionOutput" bottom: "loc_f" bottom: "conf_f" bottom: "prior" top: "found"
  detection_output_param { num_classes: 3 share_location: true background_label_id: 0 code_type: CENTER_SIZE
    nms_param { nms_threshold: 0.45 top_k: 20 } keep_top_k: 8 confidence_threshold: 0.2 } }"""


class Case(NamedTuple):
    """A home, and rows of a run and of its data set as the store has them."""

    home: Path
    run: dict[str, Any]
    dataset: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.home / "runs" / str(self.run["id"])


@cache
def digits() -> Case:
    """A small net trained on the digits that come with jitdnn, to about 95 %."""
    home = _home()
    folder = home / "runs" / "1"
    (folder / "net.prototxt").write_text(DIGITS_NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    store = Store(home)
    dataset = creation.digits(store)
    assert dataset == 1  # as the net says
    solver = load_solver(folder / "solver.prototxt", snapshot_prefix=str(folder / "snap"))
    solver.solve()
    solver.net.save_weights(folder / "best.npz")
    return _case(store, "small", dataset)


@cache
def of_task(task: str) -> Case:
    """A net with random weights and 37 random images in colour for one of the other tasks."""
    home = _home()
    random = np.random.default_rng(len(task))
    images = random.integers(0, 256, (37, 3, 12, 10), np.uint8)
    if task == "segmentation":
        labels = random.integers(0, 3, (37, 12, 10)).astype(np.uint8)
        labels[random.random(labels.shape) < 0.1] = 255
        text = BODY.format(
            transform="scale: 0.01 mean_value: 90 mean_value: 100 mean_value: 110", head=PIXELS
        )
    elif task == "detection":
        corners = random.random((37, 3, 2, 2)).astype(np.float32)
        corners.sort(axis=2)
        labels = np.concatenate([random.integers(-1, 2, (37, 3, 1)), corners.reshape(37, 3, 4)], 2).astype(
            np.float32
        )
        text = BODY.format(transform="scale: 0.01", head=BOXES)
    else:
        labels = random.random((37, 3)).astype(np.float32)
        if task == "multi-label":
            labels = (labels > 0.6).astype(np.float32)
        text = BODY.format(
            transform='scale: 0.01 mean_file: "mean.npy" crop_size: 8', head=VECTOR + HEADS[task]
        )
    for part in ("train", "test"):
        _keep(home, part, images, labels)
    folder = home / "runs" / "1"
    (folder / "net.prototxt").write_text(text)
    np.save(folder / "mean.npy", random.random((3, 12, 10)).astype(np.float32) * 200)
    used = parse(text, NetParameter)
    used.layer = [layer for layer in used.layer if layer.type not in ("SigmoidCrossEntropyLoss", "EuclideanLoss",
                                                                      "SoftmaxWithLoss", "Accuracy")]  # fmt: skip
    size = "3 12 10" if task in ("segmentation", "detection") else "3 8 8"
    dims = " ".join(f"dim: {extent}" for extent in f"1 {size}".split())
    given = f'layer {{ name: "d" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'
    used.layer[0] = parse(given, NetParameter).layer[0]
    Net(used, NetState(phase="TEST"), seed=5).save_weights(folder / "best.npz")
    store = Store(home)
    dataset = store.insert(
        "dataset",
        name="made here",
        task=task,
        shape=[3, 12, 10],
        classes=["none", "cat", "dog"] if task != "detection" else ["cat", "dog"],
        train=37,
        test=37,
    )
    return _case(store, task, dataset)


def _home() -> Path:
    home = Path(mkdtemp(prefix="jitdnn-studio-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for folder in ("runs/1", "data/1"):
        (home / folder).mkdir(parents=True)
    return home


def _keep(home: Path, part: str, images: Any, labels: Any) -> None:
    np.save(home / "data" / "1" / f"{part}_data.npy", images)
    np.save(home / "data" / "1" / f"{part}_label.npy", labels)


def _case(store: Store, name: str, dataset: int) -> Case:
    run = store.insert(
        "run", name=name, dataset=dataset, net_name=name, options={"batch": 64}, state="done", iteration=160
    )
    rows = store.one("run", run), store.one("dataset", dataset)
    assert rows[0] is not None
    assert rows[1] is not None
    return Case(store.home, *rows)
