"""How much scratch memory a plan may use: as much as is fastest, none, or up to a limit in bytes."""

from __future__ import annotations

from jitdnn.settings import format_bytes

FASTEST: None = None
"""No limit: the fastest algorithm, whatever it needs."""
NO_WORKSPACE = 0


def describe(limit: int | None) -> str:
    """The policy that a limit in bytes stands for, in words."""
    if limit is FASTEST:
        return "any workspace"
    return "no workspace" if limit == NO_WORKSPACE else f"at most {format_bytes(limit)} of workspace"


def refuse(needed: int, limit: int | None) -> str | None:
    """Why an algorithm that needs `needed` bytes must not run under `limit`, or None."""
    if limit is FASTEST or needed <= limit:
        return None
    needs = f"needs {format_bytes(needed)} of workspace"
    if limit == NO_WORKSPACE:
        return f"{needs}, and none is allowed: set workspace_limit to at least {needed}"
    return (
        f"{needs}, {format_bytes(needed - limit)} above the limit of {format_bytes(limit)}: "
        f"set workspace_limit to at least {needed}"
    )
