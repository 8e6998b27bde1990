"""Buckets of object stores as folders: `s3://BUCKET/FOLDER`, `gs://...`, `az://...`, by the package obstore.

Keys, region and endpoint are those of the environment of the server, as the stores' own programs read them
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_SKIP_SIGNATURE for public buckets, ...): an address names a bucket and nothing
that is secret.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Final

from jitdnn.errors import InvalidArgument, needed
from jitdnn.limits import shortened
from jitdnn.studio.data.containers import MEMBER_BYTES, MOST_FOLDER_FILES, Container, is_hidden

SCHEMES: Final = ("s3", "gs", "az")
#: a request is tried again so often, all in all within so many seconds
_TRIES, _SECONDS = 3, 60
_ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(?P<folder>.*))?"
)


def is_address(text: str) -> bool:
    """Whether a text is meant as the address of something elsewhere, and not as a path."""
    return re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def checked(text: str) -> str:
    """The address of a folder in a bucket, as it is kept. Raises InvalidArgument for others."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or found["scheme"] not in SCHEMES or len(text) > 2048:
        raise InvalidArgument(
            f"{shortened(text)} is no address that is read: "
            f"{', '.join(f'{scheme}://BUCKET/FOLDER' for scheme in SCHEMES)} are; "
            "what lies elsewhere has to be fetched first"
        )
    parts = [part for part in (found["folder"] or "").split("/") if part]
    if any(part in (".", "..") or not part.isprintable() or set(part) & set("?#\\") for part in parts):
        raise InvalidArgument(f"{shortened(text)} names no folder of a bucket")
    if parts and PurePosixPath(parts[-1]).suffix.lower() in (".zip", ".csv", ".tsv", ".npz"):
        raise InvalidArgument(
            f"{parts[-1]} is one file: name the folder of the bucket that the images or the table lie in, or fetch the "
            "file, and drop it here"
        )
    return "/".join([f"{found['scheme']}://{found['bucket']}", *parts])


class Bucket(Container):
    """The objects below a folder of a bucket. Nothing is kept: each is fetched when it is read."""

    def __init__(self, address: str) -> None:
        """Raises InvalidArgument for what is no address, NotSupported without obstore."""
        self.address = checked(address)
        self.path = PurePosixPath(self.address.partition("://")[2])
        self._opened: Any = None
        self._store()

    def names(self) -> list[str]:
        found: list[str] = []
        try:
            for page in _obstore().list(self._store(), chunk_size=1000):
                names = (str(meta["path"]) for meta in page)
                found += [name for name in names if not any(map(is_hidden, name.split("/")))]
                if len(found) > MOST_FOLDER_FILES:
                    raise InvalidArgument(
                        f"{self.address} has more than {MOST_FOLDER_FILES:,} files: at most so many are taken"
                    )
        except (_obstore().exceptions.BaseError, OSError) as error:
            raise InvalidArgument(f"{self.address} cannot be listed: {_said(error)}") from None
        if not found:
            raise InvalidArgument(
                f"{self.address} holds nothing: look at its name, and at what the keys may read"
            )
        return sorted(found)

    def read(self, name: str) -> bytes:
        content = bytearray()
        try:
            for piece in _obstore().get(self._store(), name):
                content += piece
                if len(content) > MEMBER_BYTES:
                    raise InvalidArgument(f"{name} has more than {MEMBER_BYTES:,} bytes")
        except (_obstore().exceptions.BaseError, OSError) as error:
            raise InvalidArgument(f"{name} cannot be fetched: {_said(error)}") from None
        return bytes(content)

    def _store(self) -> Any:
        """The connection, one for each process."""
        if self._opened is None:
            seconds = timedelta(seconds=_SECONDS)
            options: dict[str, Any] = {"connect_timeout": timedelta(seconds=10), "timeout": seconds}
            # an endpoint of one's own without TLS
            if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
                options["allow_http"] = True
            try:
                self._opened = _obstore().store.from_url(
                    self.address,
                    client_options=options,
                    retry_config={"max_retries": _TRIES, "retry_timeout": seconds},
                )
            except (_obstore().exceptions.BaseError, OSError, ValueError) as error:
                raise InvalidArgument(f"{self.address} cannot be opened: {_said(error)}") from None
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "path": self.path, "_opened": None}


def _obstore() -> Any:
    with needed(
        "buckets are read by the package obstore: pip install 'jitdnn[s3]', or fetch the files into a folder of "
        "the machine that runs the studio"
    ):
        import obstore
    return obstore


def _said(error: Exception) -> str:
    """What went wrong, in a line; the rest is of interest to who writes obstore."""
    text = " ".join(str(error).split("\n\nDebug source")[0].split())
    return text[:300]
