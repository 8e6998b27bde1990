"""What the tests of the float64 references share: random inputs, and comparison with PyTorch's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from jitdnn.problems import Problem

torch = pytest.importorskip("torch")

SWEEP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Reals = np.ndarray[Any, np.dtype[np.float64]]


def random_inputs(problem: Problem, seed: int = 0) -> list[Reals]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(operand.descriptor.shape) for operand in problem.inputs]


def tensors(*arrays: Reals) -> list[Any]:
    return [torch.tensor(array, requires_grad=True) for array in arrays]


def close(ours: Reals, theirs: Any) -> None:
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def dot(a: Reals, b: Reals) -> float:
    return float(np.sum(a * b))
