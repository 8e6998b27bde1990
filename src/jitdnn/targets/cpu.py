"""Processors: kernels traced to LLVM IR, in host memory."""

from __future__ import annotations

from jitdnn.targets.target import Target, module

TARGET = Target(
    name="cpu",
    devices=module("jitdnn.devices.cpu"),
    table=module("jitdnn.kernels.cpu.table"),
    generators=module("jitdnn.kernels.cpu.generators"),
    needs="llvmlite: pip install llvmlite",
    is_gpu=False,
    code_forms=("ir", "asm"),
)
