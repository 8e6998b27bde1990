"""The name that a browser or a program gives itself goes with what it makes.

A browser keeps it in a cookie, a program sends the header X-Studio-User; both percent-encoded, since names have any
letters.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jitdnn.studio.store.authors import named, working_for

COOKIE, HEADER = "studio-user", "x-studio-user"
_YEAR: Final = 31_536_000


class Authors:
    """ASGI around an application: requests are worked at for who sends them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = ""
        if scope["type"] == "http":
            request = Request(scope)
            name = request.headers.get(HEADER) or request.cookies.get(COOKIE, "")
        with working_for(unquote(name)):
            await self.app(scope, receive, send)


def remember(answer: Response, name: str) -> None:
    """Have the browser send this name from now on; none if it is empty."""
    if kept := named(name):
        answer.set_cookie(COOKIE, quote(kept), max_age=_YEAR, samesite="strict", httponly=True)
    else:
        answer.delete_cookie(COOKIE, samesite="strict", httponly=True)
