"""Pages of sweeps and their REST twins: begun from a run, refused with reasons, shown with their trials."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")
pytest.importorskip("optuna", reason="the extra jitdnn[sweeps] is not installed")

from fastapi.testclient import TestClient

from jitdnn.studio.sweeps import Sweeps
from jitdnn.studio.web.app import make_app
from studio_pages import store_of

WRONG = """layer { name: "d" type: "Data" top: "data" top: "label" }
layer { name: "x" type: "InerProduct" bottom: "data" top: "x" }"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A home with one run, queued by the first page."""
    home: Path = tmp_path_factory.mktemp("home")
    with TestClient(make_app(home, serve_queue=False), follow_redirects=False) as made:
        assert made.get("/sweeps").status_code == 200
        assert "Nothing was trained yet" in made.get("/sweeps/new").text
        assert made.post("/first").status_code == 303
        yield made


def test_a_sweep_is_begun_from_a_run_and_shows_its_trials(client: TestClient) -> None:
    store = store_of(client)
    form = {
        "run": "1", "space": "rate: 1e-3 to 1e-1 log\nhidden: 20, 50 # of ip1", "sampler": "grid", "trials": "4",
        "pruner": "median", "metric": "val accuracy", "parallel": "2", "name": "<b>first</b>",
    }  # fmt: skip
    shown = re.search(
        r"<textarea name=\"net\"[^>]*>(.*?)</textarea", client.get("/sweeps/new").text, re.DOTALL
    )
    assert shown is not None
    form["net"] = html.unescape(shown[1]).replace("num_output: 500", "num_output: {{hidden}}")
    assert "{{hidden}}" in form["net"]
    answer = client.post("/sweeps/new", data=form)
    assert answer.status_code == 422
    assert "a grid needs steps" in answer.text
    assert "&lt;b&gt;first" in answer.text  # nothing typed is lost
    answer = client.post("/sweeps/new", data=form | {"sampler": "random"})
    assert answer.status_code == 303, answer.text
    sweep = int(answer.headers["location"].rpartition("/")[2])
    assert "about to begin" in client.get(f"/sweeps/{sweep}").text
    Sweeps(store).step()
    found = client.get(f"/api/sweeps/{sweep}").json()
    assert [trial["state"] for trial in found["trials"]] == ["queued", "queued"]
    for number, trial in enumerate(found["trials"]):
        store.add_points(trial["id"], [("val accuracy", 100, 0.5 + 0.1 * number)])
        store.update("run", trial["id"], state="done")
    Sweeps(store).step()
    found = client.get(f"/api/sweeps/{sweep}").json()
    assert (found["run"]["iteration"], found["run"]["best"]) == (2, 0.6)
    assert found["run"]["best_at"] == found["trials"][1]["id"]
    page = client.get(f"/sweeps/{sweep}").text
    assert page.index(">#2<") < page.index(">#1<")  # the best one first
    assert "&lt;b&gt;first" in page
    part = client.get(f"/sweeps/{sweep}", headers={"HX-Request": "true"}).text
    assert ">#2<" in part
    assert "<html" not in part
    listed = [run["id"] for run in client.get("/api/runs").json()]
    assert listed == [sweep, 1]  # its trials are on its own page
    assert "2<small> / 4 trials" in client.get("/").text
    assert client.get(f"/runs/{sweep}").headers["location"] == f"/sweeps/{sweep}"
    assert "Trial of" in client.get(f"/runs/{found['trials'][0]['id']}").text
    assert client.post(f"/api/runs/{sweep}/stop").json()["intent"] == "stop"
    Sweeps(store).step()
    states = {run["state"] for run in store.rows("SELECT state FROM run WHERE parent = ?", sweep)}
    assert states == {"done", "stopped"}
    assert client.get("/api/sweeps").json()[0]["state"] == "stopped"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"space": "speed: 1, 2"}, "speed is no option of a training"),
        ({"space": "rate"}, "line 1, column 1: say NAME"),
        ({"space": "rate: 1e9, 2e9"}, "rate is"),
        ({"trials": "many"}, "trials is"),
        ({"trials": "0"}, "trials is 0"),
        ({"sampler": "best"}, "choose one of tpe, random, grid"),
        ({"metric": "loss"}, "a series of tests"),
        ({"net": WRONG}, "the first trial could not be trained: line 2 of the net"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said(client: TestClient, change: dict[str, str], words: str) -> None:
    original = store_of(client).folder(1) / "original.prototxt"
    form = {"run": "1", "space": "rate: 0.1, 0.01", "sampler": "tpe", "trials": "4", "pruner": "none",
            "metric": "val accuracy", "net": original.read_text()}  # fmt: skip
    answer = client.post("/sweeps/new", data=form | change)
    assert answer.status_code == 422
    shown = re.search(r"role=\"alert\">(.*?)<", answer.text, re.DOTALL)
    assert shown is not None
    assert words in html.unescape(shown[1])


def test_programs_begin_sweeps_too(client: TestClient) -> None:
    store = store_of(client)
    body = {
        "dataset": 1, "net": (store.folder(1) / "original.prototxt").read_text(), "options": {"epochs": 1},
        "space": {"rate": {"low": 0.001, "high": 0.1, "log": True}}, "trials": 3, "sampler": "random",
    }  # fmt: skip
    answer = client.post("/api/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["run"]["options"]["sweep"]["space"]["rate"]["high"] == 0.1
    assert found["trials"] == []
    wrong = client.post("/api/sweeps", json=body | {"space": {"rate": {"low": 1}}})
    assert wrong.status_code == 422
    assert "no 'high'" in wrong.text
    assert client.get("/api/sweeps/1").status_code == 404
    assert client.get("/sweeps/99").status_code == 404
