"""What the tests of convolutions by warpgroups share: their devices and memory, a small tile, split plans.

A test takes the fixtures, which act on each of its functions, by importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import cases
from cases import make_case
from harness import run
from jitdnn.kernels.cuda import warpgroup_matmul
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import choose, correlation, wgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution

SMALL = Tile(2, 1, 1, 64)


@pytest.fixture(autouse=True)
def on_hopper(request: pytest.FixtureRequest) -> None:
    for name in ("cuda_device", "architecture"):
        if name in request.fixturenames and request.getfixturevalue(name).arch != "sm_90a":
            pytest.skip("wgmma is an instruction of sm_90a")


@pytest.fixture(autouse=True)
def aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands at multiples of 16 bytes, which the copy engine takes; see test_any_address."""
    monkeypatch.setattr(cases, "GUARD", 128)


@contextmanager
def split_into(splits: int, tile: Tile = SMALL) -> Iterator[None]:
    """Plans within the block split K so many times, also where the last split has fewer stages."""

    def blocking(products: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        length = -(-products.longest // splits)
        return Blocking(tile, 3, -(-products.longest // length), length, 1, 2), 1e-5

    with blocked_by(blocking):
        yield


@contextmanager
def blocked_by(blocking: Callable[..., tuple[Blocking, float]]) -> Iterator[None]:
    """Plans within the block have the blocking that this function gives, whatever would be chosen."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (correlation, wgrad):
            patch.setattr(module, "best_blocking", blocking)
        _forget_plans()
        yield
    _forget_plans()


def _forget_plans() -> None:
    for one in (choose.plan_of, warpgroup_matmul._plan):
        one.cache_clear()


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape)


def check_not_finite(
    problem: Convolution, algorithm: WarpgroupGemm, device: Any, value: float, tolerance: float
) -> None:
    """Check that one number which is infinite or none gives what it gives in f32."""
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.inputs]
    inputs[0].reshape(-1)[5] = value
    inputs[1].reshape(-1)[:3] = 1e-30  # which scaling makes zero of, and zero times infinity is no number
    case = make_case(problem, None, 0, inputs)
    kernel, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
    (actual,) = run(device, kernel, case, room)
    with np.errstate(invalid="ignore"):
        expected = problem.reference(*(one.astype(np.float64) for one in inputs))
    found = np.isfinite(expected)
    assert found.any()
    assert not found.all()
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(
        actual[~found & ~np.isnan(expected)], expected[~found & ~np.isnan(expected)]
    )
    np.testing.assert_allclose(actual[found], expected[found], rtol=10 * tolerance, atol=tolerance)


# what f32 holds, and what parts of its numbers must hold, too
DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": normal,
    "uniform": lambda rng, shape: rng.random(shape),
    "relu": lambda rng, shape: np.maximum(0, normal(rng, shape)),
    "tiny": lambda rng, shape: 1e-38 * normal(rng, shape),
    "huge": lambda rng, shape: 1e18 * normal(rng, shape),
    "both tiny": lambda rng, shape: 1e-20 * normal(rng, shape),
    "subnormal": lambda rng, shape: 1e-40 * normal(rng, shape),
    "by channel": lambda rng, shape: (
        normal(rng, shape) * np.exp2(rng.integers(-8, 8, shape[1])).reshape(1, -1, *(1,) * (len(shape) - 2))
    ),
    "few large": lambda rng, shape: normal(rng, shape) * np.where(rng.random(shape) < 0.02, 1e4, 1),
    "cancelling": lambda rng, shape: 1 + 2.0**-12 * normal(rng, shape),
    "zeros": lambda rng, shape: np.zeros(shape),
}
