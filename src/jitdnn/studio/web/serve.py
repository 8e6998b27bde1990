"""The studio as a server: its home, its secret, its address, and the loop until it is interrupted."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import uvicorn

from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.files import write_secret
from jitdnn.studio.addresses import is_loopback
from jitdnn.studio.store import Store
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.guard import Guard

Say = Callable[[str], object]


def serve(home: Path, host: str, port: int, slots: int | None, browse: bool | None, say: Say) -> None:
    """Serve the studio of `home` until SIGINT or SIGTERM; runs that are training go on and are taken up again later.

    `slots` is the number of trainings at a time on the processor from now on, None: as it was. `say` gets the lines
    for the user. `browse` opens a browser; None: where there is a screen to show it on.
    Raises StoreError for a home that cannot be used or is served already, InvalidArgument for an address that cannot
    be listened at.
    """
    home = home.expanduser().resolve()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"the studio's home {home} cannot be made: {error.strerror}") from error
    with _only_server(home) as note, listening(host, port) as listener:
        port = listener.getsockname()[1]
        token = token_of(home)
        if slots is not None:
            Store(home).set_setting("cpu_slots", slots)
        guard = Guard(make_app(home), token, names(host, port), f"studio_{port}")
        address = address_of(host, port)
        note.write(address)
        note.flush()
        say(f"jitdnn studio: {address}/?token={token}")
        if not is_loopback(host):
            say(
                f"Others can reach it at {_bracketed(host)}, without encryption: anybody who sees the traffic has the "
                "token."
            )
            say(
                f"Safer: leave --host out, and on the other machine run `ssh -L {port}:127.0.0.1:{port} THIS-MACHINE`."
            )
        if browse if browse is not None else _has_screen() and is_loopback(host):
            # the address of a browser's command line can be read by everybody on the machine: it opens once
            webbrowser.open(f"{address}/?token={guard.ticket()}")
        answer(guard, listener)


def answer(guard: Guard, listener: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        guard, log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=1, ws="none",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def address_of(host: str, port: int) -> str:
    """The address at which this machine's own browser finds a server that listens at `host`."""
    return f"http://{'127.0.0.1' if is_every(host) else _bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def token_of(home: Path) -> str:
    """The secret of a home: 192 bits, made at the first start, in a file that its owner alone reads."""
    path = home / "token"
    try:
        found = path.read_text().strip() if path.exists() else ""
        if len(found) < 32:
            found = secrets.token_urlsafe(24)
            write_secret(path, found.encode())
        elif path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the studio's token {path} cannot be read or written: {error}") from error
    return found


def names(host: str, port: int) -> set[str]:
    """The values of Host, with port, under which a server at `host` answers."""
    known = {"127.0.0.1", "localhost", "[::1]"}
    if not is_loopback(host):
        known |= {socket.gethostname(), socket.getfqdn()}
    if not is_every(host):
        known.add(_bracketed(host))
    return {f"{name.lower()}:{port}" for name in known} | (
        {name.lower() for name in known} if port == 80 else set()
    )


@contextmanager
def _only_server(home: Path) -> Iterator[IO[str]]:
    """The file `server` of a home, locked: it holds the address, for clients of the same user."""
    with open(os.open(home / "server", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{home} is served already, at {file.read().strip() or 'an address not known yet'}: "
                "open that, or give another folder by --home"
            ) from None
        file.truncate()
        yield file
        file.seek(0)
        file.truncate()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family[0], socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgument(f"--host {host} is no address of this machine: {error.strerror}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(family[4])
            listener.listen(256)  # whoever asks before the server is up waits for it
        except OSError as error:
            raise InvalidArgument(
                f"--port {port} at {host} cannot be listened at: {error.strerror}; give another port, or 0 for any"
            ) from error
        yield listener


def is_every(host: str) -> bool:
    """Whether a server at `host` listens at all addresses of the machine."""
    return host in ("0.0.0.0", "::")


def _has_screen() -> bool:
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
