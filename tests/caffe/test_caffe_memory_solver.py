"""Solvers that train and test within a limit on memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caffe_nets import FIXED, LENET
from jitdnn.caffe import Solver, load_solver
from jitdnn.errors import InvalidArgument

pytest.importorskip("scipy")

Array = NDArray[Any]


SOLVER = FIXED + (
    "momentum: 0.9 weight_decay: 0.01 max_iter: 4 snapshot_after_train: false display: 2 random_seed: 3 "
    "test_iter: 2 test_interval: 2 average_loss: 2 "
)


def solver(file: Path, **options: Any) -> Solver:
    file.write_text(SOLVER + f'net: "{LENET}"')
    return load_solver(str(file), **options)


@pytest.mark.parametrize("limit", ["least", "1 TiB"])
def test_a_solver_trains_and_tests_within_a_limit(tmp_path: Path, limit: str) -> None:
    told: list[list[Any]] = []
    weights = []
    for memory in (None, limit):
        events: list[Any] = []
        each = solver(
            tmp_path / "s.prototxt", listener=events.append, memory_limit=memory, algorithm="direct"
        )
        each.solve()
        told.append([event for event in events if type(event).__name__ in ("Tested", "Iterated")])
        weights.append([parameter.blob.data.copy() for parameter in each.net.parameters])
        if memory:
            plans = [net.memory_plan for net in (each.net, *each.test_nets)]
            history = sum(array.nbytes for array in each.method.history.values())
            assert all(plan is not None and plan.chain.constant > 3 * history for plan in plans)
    assert told[0] == told[1]
    for one, two in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_peak_of_a_solver_and_its_test_net_is_below_the_limit(tmp_path: Path) -> None:
    trained = solver(tmp_path / "s.prototxt", memory_limit="12 MiB")
    trained.step(2)
    plan = trained.net.memory_plan
    assert plan is not None
    assert trained.net._memory is not None
    tracemalloc.start()
    try:
        trained.net._memory.handle.trim()
        trained.step(1)
        trained.net._memory.handle.trim()
        base, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        trained.step(1)
        peak = tracemalloc.get_traced_memory()[1] - base + plan.chain.constant
        assert abs(peak - plan.peak) <= 0.05 * plan.peak
        tracemalloc.reset_peak()
        trained.test_all()
        trained.step(2)
        trained.test_all()
        assert tracemalloc.get_traced_memory()[1] - base + plan.chain.constant <= 1.01 * 12 * 2**20
    finally:
        tracemalloc.stop()


def test_a_solver_whose_limit_is_too_small_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="needs at least"):
        solver(tmp_path / "s.prototxt", memory_limit="1 MiB")
