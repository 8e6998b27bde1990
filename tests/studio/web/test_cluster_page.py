"""The setting for other machines: kept, refused with a reason, and never in the way of a start."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app


def test_the_address_is_kept_and_nonsense_refused(tmp_path: Path) -> None:
    with TestClient(make_app(tmp_path, serve_queue=False), follow_redirects=False) as client:
        assert client.get("/api/cluster").json()["command"] == ""
        assert client.post("/cluster", data={"host": " node.example "}).status_code == 303
        found = client.get("/api/cluster").json()
        assert (found["host"], found["gateway_port"]) == ("node.example", 8787)
        assert "tls://node.example:8786" in client.get("/settings").text
        for wrong in ({"host": "a b"}, {"host": "x", "gateway_port": 8786}, {"host": "x", "gateway_port": 0}):
            assert client.put("/api/cluster", json=wrong).status_code == 422, wrong
        assert client.get("/api/cluster").json() == found
        client.post("/cluster", data={"host": ""})
        assert client.get("/api/cluster").json()["host"] == ""


def test_a_port_that_is_taken_does_not_keep_the_studio_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("distributed", reason="the extra jitdnn[cluster] is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Store(tmp_path) as store:
            store.set_setting("cluster", {"host": "127.0.0.1", "gateway_port": taken.getsockname()[1]})
        with (
            caplog.at_level(logging.WARNING, "jitdnn"),
            TestClient(make_app(tmp_path, serve_queue=False)) as client,
        ):
            assert client.get("/api/cluster").json()["host"] == "127.0.0.1"
    assert "other machines cannot be used" in caplog.text
