"""Weights, statistics, labels, indices and results in every order in memory, through the public functions."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

import jitdnn as jd
from parameter_cases import CASES
from paths import HELPERS

PROGRAM = HELPERS / "guarded_calls.py"
SHARE = 20  # calls of one process, which takes a while to start
GROUPS = [[case.name for case in CASES[first : first + SHARE]] for first in range(0, len(CASES), SHARE)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_every_operand_may_lie_in_any_order(names: Sequence[str]) -> None:
    run = subprocess.run([sys.executable, str(PROGRAM), *names], capture_output=True, text=True, check=False)
    last = run.stdout.strip().rsplit("\n", 1)[-1]
    assert run.returncode != -signal.SIGSEGV, f"touched what is not its own: {last}"
    assert run.returncode == 0, f"{last}\n{run.stderr[-4000:]}"
    for name in names:
        assert f"{name}, turn 0" in run.stdout, f"{name} was not run"


def test_names_tell_calls_apart() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_x_may_be_broadcast_where_statistics_are_saved(axis: int) -> None:
    """What a result looks like does not depend on the strides of x: several indices may share its elements."""
    shape = [3, 6, 5]
    shape[axis] = 1
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    repeated = np.broadcast_to(x, (3, 6, 5))
    for norm in (
        lambda x: jd.layer_norm(x, save=True),
        lambda x: jd.rms_norm(x, save=True),
        lambda x: jd.group_norm(x, 2, save=True),
        lambda x: jd.instance_norm(x),
        lambda x: jd.batch_norm(x, save=True),
    ):
        for got, expected in zip(norm(repeated), norm(np.array(repeated)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
