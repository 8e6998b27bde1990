"""Pages about a trained net and their REST twins: evaluation, classification, a look inside."""

from __future__ import annotations

import base64
import csv
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")

from fastapi.testclient import TestClient

import studio_trained
from jitdnn.studio.data import open_dataset
from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app
from jitdnn.studio.work.inspector import Inspector
from studio_pages import store_of
from studio_trained import Case


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """Calls of the inspector run in this process: it has its own tests, and starting one takes seconds."""

    async def inspect(self, function, *arguments, seconds=None):  # type: ignore[no-untyped-def]
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inspector, "inspect", inspect)
        yield


@pytest.fixture(scope="module")
def digits() -> Case:
    return studio_trained.digits()


@pytest.fixture(scope="module")
def client(digits: Case) -> Iterator[TestClient]:
    with TestClient(make_app(digits.home), follow_redirects=False) as made:
        yield made


def png(case: Case, at: int, part: str = "test") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(open_dataset(case.home, case.dataset).images(part)[at][0])).save(file, "PNG")
    return file.getvalue()


def test_evaluation_is_made_once_and_shown(client: TestClient, digits: Case) -> None:
    text = client.get("/runs/1/evaluation").text
    found = client.get("/api/runs/1/evaluation").json()
    assert (
        client.get("/api/runs/1/evaluation", params={"part": "test", "weights": "best.npz"}).json() == found
    )
    assert len(Store(digits.home).rows("SELECT * FROM evaluation")) == 1
    summary = found["summary"]
    assert f"{100 * summary['accuracy']:.1f} %" in text
    assert "What was taken for what" in text
    assert sum(map(sum, found["matrix"])) == summary["images"] == 500
    worst = summary["errors"][0]
    assert f"/data/1/images/test/{worst['at']}" in text  # where its label is mended
    pair = summary["pairs"][0]
    listed = client.get("/api/runs/1/evaluation/images", params={k: pair[k] for k in ("true", "said")}).json()
    assert len(listed) == pair["count"]
    cell = client.get("/runs/1/evaluation/images", params={k: pair[k] for k in ("true", "said")}).text
    assert all(f"/data/1/images/test/{image['at']}" in cell for image in listed)
    assert len(client.get("/api/runs/1/evaluation/images", params={"said": 4, "most": 7}).json()) == 7
    assert client.get("/api/runs/1/evaluation/pairs", params={"q": "no such class"}).json() == []
    for table, rows in (("matrix", 11), ("classes", 11), ("predictions", 501)):
        answer = client.get(f"/api/runs/1/evaluation/{table}.csv")
        assert answer.headers["content-disposition"] == f'attachment; filename="run-1-test-{table}.csv"'
        assert len(list(csv.reader(io.StringIO(answer.text)))) == rows
    assert client.get("/api/runs/1/evaluation/other.csv").status_code == 422


def test_an_evaluation_as_one_file(client: TestClient, digits: Case) -> None:
    """All of it is inside: no script, no address of the studio or of anybody."""
    answer = client.get("/api/runs/1/evaluation/report.html")
    found = client.get("/api/runs/1/evaluation").json()
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-disposition"] == 'attachment; filename="run-1-test-evaluation.html"'
    text = answer.text
    assert not re.search(
        r"<script|<a |<link|<form|\bhref=|url\(|@import|@font-face|https?://(?!www\.w3\.org)", text
    )
    sources = re.findall(r'src="([^"]*)"', text)
    errors = found["summary"]["errors"][:16]
    assert len(sources) == len(errors)
    for source, error in zip(sources, errors, strict=True):
        head, _, content = source.partition(",")
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            wanted = open_dataset(digits.home, digits.dataset).images("test")[error["at"]][0]
            np.testing.assert_array_equal(np.asarray(image.convert("L")), wanted)
    assert f"{100 * found['summary']['accuracy']:.1f}" in text
    assert text.count('<th scope="col"') > len(digits.dataset["classes"])
    assert "script-src" not in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_a_long_evaluation_shows_how_far_it_is(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.studio.look import predictions
    from jitdnn.studio.web import trained_runs

    monkeypatch.setattr(predictions, "PIECE", 64)
    monkeypatch.setattr(trained_runs, "_PATIENCE", 0.0)
    address = "/runs/1/evaluation?part=val"
    monkeypatch.setattr(trained_runs.evaluated, "__defaults__", ("", "", 0.0))
    first = client.get(address).text
    assert 'value="64" max="500"' in first
    assert 'http-equiv="refresh"' in first  # without a script, too
    part = client.get(address, headers={"HX-Request": "true"}).text
    assert 'value="128" max="500"' in part
    assert "<html" not in part
    while 'hx-trigger="load"' in part:
        part = client.get(address, headers={"HX-Request": "true"}).text
    assert "Accuracy" in part


@pytest.mark.parametrize("task", ["multi-label", "regression", "segmentation", "detection"])
def test_pages_of_other_tasks(task: str) -> None:
    case = studio_trained.of_task(task)
    word = {"multi-label": "Mean average precision", "regression": "R²", "segmentation": "Mean overlap"}
    with TestClient(make_app(case.home)) as client:
        assert word.get(task, "Mean average precision") in client.get("/runs/1/evaluation").text
        kept = client.get("/api/runs/1/evaluation/report.html").text
        assert word.get(task, "Mean average precision") in kept
        assert "<a " not in kept
        assert "Ask the net" in client.get("/runs/1/classify").text
        assert client.post("/api/runs/1/classify", params={"at": 3}).json()["task"] == task
        if task == "detection":  # no class has a score of its own there
            return
        assert client.get("/api/runs/1/inside/smooth.png", params={"at": 3}).content.startswith(b"\x89PNG")
        assert "What the answer depends on" in client.get("/runs/1/inside").text


def test_one_image(client: TestClient, digits: Case) -> None:
    page = client.get("/runs/1/classify", params={"at": 9, "part": "test"}).text
    assert 'src="data:image/png;base64,' in page
    by_number = client.post("/api/runs/1/classify", params={"at": 9, "part": "test"}).json()
    by_file = client.post("/api/runs/1/classify", files={"file": ("x.png", png(digits, 9))}).json()
    assert by_number["top"] == by_file["top"]
    assert "image" not in by_file
    part = client.post("/runs/1/classify", files={"file": ("x.png", png(digits, 9))}).text
    assert by_file["top"][0]["name"] in part
    assert "Truly" not in part
    assert client.post("/api/runs/1/classify").status_code == 422
    broken = client.post("/api/runs/1/classify", files={"file": ("<script>.png", b"none")})
    assert (broken.status_code, "cannot be read" in broken.json()["detail"]) == (422, True)
    assert client.post("/api/runs/1/classify", params={"at": 10**6}).status_code == 422
    assert client.post("/api/runs/2/classify", params={"at": 0}).status_code == 404
    assert client.post("/api/runs/1/classify", params={"at": 0, "weights": "../x"}).status_code == 422


def test_many_images(client: TestClient, digits: Case) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for at in range(12):
            file.writestr(f"{at:02d}.png", png(digits, at))
        file.writestr("<b>evil</b>.png", b"broken")
    sent = [("files", ("all.zip", packed.getvalue())), ("files", ("=1+1.png", png(digits, 3)))]
    found = client.post("/api/runs/1/classify/many", files=sent).json()
    assert len(found) == 14
    assert found[-1]["top"] == found[3]["top"]
    assert "error" in next(each for each in found if "evil" in each["name"])
    begun = client.post("/runs/1/classify/many", files=sent)
    assert begun.status_code == 303  # without a script: to a page that loads itself again
    address = begun.headers["location"]
    while 'hx-trigger="load' in (page := client.get(address).text):
        assert 'max="14"' in page
    assert "&lt;b&gt;evil" in page
    assert "<b>evil" not in page
    rows = list(csv.reader(io.StringIO(client.get(f"{address}.csv").text)))
    assert rows[0] == ["file", "answer", "value", "error"]
    assert rows[-1][0] == "'=1+1.png"
    part = client.post("/runs/1/classify/many", files=sent, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert client.get("/runs/1/classify/many/other").status_code == 404
    broken = client.post("/api/runs/1/classify/many", files=[("files", ("cut.zip", packed.getvalue()[:200]))])
    assert (broken.status_code, "cannot be read as a zip" in broken.json()["detail"]) == (422, True)
    assert list((digits.home / "uploads").glob("many-*")) == []  # the home is that of other tests, too


def test_a_list_of_images_on_the_machine(client: TestClient, digits: Case, tmp_path: Path) -> None:
    """Lines are paths below the roots, whole or of a folder, with or without a class; what cannot be had says why."""
    store = store_of(client)
    roots = store.setting("roots")
    pictures = tmp_path / "some pictures"
    pictures.mkdir()
    for at in range(3):
        (pictures / f"no {at}.png").write_bytes(png(digits, at))
    first = client.post("/api/runs/1/classify", params={"at": 0}).json()["top"][0]
    lines = [
        "# a remark", f"{pictures}/no 0.png {first['name']}", "", f"no 0.png\t{first['class']}", "no 0.png,never",
        "no 1.png", "no 9.png 4", "/etc/passwd", "no 2.png\tx",
    ]  # fmt: skip
    try:
        store.set_setting("roots", [str(tmp_path)])
        sent = [("files", ("list.TXT", "\r\n".join(lines).encode())), ("files", ("x.png", png(digits, 0)))]
        folder = {"folder": str(pictures)}
        found = client.post("/api/runs/1/classify/many", files=sent, params=folder).json()
        assert [each.get("is_right") for each in found] == [True, True, False, None, None, None, False, None]
        assert found[0]["top"] == found[1]["top"] == found[7]["top"]
        assert "is not there" in found[4]["error"]
        assert "does not lie in" in found[5]["error"]
        address = client.post("/runs/1/classify/many", files=sent, data=folder).headers["location"]
        while 'hx-trigger="load' in (page := client.get(address).text):
            pass
        assert "2 of 4 right" in page
        rows = list(csv.reader(io.StringIO(client.get(f"{address}.csv").text)))
        assert [row[-1] for row in rows[:4]] == ["wanted", first["name"], str(first["class"]), "never"]
        without = client.post("/api/runs/1/classify/many", files=sent).json()
        assert "name the folder" in without[1]["error"]
        for wrong in (b"", b"# nothing", b"\x00\x01", b"a.png\n" * 10_001):
            answer = client.post("/api/runs/1/classify/many", files=[("files", ("list.txt", wrong))])
            assert answer.status_code == 422
    finally:
        store.set_setting("roots", roots)


def test_many_images_some_at_a_time(
    client: TestClient, digits: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jitdnn.studio.web import answering

    monkeypatch.setattr(answering, "AT_ONCE", 2)
    sent = [("files", (f"{at}.png", png(digits, at))) for at in range(5)]
    found = client.post("/api/runs/1/classify/many", files=sent).json()
    assert [each["name"] for each in found] == [f"{at}.png" for at in range(5)]
    monkeypatch.setattr("jitdnn.studio.look.classify.MOST_FILES", 4)
    assert client.post("/api/runs/1/classify/many", files=sent).status_code == 413


def test_inside(client: TestClient) -> None:
    page = client.get("/runs/1/inside", params={"at": 5}).text
    assert "conv1 + relu1" in page
    plain = client.get("/api/runs/1/inside", params={"at": 5}).json()
    assert [layer["name"] for layer in plain["layers"]][1] == "conv1 + relu1"
    assert "tiles" not in plain["layers"][1]
    drawn = client.get("/api/runs/1/inside", params={"at": 5, "pictures": True}).json()
    assert drawn["layers"][1]["tiles"]["png"].startswith("data:image/png")
    weights = client.get("/api/runs/1/inside/weights").json()
    assert weights[0]["weights"][0]["shape"] == [8, 1, 5, 5]
    for kind in ("gradient", "occlusion"):
        assert client.get(f"/api/runs/1/inside/{kind}.png", params={"at": 5}).content.startswith(b"\x89PNG")
        part = client.get(
            "/runs/1/inside/map", params={"kind": kind, "at": 5}, headers={"HX-Request": "true"}
        ).text
        assert "<html" not in part
        assert part.count("data:image/png") == 2
    assert "<html" in client.get("/runs/1/inside/map", params={"at": 5}).text
    assert client.get("/api/runs/1/inside/other.png").status_code == 404
    layer = client.get("/runs/1/inside/layers/conv1", params={"at": 5}).text
    assert "What its units look for" in layer
    units = client.post(
        "/runs/1/inside/maximize", data={"layer": "conv1", "units": 3, "count": 8, "steps": 4}
    ).text
    assert units.count("<li>") == 3
    picture = client.get("/api/runs/1/inside/units.png", params={"layer": "ip2", "unit": [0, 1], "steps": 2})
    assert picture.content.startswith(b"\x89PNG")
    assert client.get("/runs/1/inside/layers/none").status_code == 422


def test_before_there_are_weights(client: TestClient, digits: Case) -> None:
    store = Store(digits.home)
    run = store.insert(
        "run", name="<i>new</i>", dataset=1, net_name="n", options={"batch": 1}, state="queued"
    )
    for page in ("evaluation", "classify", "inside"):
        answer = client.get(f"/runs/{run}/{page}")
        assert answer.status_code == 200
        assert "no weights yet" in answer.text
        assert "<i>new" not in answer.text
    assert client.get(f"/api/runs/{run}/evaluation").status_code == 409
    assert client.get("/runs/999/inside").status_code == 404


def test_export(client: TestClient, digits: Case) -> None:
    page = client.get("/runs/1/export").text
    assert page.count("Make and check") == 5
    made = client.post("/api/runs/1/export", json={"kind": "bundle"})
    assert made.status_code == 201
    file = made.json()["file"]
    assert file in [each["file"] for each in client.get("/api/runs/1/export").json()]
    answer = client.get(f"/api/runs/1/export/{file}")
    assert answer.headers["content-disposition"] == 'attachment; filename="small.bundle.zip"'
    assert zipfile.is_zipfile(io.BytesIO(answer.content))
    shown = client.post("/runs/1/export", data={"kind": "onnx"}).text
    assert "Checked by jitdnn" in shown
    assert client.post("/api/runs/1/export", json={"kind": "h5"}).status_code == 422
    (digits.folder / "export" / "link").symlink_to("/etc/passwd")
    for name in ("link", "..%2Fbest.npz", ".hidden", "other"):
        assert client.get(f"/api/runs/1/export/{name}").status_code == 404


def test_gradients_and_strongest_images(client: TestClient) -> None:
    text = client.get("/runs/1/inside", params={"view": "gradients", "at": 3, "target": 2}).text
    assert "Gradient of conv1" in text
    assert text.count('class="ramp signed"') >= 5
    assert 'name="target"' in text
    told = client.get("/api/runs/1/inside/gradients", params={"at": 3, "target": 2}).json()
    assert told["class"] == 2
    assert "tiles" not in told["layers"][0]
    shown = client.get("/api/runs/1/inside/gradients", params={"at": 3, "pictures": True}).json()
    assert shown["layers"][0]["tiles"]["png"].startswith("data:image/png")
    assert client.get("/api/runs/1/inside/gradients", params={"target": 10}).status_code == 422
    query = {"layer": "conv1", "first": 6, "units": 5, "count": 8, "part": "test"}
    plain = client.get("/runs/1/inside/strongest", params=query).text
    assert "<html" in plain
    part = client.get("/runs/1/inside/strongest", params=query, headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert part.count("<h3>Unit") == 2  # 6 and 7
    found = client.get("/api/runs/1/inside/strongest", params={"layer": "conv1", "unit": [6, 7]}).json()
    for unit in found["units"]:
        assert len(unit["images"]) == 8
        assert all(f'/images/test/{image["at"]}"' in part for image in unit["images"])
    assert client.get("/api/runs/1/inside/strongest", params={"layer": "no", "unit": 0}).status_code == 422
    assert client.get("/api/runs/1/inside/strongest", params={"layer": "conv1"}).status_code == 422
    layer = client.get("/runs/1/inside/layers/conv1").text
    assert "Images that its units answer to most" in layer
    assert 'class="quiet zoom scripted"' in layer


def test_a_class_that_is_a_digit_has_its_key_and_pages_below_a_tab_mark_it(client: TestClient) -> None:
    assert "<kbd>3</kbd>3</button>" in client.get("/data/1/images/test/0").text
    layer = client.get("/runs/1/inside/layers/conv1").text
    assert '<a href="/runs/1/inside" aria-current="true">Look inside</a>' in layer
    assert '<a href="/runs/1" >Curves</a>' in layer
