"""What ran, which algorithm, why: lines on the standard logger `jitdnn`.

The setting `log` (JITDNN_LOG) decides what is emitted: `warning` a fallback, once each; `info` also each
choice of an algorithm; `debug` also each run. A problem is always printed as its problem string, so that a
line of the log can be pasted into `jitdnn plan` or `jitdnn bench`.
"""

from __future__ import annotations

import logging

from jitdnn.locks import lock
from jitdnn.retention import Recent
from jitdnn.settings import current

logger = logging.getLogger("jitdnn")
_LEVELS = {
    "off": logging.CRITICAL + 1,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_lock = lock()
# a program with ever new problems is told again of the first ones after so many others
_told: Recent[object, bool] = Recent(4096)


def is_enabled(level: int) -> bool:
    """Tell whether the current settings let messages of `level` (a constant of `logging`) through."""
    return level >= _LEVELS[current().log]


def _emit(level: int, message: str, *values: object) -> None:
    with _lock:
        # the logger's own threshold would hide info and debug messages that JITDNN_LOG asks for
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.DEBUG)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("jitdnn: %(message)s"))
            logger.addHandler(handler)
    logger.log(level, message, *values)


def ran(problem: object, algorithm: str, seconds: float | None = None) -> None:
    """Log at debug level that `problem` ran with `algorithm`, with its time where that was measured."""
    if is_enabled(logging.DEBUG):
        if seconds is None:
            _emit(logging.DEBUG, "ran %s with %s", problem, algorithm)
        else:
            _emit(logging.DEBUG, "ran %s with %s in %.3f ms", problem, algorithm, 1e3 * seconds)


def chose(problem: object, plan: object) -> None:
    """Log at info level the plan that was chosen for `problem` (`plan` prints as a line)."""
    if is_enabled(logging.INFO):
        _emit(logging.INFO, "chose %s for %s", plan, problem)


def tell(message: str) -> None:
    """Log at warning level what was asked for where there is nobody else to tell it to."""
    if is_enabled(logging.WARNING):
        _emit(logging.WARNING, "%s", message)


def fallback_once(key: object, message: str) -> None:
    """Log `message` at warning level, the first time in this process that `key` (anything hashable) comes by.

    For every place where the library does something slower or other than what was asked: say it, with its
    cost.
    """
    if not is_enabled(logging.WARNING):
        return
    with _lock:
        if _told.recall(key):
            return
        _told.put(key, True)
    _emit(logging.WARNING, "%s", message)
