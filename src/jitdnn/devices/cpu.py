"""The processor as a device: its instruction set, its threads and its speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitdnn.devices.processor_facts import efficiency, processor_of
from jitdnn.devices.processor_speed import probe
from jitdnn.devices.quiet import settle
from jitdnn.rtcg.cache import Origin
from jitdnn.rtcg.compile import origin
from jitdnn.rtcg.isa import Isa, isa, processor_name, runnable
from jitdnn.settings import Settings, current
from jitdnn.tensor import compute_dtype


@dataclass(frozen=True)
class CpuDevice:
    """A processor seen as a device: one instruction set and a number of threads to use."""

    isa: Isa
    threads: int
    #: estimated over measured seconds by "algorithm kind", where a device file states them
    efficiency: tuple[tuple[str, float], ...] = ()

    target = "cpu"

    @property
    def name(self) -> str:
        """What measurements are filed under: processor, instruction set and threads."""
        return f"{processor_name()} {self.isa.name} x{self.threads}"

    def peak_flops(self, dtype: str) -> float:
        """Multiply-add rate of all threads in FLOP/s by the facts of the processor.

        Facts are measured once a machine and kept: with what one process measures for itself, estimates of two
        processes would differ, the algorithms that they choose too, and so the last digits of results.
        """
        facts = self.isa.processor
        return 2.0 * facts.fma_ports * self.isa.lanes(compute_dtype(dtype)) * facts.clock * self.threads

    @property
    def bandwidth(self) -> float:
        """Bytes per second that go through memory, by the facts of the processor."""
        return self.isa.processor.memory_rate * self.isa.processor.clock

    def measure_peak(self, dtype: str) -> float:
        """Multiply-add rate of all threads in FLOP/s, measured now: clocks and neighbours change.

        Of 8-bit integers where one instruction makes sums of their products, else of the reals that stand for them.
        """
        settle()
        is_dot = dtype == "i8" and self.isa.has_dot
        return probe(self.isa, dtype if is_dot else compute_dtype(dtype), self.threads)


def host(threads: int, cpu: str = "host") -> CpuDevice:
    """This machine with ``threads`` threads and the instruction set called ``cpu``."""
    found = isa(cpu)
    return CpuDevice(replace(found, processor=processor_of(found)), threads, efficiency())


def device(index: int = 0, values: Settings | None = None) -> CpuDevice:
    """This machine as the settings describe it, those in force for None; it has no other number than 0."""
    values = values or current()
    return host(values.threads, values.cpu)


def device_count() -> int:
    """One: the processors of this machine are one device."""
    return 1


def origins() -> list[Origin]:
    """Of the code that this processor runs and the compiler of this library makes."""
    return [origin(isa(name)) for name in ("host", *runnable())]


def missing() -> str | None:
    """None: this module can only be imported where the compiler of its kernels is."""
    return None
