"""Raw modules and tuning: code of one's own on the library's threads, parameters found by measuring."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.planner.store import Store
from paths import ROOT

IR = """
define void @fill(ptr %args, i64 %task, i64 %thread) {
  %x = load ptr, ptr %args
  %slot = getelementptr i64, ptr %args, i64 1
  %value = load i64, ptr %slot
  %sum = add i64 %value, %task
  %place = getelementptr i64, ptr %x, i64 %task
  store i64 %sum, ptr %place
  ret void
}
"""


def axpy(module: Any) -> None:
    """y += a * x, 64 elements a task."""
    with module.task("axpy") as (k, args, task, _):
        x, y = (k.pointer(args, i, "f32") + task * 64 for i in range(2))
        lanes = k.lanes("f32")
        a = k.splat(k.number(args, 2, "f32"), lanes)
        for i in k.range(0, 64, lanes):
            y.store(k.fma(a, x.load(i, lanes), y.load(i, lanes)), i)


@pytest.mark.parametrize("threads", [1, 2])
def test_code_as_text(threads: int) -> None:
    x = np.zeros(1000, np.int64)
    with jd.settings(threads=threads):
        jd.module(IR)["fill"](x, 7, tasks=1000)
    np.testing.assert_array_equal(x, np.arange(1000) + 7)


def test_traced_code() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 64 * 33)).astype(np.float32)
    expected = y + 2.5 * x
    jd.module(axpy)["axpy"](x, y, 2.5, tasks=33)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_bad_code_and_arguments() -> None:
    with pytest.raises(jd.CompileError, match="not valid LLVM IR"):
        jd.module("define nonsense")
    made = jd.module(IR)
    with pytest.raises(jd.CompileError, match="no function 'drain'"):
        made["drain"]
    with pytest.raises(jd.InvalidType, match="argument 1: str"):
        made["fill"](np.zeros(3, np.int64), "7", tasks=3)
    with pytest.raises(jd.InvalidArgument, match="tasks is -1"):
        made["fill"](np.zeros(3, np.int64), 7, tasks=-1)


def sleeper(calls: list[dict[str, Any]]) -> Callable[..., Callable[[], None]]:
    """Kernels that take as long as they say."""

    def build(wait: float, way: str) -> Callable[[], None]:
        if way == "impossible":
            raise jd.NotSupported("there is no such way")

        def run() -> None:
            calls.append({"wait": wait, "way": way})
            time.sleep(wait)

        return run

    return build


SPACE = {"wait": [0.02, 0.001, 0.01], "way": ["plain", "impossible"]}


def test_the_fastest_is_found_and_remembered() -> None:
    calls: list[dict[str, Any]] = []
    found = jd.autotune(sleeper(calls), SPACE, key="sleep", seconds=0.3)
    assert found.config == {"wait": 0.001, "way": "plain"}
    assert (found.is_stored, found.untried, len(found.times), len(found.refused)) == (False, 0, 3, 3)
    assert "there is no such way" in found.explain()
    calls.clear()
    again = jd.autotune(sleeper(calls), SPACE, key="sleep")
    assert (again.config, again.is_stored, calls) == (found.config, True, [])
    assert again.seconds == pytest.approx(found.seconds)
    assert not jd.autotune(sleeper(calls), SPACE, key="sleep", is_fresh=True, seconds=0.1).is_stored
    assert not jd.autotune(sleeper(calls), SPACE, key="another", seconds=0.1).is_stored
    assert not jd.autotune(sleeper(calls), SPACE | {"wait": [0.002]}, key="sleep", seconds=0.1).is_stored
    assert any(row.problem == "autotune sleep" for row in Store.default().rows())


def test_the_budget_ends_the_search() -> None:
    calls: list[dict[str, Any]] = []
    space = {"wait": [0.05 + i * 1e-6 for i in range(40)], "way": ["plain"]}
    start = time.perf_counter()
    found = jd.autotune(sleeper(calls), space, key="slow", seconds=0.1)
    assert found.untried > 20
    assert len(found.times) + found.untried == 40
    assert time.perf_counter() - start < 5


def test_a_space_without_an_answer() -> None:
    with pytest.raises(jd.NotSupported, match="no configuration of nothing can be built"):
        jd.autotune(sleeper([]), {"wait": [0.1], "way": ["impossible"]}, key="nothing")
    with pytest.raises(jd.InvalidArgument, match="each parameter needs at least one value"):
        jd.autotune(sleeper([]), {"wait": []}, key="nothing")


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# those that say on which device they run are run on the processor too
ON_CPU = [path for path in EXAMPLES if path.stem in ("module_multiply", "module_random_speed")]


@pytest.mark.parametrize(
    ("path", "options"),
    [*((path, []) for path in EXAMPLES), *((path, ["cpu"]) for path in ON_CPU)],
    ids=lambda value: value.name if isinstance(value, Path) else "-".join(value),
)
def test_examples_run(path: Path, options: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"JITDNN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, path, *options], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
