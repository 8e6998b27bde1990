"""The code cache: exact bytes or nothing, whatever happens to the disk and to other processes."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import jitdnn
from disks import environment, run_without_write_permission
from jitdnn import log
from jitdnn.errors import InvalidArgument
from jitdnn.rtcg import cache as cache_module
from jitdnn.rtcg.cache import CodeCache

LIMIT = 1 << 20


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "deep" / "code", LIMIT)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: dict[object, str] = {}
    monkeypatch.setattr(log, "fallback_once", messages.setdefault)
    return messages.values()  # type: ignore[return-value]


def only_file(cache: CodeCache) -> Path:
    assert cache.directory is not None
    (path,) = cache.directory.iterdir()
    return path


class TestOneProcess:
    def test_nothing_is_there_at_first(self, cache: CodeCache) -> None:
        assert cache.get(key_of(1)) is None
        assert cache.stats().entries == 0

    @pytest.mark.parametrize("content", [b"", b"\x00", b"code" * 10_000])
    def test_put_and_get(self, cache: CodeCache, content: bytes) -> None:
        cache.put(key_of(1), content)
        assert cache.get(key_of(1)) == content
        assert cache.get(key_of(2)) is None

    def test_another_object_finds_it(self, cache: CodeCache) -> None:
        cache.put(key_of(1), b"code")
        assert CodeCache(cache.directory, LIMIT).get(key_of(1)) == b"code"

    def test_later_content_replaces_the_earlier(self, cache: CodeCache) -> None:
        cache.put(key_of(1), b"a")
        cache.put(key_of(1), b"b")
        assert cache.get(key_of(1)) == b"b"
        assert cache.stats().entries == 1

    def test_only_this_user_may_write_there(self, cache: CodeCache) -> None:
        mask = os.umask(0o002)  # as systems with a group for every user have it
        try:
            cache.put(key_of(1), b"code")
        finally:
            os.umask(mask)
        assert cache.directory is not None
        assert cache.directory.stat().st_mode & 0o077 == 0
        assert only_file(cache).stat().st_mode & 0o077 == 0
        assert cache.get(key_of(1)) == b"code"

    @pytest.mark.parametrize(
        "key", ["", "abc", "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 63 + "\n", "a" * 65]
    )
    def test_keys_are_hex_digests(self, cache: CodeCache, key: str) -> None:
        with pytest.raises(InvalidArgument, match="64 lower-case hex digits"):
            cache.get(key)
        with pytest.raises(InvalidArgument, match="64 lower-case hex digits"):
            cache.put(key, b"code")

    def test_stats_and_clear(self, cache: CodeCache) -> None:
        for name in range(5):
            cache.put(key_of(name), b"x" * 100)
        assert cache.directory is not None
        stranger = cache.directory / "notes.txt"
        stranger.write_text("not ours")
        stats = cache.stats()
        assert (stats.path, stats.entries, stats.limit) == (cache.directory, 5, LIMIT)
        assert 500 < stats.bytes < 1000
        cache.clear()
        assert cache.stats().entries == 0
        assert cache.get(key_of(0)) is None
        assert list(cache.directory.iterdir()) == [stranger]


class TestDamage:
    @pytest.mark.parametrize("length", [0, 1, 7, 8, 39, 40, 42, 49, 50, 51, 1049])
    def test_truncated_entries_are_deleted(self, cache: CodeCache, warnings: list[str], length: int) -> None:
        cache.put(key_of(1), b"x" * 1000)
        path = only_file(cache)
        assert path.stat().st_size == 1050
        os.truncate(path, length)
        assert cache.get(key_of(1)) is None
        assert not path.exists()
        assert "damaged" in next(iter(warnings))
        cache.put(key_of(1), b"again")
        assert cache.get(key_of(1)) == b"again"

    @hypothesis_settings(max_examples=60, deadline=None)
    @given(st.integers(0, 147), st.integers(1, 255))
    def test_any_changed_byte_is_noticed(self, place: int, change: int) -> None:
        with tempfile.TemporaryDirectory() as folder, jitdnn.settings(log="off"):
            cache = CodeCache(Path(folder), LIMIT)
            cache.put(key_of(1), bytes(range(100)))
            path = only_file(cache)
            entry = bytearray(path.read_bytes())
            entry[place] ^= change
            path.write_bytes(entry)
            assert cache.get(key_of(1)) is None
            assert not path.exists()

    def test_longer_entries_are_noticed(self, cache: CodeCache, warnings: list[str]) -> None:
        cache.put(key_of(1), b"code")
        with only_file(cache).open("ab") as file:
            file.write(b"!")
        assert cache.get(key_of(1)) is None

    def test_an_entry_under_another_name_is_noticed(self, cache: CodeCache, warnings: list[str]) -> None:
        cache.put(key_of(1), b"code")
        path = only_file(cache)
        path.rename(path.with_name(f"{key_of(2)}.bin"))
        assert cache.get(key_of(2)) is None

    def test_one_warning_for_many(self, cache: CodeCache, warnings: list[str]) -> None:
        for name in range(3):
            cache.put(key_of(name), b"code")
        assert cache.directory is not None
        for path in cache.directory.iterdir():
            path.write_bytes(b"garbage")
        assert [cache.get(key_of(name)) for name in range(3)] == [None] * 3
        assert len(warnings) == 1


class TestLimit:
    def fill(self, cache: CodeCache, names: range, size: int) -> None:
        """Entries that were last used at the times of their names."""
        assert cache.directory is not None
        for name in names:
            cache.put(key_of(name), bytes(size))
            os.utime(cache.directory / f"{key_of(name)}.bin", (name, name))

    def test_the_limit_holds_and_the_oldest_go_first(self, tmp_path: Path) -> None:
        cache = CodeCache(tmp_path, 100_000)
        self.fill(cache, range(1, 41), 5000)
        assert cache.stats().bytes <= 100_000
        kept = [name for name in range(1, 41) if cache.get(key_of(name)) is not None]
        assert kept == list(range(41 - len(kept), 41))
        assert len(kept) >= 17

    def test_use_keeps_an_entry(self, tmp_path: Path) -> None:
        cache = CodeCache(tmp_path, 100_000)
        self.fill(cache, range(1, 11), 5000)
        assert cache.get(key_of(1)) is not None  # used now, later than all of them
        self.fill(cache, range(11, 31), 5000)
        assert cache.get(key_of(1)) is not None
        assert cache.get(key_of(2)) is None

    def test_larger_than_the_limit_stays_in_memory(self, tmp_path: Path) -> None:
        cache = CodeCache(tmp_path, 1000)
        cache.put(key_of(1), b"small")
        cache.put(key_of(2), bytes(2000))
        assert cache.get(key_of(2)) == bytes(2000)
        assert CodeCache(tmp_path, 1000).get(key_of(2)) is None
        assert CodeCache(tmp_path, 1000).get(key_of(1)) == b"small"

    def test_memory_is_limited_too(self) -> None:
        cache = CodeCache(None, 10_000)
        for name in range(100):
            cache.put(key_of(name), bytes(1000))
        assert cache.stats().entries <= 10
        assert cache.get(key_of(99)) == bytes(1000)

    def test_what_killed_writers_left_is_removed_in_time(self, tmp_path: Path) -> None:
        old, new = (tmp_path / f"{key_of(name)}.1234.abcd.tmp" for name in (1, 2))
        for path in (old, new):
            path.write_bytes(b"half")
        past = time.time() - 24 * 3600
        os.utime(old, (past, past))
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        orphan, running = (
            tmp_path / f"{key_of(1)}.{cache_module._HOST}.{number}.abcd.tmp"
            for number in (ended.pid, os.getpid())
        )
        orphan.write_bytes(b"half")
        running.write_bytes(b"half")
        cache = CodeCache(tmp_path, LIMIT)
        cache.put(key_of(3), b"code")
        assert not old.exists()
        assert not orphan.exists()
        assert new.exists(), "it may be in the middle of being written"
        assert running.exists()
        assert cache.stats().entries == 1
        cache.clear()
        assert not new.exists()


class TestUnwritable:
    def works_in_memory(self, cache: CodeCache) -> None:
        cache.put(key_of(1), b"code")
        cache.put(key_of(2), b"more")
        assert cache.get(key_of(1)) == b"code"
        assert cache.get(key_of(2)) == b"more"
        assert cache.get(key_of(3)) is None
        assert cache.stats().entries == 2
        cache.clear()
        assert cache.get(key_of(1)) is None

    def test_folder_that_cannot_be_made(self, tmp_path: Path, warnings: list[str]) -> None:
        blocker = tmp_path / "file"
        blocker.write_text("a regular file")
        self.works_in_memory(CodeCache(blocker / "code", LIMIT))
        (message,) = warnings
        assert "JITDNN_CACHE_DIR" in message

    @pytest.mark.parametrize("function", ["write", "replace"])
    def test_full_disk(
        self, cache: CodeCache, warnings: list[str], monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        def full(*arguments: Any, **names: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if function == "write":
            resource = pytest.importorskip("resource", reason="no file can be kept short there")
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))  # of an entry's 52 bytes
        else:
            monkeypatch.setattr(os, "replace", full)
        try:
            self.works_in_memory(cache)
        finally:
            if function == "write":
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (message,) = warnings
        assert os.strerror(errno.EFBIG if function == "write" else errno.ENOSPC) in message
        monkeypatch.undo()
        assert cache.directory is not None
        assert list(cache.directory.iterdir()) == [], "no half entry is left"

    @pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are another matter there")
    def test_read_only_folder_is_still_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "code"
        CodeCache(folder, LIMIT).put(key_of(1), b"shipped")
        imports = "from pathlib import Path\nfrom jitdnn.rtcg.cache import CodeCache\n"
        script = (
            f"cache = CodeCache(Path({str(folder)!r}), {LIMIT})\n"
            f"assert cache.get({key_of(1)!r}) == b'shipped'\n"
            f"cache.put({key_of(2)!r}, b'new')\n"
            f"assert cache.get({key_of(2)!r}) == b'new'\n"
        )
        assert run_without_write_permission(folder, imports, script).count("cannot be written") == 1
        assert [path.stem for path in folder.iterdir()] == [key_of(1)]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner there")
class TestOwners:
    """What somebody else may have written is not run, nor deleted where it is theirs."""

    @pytest.mark.parametrize("mode", [0o664, 0o646, 0o777])
    def test_an_entry_that_others_may_write(self, cache: CodeCache, warnings: list[str], mode: int) -> None:
        cache.put(key_of(1), b"code")
        only_file(cache).chmod(mode)
        assert cache.get(key_of(1)) is None
        assert "others may write" in next(iter(warnings))
        cache.put(key_of(1), b"mine")
        assert cache.get(key_of(1)) == b"mine"

    def test_a_link_is_not_followed(self, cache: CodeCache, warnings: list[str], tmp_path: Path) -> None:
        cache.put(key_of(1), b"code")
        good = only_file(cache)
        elsewhere = tmp_path / "elsewhere"
        good.rename(elsewhere)
        good.symlink_to(elsewhere)
        assert cache.get(key_of(1)) is None
        assert "link" in next(iter(warnings))
        assert not good.is_symlink()
        assert elsewhere.exists()

    @pytest.mark.parametrize("kind", ["pipe", "folder"])
    def test_what_is_no_file(self, cache: CodeCache, warnings: list[str], kind: str) -> None:
        cache.put(key_of(2), b"other")
        assert cache.directory is not None
        place = cache.directory / f"{key_of(1)}.bin"
        os.mkfifo(place, 0o600) if kind == "pipe" else place.mkdir(0o700)
        assert cache.get(key_of(1)) is None
        cache.put(key_of(1), b"code")
        assert cache.get(key_of(1)) == b"code"

    @pytest.mark.parametrize("kind", ["writable", "link"])
    def test_a_folder_that_others_may_write(
        self, cache: CodeCache, warnings: list[str], tmp_path: Path, kind: str
    ) -> None:
        cache.put(key_of(1), b"code")
        assert cache.directory is not None
        if kind == "writable":
            cache.directory.chmod(0o770)
        else:
            cache.directory.rename(tmp_path / "elsewhere")
            cache.directory.symlink_to(tmp_path / "elsewhere")
        entries = sorted(cache.directory.iterdir())
        assert cache.get(key_of(1)) is None
        cache.put(key_of(1), b"mine")
        cache.put(key_of(2), b"more")
        assert (cache.get(key_of(1)), cache.get(key_of(2))) == (b"mine", b"more")
        assert len(warnings) == 1
        assert sorted(cache.directory.iterdir()) == entries

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
    @pytest.mark.parametrize("what", ["folder", "entry"])
    def test_another_users_are_refused(self, tmp_path: Path, what: str) -> None:
        """Written by one user, whole and with a hash that fits; read by another, either of them root."""
        for folder, owner, reader in ((tmp_path / "a", 0, 65534), (tmp_path / "b", 65534, 0)):
            CodeCache(folder, LIMIT).put(key_of(1), b"planted")
            entry = folder / f"{key_of(1)}.bin"
            entry.chmod(0o644)
            folder.chmod(0o755)
            os.chown(entry, owner, owner)
            os.chown(folder, *((owner, owner) if what == "folder" else (reader, reader)))
            script = BECOME.format(user=reader) + (
                "from jitdnn.rtcg.cache import CodeCache\n"
                f"cache = CodeCache(Path({str(folder)!r}), {LIMIT})\n"
                f"assert cache.get({key_of(1)!r}) is None\n"
                f"cache.put({key_of(1)!r}, b'mine')\n"
                f"assert cache.get({key_of(1)!r}) == b'mine'\n"
            )
            parents = [path for path in folder.parents if not path.stat().st_mode & 0o001]
            modes = [path.stat().st_mode for path in parents]
            try:
                for path in parents:
                    path.chmod(0o755)
                done = subprocess.run(
                    [sys.executable, "-c", script],
                    capture_output=True,
                    text=True,
                    env=environment(JITDNN_LOG="warning"),
                )
            finally:
                for path, mode in zip(parents, modes, strict=True):
                    path.chmod(mode)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("belongs to user") == 1, done.stderr
            if what == "folder":
                assert entry.read_bytes().endswith(b"planted"), "it is somebody else's"


# before anything is opened; imports as root, whose package nobody may be able to read
BECOME = """
import logging, os, secrets
from pathlib import Path
import jitdnn.rtcg.cache
os.setgroups([])
os.setgid({user})
os.setuid({user})
"""


class TestSettings:
    def test_default_follows_the_settings(self, tmp_path: Path) -> None:
        with jitdnn.settings(cache=True, cache_dir=tmp_path, cache_limit=12345):
            cache = CodeCache.default()
            assert cache is CodeCache.default()
            assert cache.directory == tmp_path / "code"
            assert cache.limit == 12345
            with jitdnn.settings(cache=False):
                off = CodeCache.default()
                assert off.directory is None
                off.put(key_of("off"), b"code")
                assert off.get(key_of("off")) == b"code"
            assert cache.get(key_of("off")) is None
        assert not (tmp_path / "code").exists()

    def test_threads_share_one(self, tmp_path: Path) -> None:
        cache = CodeCache(tmp_path, 200_000)
        failures: list[object] = []

        def work(seed: int) -> None:
            for step in range(60):
                name = (seed * 7 + step * 13) % 40
                content = hashlib.sha512(str(name).encode()).digest() * 50
                cache.put(key_of(name), content)
                found = cache.get(key_of(name))
                if found not in (None, content):
                    failures.append(name)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_in_memory_the_least_recently_used_go_first() -> None:
    cache, keys = CodeCache(None, 1000, 350), [f"{number:064x}" for number in range(8)]
    for key in keys:
        cache.put(key, b"x" * 100)
        assert cache.get(keys[0]) is not None, "which is used all the time"
        assert cache.stats().entries <= 3
    assert cache.get(keys[-2]) is not None
    assert cache.get(keys[1]) is None
