"""Minimal filtering: exact in rationals for every m and r, and traced as the matrix says."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.devices.cpu_kernel import Arguments, launch
from jitdnn.kernels.cpu.microkernel.constant_matrix import apply, operations
from jitdnn.kernels.formulas.minimal_filtering import MAX_ALPHA, Matrix, from_points, minimal_filtering
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa

SIZES = [(m, r) for m in range(1, MAX_ALPHA) for r in range(1, MAX_ALPHA) if m + r - 1 <= MAX_ALPHA]
integers = st.integers(-99, 99).map(Fraction)


def times(matrix: Matrix, values: list[Fraction]) -> list[Fraction]:
    return [sum((c * v for c, v in zip(row, values, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("m", "r"), SIZES)
@given(data=st.data())
def test_it_is_the_correlation(m: int, r: int, data: st.DataObject) -> None:
    f = minimal_filtering(m, r)
    x = data.draw(st.lists(integers, min_size=m + r - 1, max_size=m + r - 1))
    w = data.draw(st.lists(integers, min_size=r, max_size=r))
    products = [a * b for a, b in zip(times(f.filter, w), times(f.data, x), strict=True)]
    assert times(f.result, products) == [
        sum((w[t] * x[i + t] for t in range(r)), Fraction(0)) for i in range(m)
    ]


def test_points_must_be_enough_and_different() -> None:
    with pytest.raises(ValueError, match="takes 3 different points"):
        from_points(2, 3, [Fraction(0), Fraction(1)])
    with pytest.raises(ValueError, match="takes 3 different points"):
        from_points(2, 3, [Fraction(0), Fraction(1), Fraction(1)])


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (3, 4), (2, 5), (4, 5), (4, 2), (1, 3)])
@pytest.mark.parametrize("name", ["result", "filter", "data"])
def test_traced_maps_are_the_matrices(m: int, r: int, name: str) -> None:
    matrix: Matrix = getattr(minimal_filtering(m, r), name)
    processor = isa("host")
    lanes = processor.lanes("f64")

    def generate(module: Module) -> None:
        with module.task("map") as (k, args, _, _):
            arguments = Arguments(k, args, 2)
            source, target = arguments.pointer(0, "f64"), arguments.pointer(1, "f64")
            values = [source.load(j * lanes, lanes) for j in range(len(matrix[0]))]
            for i, value in enumerate(apply(k, matrix, values)):
                target.store(value, i * lanes)

    library = load("test_linear_map", (m, r, name), processor, generate)
    values = np.random.default_rng(0).standard_normal((len(matrix[0]), lanes))
    results = np.full((len(matrix), lanes), np.nan)
    block = np.array([values.ctypes.data, results.ctypes.data, 0, 0, 0], np.int64).tobytes()
    launch(library, [(library.address("map"), 1)], block, 1, ())
    expected = np.array([[float(c) for c in row] for row in matrix]) @ values
    np.testing.assert_allclose(results, expected, rtol=0, atol=1e-13)


def test_sharing_saves_operations() -> None:
    f = minimal_filtering(4, 3)
    for matrix in (f.data, f.filter, f.result):
        assert operations(matrix) < sum(1 for row in matrix for c in row if c)
