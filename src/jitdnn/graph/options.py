"""What fronts let their callers say of an engine: where it runs, by how many threads, and how exactly."""

from __future__ import annotations

from typing import Any

from jitdnn import targets
from jitdnn.arguments import integer, optional, shown
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.graph.passes import narrowing
from jitdnn.handle import find_device
from jitdnn.settings import current, override
from jitdnn.tensor import dtype_of, numpy_dtype

_THREADS = optional(integer("threads", least=1))


def engine_options(
    device: str | None = None, threads: int | None = None, math: str | None = None, dtype: Any = None
) -> dict[str, Any]:
    """The arguments of an `Engine` for those of a front.

    `device`: a GPU by its name, `cuda:0`, or `cpu`; `math`: as the setting; `dtype`: float16 or bfloat16, in which what
    the graph has as float32 is stored inside. Raises InvalidArgument for anything else, DeviceError for a GPU that is
    not there.
    """
    found: dict[str, Any] = {}
    if device is not None:
        if not isinstance(device, str):
            raise InvalidType(f"device is {shown(device)}: it must be a name, cpu or cuda:0")
        made = find_device(device)
        if targets.is_gpu(device.strip().lower().partition(":")[0]):
            found |= {"device": made, "compile": "wait"}
    threads = _THREADS.settled(threads)
    if threads is not None:
        found["threads"] = threads
    if math is not None:
        override(current(), math=math)  # raises
        found["math"] = math
    if dtype is not None:
        name = dtype_of(dtype)
        if name not in ("f16", "bf16", "f32"):
            raise InvalidArgument(f"dtype is {shown(dtype)}: it must be float16, bfloat16 or float32")
        if name != "f32":
            found["passes"] = narrowing(numpy_dtype(name))
    return found
