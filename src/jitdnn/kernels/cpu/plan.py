"""What the plans of all algorithms of one correlation begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.rtcg.processor import Processor


@dataclass(frozen=True)
class CorrelationPlan:
    """How one correlation is computed. Sizes are in elements of the type of its arithmetic unless said otherwise."""

    c: Correlation
    isa: Isa

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def item(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.c.dtype]

    @property
    def processor(self) -> Processor:
        return self.isa.processor
