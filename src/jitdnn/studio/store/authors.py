"""Who makes what: a name that goes with rows, a mark among people who share a studio and no protection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LONGEST: Final = 40
_author: ContextVar[str] = ContextVar("author", default="")


def author() -> str:
    """For whom this thread or task works; "" for nobody who said a name."""
    return _author.get()


@contextmanager
def working_for(name: str) -> Iterator[None]:
    """A block, with the threads and tasks that it starts, whose rows are marked with this name."""
    token = _author.set(named(name))
    try:
        yield
    finally:
        _author.reset(token)


def named(text: str) -> str:
    """A name as it is kept: one line of at most 40 characters."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(plain.split())[:LONGEST].strip()
