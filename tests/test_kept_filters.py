"""Filters that are prepared once: what kernels promise, and the object that keeps them for a caller."""

from __future__ import annotations

import numpy as np

from jitdnn.devices.cpu import Arguments, CpuKernel, Kept
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa


def _trace(module: Module) -> None:
    """y = extra * alpha * ((2 w) + x) by way of 8 prepared numbers and 8 of scratch memory behind them."""
    with module.task("prepare") as (k, args, task, _):
        arguments = Arguments(k, args, 3)
        w, kept = arguments.pointer(1, "f64"), arguments.kept("f64")
        kept.store(w.load(task) * 2.0, task)
    with module.task("add") as (k, args, task, _):
        arguments = Arguments(k, args, 3)
        scratch = arguments.workspace("f64") + 8
        scratch.store(arguments.kept("f64").load(task) + arguments.pointer(0, "f64").load(task), task)
    with module.task("scale") as (k, args, task, _):
        arguments = Arguments(k, args, 3)
        factor = arguments.alpha("f64") * k.convert(arguments.extra(0), "f64")
        arguments.pointer(2, "f64").store((arguments.workspace("f64") + 8).load(task) * factor, task)


def test_a_kernel_runs_in_one_or_with_its_filter_prepared() -> None:
    x, w, y = np.arange(8.0), np.arange(8.0) ** 2, np.zeros(8)
    pointers = [array.ctypes.data for array in (x, w, y)]
    phases = [("prepare", 8), ("add", 8), ("scale", 8)]
    library = load("test-kept", 1, isa("host"), _trace)
    kernel = CpuKernel(library, phases, 3, 1, extras=[3], kept=Kept(64, 1))
    memory = np.zeros(64)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    first = (start - memory.ctypes.data) // 8
    kernel(None, pointers, 0.5, 0.0, start)
    assert (y == 1.5 * (2 * w + x)).all()
    assert not memory[first + 16 :].any()

    memory[:] = y[:] = 0.0
    kernel.keep(None, [0, pointers[1], 0], start)
    assert (memory[first : first + 8] == 2 * w).all()
    assert not memory[first + 8 :].any()
    pointers[1] = 0  # the filter itself is read no more
    before = memory[first : first + 8].copy()
    kernel.run_kept(None, pointers, 1.0, 0.0, start + 128, start)
    assert (y == 3 * (2 * w + x)).all()
    assert (memory[first : first + 8] == before).all()
    assert (memory[first + 16 : first + 24] == 2 * w + x).all()
    assert not memory[first + 24 :].any()
