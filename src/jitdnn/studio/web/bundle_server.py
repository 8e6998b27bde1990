"""`jitdnn serve BUNDLE`: a trained net that answers over HTTP, with a small page and a report of how long it takes.

    POST /predict     an image as the body, or files of a form; the answer as JSON
    GET  /about       what the net is for: task, classes, shape of its images
    GET  /latency     milliseconds of the last thousand answers
    GET  /            a page to try it

The same guard stands before it as before the studio.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, File, HTTPException, Query, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from jitdnn import __version__
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.export.predictor import Predictor
from jitdnn.studio.web.context import STATIC, make_templates
from jitdnn.studio.web.guard import Guard
from jitdnn.studio.web.serve import address_of, answer, listening, names
from jitdnn.studio.web.trained_runs import read_image

Say = Callable[[str], object]
#: files of one form
MOST_FILES: Final = 100
Top = Annotated[int, Query(ge=1, le=1000, description="classes in an answer")]


def make_app(predictor: Predictor) -> FastAPI:
    """The application around one net; wrap it in a `Guard` before it listens anywhere."""
    app = FastAPI(
        title=f"{predictor.facts['name']}: answers", version=__version__, docs_url=None, redoc_url=None,
        openapi_url="/openapi.json",
    )  # fmt: skip
    app.mount("/static", StaticFiles(directory=STATIC))
    templates = make_templates()

    @app.exception_handler(JitdnnError)
    async def refused(request: Request, error: JitdnnError) -> Response:
        if request.headers.get("hx-request") == "true":
            return templates.TemplateResponse(
                request, "serve_answer.html", {"error": str(error)}, status_code=422
            )
        return JSONResponse({"detail": str(error)}, 422)

    @app.get("/", include_in_schema=False)
    def page(request: Request) -> Response:
        values = {"facts": predictor.facts, "latency": predictor.latency(), "answer": None}
        return templates.TemplateResponse(request, "serve.html", values)

    @app.post("/", include_in_schema=False)
    async def answer_page(request: Request, file: Annotated[UploadFile, File()]) -> Response:
        answer = await run_in_threadpool(predictor.predict, await read_image(file), 5, True)
        values = {"facts": predictor.facts, "latency": predictor.latency(), "answer": answer}
        is_part = request.headers.get("hx-request") == "true"
        return templates.TemplateResponse(request, "serve_answer.html" if is_part else "serve.html", values)

    @app.get("/about")
    def about() -> dict[str, Any]:
        """What the net is for."""
        shown = ("name", "task", "classes", "shape", "mode", "weights", "made", "made_by")
        return {name: predictor.facts.get(name) for name in shown}

    @app.get("/latency")
    def latency() -> dict[str, Any]:
        """How many answers there were, and milliseconds: decode, prepare, net, whole."""
        return predictor.latency()

    @app.post("/predict")
    async def predict(request: Request, top: Top = 5, pictures: bool = False) -> Any:
        """The answer to an image that is the body; to files of a form a list, with `error` for what is no image."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            content = await request.body()
            if not content:
                raise HTTPException(422, texts.text("Send an image as the body, or files in a form."))
            return await run_in_threadpool(predictor.predict, content, top, pictures)
        answers = []
        async with request.form(max_files=MOST_FILES, max_fields=10) as form:
            files = [value for _, value in form.multi_items() if not isinstance(value, str)]
            if not files:
                raise HTTPException(422, texts.text("The form has no file."))
            for file in files:
                try:
                    found = await run_in_threadpool(predictor.predict, await read_image(file), top, pictures)
                except InvalidArgument as error:
                    found = {"error": str(error)}
                answers.append({"name": file.filename or ""} | found)
        return answers

    return app


def serve_bundle(path: Path, host: str, port: int, token: str, say: Say) -> None:
    """Serve a bundle until SIGINT or SIGTERM; `token` "" makes one for this time.

    Raises InvalidArgument for what is no bundle, for one whose answers to its own samples are wrong here, for a token
    of fewer than 16 characters, and for an address that cannot be listened at.
    """
    if token and (len(token) < 16 or not token.isascii() or not token.isprintable()):
        raise InvalidArgument("the token has fewer than 16 characters, or others than printable ASCII")
    token = token or secrets.token_urlsafe(24)
    predictor = Predictor(path)
    try:
        if (checked := predictor.check()) is not None:
            distance, allowed = checked
            if not distance <= allowed:
                raise InvalidArgument(
                    f"the answers to the samples of {path} differ by {distance:.3g} from those in it, {allowed:.3g} is "
                    "allowed: it is not served"
                )
            say(f"Checked: answers to its samples differ by up to {distance:.2g}, {allowed:.2g} is allowed.")
        with listening(host, port) as listener:
            port = listener.getsockname()[1]
            guard = Guard(make_app(predictor), token, names(host, port), f"jitdnn_serve_{port}")
            address = address_of(host, port)
            say(f"{predictor.facts['name']}: {address}/?token={token}")
            say(f"  curl -H 'Authorization: Bearer {token}' --data-binary @IMAGE {address}/predict")
            answer(guard, listener)
    finally:
        predictor.close()
