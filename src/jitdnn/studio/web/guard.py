"""Who may speak to the server: host names, the token, where a request comes from, how large it is.

ASGI around the application, so that nothing inside of it is reached by a request that is not let in.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jitdnn.studio import texts

#: bytes of an uploaded file, and of every other request
LARGEST_UPLOAD, LARGEST_BODY = 2 << 30, 16 << 20
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    # nothing inline and nothing from elsewhere: a name or a file's content can never become a script
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=()",
}


class TooLarge(Exception):
    """More bytes came than a request may have, whatever its headers said."""


class Guard:
    """Lets in what names one of `hosts` (with port), carries the token, and was sent by one of our own pages.

    A page of another site that has had its name pointed at 127.0.0.1 (DNS rebinding) sends its own name as Host and
    gets 421. An address as Host is accepted where the connection came in on that very address: rebinding needs names.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], cookie: str) -> None:
        self.app, self.token, self.cookie = app, token, cookie
        self.hosts = frozenset(host.lower() for host in hosts)
        self._tickets: set[str] = set()

    def ticket(self) -> str:
        """A value that opens the studio once in place of the token."""
        made = secrets.token_urlsafe(24)
        self._tickets.add(made)
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # the studio speaks no WebSocket: refused before it is accepted
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        async def answer(status: int, text: str, *extra: tuple[bytes, bytes]) -> None:
            plain = (b"content-type", b"text/plain; charset=utf-8")
            await guarded({"type": "http.response.start", "status": status, "headers": [plain, *extra]})
            await guarded({"type": "http.response.body", "body": text.encode()})

        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not self._is_our_name(headers.get("host", ""), scope):
            return await answer(421, texts.text("This server does not answer under that name."))
        if given and scope["method"] == "GET" and (self._same(given[-1]) or self._is_ticket(given[-1])):
            return await answer(303, "", *self._to_cookie(scope["path"], query))
        bearer = headers.get("authorization", "")
        bearer = bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""
        by_header = self._same(bearer)
        if not by_header and not self._same(self._kept(headers.get("cookie", ""))):
            return await answer(
                401,
                texts.text("Open the address that the studio printed when it started: it carries the token."),
            )
        if scope["method"] not in SAFE and not by_header and not self._is_ours(headers):
            return await answer(403, texts.text("That request came from another site."))
        most = LARGEST_UPLOAD if headers.get("content-type", "").startswith("multipart/") else LARGEST_BODY
        said = headers.get("content-length", "0")
        if not said.isdecimal():
            return await answer(
                400, texts.text("Content-Length %(value)s is no number of bytes.", value=repr(said[:40]))
            )
        if int(said) > most:
            return await answer(413, _too_large(most))
        body = _Counted(receive, most)

        async def passed(message: Message) -> None:
            if begun or not body.is_over:  # what the application makes of half a body is no answer
                await guarded(message)

        try:
            await self.app(scope, body, passed)
        except Exception:
            if begun or not body.is_over:
                raise
        if begun or not body.is_over:
            return None
        return await answer(413, _too_large(most), (b"connection", b"close"))

    def _to_cookie(self, path: str, query: list[tuple[str, str]]) -> tuple[tuple[bytes, bytes], ...]:
        """The token leaves the address for a cookie that no script reads and no other site sends."""
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        # one slash at the beginning: `//host/` would lead to another site
        target = "/" + quote(path.lstrip("/\\")) + (f"?{rest}" if rest else "")
        cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
        return (
            (b"location", target.encode()),
            (b"set-cookie", cookie.encode()),
            (b"cache-control", b"no-store"),
        )

    def _kept(self, text: str) -> str:
        try:
            found = SimpleCookie(text).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _is_ticket(self, text: str) -> bool:
        if text in self._tickets:
            self._tickets.remove(text)
            return True
        return False

    def _same(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    def _is_our_name(self, host: str, scope: Scope) -> bool:
        if host.lower() in self.hosts:
            return True
        name, _, port = host.rpartition(":")
        server = scope.get("server") or ("", 0)
        try:
            return ipaddress.ip_address(name.strip("[]")) == ipaddress.ip_address(server[0]) and port == str(
                server[1]
            )
        except ValueError:
            return False

    def _is_ours(self, headers: dict[str, str]) -> bool:
        """Whether the browser says that one of our own pages sent it; one of the two headers must say so."""
        if "sec-fetch-site" in headers:
            return headers["sec-fetch-site"] == "same-origin"
        return headers.get("origin", "") == f"http://{headers.get('host', '')}"


def _headers(scope: Scope) -> dict[str, str]:
    """By name; of a name that came twice the values are joined, so that no second Host is overlooked."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


class _Counted:
    """The parts of a body until they are more than `most` bytes; TooLarge then."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._left = receive, most

    @property
    def is_over(self) -> bool:
        return self._left < 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self.is_over:
            raise TooLarge
        return message


def _too_large(most: int) -> str:
    limit = f"{most >> 30} GiB" if most >= 1 << 30 else f"{most >> 20} MiB"
    return texts.text(
        "That is more than %(limit)s: give the path of a folder on the server instead.", limit=limit
    )
