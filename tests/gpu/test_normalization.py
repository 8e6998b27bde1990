"""Batch, layer, RMS, group and instance normalization on GPUs, forward and backward, statistics and running state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import ARRANGEMENTS, make_case
from examples import examples
from harness import check, run
from jitdnn.kernels.formulas.normalization_steps import RowNormalization, size_of
from jitdnn.kernels.gpu.normalization import layer_norm_backward
from jitdnn.kernels.gpu.normalization.layer_norm_backward import FusedLayerNorm
from jitdnn.kernels.gpu.normalization.plan import plan_of
from jitdnn.kernels.gpu.reduction.generator import RowKernel, RowLoops
from jitdnn.problems.normalization import Normalization
from normalization_cases import inputs_of, normalization, rearranged
from strategies import normalizations

ROWS, FUSED = RowNormalization(RowLoops(), plan_of), FusedLayerNorm()
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FIXTURES = (HealthCheck.function_scoped_fixture,)


def only_kernel(problem: Normalization, device: Any) -> RowKernel:
    """That of the only step."""
    plan = plan_of(problem, device)
    (step,) = plan.steps
    return RowLoops().kernel(step, device, plan.pointers)


BATCH_KINDS = [
    "batch_norm_fwd spatial",
    "batch_norm_fwd spatial relu add",
    "batch_norm_fwd per_activation",
    "batch_norm_inference spatial",
    "batch_norm_inference per_activation tanh add",
    "batch_norm_bwd spatial",
    "batch_norm_bwd spatial relu add",
    "batch_norm_bwd per_activation sigmoid",
    "batch_norm_bwd spatial swish from_x",
]
BATCH_SHAPES = [
    "shape1x1",
    "shape7x1",
    "shape33x17",
    "shape4x19x5x7",
    "shape4x24x5x7 nhwc",
    "shape3x2x33x31",
    "shape2x3x4x5x6",
    "shape4x3x3x3 f64",
    "shape4x5x3x7 f16",
    "shape4x8x3x7 bf16 narrow nhwc",
    "shape2x3x64x64 bf16",
]
BATCH = [
    f"{kind} {words}"
    for i, words in enumerate(BATCH_SHAPES)
    for j, kind in enumerate(BATCH_KINDS)
    if (i + j) % 4 == 0
]
BATCH += [
    f"{kind} {words}"
    for words in ("shape2x2x200x201", "shape3x40x70x31 nhwc", "shape2000x130")
    for kind in (BATCH_KINDS[0], BATCH_KINDS[6])
]
PARTS = [
    "batch_norm_fwd spatial no_weight no_bias no_running no_save shape3x5x4x4",
    "batch_norm_inference spatial no_weight no_bias relu shape3x5x4x4",
    "batch_norm_bwd spatial no_weight shape3x5x4x4",
    "batch_norm_bwd per_activation no_weight no_bias shape3x5x4x4",
    "layer_norm_fwd no_weight no_bias no_save shape3x70 axis1",
    "layer_norm_bwd no_bias shape3x70 axis1",
    "rms_norm_bwd no_weight shape3x70 axis1",
]
LAYER = [
    f"{form}_norm_{direction} {words}"
    for n, words in enumerate(
        (
            "shape1 axis0",
            "shape7x1 axis1",
            "shape5x63 axis1",
            "shape9x17x6 axis1",
            "shape3x4x5x6 axis2 nhwc",
            "shape4x1000 axis1 bf16",
            "shape3x4099 axis1 f16 narrow",
            "shape200x64 axis1 bf16",
            "shape2x50000 axis1",
            "shape3x33 axis1 f64",
            "shape40x96 axis1 wide bf16",
            "shape5x63 axis1 wide f16 narrow",
        )
    )
    for direction in ("fwd", "bwd")
    for form in ("layer", "rms")
    if n < 3 or (form == "layer") == bool(n % 2)
]
GROUP = [
    f"group_norm_{direction} {words}"
    for words in (
        "groups1 shape2x1",
        "groups3 shape2x6x5x7",
        "groups6 shape2x6x5x7",  # instance normalization
        "groups4 shape3x16x4x5 nhwc",
        "groups2 shape2x4x33x31",
        "groups2 shape2x8x40x40 bf16 narrow nhwc",
        "groups2 shape2x8x16 f16",
        "groups8 shape2x8x5x40 wide bf16",
        "groups2 shape2x8x10x9 wide bf16 nhwc",
        "leaky_relu groups8 shape2x8x3x4x5 bf16 nhwc",
        "swish groups2 shape2x6x5x7",
        "leaky_relu groups3 shape5x6",
        "clipped_relu groups4 shape3x16x40 f16 narrow nhwc",
        "groups5 shape2x5x3x3 f64 nhwc",
        "groups3 shape5x33x1x6x23 f16",  # rows for two subgroups of threads
    )
    for direction in ("fwd", "bwd")
]


def check_it(problem: Normalization, device: Any, **options: Any) -> None:
    assert "rows" in check(problem, device, inputs=inputs_of(problem), **options)


@pytest.mark.parametrize("kind", ["layer_norm_fwd", "rms_norm_fwd", "rms_norm_fwd no_weight"])
@pytest.mark.parametrize(
    "words",
    [
        "shape3x1000 axis1 bf16",
        "shape5x2053 axis1 f16",
        "shape2x4096 axis1",
        "shape3x1030 axis1",
        "shape4x3x600 axis2",
        "shape3x1000 axis1 wide bf16",
    ],
)
def test_rows_of_several_vectors(words: str, kind: str, device: Any) -> None:
    """Weights come vector by vector while the row is held."""
    problem = normalization(f"{kind} {words}")
    kernel = only_kernel(problem, device)
    assert kernel.layout.in_registers
    assert kernel.layout.steps > 1
    check(problem, device, scales=((1.0, 0.0), (1.5, 0.5)))


@pytest.mark.parametrize("text", [*BATCH, *PARTS, *LAYER, *GROUP])
def test_awkward_shapes(text: str, device: Any) -> None:
    check_it(normalization(text), device)


@pytest.mark.parametrize(
    "text",
    [
        "layer_norm_bwd shape200x64 axis1 bf16",
        "rms_norm_bwd shape9x17x6 axis1",
        "layer_norm_bwd no_weight shape4x1000 axis1 bf16 narrow",
        "layer_norm_bwd no_bias shape300x4099 axis1 f16",
        "layer_norm_bwd shape200x96 axis1 wide bf16",
        "layer_norm_bwd no_bias shape33x1001 axis1 wide f16 narrow",
        "rms_norm_bwd shape9x17x6 axis1 wide bf16",
        "layer_norm_bwd shape300x3 axis1",  # a row is a thread's
        "layer_norm_bwd shape131x24 axis1 f16",
        "layer_norm_bwd shape70x96 axis1 bf16",  # eight rows a subgroup
        "layer_norm_bwd no_weight shape65x96 axis1 wide bf16",
        "rms_norm_bwd shape33x100 axis1",
        "layer_norm_bwd shape9x768 axis1 wide f16 narrow",  # a subgroup's
        "layer_norm_bwd shape7x768 axis1",  # two subgroups', and two rows of a thread block
        "layer_norm_bwd no_bias shape5x1536 axis1 bf16",
    ],
)
@pytest.mark.parametrize("turns", [1, 7])
def test_gradients_in_one_pass(text: str, turns: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By thread blocks that have one turn, or up to so many, of which the last is not whole."""
    monkeypatch.setattr(layer_norm_backward, "_TURNS_ALONE", 0)
    monkeypatch.setattr(layer_norm_backward, "_resident", lambda *_: 1)
    problem = normalization(text)
    plan = FUSED.plan(problem, device, None)
    parts = -(-size_of(problem, problem.rows) // (plan.block_threads // plan.threads))
    monkeypatch.setattr(type(device), "multiprocessors", max(1, parts // turns))
    assert "fused" in check(problem, device, inputs=inputs_of(problem), only=["fused"])


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 65])
def test_gradients_of_one_thread_block(rows: int, device: Any) -> None:
    """One turn is taken by one thread block, which leaves no sums for a second launch."""
    problem = normalization(f"layer_norm_bwd shape{rows}x96 axis1 bf16")
    assert FUSED.plan(problem, device, None).is_alone == (rows <= 32)
    assert "fused" in check(problem, device, inputs=inputs_of(problem), only=["fused"])


def test_rows_that_no_group_holds_are_refused(device: Any) -> None:
    reason = FUSED.refuse(normalization("layer_norm_bwd shape2x50000 axis1"), device)
    assert reason == "a row has 50000 elements: at most 8192 stay in the registers of a group"


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize(
    "text",
    [
        "batch_norm_fwd spatial relu add shape3x18x5",
        "batch_norm_bwd spatial relu add shape3x18x5",
        "layer_norm_bwd shape3x18x5 axis1",
        "group_norm_fwd groups6 shape3x18x5",
    ],
)
def test_orders_in_memory(text: str, arrangement: str, device: Any) -> None:
    check_it(rearranged(normalization(text), arrangement), device)


@settings(max_examples=examples(20), deadline=None, phases=PHASES, suppress_health_check=FIXTURES)
@given(problem=normalizations())
def test_any_normalization(device: Any, problem: Normalization) -> None:
    check_it(problem, device, scales=((1.5, 0.0), (1.0, 1.0)))


def results(problem: Normalization, arrays: list[Any], device: Any) -> list[Any]:
    kernel = ROWS.build(problem, device)
    return run(device, kernel, make_case(problem, given=arrays), ROWS.workspace(problem, device))


@pytest.mark.parametrize("outlier", [None, 0.0, 1e4])
@pytest.mark.parametrize(
    "words", ["shape8x3x9x9", "shape8x3x9x9 nhwc", "shape2x2x300x301", "shape4x40x90x31 nhwc"]
)
def test_a_mean_far_from_zero_costs_no_digits(words: str, outlier: float | None, device: Any) -> None:
    """The variance of numbers around 1000 is as exact as that of numbers around 0, whatever comes first."""
    problem = normalization(f"batch_norm_fwd spatial {words}")
    arrays = inputs_of(problem, mean=1000.0)
    if outlier is not None:
        arrays[0][0, :, 0, 0] = outlier
    expected = problem.reference(*(a.astype(np.float64) for a in arrays))
    for operand, actual, wanted in zip(
        problem.outputs, results(problem, arrays, device), expected, strict=True
    ):
        # y is as exact as mean is: 1000 has its last digit at 6e-5
        tolerance = 3e-4 if operand.name == "y" else 3e-6
        np.testing.assert_allclose(actual, wanted, rtol=3e-6, atol=tolerance, err_msg=operand.name)


@pytest.mark.parametrize("words", ["shape4x3x5x5", "shape4x3x5x5 nhwc"])
def test_nan_spoils_its_own_channel_only(words: str, device: Any) -> None:
    problem = normalization(f"batch_norm_fwd spatial {words}")
    arrays = inputs_of(problem)
    arrays[0][1, 2, 3, 4] = np.nan
    for result in results(problem, arrays, device):
        axis = tuple(a for a in range(result.ndim) if a != (1 if result.ndim > 1 else 0))
        assert np.isnan(result).any(axis=axis).tolist() == [False, False, True]


def test_one_element_has_variance_zero(device: Any) -> None:
    problem = normalization("batch_norm_fwd spatial shape1x3 factor1.0")
    arrays = inputs_of(problem)
    y, mean, rstd, running_mean, running_var = results(problem, arrays, device)
    np.testing.assert_allclose(np.ravel(y), arrays[2], atol=1e-6)
    np.testing.assert_allclose(mean, np.ravel(arrays[0]), rtol=1e-6)
    np.testing.assert_allclose(rstd, 1e-5**-0.5, rtol=1e-6)
    np.testing.assert_allclose(running_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(running_var, 0, atol=1e-12)


def test_with_factor_1_old_statistics_are_not_read(device: Any) -> None:
    problem = normalization("batch_norm_fwd spatial shape4x3x5x5 factor1.0")
    arrays = inputs_of(problem)
    wanted = results(problem, arrays, device)
    found = results(problem, [*arrays[:-2], *(np.full_like(array, np.nan) for array in arrays[-2:])], device)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    axes = (0, 2, 3)
    np.testing.assert_allclose(found[-2], np.asarray(arrays[0], np.float64).mean(axes), rtol=1e-5, atol=1e-6)


def test_a_row_is_read_once(device: Any) -> None:
    kernel = only_kernel(normalization("layer_norm_fwd shape64x1024 axis1"), device)
    assert kernel.layout.in_registers


@pytest.mark.parametrize(
    "words",
    [
        "layer_norm_{} shape64x4096 axis1 bf16",
        "layer_norm_{} shape64x16384 axis1",
        "batch_norm_{} spatial relu add shape32x64x56x56 f16",
        "batch_norm_{} spatial shape32x64x56x56 bf16 nhwc",
        "group_norm_{} groups8 shape8x64x56x56",
    ],
)
def test_compiles(words: str, architecture: Any) -> None:
    for direction in ("fwd", "bwd"):
        problem = normalization(words.format(direction))
        ROWS.build(problem, architecture)
        if "layer" in words and direction == "bwd" and not FUSED.refuse(problem, architecture):
            FUSED.build(problem, architecture)
