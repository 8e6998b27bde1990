"""The door: which requests reach the application, and what the others are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
httpx = pytest.importorskip("httpx2")

from jitdnn.studio.web import guard as guards  # noqa: E402
from jitdnn.studio.web.guard import Guard  # noqa: E402

TOKEN, PORT = "t" * 32, 8642
BASE = f"http://127.0.0.1:{PORT}"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
COOKIE = {"Cookie": f"studio_{PORT}={TOKEN}"}


class Inside:
    """An application that notes what reached it, reads the whole body, and says how long it was."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        length, more = 0, True
        while more:
            message = await receive()
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(length).encode()})


class Asking:
    """Requests through a Guard, as if they came over a socket at 127.0.0.1."""

    def __init__(self, **options: Any) -> None:
        self.inside = Inside()
        self.guard = Guard(
            self.inside, TOKEN, {f"127.0.0.1:{PORT}", f"localhost:{PORT}"}, f"studio_{PORT}", **options
        )

    def __call__(
        self, method: str, path: str, headers: Any = None, content: Any = None, server: str = "127.0.0.1"
    ) -> Any:
        async def ask() -> Any:
            async def app(scope: Any, receive: Any, send: Any) -> None:
                await self.guard({**scope, "server": (server, PORT)}, receive, send)

            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.request(method, path, headers=headers, content=content)

        return asyncio.run(ask())


@pytest.fixture
def ask() -> Asking:
    return Asking()


def test_without_a_token_nothing_is_reached(ask: Asking) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": f"studio_{PORT}=wrong"},
        {"Cookie": "a;;=="},
    ):
        assert ask("GET", "/", headers).status_code == 401
        assert ask("POST", "/api/runs", headers).status_code == 401
    assert not ask.inside.paths


def test_token_as_header_or_cookie_lets_in(ask: Asking) -> None:
    assert ask("GET", "/a", BEARER).status_code == 200
    assert ask("GET", "/b", COOKIE).status_code == 200
    assert ask("POST", "/c", {"Authorization": f"bearer {TOKEN}"}).status_code == 200
    assert ask.inside.paths == ["/a", "/b", "/c"]


def test_token_in_the_address_becomes_a_cookie_and_leaves_the_address(ask: Asking) -> None:
    answer = ask("GET", f"/runs/3?token={TOKEN}&x=1%26")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/3?x=1%26"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not ask.inside.paths
    # nowhere but to this server, and only with the right one
    assert ask("GET", f"/%2Fevil.example/?token={TOKEN}").headers["location"] == "/evil.example/"
    assert ask("GET", f"/%5C%5Cevil.example?token={TOKEN}").headers["location"] == "/evil.example"
    assert ask("GET", f"/a%0D%0ASet-Cookie:x?token={TOKEN}").headers["location"] == "/a%0D%0ASet-Cookie%3Ax"
    assert ask("GET", "/?token=wrong").status_code == 401
    assert ask("POST", f"/?token={TOKEN}").status_code == 401


def test_ticket_opens_once(ask: Asking) -> None:
    ticket = ask.guard.ticket()
    answer = ask("GET", f"/?token={ticket}")
    assert answer.status_code == 303
    assert TOKEN in answer.headers["set-cookie"]
    assert ask("GET", f"/?token={ticket}").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:8642, evil.example",
        "",
        "127.0.0.1.:8642",
    ],
)
def test_other_names_are_refused_though_the_token_is_right(ask: Asking, host: str) -> None:
    assert ask("GET", "/", BEARER | {"Host": host}).status_code == 421
    assert not ask.inside.paths


def test_addresses_are_names_where_the_connection_came_in_on_them(ask: Asking) -> None:
    assert ask("GET", "/", BEARER | {"Host": "10.1.2.3:8642"}, server="10.1.2.3").status_code == 200
    assert ask("GET", "/", BEARER | {"Host": "10.1.2.4:8642"}, server="10.1.2.3").status_code == 421
    assert ask("GET", "/", BEARER | {"Host": "LOCALHOST:8642"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": BASE}, 403),
        ({"Origin": BASE}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "https://127.0.0.1:8642"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
    ],
)
def test_only_our_pages_may_change_anything_by_the_cookie(
    ask: Asking, headers: dict[str, str], status: int
) -> None:
    for method in ("POST", "PATCH", "DELETE", "PUT"):
        assert ask(method, "/api/runs/1", COOKIE | headers).status_code == status
    assert ask("GET", "/", COOKIE | headers).status_code == 200
    assert (
        ask("DELETE", "/api/runs/1", BEARER | headers).status_code == 200
    )  # a program, which sends the token itself


def test_oversize_is_refused_by_its_length_and_while_it_is_read(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LARGEST_BODY", 1000)
    monkeypatch.setattr(guards, "LARGEST_UPLOAD", 5000)
    multipart = BEARER | {"Content-Type": "multipart/form-data; boundary=x"}
    assert ask("POST", "/", BEARER, b"x" * 1000).text == "1000"
    assert ask("POST", "/", BEARER, b"x" * 1001).status_code == 413
    assert ask("POST", "/", multipart, b"x" * 5000).text == "5000"
    assert ask("POST", "/", multipart, b"x" * 5001).status_code == 413

    async def endless() -> AsyncIterator[bytes]:  # without a length, or with one that lies
        for _ in range(100):
            yield b"x" * 500

    assert ask("POST", "/", BEARER, endless()).status_code == 413
    assert ask("POST", "/", BEARER | {"Content-Length": "10"}, endless()).status_code == 413
    assert ask("POST", "/", BEARER | {"Content-Length": "-1"}, b"").status_code == 400


def test_every_answer_forbids_what_is_inline_or_from_elsewhere(ask: Asking) -> None:
    for answer in (
        ask("GET", "/", BEARER),
        ask("GET", "/"),
        ask("GET", "/", BEARER | {"Host": "evil.example"}),
    ):
        policy = dict(
            part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_websockets_are_closed_before_they_open(ask: Asking) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody asks")

    asyncio.run(ask.guard({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]
