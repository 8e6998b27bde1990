"""OpenCL devices: kernels in plain C, compiled by the driver. No other library names their shared virtual memory."""

from __future__ import annotations

from jitdnn.targets.target import Target, module

TARGET = Target(
    name="opencl",
    devices=module("jitdnn.devices.opencl"),
    table=module("jitdnn.kernels.opencl.table"),
    texts=module("jitdnn.devices.opencl_module"),
    code_forms=("opencl",),
)
