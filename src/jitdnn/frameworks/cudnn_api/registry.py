"""The table of cuDNN's functions: those that work, and those that are refused by name with the reason."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.cudnn_api.enums import cudnnStatus_t
from jitdnn.frameworks.cudnn_api.status import CudnnError, failure, translated

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A function of cuDNN: `reason` says why it is refused (None: it works), `about` what it does in a line."""

    name: str
    function: Callable[..., Any]
    about: str
    reason: str | None = None


_thread = threading.local()

#: every function by its name
FUNCTIONS: dict[str, Entry] = {}


def api(function: Function) -> Function:
    """Note a function in the table, and have it raise statuses of cuDNN."""
    name = function.__name__

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except CudnnError as error:
            _thread.message = str(error)
            raise
        except JitdnnError as error:
            status = translated(error, name)
            _thread.message = str(status)
            raise status from error

    about = " ".join((function.__doc__ or "").split("\n\n")[0].split())
    FUNCTIONS[name] = Entry(name, called, about)
    return called  # type: ignore[return-value]


def last_message() -> str:
    """What the last failure in this thread said."""
    return str(getattr(_thread, "message", ""))


def refuse(reason: str, *names: str) -> None:
    """Note functions that are not there: each raises `CUDNN_STATUS_NOT_SUPPORTED` with the reason, whatever it is
    given."""
    for name in names:
        FUNCTIONS[name] = Entry(name, _refusing(name, reason), "", reason)


def _refusing(name: str, reason: str) -> Callable[..., Any]:
    def refused(*arguments: Any, **named: Any) -> Any:
        raise failure(cudnnStatus_t.CUDNN_STATUS_NOT_SUPPORTED, name, reason)

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"Not there: {reason}."
    return refused
