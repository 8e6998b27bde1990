"""How a warp multiplies two fragments: what products.cuh does, as a cost model counts it."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cuda.convolution.half_precision.shape import Shape


@dataclass(frozen=True)
class Products:
    """How a warp multiplies two fragments: see products.cuh.

    `count`: instructions, of `mma_cycles` each. `is_f32`: factors are made of what is read, and sums are added apart.
    """

    count: int
    is_f32: bool
    mma_cycles: float
    adds: float = 0.0
    """Instructions that add the sums of a product of halves to others."""

    @staticmethod
    def of(shape: Shape, count: int, mma_cycles: float) -> Products:
        return Products(count, shape.size == 4, mma_cycles, 4.0 if shape.in_halves else 0.0)

    def cycles(self, tiles: float) -> float:
        """Cycles of the tensor cores of a multiprocessor for so many tiles of a warp."""
        return self.mma_cycles * self.count * tiles

    def instructions(self, words: float, tiles: float) -> float:
        """Instructions beside loads: `words` of factors are prepared, `tiles` multiplied."""
        if not self.is_f32:
            return (self.count + self.adds) * tiles
        return (7.0 if self.count == 3 else 1.0) * words + (11.0 if self.count == 3 else 5.0) * tiles
