"""What the emulated CUDA device says of kernels that misuse the instructions of sm_90a, and of maps that are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.tensor_map import Tables, TensorMap
from jitdnn.errors import CompileError, DeviceError
from one_hopper_kernel import HEAD, row_major, run

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)

MADE = """
    const u32 barrier = shared + 32768;
    f32 d[32] = {};
    const u64 a = wgmma_descriptor(shared);
    if (threadIdx.x == 0) { mbarrier_init(barrier, 1); mbarrier_init_fence(); }
    __syncthreads();
""".replace("\n", " ")
ONE = "if (threadIdx.x == 0) "
FILL = f"{ONE} {{ for (int i = 0; i < 8192; ++i) storage[i] = 0; }} __syncthreads();"
LOAD_3D = "tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);"
ERRORS = {
    "a wait without an arrival": (
        "mbarrier_wait(barrier, 0);",
        r"deadlock: 128 threads .* wait at line 1 for the mbarrier at 32768, parity 0: 1 of 1 arrivals and 0 bytes",
    ),
    "fewer bytes than promised": (
        ONE + "{ mbarrier_arrive_expect(barrier, 8193); " + LOAD_3D + "} mbarrier_wait(barrier, 0);",
        "deadlock: .*0 of 1 arrivals and 1 bytes are missing",
    ),
    "more bytes than promised": (
        ONE + "{ mbarrier_arrive_expect(barrier, 8191); " + LOAD_3D + "} mbarrier_wait(barrier, 0);",
        "tma_load: copies bring 1 bytes more to the mbarrier at 32768",
    ),
    "a copy into a phase that is over": (
        ONE + "{" + LOAD_3D + " mbarrier_arrive(barrier); mbarrier_wait(barrier, 1); }",
        "tma_load: its phase of the mbarrier at 32768 is over",
    ),
    "a copy that nobody waits for": (
        ONE + "{ mbarrier_arrive_expect(barrier, 8192); " + LOAD_3D + "}",
        "thread 0, line 1: the block ends before this copy",
    ),
    "too many arrivals": (
        ONE + "{ mbarrier_arrive_expect(barrier, 8); mbarrier_arrive(barrier); }",
        "mbarrier_arrive: more than the 1 arrivals of a phase .* misses 8 bytes",
    ),
    "an mbarrier that is none": ("mbarrier_wait(barrier + 8, 0);", "there was no mbarrier_init at 32776"),
    "an mbarrier twice": (ONE + "mbarrier_init(barrier, 1);", "there is an mbarrier at 32768"),
    "an mbarrier overwritten": (
        ONE + "storage[32768] = 1; __syncthreads(); mbarrier_arrive(barrier);",
        "something was written over the mbarrier",
    ),
    "an mbarrier misaligned": (ONE + "mbarrier_init(barrier + 4, 1);", "misaligned address .* multiple of 8"),
    "an mbarrier that others do not know": (
        "if (threadIdx.x == 96) { mbarrier_init(barrier + 8, 1); mbarrier_init_fence(); }"
        "mbarrier_wait(barrier + 8, 1);",
        "thread 97, line 1: mbarrier_wait: thread 96 made the mbarrier at 32776, and no barrier",
    ),
    "an mbarrier without its fence": (
        ONE + "mbarrier_init(barrier + 8, 1); __syncthreads(); mbarrier_wait(barrier + 8, 1);",
        "thread 0 made the mbarrier at 32776 without mbarrier_init_fence",
    ),
    "a copy to a misaligned address": (
        ONE + LOAD_3D.replace("shared", "shared + 512"),
        "tma_load: shared address 512 must be a multiple of 1024",
    ),
    "a copy of narrow rows to a misaligned address": (
        ONE + LOAD_3D.replace("shared", "shared + 128").replace("maps[0]", "maps[2]"),
        "tma_load: shared address 128 must be a multiple of 256",
    ),
    "a copy out of range": (
        ONE + LOAD_3D.replace("shared", "shared + 59392"),
        "tma_load: 8192 bytes at 59392 are out of range of dynamic shared memory, which has 65536",
    ),
    "a copy by the wrong instruction": (
        ONE + "tma_load_5d(shared, tables.maps[0], barrier, 0, 0, 0, 0, 0);",
        "the tensor map is tiled of rank 3, the copy tiled of rank 5",
    ),
    "no tensor map": ("TensorMap none = {}; " + LOAD_3D.replace("tables.maps[0]", "none"), "no tensor map at"),
    "a tap too far": (
        ONE + "tma_load_im2col_4d(shared, tables.maps[1], barrier, 0, 0, 0, 0, 0, 256);",
        "a tap at 256: it can be 0 to 255",
    ),
    "a window that is none": (
        ONE + "tma_load_im2col_4d(shared, tables.maps[1], barrier, 0, 3, 0, 0, 0, 0);",
        "no window begins at 3 along axis 1, but from -1 to 2 in steps of 1",
    ),
    "products without a fence": ("wgmma_bf16<false, false>(d, a, a, true);", "no wgmma_fence came before"),
    "products in no group": (
        FILL + "wgmma_fence(); wgmma_bf16<false, false>(d, a, a, true); wgmma_wait<0>();",
        "1 products are in no group",
    ),
    "products that nobody waits for": (
        FILL + "wgmma_fence(); wgmma_bf16<false, false>(d, a, a, true); wgmma_commit(); wgmma_wait<1>();",
        "the thread ends with 1 products of wgmma in flight",
    ),
    "products of a part of a warpgroup": (
        FILL + "wgmma_fence(); if (threadIdx.x >= 32) wgmma_bf16<false, false>(d, a, a, true);\n"
        "wgmma_commit(); wgmma_wait<0>();",
        "line 2: wgmma_wait: 1 products in 1 groups are in flight, thread 0 has 0 in 1",
    ),
    "products that differ": (
        "wgmma_fence(); wgmma_bf16<false, false>(d, a + threadIdx.x / 64 * 2, a, true); wgmma_commit();"
        "wgmma_wait<0>();",
        "thread 0, line 1: wgmma: thread 96 of the same warpgroup begins another product at line 1",
    ),
    "a wait of a part of a warpgroup": (
        "if (threadIdx.x) wgmma_wait<0>();",
        "deadlock: 1 threads .* have ended; 127 threads .* wait at line 1 for their warpgroup at wgmma_wait",
    ),
    "an operand between pieces": (
        "wgmma_fence(); wgmma_bf16<false, false>(d, a + 1, a, true); wgmma_commit(); wgmma_wait<0>();",
        "a begins at 16: that must be a multiple of 32",
    ),
    "an MN-major operand of narrow rows": (
        "wgmma_fence(); wgmma_bf16<true, false>(d, wgmma_descriptor(shared, 8192, 32), a, true); wgmma_commit();"
        "wgmma_wait<0>();",
        "a is MN-major in rows of 32 bytes: they must be of 128 or 64",
    ),
    "an MN-major operand between tiles": (
        "wgmma_fence(); wgmma_bf16<true, false>(d, wgmma_descriptor(shared + 32), a, true); wgmma_commit();"
        "wgmma_wait<0>();",
        "a begins at 32: it must be a multiple of 1024",
    ),
    "a descriptor without a swizzle": (
        "wgmma_fence(); wgmma_bf16<false, false>(d, a & ~(3ull << 62), a, true); wgmma_commit(); wgmma_wait<0>();",
        "of a does not say a swizzle of 128, 64 or 32 bytes alone",
    ),
    "an operand out of range": (
        "wgmma_fence(); wgmma_bf16<false, false>(d, a, wgmma_descriptor(shared + 61440), true); wgmma_commit();"
        "wgmma_wait<0>();",
        "address 65536 of b is out of range of dynamic shared memory",
    ),
    "a barrier that a part of a warpgroup misses": (
        "if (threadIdx.x < 100) warpgroup_barrier(3);",
        "deadlock: 100 threads .* for their warpgroup at barrier 3",
    ),
    "a barrier of all": ("warpgroup_barrier(0);", "its number is 1 to 15, not 0"),
    "stmatrix misaligned": ("stmatrix_x4(shared + 8, 0, 0, 0, 0);", "stmatrix: misaligned"),
    "a load out of range": ("shared_load16(shared + 65536);", "shared_load16: address .* out of range"),
    "a load misaligned": ("shared_load4(shared + 2);", "shared_load4: misaligned address"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_told(name: str) -> None:
    body, message = ERRORS[name]
    x, image = np.zeros((1, 64, 64), np.float16), np.zeros((1, 4, 4, 64), np.float16)
    maps = (
        row_major(0, x, (64, 64, 1)),
        row_major(1, image, (64, 8), corners=((-1, -1), (-1, -1))),
        row_major(0, x, (16, 64, 1)),
    )
    with pytest.raises(DeviceError, match=message):
        run(DEVICE, MADE + body, x, image, np.zeros(1), maps)


def test_copies_need_shared_memory_that_is_declared_as_aligned() -> None:
    x = np.zeros((1, 64, 64), np.float16)
    with pytest.raises(DeviceError, match="must be declared as aligned to 1024 bytes, not 128"):
        run(DEVICE, MADE + ONE + LOAD_3D, x, x, x, (row_major(0, x, (64, 64, 1)),), alignment=128)
    with pytest.raises(DeviceError, match="must be declared as aligned to 512 bytes, not 256"):
        run(DEVICE, MADE + ONE + LOAD_3D, x, x, x, (row_major(0, x, (32, 64, 1)),), alignment=256)


MAPS = {
    "rows of a box must have 128, 64 or 32 bytes": {"box": (48, 64, 1)},
    "extents of a box must be 1 to 256": {"box": (64, 257, 1)},
    "strides must be positive multiples of 16 bytes": {"strides": (120, 8192)},
    "steps must be 1 to 8": {"steps": (1, 9, 1)},
    "address 0x.* must be a multiple of 16": {"offset": 8},
    "no such operand": {"operand": 3},
    "corners must be within .-32768, 32767.": {"corners": ((-32769,), (0,)), "box": (64, 8)},
    "corners must be within .-128, 127.": {
        "extents": (64, 8, 8, 1), "strides": (128, 1024, 8192), "steps": (1, 1, 1, 1), "box": (64, 8),
        "corners": ((-129, 0), (0, 0)),
    },
    "corners must be within .-16, 15.": {
        "extents": (64, 4, 4, 4, 1), "strides": (128, 512, 2048, 8192), "steps": (1, 1, 1, 1, 1), "box": (64, 8),
        "corners": ((0, 0, 0), (0, 16, 0)),
    },
}  # fmt: skip


@pytest.mark.parametrize("message", MAPS)
def test_maps_that_the_driver_refuses(message: str) -> None:
    given = {
        "operand": 0, "offset": 0, "dtype": "f16", "extents": (64, 64, 1), "strides": (128, 8192), "box": (64, 64, 1),
        "steps": (1, 1, 1),
    }  # fmt: skip
    x = np.zeros((1, 64, 64), np.float16)
    with pytest.raises(DeviceError, match=message):
        run(DEVICE, "", x, x, x, (TensorMap(**given | MAPS[message]),))


def test_tables_are_the_structure_that_the_kernel_takes() -> None:
    x = np.zeros((1, 64, 64), np.float16)
    tables = Tables((row_major(0, x, (64, 64, 1)),), (1, 2))
    text = f"struct Tables {{ TensorMap maps[2]; i64 numbers[2]; }}; KERNEL2(32, 1) void body{HEAD} {{}}"
    source, launches = Source("body", text, dialect="hopper"), [Launch("body", 1, 32)]
    with pytest.raises(CompileError, match="body takes tables of 320 bytes and is launched with 192"):
        DEVICE.kernel(source, launches, 3, tables=tables)
    with pytest.raises(CompileError, match="body takes 7 arguments and is launched with 6"):
        DEVICE.kernel(source, launches, 3)
    with pytest.raises(CompileError, match="body takes 7 arguments and is launched with 8"):
        DEVICE.kernel(source, launches, 4, tables=tables)
