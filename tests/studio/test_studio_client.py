"""The Python client against a server that listens: data set, run, evaluation, classification, export."""

from __future__ import annotations

import io
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("uvicorn", reason="the extra jitdnn[studio] is not installed")

import uvicorn

import studio_trained
from jitdnn.errors import InvalidArgument
from jitdnn.studio.client import Client, Refused
from jitdnn.studio.data import open_dataset
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.guard import Guard
from jitdnn.studio.web.serve import _only_server
from jitdnn.studio.work.inspector import Inspector
from studio_trained import Case

TOKEN = "a-token-of-the-test-0123456789abcdef"


@pytest.fixture(scope="module")
def digits() -> Case:
    return studio_trained.digits()


@pytest.fixture(scope="module")
def studio(digits: Case) -> Iterator[Client]:
    async def inspect(self, function, *arguments, seconds=None):  # type: ignore[no-untyped-def]
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inspector, "inspect", inspect)
        hosts: set[str] = set()
        guard = Guard(make_app(digits.home), TOKEN, hosts, "c")
        server = uvicorn.Server(uvicorn.Config(guard, port=0, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        (digits.home / "token").write_text(TOKEN + "\n")
        with _only_server(digits.home) as note:
            note.write(f"http://127.0.0.1:{port}")
            note.flush()
            yield Client(home=digits.home)
        server.should_exit = True
        thread.join(10)


def test_runs_and_what_they_learned(studio: Client, digits: Case, tmp_path: Path) -> None:
    assert [row["name"] for row in studio.datasets()] == [digits.dataset["name"]]
    assert [row["id"] for row in studio.runs("small")] == [1]
    assert studio.wait(1)["state"] == "done"
    assert studio.series(1, "loss") == {"loss": [[], []]}
    found = studio.evaluate(1)
    assert found["summary"]["accuracy"] > 0.85
    image = np.asarray(open_dataset(digits.home, digits.dataset).images("test")[7][0])
    file = tmp_path / 'with "quotes".png'
    Image.fromarray(image).save(file)
    top = studio.classify(1, at=7, part="test")["top"]
    assert studio.classify(1, file)["top"] == top
    assert studio.classify(1, file.read_bytes())["top"] == top
    many = studio.classify_many(1, [file, file])[1][
        "top"
    ]  # by a net for several images, which may round otherwise
    assert [each["name"] for each in many] == [each["name"] for each in top]
    assert [each["probability"] for each in many] == pytest.approx(
        [each["probability"] for each in top], rel=1e-4
    )
    made = studio.export(1, "bundle", tmp_path / "net.zip")
    assert made["checks"][0]["runner"] == "check.py"
    with zipfile.ZipFile(tmp_path / "net.zip") as packed:
        assert "bundle.json" in packed.namelist()


def test_a_look_inside_and_what_comes_from_elsewhere(studio: Client, digits: Case, tmp_path: Path) -> None:
    strongest = studio.strongest(1, "conv1", [3, 1], part="test", shown=2)
    assert [unit["unit"] for unit in strongest["units"]] == [3, 1]
    assert studio.strongest(1, "conv1", 0)["units"][0]["unit"] == 0
    assert studio.gradients(1, at=2, target=4)["class"] == 4
    code = "m = Sequential([Conv2D(4, 3), Flatten(), Dense(10)])"
    (tmp_path / "net.py").write_text(code)
    told = studio.import_net(code)
    assert told == studio.import_net(tmp_path / "net.py")
    assert studio.check(1, told["text"])["ok"]
    (tmp_path / "net.pth").write_bytes(b"")
    with pytest.raises(Refused, match="pickle"):
        studio.import_net(tmp_path / "net.pth")
    with pytest.raises(Refused, match="does not lie in"):
        studio.bring("/proc")


def test_a_data_set_is_sent_and_made(studio: Client, tmp_path: Path) -> None:
    path = tmp_path / "shapes.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for at in range(24):
            picture = io.BytesIO()
            Image.fromarray(np.full((8, 8), 10 * at, np.uint8)).save(picture, "PNG")
            packed.writestr(f"{'dark' if at < 12 else 'light'}/{at}.png", picture.getvalue())
    made = studio.create_dataset(path, "Shapes", width=8, height=8, grey=True)
    assert (made["state"], made["classes"]) == ("ready", ["dark", "light"])
    checked = studio.check(made["id"], "layer { name: }")
    assert not checked["ok"]
    assert checked["line"] == 1


def test_refusals(studio: Client, digits: Case, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no run 99") as refused:
        studio.run(99)
    assert refused.value.status == 404
    with pytest.raises(Refused, match="401"):
        Client(studio.address, "another").runs()
    with pytest.raises(Refused, match="number"):
        studio.get("/api/runs/x")
    with pytest.raises(InvalidArgument, match="start `jitdnn studio`"):
        Client(home=tmp_path)
    with pytest.raises(InvalidArgument, match="begins with http"):
        Client("file:///etc/passwd", TOKEN)
    with pytest.raises(InvalidArgument, match="there is no token"):
        Client("http://127.0.0.1:1", home=tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be reached"):
        Client("http://127.0.0.1:1/?token=" + TOKEN).runs()


def test_a_proxy_for_others_does_not_get_what_is_for_this_machine(
    studio: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr(urllib.request, "_opener", None)  # which knows the environment of the first call
    assert studio.get("/api/runs")
