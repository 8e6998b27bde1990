"""Instruction sets: what a generator must know of the processor that its code will run on."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.processor import REFERENCE, Processor
from jitdnn.tensor import DTYPES, FLOAT8_DTYPES

ITEM_BYTES = DTYPES  # of an element in memory
HALVES = ("f16", "bf16")
WIDENED = (*FLOAT8_DTYPES, *HALVES)  # loaded as f32


def item_bytes(dtype: str) -> int:
    """Bytes of an element in memory of a type as pointers take it: "i8:f32" has those of i8."""
    return ITEM_BYTES[dtype.partition(":")[0]]


@dataclass(frozen=True)
class Isa:
    """One instruction set, as the code generators see it.

    ``vector_bytes`` is the width of a register, ``registers`` their number, and ``has_fma`` says whether a fused
    multiply-add is one instruction; ``has_dot`` whether one instruction adds four products of 8-bit integers to each
    32-bit sum of a vector. ``triple``, ``cpu`` and ``features`` are LLVM's names. ``processor`` has the caches and
    rates that block sizes and costs derive from.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    has_fma: bool
    has_dot: bool = False
    processor: Processor = REFERENCE

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector; of those that are computed in f32 as many as of it."""
        return self.vector_bytes // (4 if dtype in WIDENED else ITEM_BYTES[dtype])

    @property
    def is_native(self) -> bool:
        """True if the code can run in this process."""
        return self.triple == _host_triple() and self.name in runnable()


# vector bytes, registers, fma, the LLVM processor that stands for the set, and the features it needs
_SETS = {
    "avx512": (64, 32, True, "skylake-avx512", ("avx512f", "avx512vl", "avx512dq", "avx512bw")),
    "avx2": (32, 16, True, "haswell", ("avx2", "fma")),
    "neon": (16, 32, True, "generic", ()),
    "plain": (16, 16, False, "x86-64", ()),
}
NAMES = tuple(_SETS)
_DOT = ("avx512", "avx512vnni")  # the set and the feature beside it with which there is vpdpbusd
_ARM = {"aarch64", "arm64"}
# LLVM's models of these spill a sum of a full register tile in every step; newer models keep all of them in registers
_SPILLING = {
    "skylake-avx512", "cascadelake", "cooperlake", "cannonlake", "icelake-client", "icelake-server", "tigerlake",
    "rocketlake",
}  # fmt: skip
_TUNED_FOR = "sapphirerapids"  # instead; features are stated one by one


@functools.cache
def _host_triple() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_process_triple())


@functools.cache
def _host_features() -> dict[str, bool]:
    import llvmlite.binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot read this processor's features: treat it as having none
        return {}


@functools.cache
def runnable() -> tuple[str, ...]:
    """Names of the instruction sets that this processor executes, widest first."""
    if platform.machine() in _ARM:
        return ("neon", "plain")
    features = _host_features()
    return tuple(
        name for name, row in _SETS.items() if name != "neon" and all(features.get(f, False) for f in row[4])
    )


@functools.cache
def isa(name: str = "host") -> Isa:
    """The instruction set called ``name``: "host" (the widest that runs here) or one of ``NAMES``.

    A named set is tuned for this processor where the processor has it and "host" would choose it; otherwise
    for the plainest processor that has it, so that "avx2" on an AVX-512 machine is what an AVX2 machine runs.
    """
    import llvmlite.binding as llvm

    if name != "host" and name not in _SETS:
        raise InvalidArgument(f"cpu is {name!r}: it must be 'host' or one of {', '.join(NAMES)}")
    widest = runnable()[0]
    chosen = widest if name == "host" else name
    vector_bytes, registers, has_fma, cpu, features = _SETS[chosen]
    triple = _host_triple()
    if chosen == widest:
        cpu = str(llvm.get_host_cpu_name())
        if cpu in _SPILLING:
            cpu = _TUNED_FOR
        flags = ",".join(f"{'+' if on else '-'}{f}" for f, on in sorted(_host_features().items()))
    else:
        flags = ",".join(f"+{f}" for f in features)
    has_dot = chosen == widest == _DOT[0] and _host_features().get(_DOT[1], False)
    if chosen == "neon" and platform.machine() not in _ARM:
        triple = "aarch64-unknown-linux-gnu"
    if chosen == "plain" and platform.machine() in _ARM:
        cpu, registers, has_fma = "generic", 32, True
    return Isa(chosen, triple, cpu, flags, vector_bytes, registers, has_fma, has_dot)


@functools.cache
def processor_name() -> str:
    """The processor's marketing name with its family and model, or the best that the system tells.

    Virtual machines tell one name ("AMD EPYC") of very different processors; family and model do not lie.
    """
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                field, _, value = line.partition(":")
                found.setdefault(field.strip(), value.strip())
    except OSError:
        pass
    name = (
        found.get("model name") or found.get("Model") or platform.processor() or platform.machine() or os.name
    )
    if "cpu family" in found and "model" in found:
        name += f" family {found['cpu family']} model {found['model']}"
    return name
