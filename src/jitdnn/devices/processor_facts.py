"""Where the facts of this machine's processor come from: a file, else what was kept, else the system and a measurement.

Sizes of caches and who shares them are read from Linux' `/sys`, or asked of `sysconf`. Clock, ports and rates are
measured in a quarter of a second, once a machine: they are kept in the cache of compiled code, rounded to two digits,
because the plans that they lead to are part of a kernel's name. A virtual machine may be told of a last cache that it
shares with hundreds of unseen threads, so its size is bounded by that up to which reads are faster than from memory.

The device file (device_file.py) has any of the fields of `Processor` in its section "cpu"; the rest are this machine's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from jitdnn.devices.device_file import Range, stated
from jitdnn.devices.processor_speed import measure
from jitdnn.rtcg.cache import CodeCache
from jitdnn.rtcg.compile import origin
from jitdnn.rtcg.isa import Isa, processor_name
from jitdnn.rtcg.processor import REFERENCE, Processor

_SCHEMA = 3  # raise when what is measured changes its meaning
_SYSTEM = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "": 1}
_LARGEST = 1 << 34  # bytes of a cache that anybody states
_FASTEST = 1e11  # cycles per second, and bytes per cycle: larger is a mistake
_RANGES = {
    field.name: Range(0 if field.name == "l3_bytes" else 1, _LARGEST)
    if field.type == "int"
    else Range(1e-3, _FASTEST, is_integer=False)
    for field in fields(Processor)
}


def processor_of(isa: Isa) -> Processor:
    """The facts of this machine for the instruction set; raises InvalidArgument for a file that states nonsense."""
    given: dict[str, Any] = dict(stated("cpu", _RANGES).facts)
    if len(given) == len(_RANGES):
        return Processor(**given)
    found = _found(isa) if isa.is_native else _sizes()
    return replace(found, **given)


def efficiency() -> tuple[tuple[str, float], ...]:
    """What the device file states of algorithms: estimated over measured seconds by "algorithm kind", in order."""
    return stated("cpu", _RANGES).efficiency


# ---- the system


def read_sizes(system: Path = _SYSTEM) -> dict[str, int]:
    """The sizes that the system tells, each divided among the threads that share it; nothing where it tells none."""
    found: dict[str, int] = {}
    for folder in sorted(system.glob("cpu0/cache/index*")):
        try:
            level, kind, size, sharers, line = (
                (folder / name).read_text("ascii").strip()
                for name in ("level", "type", "size", "shared_cpu_list", "coherency_line_size")
            )
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind == "Instruction" or match is None or level not in ("1", "2", "3"):
            continue
        count = _sharers(sharers)
        # threads of one core count as one: one thread of ours runs on each core where it can
        cores = 1 if level == "1" else max(1, count // _threads_of_a_core(system))
        found[f"l{level}_bytes"] = int(match[1]) * _UNITS[match[2]] // cores
        if level == "3":
            found["l3_sharers"] = cores
        if line.isdecimal() and int(line):
            found["line_bytes"] = int(line)
    return found or _configured()


def _sizes() -> Processor:
    """This machine's sizes with the reference's speeds. Where there is an L2 cache and none is told beyond it, that
    is the last."""
    told: dict[str, Any] = read_sizes()
    if "l2_bytes" in told:
        told = {"l3_bytes": 0, "l3_sharers": 1, **told}
    return replace(REFERENCE, **told)


def _sharers(text: str) -> int:
    """How many threads a list such as "0-3,8" names."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            count += int(last) - int(first) + 1 if last.isdecimal() else 1
    return max(1, count)


def _threads_of_a_core(system: Path) -> int:
    try:
        return _sharers((system / "cpu0/topology/thread_siblings_list").read_text("ascii").strip())
    except (OSError, ValueError):
        return 1


def _configured() -> dict[str, int]:
    names = {
        "line_bytes": "SC_LEVEL1_DCACHE_LINESIZE", "l1_bytes": "SC_LEVEL1_DCACHE_SIZE",
        "l2_bytes": "SC_LEVEL2_CACHE_SIZE", "l3_bytes": "SC_LEVEL3_CACHE_SIZE",
    }  # fmt: skip
    found = {}
    for field, name in names.items():
        try:
            size = os.sysconf(name)
        except (AttributeError, ValueError, OSError):
            continue
        if size > 0:
            found[field] = size
    return found


# ---- what was measured


@functools.lru_cache(8)
def _found(isa: Isa) -> Processor:
    """What was kept of this machine, or is measured now and kept."""
    sizes = _sizes()
    key = hashlib.sha256(repr((_SCHEMA, processor_name(), isa.name, sizes)).encode()).hexdigest()
    cache = CodeCache.default()
    known = _read(cache.get(key))
    if known is not None:
        return known
    found = measure(isa, sizes)
    # another process may have measured meanwhile: what is kept first is true for all
    known = _read(cache.get(key))
    if known is not None:
        return known
    cache.put(key, json.dumps(asdict(found)).encode(), origin(isa))  # code depends on it, and goes with it
    return found


def _read(kept: bytes | None) -> Processor | None:
    if kept is None:
        return None
    try:
        known = Processor(**json.loads(kept))
    except (TypeError, ValueError):  # of another version
        return None
    return known if _is_sane(known) else None


def _is_sane(found: Processor) -> bool:
    """Whether these can be facts of a processor: a file of somebody else's code may have brought them."""
    return all(_RANGES[name].takes(value) for name, value in asdict(found).items())
