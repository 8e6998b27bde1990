"""Many images asked of a net: some at a time, so that little is in memory, others are answered meanwhile, and a page
can show how far it is."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import HTTPException, Request, UploadFile

from jitdnn.errors import JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.look import classify as look
from jitdnn.studio.store import Row
from jitdnn.studio.web import trained_runs, words
from jitdnn.studio.web.context import Studio
from jitdnn.studio.web.image_lists import content_of, is_list, read_list

#: files and bytes that one call in the inspector takes: a few seconds' work
AT_ONCE, BYTES_AT_ONCE = 200, 64 << 20
#: jobs whose answers are kept, the newest
KEPT: Final = 20
Files = list[tuple[str, Path]]


@dataclass
class Job:
    """The answers so far; `error` says why it ended before its end."""

    run: int
    weights: str
    total: int
    answers: list[Row] = field(default_factory=list)
    error: str = ""
    is_over: bool = False
    task: asyncio.Task[None] | None = None
    #: where images of lists lie that name no whole paths
    folder: str = ""

    @property
    def right(self) -> tuple[int, int] | None:
        """Of the images whose class a list says: how many are right, and how many there are; None without any."""
        said = [each["is_right"] for each in self.answers if "is_right" in each]
        return (sum(said), len(said)) if said else None


async def keep(studio: Studio, uploads: list[UploadFile]) -> Files:
    """Write what was sent to files of the studio's home; `work` removes them."""
    folder = studio.home / "uploads"
    folder.mkdir(exist_ok=True)
    kept: Files = []
    for upload in uploads:
        path = folder / f"many-{secrets.token_hex(8)}"
        kept.append((upload.filename or "image", path))
        try:
            with open(path, "xb") as file:
                while piece := await upload.read(1 << 20):
                    await asyncio.to_thread(file.write, piece)
        except BaseException:
            _remove(kept)
            raise
    return kept


async def begin(
    studio: Studio, number: int, weights: str, uploads: list[UploadFile], folder: str = ""
) -> tuple[Job, Files]:
    """A job for what was sent; `folder` is where images of lists lie. Raises InvalidArgument for a damaged zip file or
    list, and 413 for too many images."""
    _, chosen = trained_runs.with_weights(studio, number, weights)
    files = await keep(studio, uploads)
    try:
        total = await asyncio.to_thread(_count, files)
        if total > look.MOST_FILES:
            most = words.commas(look.MOST_FILES)
            said = texts.text(
                "%(images)s: at most %(most)s at a time.", images=words.plural(total, "image"), most=most
            )
            raise HTTPException(413, said)
    except BaseException:
        _remove(files)
        raise
    return Job(number, chosen.name, total, folder=folder.strip()), files


async def work(studio: Studio, job: Job, files: Files) -> None:
    """Answer all files, and remove them; what is wrong with one of them is its answer, what ends the job is its
    error."""
    try:
        found, chosen = trained_runs.with_weights(studio, job.run, job.weights)
        with closing(_given(studio, files, job.folder)) as given:
            while some := await asyncio.to_thread(_some, given):
                plain = [(each.name, each.content) for each in some]
                answers = await studio.inspector.inspect(
                    look.classify_files, studio.home, found.run, found.dataset, plain, chosen.name
                )
                for each, answer in zip(some, answers, strict=True):
                    _judge(answer, each.wanted)
                job.answers += answers
    except (JitdnnError, HTTPException) as error:
        job.error = str(getattr(error, "detail", error))
    except Exception:
        job.error = texts.text("Something is wrong in the studio itself; what its server printed says what.")
        raise
    finally:
        job.is_over = True
        _remove(files)


def jobs(request: Request) -> OrderedDict[str, Job]:
    """The jobs of this server, by their names."""
    state = request.app.state
    if not hasattr(state, "answering"):
        state.answering = OrderedDict()
    found: OrderedDict[str, Job] = state.answering
    return found


def start(request: Request, studio: Studio, job: Job, files: Files) -> str:
    """Have a job done while its page is looked at; its name."""
    held, name = jobs(request), secrets.token_urlsafe(9)
    while len(held) >= KEPT:
        _, old = held.popitem(last=False)
        if old.task is not None:
            old.task.cancel()
    job.task = asyncio.create_task(work(studio, job, files))
    held[name] = job
    return name


def job_of(request: Request, number: int, name: str) -> Job:
    """The job of a run by its name; 404."""
    found = jobs(request).get(name)
    if found is None or found.run != number:
        raise HTTPException(404, texts.text("These answers are gone: ask again."))
    return found


class _Image(NamedTuple):
    """An image to ask about: its file's content, or (text) why it cannot be had, and the class that a list says."""

    name: str
    content: bytes | str
    wanted: str = ""


def _judge(answer: Row, wanted: str) -> None:
    """Note the class that a list says, by name or number, and whether the answer is that."""
    if not wanted:
        return
    answer["wanted"] = wanted
    if answer.get("top"):
        first = answer["top"][0]
        answer["is_right"] = wanted in (first["name"], str(first["class"]))


def _count(files: Files) -> int:
    total = 0
    for name, path in files:
        with open(path, "rb") as file:
            total += len(read_list(name, file)) if is_list(name) else look.count_files(name, file)
    return total


def _given(studio: Studio, files: Files, folder: str) -> Generator[_Image, None, None]:
    for name, path in files:
        with open(path, "rb") as file:
            if is_list(name):
                for listed in read_list(name, file):
                    yield _Image(listed.name, content_of(studio.store, listed, folder), listed.wanted)
            else:
                yield from (_Image(*each) for each in look.files_in(name, file))


def _some(given: Iterator[_Image]) -> list[_Image]:
    found, size = list[_Image](), 0
    for each in islice(given, AT_ONCE):
        found.append(each)
        size += len(each.content)
        if size > BYTES_AT_ONCE:
            break
    return found


def _remove(files: Files) -> None:
    for _, path in files:
        path.unlink(missing_ok=True)
