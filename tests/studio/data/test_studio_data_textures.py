"""Own photographs: crops of scikit-image's textures, divided without leaks, from zip file to a net that reads them."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from jitdnn.caffe import load_net
from jitdnn.studio.data import Options, creation, duplicates, open_dataset
from jitdnn.studio.store import Store
from paths import ROOT

pytest.importorskip("skimage", reason="scikit-image, whose photographs these are, is not installed")


def test_textures(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "studio_textures.py"))
    path = tmp_path / "textures.zip"
    assert example["write"](path) == 3 * 8 * 6
    store = Store(tmp_path / "home")
    row = store.one("dataset", creation.create(store, "Textures", str(path), Options(64, 64, grey=True)))
    assert row is not None
    assert (row["classes"], row["shape"]) == (["brick", "grass", "gravel"], [1, 64, 64])
    assert (row["train"], row["val"], row["test"]) == (96, 24, 24)
    dataset = open_dataset(store.home, row)
    assert duplicates.twins(dataset.folder)["leaks"] == 0
    assert dataset.histogram("val") == [8, 8, 8]
    photographs = {str(crop.tobytes()) for crop in np.array(dataset.images("train")[:, 0])}
    assert not photographs & {str(crop.tobytes()) for crop in np.array(dataset.images("test")[:, 0])}
    net = load_net(
        f"""layer {{ name: "d" type: "Data" top: "data" top: "label"
                     data_param {{ source: "{dataset.source("train")}" batch_size: 8 }}
                     transform_param {{ mirror: true crop_size: 56 scale: 0.00390625 }} }}""",
        "TRAIN",
    )
    outputs = net.forward()
    assert outputs["data"].shape == (8, 1, 56, 56)
    np.testing.assert_array_equal(outputs["label"], dataset.labels("train")[:8])
