"""A small net over digits of its own, for tests of Caffe's commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

DATA = """
layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "DIGITS" batch_size: 20 }
  transform_param { scale: 0.0125 } }
"""
SCORE = """
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }\n'
ACCURACY = """
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""


def net_file(folder: Path, *parts: str) -> Path:
    """A net of these parts, and the digits that it reads."""
    label = np.arange(40) % 10
    data = np.random.default_rng(0).integers(0, 40, (40, 1, 4, 4)).astype(np.uint8)
    data[np.arange(40), 0, label % 4, label // 4] = 250
    np.savez(folder / "digits.npz", data=data, label=label.astype(np.uint8))
    file = folder / "net.prototxt"
    file.write_text("".join(parts).replace("DIGITS", str(folder / "digits.npz")))
    return file
