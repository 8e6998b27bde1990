"""What other packages add to the studio, by entry points.

    [project.entry-points."jitdnn.studio.executors"]
    mine = "my_package.executors:make"

| group | what it names |
| --- | --- |
| `jitdnn.studio.data` | a function (path, options) -> Listing, or None for what it does not know: data/sources.py |
| `jitdnn.studio.views` | an APIRouter of FastAPI: pages, and their REST twins |
| `jitdnn.studio.nets` | a folder of nets for the gallery, as a path, or a function that returns one |
| `jitdnn.studio.executors` | a function `make(store) -> Executor` |

A package that fails to load is left out, with a warning in the log: it must not take the studio down.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from jitdnn import log
from jitdnn.errors import InvalidArgument

GROUPS: Final = ("data", "views", "nets", "executors")


def load(group: str) -> dict[str, Any]:
    """What is installed for a group, by name; in the order of the names."""
    if group not in GROUPS:
        raise InvalidArgument(f"{group!r} is no group of the studio's plug-ins: {', '.join(GROUPS)}")
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=f"jitdnn.studio.{group}"), key=lambda point: point.name):
        try:
            found[point.name] = point.load()
        except Exception as error:  # whatever it raises is its own
            log.tell(f"the plug-in {_named(point)} is left out: {type(error).__name__}: {error}")
    return found


def _named(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name}"
    return f"{point.name}{package} ({point.value})"
