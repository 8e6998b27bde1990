"""Two processes on gloo that train nets together: the results are those of one process with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distributed_nets
from jitdnn.caffe import snapshot
from process_groups import Ranks

Arrays = dict[str, np.ndarray[Any, Any]]


class Found:
    """What one process finds, and each of two, made when it is asked for."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        distributed_nets.write_data(folder)
        self.folder, self._ranks = folder, ranks
        self._one: dict[str, Arrays] = {}
        self._two: dict[str, Arrays] = {}

    def one(self, name: str) -> Arrays:
        if name not in self._one:
            self._one[name] = distributed_nets.runs(self.folder, None)[name]()
        return self._one[name]

    def two(self, name: str) -> Arrays:
        """What the first of two processes found; the second one has the same bits."""
        if name not in self._two:
            first, second = self._ranks("distributed_nets.run", self.folder, name)
            assert first.keys() == second.keys()
            for key, array in first.items():
                assert key == "bytes" or np.array_equal(array, second[key]), key
            self._two[name] = first
        return self._two[name]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Found:
    return Found(tmp_path_factory.mktemp("distributed"), ranks)


def assert_same(two: Arrays, one: Arrays, bound: float = 1e-5) -> None:
    assert two.keys() == one.keys()
    for name, expected in one.items():
        if name == "bytes":  # which parts of a batch need less of
            continue
        np.testing.assert_allclose(two[name], expected, rtol=bound, atol=bound, err_msg=name)


@pytest.mark.parametrize("name", ["small lenet", "cifar10_full", "normalized"])
def test_losses_of_200_iterations_are_those_of_one_process(found: Found, name: str) -> None:
    one, two = found.one(name), found.two(name)
    assert len(two["loss"]) == 200
    assert two["loss"][-20:].mean() < 0.7 * two["loss"][:20].mean()  # it learns
    assert_same(two, one, 1e-9)


def test_runs_are_bit_equal(found: Found) -> None:
    first, again = found.two("normalized f32"), found.two("again")
    for name, array in first.items():
        assert np.array_equal(array, again[name]), name


@pytest.mark.parametrize("name", ["normalized f32", "uneven", "limited", *distributed_nets.SOLVERS])
def test_weights_and_losses_are_those_of_one_process(found: Found, name: str) -> None:
    assert_same(found.two(name), found.one(name))


@pytest.mark.parametrize("kind", distributed_nets.SHARDED)
def test_sharded_state_changes_nothing(found: Found, kind: str) -> None:
    assert_same(found.two(f"sharded {kind}"), found.one(kind))


def test_weights_larger_than_a_bucket_are_scattered_in_pieces(found: Found) -> None:
    assert_same(found.two("sharded in pieces"), found.one("Adam"))


def test_sharded_state_goes_together_with_limited_memory(found: Found) -> None:
    one, sharded = found.one("limited"), found.two("sharded limited")
    assert_same(sharded, one)
    (history, _, _), (kept, whole, peak) = one["bytes"], sharded["bytes"]
    assert whole == history
    # parts of buckets are whole lines of 64 elements, and Adam has two histories
    assert kept <= history / 2 + 2 * 4 * 64 * 2
    assert peak < found.two("limited")["bytes"][2]


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
    start = distributed_nets.resumed(found.folder, "", "one.jdsnap")
    two = found.two("resumed")
    np.testing.assert_allclose(two["loss"][:5], start["loss"][5:], atol=1e-5)
    one = distributed_nets.resumed(found.folder, "two.jdsnap", "three.jdsnap")
    np.testing.assert_allclose(one["loss"][:5], two["loss"][5:], atol=1e-5)


def test_what_one_process_is_asked_for_all_do_in_the_same_iteration(found: Found, ranks: Ranks) -> None:
    results = ranks("distributed_nets.asked", found.folder, seconds=60)
    assert results == [([4], 7)] * 2
    assert snapshot.read(found.folder / "asked_iter_4.jdsnap").meta["iteration"] == 4


def test_arrays_that_are_broadcast_together(ranks: Ranks) -> None:
    first, second = ranks("distributed_nets.broadcasts", seconds=60)
    assert len({array.dtype for array in first}) == 3
    for sent, received in zip(first, second, strict=True):
        np.testing.assert_array_equal(received, sent, strict=True)
