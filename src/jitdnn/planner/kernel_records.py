"""Kernels of processors in words and numbers, from which another process makes them again without their algorithms.

A launch is the key of its code, its phases and its integers; others are made of launches. A kernel with Python of its
own in it, such as a product of NumPy's, has no record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitdnn.devices.cpu_kernel import CpuKernel, WithTables
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.formulas.parts_kernel import PartsKernel
from jitdnn.kernels.formulas.row_algorithms import Chain
from jitdnn.planner.divided import Divided
from jitdnn.rtcg.compile import load_known
from jitdnn.rtcg.isa import Isa

Record = dict[str, Any]


def record_of(kernel: Kernel) -> Record | None:
    """A kernel as a record, which JSON can hold; None for one that has none."""
    if type(kernel) is CpuKernel:
        record = kernel.record()
        return None if record["library"] is None else {"kind": "launch", **record}
    if type(kernel) is Chain:
        found = _records([one for _, kernels in kernel.pieces for one in kernels])
        if found is None:
            return None
        records, numbers = found
        places = iter(numbers)
        return {
            "kind": "chain", "kernels": records, "room": kernel.room,
            "pieces": [(index, [next(places) for _ in kernels]) for index, kernels in kernel.pieces],
            "steps": list(kernel.steps), "offsets": list(kernel.offsets),
        }  # fmt: skip
    if type(kernel) is PartsKernel:
        found = _records([one for one, _ in kernel.parts])
        if found is None:
            return None
        records, numbers = found
        parts = [(n, list(operands)) for n, (_, operands) in zip(numbers, kernel.parts, strict=True)]
        return {"kind": "parts", "kernels": records, "parts": parts}
    if type(kernel) is Divided:
        found = _records([one for one, _, _ in kernel.parts])
        if found is None:
            return None
        records, numbers = found
        rest = [(n, list(offsets), adds) for n, (_, offsets, adds) in zip(numbers, kernel.parts, strict=True)]
        return {"kind": "divided", "kernels": records, "parts": rest}
    return _record_with_tables(kernel) if type(kernel) is WithTables else None


def _records(kernels: Sequence[Kernel]) -> tuple[list[Record], list[int]] | None:
    """A record for each different kernel, and for each kernel the number of its own."""
    each = {id(one): one for one in kernels}
    records = [record_of(one) for one in each.values()]
    whole = [record for record in records if record is not None]
    number = {key: n for n, key in enumerate(each)}
    return (whole, [number[id(one)] for one in kernels]) if len(whole) == len(records) else None


def _record_with_tables(kernel: WithTables) -> Record | None:
    """Of a kernel whose integers have the addresses of tables among them: which, and what is in the tables."""
    inner = record_of(kernel.kernel)
    if inner is None:
        return None
    integers = np.frombuffer(bytes.fromhex(inner["extras"]), np.int64)
    kept = []
    for table in kernel.tables.values():
        slots = np.flatnonzero(integers == table.ctypes.data).tolist()
        if not slots:
            return None
        data = np.ascontiguousarray(table).tobytes().hex()
        kept.append({"slots": slots, "dtype": table.dtype.str, "shape": table.shape, "data": data})
    return {"kind": "tables", "kernel": inner, "tables": kept}


def restored(record: Mapping[str, Any], isa: Isa) -> Kernel | None:
    """The kernel of a record; None if its code is there no more.

    Raises ValueError, TypeError, KeyError and IndexError for what is no record.
    """
    kind = record["kind"]
    if kind == "launch":
        library = load_known(record["library"], isa)
        return None if library is None else CpuKernel.from_record(library, record)
    if kind == "tables":
        return _restored_with_tables(record, isa)
    kernels = [restored(each, isa) for each in record["kernels"]]
    known = [kernel for kernel in kernels if kernel is not None]
    if len(known) < len(kernels):
        return None
    if kind == "parts":
        return PartsKernel(
            [(known[n], [(number, offset) for number, offset in operands]) for n, operands in record["parts"]]
        )
    if kind == "divided":
        return Divided.of([(known[n], tuple(offsets), bool(adds)) for n, offsets, adds in record["parts"]])
    if kind != "chain":
        raise ValueError(f"no kind of kernel is called {kind!r}")
    pieces = [(index, [known[number] for number in numbers]) for index, numbers in record["pieces"]]
    return Chain(pieces, record["steps"], record["offsets"], record["room"])


def _restored_with_tables(record: Mapping[str, Any], isa: Isa) -> Kernel | None:
    integers = np.frombuffer(bytes.fromhex(record["kernel"]["extras"]), np.int64).copy()
    tables = {}
    for number, kept in enumerate(record["tables"]):
        table = (
            np.frombuffer(bytes.fromhex(kept["data"]), np.dtype(kept["dtype"])).reshape(kept["shape"]).copy()
        )
        integers[kept["slots"]] = table.ctypes.data
        tables[str(number)] = table
    inner = {**record["kernel"], "extras": integers.tobytes().hex()}
    library = load_known(inner["library"], isa)
    return None if library is None else WithTables(CpuKernel.from_record(library, inner), tables)
