"""Code and times in a file: what goes in comes out elsewhere, and nothing else does."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitdnn as jd
from fake_compiler import Compiled, Gpu, gpu_target
from jitdnn.cli.app import main
from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.planner import code_file
from jitdnn.planner.code_file import export_code, merge_code
from jitdnn.planner.store import Measurement, Store
from jitdnn.rtcg.cache import CodeCache, Origin
from planner_fakes import PROBLEM

HERE = Origin("fake", "arch1", "compiler 1")
KEYS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(4)]


def row(problem: str = "p", device: str = "fake GPU") -> Measurement:
    from jitdnn import __version__

    return Measurement(problem, "", device, __version__, "best", 1, 1e-3, 0, 1e9)


@pytest.fixture
def machine() -> Any:
    """A machine with the GPU of the tests."""
    with gpu_target(Gpu()):
        yield


@pytest.fixture
def exported(tmp_path: Path, machine: None) -> Path:
    """Four modules, and a time."""
    with jd.settings(cache_dir=tmp_path / "from"):
        for n, key in enumerate(KEYS):
            CodeCache.default().put(key, bytes([n]) * 1000, HERE)
        CodeCache.default().put("f" * 64, b"of no origin")
        Store.default().add([row()])
        done = export_code(tmp_path / "file")
    assert (done.modules, done.times) == (4, 1)
    assert done.digest == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    return tmp_path / "file"


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    """The cache of the machine that the file comes to."""
    with jd.settings(cache_dir=tmp_path / "to"):
        yield CodeCache.default()


def test_everything_comes_out_elsewhere(exported: Path, cache: CodeCache) -> None:
    merged = merge_code(exported)
    assert (merged.taken, merged.known, merged.times, merged.left_out) == (4, 0, 1, ())
    assert merged.digest == hashlib.sha256(exported.read_bytes()).hexdigest()
    assert [cache.get(key) for key in KEYS] == [bytes([n]) * 1000 for n in range(4)]
    assert cache.get("f" * 64) is None
    assert Store.default().rows() == [row()]
    again = merge_code(exported)
    assert (again.taken, again.known) == (0, 4)
    assert stat.S_IMODE(exported.stat().st_mode) == 0o644


def test_only_what_a_run_took(exported: Path, tmp_path: Path, cache: CodeCache) -> None:
    with jd.settings(cache_dir=tmp_path / "from"):
        Store.default().add([row("another")])
        done = export_code(tmp_path / "some", [KEYS[0], "e" * 64], [("another", "", "fake GPU")])
    assert (done.modules, done.times) == (1, 1)
    assert merge_code(tmp_path / "some").taken == 1
    assert cache.keys() == KEYS[:1]
    assert [each.problem for each in Store.default().rows()] == ["another"]


def test_code_that_is_here_stays(exported: Path, cache: CodeCache) -> None:
    cache.put(KEYS[0], b"mine", HERE)
    assert merge_code(exported).known == 1
    assert cache.get(KEYS[0]) == b"mine"


@pytest.mark.parametrize(
    ("origin", "kind", "words"),
    [
        (
            Origin("fake", "arch2", "compiler 1"),
            "architecture",
            "'fake code for arch2 by compiler 1', and here is arch1",
        ),
        (Origin("fake", "arch1", "compiler 2"), "compiler", "compiler 2', and here is compiler 1"),
        (Origin("fake", "\x1b[2J", "compiler 1"), "architecture", r"\x1b[2J by"),
        (Origin("nowhere", "arch1", "compiler 1"), "target", "there is no target 'nowhere' here"),
    ],
)
def test_what_this_machine_does_not_run_is_left_out(
    exported: Path, tmp_path: Path, cache: CodeCache, origin: Origin, kind: str, words: str
) -> None:
    with jd.settings(cache_dir=tmp_path / "from"):
        CodeCache.default().put(KEYS[0], b"foreign", origin)
        CodeCache.default().put(KEYS[1], b"foreign, too", origin)
        export_code(exported)
    merged = merge_code(exported)
    (left,) = merged.left_out
    assert (merged.taken, left.modules, left.kind, left.origin) == (2, 2, kind, origin)
    assert words in str(left)
    assert cache.keys() == sorted(KEYS[2:])


def header_of(content: bytes) -> tuple[Any, int]:
    """The header, and where it ends."""
    size = int.from_bytes(content[40:48], "little")
    return json.loads(content[48 : 48 + size]), 48 + size


def with_header(content: bytes, change: Callable[[Any], object]) -> bytes:
    """The same file with another header, under a hash that fits."""
    header, end = header_of(content)
    change(header)
    text = json.dumps(header).encode()
    return (
        content[:8] + hashlib.sha256(text).digest() + len(text).to_bytes(8, "little") + text + content[end:]
    )


def test_damaged_entries_are_left_out(exported: Path, cache: CodeCache) -> None:
    content = bytearray(exported.read_bytes())
    header, end = header_of(content)
    size = header["entries"][0][1]
    content[end + size - 1] ^= 1  # of the content of the first one
    content[end + size + 60] ^= 1  # of the origin of the second one
    exported.write_bytes(content[:-1])  # and of the last one a byte is missing
    merged = merge_code(exported)
    (left,) = merged.left_out
    assert (merged.taken, left.kind, left.modules) == (1, "damaged", 3)
    assert len(cache.keys()) == 1


def test_entries_under_other_keys_are_damaged(exported: Path, cache: CodeCache) -> None:
    def exchange(header: Any) -> None:
        first, second, *_ = header["entries"]
        first[0], second[0] = second[0], first[0]

    exported.write_bytes(with_header(exported.read_bytes(), exchange))
    assert [left.modules for left in merge_code(exported).left_out] == [2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header["entries"].append(["../../.bashrc", 5]), "is no key"),
        (lambda header: header["entries"].append(["/etc/passwd".rjust(64, "0"), 5]), "is no key"),
        (lambda header: header["entries"].append(["0" * 64, -1]), "a module of '-1' bytes"),
        (lambda header: header["entries"].append(["0" * 64, 1 << 60]), "at most"),
        (lambda header: header["entries"].append(["0" * 64, "5"]), "a module of"),
        (lambda header: header["entries"].append(7), "its header is none"),
        (lambda header: header.pop("times"), "its header is none"),
        (lambda header: header["times"].append({"problem": 5}), "its header is none"),
        (lambda header: header["times"][0].update(seconds=-1.0), "is no measurement"),
    ],
)
def test_headers_that_lie_are_refused_whole(
    exported: Path, cache: CodeCache, change: Callable[[Any], object], words: str
) -> None:
    exported.write_bytes(with_header(exported.read_bytes(), change))
    with pytest.raises(StoreError, match=words):
        merge_code(exported)
    assert cache.keys() == []
    assert Store.default().rows() == []


def test_no_damage_is_taken_in(exported: Path, cache: CodeCache) -> None:
    """Whatever is changed in a file, what is taken in is what went in."""
    content, generator = exported.read_bytes(), random.Random(1)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        exported.write_bytes(damaged[: generator.choice([len(damaged), generator.randrange(len(damaged))])])
        try:
            merge_code(exported)
        except StoreError:
            continue
    for key in sorted(cache.keys()):
        assert cache.get(key) == bytes([KEYS.index(key)]) * 1000


def test_files_that_are_none(tmp_path: Path, cache: CodeCache, machine: None) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    for path, words in (
        (other, "no file of compiled code"),
        (tmp_path, "no ordinary file"),
        (tmp_path / "no", "cannot be"),
    ):
        with pytest.raises(StoreError, match=words):
            merge_code(path)
    other.write_bytes(b"jdcode\x00\x01" + bytes(32) + (1 << 62).to_bytes(8, "little"))
    with pytest.raises(StoreError, match="at most"):
        merge_code(other)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StoreError, match="no ordinary file"):
            merge_code(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here")
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o777])
def test_a_file_that_others_may_write_is_refused(exported: Path, cache: CodeCache, mode: int) -> None:
    exported.chmod(mode)
    with pytest.raises(StoreError, match="others than its owner may write to it"):
        merge_code(exported)
    assert cache.keys() == []


def test_a_cache_that_takes_nothing_is_told(
    exported: Path, cache: CodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeCache, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(StoreError, match="does not take code"):
        merge_code(exported)


def test_without_a_disk_cache(tmp_path: Path) -> None:
    with jd.settings(cache=False):
        with pytest.raises(InvalidArgument, match="the setting cache is off"):
            export_code(tmp_path / "file")
        with pytest.raises(InvalidArgument, match="the setting cache is off"):
            merge_code(tmp_path / "file")


def test_a_file_that_cannot_be_written(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        export_code(tmp_path / "no such folder" / "file")


def test_limits(exported: Path, cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_file.limits, "CODE_ENTRIES", 3)
    with pytest.raises(StoreError, match="4 modules, and at most 3"):
        merge_code(exported)


class TestCommand:
    """Each command is a process of its own: nothing is in memory, and the processor's facts are found anew."""

    PROBLEMS = ("matmul m3 k4 n5 f32", "softmax_fwd shape3x7 axis1 f32")

    def jitdnn(self, folder: Path, *arguments: str, code: int = 0) -> str:
        environment = {**os.environ, "JITDNN_CACHE_DIR": str(folder)}
        done = subprocess.run(
            [sys.executable, "-m", "jitdnn", *arguments], env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.replace("\n", " ") if not code else done.stderr + done.stdout

    def test_round_trip(self, tmp_path: Path) -> None:
        file = tmp_path / "code"
        self.jitdnn(tmp_path / "from", "warm", self.PROBLEMS[1])
        told = self.jitdnn(
            tmp_path / "from", "warm", self.PROBLEMS[0], "--workers", "2", "--export", str(file)
        )
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"sha256 {digest}" in told.replace(" ", "").replace("sha256", "sha256 ")
        told = self.jitdnn(tmp_path / "to", "warm", "--merge", str(file), self.PROBLEMS[0])
        assert "taken in" in told
        assert "1 from the cache" in told
        # what that run did not take is not in the file
        assert "1 compiled" in self.jitdnn(tmp_path / "to", "warm", self.PROBLEMS[1])
        self.jitdnn(tmp_path / "from", "warm", "--export", str(file))
        assert "1 from the cache" in self.jitdnn(
            tmp_path / "all", "warm", "--merge", str(file), self.PROBLEMS[1]
        )

    def test_nothing_to_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["warm"])
        assert caught.value.code == 1
        assert "nothing to warm" in capsys.readouterr().err

    def test_a_file_of_which_nothing_can_be_used(
        self, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with jd.settings(cache_dir=tmp_path / "from"):
            for key in KEYS:
                CodeCache.default().put(key, b"foreign", HERE._replace(architecture="arch7"))
            export_code(exported)
        with jd.settings(cache_dir=tmp_path / "to"), pytest.raises(SystemExit) as caught:
            main(["warm", "--merge", str(exported)])
        assert caught.value.code == 1
        assert "4 modules left out: 'fake code for arch7" in capsys.readouterr().out.replace("\n", " ")


def test_a_plan_on_another_machine_finds_its_code(tmp_path: Path) -> None:
    gpu, best = Gpu(), Compiled("best", modules=("a", "b"))
    with gpu_target(gpu, best):
        with jd.settings(cache_dir=tmp_path / "from"):
            jd.Handle(gpu).plan(PROBLEM)
            assert export_code(tmp_path / "file").modules == 2
        with jd.settings(cache_dir=tmp_path / "to"):
            assert merge_code(tmp_path / "file").taken == 2
            best.compilations.clear()
            jd.Handle(gpu).plan(PROBLEM)
            assert best.compilations == []
