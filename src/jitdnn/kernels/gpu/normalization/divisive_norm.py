"""Divisive normalization on GPUs, which is the local one with means."""

from __future__ import annotations

from jitdnn.kernels.gpu.normalization.lrn import PlainWindowNorm
from jitdnn.problems.divisive_norm import DivisiveNorm


class PlainDivisiveNorm(PlainWindowNorm):
    """Divisive normalization, with means or without."""

    problem = DivisiveNorm
