"""What a piece of work compiles, takes from the code cache and looks up among measured times.

with noting() as use:
    ...
len(use.compiled), use.keys, use.looked_up
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

LookUp = tuple[str, str, str]
"""Problem, epilogue and device, as the tuning store has them."""


@dataclass(eq=False)
class Use:
    """Notes of one piece of work, and of those threads that work for it with its context.

    `compiled` has an entry for each module that was compiled, none for code that was in a cache; `keys` name all of
    the code in the cache.
    """

    compiled: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    looked_up: set[LookUp] = field(default_factory=set)
    whole: Use | None = None


_uses: ContextVar[Use | None] = ContextVar("jitdnn_use", default=None)


@contextmanager
def noting() -> Iterator[Use]:
    """Note what is used in a `with` block of this thread or task; blocks around it note it too."""
    use = Use(whole=_uses.get())
    token = _uses.set(use)
    try:
        yield use
    finally:
        _uses.reset(token)


def _noting() -> Iterator[Use]:
    use = _uses.get()
    while use is not None:
        yield use
        use = use.whole


def note_compiled(name: str) -> None:
    """Whoever compiles a module, of whatever target, says so."""
    for use in _noting():
        use.compiled.append(name)


def note_key(key: str) -> None:
    """Code of this key in the cache was read or written."""
    for use in _noting():
        use.keys.add(key)


def note_look_up(problem: str, epilogue: str, device: str) -> None:
    """Measured times of a problem were asked for."""
    for use in _noting():
        use.looked_up.add((problem, epilogue, device))
