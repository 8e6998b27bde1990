"""`jitdnn info`: what is here, what is not and why."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jitdnn import targets
from jitdnn.bench import provenance
from jitdnn.cli.console import print_table, say
from jitdnn.handle import usage
from jitdnn.planner.store import Store
from jitdnn.rtcg.cache import CodeCache
from jitdnn.settings import TABLE, Settings, current, format_bytes


def gather() -> dict[str, Any]:
    """Everything that `jitdnn info` prints, as JSON's types."""
    values = current()
    stats = CodeCache.default().stats()
    store = Store.default().stats()
    return {
        "versions": provenance.versions(("numpy", "llvmlite")),
        "system": provenance.system(),
        **_processor(values),
        "gpus": _gpus(),
        "code_cache": {
            "folder": str(stats.path) if stats.path else None,
            "entries": stats.entries,
            "bytes": stats.bytes,
            "limit": stats.limit,
        },
        "store": {
            "file": str(store.path) if store.path else None,
            "measurements": store.measurements,
            "bytes": store.bytes,
            "limit": store.limit,
        },
        "in_use": usage()._asdict(),
        "settings": {row.name: _plain(getattr(values, row.name)) for row in TABLE},
    }


def _processor(values: Settings) -> dict[str, Any]:
    """The processor, if there is the compiler of its kernels, and the state of each target."""
    states = {target.name: _state(target) for target in targets.registered()}
    try:
        from jitdnn.devices.cpu import host
        from jitdnn.rtcg.isa import NAMES, runnable
    except ImportError:
        return {"device": None, "instruction_sets": {}, "targets": states}
    device, runs = host(values.threads, values.cpu), runnable()
    return {
        "device": device.name,
        "threads": device.threads,
        "processor": asdict(device.isa.processor),
        "instruction_sets": {
            name: "in use" if name == device.isa.name else "runs here" if name in runs else _why_not(name)
            for name in NAMES
        },
        "peak_gflops": {dtype: device.measure_peak(dtype) / 1e9 for dtype in ("f32", "f64")},
        "targets": states,
    }


def _gpus() -> dict[str, Any]:
    """The facts in force of each GPU that can be used, by its name in settings."""
    return {
        f"{target.name}:{gpu.device_id[1]}": asdict(gpu.facts)
        for target in targets.registered()
        if target.is_gpu
        for gpu in target.usable()
    }


def _state(target: targets.Target) -> str:
    """The devices of a target by number, or in one line why there are none."""
    why_not = target.missing()
    if why_not is not None:
        return f"not here: {why_not}"
    return "; ".join(target.states()) if target.is_gpu else "available"


def _why_not(name: str) -> str:
    if name == "neon":
        return f"not here: this machine is {platform.machine()}, not arm64"
    return "not here: the processor does not have it"


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _facts(of: dict[str, Any]) -> str:
    """The facts of a thread in one line."""
    caches = ", ".join(f"{name.upper()} {format_bytes(of[f'{name}_bytes'])}" for name in ("l1", "l2", "l3"))
    rates = ", ".join(f"{of[f'{name}_rate']:g} from {name}" for name in ("l2", "l3", "memory"))
    return (
        f"{caches}, {of['clock'] / 1e9:.2g} GHz, {of['fma_ports']} multiply-adds and bytes a cycle: {rates}"
    )


def _gpu_facts(of: dict[str, Any]) -> str:
    """The facts of a GPU in one line."""
    rates = f"{of['f32_rate']} in f32, {of['f64_rate']} in f64, {of['mma_rate']} of mma"
    return (
        f"{of['multiprocessors']} multiprocessors at {of['clock'] / 1e9:.3g} GHz, "
        f"{format_bytes(of['memory_bytes'])} at {of['bytes_per_second'] / 1e9:.4g} GB/s, "
        f"L2 {format_bytes(of['l2_bytes'])}; of a multiprocessor {of['registers']} registers, "
        f"{of['resident_threads']} threads, {of['resident_blocks']} thread blocks of up to "
        f"{format_bytes(of['shared_bytes'])} of shared memory, operations a cycle: {rates}"
    )


def show_info(as_json: bool) -> None:
    """Print what `gather` finds."""
    found = gather()
    if as_json:
        say(json.dumps(found, default=str))
        return
    say("  ".join(f"{name} {number}" for name, number in found["versions"].items()) + "  " + found["system"])
    if found["device"]:
        say(f"device: {found['device']}")
        say(
            f"measured now: {found['peak_gflops']['f32']:.1f} GFLOP/s float32, {found['peak_gflops']['f64']:.1f} "
            "GFLOP/s float64"
        )
        say(f"facts: {_facts(found['processor'])}")
    for name, facts in found["gpus"].items():
        say(f"facts of {name}: {_gpu_facts(facts)}")
    rows = [["target", *row] for row in found["targets"].items()]
    rows += [["instruction set", *row] for row in found["instruction_sets"].items()]
    print_table("", ("what", "name", "state"), rows)
    cache, store = found["code_cache"], found["store"]
    say(
        f"code cache: {cache['folder'] or 'in memory'}: {cache['entries']} entries, "
        f"{format_bytes(cache['bytes'])} of at most {format_bytes(cache['limit'])}"
    )
    say(
        f"tuning store: {store['file'] or 'in memory'}: {store['measurements']} measurements, "
        f"{format_bytes(store['bytes'])} of at most {format_bytes(store['limit'])}"
    )
    used, values = found["in_use"], found["settings"]
    say(
        f"this process: {used['plans']} plans, {used['calls']} kinds of calls (at most {values['plans_limit']} each a "
        f"handle), {format_bytes(used['code'])} of machine code (at most {format_bytes(values['code_limit'])}), "
        f"{format_bytes(used['scratch'])} of workspace (at most {format_bytes(values['scratch_limit'])} a handle)"
    )
    rows = [[row.name, _shown(found["settings"][row.name]), row.variable] for row in TABLE]
    print_table("settings", ("setting", "value", "environment variable"), rows)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
