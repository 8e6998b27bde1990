"""Queue, settings and contract: the pages beside the way from data to a trained net."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.store import Store
from jitdnn.studio.store.authors import working_for
from jitdnn.studio.web.app import make_app, modules
from jitdnn.studio.work import control
from studio_pages import store_of

EVIL = "<script>alert(1)</script>\"'"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as made:
        yield made


@pytest.fixture
def store(client: TestClient) -> Store:
    return store_of(client)


def add_run(store: Store, name: str, **values: Any) -> int:
    values = {"state": "queued", "options": {"epochs": 3, "batch": 64}, "max_iter": 100} | values
    return store.insert("run", name=name, **values)


def order(client: TestClient) -> list[int]:
    return [run["id"] for run in client.get("/api/queue").json()["waiting"]]


def test_order_of_the_queue_by_programs_dropped_rows_and_keys(client: TestClient, store: Store) -> None:
    for name in "abcd":
        add_run(store, name)
    assert order(client) == [1, 2, 3, 4]
    client.put("/api/queue", json={"runs": [3, 1, 77]})
    assert order(client) == [3, 1, 2, 4]
    client.post("/queue/order", data={"run": ["4", "3", "x"]})
    assert order(client)[:2] == [4, 3]
    client.post("/queue/4/move", data={"to": "down"})
    assert order(client)[:2] == [3, 4]
    client.post("/queue/3/move", data={"to": "up"})
    assert order(client)[:2] == [3, 4]
    store.update("run", 3, state="running")
    assert client.post("/queue/3/move", data={"to": "up"}).status_code == 409
    client.post("/queue/1/turn", data={"priority": "10", "wants": ""})
    assert order(client)[0] == 1
    assert client.patch("/api/queue/1", json={"priority": 1000}).status_code == 422


def test_forms_may_have_thousands_of_fields(client: TestClient, store: Store) -> None:
    with store.transaction():
        for number in range(1, 1_202):
            add_run(store, str(number))
    numbers = [str(number) for number in range(1_201, 0, -1)]
    found = client.post("/queue/order", data={"run": numbers})
    assert found.status_code == 303
    assert [row["id"] for row in control.queue(store)] == list(range(1_201, 0, -1))
    files = [("files", (f"{number}.png", b"no image")) for number in range(1_201)]
    assert (
        client.post("/api/runs/1/classify/many", files=files).status_code == 409
    )  # there are no weights yet


def test_places_take_runs_or_not_and_runs_want_places_that_are_there(
    client: TestClient, store: Store
) -> None:
    place = store.insert("place", host="here", device="cuda:0", name=EVIL)
    run = add_run(store, EVIL)
    assert client.patch(f"/api/places/{place}", json={"state": "off"}).json()["state"] == "off"
    assert client.patch(f"/api/places/{place}", json={"state": "broken"}).status_code == 422
    assert "Takes no runs" in client.get("/queue").text
    client.post(f"/places/{place}", data={"state": "free"})
    assert client.patch(f"/api/queue/{run}", json={"wants": f"#{place}"}).json()["wants"] == f"#{place}"
    answer = client.patch(f"/api/queue/{run}", json={"wants": "tpu"})
    assert answer.status_code == 422
    assert "cuda:0" in answer.json()["detail"]
    store.update("run", run, state="running", place=place, token="secret")
    queue = client.get("/api/queue")
    assert queue.json()["places"][0]["runs"] == [{"id": run, "name": EVIL}]
    assert "secret" not in queue.text
    page = client.get("/queue").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    part = client.get("/queue", headers={"HX-Request": "true"}).text
    assert "<html" not in part


def test_settings_hold_and_refuse_what_cannot_be(client: TestClient, store: Store, tmp_path: Path) -> None:
    form = {"cpu_slots": "3", "restarts": "0", "quota": "2 GiB", "least_free": "", "roots": f"{tmp_path}\n\n"}
    assert client.post("/settings", data=form).headers["location"] == "/settings?saved=true"
    assert client.get("/api/settings").json() == {
        "cpu_slots": 3, "restarts": 0, "quota": 2 << 30, "least_free": 0, "together": [],
        "roots": [str(tmp_path)], "model_stores": [str(store.home / "models")],
    }  # fmt: skip
    assert 'value="2 GiB"' in client.get("/settings").text
    for wrong in (
        {"quota": "much"},
        {"cpu_slots": "-1"},
        {"roots": "/no/such/folder"},
        {"least_free": "-5 MiB"},
    ):
        assert client.post("/settings", data=form | wrong).status_code == 422
    assert client.patch("/api/settings", json={"roots": ["relative/\0"]}).status_code == 422
    assert client.patch("/api/settings", json={"cpu_slots": 2}).json()["quota"] == 2 << 30


def test_tidying_removes_what_is_ticked_and_nothing_that_is_not_spare(
    client: TestClient, store: Store
) -> None:
    run = add_run(store, "done", state="done")
    store.folder(run).mkdir(parents=True)
    for name in ("snap_iter_1.jdsnap", "best.npz"):
        (store.folder(run) / name).write_bytes(b"x" * 100)
    assert [spare["key"] for spare in client.get("/api/disk").json()["spares"]] == [f"snapshots/{run}"]
    for key in ("../token", "runs/1", "studio.sqlite", f"snapshots/{run}/../../x"):
        assert client.post("/api/disk/tidy", json={"keys": [key]}).status_code == 422
    assert client.post("/api/disk/tidy", json={"keys": [f"snapshots/{run}"]}).json() == {"bytes": 100}
    assert [file["name"] for file in client.get(f"/api/runs/{run}/files").json()] == ["best.npz"]


def test_contract_is_a_page_and_has_every_path(client: TestClient) -> None:
    contract = client.get("/api/openapi.json").json()
    page = client.get("/api").text
    for path in contract["paths"]:
        assert path.startswith("/api/")
        assert f"<code>{path}</code>" in page
    operations = [each for methods in contract["paths"].values() for each in methods.values()]
    assert all(each.get("description") or each.get("summary") for each in operations)
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert client.get("/docs").status_code == 404  # which would load from elsewhere


#: what shows or changes something, and the operations that do the same for programs
TWINS = {
    "GET /": "GET /api/runs",
    "GET /compare": "GET /api/compare",
    "GET /data": "GET /api/datasets",
    "GET /data/new": "POST /api/datasets/scan",
    "POST /data": "POST /api/datasets",
    "POST /data/digits": "POST /api/datasets",
    "POST /data/scan": "POST /api/datasets/scan",
    "GET /data/{number}": "GET /api/datasets/{number}/images",
    "GET /data/{number}/about": "GET /api/datasets/{number}",
    "GET /data/{number}/changes": "GET /api/datasets/{number}/changes",
    "GET /data/{number}/duplicates": "GET /api/datasets/{number}/duplicates",
    "GET /data/{number}/images/{part}/{place}": "GET /api/datasets/{number}/images",
    "POST /data/{number}/images/{part}/{place}": "PUT /api/datasets/{number}/images/{part}/{place}",
    "GET /data/{number}/label": "GET /api/datasets/{number}/images",
    "GET /data/{number}/progress": "GET /api/datasets/{number}",
    "POST /data/{number}/{action}": "POST /api/datasets/{number}/versions",
    "GET /queue": "GET /api/queue",
    "POST /queue/order": "PUT /api/queue",
    "POST /queue/{number}/move": "PUT /api/queue",
    "POST /queue/{number}/turn": "PATCH /api/queue/{number}",
    "POST /places/{number}": "PATCH /api/places/{number}",
    "GET /runs/import": "POST /api/runs/import",
    "POST /runs/import": "POST /api/runs/import",
    "GET /runs/latest": "GET /api/runs",
    "POST /runs/hidden": "PATCH /api/runs/{number}",
    "GET /runs/{number}": "GET /api/runs/{number}",
    "GET /runs/{number}/classify": "POST /api/runs/{number}/classify",
    "POST /runs/{number}/classify": "POST /api/runs/{number}/classify",
    "POST /runs/{number}/classify/many": "POST /api/runs/{number}/classify/many",
    "GET /runs/{number}/classify/many/{name}": "POST /api/runs/{number}/classify/many",
    "GET /runs/{number}/curves": "GET /api/runs/{number}/series",
    "GET /runs/{number}/delete": "DELETE /api/runs/{number}",
    "POST /runs/{number}/delete": "DELETE /api/runs/{number}",
    "POST /runs/{number}/describe": "PATCH /api/runs/{number}",
    "GET /runs/{number}/evaluation": "GET /api/runs/{number}/evaluation",
    "GET /runs/{number}/evaluation/images": "GET /api/runs/{number}/evaluation/images",
    "GET /runs/{number}/export": "POST /api/runs/{number}/export",
    "POST /runs/{number}/export": "POST /api/runs/{number}/export",
    "GET /runs/{number}/inside": "GET /api/runs/{number}/inside",
    "POST /runs/{number}/inside": "GET /api/runs/{number}/inside",
    "GET /runs/{number}/inside/layers/{layer:path}": "GET /api/runs/{number}/inside/weights",
    "GET /runs/{number}/inside/strongest": "GET /api/runs/{number}/inside/strongest",
    "GET /runs/{number}/inside/map": "GET /api/runs/{number}/inside/{kind}.png",
    "POST /runs/{number}/inside/maximize": "GET /api/runs/{number}/inside/units.png",
    "POST /runs/{number}/marks": "POST /api/runs/{number}/marks",
    "POST /runs/{number}/pause": "POST /api/runs/{number}/pause",
    "POST /runs/{number}/resume": "POST /api/runs/{number}/resume",
    "POST /runs/{number}/stop": "POST /api/runs/{number}/stop",
    "GET /settings": "GET /api/settings",
    "POST /settings": "PATCH /api/settings",
    "POST /settings/tidy": "POST /api/disk/tidy",
    "POST /cluster": "PUT /api/cluster",
    "GET /sweeps": "GET /api/sweeps",
    "GET /sweeps/new": "POST /api/sweeps",
    "POST /sweeps/new": "POST /api/sweeps",
    "GET /sweeps/{number}": "GET /api/sweeps/{number}",
    "GET /train": "GET /api/nets",
    "GET /train/nets/{key}": "GET /api/nets",
    "POST /train": "POST /api/runs",
    "GET /train/import": "POST /api/nets/import",
    "POST /train/import": "POST /api/nets/import",
    "POST /train/imported": "POST /api/nets/import",
    "POST /train/model": "POST /api/models/take",
    "POST /train/check": "POST /api/check",
    "POST /train/graph": "POST /api/graph",
    "POST /train/plan": "POST /api/plan",
    "POST /train/rate": "POST /api/rate",
    "POST /train/preview": "POST /api/preview",
    "POST /first": "POST /api/runs",
}
#: the contract as a page, light or dark, names of folders while one types; pictures and files of pages
ALONE = {"GET /api", "POST /theme", "POST /name", "GET /data/folders"}


def test_every_page_has_a_twin_for_programs(client: TestClient) -> None:
    routes = [route for module in modules() for route in module.router.routes if not route.include_in_schema]
    pages = {f"{method} {route.path}" for route in routes for method in route.methods}
    files = {page for page in pages if page.endswith((".png", ".csv", "/files/{name}"))}
    assert pages - files - ALONE == set(TWINS)
    paths = client.get("/api/openapi.json").json()["paths"]
    operations = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(TWINS.values()) <= operations


def test_script_in_every_name_stays_text_on_every_page(client: TestClient, store: Store) -> None:
    dataset = store.insert(
        "dataset", name=EVIL, source=EVIL, path=EVIL, classes=[EVIL, "b"], shape=[1, 8, 8], train=4, test=2,
        notes=[EVIL], message=EVIL, settings={"path": EVIL}, author=EVIL,
    )  # fmt: skip
    place = store.insert("place", host=EVIL, device="cpu", name=EVIL, message=EVIL)
    values: dict[str, Any] = {
        "net_name": EVIL, "dataset": dataset, "message": EVIL, "note": EVIL, "author": EVIL, "place": place,
        "best": 0.5, "best_at": 1, "options": {"epochs": 3, "batch": 64, EVIL: EVIL}, "started": 1.0,
    }  # fmt: skip
    for state in ("queued", "running", "done", "failed"):
        run = add_run(store, EVIL, state=state, **values)
        store.folder(run).mkdir(parents=True)
        (store.folder(run) / "original.prototxt").write_text(f'name: "{EVIL}" # {run}')
        (store.folder(run) / f"{EVIL.replace('/', '')}.log").write_text(EVIL)
        store.add_points(run, [(name, at, 0.5) for name in ("loss", f"val {EVIL}") for at in (1, 2)])
        with working_for(EVIL):
            store.mark(run, 1, EVIL)
    # pages of the application with any numbers in their paths; files and pictures are no pages
    routes = [route for module in modules() for route in module.router.routes]
    paths = {route.path for route in routes if "GET" in route.methods}
    pages = sorted(
        p for p in paths if not p.startswith(("/api", "/static")) and "files" not in p and ".png" not in p
    )
    assert len(pages) > 10
    seen = 0
    for path in pages:
        for number in (1, 4):
            answer = client.get(path.replace("{number}", str(number)), params={"run": [1, 4], "q": "script"})
            assert answer.status_code < 500, path
            if answer.headers.get("content-type", "").startswith("text/html"):
                seen += "&lt;script&gt;alert(1)" in answer.text
                assert "<script>alert(1)" not in answer.text, path
    assert seen > 15


def test_runs_from_elsewhere_are_looked_at_and_brought(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "<b>.log").write_text("Iteration 0, loss = 2\nIteration 10, loss = 1\n")
    app = make_app(tmp_path / "home", serve_queue=False)
    app.state.studio.store.set_setting("roots", [str(tmp_path)])
    with TestClient(app, follow_redirects=False) as client:
        assert 'href="/runs/import"' in client.get("/settings").text
        assert "Look" in client.get("/runs/import").text
        looked = client.post("/runs/import", data={"path": str(logs)}).text
        assert "&lt;b&gt;" in looked
        assert "Bring 1 run" in looked
        assert client.get("/api/runs").json() == []
        for path in ("/etc", str(tmp_path / "home"), str(tmp_path / "nowhere"), ""):
            assert client.post("/runs/import", data={"path": path}).status_code == 422
            assert client.post("/api/runs/import", json={"path": path}).status_code == 422
        assert client.post("/runs/import?bring=1", data={"path": str(logs)}).headers["location"] == "/"
        (run,) = client.get("/api/runs").json()
        assert run["state"] == "done"
        page = client.get(f"/runs/{run['id']}").text
        assert "brought from Caffe" in page
        assert "from elsewhere" in client.get("/").text
        assert client.get(f"/runs/{run['id']}/evaluation").status_code == 409
        assert client.get(f"/api/runs/{run['id']}/series", params={"name": "loss"}).json()["loss"] == [
            [0, 10],
            [2, 1],
        ]
        assert client.get(f"/train?run={run['id']}").status_code == 200
        made = client.post("/api/runs/import", json={"path": str(logs)}).json()["runs"]
        assert client.get("/compare", params={"run": [run["id"], *made]}).status_code == 200
