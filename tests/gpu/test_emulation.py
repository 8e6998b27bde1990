"""What the emulated CUDA device shows that a GPU would not: missing barriers and waits, wrong addresses, and no hangs.

That it computes the right numbers is tested in test_instructions.py.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import CompileError, DeviceError
from one_kernel import HEAD, run

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)

# ---- Asynchronous copies ------------------------------------------------------------------------------------------

COPY = """
    __shared__ __align__(16) f32 tile[2][32 * 4];
    f32 *out = (f32 *)y + threadIdx.x * 4;
    cp_async16(&tile[0][threadIdx.x * 4], x + threadIdx.x * 16, n > 0);
    cp_async_commit();
    cp_async16(&tile[1][threadIdx.x * 4], w + threadIdx.x * 16);
    {commit}
    {wait}
    const int from = threadIdx.x * 4;
    for (int i = 0; i < 4; ++i) out[i] = tile[0][from + i], out[128 + i] = tile[1][from + i];"""


@pytest.mark.parametrize(
    ("wait", "commit", "arrived"),
    [
        ("", "cp_async_commit();", (False, False)),
        ("cp_async_wait<2>();", "cp_async_commit();", (False, False)),
        ("cp_async_wait<1>();", "cp_async_commit();", (True, False)),
        ("cp_async_wait<0>();", "cp_async_commit();", (True, True)),
        ("cp_async_wait<0>();", "", (True, False)),
    ],
)
def test_a_copy_arrives_when_it_is_waited_for(wait: str, commit: str, arrived: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 128)).astype(np.float32)
    y = np.zeros((2, 128), np.float32)
    run(DEVICE, COPY.format(wait=wait, commit=commit), x, w, y, n=1)
    for seen, source, is_there in zip(y, (x, w), arrived, strict=True):
        assert (seen == source).all() if is_there else np.isnan(seen).all()


# ---- Blocks -------------------------------------------------------------------------------------------------------


def test_every_thread_of_every_block_runs_once() -> None:
    y = np.zeros((3, 2, 5, 40), np.int32)
    body = """
        const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        ((i32 *)y)[block * blockDim.x + threadIdx.x] += 1 + threadIdx.x;"""
    run(DEVICE, body, y, threads=40, groups=(5, 2, 3))
    assert (y == 1 + np.arange(40)).all()


def test_shared_arrays_begin_as_poison_in_every_block() -> None:
    y = np.zeros((2, 2), np.float32)
    body = """
        extern __shared__ f32 dynamic[];
        ((f32 *)y)[2 * blockIdx.x] = dynamic[3];
        ((f32 *)y)[2 * blockIdx.x + 1] = fixed<4>();
        dynamic[3] = 1.0f;"""
    before = "template <int size> FUNCTION f32 fixed() { __shared__ f32 a[size]; f32 v = a[1]; a[1] = 1; return v; }\n"
    run(DEVICE, body, y, groups=2, threads=1, shared=64, before=before)
    assert np.isnan(y).all()


def test_dynamic_shared_memory_declared_outside_of_functions() -> None:
    y = np.zeros(32, np.float32)
    before = """
        extern __shared__ __align__(16) unsigned char storage[];
        template <int offset> FUNCTION f32 *at() { return reinterpret_cast<f32 *>(storage) + offset; }\n"""
    body = (
        "at<2>()[threadIdx.x] = 5; __syncthreads(); ((f32 *)y)[threadIdx.x] = at<1>()[1 + (threadIdx.x ^ 1)];"
    )
    run(DEVICE, body, y, shared=160, before=before)
    assert (y == 5).all()


def test_a_missing_barrier_shows() -> None:
    """Each thread reads what its right neighbour writes; without a barrier most read poison."""
    y = np.zeros(64, np.float32)
    body = """
        __shared__ f32 a[64];
        a[threadIdx.x] = 1.0f;
        {barrier}
        ((f32 *)y)[threadIdx.x] = a[(threadIdx.x + 1) % 64];"""
    run(DEVICE, body.format(barrier=""), y, threads=64)
    assert np.isnan(y).any()
    run(DEVICE, body.format(barrier="__syncthreads();"), y, threads=64)
    assert (y == 1).all()


def test_threads_that_have_ended_are_not_waited_for() -> None:
    y = np.zeros(64, np.float32)
    body = """if (threadIdx.x >= 50) return;
        __shared__ f32 a[64];
        a[threadIdx.x] = 1.0f;
        __syncthreads();
        ((f32 *)y)[threadIdx.x] = warp_sum(a[49 - threadIdx.x]) > 0.0f || true;"""
    run(DEVICE, body, y, threads=64)
    assert y.sum() == 50
    with pytest.raises(DeviceError, match="14 threads ended without this barrier"):
        run(DEVICE, body.replace("warp_sum", ""), y, threads=64, dialect="plain")


def test_plain_sources_run_too() -> None:
    text = """
        KERNEL(64) void scale(GLOBAL const bf16 *x, GLOBAL i8 *y, GLOBAL u8 *workspace,
                              SCALE alpha, SCALE beta, i64 n) {
            SHARED f32 tile[64];
            const i64 i = BLOCK_ID(0) * THREADS + THREAD_ID;
            tile[THREAD_ID] = i < n ? LOAD(bf16, x, i) : 0.0f;
            BARRIER();
            if (i < n) STORE(i8, y, i, alpha * exp(tile[THREAD_ID]));
        }"""
    x = np.linspace(-3, 3, 100).astype(ml_dtypes.bfloat16)
    y = np.zeros(100, np.int8)
    kernel = DEVICE.kernel(Source("scale", text), [Launch("scale", 2, 64)], 2, [100])
    kernel(None, [x.ctypes.data, y.ctypes.data], 10.0, 0.0, 0)
    assert (y == np.clip(np.rint(10 * np.exp(x.astype(np.float64))), -128, 127)).all()


def test_kernels_that_macros_make() -> None:
    text = """
        #define MAKE(name, type) KERNEL(sizeof(type) * 8) void name##_##type(GLOBAL type *y, \\
            GLOBAL u8 *workspace, SCALE alpha, SCALE beta) { y[THREAD_ID] = THREAD_ID; }
        MAKE(count, i32) MAKE(count, f64)
        extern "C" __launch_bounds__(16, 1) __global__ void third(f64 *y, u8 *, f64 alpha, f64)
        { y[40 + threadIdx.x] *= alpha; }"""
    y = np.zeros(64)
    launches = [Launch("count_f64", 1, 64), Launch("third", 1, 16)]
    kernel = DEVICE.kernel(Source("made", text), launches, 1)
    kernel(None, [y.ctypes.data], 2.0, 0.0, 0)
    expected = np.arange(64.0)
    expected[40:56] *= 2
    assert np.array_equal(y, expected)


# ---- Errors become exceptions -------------------------------------------------------------------------------------

ERRORS = {
    "one warp misses a barrier that others pass twice": (
        "if (threadIdx.x < 32) __syncthreads();\n__syncthreads();",
        "thread 32, line 2: barrier divergence: 32 threads wait at the barrier of line 1",
    ),
    "different barriers": (
        "if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();",
        "barrier divergence",
    ),
    "a lane misses a warp instruction": (
        "if (threadIdx.x % 32) shuffle_down(1.0f, 1);\n__syncthreads();",
        "barrier divergence: 2 threads .thread 0 and others. wait at line 2 for all of the block; "
        "62 threads .* wait at line 1 for a shuffle",
    ),
    "lanes at different instructions": (
        "if (threadIdx.x % 2) shuffle_down(1.0f, 1); else warp_ballot(true);",
        "warp divergence: this lane is at a shuffle, 1 others at a vote",
    ),
    "mma without all lanes": (
        "if (threadIdx.x % 32 == 5) return; f32 d[4] = {}; u32 a[4] = {}, b[2] = {}; mma_f16(d, a, b);",
        "needs all 32 lanes of a warp: 31",
    ),
    "cp_async misaligned in shared memory": (
        "__shared__ __align__(16) u8 a[64]; cp_async16(a + 8, x);",
        "line 1: cp_async: misaligned address .* multiple of 16",
    ),
    "cp_async misaligned in global memory": (
        "__shared__ __align__(16) u8 a[64]; cp_async16(a, x + 1);",
        "cp_async: misaligned address .* global memory",
    ),
    "a static array that is aligned by luck": (
        "__shared__ f32 a[64]; cp_async16(a, x);",
        "cp_async: misaligned address .* shared memory",
    ),
    "dynamic shared memory that is aligned by luck": (
        "extern __shared__ u8 a[]; cp_async16(a, x);",
        "cp_async: misaligned address .* shared memory",
    ),
    "cp_async to global memory": ("cp_async16(y, x);", "out of range of shared memory"),
    "ldmatrix misaligned": (
        "__shared__ __align__(16) u16 a[600]; u32 r[4]; ldmatrix_x4(r, a + threadIdx.x % 32 * 8 + (threadIdx.x == 9));",
        "thread 9, line 1: ldmatrix: misaligned",
    ),
    "ldmatrix out of range": (
        "extern __shared__ __align__(16) u16 a[]; u32 r[4]; ldmatrix_x4(r, a + (threadIdx.x % 32 + 1) * 8);",
        r"thread 31, line 1: ldmatrix: address .* out of range of shared memory \(byte 512 of the 512",
    ),
    "load16 misaligned": ("((u32 *)y)[0] = load16(x + 4).x;", "load16: misaligned address"),
    "a vector by a misaligned pointer": (
        "*(uint4 *)(y + 8) = *(const uint4 *)x;",
        "line 1: misaligned address",
    ),
    "read far behind dynamic shared memory": (
        "extern __shared__ f32 a[]; ((f32 *)y)[0] = a[128 + 32 + n];",
        "640 bytes behind the start of dynamic shared memory, which has 512",
    ),
    "write right behind dynamic shared memory": (
        "extern __shared__ f32 a[]; a[125 + n] = 0.0f;",
        "writes behind the end of dynamic shared memory, 500 bytes",
    ),
    "write in front of dynamic shared memory": (
        "extern __shared__ f32 a[]; a[n - 1] = 0.0f;",
        "in front of dynamic",
    ),
    "index of a local array": (
        "f32 d[4]; d[4 + n] = 0; ((f32 *)y)[0] = d[n];",
        "line 1: index out of the bounds",
    ),
    "overflow of 32 bits": (
        "i32 i = (i32)n + 70000; ((i32 *)y)[0] = i * i;",
        "line 1: signed overflow of a multipl",
    ),
    "a pointer to nothing": ("((f32 *)nullptr)[n] = 1.0f;", "invalid or misaligned address .* at body:1"),
    "division by zero": ("((i32 *)y)[0] = 5 / (i32)n;", "division by zero"),
    "too deep": (
        "f32 a[80000]; for (int i = 79999; i >= 0; --i) a[i] = i; ((f32 *)y)[n] = a[(u32)n];",
        "local variables",
    ),
    "part of a warp": ("__syncwarp(1);", "a part of a warp"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_reported(case: str) -> None:
    body, words = ERRORS[case]
    shared = 500 if "500" in words else 512
    y = np.zeros(64, np.float32)
    with pytest.raises(DeviceError, match=words):
        run(DEVICE, body, y, threads=64, shared=shared)
    # and nothing of it is left
    run(DEVICE, "((f32 *)y)[threadIdx.x] = threadIdx.x;", y)
    assert (y[:32] == np.arange(32)).all()


def test_a_kernel_without_an_end() -> None:
    with pytest.raises(DeviceError, match="does not end within its time"):
        run(EmulatedCudaDevice(seconds=0.2), "for (volatile int i = 0; i < 1; i = 0) {}")


def test_launches_that_do_not_fit_their_kernel() -> None:
    text = f"KERNEL2(2 * HALF, 1) void body{HEAD} {{}}"
    source = Source("body", text, (("HALF", 32),), dialect="cuda")
    DEVICE.kernel(source, [Launch("body", 1, 64)], 3, [0])
    with pytest.raises(DeviceError, match="declared for 64 threads and launched with 32"):
        DEVICE.kernel(source, [Launch("body", 1, 32)], 3, [0])
    with pytest.raises(CompileError, match="takes 7 arguments and is launched with 8"):
        DEVICE.kernel(source, [Launch("body", 1, 64)], 3, [0, 1])
    with pytest.raises(CompileError, match="no kernel other"):
        DEVICE.kernel(source, [Launch("other", 1, 64)], 3, [0])
    with pytest.raises(DeviceError, match="bytes of shared memory"):
        DEVICE.kernel(source, [Launch("body", 1, 64, 228 << 10)], 3, [0])
    with pytest.raises(CompileError, match="not_a_name"):
        run(DEVICE, "not_a_name();")
