"""Facts of a GPU: what block sizes and costs of its kernels derive from.

A kernel's model takes sizes, clocks and rates from here, and adds what it was fitted to (`kernels/cuda/cost.py`). The
driver tells most of them (`devices/cuda.py`); what it does not, the rates, stands here by compute capability. GPUs on
paper have the facts of a well-known one of their architecture. The device file (device_file.py) states others in its
section "cuda", for every NVIDIA GPU of the process and those on paper.

Sources: NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities" (registers, threads, blocks, shared memory) and
"Arithmetic Instructions" (f32, f64); NVIDIA's whitepapers of the A100, GA102, AD102, H100 and RTX Blackwell for tensor
cores, clocks and memory. What is said of the H100 was read from one; the others were not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from jitdnn.devices.device_file import Range, stated
from jitdnn.tensor import compute_dtype

OLDEST = 80
"""Compute capability 8.0: asynchronous copies, bf16."""

_COPY_SHARE = 0.9  # of the bytes that the memory's pins move: what a copy reaches
_MMA_SHARE = 0.703125  # of the rate of `mma`: what whole kernels reach, on an H100
_OF_HALVES = {
    "f16": 1.0,
    "bf16": 1.0,
    "f32": 0.5,
    "i8": 2.0,
}  # rates of `mma` to those of f16; f32 stands for tf32


@dataclass(frozen=True)
class GpuFacts:
    """Sizes, clock and rates of a GPU; rates are those of one multiprocessor in one cycle.

    `capability`: 10 * major + minor, 0 where there is no such thing. `clock`: Hz, the highest, as the driver states it.
    `bytes_per_second`: of the memory's pins. `shared_bytes`: shared memory that a thread block may have at most;
    `reserved_shared_bytes`: what the system takes beside that of each. `registers` (of 32 bits), `resident_threads` and
    `resident_blocks`: of a multiprocessor. `f32_rate`, `f64_rate`: operations, two to a multiply-add. `mma_rate`:
    operations of `mma.sync` on f16 with sums in f32; 0 without tensor cores. `l2_bytes_per_cycle`,
    `shared_bytes_per_cycle`: the widths of the paths to L2 and shared memory.
    """

    model: str
    capability: int
    multiprocessors: int
    clock: float
    bytes_per_second: float
    memory_bytes: int
    l2_bytes: int
    shared_bytes: int
    reserved_shared_bytes: int
    registers: int
    resident_threads: int
    resident_blocks: int
    f32_rate: int
    f64_rate: int
    mma_rate: int
    l2_bytes_per_cycle: int = 64
    shared_bytes_per_cycle: int = 128

    @cached_property  # asked for by every estimate
    def bandwidth(self) -> float:
        """Memory bandwidth in bytes a second, read and written together, as a copy reaches it."""
        return _COPY_SHARE * self.bytes_per_second

    @property
    def mma_cycles(self) -> float:
        """Cycles of a product of 16 x 8 x 16 numbers of half precision, all tensor cores of a multiprocessor busy."""
        return 2 * 16 * 8 * 16 / self.mma_rate

    def resident(self, shared: int) -> int:
        """Thread blocks of `shared` bytes of shared memory that a multiprocessor has room for; 0 if not even one."""
        reserved = self.reserved_shared_bytes
        return min(self.resident_blocks, (self.shared_bytes + reserved) // max(1, shared + reserved))

    def peak_flops(self, dtype: str) -> float:
        """Peak rate of the ordinary units in operations a second, with products of this type."""
        rate = self.f64_rate if compute_dtype(dtype) == "f64" else self.f32_rate
        return rate * self.multiprocessors * self.clock

    def tensor_flops(self, dtype: str) -> float:
        """Rate that kernels of `mma` reach on products of this type, in operations a second; 0 if there are none."""
        rate = self.mma_rate * _MMA_SHARE * _OF_HALVES.get(dtype, 0.0)
        return rate * self.multiprocessors * self.clock


class FromFacts:
    """What a `GpuDevice` has by its facts."""

    facts: GpuFacts
    cooperates = False

    @property
    def multiprocessors(self) -> int:
        return self.facts.multiprocessors

    @property
    def shared_bytes(self) -> int:
        return self.facts.shared_bytes

    @property
    def cache_bytes(self) -> int:
        return self.facts.l2_bytes

    @property
    def bandwidth(self) -> float:
        return self.facts.bandwidth

    def peak_flops(self, dtype: str) -> float:
        return self.facts.peak_flops(dtype)

    def tensor_flops(self, dtype: str) -> float:
        return self.facts.tensor_flops(dtype)


# ---- by compute capability

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Architecture:
    """What all GPUs of a compute capability have in common."""

    shared_kib: int
    resident_threads: int
    resident_blocks: int
    f32_rate: int
    f64_rate: int
    mma_rate: int
    registers: int = 65536
    reserved_shared_bytes: int = 1024


# On Hopper and later `mma.sync` is slower than their newer instructions: a product of 16 x 8 x 16 takes an H100 1.6
# cycles, as measured; those of datacenter Blackwell are taken to be no slower.
_ARCHITECTURES = {
    80: _Architecture(163, 2048, 32, 128, 64, 2048), 86: _Architecture(99, 1536, 16, 256, 4, 1024),
    87: _Architecture(163, 1536, 16, 256, 4, 1024), 89: _Architecture(99, 1536, 24, 256, 4, 1024),
    90: _Architecture(227, 2048, 32, 256, 128, 2560), 100: _Architecture(227, 2048, 32, 256, 128, 2560),
    103: _Architecture(227, 2048, 32, 256, 4, 2560), 110: _Architecture(227, 1536, 24, 256, 4, 1024),
    120: _Architecture(99, 1536, 24, 256, 4, 1024), 121: _Architecture(99, 1536, 24, 256, 4, 1024),
}  # fmt: skip


def mma_rate(model: str, capability: int) -> int:
    """Operations of `mma.sync` a cycle: GeForce GPUs add in f32 at half the rate of others of their architecture."""
    rate = _nearest(_ARCHITECTURES, capability).mma_rate
    return rate // 2 if "GeForce" in model else rate


def architecture(capability: int) -> dict[str, int]:
    """The facts that follow from a compute capability, or the nearest older one that is known, by name."""
    found = _nearest(_ARCHITECTURES, capability)
    return {
        "shared_bytes": found.shared_kib << 10,
        **{field.name: getattr(found, field.name) for field in fields(found) if field.name != "shared_kib"},
    }


def _nearest(table: Mapping[int, _Found], capability: int) -> _Found:
    return table[max((known for known in table if known <= capability), default=OLDEST)]


# ---- on paper

# model, multiprocessors, clock, transfers a second of a pin, pins of the memory, its bytes, those of L2
_MODELS = {
    80: ("NVIDIA A100-SXM4-80GB", 108, 1.41e9, 3.186e9, 5120, 80 << 30, 40 << 20),
    86: ("NVIDIA GeForce RTX 3090", 82, 1.695e9, 19.502e9, 384, 24 << 30, 6 << 20),
    87: ("NVIDIA Jetson AGX Orin", 16, 1.3e9, 6.4e9, 256, 61 << 30, 4 << 20),
    89: ("NVIDIA GeForce RTX 4090", 128, 2.52e9, 21.002e9, 384, 24 << 30, 72 << 20),
    90: ("NVIDIA H100 80GB HBM3", 132, 1.98e9, 5.238e9, 5120, 85_017_493_504, 50 << 20),
    100: ("NVIDIA B200", 148, 1.965e9, 8e9, 8192, 180 << 30, 126 << 20),
    120: ("NVIDIA GeForce RTX 5090", 170, 2.407e9, 28e9, 512, 32 << 30, 96 << 20),
}


def on_paper(capability: int) -> GpuFacts:
    """The facts of a well-known GPU of this compute capability, or of the nearest older one that there is."""
    model, multiprocessors, clock, transfers, pins, memory, cache = _nearest(_MODELS, capability)
    found = GpuFacts(
        model,
        capability,
        multiprocessors,
        clock,
        transfers * pins / 8,
        memory,
        cache,
        **architecture(capability),
    )
    return replace(found, mma_rate=mma_rate(model, capability))


# ---- stated

_RANGES = {
    "multiprocessors": Range(1, 4096),
    "clock": Range(1e6, 1e11, is_integer=False),
    "bytes_per_second": Range(1e6, 1e16, is_integer=False),
    "memory_bytes": Range(1 << 20, 1 << 50),
    "l2_bytes": Range(1 << 10, 1 << 40),
    # what every device with compute capability 8.0 or later has is the least
    "shared_bytes": Range(48 << 10, 1 << 24),
    "reserved_shared_bytes": Range(0, 1 << 16),
    "registers": Range(1 << 14, 1 << 24),
    "resident_threads": Range(1 << 10, 1 << 16),
    "resident_blocks": Range(1, 1 << 10),
    **{
        name: Range(1, 1 << 20)
        for name in ("f32_rate", "f64_rate", "mma_rate", "l2_bytes_per_cycle", "shared_bytes_per_cycle")
    },
}


def as_stated(found: GpuFacts) -> tuple[GpuFacts, tuple[tuple[str, float], ...]]:
    """Facts with those that the device file states in their place, and its efficiencies of algorithms.

    Raises InvalidArgument for a file that states nonsense.
    """
    given = stated("cuda", _RANGES)
    facts: dict[str, Any] = dict(given.facts)
    return (replace(found, **facts) if facts else found), given.efficiency
