"""The sizes of implicit GEMM of 8-bit integers: those of ../plan.py, where an element is a word of four channels.

A word of 32 bits is what a lane of vpdpbusd multiplies. So depth, kc and PACK_CHANNELS count words, and input tiles,
panels and sums have elements of type i32."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import ImplicitGemmPlan
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import Panels

WORD_CHANNELS = 4


@dataclass(frozen=True)
class VnniPanels(Panels):
    """A filter packed as [group][panel][word][taps][lanes of results]; behind each panel its initial sums."""

    @property
    def initial_sums(self) -> int:
        """The offset in a panel of the values that sums begin with, one for each lane."""
        return super().panel_size

    @property
    def panel_size(self) -> int:
        return self.initial_sums + self.lanes


@dataclass(frozen=True, kw_only=True)
class VnniPlan(ImplicitGemmPlan):
    """Implicit GEMM of a correlation whose depth counts words, with sums of type i32."""

    channels_read: int  # of a convolution's group
    computing: str  # the type of the epilogue
    is_shifted: bool  # x has a sign, and 128 is added to it

    def panels_of(self, c: Correlation) -> VnniPanels:
        panels = super().panels_of(c)
        return VnniPanels(panels.lanes, panels.count, panels.taps, panels.depth)

    @property
    def vnni_panels(self) -> VnniPanels:
        return self.panels_of(self.c)

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        return [(f"{prefix}pack", self.c.group_count * self.panels.count), (f"{prefix}tiles", self.tasks)]
