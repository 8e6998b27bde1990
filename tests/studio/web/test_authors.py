"""Names of people go with what they make, and lead to nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from jitdnn.studio.client import Client
from jitdnn.studio.store.authors import author, named, working_for
from jitdnn.studio.web.app import make_app
from studio_pages import store_of


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as made:
        yield made


def test_a_browser_that_said_a_name_marks_what_it_makes(client: TestClient) -> None:
    assert client.post("/name", data={"name": "  Änne\n<b> "}).status_code == 303
    assert "Änne &lt;b&gt;" in client.get("/settings").text
    assert client.post("/first").status_code == 303
    store = store_of(client)
    store.insert("run", name="made by a program of the server")
    assert [row["author"] for row in store.rows("SELECT author FROM run ORDER BY id")] == ["Änne <b>", ""]
    assert [row["author"] for row in store.rows("SELECT author FROM dataset")] == ["Änne <b>"]
    client.post("/runs/1/marks", data={"text": "looks good"})
    newest = client.get("/api/runs/1/marks").json()[0]
    assert (newest["text"], newest["author"]) == ("looks good", "Änne <b>")
    found = client.get("/", params={"q": "Änn"}, headers={"HX-Request": "true"}).text
    assert 'id="run-1"' in found
    assert 'id="run-2"' not in found
    assert "Begun by" in client.get("/runs/1").text
    assert client.post("/name", data={"name": ""}).status_code == 303
    client.post("/runs/1/marks", data={"text": "again"})
    assert client.get("/api/runs/1/marks").json()[0]["author"] == ""


def test_a_program_says_its_name_with_each_request(client: TestClient) -> None:
    client.post("/first", headers={"X-Studio-User": "J%C3%BCrgen"})
    assert client.get("/api/runs").json()[0]["author"] == "Jürgen"
    assert author() == ""  # what one request was for is not for others


def test_the_client_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.headers.get("X-Studio-User"))
            body = json.dumps([]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.delenv("JITDNN_STUDIO_USER", raising=False)
    Client(address, "t").datasets()
    Client(address, "t", user="Zoë").datasets()
    monkeypatch.setenv("JITDNN_STUDIO_USER", "Ann")
    Client(address, "t").datasets()
    Client(address, "t", user="").datasets()
    server.shutdown()
    server.server_close()
    assert told == [None, "Zo%C3%AB", "Ann", None]


def test_names_are_one_short_line() -> None:
    assert named(" a\tb\x00c\u202e ") == "a b c"
    assert len(named("x" * 500)) == 40
    with working_for("A"), working_for("B"):
        assert author() == "B"
    assert author() == ""
