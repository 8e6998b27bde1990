"""A new training: the form, the check, and what may not become a run."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio import nets
from jitdnn.studio.web import planning
from jitdnn.studio.web.app import make_app
from studio_pages import Here, store_of

LENET = nets.gallery("classification")[0]["text"]
FORM = {
    "dataset": "1",
    "net": LENET,
    "epochs": "2",
    "batch": "8",
    "rate": "0.01",
    "policy": "poly",
    "steps": "",
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    app = make_app(tmp_path, serve_queue=False)
    app.state.studio.inspector = Here()
    store = app.state.studio.store
    store.insert(
        "dataset", name="Stripes & <b>", classes=["a", "b"], counts={"train": [10, 10]}, shape=[1, 28, 28],
        train=20, test=10,
    )  # fmt: skip
    with TestClient(app, follow_redirects=False) as made:
        yield made


def test_form_has_every_option_of_nets(client: TestClient) -> None:
    page = client.get("/train").text
    for option in fields(nets.Options):
        assert f'name="{option.name}"' in page, option.name
    assert "Stripes &amp; &lt;b&gt;" in page
    contract = client.get("/api/openapi.json").json()["components"]["schemas"]["TrainingOptions"][
        "properties"
    ]
    assert set(contract) == {option.name for option in fields(nets.Options)}


def test_nets_of_the_gallery_are_fetched_when_they_are_chosen(client: TestClient) -> None:
    page = client.get("/train").text
    for net in nets.gallery("classification"):
        assert f'name="gallery" value="{net["key"]}"' in page
        answer = client.get(f"/train/nets/{net['key']}")
        assert answer.text == net["text"]
        assert answer.headers["content-type"].startswith("text/plain")
    assert len(page) < len(LENET) + 60_000  # with its options and their meanings
    assert client.get("/train/nets/none").status_code == 404


def test_without_data_the_page_offers_the_built_in(tmp_path: Path) -> None:
    with TestClient(make_app(tmp_path, serve_queue=False)) as client:
        assert "There is no data set yet" in client.get("/train").text


def test_check_says_what_a_net_comes_to(client: TestClient) -> None:
    part = client.post("/train/check", data=FORM, headers={"HX-Request": "true"}).text
    assert "LeNet can be trained on Stripes &amp; &lt;b&gt;" in part
    assert "conv2" in part
    assert "<html" not in part
    assert "<html" in client.post("/train/check", data=FORM).text  # a browser without script


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"net": LENET.replace("kernel_size: 5", "kernel_sized: 5", 1)}, "Line 17"),
        ({"net": 'name: "x"\nlayer ]'}, "Line 2"),
        ({"net": ""}, "no layers yet"),
        ({"batch": "0"}, "batch is"),
        ({"rate": "fast"}, "rate is"),
        ({"rate": "1e999"}, "rate is"),
        ({"policy": "sometimes"}, "policy is"),
        ({"dataset": ""}, "no data set is chosen"),
        ({"weights": "/etc/passwd"}, "weights are"),
        ({"weights": "run:7"}, "no weights yet"),
        ({"weights": "run:" + "9" * 40}, "weights are"),
    ],
)
def test_check_says_what_is_wrong_and_nothing_starts(
    client: TestClient, change: dict[str, str], said: str
) -> None:
    form = FORM | change
    part = client.post("/train/check", data=form, headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert said in part.text
    answer = client.post("/train", data=form)
    assert answer.status_code == 422
    assert store_of(client).rows("SELECT * FROM run") == []
    assert not (store_of(client).home / "runs").exists()


@pytest.mark.parametrize("kind", ["Python", "HDF5Data", "ImageData", "WindowData", "HDF5Output"])
def test_layers_with_code_or_files_of_their_own_are_refused(client: TestClient, kind: str) -> None:
    text = LENET + f'layer {{ name: "x" type: "{kind}" bottom: "ip2" top: "y" }}\n'
    body = {"dataset": 1, "net": text}
    found = client.post("/api/check", json=body).json()
    assert not found["ok"]
    assert kind in found["error"]
    assert found["line"] == len(LENET.splitlines()) + 1
    answer = client.post("/api/runs", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]["line"] == found["line"]


def test_sources_of_a_text_are_replaced(client: TestClient) -> None:
    text = LENET.replace('type: "Data"', 'type: "Data" data_param { source: "/etc" backend: LMDB }')
    folder = store_of(client).data_folder(1)
    folder.mkdir(parents=True)
    np.save(folder / "train_data.npy", np.zeros((20, 1, 28, 28), np.uint8))
    number = client.post("/api/runs", json={"dataset": 1, "net": text}).json()["id"]
    written = (store_of(client).folder(number) / "net.prototxt").read_text()
    assert "/etc" not in written
    assert "data/1#train" in written


def test_plan_has_an_algorithm_for_each_direction_of_each_convolution(client: TestClient) -> None:
    found = client.post("/api/plan", json={"dataset": 1, "net": LENET, "options": {"batch": 8}}).json()
    assert {name: [way["direction"] for way in ways] for name, ways in found["ways"].items()} == {
        "conv1": ["forward", "filter"],  # nothing learns from the gradient of the images
        "conv2": ["forward", "filter", "data"],
    }
    ways = [way for layer in found["ways"].values() for way in layer]
    assert found["seconds"] == pytest.approx(sum(way["seconds"] for way in ways))
    assert all(way["seconds"] > 0 and way["workspace"] >= 0 for way in ways)
    for way in ways:
        assert way["algorithm"] not in [other["algorithm"] for other in way["others"]]
        assert all(other["refused"] or other["seconds"] > 0 for other in way["others"])
    asked = client.app.state.studio.inspector.asked  # type: ignore[attr-defined]
    asked.clear()
    part = client.post("/train/plan", data=FORM, headers={"HX-Request": "true"}).text
    assert part.count('class="algorithm"') == 5
    assert asked == [planning.plan]  # the net is built once for it
    wrong = client.post("/train/plan", data=FORM | {"net": "layer ]"}, headers={"HX-Request": "true"})
    assert wrong.status_code == 204  # the check says what is wrong
    without = client.post(
        "/api/plan", json={"dataset": 1, "net": LENET, "options": {"freeze": ["conv1", "conv2"]}}
    ).json()
    assert [len(ways) for ways in without["ways"].values()] == [1, 1]


def test_plan_is_for_the_place_where_a_training_would_start(client: TestClient) -> None:
    """A GPU comes first, and is planned for by the facts that it told, wherever it is."""
    store = store_of(client)
    facts = {
        "model": "a card", "capability": 90, "multiprocessors": 100, "clock": 1.5e9, "bytes_per_second": 2e12,
        "memory_bytes": 1 << 36, "l2_bytes": 1 << 25, "shared_bytes": 232_448, "reserved_shared_bytes": 1024,
        "registers": 65_536, "resident_threads": 2048, "resident_blocks": 32, "f32_rate": 256, "f64_rate": 128,
        "mma_rate": 2560,
    }  # fmt: skip
    told = {"architecture": "sm_90a", "facts": facts}
    store.insert("place", host="here", device="cpu", name="processor")
    gpu = store.insert("place", host="there", device="cuda:0", name="a card", settings=told)
    asked = {"dataset": 1, "net": LENET, "options": {"batch": 64}}
    on_gpu, on_cpu = (client.post("/api/plan", json=asked | {"wants": wants}).json() for wants in ("", "cpu"))
    if on_gpu["missing"]:
        pytest.skip(on_gpu["missing"])
    assert (on_gpu["place"], on_cpu["place"]) == ("a card", "processor")
    assert "a card" in on_gpu["device"]
    assert on_gpu["seconds"] < on_cpu["seconds"] / 5
    half = {name: facts[name] / 2 for name in ("clock", "bytes_per_second")}
    store.update("place", gpu, settings=told | {"facts": facts | half})
    slower = client.post("/api/plan", json=asked).json()
    assert on_gpu["seconds"] < slower["seconds"] < 2.2 * on_gpu["seconds"]
    wide = {"batch": 64, "math": "tf32"}
    store.update("place", gpu, settings=told)
    rounded = client.post("/api/plan", json=asked | {"options": wide}).json()
    assert rounded["seconds"] < on_gpu["seconds"]
    store.update("place", gpu, settings={})  # it was found by an executor that does not tell
    assert "is not known here" in client.post("/api/plan", json=asked).json()["missing"]
    assert "is not known here" in client.post("/train/plan", data=FORM, headers={"HX-Request": "true"}).text


def test_ways_in_less_workspace_are_found_in_time_or_later(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "QUICK", 0.0)
    monkeypatch.setattr(planning, "LONGER", 100.0)
    asked = {"dataset": 1, "net": LENET, "options": {"batch": 256}}
    quick, longer = (client.post(f"/api/plan?longer={flag}", json=asked).json() for flag in ("false", "true"))
    assert (quick["is_whole"], longer["is_whole"]) == (False, True)
    part = client.post("/train/plan", data=FORM | {"batch": "256"}, headers={"HX-Request": "true"}).text
    assert 'hx-post="/train/plan?longer=1"' in part
    for name, ways in longer["ways"].items():
        for way, before in zip(ways, quick["ways"][name], strict=True):
            assert way["algorithm"] == before["algorithm"]
            assert len(way["front"]) >= len(before["front"])
            assert all(less["seconds"] >= way["seconds"] for less in way["smaller"])
            assert len(way["smaller"]) <= 6
    assert any(way["smaller"] for ways in longer["ways"].values() for way in ways)
    part = client.post(
        "/train/plan?longer=1", data=FORM | {"batch": "256"}, headers={"HX-Request": "true"}
    ).text
    assert "More ways" not in part


def test_preview_shows_training_images_as_the_net_gets_them(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "data" / "1").mkdir(parents=True)
    np.save(tmp_path / "data" / "1" / "train_data.npy", np.zeros((20, 1, 28, 28), np.uint8))
    np.save(tmp_path / "data" / "1" / "train_label.npy", np.zeros(20, np.int64))
    asked = {"dataset": 1, "net": LENET, "options": {"crop": 20, "mirror": True}}
    found = client.post("/api/preview", json=asked)
    assert found.headers["content-type"] == "image/png"
    assert found.content[:8] == b"\x89PNG\r\n\x1a\n"
    part = client.post("/train/preview", data=FORM | {"crop": "20"}, headers={"HX-Request": "true"}).text
    assert 'src="data:image/png;base64,' in part
    assert "anew" in part
    refused = client.post("/api/preview", json=asked | {"options": {"crop": 200}})
    assert refused.status_code == 422
    assert "crop_size 200" in refused.text


def test_graph_has_each_layer_with_its_line_and_cost(client: TestClient) -> None:
    text = LENET.replace('name: "relu1"', 'name: "<b>"')
    found = client.post("/api/graph", json={"dataset": 1, "net": text, "options": {"batch": 8}}).json()
    layers = {layer["name"]: layer for layer in found["layers"]}
    checked = client.post("/api/check", json={"dataset": 1, "net": text, "options": {"batch": 8}}).json()
    assert set(layers) == {layer["name"] for layer in checked["layers"]} | {"data"}
    for layer in checked["layers"]:
        drawn = layers[layer["name"]]
        assert {name: drawn[name] for name in layer} == layer
        assert 0 <= drawn["x"] <= drawn["x"] + drawn["width"] <= found["width"]
        assert 0 <= drawn["y"] <= drawn["y"] + drawn["height"] <= found["height"]
    assert sum(layer["share"] for layer in layers.values()) == pytest.approx(1)
    assert layers["ip1"]["y"] + layers["ip1"]["height"] == layers["<b>"]["y"]  # in place: below each other
    assert [line["text"] for line in layers["conv1"]["lines"]] == [
        "conv1  Convolution  20, 5", "20 × 24 × 24  ·  520 weights  ·  0.576 M operations",
    ]  # fmt: skip
    part = client.post("/train/graph", data=FORM | {"net": text}, headers={"HX-Request": "true"}).text
    assert part.count('<a href="#net" data-line="') == len(layers)
    assert part.count('class="edge"') == len(found["edges"])
    assert f'data-line="{layers["conv2"]["line"]}"' in part
    assert "&lt;b&gt;" in part
    assert "<b>" not in part
    wrong = client.post("/train/graph", data=FORM | {"net": "layer ]"}, headers={"HX-Request": "true"})
    assert wrong.status_code == 204
    assert client.post("/train/graph", data=FORM | {"batch": "x"}).status_code == 204
    assert client.post("/api/graph", json={"dataset": 1, "net": 'name: "x"\nlayer ]'}).json()["line"] == 2


def test_a_rate_is_found_and_nothing_is_kept(client: TestClient) -> None:
    """Bars to the left and to the right: the loss falls before it diverges."""
    folder = store_of(client).data_folder(1)
    folder.mkdir(parents=True)
    images, labels = np.zeros((20, 1, 28, 28), np.uint8), np.arange(20) % 2
    for image, label in zip(images, labels, strict=True):
        image[0, :, 14 * label : 14 * label + 14] = 255
    np.save(folder / "train_data.npy", images)
    np.save(folder / "train_label.npy", labels)
    kept = sorted(store_of(client).home.rglob("*"))
    net = next(net["text"] for net in nets.gallery() if net["key"] == "perceptron")
    asked = {
        "dataset": 1,
        "net": net,
        "options": {"batch": 10, "accumulate": 2, "policy": "onecycle", "warmup": 10},
    }
    found = client.post(
        "/api/rate", json=asked | {"options": {**asked["options"], "weight_average": 0.9}}
    ).json()
    assert found["has_diverged"] or found["is_whole"]
    assert len(found["rates"]) == len(found["losses"]) == len(found["smooth"]) > 20
    steps = np.diff(np.log(found["rates"]))
    assert found["rates"][0] == pytest.approx(1e-6)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    assert 1e-5 < found["suggestion"] <= found["lowest"] <= found["rates"][-1]
    # whoever trains with it learns
    assert min(found["losses"]) < 0.5 < found["losses"][0]
    part = client.post(
        "/train/rate", data=FORM | {"net": net, "batch": "10"}, headers={"HX-Request": "true"}
    ).text
    assert 'data-rate="' in part
    assert "<html" not in part
    assert "<path d=" in part
    assert "<html" in client.post("/train/rate", data=FORM | {"net": net, "batch": "10"}).text
    refused = client.post("/api/rate", json=asked | {"net": "layer ]"})
    assert refused.status_code == 422
    assert "layer" in client.post("/train/rate", data=FORM | {"net": "layer ]"}).text
    assert sorted(store_of(client).home.rglob("*")) == kept
    assert store_of(client).rows("SELECT * FROM run") == []


def test_training_is_queued_with_its_files(client: TestClient) -> None:
    folder = store_of(client).data_folder(1)
    folder.mkdir(parents=True)
    np.save(folder / "mean.npy", np.full((1, 28, 28), 99.0, np.float32))
    form = FORM | {"name": "", "parent": "1", "freeze": "conv1", "batch": ""}
    answer = client.post("/train", data=form)
    assert answer.status_code == 303
    run = store_of(client).one("run", 1)
    assert run is not None
    assert answer.headers["location"] == "/runs/1"
    assert run["state"] == "queued"
    assert run["name"] == "LeNet on Stripes & <b>"
    assert (run["max_iter"], run["options"]["batch"], run["options"]["warmup"]) == (2 * 2, 16, 5.0)
    assert run["options"]["freeze"] == ["conv1"]
    assert run["options"]["policy"] == "poly"
    names = {file["name"] for file in client.get("/api/runs/1/files").json()}
    assert names >= {"net.prototxt", "original.prototxt", "solver.prototxt"}
    copy = client.get("/train", params={"run": 1}).text
    assert "A copy of" in copy
    assert 'value="conv1"' in copy


def test_data_sets_that_are_not_ready_are_not_trained_on(client: TestClient) -> None:
    store_of(client).update("dataset", 1, state="making")
    assert client.post("/api/runs", json={"dataset": 1, "net": LENET}).status_code == 409
    assert client.post("/api/runs", json={"dataset": 2, "net": LENET}).status_code == 404
    assert "There is no data set yet" in client.get("/train").text


def test_options_of_programs_are_checked_as_those_of_the_form(client: TestClient) -> None:
    answer = client.post("/api/runs", json={"dataset": 1, "net": LENET, "options": {"epochs": 0}})
    assert answer.status_code == 422
    assert "epochs is" in answer.text
    assert (
        client.post("/api/runs", json={"dataset": 1, "net": LENET, "options": {"rate": "NaN"}}).status_code
        == 422
    )


def test_one_click_from_an_empty_home(tmp_path: Path) -> None:
    app = make_app(tmp_path, serve_queue=False)
    app.state.studio.inspector = Here()
    with TestClient(app, follow_redirects=False) as client:
        assert client.post("/first").headers["location"] == "/runs/1"
        assert client.post("/first").headers["location"] == "/runs/2"  # the data set is made once
        store = store_of(client)
        assert len(store.rows("SELECT * FROM dataset")) == 1
        assert [run["state"] for run in store.rows("SELECT * FROM run")] == ["queued", "queued"]


def test_uploaded_weights_are_kept_by_name_and_nothing_else_is_read(
    client: TestClient, tmp_path: Path
) -> None:
    for name in ("../../evil.caffemodel", "/abs/evil.caffemodel", "..\\evil.caffemodel"):
        answer = client.post("/api/weights", files={"file": (name, b"weights")})
        assert answer.json() == {"weights": "file:evil.caffemodel"}
    assert client.post("/api/weights", files={"file": ("shell.py", b"x")}).status_code == 422
    assert client.post("/api/weights", files={"file": (".caffemodel", b"x")}).status_code == 422
    (tmp_path / "weights" / "link.npz").symlink_to("/etc/passwd")
    assert client.get("/api/weights").json() == ["evil.caffemodel"]
    assert sorted(file.name for file in (tmp_path / "weights").iterdir()) == ["evil.caffemodel", "link.npz"]
    assert 'value="file:evil.caffemodel"' in client.get("/train").text
    for weights in ("file:link.npz", "file:../token", "file:/etc/passwd", "file:nothing.npz"):
        body = {"dataset": 1, "net": LENET, "options": {"weights": weights}}
        answer = client.post("/api/check", json=body)
        assert answer.status_code == 422
        assert "weights are" in answer.json()["detail"]
    body = {"dataset": 1, "net": LENET, "options": {"weights": "file:evil.caffemodel"}}
    found = client.post("/api/check", json=body).json()  # which is no caffemodel: told, and nothing breaks
    assert not found["ok"]


def test_a_net_from_elsewhere_is_read_and_trained(client: TestClient) -> None:
    """By the page, without a script, and by its twin: text, report, and the way into the form."""
    assert 'href="/train/import"' in client.get("/train").text
    assert "<textarea" in client.get("/train/import").text
    code = "m = Sequential([Conv2D(4, 3, activation='relu'), Flatten(), Dense(2)])"
    page = client.post("/train/import", data={"code": code}).text
    assert "All of it was taken over" in page
    assert "Convolution conv, ReLU relu" in page
    odd = client.post("/train/import", data={"code": code + "\nm.add(Lambda('<script>'))"}).text
    assert "Not all of it was taken over" in odd
    assert "<script>'" not in odd
    for sent, told in ((b"cos(", "no code"), (b"", "Choose a file")):
        answer = client.post("/train/import", data={"code": sent.decode()})
        assert answer.status_code == 422
        assert told in answer.text
    found = client.post("/api/nets/import", files={"file": ("net.py", code.encode())}).json()
    assert found["ok"]
    assert found["report"][0]["where"] == "line 1"
    form = client.post("/train/imported", data={"net": found["text"], "weights": ""}).text
    assert "type: &#34;InnerProduct&#34;" in form
    checked = client.post("/api/check", json={"dataset": 1, "net": found["text"]}).json()
    assert checked["ok"], checked
    refused = client.post("/api/nets/import", files={"file": ("net.pth", b"\x80\x02")})
    assert refused.status_code == 422
    assert "pickle" in str(refused.json()["detail"])


def test_nets_are_offered_by_the_kind_of_data(client: TestClient) -> None:
    """Signals and rows are a pixel high: no window of an image fits them."""
    store = store_of(client)
    wave = store.insert("dataset", name="Waves", classes=["a", "b"], shape=[2, 1, 500], train=20, test=10)
    rows = store.insert("dataset", name="Rows", classes=["a", "b"], shape=[1, 1, 13], train=20, test=10)
    for number, wanted in ((wave, "Signal small"), (rows, "Perceptron"), (1, "LeNet")):
        page = client.get(f"/train?dataset={number}").text
        assert page.index(f"<b>{wanted}</b>") == page.index("<b>", page.index('class="gallery'))
        text = re.search(r'<textarea name="net"[^>]*>(.*?)</textarea>', page, re.DOTALL)
        assert text is not None
        checked = client.post("/api/check", json={"dataset": number, "net": html.unescape(text[1])}).json()
        assert checked["ok"], checked
