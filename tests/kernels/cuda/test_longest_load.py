"""What the thread block that has most to do is held to take, of products by warpgroups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.kernels.cuda.warpgroup.plan import Products, longest_load
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile


@given(
    rows=st.lists(st.integers(0, 3000), min_size=2, max_size=8), n=st.integers(1, 400),
    multiprocessors=st.integers(1, 20), tile=st.sampled_from(TILES),
)  # fmt: skip
def test_the_busiest_thread_block(rows: list[int], n: int, multiprocessors: int, tile: Tile) -> None:
    """Tiles of stride phases, one phase behind the other, are dealt to the thread blocks, there and back again."""
    products = Products(tuple(rows), tuple(range(len(rows))), n, 1)
    cycles = [1000.0 + 10 * number for number in range(len(rows))]
    loads = [0.0] * multiprocessors
    every = [
        one
        for count, one in zip(rows, cycles, strict=True)
        for _ in range(-(-count // tile.m) * -(-n // tile.n))
    ]
    for number, one in enumerate(every):
        turn, block = divmod(number, multiprocessors)
        loads[multiprocessors - 1 - block if turn % 2 else block] += one
    assert longest_load(products, tile, multiprocessors, cycles) == pytest.approx(max(loads))
