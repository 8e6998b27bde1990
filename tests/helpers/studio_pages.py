"""The studio's application in the process of a test."""

from __future__ import annotations

from typing import Any

from jitdnn.studio.store import Store


class Here:
    """In place of the inspector's processes, which take seconds to start: this one. `asked` are the functions."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def inspect(self, function: Any, *arguments: Any, **_: Any) -> Any:
        self.asked.append(function)
        return function(*arguments)

    def close(self) -> None:
        pass


def store_of(client: Any) -> Store:
    """The store of the application that a TestClient asks."""
    found: Store = client.app.state.studio.store
    return found
