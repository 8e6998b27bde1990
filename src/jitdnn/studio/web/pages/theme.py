"""Light or dark, kept in a cookie; the script does the same without a round trip."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from jitdnn.studio.web.context import Route

router = APIRouter(route_class=Route)


@router.post("/theme", include_in_schema=False)
def set_theme(
    request: Request, theme: Annotated[str, Form()] = "", back: Annotated[str, Form()] = "/"
) -> Response:
    """Set or (with anything but light and dark) forget the choice, and go back to the page."""
    parts = urlsplit(back)
    here = "/" + parts.path.lstrip("/\\") + (f"?{parts.query}" if parts.query else "")
    answer = RedirectResponse(here, 303)
    if theme in ("light", "dark"):
        answer.set_cookie("theme", theme, max_age=31_536_000, samesite="strict")
    else:
        answer.delete_cookie("theme", samesite="strict")
    return answer
