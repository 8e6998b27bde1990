"""The command `jitdnn studio`: its home, its secret, its address, and what it says when something is in the way."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")

from jitdnn.errors import InvalidArgument, NotSupported, StoreError
from jitdnn.studio.client import Client
from jitdnn.studio.web import serve as serving
from jitdnn.studio.web.serve import names, serve, token_of


def test_token_is_made_once_and_its_owner_alone_reads_it(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert len(token) >= 32
    assert token_of(tmp_path) == token
    path = tmp_path / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert token_of(tmp_path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short")  # what is left of a damaged one
    assert len(token_of(tmp_path)) >= 32
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(StoreError, match="token"):
        token_of(tmp_path)


def test_names_are_those_of_this_machine_only() -> None:
    assert names("127.0.0.1", 8642) == {"127.0.0.1:8642", "localhost:8642", "[::1]:8642"}
    assert f"{socket.gethostname().lower()}:8642" in names("0.0.0.0", 8642)
    assert "0.0.0.0:8642" not in names("0.0.0.0", 8642)
    assert "[fe80::1]:80" in names("fe80::1", 80)
    assert "[fe80::1]" in names("fe80::1", 80)


def test_what_is_in_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.uvicorn.Server, "run", lambda self, sockets: pytest.fail("it serves"))
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidArgument, match="give another port"):
            serve(tmp_path / "home", "127.0.0.1", taken.getsockname()[1], None, False, said.append)
    with pytest.raises(InvalidArgument, match="--host"):
        serve(tmp_path / "home", "no.such.host.invalid", 0, None, False, said.append)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        serve(tmp_path / "file" / "home", "127.0.0.1", 0, None, False, said.append)
    with serving._only_server(tmp_path / "home"), pytest.raises(StoreError, match="is served already"):
        serve(tmp_path / "home", "127.0.0.1", 0, None, False, said.append)
    assert said == []


def test_other_addresses_are_warned_of_and_no_browser_opens_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.uvicorn.Server, "run", lambda self, sockets: None)
    opened: list[str] = []
    monkeypatch.setattr(serving.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    said: list[str] = []
    serve(tmp_path, "0.0.0.0", 0, 2, None, said.append)
    assert "without encryption" in said[1]
    assert opened == []
    serve(tmp_path, "127.0.0.1", 0, None, None, said.append)
    (address,) = opened
    token = (tmp_path / "token").read_text()
    assert token not in address  # others can read command lines
    assert token in said[-1]
    assert serving.Store(tmp_path).setting("cpu_slots") == 2


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.cli.studio import run_studio

    for name in [name for name in sys.modules if name.startswith("jitdnn.studio.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(NotSupported, match=r'pip install "jitdnn\[studio\]"'):
        run_studio(None, "127.0.0.1", 0, False, None)


def test_server_in_a_process_answers_and_ends_by_a_signal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jitdnn", "studio", "--home", str(tmp_path), "--port", "0", "--no-open"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[-1]
        base = address.split("/?")[0]
        assert (tmp_path / "server").read_text() == base
        request = urllib.request.Request(base, headers={"Authorization": f"Bearer {token_of(tmp_path)}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "Train my first net" in answer.read().decode()
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "server" not in answer.headers
        assert Client(home=tmp_path).runs() == []
        process.terminate()
        assert process.wait(20) in (0, -15)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_address_of_a_server_that_was_killed_gets_no_token(tmp_path: Path) -> None:
    """Somebody else may listen there by now."""
    with serving._only_server(tmp_path) as note:
        note.write("http://127.0.0.1:8642")
        note.flush()
        assert Client(home=tmp_path, token="t" * 32).address == "http://127.0.0.1:8642"
    (tmp_path / "server").write_text("http://127.0.0.1:8642")  # as a SIGKILL leaves it: the lock is gone
    with pytest.raises(InvalidArgument, match="start `jitdnn studio`"):
        Client(home=tmp_path, token="t" * 32)
