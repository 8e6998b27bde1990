"""Data sets over HTTP: looked at, made, shown, mended, deleted, by the pages and by their twins."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.data import Options, creation, open_dataset
from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app
from studio_pictures import classes, png, write_files, write_zip

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    Store(home).set_setting("roots", [str(tmp_path_factory.getbasetemp())])
    with TestClient(make_app(home), follow_redirects=False) as made:
        yield made


@pytest.fixture(scope="module")
def number(home: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A data set of 40 ducks and 20 of a class with an evil name; one of each is there twice, in two parts."""
    files = classes({"duck": 40, EVIL.replace("/", "∕"): 20})
    files |= {"duck/copy.png": files["duck/0.png"], "duck/broken.png": b"x"}
    source = write_files(tmp_path_factory.mktemp("source"), files)
    return creation.create(Store(home), EVIL, str(source), Options(8, 8, val=20, test=20))


def wait_for(client: TestClient, number: int) -> dict[str, Any]:
    for _ in range(400):
        row: dict[str, Any] = client.get(f"/api/datasets/{number}").json()
        if row["state"] != "making":
            return row
        time.sleep(0.05)
    raise AssertionError(f"it is still being made: {row}")


def test_a_zip_file_is_sent_once_looked_at_and_made(client: TestClient, tmp_path: Path) -> None:
    assert "Drop a zip" in client.get("/data/new").text
    empty = client.post("/data/scan", data={"width": "8"}, headers={"HX-Request": "true"}).text
    assert "appears here" in empty
    assert "alert" not in empty
    content = write_zip(tmp_path / "p.zip", classes({EVIL.replace("/", "-"): 12, "b": 12})).read_bytes()
    fields = {"width": "8", "height": "8", "val": "25", "test": "25"}
    sent = {"file": ("my <b>ducks.zip", content, "application/zip")}
    part = client.post("/data/scan", data=fields, files=sent, headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert "2 classes, 24 images" in part.text.replace("\n", "")
    assert "<script>alert" not in part.text
    assert "my <b>" not in part.text
    token = part.text.split('name="upload" value="')[1][:32]
    again = client.post(
        "/data/scan",
        data={**fields, "upload": token, "mode": "fill", "grey": "true"},
        headers={"HX-Request": "true"},
    )
    assert "1 × 8 × 8" in again.text
    made = client.post("/data", data={**fields, "upload": token, "name": "Ducks"})
    assert made.status_code == 303
    row = wait_for(client, int(made.headers["location"].rsplit("/", 1)[1]))
    assert (row["state"], row["name"], row["train"], row["val"], row["test"]) == ("ready", "Ducks", 12, 6, 6)
    whole = client.post("/data/scan", data={**fields, "upload": token})  # without script
    assert "<html" in whole.text
    assert "Make the data set" in whole.text


def test_the_twin_makes_the_same(client: TestClient, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "pictures", classes({"a": 8, "b": 8}))
    asked = {"path": str(folder), "options": {"height": 6, "width": 6, "grey": True}}
    found = client.post("/api/datasets/scan", json=asked).json()
    assert found["counts"] == {"a": 8, "b": 8}
    assert found["shape"] == [1, 6, 6]
    made = client.post("/api/datasets", json={**asked, "name": "by REST"})
    assert made.status_code == 201
    assert wait_for(client, made.json()["id"])["state"] == "ready"
    zipped = write_zip(tmp_path / "p.zip", classes({"a": 8, "b": 8}))
    with open(zipped, "rb") as file:
        token = client.post("/api/uploads", files={"file": ("p.zip", file)}).json()["upload"]
    assert client.post("/api/datasets/scan", json={"upload": token}).json()["total"] == 16
    assert client.get("/api/datasets").json()[0]["name"] == "by REST"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"path": "/etc"}, "does not lie in"),
        ({"path": "~/../../etc/passwd"}, "does not lie in"),
        ({"path": "{root}/link"}, "does not lie in"),
        ({"path": "{root}/none"}, "is not there"),
        ({"path": "a\0b"}, "is no folder on the machine"),
        ({"path": ""}, "is no folder on the machine"),
        ({"upload": "../../token"}, "send the file again"),
        ({"upload": "0" * 32}, "send the file again"),
        ({"path": "{root}", "options": {"height": 0}}, "height is 0"),
        ({"path": "{root}", "options": {"mode": "melt"}}, "squash, crop, fill, half"),
        ({"path": "{root}", "options": {"val": 60, "test": 60}}, "10 % at least"),
        ({"path": "{root}", "options": {"group": "("}}, "no regular expression"),
    ],
)
def test_sources_that_are_refused(
    client: TestClient, tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    write_files(tmp_path, classes({"a": 2, "b": 2}))
    (tmp_path / "link").symlink_to("/etc")
    if "path" in asked:
        asked = {**asked, "path": asked["path"].replace("{root}", str(tmp_path))}
    answer = client.post("/api/datasets/scan", json=asked)
    assert answer.status_code == 422
    assert message in answer.text
    refused = client.post("/api/datasets", json=asked)
    if message != "no regular expression":  # that is found out when the source is listed
        assert refused.status_code == 422


def test_uploads_that_are_refused(client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set((home / "uploads").iterdir()) if (home / "uploads").is_dir() else set()
    answer = client.post("/api/uploads", files={"file": ("run.exe", b"MZ")})
    assert answer.status_code == 422
    assert ".zip" in answer.text
    monkeypatch.setattr("jitdnn.studio.data.places.LARGEST_UPLOAD", 1000)
    answer = client.post("/api/uploads", files={"file": ("p.zip", b"x" * 1001)})
    assert "more than 1,000 bytes" in answer.text
    assert set((home / "uploads").iterdir()) == before


def test_pages_of_a_data_set(client: TestClient, number: int) -> None:
    for path in (
        "",
        "?view=list",
        "?label=1&part=val",
        "?q=copy",
        "/about",
        "/duplicates",
        "/changes",
        "/images/train/0",
    ):
        answer = client.get(f"/data/{number}{path}")
        assert answer.status_code == 200, path
        assert "<h1" in answer.text
        assert "<script>alert" not in answer.text
        assert "style=" not in answer.text
    about = client.get(f"/data/{number}/about").text
    assert "broken.png" in about
    assert f"{number}#train" in about
    assert "on the disk" in client.get("/data").text
    assert client.get("/data/9999").status_code == 404
    assert client.get(f"/data/{number}/images/train/9999").status_code == 404
    assert client.get(f"/data/{number}?label=x").status_code == 422


def test_sheets_are_the_pictures_that_were_asked_for(client: TestClient, home: Path, number: int) -> None:
    dataset = open_dataset(home, {"id": number, "classes": ["a", "b"], "task": "classification"})
    found = client.get(f"/api/datasets/{number}/images", params={"label": 1, "count": 5, "start": 3}).json()
    answer = client.get(f"/data/{number}/sheet.png?part=train&label=1&start=3&count=5&columns=2")
    assert answer.headers["content-type"] == "image/png"
    page = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))
    assert page.shape == (3 * 9 - 1, 2 * 9 - 1, 3)
    for at, item in enumerate(found["items"]):
        assert item["label"] == dataset.labels("train")[item["place"]] == 1
        top, left = at // 2 * 9, at % 2 * 9
        np.testing.assert_array_equal(
            page[top : top + 8, left : left + 8],
            dataset.images("train")[item["place"]][::-1].transpose(1, 2, 0),
        )
    one = client.get(f"/data/{number}/sheet.png?part=val&at=2&columns=1")
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO(one.content)).convert("RGB")),
        dataset.images("val")[2][::-1].transpose(1, 2, 0),
    )


def test_names_are_found(client: TestClient, number: int) -> None:
    parts = [
        client.get(f"/api/datasets/{number}/images", params={"part": part, "q": "COPY"}).json()["total"]
        for part in ("train", "val", "test")
    ]
    assert sum(parts) == 1
    assert client.get(f"/api/datasets/{number}/images", params={"q": "%"}).json()["total"] == 0
    table = list(csv.reader(io.StringIO(client.get(f"/api/datasets/{number}/split.csv").text)))
    assert table[0] == ["part", "place", "file", "label", "group"]
    assert len(table) == 62
    assert {row[0] for row in table[1:]} == {"train", "val", "test"}
    assert all(row[3] == row[2].split("/")[0] for row in table[1:])


def test_labels_are_mended_undone_and_trained_on(client: TestClient, home: Path, number: int) -> None:
    dataset = open_dataset(home, {"id": number, "classes": ["a", "b"], "task": "classification"})
    before = np.array(dataset.labels("train"))
    other = 1 - int(before[4])
    answer = client.post(f"/data/{number}/images/train/4", data={"label": str(other)})
    assert answer.headers["location"] == f"/data/{number}/images/train/4"
    assert client.put(f"/api/datasets/{number}/images/train/7", json={"label": -2}).json()["label"] == -2
    assert client.put(f"/api/datasets/{number}/images/train/7", json={"label": 9}).status_code == 422
    assert client.get(f"/api/datasets/{number}/changes").json()["total"] == 2
    assert "left out" in client.get(f"/data/{number}/changes").text
    version = client.post(f"/data/{number}/versions", data={"name": "better"}).headers["location"]
    mended = client.get(f"/api{version.replace('data', 'datasets')}").json()
    assert (mended["name"], mended["train"]) == ("better", len(before) - 1)
    new = open_dataset(home, mended)
    wanted = before.copy()
    wanted[4] = other
    np.testing.assert_array_equal(new.labels("train"), np.delete(wanted, 7))
    np.testing.assert_array_equal(
        new.images("train"), np.delete(np.array(dataset.images("train")), 7, axis=0)
    )
    np.testing.assert_array_equal(dataset.labels("train"), before)
    assert (new.folder / "val_data.npy").stat().st_ino == (dataset.folder / "val_data.npy").stat().st_ino
    for part in new.parts:  # the index is as the arrays are
        items = client.get(
            f"/api/datasets/{mended['id']}/images", params={"part": part, "count": 1000}
        ).json()["items"]
        assert [item["place"] for item in items] == list(range(new.count(part)))
        assert [item["label"] for item in items] == new.labels(part).tolist()
    assert client.post(f"/api/datasets/{number}/undo").json() == {"undone": True}
    edit = client.get(f"/api/datasets/{number}/changes").json()["changes"][0]["id"]
    client.post(f"/data/{number}/undo", data={"edit": str(edit)})
    assert client.post(f"/api/datasets/{number}/undo").json() == {"undone": False}
    items = client.get(f"/api/datasets/{number}/images", params={"count": 1000}).json()["items"]
    assert [item["label"] for item in items] == before.tolist()


def test_a_set_without_labels_is_labelled_in_the_page(client: TestClient, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "p", {f"{k}.png": png(k) for k in range(5)})
    asked = {"path": str(folder), "name": "mine", "options": {"classes": "cat, dog", "test": 0, "val": 0}}
    number = client.post("/api/datasets", json=asked).json()["id"]
    assert wait_for(client, number)["classes"] == ["cat", "dog"]
    place = client.get(f"/data/{number}/label").headers["location"]
    shown = client.get(f"/data/{number}").text
    assert "Label its images" in shown
    assert "Train on this" not in shown
    for k in range(4):
        place = client.post(place, data={"label": str(k % 2), "next": "unlabelled"}).headers["location"]
    place = client.post(place, data={"label": "-2", "next": "unlabelled"}).headers["location"]
    assert place == f"/data/{number}/changes"
    made = client.post(f"/api/datasets/{number}/versions", json={}).json()
    assert (made["train"], made["counts"]["train"]) == (4, [2, 2])


def test_deleting(client: TestClient, home: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "p", classes({"a": 3, "b": 3}))
    made = creation.create(Store(home), "x", str(folder), Options(8, 8))
    run = Store(home).insert("run", name="a run", dataset=made)
    assert client.delete(f"/api/datasets/{made}").status_code == 409
    assert "a run" in client.get(f"/data/{made}/about").text
    Store(home).rows("DELETE FROM run WHERE id = ?", run)
    assert client.post(f"/data/{made}/delete").headers["location"] == "/"
    assert client.get(f"/data/{made}").status_code == 404
    assert not (home / "data" / str(made)).exists()


def test_what_is_being_made_shows_how_far_it_is(client: TestClient, home: Path) -> None:
    store = Store(home)
    number = store.insert("dataset", name="slow", state="making", settings={})
    lock = creation.lock_folder(home, number)
    (creation.unfinished_folder(home, number) / "progress").write_text(
        '{"done": 7, "total": 9, "text": "reading"}'
    )
    page = client.get(f"/data/{number}").text
    assert "Reading: 7 of 9" in page
    assert client.get(f"/api/datasets/{number}").json()["progress"]["done"] == 7
    assert client.get(f"/data/{number}/about").status_code == 409
    client.post(f"/data/{number}/cancel")
    assert (creation.unfinished_folder(home, number) / "cancel").exists()
    os.close(lock)
    answer = client.get(f"/data/{number}/progress")
    assert answer.headers["hx-refresh"] == "true"
    assert "interrupted" in answer.text


def test_values_are_those_of_the_training_images(client: TestClient, home: Path, number: int) -> None:
    """Mean, deviation and histogram against NumPy's of all images at once."""
    row = wait_for(client, number)
    images = np.asarray(open_dataset(home, row).images("train"))
    found = client.get(f"/api/datasets/{number}/values").json()
    assert found["looked"] == len(images)
    each = images.transpose(1, 0, 2, 3).reshape(images.shape[1], -1).astype(np.float64)
    np.testing.assert_allclose(found["mean"], each.mean(1))
    np.testing.assert_allclose(found["std"], each.std(1), rtol=1e-9)
    np.testing.assert_array_equal(
        found["histogram"], [np.bincount(c.astype(int) // 4, minlength=64) for c in each]
    )
    picture = Image.open(io.BytesIO(client.get(f"/data/{number}/std.png").content))
    assert picture.size == (8, 8)
    about = client.get(f"/data/{number}/about").text
    assert f'src="/data/{number}/std.png"' in about
    assert about.count('<figure class="values">') == images.shape[1]
