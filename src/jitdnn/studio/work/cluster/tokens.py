"""The token of one start of a run: it opens what concerns that run, and nothing once another start has begun."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from jitdnn.files import write_secret

FILE = "worker-secret"


def token_for(home: Path, run: int, lease: int) -> str:
    """256 bits from the secret of the home, which is made at the first use."""
    path = home / FILE
    if not path.exists():
        write_secret(path, secrets.token_bytes(32))
    return hmac.new(path.read_bytes(), f"{run}:{lease}".encode(), hashlib.sha256).hexdigest()


def is_token(home: Path, run: int, lease: int, given: str) -> bool:
    """Whether that is the token of this start, in a time that says nothing about it."""
    return hmac.compare_digest(token_for(home, run, lease).encode(), given.encode())
