"""Where the facts of this machine's processor come from: a file, else what was kept, else the system and a measurement.

Sizes of caches and who shares them are read from Linux' `/sys`, or asked of `sysconf`. Clock, ports and rates are
measured in a quarter of a second, once a machine: they are kept in the cache of compiled code, rounded to two digits,
because the plans that they lead to are part of a kernel's name. A virtual machine may be told of a last cache that it
shares with hundreds of unseen threads, so its size is bounded by that up to which reads are faster than from memory.

The file (`JITDNN_DEVICE_FILE`) is JSON, `{"cpu": {"l2_bytes": 524288, ...}}`, with any of the fields of `Processor`;
the rest are this machine's.
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

from jitdnn.arguments import shown
from jitdnn.devices.processor_speed import measure
from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.cache import CodeCache
from jitdnn.rtcg.isa import Isa, processor_name
from jitdnn.rtcg.processor import REFERENCE, Processor
from jitdnn.settings import current

_SCHEMA = 2  # raise when what is measured changes its meaning
_SYSTEM = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "": 1}
_LARGEST = 1 << 34  # bytes of a cache that anybody states
_FASTEST = 1e11  # cycles per second, and bytes per cycle: larger is a mistake
_LEAST_FACTOR = 0.01  # of an efficiency


def processor_of(isa: Isa) -> Processor:
    """The facts of this machine for the instruction set; raises InvalidArgument for a file that states nonsense."""
    stated = _stated(current().device_file)[0]
    if len(stated) == len(fields(Processor)):
        return Processor(**stated)
    found = _found(isa) if isa.is_native else _sizes()
    return replace(found, **stated)


def efficiency() -> tuple[tuple[str, float], ...]:
    """What the device file states of algorithms: estimated over measured seconds by "algorithm kind", in order."""
    return _stated(current().device_file)[1]


# ---- the file


@functools.lru_cache(8)
def _stated(path: Path | None) -> tuple[dict[str, Any], tuple[tuple[str, float], ...]]:
    if path is None:
        return {}, ()
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the device file {str(path)!r} cannot be read: {error}") from None
    stated = content.get("cpu", {}) if isinstance(content, dict) else None
    if not isinstance(stated, dict):
        raise InvalidArgument(
            f'the device file {str(path)!r} must hold an object such as {{"cpu": {{"l2_bytes": 524288}}}}'
        )
    factors = stated.pop("efficiency", {})
    if not isinstance(factors, dict):
        raise InvalidArgument(
            f"the device file {str(path)!r} states cpu.efficiency as {shown(factors)}: no object"
        )
    facts = {name: _checked(path, name, value) for name, value in stated.items()}
    return facts, tuple((name, _factor(path, name, value)) for name, value in sorted(factors.items()))


def _factor(path: Path, name: str, value: object) -> float:
    most = 1 / _LEAST_FACTOR
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not _LEAST_FACTOR <= value <= most:  # type: ignore[operator]
        raise InvalidArgument(
            f"the device file {str(path)!r} states the efficiency of {shown(name)} as {shown(value)}: it must be "
            f"estimated over measured seconds, a number of {_LEAST_FACTOR} to {most:g}"
        )
    return float(value)  # type: ignore[arg-type]


def _checked(path: Path, name: str, value: object) -> int | float:
    kinds = {field.name: field.type for field in fields(Processor)}
    if name not in kinds:
        raise InvalidArgument(
            f"the device file {str(path)!r} states cpu.{shown(name)}, which is none of {', '.join(kinds)}"
        )
    is_integer = kinds[name] == "int"
    most = _LARGEST if is_integer else _FASTEST
    least = 0 if name == "l3_bytes" else 1 if is_integer else 1e-3
    is_number = isinstance(value, int if is_integer else (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        what = "an integer" if is_integer else "a number"
        raise InvalidArgument(
            f"the device file {str(path)!r} states cpu.{name} as {shown(value)}: it must be {what} of {least} "
            f"to {most:g}"
        )
    return value if is_integer else float(value)  # type: ignore[return-value, arg-type]


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
    kept = cache.get(key)
    if kept is not None:
        try:
            return Processor(**json.loads(kept))
        except (TypeError, ValueError):
            pass  # of another version
    found = measure(isa, sizes)
    cache.put(key, json.dumps(asdict(found)).encode())
    return found
