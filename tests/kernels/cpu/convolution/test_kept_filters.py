"""Filters that are prepared once: what kernels promise, and the object that keeps them for a caller."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import jitdnn as jd
from conformance import AnyArray, check
from jitdnn.devices.cpu import host
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel, Kept
from jitdnn.kernels.algorithm import keeping_filter
from jitdnn.kernels.cpu.convolution.grouped.algorithm import Grouped
from jitdnn.kernels.cpu.convolution.implicit_gemm.algorithm import ImplicitGemm
from jitdnn.kernels.cpu.convolution.winograd.algorithm import Winograd2, Winograd4
from jitdnn.planner.choose import get
from jitdnn.planner.find import find
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems import parse
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa
from jitdnn.settings import format_bytes


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


# ---- the object


TOLERANCE = 2e-5


def _arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[AnyArray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _close(got: AnyArray, expected: AnyArray) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE * scale)


CALLS: dict[str, Any] = {
    "fwd": lambda x, w, **o: jd.conv(x, w, stride=2, padding=1, groups=2, **o),
    "fused": lambda x, w, **o: jd.conv(
        x, w, np.arange(6.0, dtype=np.float32), padding=2, dilation=2, groups=2,
        epilogue=lambda a, b: jd.relu(a + b), **o
    ),
    "nhwc": lambda x, w, **o: jd.conv(
        x.transpose(0, 2, 3, 1), w, padding=1, groups=2, layout="NHWC", mode="convolution", **o
    ),
    "bwd_data": lambda x, w, **o: jd.conv_backward_data(x[:, :6], w, (2, 8, 17, 15), 2, 1, groups=2, **o),
    "transpose": lambda x, w, **o: jd.conv_transpose(x[:, :6], w, 3, 1, groups=2, **o),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("algorithm", [None, "implicit_gemm", "direct"])
def test_a_kept_filter_gives_what_the_filter_gives(name: str, algorithm: str | None) -> None:
    x, w = _arrays((2, 8, 9, 8), (6, 4, 3, 3))
    if name == "nhwc":
        w = np.ascontiguousarray(w.transpose(0, 2, 3, 1))
    kept, call = jd.KeptFilter(w), CALLS[name]
    expected = call(x, w, algorithm=algorithm)
    for _ in range(2):
        _close(call(x, kept, algorithm=algorithm), expected)
    if algorithm is not None:  # one that prepares its filter, and one that reads it as it is
        assert (kept.nbytes > 0) == (algorithm == "implicit_gemm")
    out = np.ones_like(expected)
    assert call(x, kept, algorithm=algorithm, alpha=2.0, beta=0.5, out=out) is out
    _close(out, 2 * expected + 0.5)


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made = []
    keep = CpuKernel.keep

    def counted(self: CpuKernel, stream: Any, pointers: Any, memory: int) -> None:
        made.append(memory)
        keep(self, stream, pointers, memory)

    monkeypatch.setattr(CpuKernel, "keep", counted)
    return made


def test_a_filter_is_prepared_once_for_each_kind_of_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _counting(monkeypatch)
    x, other, w = _arrays((1, 8, 9, 9), (2, 8, 12, 7), (8, 8, 3, 3))
    kept = jd.KeptFilter(w)
    assert kept.nbytes == 0
    options = {"padding": 1, "algorithm": "implicit_gemm"}
    for handle in (jd.Handle(), jd.Handle()):  # plans of two handles share what is kept
        for _ in range(3):
            _close(jd.conv(x, kept, handle=handle, **options), jd.conv(x, w, handle=handle, **options))
    one = kept.nbytes
    assert len(made) == 1
    assert one >= w.nbytes
    _close(jd.conv(other, kept, **options), jd.conv(other, w, **options))
    assert len(made) == 2
    assert kept.nbytes >= 2 * w.nbytes
    kept.forget()
    assert kept.nbytes == 0
    _close(jd.conv(x, kept, **options), jd.conv(x, w, **options))
    assert len(made) == 3
    assert kept.nbytes == one


def test_update_takes_new_values_of_every_kind() -> None:
    x, w, changed = _arrays((1, 8, 9, 9), (8, 8, 3, 3), (8, 8, 3, 3))
    kept = jd.KeptFilter(w)
    options = {"padding": 1, "algorithm": "implicit_gemm"}
    old = jd.conv(x, kept, **options)
    jd.conv_backward_data(x, kept, x.shape, **options)
    size = kept.nbytes
    w[...] = changed
    np.testing.assert_array_equal(jd.conv(x, kept, **options), old)  # what is kept is used
    kept.update()
    assert kept.nbytes == size
    _close(jd.conv(x, kept, **options), jd.conv(x, changed, **options))
    _close(
        jd.conv_backward_data(x, kept, x.shape, **options),
        jd.conv_backward_data(x, changed, x.shape, **options),
    )


def test_the_filter_lives_as_long_as_the_object() -> None:
    x, w = _arrays((1, 4, 9, 9), (4, 4, 3, 3))
    expected = jd.conv(x, w, padding=1)
    copy = torch.from_numpy(w.copy())
    released = weakref.ref(copy)
    kept = jd.KeptFilter(copy)
    del copy
    gc.collect()
    _close(jd.conv(x, kept, padding=1), expected)
    assert released() is kept.w
    del kept
    gc.collect()
    assert released() is None


def test_threads_share_a_kept_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _counting(monkeypatch)
    x, w = _arrays((1, 16, 12, 12), (16, 16, 3, 3))
    shapes = [x, np.ascontiguousarray(x[:, :, :7])]
    options = {"padding": 1, "algorithm": "implicit_gemm"}
    expected = [jd.conv(each, w, **options) for each in shapes]
    kept, gate, failures = jd.KeptFilter(w), threading.Barrier(3), []

    def work(number: int) -> None:
        gate.wait()
        for turn in range(40):
            which = (number + turn) % 2
            got = jd.conv(shapes[which], kept, **options)
            if not np.array_equal(got, expected[which]):
                failures.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    gate.wait()
    for _ in range(10):  # preparing anew from the same values while others compute changes nothing
        kept.update()
    for thread in threads:
        thread.join()
    assert not failures
    kept.update()
    # once for each shape by the calls, whichever thread came first; the rest are updates
    assert len(made) <= 2 + 2 * 11


def test_what_cannot_be_kept_or_called_is_refused() -> None:
    with pytest.raises(jd.InvalidType, match="w: str holds no numbers"):
        jd.KeptFilter("weights")
    x, w = _arrays((1, 8, 9, 9), (8, 8, 3, 3))
    kept = jd.KeptFilter(w)
    with pytest.raises(jd.InvalidType):
        jd.KeptFilter(kept)
    with pytest.raises(jd.InvalidShape, match="channels"):
        jd.conv(x[:, :7], kept)
    with pytest.raises(jd.InvalidType):
        jd.conv(x.astype(np.float64), kept)
    with pytest.raises(jd.InvalidArgument, match="out shares memory with w"):
        jd.conv(_arrays((1, 8, 3, 3))[0], kept, padding=1, out=w[:1])
    assert kept.nbytes == 0
    assert repr(kept) == "<KeptFilter f32 (8, 8, 3, 3), 0 bytes kept>"


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "text",
    [
        "conv_fwd n2 c5 h9 w7 k6 r3 s2 stride2x1 pad1 f32",
        "conv_fwd n1 c6 d4 h5 w6 k4 t2 r3 s3 pad1 g2 f64",
        "conv_bwd_data n2 c5 h9 w8 k6 r3 s3 stride2 pad1 f32",
        "conv_bwd_data n1 c4 h9 w9 k6 r2 s2 stride3 f32",  # some elements of dx get no product at all
        "conv_bwd_data n1 c4 w19 k6 s5 stride2 dil2 pad3 g2 f32",
    ],
)
def test_kernels_that_keep(text: str, layout: str) -> None:
    problem = parse(f"{text} {layout}")
    names = check(problem)
    assert "implicit_gemm" in names


def test_plans_say_that_the_filter_is_kept() -> None:
    text = "conv_fwd n1 c64 h9 w9 k64 r3 s3 pad1 f32 nchw"
    plan = jd.plan(text, algorithm="implicit_gemm", keeps_filter=True)
    ordinary = jd.plan(text, algorithm="implicit_gemm")
    assert plan.kept is not None
    assert plan.kept.bytes >= 64 * 64 * 9 * 4
    assert "the prepared filter is kept" in plan.explain()
    assert f"implicit_gemm keeps {format_bytes(plan.kept.bytes)}" in plan.explain()
    assert plan.seconds < ordinary.seconds
    assert ordinary.kept is None
    assert "kept" not in ordinary.explain()
    direct = jd.plan(text, algorithm="direct", keeps_filter=True)
    assert direct.kept is None
    assert "direct keeps nothing" in direct.explain()


def test_measured_times_of_kept_filters_are_their_own() -> None:
    problem = parse("conv_fwd n1 c16 h9 w9 k16 r3 s3 pad1 f32 nchw")
    store = Store(None)
    device = host(1)
    find(problem, device, Request(keeps_filter=True), store=store, seconds=0.05)
    find(problem, device, Request(), store=store, seconds=0.05)
    kinds = {row.epilogue for row in store.rows()}
    assert kinds == {"", " with its filter kept"}
    again = get(problem, device, Request(keeps_filter=True), store=store)
    kept = {row.algorithm: row.seconds for row in store.rows() if row.epilogue}
    assert {c.name: c.seconds for c in again.candidates if c.source == "stored"} == kept


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n1 c48 h9 w7 k24 r3 s3 pad1 g6 nhwc",
        "conv_bwd_data n2 c40 h9 w9 k80 r3 s3 pad1 stride2 g2 nhwc",
    ],
)
def test_a_grouped_filter_is_read_once(words: str) -> None:
    problem: Any = parse(words)
    device, algorithm = host(2), Grouped()
    generator = np.random.default_rng(3)
    sizes = [operand.descriptor.size for operand in problem.operands]
    tensors = [generator.standard_normal(size, np.float32) for size in sizes]
    pointers = [tensor.ctypes.data for tensor in tensors]
    room = np.empty(algorithm.workspace(problem, device) // 4 + 16, np.float32)
    start = room.ctypes.data + -room.ctypes.data % 64
    algorithm.build(problem, device)(None, pointers, 1.0, 0.0, start)
    wanted = tensors[2].copy()
    kernel: Any = algorithm.with_kept_filter().build(problem, device)
    memory = np.empty(kernel.kept.bytes // 4 + 16, np.float32)
    kept = memory.ctypes.data + -memory.ctypes.data % 64
    kernel.keep(None, [0, pointers[1], 0], kept)
    room[:] = tensors[2][:] = np.nan
    kernel.run_kept(None, [pointers[0], 0, pointers[2]], 1.0, 0.0, start, kept)
    assert (tensors[2] == wanted).all()


# ---- whether keeping pays


@pytest.mark.parametrize(
    "words", ["n1 c512 h28 w28 k512", "n1 c256 h28 w28 k256", "n1 c64 h56 w56 k64", "n8 c512 h7 w7 k512"]
)
def test_no_algorithm_is_slower_for_callers_that_keep(words: str) -> None:
    """By its cost model: where a prepared filter would come from memory in each call, the filter itself is read."""
    problem, device = parse(f"conv_fwd {words} r3 s3 pad1"), host(1)
    for algorithm in (Winograd4(), Winograd2(), ImplicitGemm()):
        chosen = keeping_filter(algorithm, problem, device, None)
        assert chosen.estimate(problem, device) <= algorithm.estimate(problem, device)


def test_a_prepared_filter_beyond_the_caches_is_not_kept() -> None:
    problem, device = parse("conv_fwd n1 c512 h28 w28 k512 r3 s3 pad1"), host(1)
    small = replace(device.isa.processor, l3_bytes=16 << 20)  # a third of the transformed filter
    device = replace(device, isa=replace(device.isa, processor=small))
    algorithm = Winograd4()
    assert keeping_filter(algorithm, problem, device, None) is algorithm
    problem = parse("conv_fwd n1 c64 h56 w56 k64 r3 s3 pad1")
    assert keeping_filter(algorithm, problem, device, None) is not algorithm
