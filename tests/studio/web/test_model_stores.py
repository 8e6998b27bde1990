"""Stores of models: folders as DIGITS' servers had them, and as the studio's exports are when they are unpacked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from jitdnn.caffe import load_net
from jitdnn.studio import nets
from jitdnn.studio.nets.weights import weights_file
from jitdnn.studio.web.app import make_app
from studio_pages import Here, store_of

DEPLOY = """name: "Tiny"
input: "data" input_dim: 1 input_dim: 1 input_dim: 12 input_dim: 12
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "scores" type: "InnerProduct" bottom: "conv" top: "scores"
        inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }
"""


def model(
    folder: Path, weights: str = "snapshot_iter_9.caffemodel", facts: str = "info.json", **about: object
) -> None:
    folder.mkdir(parents=True)
    (folder / "deploy.prototxt").write_text(DEPLOY)
    load_net(folder / "deploy.prototxt", seed=3).save_weights(folder / weights)
    (folder / facts).write_text(json.dumps(about))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    home = tmp_path / "home"
    home.mkdir()
    app = make_app(home, serve_queue=False)
    app.state.studio.inspector = Here()
    with TestClient(app, follow_redirects=False) as made:
        yield made


def test_a_model_of_a_store_is_fine_tuned(client: TestClient, tmp_path: Path) -> None:
    """The net gets data and a loss, and its layers begin with the store's weights; those of other shapes do not."""
    store = tmp_path / "store"
    model(store / "tiny", name="Tiny <b>", framework="caffe", note="of fives")
    model(store / "unlisted")
    (store / "master.json").write_text(
        json.dumps({"msg": "Ours", "children": ["tiny", "gone", "../home", "tiny"]})
    )
    assert client.get("/api/models").json() == []
    assert client.patch("/api/settings", json={"model_stores": [str(store)]}).status_code == 200
    (found,) = client.get("/api/models").json()
    assert (found["name"], found["about"], found["store"], found["missing"]) == (
        "Tiny <b>",
        "of fives",
        "Ours",
        "",
    )
    page = client.get("/train/import").text
    assert "Tiny &lt;b&gt;" in page
    taken = client.post("/api/models/take", json={"key": found["key"]}).json()
    assert taken["weights"] == "file:tiny.caffemodel"
    dataset = {
        "id": 1, "name": "d", "task": "classification", "shape": [1, 12, 12], "classes": ["a", "b", "c"], "train": 8,
        "val": 8, "test": 0,
    }  # fmt: skip
    home = store_of(client).home
    options = {"weights": weights_file(home, taken["weights"])}
    checked = nets.check(taken["text"], options, dataset, home)
    assert checked["ok"], checked
    assert checked["start"] == {"kept": ["conv", "scores"], "fresh": []}
    other = nets.check(taken["text"].replace("num_output: 5", "num_output: 3"), options, dataset, home)
    assert other["start"] == {"kept": ["conv"], "fresh": ["scores"]}
    nets.write(home / "runs" / "1", taken["text"], options, dataset, home)
    with np.load(home / "runs" / "1" / "start.npz") as start:
        wanted = load_net(store / "tiny" / "deploy.prototxt", seed=3).weights["conv"][0].data
        np.testing.assert_array_equal(start["conv/0"], wanted)
    store_of(client).insert("dataset", **{k: v for k, v in dataset.items() if k != "id"}, counts={})
    form = client.post("/train/model", data={"key": found["key"]}).text
    assert 'value="file:tiny.caffemodel" selected' in form
    assert "Tiny" in form


def test_exports_that_were_unpacked_into_the_home(client: TestClient) -> None:
    """Without a list each folder that says what it is is a model; what cannot be taken says why, and is refused."""
    folder = store_of(client).home / "models"
    model(folder / "b", "weights.npz", "bundle.json", title="A bundle")
    model(folder / "torch", framework="torch")
    model(folder / "bare")
    (folder / "bare" / "snapshot_iter_9.caffemodel").unlink()
    model(folder / "netless")
    (folder / "netless" / "deploy.prototxt").unlink()
    model(folder / "damaged")
    (folder / "damaged" / "info.json").write_text("[" * 100_000)
    (folder / "silent").mkdir()
    (folder / "link").symlink_to(folder / "b")
    found = {row["key"]: row["missing"] for row in client.get("/api/models").json()}
    assert list(found) == ["0/b", "0/bare", "0/damaged", "0/netless", "0/torch"]
    assert (found["0/b"], found["0/damaged"]) == ("", "")
    assert "it has no weights" in found["0/bare"]
    assert "deploy.prototxt" in found["0/netless"]
    assert "of torch" in found["0/torch"]
    assert "Of torch" not in client.get("/train/import").text
    assert client.post("/api/models/take", json={"key": "0/b"}).json()["weights"] == "file:b.npz"
    for key in (
        "0/torch",
        "0/bare",
        "0/link",
        "0/silent",
        "0/../models/b",
        "1/b",
        "-1/b",
        "b",
        "0/",
        "x" * 300,
    ):
        assert client.post("/api/models/take", json={"key": key}).status_code == 422, key
        assert client.post("/train/model", data={"key": key}).status_code == 422, key
    (folder / "damaged" / "deploy.prototxt").write_text("layer {\n oops")
    assert client.post("/api/models/take", json={"key": "0/damaged"}).status_code == 422
    assert [file.name for file in (folder.parent / "weights").iterdir()] == ["b.npz"]


def test_stores_are_folders_that_are_there(client: TestClient, tmp_path: Path) -> None:
    own = str(store_of(client).home / "models")
    assert client.get("/api/settings").json()["model_stores"] == [own]
    assert client.patch("/api/settings", json={"model_stores": ["/no/such/folder"]}).status_code == 422
    form = {"cpu_slots": "1", "model_stores": f"{own}\n{tmp_path}\n"}
    assert client.post("/settings", data=form).status_code == 303
    assert client.get("/api/settings").json()["model_stores"] == [own, str(tmp_path)]
