"""Disks that are full, closed, somebody else's or not there: calls go on, and one line says what was lost.

And two versions of the library, or two kinds of processors, with one folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import jitdnn
from disks import environment
from jitdnn.rtcg import compile as compile_module
from jitdnn.rtcg.isa import NAMES, isa

WORK = """
import logging, os, secrets, sqlite3, sys, tempfile
import numpy as np
import jitdnn as jd
from jitdnn.planner.store import Store

def work(factor, size):
    x = np.arange(-50, 50, dtype=np.float32).reshape(1, 1, size, -1)
    formula = f"x: {factor} * x + 1"
    for shift in range(4):  # code of its own for each: more than the smallest disk holds
        np.testing.assert_array_equal(jd.elementwise(f"x: {factor} * x + {shift + 2}")(x), factor * x + shift + 2)
    for _ in range(2):
        np.testing.assert_array_equal(jd.elementwise(formula)(x), factor * x + 1)
        with jd.settings(choice="find"):
            np.testing.assert_array_equal(jd.conv(x, np.ones((1, 1, 1, 1), np.float32)), x)

with jd.settings(cache=False):
    work(2, 20)  # whoever becomes another user may not be able to import anything more
sys.modules["jitdnn.settings"]._process_default = None
{become}
work(3, 10)
assert Store.default().rows(), "times are kept in memory at least"
print("fine")
"""
NOBODY = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
AS_ROOT = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can become another user, or mount a disk"
)


def work(become: str = "", **variables: str | None) -> str:
    """Compute in a fresh process; what it said on stderr. None unsets a variable."""
    given = environment(JITDNN_LOG="warning")
    for name, value in variables.items():
        given.pop(name, None)
        if value is not None:
            given[name] = value
    script = WORK.replace("{become}", become)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300, env=given
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    return done.stderr


@pytest.fixture
def open_path(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users can reach."""
    closed = [path for path in (tmp_path, *tmp_path.parents) if not path.stat().st_mode & 0o001]
    modes = [path.stat().st_mode for path in closed]
    for path in closed:
        path.chmod(0o755)
    yield tmp_path
    for path, mode in zip(closed, modes, strict=True):
        path.chmod(mode)


@AS_ROOT
def test_full_disk(tmp_path: Path) -> None:
    """A disk of its own that has room for nothing, or for a part of what is to be written."""
    for size in ("8k", "20k", "40k"):
        disk = tmp_path / size
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
        try:
            said = work(JITDNN_CACHE_DIR=str(disk / "cache"))
            assert said.count("code cache") == (1 if size == "8k" else said.count("code cache")) <= 1, said
            assert said.count("tuning store") == 1, said
            assert not list(disk.rglob("*.tmp")), "half an entry takes the room of a whole one"
            assert not list(disk.rglob("*.damaged-*"))
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of files are POSIX's")
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """What needs no disk of its own: writes that stop half-way, as on a full one."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))"
    said = work(limit, JITDNN_CACHE_DIR=str(tmp_path / "cache"))
    assert said.count("code cache") == 1
    assert said.count("tuning store") == 1
    assert not list(tmp_path.rglob("*.tmp"))


@AS_ROOT
@pytest.mark.parametrize(
    "what", ["home", "read-only home", "home of another", "closed home", "no home", "no user"]
)
def test_homes(open_path: Path, what: str) -> None:
    home, become = open_path / "home", NOBODY
    home.mkdir()
    if what == "home":
        os.chown(home, 65534, 65534)
    elif what == "read-only home":
        os.chown(home, 65534, 65534)
        home.chmod(0o555)
    elif what == "closed home":
        home.chmod(0o700)
    elif what == "no user":
        become = NOBODY.replace("65534", "64999")  # whom no list of users knows
    unset = what in ("no home", "no user")
    (open_path / "tmp").mkdir()
    (open_path / "tmp").chmod(0o1777)
    said = work(
        become, JITDNN_CACHE_DIR=None, XDG_CACHE_HOME=None, HOME=None if unset else str(home),
        TMPDIR=str(open_path / "tmp"),
    )  # fmt: skip
    if what == "home":
        assert not said
        assert list((home / ".cache" / "jitdnn" / "code").glob("*.bin"))
    elif what == "no user":
        assert not said
        assert list((open_path / "tmp" / "jitdnn-64999" / "code").glob("*.bin"))
    else:
        assert said.count("code cache") == 1, said
        assert said.count("tuning store") == 1, said
        assert "JITDNN_CACHE_DIR" in said


@AS_ROOT
def test_a_cache_of_another_user(open_path: Path) -> None:
    """Root fills a cache, whole and with hashes that fit, and opens it to all: nobody runs it; and the other way."""
    cache = open_path / "cache"
    work(JITDNN_CACHE_DIR=str(cache))
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = {path: path.read_bytes() for path in cache.rglob("*.bin")}
    said = work(NOBODY, JITDNN_CACHE_DIR=str(cache))
    assert said.count("belongs to user 0") == 2, said
    assert {path: path.read_bytes() for path in cache.rglob("*.bin")} == before
    for path in (cache, *cache.rglob("*")):
        os.chown(path, 65534, 65534)
    assert work(JITDNN_CACHE_DIR=str(cache)).count("belongs to user 65534") == 2
    assert {path: path.read_bytes() for path in cache.rglob("*.bin")} == before
    assert not work(NOBODY, JITDNN_CACHE_DIR=str(cache)), "and its owner uses it as ever"


@pytest.mark.parametrize("what", ["file", "below a file", "link to nowhere"])
def test_a_cache_folder_that_is_none(tmp_path: Path, what: str) -> None:
    place = tmp_path / "cache"
    place.symlink_to(tmp_path / "nowhere" / "deep") if what == "link to nowhere" else place.write_text(
        "a file"
    )
    said = work(JITDNN_CACHE_DIR=str(place / "deep" if what == "below a file" else place))
    assert said.count("code cache") == said.count("tuning store") == 1, said


def test_paths_that_are_none() -> None:
    for path in ("a\0b", "~nobody-of-that-name/cache"):
        with (
            pytest.raises(jitdnn.InvalidArgument, match="must be the path of a folder"),
            jitdnn.settings(cache_dir=path),
        ):
            pass


# ---- who shares code with whom


def fingerprint(source: Path) -> str:
    script = "from jitdnn.rtcg.compile import generator_fingerprint; print(generator_fingerprint())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**environment(), "PYTHONPATH": str(source)},
    )  # fmt: skip
    return done.stdout


def test_versions_side_by_side_never_exchange_code(tmp_path: Path) -> None:
    """A changed line in whatever generators read is another key; the same sources elsewhere are the same."""
    package = tmp_path / "other" / "jitdnn"
    shutil.copytree(
        Path(jitdnn.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "caffe", "bench")
    )
    own = fingerprint(Path(jitdnn.__file__).parent.parent)
    assert fingerprint(package.parent) == own
    for name in (
        "__init__.py",
        "tensor/descriptor.py",
        "problems/convolution.py",
        "kernels/cpu/microkernel/epilogue_store.py",
        "rtcg/isa.py",
    ):
        path = package / name
        before = path.read_text()
        path.write_text(before + "\n# another version\n")
        assert fingerprint(package.parent) != own, name
        path.write_text(before)
    for name in ("kernels/cuda/table.py", "kernels/gpu/reduction/generator.py", "devices/cuda_compile.py"):
        path = package / name
        path.write_text(path.read_text() + "\n# another version\n")
    assert fingerprint(package.parent) == own, "what is for GPUs alone does not count"
    # files of one name that change places
    one, other = (
        package / "kernels" / "cpu" / "table.py",
        package / "kernels" / "cpu" / "microkernel" / "epilogue_store.py",
    )
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)
    assert fingerprint_of_files(package) != fingerprint_of_files(Path(jitdnn.__file__).parent)


def fingerprint_of_files(package: Path) -> str:
    """The same of a package that need not work."""
    real = compile_module.__file__
    try:
        compile_module.__file__ = str(package / "rtcg" / "compile.py")
        return compile_module.generator_fingerprint.__wrapped__()
    finally:
        compile_module.__file__ = real


def test_without_sources_nobody_shares(tmp_path: Path) -> None:
    (tmp_path / "rtcg").mkdir()
    assert fingerprint_of_files(tmp_path) != fingerprint_of_files(tmp_path)


def test_processors_that_share_a_home_never_exchange_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another processor, another feature, another width, another LLVM: another key."""
    here = isa()
    others = [
        here,
        replace(here, cpu="another"),
        replace(here, features=here.features + ",-avx2"),
        replace(here, triple="aarch64-unknown-linux-gnu"),
        replace(here, vector_bytes=8),
        replace(here, registers=3),
        replace(here, has_dot=not here.has_dot),
        replace(here, has_fma=not here.has_fma),
    ]
    keys = {compile_module.key_of("kernel", (1, 2), one) for one in others}
    assert len(keys) == len(others)
    named = {isa(name) for name in NAMES}
    assert len({compile_module.key_of("kernel", (1, 2), one) for one in named}) == len(named)
    monkeypatch.setattr(compile_module.llvm, "llvm_version_info", (1, 2, 3))
    assert compile_module.key_of("kernel", (1, 2), here) not in keys
    monkeypatch.undo()
    monkeypatch.setattr(compile_module.llvmlite, "__version__", "0.0")
    assert compile_module.key_of("kernel", (1, 2), here) not in keys
