"""The page of a run and its twins: curves, marks, files, actions, deletion; and the stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.store import Store
from jitdnn.studio.web import stream
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.charts import charts, drawing
from jitdnn.studio.web.stream import Watching, events
from studio_pages import store_of


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as made:
        yield made


@pytest.fixture
def store(client: TestClient) -> Store:
    return store_of(client)


def add_run(store: Store, name: str = "a run", **values: Any) -> int:
    number = store.insert(
        "run", **{"name": name, "options": {"epochs": 3, "batch": 64}, "max_iter": 100} | values
    )
    store.folder(number).mkdir(parents=True)
    return number


def test_page_draws_curves_without_script(client: TestClient, store: Store) -> None:
    number = add_run(store, state="done")
    assert "Nothing has been measured yet" in client.get(f"/runs/{number}").text
    store.add_points(number, [("loss", at, 1 / at) for at in range(1, 101)])
    store.add_points(
        number, [("val accuracy", 50, 0.5), ("val accuracy", 100, 0.75), ("val loss", 50, float("nan"))]
    )
    page = client.get(f"/runs/{number}").text
    assert page.count('<path class="c-') == 2
    assert "c-accuracy" in page
    assert "series.csv?name=val%20accuracy" in page


def test_charts_have_one_quantity_each() -> None:
    names = ["loss", "lr", "val loss", "val accuracy", "val top-5 accuracy", "val error", "time/iteration"]
    found = {chart.key: chart.names for chart in charts(names, "classification")}
    assert found == {
        "loss": ["loss", "val loss"], "accuracy": ["val accuracy", "val top-5 accuracy"], "error": ["val error"],
        "rate": ["lr"], "time": ["time/iteration"],
    }  # fmt: skip
    assert "accuracy" not in [chart.key for chart in charts(["loss", "lr"], "regression")]
    assert "accuracy" in [chart.key for chart in charts([], "classification")]


def test_drawing_keeps_within_its_box_whatever_the_values() -> None:
    chart = charts([], None)[0]
    curves = {"loss": [[0, 5, 10], [1e9, None, -3.0]], "val loss": [[], []]}
    found = drawing(chart, curves, 10)
    (path,) = found["paths"]
    numbers = [
        float(number) for point in path["d"].removeprefix("M").split("L") for number in point.split(",")
    ]
    assert all(0 <= x <= 600 for x in numbers[::2])
    assert all(0 <= y <= 200 for y in numbers[1::2])
    assert drawing(chart, {}, 0) == {}


def test_csv_has_every_point(client: TestClient, store: Store) -> None:
    number = add_run(store)
    count = 50_000  # more than a page ever draws, over several stretches, with a hole
    iterations = [*range(1, count), 10_000_000]
    store.add_points(number, [("loss", at, at / 3) for at in iterations])
    store.add_points(
        number, [("val loss", 7, float("nan")), ("val loss", 9, 0.25), ("val loss", 20_000_000, 0.5)]
    )
    answer = client.get(f"/api/runs/{number}/series.csv", params={"name": ["loss", "val loss", "no such"]})
    lines = answer.text.splitlines()
    assert lines[0] == "iteration,loss,val loss,no such"
    assert len(lines) == 1 + len(iterations) + 1
    assert lines[7] == f"7,{7 / 3!r},,"
    assert lines[9] == f"9,{9 / 3!r},0.25,"
    assert lines[-1] == "20000000,,0.5,"


def test_actions_change_the_state_or_say_why_not(client: TestClient, store: Store) -> None:
    number = add_run(store, state="running")
    assert client.post(f"/api/runs/{number}/pause").json()["intent"] == "pause"
    assert client.post(f"/runs/{number}/stop", headers={"HX-Request": "true"}).status_code == 200
    assert store.one("run", number)["intent"] == "stop"  # type: ignore[index]
    store.update("run", number, state="done", intent="")
    answer = client.post(f"/api/runs/{number}/pause")
    assert answer.status_code == 409
    assert "nothing to pause" in answer.json()["detail"]
    store.update("run", number, state="interrupted")
    assert client.post(f"/runs/{number}/resume").headers["location"] == f"/runs/{number}"
    assert client.get(f"/api/runs/{number}").json()["state"] == "queued"
    assert client.post(f"/api/runs/{number}/explode").status_code == 404
    assert client.post("/api/runs/77/pause").status_code == 404


def test_names_notes_and_marks(client: TestClient, store: Store) -> None:
    number = add_run(store, iteration=42)
    client.post(f"/runs/{number}/describe", data={"name": " better ", "note": "why"})
    assert client.patch(f"/api/runs/{number}", json={"hidden": True}).json()["name"] == "better"
    assert client.get("/api/runs").json() == []
    assert client.patch(f"/api/runs/{number}", json={"name": ""}).status_code == 422
    client.post(f"/runs/{number}/marks", data={"text": "the <b>rate</b> fell"})
    assert [mark["text"] for mark in client.get(f"/api/runs/{number}/marks").json()] == [
        "the <b>rate</b> fell"
    ]
    page = client.get(f"/runs/{number}").text
    assert "the &lt;b&gt;rate" in page
    assert "why" in page


def test_files_are_those_of_the_folder_and_no_others(client: TestClient, store: Store) -> None:
    number = add_run(store)
    folder = store.folder(number)
    (folder / "net.prototxt").write_text('name: "<script>"')
    (folder / "best.npz").write_bytes(b"PK")
    (folder / ".half.unfinished").write_bytes(b"x")
    (folder / "link").symlink_to("/etc/passwd")
    (store.home / "token").write_text("secret")
    assert [file["name"] for file in client.get(f"/api/runs/{number}/files").json()] == [
        "best.npz",
        "net.prototxt",
    ]
    text = client.get(f"/runs/{number}/files/net.prototxt")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert "attachment" in client.get(f"/runs/{number}/files/best.npz").headers["content-disposition"]
    for name in ("link", ".half.unfinished", "..%2F..%2Ftoken", "..%2Ftoken", "nothing"):
        assert client.get(f"/runs/{number}/files/{name}").status_code == 404
        assert "secret" not in client.get(f"/api/runs/{number}/files/{name}").text


def test_deleting_takes_everything_but_the_data_set(client: TestClient, store: Store) -> None:
    dataset = store.insert("dataset", name="d")
    number = add_run(store, state="running", dataset=dataset)
    store.add_points(number, [("loss", 1, 1.0)])
    assert client.delete(f"/api/runs/{number}").status_code == 409
    assert "stop it first" in client.get(f"/runs/{number}/delete").text
    store.update("run", number, state="stopped")
    assert client.post(f"/runs/{number}/delete").headers["location"] == "/"
    assert not store.folder(number).exists()
    assert store.one("dataset", dataset) is not None
    assert store.rows("SELECT * FROM point") == []
    assert client.get(f"/runs/{number}").status_code == 404


# ---- the stream


def told(text: str) -> dict[str, str]:
    """The fields of one event."""
    fields: dict[str, str] = {}
    for line in text.strip().splitlines():
        key, _, value = line.partition(": ")
        fields[key] = f"{fields[key]}\n{value}" if key in fields else value
    return fields


def test_stream_tells_every_point_once_in_the_order_of_writing(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    number = add_run(store)
    store.add_points(number, [("loss", at, 1 / at) for at in range(1, 4)])

    async def watch(after: int, until: int) -> tuple[list[tuple[str, int]], int, list[str]]:
        found: list[tuple[str, int]] = []
        parts: list[str] = []
        watching = Watching(store)

        def state() -> str | None:
            row = store.one("run", number)
            return str(row["state"]) if row else None

        async for text in events(watching, number, after, {"status": state}):
            event = told(text)
            if event.get("event") == "points":
                after = int(event["id"])
                for name, (xs, _) in json.loads(event["data"]).items():
                    found += [(name, x) for x in xs]
            elif event.get("event") == "status":
                parts.append(event["data"])
            if len(found) >= until:
                break
        return found, after, parts

    async def write() -> None:
        await asyncio.sleep(0.05)
        other.add_points(number, [("loss", 4, 0.2)])
        await asyncio.sleep(0.3)
        # the test of iteration 4 is written after the loss of 5
        other.add_points(number, [("loss", 5, 0.1), ("val loss", 4, 0.3)])
        other.update("run", number, state="running")

    async def both() -> tuple[list[tuple[str, int]], int, list[str]]:
        writing = asyncio.create_task(write())
        found = await watch(0, 6)
        await writing
        return found

    found, after, parts = asyncio.run(both())
    assert found == [("loss", 1), ("loss", 2), ("loss", 3), ("loss", 4), ("loss", 5), ("val loss", 4)]
    assert len(parts) == len(set(parts))
    # from the middle on, as after a connection that broke
    middle = after - 2
    assert asyncio.run(watch(middle, 2))[0] == [("loss", 5), ("val loss", 4)]


def test_stream_ends_with_its_run_and_asks_to_reload_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    number = add_run(store)
    store.add_points(number, [("loss", at, 1.0) for at in range(1, 30)])
    monkeypatch.setattr(stream, "MOST_POINTS", 10)

    async def watch() -> list[dict[str, str]]:
        texts = [told(text) async for text in events(Watching(store), number, 0, {"status": lambda: None})]
        return [event for event in texts if "event" in event]

    (only,) = asyncio.run(watch())
    assert (only["event"], only["id"]) == ("reload", str(stream.last_seq(store, number)))


def test_watchers_share_what_is_read_and_a_quiet_store_is_not_asked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    number = add_run(store)
    made: list[int] = []

    def status() -> str:
        made.append(1)
        return "running"

    async def watch(watching: Watching, ready: asyncio.Event) -> None:
        async for text in events(watching, number, 0, {"status": status}):
            if "event: points" in text:
                return
            if "status" in text:
                ready.set()

    async def everything() -> None:
        watching = Watching(store)
        ready = [asyncio.Event() for _ in range(50)]
        tasks = [asyncio.create_task(watch(watching, each)) for each in ready]
        for each in ready:
            await each.wait()
        assert len(made) == 1
        assert watching.watchers == 50
        await asyncio.sleep(3 * stream.PERIOD)
        assert len(made) == 1
        store.add_points(number, [("loss", 1, 1.0)])
        await asyncio.gather(*tasks)
        assert watching.watchers == 0

    asyncio.run(asyncio.wait_for(everything(), 20))
    assert len(made) <= 2


def test_events_over_http_go_on_after_the_last_that_came(client: TestClient, store: Store) -> None:
    number = add_run(store)
    assert client.get("/api/runs/9/events").status_code == 404
    store.add_points(number, [("loss", 1, 1.0), ("loss", 2, 0.5)])
    last = stream.last_seq(store, number)
    found = asyncio.run(_first_points(client, number, str(last - 1)))
    assert found == {"loss": [[2], [0.5]]}


async def _first_points(client: TestClient, number: int, last: str) -> Any:
    # clients of tests gather whole answers, and a stream has no end: the application is asked by hand
    sent: asyncio.Queue[Any] = asyncio.Queue()
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/api/runs/{number}/events",
        "raw_path": b"",
        "query_string": b"after=0",
        "headers": [(b"last-event-id", last.encode())],
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "server": ("testserver", 80),
        "client": ("testclient", 1),
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }

    async def receive() -> Any:
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    app: Any = client.app
    task = asyncio.create_task(app(scope, receive, sent.put))
    try:
        while True:
            message = await asyncio.wait_for(sent.get(), 10)
            event = told(message.get("body", b"").decode())
            if event.get("event") == "points":
                return json.loads(event["data"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
