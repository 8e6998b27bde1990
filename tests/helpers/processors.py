"""Instruction sets on processors of other machines, by the sizes of their caches."""

from __future__ import annotations

from dataclasses import replace

from jitdnn.rtcg.isa import Isa, isa
from jitdnn.rtcg.processor import REFERENCE


def machine(name: str, l1: int, l2: int, l3: int) -> Isa:
    """An instruction set on a processor with caches of so many KiB for each core."""
    facts = replace(REFERENCE, l1_bytes=l1 << 10, l2_bytes=l2 << 10, l3_bytes=l3 << 10)
    return replace(isa(name), processor=facts)


MACHINES = {
    "Sapphire Rapids": machine("avx512", 48, 2048, 1920),
    "Zen 3": machine("avx2", 32, 512, 2048),
    "Graviton 3": machine("neon", 64, 1024, 512),
}
