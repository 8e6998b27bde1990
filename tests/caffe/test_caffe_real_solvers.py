"""The solvers that Caffe ships: each is read, and its update rule and policy accept its fields."""

from __future__ import annotations

import pytest

from jitdnn.caffe import SolverParameter, upgrade
from jitdnn.caffe.policies import LearningRate
from jitdnn.caffe.update_rules import RULES, rule_of
from paths import SHARED

FILES = sorted((SHARED / "prototxt").rglob("*solver*.prototxt")) if SHARED.is_dir() else []


@pytest.mark.skipif(not FILES, reason="no folder ../shared/prototxt beside this checkout")
def test_every_one_can_be_taken_up() -> None:
    kinds = set()
    for file in FILES:
        solver = upgrade(file)
        assert isinstance(solver, SolverParameter), file
        rule_of(solver)
        rate = LearningRate(solver)
        assert 0 < rate.at(0) <= solver.base_lr, file
        kinds.add(solver.type)
    assert kinds == set(RULES)
    assert len(FILES) >= 20
