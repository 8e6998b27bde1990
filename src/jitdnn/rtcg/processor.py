"""Facts of a processor: what costs and block sizes of generated code derive from.

Nothing in a kernel names the size of a cache: it takes a share of a fact that stands here. Facts are read from the
system and measured (`devices/processor_facts.py`), or given in a file; `REFERENCE` are those of the processor that
the efficiencies of the cost models were fitted on, and what code for other machines than this one is planned with.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Processor:
    """Caches as one thread may count on them, and what it moves: a shared cache is divided among those who share it.

    Sizes are in bytes. Rates are bytes that one thread reads per cycle from beyond the cache before: `l2_rate` from
    the L2 cache, `l3_rate` from the L3 cache, `memory_rate` from memory. `clock` is in Hz, the one at which it
    multiplies. `l3_sharers` are the cores that the L3 cache was divided among.
    """

    line_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    fma_ports: int
    clock: float
    l2_rate: float
    l3_rate: float
    memory_rate: float
    l3_sharers: int = 1

    def l1(self, share: float) -> int:
        """Bytes of a share of the L1 data cache, in whole cache lines."""
        return self._share(self.l1_bytes, share)

    def l2(self, share: float) -> int:
        """Bytes of a share of the L2 cache."""
        return self._share(self.l2_bytes, share)

    def l3(self, share: float) -> int:
        """Bytes of a share of the last cache; where there is no L3 cache that is the L2 cache."""
        return self._share(self.l3_bytes or self.l2_bytes, share)

    def last_cache(self, share: float) -> int:
        """Bytes of a share of the whole last cache: for tensors that all threads read and write."""
        return self._share(self.l3_bytes * self.l3_sharers or self.l2_bytes, share)

    def _share(self, size: int, share: float) -> int:
        return max(1, round(size * share / self.line_bytes)) * self.line_bytes


#: AMD EPYC of Zen 4, two threads of a virtual machine
REFERENCE = Processor(
    line_bytes=64, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=16 << 20, fma_ports=2, clock=3.0e9,
    l2_rate=32.0, l3_rate=12.0, memory_rate=8.0, l3_sharers=2,
)  # fmt: skip
