"""What products are said not to come below, beside what they are said to take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from jitdnn.bench.suites import load, towards_each
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.depthwise import geometry, sliding_cost
from jitdnn.kernels.cuda.convolution.grouped import shared_memory_cost, wgrad_cost
from jitdnn.kernels.cuda.convolution.half_precision.cheapest import Cheapest
from jitdnn.kernels.cuda.convolution.implicit_gemm import cost as implicit_gemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.gemm import cost as gemm_cost
from jitdnn.kernels.cuda.warpgroup import best, bound, cost
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Products
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution

LAYERS = [("bf16", "nhwc"), ("f32", "nchw"), ("f32", "nhwc"), ("bf16", "nchw")]


def problems(
    dtype: str, layout: str, every: int, suites: Sequence[str] = ("classic", "modern", "patches")
) -> list[Convolution]:
    layers = [layer.stored(dtype, layout) for suite in suites for layer in load(suite)]
    found = [layer.problem for layer in towards_each(layers, "all")]
    return [one for one in found if isinstance(one, Convolution)][::every]


class _Held(NamedTuple):
    """A model whose times are looked at."""

    seconds: Callable[..., float]
    bound: Callable[..., bound.Least]


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

    def checked(
        products: Any, traits: Any, space: Any, device: Any, model: Any = None, limit: float = float("inf")
    ) -> Any:
        # the second model decides what is looked at, where there is one
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
                model = _Held(held(model.seconds), model.bound)
                patch.setattr(bound.Bound, "seconds", noted)
                patch.setattr("jitdnn.kernels.cuda.warpgroup.best.seconds", beside)
            else:
                patch.setattr("jitdnn.kernels.cuda.warpgroup.best.seconds", held(cost.seconds))
            return original(products, traits, space, device, model, limit)

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
    least = shared_memory_cost._Least.seconds

    def noted(*given: Any) -> list[float]:
        found = least(*given)
        bounds.extend(found)
        return [0.0] * len(found)  # nothing is left out

    class Held(Cheapest[Any]):
        seen = 0

        def offer(self, seconds: float, order: tuple[int, ...], make: Any) -> None:
            assert bounds[order[0]] <= seconds
            self.seen += 1

    monkeypatch.setattr(shared_memory_cost._Least, "seconds", noted)
    layers = [layer.stored(dtype, "nhwc") for suite in ("depthwise", "grouped") for layer in load(suite)]
    held = Held()
    shared_memory_cost._works.cache_clear()
    for layer in towards_each(layers, "all")[::17]:
        problem = layer.problem
        assert isinstance(problem, Convolution)
        if problem.direction != "bwd_filter":
            bounds.clear()
            shared_memory_cost.offer_shared_memory(problem, cuda.offline("sm_90a").facts, held, products)
    shared_memory_cost._works.cache_clear()
    assert held.seen > 500


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("dtype", "layout"), LAYERS)
def test_no_algorithm_comes_below_what_it_says(dtype: str, layout: str, arch: str) -> None:
    """Of all that say something before they are asked for a plan."""
    device = cuda.offline(arch)
    seen: Counter[str] = Counter()
    layers = problems(dtype, layout, 61) + problems(dtype, layout, 17, ("depthwise", "grouped"))
    for one in layers:
        for algorithm in algorithms(one, "cuda"):
            least = algorithm.least_seconds(one, device)
            if least and algorithm.refuse(one, device) is None:
                assert least <= algorithm.estimate(one, device), (algorithm.name, one)
                seen[algorithm.name] += 1
    assert seen["implicit_gemm"] > 20
    assert seen["winograd_2"] > 3
    if dtype == "f32":
        assert seen["implicit_gemm_fma"] > 10
    if arch == "sm_90a" and (dtype, layout) != ("bf16", "nhwc"):
        assert seen["implicit_gemm_wgmma" if dtype == "bf16" else "implicit_gemm_scaled_f16"] > 10
    if (dtype, layout) == ("bf16", "nhwc"):
        assert seen["depthwise_banded"]
        assert seen["grouped"]


@pytest.mark.parametrize(
    "shape",
    [
        "n128 c256 h7 w7 k256 r7 s7 pad6",  # results are thrice as many as pixels
        "n256 c64 h112 w1 k64 r7 s5 pad5 g4",
        "n1024 c256 h7 w8 k48 r3 s3 stride2 pad5",
        "n64 c32 h1 w9 k48 r5 s3 stride3x2 pad4",
    ],
)
@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_no_gradient_of_a_padded_image_comes_below_what_its_algorithm_says(
    shape: str, multiprocessors: int
) -> None:
    device, seen = cuda.offline("sm_90a"), 0
    device = replace(device, facts=replace(device.facts, multiprocessors=multiprocessors))
    one = parse(f"conv_bwd_data {shape} f32 nchw")
    for algorithm in algorithms(one, "cuda"):
        least = algorithm.least_seconds(one, device)
        if least and algorithm.refuse(one, device) is None:
            assert least <= algorithm.estimate(one, device), algorithm.name
            seen += algorithm.name == "direct"
    assert seen == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_no_matrix_product_comes_below_what_its_algorithm_says(dtype: str, arch: str) -> None:
    device, seen = cuda.offline(arch), 0
    for sizes in ("m17 k9 n19", "m512 k768 n3072", "batch6 m512 k64 n512", "m1 k4096 n1000", "m4096 k100 n3"):
        for order in ("", " a=columns", " b=columns", " c=columns"):
            one = parse(f"matmul {sizes} {dtype}{order}")
            for algorithm in algorithms(one, "cuda"):
                least = algorithm.least_seconds(one, device)
                if least and algorithm.refuse(one, device) is None:
                    assert least <= algorithm.estimate(one, device), (algorithm.name, one)
                    seen += 1
    assert seen >= 40


def test_filter_gradients_of_groups_do_not_come_below_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan through shared memory."""
    bounds: list[float] = []
    families = wgrad_cost._families

    def noted(*given: Any) -> Any:
        found = families(*given)
        bounds[:] = [float(least) for family in found for least in family.least]
        return [replace(family, least=0.0 * family.least) for family in found]

    class Held(Cheapest[Any]):
        seen = 0

        def offer(self, seconds: float, order: tuple[int, ...], make: Any) -> None:
            assert bounds[order[0]] <= seconds
            self.seen += 1

    monkeypatch.setattr(wgrad_cost, "_families", noted)
    held, device = Held(), cuda.offline("sm_90a")
    for one in problems("bf16", "nhwc", 7, ("depthwise", "grouped")):
        if one.direction == "bwd_filter" and one.groups > 1:
            wgrad_cost.offer_wgrad_shared_memory(one, device.facts, held)
    assert held.seen > 500


@pytest.mark.parametrize(("dtype", "layout"), LAYERS)
def test_depthwise_rows_do_not_come_below_their_bounds(dtype: str, layout: str) -> None:
    """Of each tile, by its rows."""
    seen = 0
    device = cuda.offline("sm_90a")
    for one in problems(dtype, layout, 23, ("depthwise",)):
        if geometry.refuse(one) or one.k != one.c:
            continue
        window = geometry.lower(one)
        if one.direction == "bwd_filter":
            for work in sliding_cost._wgrad_works(window, device):
                for threads, rows in sliding_cost._divided_wgrad(work.plan):
                    assert work.least <= work.least_of(rows) * (1 + 1e-12)
                    assert work.least_of(rows) <= work.best_splits(rows, threads)[0]
                    seen += 1
        else:
            for own in sliding_cost._works(window, device):
                for threads, rows in sliding_cost._divided(own):
                    assert own.least <= own.least_of(rows) * (1 + 1e-12)
                    assert own.least_of(rows) <= own.seconds(rows, threads)
                    assert own.seconds(rows, threads) == sliding_cost.seconds(own.of(rows, threads), device)
                    seen += 1
    assert seen > 500
