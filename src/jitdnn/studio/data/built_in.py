"""The handwritten digits that come with the package: 5,000 of MNIST."""

from __future__ import annotations

from typing import Final

import numpy as np

from jitdnn.caffe import paths
from jitdnn.caffe.arrays import read_npz
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.readers import Rows

DIGITS: Final = "package:data/mnist_5k.npz"


def list_digits() -> Listing:
    """4,000 to train with; of the 1,000 for testing every second one of a class validates."""
    arrays = read_npz(paths.find(DIGITS))
    data = np.concatenate([arrays["train_data"], arrays["test_data"]])
    labels = np.concatenate([arrays["train_label"], arrays["test_label"]]).astype(np.int64)
    count = len(arrays["train_data"])
    seen = np.zeros(10, np.int64)
    entries = []
    for place, label in enumerate(labels.tolist()):
        part = "train"
        if place >= count:
            part = ("val", "test")[int(seen[label]) % 2]
            seen[label] += 1
        entries.append(Entry(f"digit {place}", place, label, part))
    return Listing(
        "classification", entries, [str(digit) for digit in range(10)], Rows(data, labels), "built in"
    )
