"""SPP: values by loops, gradients by differences, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_nets import Array, check_gradients, distinct, forward, one_layer
from jitdnn.errors import InvalidArgument, NotSupported


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(18)


def _level(x: Array, bins: int, is_maximum: bool) -> Array:
    """One level: (N, C · bins · bins). The divisor of AVE counts the padding, not what lies beyond it."""
    size = [-(-extent // bins) for extent in x.shape[2:]]
    pads = [(k * bins - extent + 1) // 2 for k, extent in zip(size, x.shape[2:], strict=True)]
    result = np.empty((*x.shape[:2], bins, bins))
    for i, j in np.ndindex(bins, bins):
        starts = [place * k - pad for place, k, pad in zip((i, j), size, pads, strict=True)]
        ends = [start + k for start, k in zip(starts, size, strict=True)]
        inside = [slice(max(0, start), end) for start, end in zip(starts, ends, strict=True)]
        window = x[:, :, inside[0], inside[1]]
        number = 1
        for start, end, extent, pad in zip(starts, ends, x.shape[2:], pads, strict=True):
            number *= min(end, extent + pad) - start
        result[:, :, i, j] = window.max((2, 3)) if is_maximum else window.sum((2, 3)) / number
    return result.reshape(len(x), -1)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("height", "shape"), [(1, (2, 3, 5, 4)), (2, (2, 1, 4, 7)), (3, (1, 2, 7, 8)), (3, (2, 2, 12, 11))]
)
def test_values_and_gradients(
    pool: str, height: int, shape: tuple[int, ...], random: np.random.Generator
) -> None:
    x = distinct(shape, random)
    net, node = one_layer(f'type: "SPP" spp_param {{ pyramid_height: {height} pool: {pool} }}', shape)
    expected = np.concatenate([_level(x, 2**number, pool == "MAX") for number in range(height)], axis=1)
    np.testing.assert_allclose(forward(net, x0=x), expected, rtol=1e-12)
    check_gradients(net, node, x, random)


def test_what_it_refuses() -> None:
    with pytest.raises(NotSupported, match="pool STOCHASTIC"):
        one_layer('type: "SPP" spp_param { pyramid_height: 1 pool: STOCHASTIC }', (1, 1, 4, 4))
    with pytest.raises(
        InvalidArgument, match=r"'l' \(SPP\) \(line 2\): pyramid_height is 0: it must be in 1 .. 16"
    ):
        one_layer('type: "SPP"', (1, 1, 4, 4))
    with pytest.raises(InvalidArgument, match="level 1 of the pyramid has 2 x 2 windows"):
        one_layer('type: "SPP" spp_param { pyramid_height: 2 }', (1, 1, 1, 4))
    with pytest.raises(InvalidArgument, match="4 axes"):
        one_layer('type: "SPP" spp_param { pyramid_height: 2 }', (1, 4))
