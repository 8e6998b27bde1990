"""NVIDIA GPUs: kernels in plain C and in CUDA C++, compiled by NVRTC; cuDNN as the vendor's library."""

from __future__ import annotations

from typing import cast

from jitdnn.targets.target import MemorySpace, Target, module

_DEVICES = module("jitdnn.devices.cuda")


def _locate(pointer: int) -> int:
    return cast(int, _DEVICES().pointer_device(pointer))


TARGET = Target(
    name="cuda",
    devices=_DEVICES,
    table=module("jitdnn.kernels.cuda.table"),
    memory=MemorySpace(
        dlpack=(2, 13),  # memory of CUDA, and memory that CUDA moves to and fro
        torch=("cuda", "cuda"),
        cupy=False,
        locate=_locate,
    ),
    vendor=module("jitdnn.kernels.cudnn.table"),
    texts=module("jitdnn.devices.cuda_module"),
    code_forms=("cuda", "ptx"),
    has_graphs=True,
    reads_addresses=True,
    architectures=r"sm_\d{2,3}a?",
)
