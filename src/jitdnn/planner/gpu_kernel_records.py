"""Kernels of CUDA in words and numbers, from which another process makes them again without their algorithms.

A launch is the key of its code, its functions with their grids, its integers and tensor maps. A kernel for aligned
addresses has a record of its own; that for others is built by the algorithm when it is needed. Of a product that takes
its operands in another order the order is kept, too, of one that packs operands the kernels that do it, and of one with
copies around it, or with Winograd's transforms, these and their room in the workspace. Other kernels are made of Python
of their own, and have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from jitdnn.devices.cuda import CudaDevice
from jitdnn.devices.cuda_kernel import CudaKernel
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cuda.gemm.code import ByAddress, Reordered
from jitdnn.kernels.cuda.gemm.packing import Packed

Record = dict[str, Any]


class _Composed(NamedTuple):
    """A class of kernels that run others one after the other: its module, which most processes need not import, its
    name, the attributes that these are, the bytes of the workspace that it knows, and how it is made of both."""

    module: str
    name: str
    parts: tuple[str, ...]
    numbers: Callable[[Any], list[int]]
    make: Callable[[Any, Any, Any], Kernel]


_COMPOSED = {
    "copied": _Composed(
        "jitdnn.kernels.cuda.convolution.half_precision.copied",
        "Copied",
        ("before", "inner", "behind"),
        lambda kernel: [kernel.first_room, kernel.result_room],
        lambda made_of, parts, rooms: made_of(*parts, rooms),
    ),
    "winograd": _Composed(
        "jitdnn.kernels.gpu.convolution.winograd.code",
        "Composite",
        ("transforms", "product", "finish"),
        lambda kernel: [*kernel.operands, kernel.inner],
        lambda made_of, parts, numbers: made_of(*parts, tuple(numbers[:3]), numbers[3]),
    ),
}


def record_of(kernel: Kernel, device: CudaDevice) -> Record | None:
    """A kernel as a record, which JSON can hold; None for one that has none."""
    if type(kernel) is CudaKernel:
        return {"kind": "launches", **kernel.record(device.arch)}
    if type(kernel) is ByAddress:
        aligned = record_of(kernel.aligned, device)
        return aligned and {"kind": "by address", "kernel": aligned, "alignments": kernel.alignments}
    if type(kernel) is Packed:
        kernels = [record_of(one, device) for one in (kernel.kernel, *(pack for pack, _ in kernel.packs))]
        operands = [operand for _, operand in kernel.packs]
        return {"kind": "packed", "kernels": kernels, "operands": operands} if all(kernels) else None
    if type(kernel) is Reordered:
        inner = record_of(kernel.kernel, device)
        return inner and {"kind": "reordered", "kernel": inner, "order": kernel.order}
    for kind, composed in _COMPOSED.items():
        if (type(kernel).__module__, type(kernel).__name__) == composed[:2]:
            parts = [getattr(kernel, name) for name in composed.parts]
            records = [None if one is None else record_of(one, device) for one in parts]
            if any(one is not None and record is None for one, record in zip(parts, records, strict=True)):
                return None
            return {"kind": kind, "kernels": records, "numbers": composed.numbers(kernel)}
    return None


def restored(record: Mapping[str, Any], device: CudaDevice, whole: Callable[[], Kernel]) -> Kernel | None:
    """The kernel of a record; None if its code is there no more. `whole` has the algorithm build it.

    Raises ValueError, TypeError and KeyError for what is no record.
    """
    if record["kind"] == "launches":
        return CudaKernel.from_record(device.index, record)
    if record["kind"] == "packed":
        kernels = [restored(one, device, whole) for one in record["kernels"]]
        if None in kernels:  # their code is there no more
            return None
        product, *packs = [one for one in kernels if one is not None]
        return Packed(tuple(zip(packs, record["operands"], strict=True)), product)
    if record["kind"] == "reordered":
        inner = restored(record["kernel"], device, lambda: _inner(whole()))
        return inner and Reordered(inner, tuple(record["order"]))
    composed = _COMPOSED.get(record["kind"])
    if composed is not None:
        parts = [
            None if one is None else restored(one, device, partial(_part, whole, name))
            for one, name in zip(record["kernels"], composed.parts, strict=True)
        ]
        if any(part is None and one is not None for part, one in zip(parts, record["kernels"], strict=True)):
            return None
        made_of = getattr(import_module(composed.module), composed.name)
        return composed.make(made_of, parts, record["numbers"])
    if record["kind"] != "by address":
        raise ValueError(f"no kind of kernel is called {record['kind']!r}")
    aligned = restored(record["kernel"], device, whole)
    # the whole kernel finds out for itself which of its own takes the addresses
    return aligned and ByAddress(aligned, whole, tuple(record["alignments"]))


def _part(whole: Callable[[], Kernel], name: str) -> Kernel:
    """A part of a kernel that runs several, as the algorithm builds it."""
    part: Kernel = getattr(whole(), name)
    return part


def _inner(kernel: Any) -> Kernel:
    """The kernel that takes its operands in another order, of one that the algorithm built."""
    assert isinstance(kernel, Reordered)
    return kernel.kernel
