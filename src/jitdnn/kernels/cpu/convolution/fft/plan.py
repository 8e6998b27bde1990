"""The sizes of a convolution by fast Fourier transforms with overlap-save.

    for groups            groups_at_once
      transform w                                  fprop, dgrad
      for images          images_at_once
        for block         of transforms.blocks, on each axis
          transform x     fprop, wgrad             signals_at_once a call of SciPy, from the L2 cache
          transform dy    dgrad, wgrad
          multiply        spectra, summed over channels of x, of y, or over images and blocks     product.py
          back to y, dx   fprop, dgrad             signals_at_once a call of SciPy
      back to dw          wgrad

A *signal* is one channel of one image, or one channel of one filter; a *spectrum* is its transform.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.overlap_save import Transforms
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

SHARED_POINTS = 1 << 18  # of the transforms of a call that SciPy divides among threads


@dataclass(frozen=True)
class FftPlan:
    """The transforms of a convolution, and how many groups, images and signals are taken at once.

    The parts of the workspace begin at multiples of ``line_bytes``.
    """

    problem: Convolution
    transforms: Transforms
    groups_at_once: int
    images_at_once: int
    signals_at_once: int
    line_bytes: int

    @property
    def dtype(self) -> str:
        return compute_dtype(self.problem.dtype)

    @property
    def item(self) -> int:
        """Bytes of a real number."""
        return ITEM_BYTES[self.dtype]

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of x and of y in a group."""
        return self.problem.c // self.problem.groups, self.problem.k // self.problem.groups

    @property
    def spectrum_bytes(self) -> int:
        return 2 * self.item * self.transforms.frequencies

    @property
    def spectra_at_once(self) -> tuple[int, int, int]:
        """Spectra of w, x and y in memory at the same time."""
        (c, k), groups, images = self.channels, self.groups_at_once, self.images_at_once
        return groups * (c * k), groups * (images * c), groups * (images * k)

    @cached_property
    def offsets(self) -> list[int]:
        """Bytes from the start of the workspace to the signals, to the spectra of w, of x and of y, and to the end."""
        sizes = [self.signals_at_once * self.item * self.transforms.points]
        sizes += [self.spectrum_bytes * count for count in self.spectra_at_once]
        rounded = (ceil_div(size, self.line_bytes) * self.line_bytes for size in sizes)
        return list(itertools.accumulate(rounded, initial=0))

    @property
    def workspace(self) -> int:
        """Bytes."""
        return self.offsets[-1]
