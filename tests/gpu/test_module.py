"""Modules of CUDA C++ and OpenCL C: on the devices that there are, and compiled for architectures on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices import cuda_compile
from jitdnn.ops.c_module import CModule

NAMES = {
    "opencl": """
#define KERNEL __kernel
#define GLOBAL __global
#define INDEX get_global_id(0)
""",
    "cuda": """
#define KERNEL extern "C" __global__
#define GLOBAL
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)
""",
}
# what is told of a kernel is read before the preprocessor runs, so the words of the languages are written out
AXPY = {
    "opencl": """
__kernel void axpy(float a, __global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
""",
    "cuda": """
__global__ void axpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
""",
}
REVERSED = {
    "opencl": """
__kernel void reversed(__global int *x, __local int *room) {
  int t = get_local_id(0), n = get_local_size(0), first = get_group_id(0) * n;
  room[t] = x[first + t];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[first + t] = room[n - 1 - t];
}
""",
    "cuda": """
extern "C" __global__ void reversed(int *x) {
  extern __shared__ int room[];
  int t = threadIdx.x, n = blockDim.x, first = blockIdx.x * n;
  room[t] = x[first + t];
  __syncthreads();
  x[first + t] = room[n - 1 - t];
}
""",
}
PLACES = {
    "opencl": """
__kernel void places(__global int *out) {
  int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
  out[(z * get_global_size(1) + y) * get_global_size(0) + x] = x + 10 * y + 100 * z;
}
""",
    "cuda": """
__global__ void places(int *out) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  int z = blockIdx.z * blockDim.z + threadIdx.z;
  out[(z * gridDim.y * blockDim.y + y) * gridDim.x * blockDim.x + x] = x + 10 * y + 100 * z;
}
""",
}
WEIGHTED = {
    "opencl": """
__constant float weights[] = VALUES;
__kernel void weighted(__global float *x) { x[get_global_id(0)] = weights[get_global_id(0)]; }
""",
    "cuda": """
__constant__ float VALUES[4];
__global__ void weighted(float *x) { x[threadIdx.x] = VALUES[threadIdx.x]; }
""",
}
# numbers of every kind, a vector, and a structure by value
TYPED = {
    "opencl": """
typedef struct { int count; float scale; long big; } Settings;
__kernel void typed(__global float *out, char a, ushort b, long c, float d, float3 v, Settings s, ulong n) {
  float all[] = {a, b, c, d, v.x, v.y, v.z, s.count, s.scale, s.big, n};
  for (int i = 0; i < 11; i++) out[i] = all[i];
}
""",
    "cuda": """
struct Settings { int count; float scale; long long big; };
__global__ void typed(float *out, char a, unsigned short b, long long c, float d, float3 v, Settings s, size_t n) {
  float all[] = {(float)a, (float)b, (float)c, d, v.x, v.y, v.z, (float)s.count, s.scale, (float)s.big, (float)n};
  for (int i = 0; i < 11; i++) out[i] = all[i];
}
""",
}
# a structure in memory that has the address of another array
INDIRECT = {
    "opencl": """
typedef struct { long count; __global float *values; } Row;
__kernel void doubled(__global Row *row) { for (long i = 0; i < row->count; i++) row->values[i] *= 2; }
""",
    "cuda": """
struct Row { long long count; float *values; };
__global__ void doubled(Row *row) { for (long long i = 0; i < row->count; i++) row->values[i] *= 2; }
""",
}


def made(device: Any, texts: dict[str, str], **more: Any) -> Any:
    return jd.module(texts[device.target], "mine", jd.Handle(device), **more)


def moved(device: Any, values: Any) -> Any:
    return jd.to_device(np.asarray(values), f"{device.target}:{device.index}")


def test_a_function_is_launched_with_numbers_and_arrays(device: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1003)).astype(np.float32)
    here, there = moved(device, x), moved(device, y)
    function = made(device, AXPY)["axpy"]
    function(2.5, here, there, 1003, grid=-(-1003 // 64), block=64)
    np.testing.assert_allclose(there.numpy(), y + np.float32(2.5) * x, rtol=1e-6, atol=1e-6)
    # a part, by the address of its first element
    function(np.float64(1), here[1000:], there[:3], 3, grid=(1,), block=(64, 1, 1))
    np.testing.assert_allclose(there.numpy()[:3], y[:3] + 2.5 * x[:3] + x[1000:], rtol=1e-5, atol=1e-5)


def test_shared_memory(device: Any) -> None:
    x = moved(device, np.arange(96, dtype=np.int32))
    made(device, REVERSED)["reversed"](x, grid=3, block=32, shared=32 * 4)
    np.testing.assert_array_equal(x.numpy(), np.arange(96).reshape(3, 32)[:, ::-1].ravel())


def test_three_axes(device: Any) -> None:
    out = jd.empty((4, 6, 8), "i32", f"{device.target}:{device.index}")
    made(device, PLACES)["places"](out, grid=(2, 3, 1), block=(4, 2, 4))
    z, y, x = np.indices((4, 6, 8))
    np.testing.assert_array_equal(out.numpy(), x + 10 * y + 100 * z)


def test_numbers_vectors_and_structures(device: Any) -> None:
    kind = np.dtype([("count", "i4"), ("scale", "f4"), ("big", "i8")], align=True)
    out = jd.empty(11, "f32", f"{device.target}:{device.index}")
    function = made(device, TYPED)["typed"]
    numbers = (-5, 65535, 1 << 40, 0.25, (1.5, 2.5, 3.5), np.array((7, 0.5, -3), kind), 9)
    function(out, *numbers, grid=1, block=1)
    np.testing.assert_array_equal(out.numpy(), [-5, 65535, 2.0**40, 0.25, 1.5, 2.5, 3.5, 7, 0.5, -3, 9])
    if device.target == "cuda":  # PoCL takes structures of any size
        with pytest.raises(jd.InvalidArgument, match="s has 4 bytes, and the kernel takes 16"):
            function(out, *numbers[:5], np.int32(3), 9, grid=1, block=1)


def test_addresses_in_memory(device: Any) -> None:
    values = moved(device, np.arange(7, dtype=np.float32))
    row = moved(device, np.array([7, values.pointer], np.int64))
    made(device, INDIRECT)["doubled"](row, grid=1, block=1, uses=[values])
    np.testing.assert_array_equal(values.numpy(), 2 * np.arange(7))
    with pytest.raises(jd.DeviceError, match="uses has an array on the host"):
        made(device, INDIRECT)["doubled"](row, grid=1, block=1, uses=[np.zeros(3)])


def test_constants(device: Any) -> None:
    values = {"defines": {"VALUES": np.float32([1, 2, 3, 4])}} if device.target == "opencl" else {}
    module, other = made(device, WEIGHTED, **values), made(device, WEIGHTED, **values)
    function, x = module["weighted"], jd.empty(4, "f32", f"{device.target}:{device.index}")
    for given in ([4, 3, 2, 1], np.float32([0.5, 1.5, 2.5, 3.5])):
        np.testing.assert_array_equal(module.constant("VALUES", given), given)
        function(x, grid=1, block=4)
        np.testing.assert_array_equal(x.numpy(), given)
    np.testing.assert_array_equal(module.constant("VALUES"), [0.5, 1.5, 2.5, 3.5])
    # another module of the same text has its own
    other["weighted"](x, grid=1, block=4)
    np.testing.assert_array_equal(x.numpy(), [1, 2, 3, 4] if device.target == "opencl" else 0)
    with pytest.raises(jd.InvalidArgument, match="absent"):
        module.constant("absent", [1.0])
    if device.target == "cuda":
        with pytest.raises(jd.InvalidShape, match="16 bytes, and the values 20"):
            module.constant("VALUES", [1, 2, 3, 4, 5])
        with pytest.raises(jd.InvalidType, match="float32, and the values of float64"):
            module.constant("VALUES", np.zeros(4))


def test_headers_defines_and_options(device: Any, tmp_path: Path) -> None:
    (tmp_path / "scale.h").write_text('#include "offset.h"\n#define SCALE 3.0f\n')
    (tmp_path / "offset.h").write_text("#define OFFSET 1.0f\n")
    text = (
        f'{NAMES[device.target]}#include "scale.h"\n#include "given.h"\n'
        + {
            "opencl": "__kernel void f(__global float *x) { x[INDEX] = x[INDEX] * SCALE + OFFSET + GIVEN + N; }",
            "cuda": "__global__ void f(float *x) { x[INDEX] = x[INDEX] * SCALE + OFFSET + GIVEN + N; }",
        }[device.target]
    )
    options = ["-cl-fast-relaxed-math"] if device.target == "opencl" else ["--use_fast_math"]
    module = jd.module(
        text, "mine", jd.Handle(device), defines={"N": 100}, headers={"given.h": "#define GIVEN 10.0f\n"},
        include_folders=[tmp_path], options=options,
    )  # fmt: skip
    x = moved(device, np.arange(5, dtype=np.float32))
    module["f"](x, grid=1, block=5)
    np.testing.assert_array_equal(x.numpy(), np.arange(5) * 3 + 111)


def test_bad_text_shows_the_compilers_words_and_the_line(device: Any) -> None:
    text = "// first\n" + AXPY[device.target].replace("a * x[i]", "a * missing[i]")
    with pytest.raises(jd.CompileError, match="missing") as caught:
        jd.module(text, "mine", jd.Handle(device))
    assert caught.value.line == 5
    assert caught.value.file in ("mine.cl", "mine.cu")
    assert ">    5    if (i < n) y[i] += a * missing[i];" in str(caught.value)
    other = {"opencl": "cuda", "cuda": "opencl"}[device.target]
    with pytest.raises(jd.CompileError, match=f"the module is for {device.target}"):
        jd.module(AXPY[other], "mine", jd.Handle(device))
    with pytest.raises(jd.CompileError, match="LLVM IR"):
        jd.module("define void @f() {\n  ret void\n}", "mine", jd.Handle(device))
    with pytest.raises(jd.InvalidArgument, match=r"modules for .* are text"):
        jd.module(lambda module: None, "mine", jd.Handle(device))


def test_bad_calls_are_named(device: Any) -> None:
    function = made(device, AXPY)["axpy"]
    x, y = (moved(device, np.ones(8, np.float32)) for _ in range(2))
    wide = moved(device, np.ones(8))
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (jd.InvalidArgument, r"takes 4 arguments \(float a, .*got 3", (1.0, x, y), {}),
        (jd.InvalidType, "a of axpy is .*`float a`", (x, x, y, 8), {}),
        (jd.InvalidType, "x of axpy has elements of f64", (1.0, wide, y, 8), {}),
        (jd.InvalidType, "n of axpy is 8.0", (1.0, x, y, 8.0), {}),
        (jd.InvalidArgument, "n of axpy is 2147483648", (1.0, x, y, 1 << 31), {}),
        (jd.DeviceError, "y of axpy is on the host", (1.0, x, np.ones(8, np.float32), 8), {}),
        (jd.InvalidArgument, "grid is not given", (1.0, x, y, 8), {"grid": None}),
        (jd.InvalidArgument, "block is not given", (1.0, x, y, 8), {"block": None}),
        (jd.InvalidArgument, "block is 1048576", (1.0, x, y, 8), {"block": 1 << 20}),
        (jd.InvalidArgument, r"block is \(1024, 1024, 1\), 1048576 threads", (1.0, x, y, 8), {"block": (1024, 1024)}),
        (jd.InvalidArgument, "grid is 0", (1.0, x, y, 8), {"grid": 0}),
        (jd.InvalidArgument, "grid", (1.0, x, y, 8), {"grid": (1, 1, 1, 1)}),
        (jd.InvalidArgument, "grid", (1.0, x, y, 8), {"grid": ()}),
        (jd.InvalidArgument, "grid", (1.0, x, y, 8), {"grid": "8"}),
        (jd.InvalidArgument, "grid", (1.0, x, y, 8), {"grid": (1, 1 << 20)}),
        (jd.InvalidArgument, "shared is", (1.0, x, y, 8), {"shared": 1 << 30}),
        (jd.InvalidArgument, "shared is", (1.0, x, y, 8), {"shared": -1}),
        (jd.InvalidArgument, "local_size", (1.0, x, y, 8), {"local_size": 8}),
    ]  # fmt: skip
    for error, words, arguments, launch in cases:
        with pytest.raises(error, match=words):
            function(*arguments, **{"grid": 1, "block": 8, **launch})
    np.testing.assert_array_equal(y.numpy(), 1)
    with pytest.raises(jd.CompileError, match="no function 'ax'"):
        made(device, AXPY)["ax"]
    with pytest.raises(jd.DeviceError, match="the handle is for those in host memory"):
        function(1.0, x, y, 8, grid=1, block=8, handle=jd.Handle("cpu"))


def test_declared_parameters(device: Any) -> None:
    module = made(device, AXPY)
    x, y = (moved(device, np.ones(8, np.float32)) for _ in range(2))
    pointer = "__global float *" if device.target == "opencl" else "float *"
    module.function("axpy", f"float a, {pointer}x, {pointer}y, int n")(2.0, x, y, 8, grid=1, block=8)
    np.testing.assert_array_equal(y.numpy(), 3)
    module.function("axpy", ["float a", f"{pointer}x", f"{pointer}y", "unsigned n"])(
        2.0, x, y, 8, grid=1, block=8
    )
    np.testing.assert_array_equal(y.numpy(), 5)
    with pytest.raises(jd.InvalidArgument, match="takes 4 arguments as compiled, and 2 are declared"):
        module.function("axpy", f"float a, {pointer}x")(2.0, x, grid=1, block=8)
    with pytest.raises(jd.InvalidArgument, match="axpy: a"):
        module.function("axpy", f"double a, {pointer}x, {pointer}y, int n")(2.0, x, y, 8, grid=1, block=8)


def test_work_items_of_opencl(device: Any) -> None:
    if device.target != "opencl":
        pytest.skip("of OpenCL")
    function = made(device, PLACES)["places"]
    for sizes in ({"global_size": (8, 6, 4)}, {"global_size": (8, 6, 4), "local_size": (4, 2, 1)}):
        out = jd.empty((4, 6, 8), "i32", "opencl")
        function(out, **sizes)
        z, y, x = np.indices((4, 6, 8))
        np.testing.assert_array_equal(out.numpy(), x + 10 * y + 100 * z)
    for bad in ({"global_size": 8, "local_size": 3}, {"global_size": 8, "grid": 1}, {"local_size": 4}):
        with pytest.raises(jd.InvalidArgument, match=r"global_size"):
            function(out, **bad)
    with pytest.raises(jd.InvalidArgument, match="give the bytes of each of __local int"):
        made(device, REVERSED)["reversed"](out, grid=1, block=1)


class TestOnPaper:
    """Text for architectures that nobody has: compiled, and never launched."""

    def test_compiles(self, architecture: Any) -> None:
        handle = jd.Handle(architecture)
        for texts in (AXPY, REVERSED, PLACES, WEIGHTED, TYPED, INDIRECT):
            module = jd.module(texts["cuda"], "mine", handle)
            assert isinstance(module, CModule)
            (name,) = module.functions
            function = module[name]
            x = np.zeros(3, np.float32)
            with pytest.raises(jd.JitdnnError):
                function(*[x] * len(function.parameters), grid=1, block=1)

    def test_names_are_those_of_the_text(self, architecture: Any) -> None:
        text = """
        namespace space { __global__ void inside(int *x, float y) { x[0] = y; } }
        template <typename T> __global__ void of_template(T *x) { x[0] = 1; }
        template __global__ void of_template<float>(float *);
        extern "C" __global__ void plain(float *x) { x[0] = 1; }
        __global__ void twice(float *x) { x[0] = 1; }
        __global__ void twice(int *x) { x[0] = 1; }
        """
        module: Any = jd.module(text, "mine", jd.Handle(architecture))
        for name in ("space::inside", "plain"):
            assert module[name].name == name
        assert module.function("of_template", "float *x").name == "of_template"
        with pytest.raises(jd.CompileError, match="2 functions 'twice'"):
            module["twice"]
        with pytest.raises(jd.CompileError, match="no function 'inside'"):
            module["inside"]

    def test_bad_text(self, architecture: Any) -> None:
        with pytest.raises(jd.CompileError, match=r"mine does not compile for sm_.*\n.*nothing") as caught:
            jd.module("\n__global__ void f() { nothing(); }", "mine", jd.Handle(architecture))
        assert (caught.value.file, caught.value.line) == ("mine.cu", 2)

    def test_is_compiled_once(
        self, architecture: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        count = []
        compile = cuda_compile._compile_text
        monkeypatch.setattr(cuda_compile, "_compile_text", lambda *a: count.append(1) or compile(*a))
        with jd.settings(cache_dir=str(tmp_path)):
            handle = jd.Handle(architecture)
            for defines in (None, None, {"N": 1}, {"N": 2}, {"N": 1}):
                jd.module(AXPY["cuda"], "mine", handle, defines=defines)
            for content in ("#define M 1\n", "#define M 2\n", "#define M 1\n"):
                jd.module('#include "m.h"\n' + AXPY["cuda"], "mine", handle, headers={"m.h": content})
            jd.module(AXPY["cuda"], "mine", handle, options=["--use_fast_math"])
        assert len(count) == 6
