"""What products are said not to come below, beside what they are said to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jitdnn.bench.suites import load, towards_each
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.grouped import cost as grouped
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.implicit_gemm import cost as implicit_gemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.gemm import cost as gemm_cost
from jitdnn.kernels.cuda.warpgroup import best, bound, cost
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Products
from jitdnn.kernels.tables import algorithms
from jitdnn.problems.convolution import Convolution

LAYERS = [("bf16", "nhwc"), ("f32", "nchw"), ("f32", "nhwc"), ("bf16", "nchw")]


def problems(dtype: str, layout: str, every: int) -> list[Convolution]:
    layers = [
        layer.stored(dtype, layout) for suite in ("classic", "modern", "patches") for layer in load(suite)
    ]
    found = [layer.problem for layer in towards_each(layers, "all")]
    return [one for one in found if isinstance(one, Convolution)][::every]


@pytest.mark.parametrize(
    ("dtype", "layout", "multiprocessors"), [*((*one, 132) for one in LAYERS), ("bf16", "nhwc", 8)]
)
def test_no_blocking_comes_below_its_bound(
    dtype: str, layout: str, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both models, by all algorithms: each cut of each tile, of which every blocking is looked at."""
    seen: list[str] = []
    original, order = best.best_blocking, best._in_order

    last: dict[tuple[Any, int], float] = {}  # of the first model beside the second
    first_bound = bound.Bound.seconds

    def noted(self: bound.Bound, tile: Any, splits: int, length: int) -> float:
        last.clear()
        last[tile, splits] = first_bound(self, tile, splits, length)
        return 0.0  # nothing is left out

    def beside(products: Products, blocking: Blocking, *more: Any) -> float:
        seconds = cost.seconds(products, blocking, *more)
        assert last[blocking.tile, blocking.splits] <= seconds
        return seconds

    def checked(*given: Any, **words: Any) -> Any:
        # the second model decides what is looked at, where there is one
        model = words.get("seconds_of")
        bounds: dict[tuple[Any, int], float] = {}

        def every(families: Any, *rest: Any) -> Any:
            rest = (*rest[:-1], best._Fastest(float("inf")))  # nothing is left out
            for one, cut in order(families, *rest):
                bounds[one.tile, cut[0]] = one.least.seconds(one.tile, *cut)
                assert cut[0] == one.tile.cluster or bounds[one.tile, cut[0]] >= one.least.of_splits
                yield one, cut
                bounds.clear()

        def held(function: Any) -> Any:
            def timed(products: Products, blocking: Blocking, *more: Any) -> float:
                seconds: float = function(products, blocking, *more)
                for (tile, splits), least in bounds.items():
                    assert tile == blocking.tile
                    if blocking.splits == splits:
                        seen.append(str(tile))
                        assert least <= seconds, (blocking, least / seconds)
                return seconds

            return timed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best, "_in_order", every)
            if model:
                words["seconds_of"] = held(model)
                patch.setattr(bound.Bound, "seconds", noted)
                patch.setattr("jitdnn.kernels.cuda.warpgroup.best.seconds", beside)
            else:
                patch.setattr("jitdnn.kernels.cuda.warpgroup.best.seconds", held(cost.seconds))
            return original(*given, **words)

    for name in ("correlation", "wgrad"):
        monkeypatch.setattr(f"jitdnn.kernels.cuda.convolution.warpgroup_gemm.{name}.best_blocking", checked)
    device = cuda.offline("sm_90a")
    device = replace(device, facts=replace(device.facts, multiprocessors=multiprocessors))
    plan_of.cache_clear()
    for one in problems(dtype, layout, 61):
        for algorithm in algorithms(one, "cuda"):
            if "wgmma" in algorithm.name or "f16" in algorithm.name:
                algorithm.refuse(one, device)
    plan_of.cache_clear()
    assert len(seen) > 300


@pytest.mark.parametrize(("dtype", "layout"), LAYERS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_no_product_by_mma_comes_below_its_bound(
    dtype: str, layout: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cut of each tile, and its time."""
    bounds: list[float] = []
    seen = 0
    least, seconds = gemm_cost._least_seconds, gemm_cost._seconds

    def noted(*given: Any) -> float:
        bounds[:] = [least(*given)]
        return 0.0  # nothing is left out

    def held(*given: Any) -> float:
        nonlocal seen
        time = seconds(*given)
        if bounds:
            seen += 1
            assert bounds.pop() <= time
        return time

    monkeypatch.setattr(gemm_cost, "_least_seconds", noted)
    monkeypatch.setattr(gemm_cost, "_seconds", held)
    for kept in (gemm_cost._best_blocking, implicit_gemm.plan_of, implicit_gemm.wgrad_plan_of):
        kept.cache_clear()
    device = cuda.offline(arch)
    for one in problems(dtype, layout, 61):
        for algorithm in algorithms(one, "cuda"):
            if algorithm.name == "implicit_gemm" and algorithm.refuse(one, device) is None:
                algorithm.estimate(one, device)
    for kept in (gemm_cost._best_blocking, implicit_gemm.plan_of, implicit_gemm.wgrad_plan_of):
        kept.cache_clear()
    assert seen > 200


@pytest.mark.parametrize(("dtype", "products"), [("bf16", 1), ("f32", 1), ("f32", 3)])
def test_no_plan_of_groups_comes_below_its_bound(
    dtype: str, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plan through shared memory, forward and of the data."""
    bounds: list[float] = []
    least = grouped._Least.seconds

    def noted(*given: Any) -> list[float]:
        found = least(*given)
        bounds.extend(found)
        return [0.0] * len(found)  # nothing is left out

    class Held(Cheapest[Any]):
        seen = 0

        def offer(self, seconds: float, order: tuple[int, ...], make: Any) -> None:
            assert bounds[order[0]] <= seconds
            self.seen += 1

    monkeypatch.setattr(grouped._Least, "seconds", noted)
    layers = [layer.stored(dtype, "nhwc") for suite in ("depthwise", "grouped") for layer in load(suite)]
    held = Held()
    for layer in towards_each(layers, "all")[::17]:
        problem = layer.problem
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            bounds.clear()
            grouped._offer_shared_memory(problem, cuda.offline("sm_90a").facts, held, products)
    assert held.seen > 500
