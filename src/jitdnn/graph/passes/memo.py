"""What passes make of constants, made once for all plans of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Memo:
    """Results by what they were made of, which is kept alive so that its identity tells it."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Any, Any]] = {}

    def get(self, name: str, arrays: Sequence[Any], make: Callable[[], Any], *more: Any) -> Any:
        """What `make` gives for these very arrays and whatever `more` there is to tell it by."""
        key = (name, *map(id, arrays), *more)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (tuple(arrays), make())
        return found[1]
