"""What is logged, at which level, and that nothing is where it was not asked for."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid

import pytest

from jitdnn import log
from jitdnn.settings import settings


def emit_one_of_each() -> None:
    log.ran("conv_fwd n1", "direct", 0.0015)
    log.ran("conv_fwd n2", "direct")
    log.chose("conv_fwd n1", "direct (estimated 1 ms)")
    log.fallback_once(uuid.uuid4(), "took the reference: 1000 times slower")


FALLBACK = "took the reference: 1000 times slower"
CHOICE = "chose direct (estimated 1 ms) for conv_fwd n1"
RUNS = ["ran conv_fwd n1 with direct in 1.500 ms", "ran conv_fwd n2 with direct"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("off", []),
        ("warning", [FALLBACK]),
        ("info", [CHOICE, FALLBACK]),
        ("debug", [*RUNS, CHOICE, FALLBACK]),
    ],
)
def test_the_setting_decides_what_is_logged(
    level: str, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="jitdnn"), settings(log=level):
        emit_one_of_each()
    assert [record.getMessage() for record in caplog.records] == expected


def test_a_fallback_is_told_once_for_each_key(caplog: pytest.LogCaptureFixture) -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    with settings(log="off"):
        log.fallback_once(first, "not heard, so not used up")
    with settings(log="warning"):
        for _ in range(3):
            log.fallback_once(first, "one")
            log.fallback_once(second, "two")
    assert [record.getMessage() for record in caplog.records] == ["one", "two"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_values_are_not_printed_when_nobody_listens() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("formatted although the log is off")

    with settings(log="off"):
        log.ran(Unprintable(), "direct")
        log.chose(Unprintable(), Unprintable())


@pytest.mark.parametrize(("level", "lines"), [("off", 0), ("warning", 1), ("info", 2), ("debug", 4)])
def test_a_program_without_logging_set_up_sees_the_lines_on_stderr(level: str, lines: int) -> None:
    program = (
        "import jitdnn, jitdnn.log as log\n"
        "for _ in range(2): log.fallback_once('key', 'slow')\n"
        "log.chose('conv', 'plan')\n"
        "log.ran('conv', 'direct'); log.ran('conv', 'direct')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"JITDNN_LOG": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == lines
    assert all(line.startswith("jitdnn: ") for line in done.stderr.splitlines())
