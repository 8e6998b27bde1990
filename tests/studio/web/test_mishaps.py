"""What happens beside the pages: writes in the middle of a stream, half an upload, fields that do not fit."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.cli.studio import run_serve
from jitdnn.errors import NotSupported
from jitdnn.studio.nets.weights import keep_weights, kept_weights
from jitdnn.studio.store import Store
from jitdnn.studio.web import answering, guard, stream, trained_runs, words
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.guard import Guard
from jitdnn.studio.web.stream import Watching, event, events


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    app = make_app(tmp_path, serve_queue=False)
    with TestClient(app, follow_redirects=False, raise_server_exceptions=False) as made:
        yield made


def test_what_is_written_while_an_event_is_sent_is_told_next(tmp_path: Path) -> None:
    store = Store(tmp_path)
    number = store.insert("run", name="a run")

    async def watch() -> str:
        told = events(Watching(store), number, 0, {"status": lambda: "running", "marks": lambda: "none"})
        assert "retry" in await anext(told)
        assert "event: status" in await anext(told)  # points were asked for before it, and there were none
        store.add_points(number, [("loss", 1, 0.5)])
        await asyncio.sleep(3 * stream.PERIOD)  # which is noticed while this stream waits for its reader
        assert "event: marks" in await anext(told)
        return await asyncio.wait_for(anext(told), 2)

    assert "event: points" in asyncio.run(watch())


def test_line_breaks_of_other_systems_do_not_end_the_data_of_an_event() -> None:
    assert event("marks", "a\rid: 7\r\nb\nc") == "event: marks\ndata: a\ndata: id: 7\ndata: b\ndata: c\n\n"


def test_fields_of_forms_that_do_not_fit_are_refused_with_a_reason(client: TestClient) -> None:
    many = client.post("/settings", data={"cpu_slots": "1", "roots": "\n".join(["/tmp"] * 51)})
    assert many.status_code == 422
    assert "roots: list should have at most 50 items" in many.text
    assert client.post("/settings/tidy", data={"key": "x" * 300}).status_code == 422
    source = {"path": "package:data/mnist_5k.npz", "options": {"seed": 1 << 70}}
    assert client.post("/api/datasets", json=source).status_code == 422


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_bodies_without_a_length_that_are_too_large_get_413(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(guard, "LARGEST_BODY", 1000)
    inside = Guard(make_app(tmp_path, serve_queue=False), "t" * 32, ["testserver"], "studio")
    headers = {"authorization": f"Bearer {'t' * 32}", "content-type": kind}

    def body() -> Iterator[bytes]:
        yield from [b" " * 600] * 2

    path = "/api/datasets" if kind.endswith("json") else "/settings/tidy"
    with TestClient(inside, raise_server_exceptions=False) as client:
        answer = client.post(path, content=body(), headers=headers)
    assert (answer.status_code, "more than" in answer.text) == (413, True)


def test_time_left_counts_all_images_of_an_iteration() -> None:
    run: dict[str, Any] = {"speed": 100.0, "iteration": 10, "max_iter": 60}
    assert words.left(run | {"options": {"batch": 20}}) == "10 s"
    assert words.left(run | {"options": {"batch": 20, "accumulate": 4}}) == "40 s"
    assert words.left(run | {"options": {"batch": 0, "accumulate": 4}}) == "500 ms"


class Broken:
    """An upload whose sender goes away in the middle."""

    filename = "many.zip"

    def __init__(self) -> None:
        self.pieces = [b"PK"]

    async def read(self, size: int) -> bytes:
        if not self.pieces:
            raise OSError("no space left on device")
        return self.pieces.pop()


def test_half_an_upload_leaves_no_file(tmp_path: Path) -> None:
    studio: Any = SimpleNamespace(home=tmp_path)
    uploads: Any = [Broken()]
    with pytest.raises(OSError, match="no space"):
        asyncio.run(answering.keep(studio, uploads))
    assert list((tmp_path / "uploads").iterdir()) == []


def test_answers_that_ended_by_a_mistake_do_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inspect(*_: Any) -> None:
        raise RuntimeError("a mistake")

    chosen = SimpleNamespace(name="best.npz")
    monkeypatch.setattr(
        trained_runs, "with_weights", lambda *_: (SimpleNamespace(run={}, dataset={}), chosen)
    )
    studio: Any = SimpleNamespace(home=tmp_path, inspector=SimpleNamespace(inspect=inspect))
    image = tmp_path / "image"
    image.write_bytes(b"x")
    job = answering.Job(1, "best.npz", 1)
    with pytest.raises(RuntimeError):
        asyncio.run(answering.work(studio, job, [("image.png", image)]))
    assert job.is_over
    assert job.error
    assert not image.exists()


def test_two_who_ask_for_an_evaluation_do_not_make_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, most = 0, 0

    async def inspect(*_: Any) -> dict[str, Any]:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.05)
        at_work -= 1
        return {"file": "", "done": 1, "count": 2}

    found = SimpleNamespace(run={"id": 1}, dataset={}, data=SimpleNamespace(evaluation_part="test"))
    chosen = SimpleNamespace(name="best.npz", key="best-1")
    monkeypatch.setattr(trained_runs, "with_weights", lambda *_: (found, chosen))
    inspector = SimpleNamespace(inspect=inspect)
    studio: Any = SimpleNamespace(home=tmp_path, inspector=inspector, store=Store(tmp_path))

    async def both() -> None:
        await asyncio.gather(*(trained_runs.evaluated(studio, 1) for _ in range(2)))
        assert most == 1
        await asyncio.gather(
            trained_runs.evaluated(studio, 1, "test"), trained_runs.evaluated(studio, 1, "val")
        )

    asyncio.run(both())
    assert most == 2  # of different parts: those do not wait for each other
    assert not trained_runs._evaluating


@pytest.mark.parametrize("name", ["重" * 116 + ".npz", "a." + "b" * 115 + ".npz", "\udce9.npz"])
def test_uploaded_weights_have_names_that_can_be_written_and_are_listed(tmp_path: Path, name: str) -> None:
    kept = keep_weights(tmp_path, name, io.BytesIO(b"PK"))
    assert kept_weights(tmp_path) == [kept]
    assert kept.endswith(".npz")


@pytest.mark.parametrize("name", ["fastapi", "uvicorn", "jinja2", "python_multipart", "PIL"])
def test_each_package_that_is_missing_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotSupported, match=rf"needs {name}, .*jitdnn\[studio\]"):
        run_serve(tmp_path / "none.zip", "127.0.0.1", 0, "")
