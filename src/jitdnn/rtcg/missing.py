"""Kernels that are built only as far as their code is compiled already.

with gathering() as missing:
    kernel = algorithm.build(problem, device)
if not missing:
    ...                      # all of its code was in a cache: it can be run
for each in missing:
    each.compile()           # in any thread; then it can be built again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Missing:
    """Code that no cache has, by its name and its key in the cache.

    `is_generic`: in the C of all targets, with sizes as arguments, so that other problems need the same. `compile` puts
    it into the cache; it may raise CompileError. `length`: of its text, in characters, by which the longest are begun
    first: of kernels of one library the longer ones take a compiler longer.
    """

    name: str
    key: str
    is_generic: bool
    compile: Callable[[], object]
    length: int = 0


_gathered: ContextVar[list[Missing] | None] = ContextVar("jitdnn_missing", default=None)


@contextmanager
def gathering() -> Iterator[list[Missing]]:
    """Note in the list what would be compiled in this `with` block, and compile nothing.

    If there is any, kernels that were built meanwhile cannot be called. Targets whose compilers cannot be asked ahead
    compile as always.
    """
    found: list[Missing] = []
    token = _gathered.set(found)
    try:
        yield found
    finally:
        _gathered.reset(token)


def gathered() -> list[Missing] | None:
    """Where code is to be noted in place of being compiled; None: it is to be compiled."""
    return _gathered.get()
