"""The tracing language: every construct as machine code against what NumPy makes of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.errors import CompileError
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed, transpose
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import assembly, compile_object, load, moves_signs, optimise
from jitdnn.rtcg.isa import isa, runnable
from jitdnn.tensor import DTYPES

LANES = 8  # of f32; any power of two is a vector on every target


def run(body: Callable[..., None], *arrays: np.ndarray[Any, Any], name: str, parameters: Any = ()) -> None:
    """Trace ``body(k, pointers..., arguments)`` as one task over the arrays and run it."""

    def generate(module: Module) -> None:
        with module.task("task") as (k, args, _, _thread):
            arguments = Arguments(k, args, len(arrays))
            dtypes = {"float32": "f32", "float64": "f64", "int64": "i64"}
            body(k, *(arguments.pointer(i, dtypes[a.dtype.name]) for i, a in enumerate(arrays)), arguments)

    library = load(f"test-{name}", parameters, isa(), generate)
    kernel = CpuKernel(library, [("task", 1)], len(arrays), threads=1)
    kernel(None, [a.ctypes.data for a in arrays], 2.5, -0.5, 0)


def test_run_time_loops_and_registers() -> None:
    out = np.zeros(3, np.float64)

    def body(k: Any, y: Any, arguments: Any) -> None:
        total = k.register(k.constant(0, "f64"))
        for i in k.range(2, 11, 3):  # 2, 5, 8
            total += k.convert(i, "f64")
        y.store(total.get(), 0)
        for i in k.range(4, 4):
            y.store(k.convert(i, "f64"), 1)  # never
        y.store(arguments.alpha("f64") * arguments.beta("f64"), 2)

    run(body, out, name="loops")
    assert out.tolist() == [15.0, 0.0, -1.25]


@pytest.mark.parametrize("count", [-3, 0, 1, 5, LANES, LANES + 9])
def test_masked_lanes_are_neither_read_nor_written(count: int) -> None:
    source, target = np.arange(LANES, dtype=np.float32) + 1, np.full(LANES, np.nan, np.float32)
    counts = np.array([count])

    def body(k: Any, x: Any, y: Any, n: Any, _: Any) -> None:
        mask = k.mask(n.load(0), LANES)
        y.store(x.load(0, LANES, mask), 0, mask)

    run(body, source, target, counts, name="mask")
    kept = min(max(count, 0), LANES)
    np.testing.assert_array_equal(target[:kept], source[:kept])
    assert np.isnan(target[kept:]).all()


@pytest.mark.parametrize("cpu", [name for name in ("avx512", "avx2", "neon", "plain") if name in runnable()])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["bf16", "f16", "i8", "u8", "i16", "i32"])
def test_few_lanes_of_short_types_leave_their_neighbours(name: str, count: int, cpu: str) -> None:
    """Known to the compiler as they are: it may make a scalar store of one lane."""
    source = np.arange(16, dtype=np.float32) + 1
    target = np.full(16, 77, {1: np.uint8, 2: np.uint16, 4: np.uint32}[DTYPES[name]])

    def generate(module: Module) -> None:
        with module.task("task") as (k, args, _, _thread):
            arguments = Arguments(k, args, 2)
            short = arguments.pointer(1, name).as_real("f32")
            short.store(arguments.pointer(0, "f32").load(0, 16), 0, k.mask(count, 16))

    kernel = CpuKernel(load("test-few", (name, count), isa(cpu), generate), [("task", 1)], 2, threads=1)
    kernel(None, [source.ctypes.data, target.ctypes.data], 1.0, 0.0, 0)
    assert (target[:count] != 77).all()
    assert (target[count:] == 77).all()


@pytest.mark.parametrize("stride", [-2, 0, 1, 2, 3, 4, 5, 7])
def test_strided_loads_and_stores(stride: int) -> None:
    valid = LANES - 1
    x = np.random.default_rng(stride + 9).standard_normal(100).astype(np.float32)
    loaded = np.full(LANES, np.nan, np.float32)
    scattered = np.full(100, np.nan, np.float32)

    def body(k: Any, x: Any, y: Any, z: Any, _: Any) -> None:
        mask = k.mask(valid, LANES)
        vector = (x + 40).load_strided(0, stride, LANES, mask)
        y.store(vector, 0, mask)
        (z + 40).store_strided(vector, 0, stride or 6, mask)

    run(body, x, loaded, scattered, name="strides", parameters=stride)
    want = x[40 + stride * np.arange(valid)]
    np.testing.assert_array_equal(loaded[:valid], want)
    places = 40 + (stride or 6) * np.arange(valid)
    np.testing.assert_array_equal(scattered[places], want)
    assert np.isnan(np.delete(scattered, places)).all()


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_transpose(lanes: int) -> None:
    x = np.random.default_rng(lanes).standard_normal((lanes, lanes)).astype(np.float32)
    y = np.full_like(x, np.nan)

    def body(k: Any, x: Any, y: Any, _: Any) -> None:
        for i, row in enumerate(transpose(k, [x.load(i * lanes, lanes) for i in range(lanes)])):
            y.store(row, i * lanes)

    run(body, x, y, name="transpose", parameters=lanes)
    np.testing.assert_array_equal(y, x.T)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(0, LANES), run_length=st.integers(1, 3 * LANES))
def test_transposed_copies_stay_inside(rows: int, run_length: int) -> None:
    pitch = 11
    x = np.random.default_rng(rows).standard_normal((LANES, 3 * LANES)).astype(np.float32)
    y = np.full((3 * LANES, pitch), np.nan, np.float32)
    sizes = np.array([rows, run_length])

    def body(k: Any, x: Any, y: Any, sizes: Any, _: Any) -> None:
        copy_transposed(k, x, 3 * LANES, sizes.load(0), sizes.load(1), y, pitch, LANES)

    run(body, x, y, sizes, name="copy-transposed")
    want = np.zeros((run_length, LANES), np.float32)
    want[:, :rows] = x[:rows, :run_length].T
    np.testing.assert_array_equal(y[:run_length, :LANES], want)
    assert np.isnan(y[run_length:]).all()
    assert np.isnan(y[:, LANES:]).all()


def test_comparisons_select_and_reduce() -> None:
    x = np.array([3, -1, np.nan, 7, -np.inf, 0, 2, -5], np.float32)
    y = np.full(5, np.nan, np.float32)

    def body(k: Any, x: Any, y: Any, _: Any) -> None:
        v = x.load(0, LANES)
        clean = k.select(v == v, v, 0.0)
        y.store(k.reduce(k.select(clean > -100.0, clean, 0.0), "add"), 0)
        y.store(k.reduce(clean, "max"), 1)
        y.store(k.reduce(clean, "min"), 2)
        y.store(k.extract(clean, 3) / 2.0, 3)
        y.store(-k.extract(k.fma(clean, clean, k.constant(1, "f32", LANES)), 7), 4)

    run(body, x, y, name="compare")
    np.testing.assert_array_equal(y, np.array([6, 7, -np.inf, 3.5, -26], np.float32))


def test_integers_divide_and_convert() -> None:
    x = np.array([17, 5, -3], np.int64)
    y = np.full(5, np.nan, np.float64)

    def body(k: Any, x: Any, y: Any, _: Any) -> None:
        a, b, c = (x.load(i) for i in range(3))
        for place, value in enumerate((a // b, a % b, c.max(b), c.min(2), (a << 2) - c)):
            y.store(k.convert(value, "f64"), place)

    run(body, x, y, name="integers")
    assert y.tolist() == [3, 2, 5, -3, 71]


def test_invalid_code_is_a_compile_error() -> None:
    module = Module("broken", isa())
    module.write("define void @f() { ret i32 0 }")
    with pytest.raises(CompileError, match="broken is not valid LLVM IR"):
        compile_object(module)


def test_a_missing_function_is_a_compile_error() -> None:
    library = load("test-empty", "", isa(), lambda module: module.write("define void @f() {\n ret void\n}"))
    assert library.address("f")
    with pytest.raises(CompileError, match="no function 'g'"):
        library.address("g")


def test_code_for_another_machine_is_not_loaded() -> None:
    foreign = isa("neon" if "avx2" in runnable() else "avx2")
    with pytest.raises(CompileError, match="cannot be loaded on this machine"):
        load("test-foreign", "", foreign, lambda module: None)


def _spread_masks() -> Module:
    """So many vectors that the masks come from ymm16 on, and masks that go through an integer (`Pointer.store`)."""
    module = Module("masks", isa("avx512"))
    with module.function("spread", x="f64", y="f32", n=None, count=None) as (k, (x, y, n, count), _):
        kept = [k.register(x.load(8 * i, 8)) for i in range(16)]
        target = y.as_real("f64")
        for j in k.range(n):
            mask = k.mask(count - j, 8)
            total = k.register(k.constant(0.0, "f64", 8))
            for i in k.range(n):
                total += (x + i).load_strided(0, 4, 8, mask)
                for register in kept:
                    register.set(k.fma(total.get(), register.get(), register.get()))
            for i in k.range(n):
                gathered = (target + i * j).load_strided(0, n, 8, mask)
                (target + i).store_strided(total.get(), 0, 4, mask)
                (target + i).store_strided(gathered, j, 4, mask)
        for i, register in enumerate(kept):
            target.store(register.get(), 8 * i)
    return module


def test_no_mask_is_taken_from_another_vector() -> None:
    """vmovmsk reaches 16 registers: LLVM 22 lets it stand for two instructions that reach 32."""
    code, machine = optimise(_spread_masks())
    if not moves_signs(bytes(machine.emit_object(code))):
        pytest.skip("this LLVM does not make vmovmsk of them")
    assert "movmsk" not in assembly(_spread_masks())
    assert not moves_signs(compile_object(_spread_masks()))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("c5fc50c4", True),  # vmovmskps %ymm4, %eax
        ("c4a17c50c4", True),  # the same as LLVM writes it of %ymm20
        ("c4417d50f7", True),  # vmovmskpd %ymm15, %r14d
        ("c5fdd7c1", True),  # vpmovmskb %ymm1, %eax
        ("c5fc10c4", False),  # vmovups
        ("62f17c4810c4", False),
    ],
)
def test_moves_of_signs_are_found(code: str, expected: bool) -> None:
    assert moves_signs(bytes.fromhex("9090" + code + "c3")) is expected


def _multiply_add(name: str) -> str:
    module = Module("fma", isa(name))
    with module.task("task") as (k, args, _, _thread):
        x = k.pointer(args, 0, "f32")
        lanes = k.lanes("f32")
        x.store(k.fma(x.load(0, lanes), x.load(lanes, lanes), x.load(2 * lanes, lanes)), 0)
    return assembly(module)


@pytest.mark.parametrize(
    ("name", "instruction", "register"),
    [
        ("avx512", "vfmadd", "%zmm"),
        ("avx2", "vfmadd", "%ymm"),
        ("neon", "fmla", "v0.4s"),
        ("plain", "mulps", "%xmm"),
    ],
)
def test_one_source_for_every_instruction_set(name: str, instruction: str, register: str) -> None:
    text = _multiply_add(name)
    assert instruction in text
    assert register in text
    assert "fmaf" not in text  # no call into the C library
