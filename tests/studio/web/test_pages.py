"""Pages and their REST twins without a browser: what they hold, and what they answer to nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app
from studio_pages import store_of


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as made:
        yield made


def add_run(store: Store, name: str, **values: Any) -> int:
    return store.insert(
        "run", **{"name": name, "net_name": "LeNet", "options": {"epochs": 3, "batch": 64}} | values
    )


def test_first_page_of_an_empty_home_offers_the_first_training(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "Train my first net" in answer.text
    assert client.get("/api/runs").json() == []


def test_runs_are_filtered_by_words_and_shown_in_parts(client: TestClient) -> None:
    store = store_of(client)
    for at in range(60):
        add_run(store, f"run {at} of_100%", state="failed" if at == 7 else "done")
    assert len(client.get("/api/runs").json()) == 50
    assert [run["name"] for run in client.get("/api/runs", params={"start": 58}).json()] == [
        "run 1 of_100%",
        "run 0 of_100%",
    ]
    assert [run["id"] for run in client.get("/api/runs", params={"q": "failed lenet"}).json()] == [8]
    assert client.get("/api/runs", params={"q": "of%100"}).json() == []  # signs of LIKE are signs
    page = client.get("/", params={"q": "run 7"}).text
    assert "run 7 of_100%" in page
    assert "run 9 " not in page
    part = client.get("/", params={"q": "nowhere"}, headers={"HX-Request": "true"}).text
    assert "No run fits" in part
    assert "<html" not in part
    assert "Older runs" in client.get("/").text


def test_hidden_runs_are_in_no_list_but_their_own(client: TestClient) -> None:
    store = store_of(client)
    listed = add_run(store, "listed", state="running", options={})  # of a program that has no epochs
    secret = add_run(store, "secret one", state="running")
    page = client.get("/").text
    assert "2 trainings" in page
    assert page.count('class="hero live"') == 2
    answer = client.post("/runs/hidden", data={"run": [secret]})
    assert answer.headers["location"] == "/"
    page = client.get("/").text
    assert "secret one" not in page
    assert page.count('class="hero live"') == 1
    assert "1 training on" in page
    assert "1 hidden run" in page
    assert [run["id"] for run in client.get("/api/runs").json()] == [listed]
    assert [run["id"] for run in client.get("/api/runs?hidden=true").json()] == [secret]
    page = client.get("/?hidden=1").text
    assert "secret one" in page
    assert f'href="/runs/{listed}"' not in page
    assert "Show again" in page
    client.post("/runs/hidden", data={"run": [secret], "hidden": ["1", "0"]})
    assert "hidden run" not in client.get("/").text
    assert client.post("/runs/hidden", data={"run": [listed, 77]}).status_code == 404
    assert "hidden run" not in client.get("/").text  # all or none
    client.post("/runs/hidden", data={"run": [listed, secret]})
    page = client.get("/").text
    assert "Train my first net" not in page  # it is not the first start
    assert "No run is listed" in page


def test_latest_is_the_newest_training_that_is_listed(client: TestClient) -> None:
    store = store_of(client)
    assert client.get("/runs/latest").headers["location"] == "/"
    run = add_run(store, "mine")
    sweep = add_run(store, "sweep", kind="sweep")
    add_run(store, "trial", parent=sweep, trial={"rate": 0.1})
    add_run(store, "hidden", hidden=1)
    assert client.get("/runs/latest").headers["location"] == f"/runs/{run}"


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("/runs/1", "/"),
        ("/runs/1/delete", "/"),
        ("/compare", "/"),
        ("/data/new", "/data"),
        ("/data/1", "/data"),
        ("/sweeps/new?run=1", "/sweeps"),
    ],
)
def test_pages_below_an_entry_of_the_side_mark_it(client: TestClient, path: str, link: str) -> None:
    store = store_of(client)
    dataset = store.insert("dataset", name="digits", shape=[1, 8, 8], classes=["a"], state="making")
    add_run(store, "one", dataset=dataset)
    page = client.get(path).text
    assert page.count("aria-current") - page.count('aria-current="page">Curves') == 1
    assert f'<a href="{link}" aria-current="true"' in page
    page = client.get(link).text
    assert f'<a href="{link}" aria-current="page"' in page
    assert 'aria-current="true"' not in page


def test_entries_that_the_bar_of_a_phone_has_no_room_for_are_below_the_page(client: TestClient) -> None:
    more = client.get("/").text.split('aria-label="More pages"')[1].split("</nav>")[0]
    assert 'href="/sweeps"' in more
    assert 'href="/api"' in more


def test_names_are_text_wherever_they_stand(client: TestClient) -> None:
    evil = "<script>alert(1)</script>\"'"
    store = store_of(client)
    dataset = store.insert("dataset", name=evil, source=evil, classes=[evil, "b"], shape=[1, 8, 8])
    add_run(store, evil, net_name=evil, dataset=dataset, state="failed", message=evil, note=evil)
    page = client.get("/", params={"q": "alert"}).text
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


def test_refusals_are_pages_for_people_parts_for_htmx_and_json_for_programs(client: TestClient) -> None:
    page = client.get("/nowhere")
    assert page.status_code == 404
    assert "There is no such page" in page.text
    assert "<html" in page.text
    assert "<html" not in client.get("/nowhere", headers={"HX-Request": "true"}).text
    answer = client.get("/api/nowhere")
    assert answer.json() == {"detail": "There is no such page."}
    assert client.get("/api/runs", params={"start": -1}).status_code == 422
    assert "start: input should be greater" in client.get("/", params={"start": -1}).text


def test_theme_is_kept_and_leads_back_to_our_own_pages_only(client: TestClient) -> None:
    answer = client.post("/theme", data={"theme": "dark", "back": "/train?run=3"})
    assert answer.headers["location"] == "/train?run=3"
    assert 'data-theme="dark"' in client.get("/").text
    for back in ("//evil.example/x", "https://evil.example/x", "\\\\evil.example/x"):
        answer = client.post("/theme", data={"theme": "", "back": back})
        assert answer.headers["location"] in ("/x", "/evil.example/x")
    assert "data-theme" not in client.get("/").text


def test_files_with_a_hash_in_their_address_may_be_kept_others_not(client: TestClient) -> None:
    page = client.get("/").text
    address = page.split('rel="stylesheet" href="')[1].split('"')[0]
    assert "immutable" in client.get(address).headers["cache-control"]
    assert client.get("/static/css/tokens.css").headers["cache-control"] == "no-cache"
    assert client.get("/static/..%2Fapp.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code == 404
