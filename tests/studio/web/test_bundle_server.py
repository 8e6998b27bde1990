"""A bundle over HTTP: answers, reports, and a guard before it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")

from fastapi.testclient import TestClient

import studio_trained
from jitdnn.cli import main
from jitdnn.errors import InvalidArgument
from jitdnn.studio.export import exports
from jitdnn.studio.export.predictor import Predictor
from jitdnn.studio.look.trained import open_trained
from jitdnn.studio.web import bundle_server
from jitdnn.studio.web.guard import Guard

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    case = studio_trained.digits()
    predictor = Predictor(case.folder / "export" / exports.export(*case, "bundle")["file"])
    app = Guard(bundle_server.make_app(predictor), TOKEN, {"127.0.0.1:8643"}, "c")
    headers = {"authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1:8643", headers=headers, follow_redirects=False) as made:
        yield made
    predictor.close()


@pytest.fixture(scope="module")
def image() -> bytes:
    _, data = open_trained(*studio_trained.digits())
    file = io.BytesIO()
    Image.fromarray(np.asarray(data.images("test")[3][0])).save(file, "PNG")
    return file.getvalue()


def test_answers(client: TestClient, image: bytes) -> None:
    trained, data = open_trained(*studio_trained.digits())
    expected = trained.predict(np.asarray(data.images("test")[3:4]))[0]
    body = client.post("/predict", content=image, headers={"content-type": "image/png"}).json()
    assert body["top"][0]["class"] == expected.argmax()
    assert body["top"][0]["probability"] == pytest.approx(float(expected.max()), rel=1e-5)
    sent = [("files", ("a.png", image)), ("files", ("b.png", b"none"))]
    listed = client.post("/predict", files=sent, params={"top": 2}).json()
    assert [each["name"] for each in listed] == ["a.png", "b.png"]
    assert listed[0]["top"] == body["top"][:2]
    assert "cannot be read" in listed[1]["error"]
    assert client.post("/predict", content=b"").status_code == 422
    assert client.post("/predict", content=b"none").json()["detail"].startswith("it cannot be read")
    assert client.post("/predict", files={}, data={"x": "y"}).status_code == 422
    about = client.get("/about").json()
    assert (about["task"], about["shape"], len(about["classes"])) == ("classification", [1, 28, 28], 10)
    told = client.get("/latency").json()
    assert told["answers"] == 2
    assert told["refused"] == 3
    assert told["net"]["p95"] >= told["net"]["median"]


def test_its_page(client: TestClient, image: bytes) -> None:
    assert "An image" in client.get("/").text
    answered = client.post("/", files={"file": ("a.png", image)}).text
    assert "<html" in answered  # without a script
    part = client.post("/", files={"file": ("a.png", image)}, headers={"HX-Request": "true"}).text
    assert "in the net" in part
    assert "<html" not in part
    refused = client.post("/", files={"file": ("a.png", b"none")}, headers={"HX-Request": "true"})
    assert (refused.status_code, "cannot be read" in refused.text) == (422, True)


def test_its_door(client: TestClient, image: bytes) -> None:
    assert (
        client.post("/predict", content=image, headers={"authorization": "Bearer other"}).status_code == 401
    )
    assert client.get("/about", headers={"host": "evil.example:8643"}).status_code == 421
    assert "content-security-policy" in client.get("/").headers


def test_refusals_at_the_start() -> None:
    case = studio_trained.digits()
    path = case.folder / "export" / exports.export(*case, "bundle")["file"]
    with pytest.raises(InvalidArgument, match="fewer than 16"):
        bundle_server.serve_bundle(path, "127.0.0.1", 0, "short", print)
    with pytest.raises(InvalidArgument, match="no address"):
        bundle_server.serve_bundle(path, "999.0.0.1", 0, TOKEN, lambda line: None)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.zip").write_bytes(b"PK")
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path / "other.zip")])
    assert ended.value.code == 1
    assert "cannot be read as a bundle" in " ".join(capsys.readouterr().err.split())
