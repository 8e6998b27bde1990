"""The names of plain.h for the types of elements in memory, and what all plain kernels need of a device."""

from __future__ import annotations

from collections.abc import Iterable

from jitdnn.devices.gpu import GpuDevice


def storage_type(dtype: str) -> str:
    """The C type of an element in memory: `boolean` for bool, otherwise the name of the dtype itself."""
    return "boolean" if dtype == "bool" else dtype


def refuse_doubles(dtypes: Iterable[str], device: GpuDevice) -> str | None:
    """Why a device cannot compute with these types; None if it can."""
    if device.has_f64 or "f64" not in dtypes:
        return None
    return f"{device.name} has no double precision: use f32, or another device"
