"""How a warp multiplies two fragments, as products.cuh does it: the counts for a cost model."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape

HALVES = 2
"""In place of a number of products: f32 is divided into two halves before; two steps of channels are one of these."""

HALVES_FOR_ONE = 1.5
"""Products of halves for one of tf32, where three are needed."""
HEADER_BYTES = 2048
"""Of what kernels of halves know of the tensors, in the workspace; as in halves.cuh."""


@dataclass(frozen=True)
class Products:
    """How a warp multiplies two fragments: see products.cuh.

    `count`: instructions, of `mma_cycles` each. `is_f32`: factors are made of what is read, and sums are added apart.
    `of_word`, `of_tile`: instructions beside loads for a word of a factor, and for a tile.
    """

    count: float
    is_f32: bool
    mma_cycles: float
    of_word: float
    of_tile: float

    @staticmethod
    def of(shape: Shape, count: int, mma_cycles: float) -> Products:
        if shape.size != 4:
            return Products(count, False, mma_cycles, 0.0, count + (4.0 if shape.in_halves else 0.0))
        if count == HALVES:
            return Products(HALVES_FOR_ONE, True, mma_cycles, 0.0, 3.5)
        return Products(count, True, mma_cycles, 7.0 if count == 3 else 1.0, 11.0 if count == 3 else 5.0)

    def cycles(self, tiles: float) -> float:
        """Cycles of the tensor cores of a multiprocessor for so many tiles of a warp."""
        return self.mma_cycles * self.count * tiles

    def instructions(self, words: float, tiles: float) -> float:
        """Instructions beside loads: `words` of factors are prepared, `tiles` multiplied."""
        return self.of_word * words + self.of_tile * tiles
