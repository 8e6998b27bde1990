"""What a refused or failed request answers: a page for people, a part for htmx, JSON for programs."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jitdnn.errors import JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.web.context import is_part, page

TITLES = {
    404: texts.mark("Not here"),
    405: texts.mark("Not in that way"),
    409: texts.mark("Not now"),
    413: texts.mark("Too large"),
    422: texts.mark("That does not fit"),
    504: texts.mark("That took too long"),
    507: texts.mark("Not enough memory"),
}


UNKNOWN: Final = texts.mark("That did not work")


class Refusal(BaseModel):
    """Why a request was refused: a sentence, a sentence with the line of the net, or what is wrong with each field."""

    detail: str | dict[str, str | int | None] | list[dict[str, Any]]


#: what every operation of the API may answer instead, for the contract
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": Refusal, "description": "There is no such thing."},
    409: {"model": Refusal, "description": "It cannot be done in the state in which things are."},
    422: {"model": Refusal, "description": "What was sent does not fit; the answer says what and why."},
    504: {"model": Refusal, "description": "It took too long."},
    507: {"model": Refusal, "description": "It needs more memory or room on the disk than there is."},
}


def install(app: FastAPI) -> None:
    """Have `app` answer refusals of its handlers, of validation, and of the library."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValidationError, _invalid)  # of a form's fields, put into the model of its twin
    app.add_exception_handler(JitdnnError, _library)
    app.add_exception_handler(Exception, _broken)


def say(request: Request, status: int, message: str, line: int | None = None) -> Response:
    """One refusal in the form that the request wants."""
    if request.url.path.startswith("/api/"):
        detail: object = {"message": message, "line": line} if line else message
        return JSONResponse({"detail": detail}, status)
    template = "note.html" if is_part(request) else "error.html"
    return page(request, template, status=status, message=message, line=line,
                title=texts.said(TITLES.get(status, UNKNOWN)))  # fmt: skip


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail: Any = error.detail  # a text, or {"message", "line"}
    line = detail.get("line") if isinstance(detail, dict) else None
    message = str(detail["message"]) if isinstance(detail, dict) else str(detail)
    if error.status_code == 404 and message == "Not Found":
        message = texts.text("There is no such page.")
    answer = say(request, error.status_code, message, line)
    answer.headers.update(error.headers or {})
    return answer


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    if request.url.path.startswith("/api/"):
        told = [{"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()]
        return JSONResponse({"detail": told}, 422)
    return say(request, 422, "; ".join(sentence(e["loc"], e["msg"]) for e in error.errors()))


def sentence(where: tuple[int | str, ...], message: str) -> str:
    """`batch: input should be greater than 0`, from where pydantic found what."""
    name = str(where[-1]) if where else ""
    return f"{name}: {message[:1].lower()}{message[1:]}"


async def _library(request: Request, error: Exception) -> Response:
    line = getattr(error, "line", None)
    return say(request, getattr(error, "status", 422), str(error), line if isinstance(line, int) else None)


async def _broken(request: Request, error: Exception) -> Response:
    return say(
        request,
        500,
        texts.text("Something is wrong in the studio itself; what its server printed says what."),
    )
