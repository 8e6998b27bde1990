"""Two processes on gloo that train nets together: the results are those of one process with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distributed_nets
from process_groups import run_group

pytest.importorskip("torch", reason="several processes need PyTorch")

NAMES = [
    "lenet", "cifar10_full", "normalized", "normalized f32", "again", "uneven", "memory", "bf16", "local", "resumed",
    *distributed_nets.SOLVERS, *(f"sharded {kind}" for kind in distributed_nets.SHARDED),
]  # fmt: skip
Arrays = dict[str, np.ndarray[Any, Any]]


class Found:
    """What one process found, made when it is asked for, and what each of two found."""

    def __init__(self, folder: Path) -> None:
        distributed_nets.write_data(folder)
        self.folder = folder
        self.start = distributed_nets.resumed(folder, "", "one.jdsnap")
        run_group(Path(distributed_nets.__file__), folder, *NAMES)
        self.ranks = [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)]
        self._one: dict[str, Arrays] = {}

    def one(self, name: str) -> Arrays:
        if name not in self._one:
            self._one[name] = distributed_nets.runs(self.folder, None)[name]()
        return self._one[name]

    def two(self, name: str, rank: int = 0) -> Arrays:
        prefix = f"{name}: "
        return {k.removeprefix(prefix): v for k, v in self.ranks[rank].items() if k.startswith(prefix)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("distributed"))


def assert_same(two: Arrays, one: Arrays, bound: float = 1e-5) -> None:
    assert two.keys() == one.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(two[name], expected, rtol=bound, atol=bound, err_msg=name)


@pytest.mark.parametrize("name", ["lenet", "cifar10_full", "normalized"])
def test_losses_of_200_iterations_are_those_of_one_process(found: Found, name: str) -> None:
    one, two = found.one(name), found.two(name)
    assert len(two["loss"]) == 200
    assert two["loss"][-20:].mean() < 0.7 * two["loss"][:20].mean()  # it learns
    assert_same(two, one, 1e-9)


def test_runs_are_bit_equal_and_so_are_processes(found: Found) -> None:
    first, again = found.two("normalized f32"), found.two("again")
    for name, array in first.items():
        assert np.array_equal(array, again[name]), name
    for name, array in found.ranks[0].items():
        assert np.array_equal(array, found.ranks[1][name]), name


@pytest.mark.parametrize("name", ["normalized f32", "uneven", "memory", *distributed_nets.SOLVERS])
def test_weights_and_losses_are_those_of_one_process(found: Found, name: str) -> None:
    assert_same(found.two(name), found.one(name))


@pytest.mark.parametrize("kind", distributed_nets.SHARDED)
def test_sharded_state_changes_nothing(found: Found, kind: str) -> None:
    assert_same(found.two(f"sharded {kind}"), found.one(kind))


def test_gradients_in_bf16_train_nearly_the_same(found: Found) -> None:
    exact = distributed_nets.trained(found.folder, "cifar10_full", 10)
    rounded = found.two("bf16")
    assert not np.array_equal(rounded["loss"], exact["loss"])
    np.testing.assert_allclose(rounded["loss"], exact["loss"], atol=0.02)


def test_local_statistics_are_others_and_agree_at_the_end(found: Found) -> None:
    whole = distributed_nets.trained(found.folder, "normalized", 10, distributed_nets.FULL)
    local = found.two("local")
    assert np.abs(local["loss"] - whole["loss"]).max() > 1e-4
    np.testing.assert_allclose(local["loss"][0], whole["loss"][0], atol=0.2)


def test_any_number_of_processes_goes_on_from_a_snapshot(found: Found) -> None:
    # one process wrote iteration 5, two went on from there and wrote iteration 10
    two = found.two("resumed")
    np.testing.assert_allclose(two["loss"][:5], found.start["loss"][5:], atol=1e-5)
    one = distributed_nets.resumed(found.folder, "two.jdsnap", "three.jdsnap")
    np.testing.assert_allclose(one["loss"][:5], two["loss"][5:], atol=1e-5)
