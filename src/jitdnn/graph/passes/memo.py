"""What passes make of constants, made once for all plans of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.graph.originals import Originals, arrays_in


class Memo:
    """Results by what they were made of, which is kept alive so that its identity tells it.

    `originals` are told of arrays among them.
    """

    def __init__(self, originals: Originals | None = None) -> None:
        self._originals = originals
        self._made: dict[Any, tuple[Any, Any]] = {}

    def get(self, name: str, arrays: Sequence[Any], make: Callable[[], Any], *more: Any) -> Any:
        """What `make` gives for these very arrays and whatever `more` there is to tell it by."""
        key = (name, *map(id, arrays), *more)
        found = self._made.get(key)
        if found is None:
            made = make()
            found = self._made[key] = (tuple(arrays), made)
            if self._originals is not None:
                self._originals.add(arrays_in(made), lambda: list(arrays_in(make())))
        return found[1]
