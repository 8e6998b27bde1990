"""What a piece of work uses: noted by it, by those around it, and by threads that work for it."""

from __future__ import annotations

import threading
from contextvars import copy_context
from pathlib import Path

import jitdnn as jd
from jitdnn.rtcg.cache import CodeCache
from jitdnn.rtcg.use import note_compiled, note_key, note_look_up, noting


def test_blocks_around_note_it_too() -> None:
    with noting() as outer:
        note_compiled("first")
        with noting() as inner:
            note_compiled("second")
            note_key("a" * 64)
            note_look_up("p", "", "d")
        note_key("b" * 64)
    note_key("c" * 64)
    assert (outer.compiled, inner.compiled) == (["first", "second"], ["second"])
    assert (outer.keys, inner.keys) == ({"a" * 64, "b" * 64}, {"a" * 64})
    assert outer.looked_up == inner.looked_up == {("p", "", "d")}


def test_threads_with_the_context_count() -> None:
    with noting() as use:
        for run in (copy_context().run, lambda function, *values: function(*values)):
            thread = threading.Thread(target=run, args=(note_compiled, "one"))
            thread.start()
            thread.join()
    assert use.compiled == ["one"]


def test_the_cache_notes_what_is_there(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, 1 << 20)
    with noting() as use:
        assert cache.get("a" * 64) is None
        assert not use.keys
        cache.put("b" * 64, b"code")
    with noting() as again:
        cache.get("b" * 64)
    assert use.keys == again.keys == {"b" * 64}


def test_a_kernel_that_is_loaded_already_counts() -> None:
    """Of one process each run takes what it needs, whoever has compiled it."""
    used = []
    for _ in range(2):
        (found,) = jd.warm(["matmul m3 k4 n5 f32"], workers=1)
        used.append(found.used.keys)
    assert used[1]
    assert used[1] <= used[0], "the first one may have looked for the processor's facts, too"
