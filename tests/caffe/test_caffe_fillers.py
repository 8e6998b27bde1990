"""Fillers: their range, mean and spread, and the formulas that have no chance in them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from caffe_nets import Array
from jitdnn.caffe.fillers import fill
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.schema_layers import FillerParameter
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

SHAPE = (50, 20, 5, 8)  # 40,000 values; fan-in 800, fan-out 2,000
COUNT = math.prod(SHAPE)


def filled(text: str, shape: tuple[int, ...] = SHAPE, seed: int = 1) -> Array:
    array = np.full(shape, np.nan, np.float64)
    fill(parse(text, FillerParameter), array, np.random.default_rng(seed))
    return array


def check_moments(values: Array, mean: float, deviation: float) -> None:
    """Five standard errors: σ/√n of the mean, and of the deviation at most about σ/√(2n)."""
    n = values.size
    assert abs(values.mean() - mean) < 5 * deviation / math.sqrt(n)
    assert abs(values.std() - deviation) < 5 * deviation / math.sqrt(2 * n)


def test_constant() -> None:
    assert (filled("") == 0).all()
    assert (filled('type: "constant" value: -2.5') == -2.5).all()


def test_uniform() -> None:
    values = filled('type: "uniform" min: -1 max: 3')
    assert values.min() >= -1
    assert values.max() < 3
    check_moments(values, 1, 4 / math.sqrt(12))
    default = filled('type: "uniform"')
    assert default.min() >= 0
    check_moments(default, 0.5, 1 / math.sqrt(12))


def test_gaussian() -> None:
    check_moments(filled('type: "gaussian"'), 0, 1)
    values = filled('type: "gaussian" mean: 3 std: 0.1')
    check_moments(values, 3, 0.1)
    # 4.55 % lie outside of two deviations; the standard error of that share is 0.10 %
    assert abs((abs(values - 3) > 0.2).mean() - 0.0455) < 0.005


def test_sparse_gaussian() -> None:
    values = filled('type: "gaussian" std: 2 sparse: 5')
    share = 5 / SHAPE[0]
    assert abs((values != 0).mean() - share) < 5 * math.sqrt(share * (1 - share) / COUNT)
    check_moments(values[values != 0], 0, 2)


@pytest.mark.parametrize(("norm", "fan"), [("FAN_IN", 800), ("FAN_OUT", 2000), ("AVERAGE", 1400)])
def test_xavier_and_msra(norm: str, fan: int) -> None:
    xavier = filled(f'type: "xavier" variance_norm: {norm} std: 9')
    assert abs(xavier).max() <= math.sqrt(3 / fan)
    check_moments(xavier, 0, 1 / math.sqrt(fan))
    msra = filled(f'type: "msra" variance_norm: {norm}')
    check_moments(msra, 0, math.sqrt(2 / fan))
    assert abs(msra).max() > 3 * math.sqrt(2 / fan)


def test_fan_in_is_the_default_and_works_for_one_axis() -> None:
    np.testing.assert_array_equal(filled('type: "xavier"'), filled('type: "xavier" variance_norm: FAN_IN'))
    assert abs(filled('type: "xavier"', (100,))).max() <= math.sqrt(3)
    with pytest.raises(InvalidShape, match="no fan-out"):
        filled('type: "xavier" variance_norm: AVERAGE', (100,))


def test_positive_unitball() -> None:
    values = filled('type: "positive_unitball"')
    assert values.min() > 0
    np.testing.assert_allclose(values.reshape(SHAPE[0], -1).sum(1), 1, rtol=1e-12)


def test_bilinear() -> None:
    """Upsampling by 2 has the kernel of 4 with the weights ¼ ¾ ¾ ¼ on each axis."""
    values = filled('type: "bilinear"', (2, 1, 4, 4))
    row = np.array([0.25, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(values, np.broadcast_to(np.outer(row, row), (2, 1, 4, 4)))
    np.testing.assert_allclose(
        filled('type: "bilinear"', (1, 1, 3, 3))[0, 0], np.outer([0.5, 1, 0.5], [0.5, 1, 0.5])
    )
    with pytest.raises(InvalidShape, match="no square kernel"):
        filled('type: "bilinear"', (1, 1, 3, 4))


@pytest.mark.parametrize("kind", ["uniform", "gaussian", "xavier", "msra", "positive_unitball"])
def test_chance_comes_from_the_seed(kind: str) -> None:
    first, same, other = (filled(f'type: "{kind}"', (3, 4), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_single_precision_is_the_double_one_rounded() -> None:
    single = np.empty(SHAPE, np.float32)
    fill(parse('type: "xavier"', FillerParameter), single, np.random.default_rng(1))
    np.testing.assert_array_equal(single, filled('type: "xavier"').astype(np.float32))


def test_an_empty_weight_is_left_alone() -> None:
    assert filled('type: "xavier"', (0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ('type: "normal"', NotSupported, r"'normal' \(line 1\): there are constant, uniform"),
        ('type: "uniform" min: 2', InvalidArgument, "min 2 is above max 1"),
        ('type: "gaussian" std: -1', InvalidArgument, "negative"),
    ],
)
def test_fillers_that_cannot_be(text: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        filled(text)
