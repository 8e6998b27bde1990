"""The table of settings: defaults, environment, overrides, sizes in bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.settings import (
    TABLE,
    current,
    format_bytes,
    from_environment,
    misspelt,
    override,
    parse_bytes,
    settings,
    table_markdown,
)
from paths import ROOT


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64 MiB", 64 * 1024 * 1024),
        ("64MiB", 64 * 1024 * 1024),
        ("8MB", 8_000_000),
        ("8 mb", 8_000_000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2 GiB", 2**31),
        ("1 TB", 10**12),
        ("0.5 KiB", 512),
        (" 4096 ", 4096),
        ("12 B", 12),
        ("0", 0),
        ("none", None),
        ("Unlimited", None),
        (17, 17),
        (np.int64(5), 5),
        (None, None),
    ],
)
def test_parse_bytes(text: str | int | None, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "column"),
    [("", 1), ("many", 1), ("-5", 1), ("  x", 3), ("64 MiBs", 4), ("1.5.2", 1), ("3 M", 3)],
)
def test_parse_bytes_says_where_text_is_wrong(text: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_bytes(text)
    assert (caught.value.text, caught.value.line, caught.value.column) == (text, 1, column)


def test_parse_bytes_refuses_parts_of_a_byte_and_negative_numbers() -> None:
    with pytest.raises(InvalidArgument, match="integer number of bytes"):
        parse_bytes("0.3 B")
    for value in (-1, 1.5, True, [1]):
        with pytest.raises(InvalidArgument, match=r"is no size: it must be an integer number of bytes"):
            parse_bytes(value)


@given(st.integers(0, 2**50))
def test_format_bytes_keeps_three_digits(size: int) -> None:
    text = format_bytes(size)
    number, unit = text.split(" ")
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number) * scale == pytest.approx(size, rel=0.005)
    assert len(number.replace(".", "")) <= 4


def test_format_bytes_is_exact_for_whole_units() -> None:
    assert [format_bytes(n) for n in (0, 1000, 1024, 1536, 64 << 20, 5 << 30)] == [
        "0 B",
        "1000 B",
        "1 KiB",
        "1.5 KiB",
        "64 MiB",
        "5 GiB",
    ]


def test_an_empty_environment_gives_the_defaults() -> None:
    values = from_environment({})
    assert values.workspace_limit is None
    assert (values.math, values.accuracy, values.deterministic) == ("fp32", "standard", False)
    assert values.threads == len(os.sched_getaffinity(0))
    assert (values.target, values.cpu, values.choice, values.log) == ("cpu", "host", "get", "warning")
    assert values.cache_limit == 2**30
    assert values.cache_dir.name == "jitdnn"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("JITDNN_WORKSPACE_LIMIT", "64 MiB", "workspace_limit", 64 << 20),
        ("JITDNN_THREADS", " 12 ", "threads", 12),
        ("JITDNN_WORKSPACE_LIMIT", "0", "workspace_limit", 0),
        ("JITDNN_WORKSPACE_LIMIT", "none", "workspace_limit", None),
        ("JITDNN_MATH", "FP64", "math", "fp64"),
        ("JITDNN_ACCURACY", "strict", "accuracy", "strict"),
        ("JITDNN_DETERMINISTIC", "yes", "deterministic", True),
        ("JITDNN_THREADS", "3", "threads", 3),
        ("JITDNN_THREADS", "", "threads", None),
        ("JITDNN_CHOICE", "find", "choice", "find"),
        ("JITDNN_CPU", "avx2", "cpu", "avx2"),
        ("JITDNN_CACHE_DIR", "/somewhere/else", "cache_dir", Path("/somewhere/else")),
        ("JITDNN_CACHE", "off", "cache", False),
        ("JITDNN_CACHE_LIMIT", "10 MB", "cache_limit", 10_000_000),
        ("JITDNN_LOG", "debug", "log", "debug"),
    ],
)
def test_each_variable_sets_its_setting(variable: str, text: str, name: str, value: object) -> None:
    given = from_environment({variable: text})
    expected = getattr(from_environment({}), name) if text == "" else value
    assert getattr(given, name) == expected


@pytest.mark.parametrize(
    ("variable", "text", "accepted"),
    [
        ("JITDNN_THREADS", "0", "1 or more"),
        ("JITDNN_THREADS", "two", "1 or more"),
        ("JITDNN_MATH", "int8", "fp32, fp64, tf32, bf16, fp16"),
        ("JITDNN_CACHE", "maybe", "true"),
        ("JITDNN_CACHE_LIMIT", "none", "unlimited is not accepted"),
        ("JITDNN_WORKSPACE_LIMIT", "lots", "64 MiB"),
        ("JITDNN_CPU", "sse", "avx512"),
    ],
)
def test_a_bad_variable_is_named_with_what_it_accepts(variable: str, text: str, accepted: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_environment({variable: text})
    assert f"{variable}={text!r}" in str(caught.value)
    assert accepted in str(caught.value)


def test_settings_nest_and_end_with_their_block() -> None:
    before = current()

    def fail_inside() -> None:
        with settings(threads=1, deterministic=True):
            assert current().workspace_limit == 64 << 20
            assert (current().threads, current().deterministic) == (1, True)
            raise RuntimeError("in the block")

    with settings(workspace_limit="64 MiB", threads=2) as outer:
        assert current() is outer
        assert (outer.workspace_limit, outer.threads) == (64 << 20, 2)
        with pytest.raises(RuntimeError, match="in the block"):
            fail_inside()
        assert current() is outer
    assert current() is before


def test_settings_can_be_called_as_the_readme_does() -> None:
    with jd.settings(threads=1):
        assert jd.settings.current().threads == 1  # type: ignore[attr-defined]


def test_settings_of_one_thread_do_not_reach_another() -> None:
    seen = []
    with settings(threads=7):
        worker = threading.Thread(target=lambda: seen.append(current().threads))
        worker.start()
        worker.join()
    assert seen == [current().threads]


def test_unknown_names_and_values_are_refused() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'workspace' is no setting: there are workspace_limit, total_workspace"
    ):
        override(current(), workspace=1)
    with pytest.raises(InvalidArgument, match=r"threads=True: must be an integer"):
        override(current(), threads=True)
    assert override(current(), threads=np.int32(3)).threads == 3
    with pytest.raises(InvalidArgument, match=r"threads=0"):
        settings(threads=0).__enter__()


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["fp32", "fp64"]),
    st.sampled_from(["fp32", "fp64"]),
)
def test_serials_are_equal_exactly_where_values_are(a: int, b: int, math_a: str, math_b: str) -> None:
    first, second = override(current(), threads=a, math=math_a), override(current(), threads=b, math=math_b)
    assert (first.serial == second.serial) == ((a, math_a) == (b, math_b)) == (first == second)


def test_serials_agree_when_threads_race_for_them() -> None:
    serials: list[int] = []
    start = threading.Barrier(8)

    def race() -> None:
        start.wait()
        serials.extend(override(current(), workspace_limit=1000 + i).serial for i in range(200))

    workers = [threading.Thread(target=race) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(serials) == 8 * 200
    assert len(set(serials)) == 200


def test_the_documented_table_has_a_row_for_each_setting() -> None:
    lines = table_markdown().splitlines()
    assert len(lines) == len(TABLE) + 2
    assert any("`JITDNN_WORKSPACE_LIMIT`" in line and "`workspace_limit`" in line for line in lines)


def test_the_environment_is_read_at_first_use_not_at_import(tmp_path: Path) -> None:
    program = (
        "import jitdnn as jd, jitdnn.settings as s, os\n"
        "os.environ['JITDNN_THREADS'] = '5'\n"
        "assert s.current().threads == 5\n"
        "os.environ['JITDNN_THREADS'] = '6'\n"
        "assert s.current().threads == 5\n"
        "print(s.current().cache_dir)\n"
    )
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    environ.pop("JITDNN_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if sys.platform == "linux":
        assert done.stdout.strip() == str(tmp_path / "jitdnn")


def test_import_brings_in_neither_llvmlite_nor_a_framework() -> None:
    program = (
        "import sys, jitdnn, jitdnn.tensor, jitdnn.problems\n"
        "heavy = {'llvmlite', 'torch', 'jax', 'scipy', 'typer', 'rich', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_where_the_package_says() -> None:
    for name in jd.__all__:
        assert getattr(jd, name) is not None
    assert set(jd.__all__) <= set(dir(jd))
    with pytest.raises(AttributeError, match="no attribute 'convolve'"):
        _ = jd.convolve


def test_all_settings_of_another_thread_in_force() -> None:
    with settings(threads=3, compile="background") as values:
        pass
    with settings(threads=5), jd.settings.in_force(values):
        assert current() is values
    assert current().compile == "wait"


def test_names_in_the_environment_that_are_nearly_settings_are_told(tmp_path: Path) -> None:
    (line,) = misspelt({"JITDNN_THREADZ": "1", "JITDNN_LOG": "info", "PATH": "", "JITDNN_DISABLE": "1"})
    assert "JITDNN_THREADZ" in line
    assert "JITDNN_THREADS" in line
    code = "import jitdnn.settings as s; assert s.current().threads; s.current()"
    environ = {**os.environ, "JITDNN_WORKSPACE_LIMITS": "1 MiB", "JITDNN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("is JITDNN_WORKSPACE_LIMIT meant?") == 1


def test_other_variables_of_the_library_are_not_taken_for_settings() -> None:
    names = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\bJITDNN_[A-Z_]*[A-Z]\b", path.read_text("utf-8"))
    }
    assert {"JITDNN_DISABLE", "JITDNN_STUDIO_TOKEN"} < names
    assert misspelt(dict.fromkeys(names, "1")) == []
