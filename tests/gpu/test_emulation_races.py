"""What the emulated CUDA device says of accesses to memory that nothing orders, and of those that are ordered.

Each kernel is right with what stands in [[ ]], and wrong without it (or with what stands behind || in its place).
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import one_hopper_kernel
import one_kernel
from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.errors import DeviceError

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=True)


def right(text: str) -> str:
    return re.sub(r"\[\[(.*?)(?:\|\|.*?)?\]\]", r"\1", text, flags=re.DOTALL)


def wrong(text: str) -> str:
    return re.sub(r"\[\[.*?(?:\|\|(.*?))?\]\]", r"\1", text, flags=re.DOTALL)


# ---- Kernels in CUDA C++ of any GPU, of 64 threads ----------------------------------------------------------------

WORDS = (
    "__shared__ struct __align__(16) { u32 words[256]; } of; u32 *words = of.words; "
    "const u32 t = threadIdx.x; u32 *out = (u32 *)y;\n"
)
ROWS = "for (int n = 0; n < 4; ++n) words[4 * t + n] = t;\n"
RACE = "race at byte"
# the kernel, and what is said of the wrong one
KERNELS = {
    "a write before a read": (
        f"{WORDS}words[t] = t;\n[[__syncthreads();]]\nout[t] = words[t ^ 1];",
        ("race at byte 4 of static shared memory", "thread 1 writes (body:2)", "thread 0 reads (body:4)"),
    ),
    "a read before a write": (
        f"{WORDS}words[t] = t;\n__syncthreads();\nout[t] = words[63 - t];\n[[__syncthreads();]]\nwords[t] = 0;",
        (RACE, "reads (body:4)", "writes (body:6)"),
    ),
    "two writes": (
        f"{WORDS}words[t] = t;[[__syncthreads();]]\nif (t == 0) words[9] = 1;",
        (RACE, "thread 9 writes (body:2)", "thread 0 writes (body:3)"),
    ),
    "the next turn of a loop": (
        f"{WORDS}for (int n = 0; n < 3; ++n) {{\nwords[t] = n;\n__syncthreads();\nout[t] += words[t ^ 32];\n"
        "[[__syncthreads();]]\n}",
        (RACE, "writes (body:3)", "reads (body:5)"),
    ),
    "within a warp": (
        f"{WORDS}words[t] = t;\n[[__syncwarp();]]\nout[t] = words[t ^ 1];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "a barrier of the warp is none of the block": (
        f"{WORDS}words[t] = t;\n[[__syncthreads();||__syncwarp();]]\nout[t] = words[t ^ 32];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "a shuffle orders no memory": (
        f"{WORDS}words[t] = t;\n[[__syncwarp();]] out[t] = shuffle_xor(t, 1);\nout[t] = words[t ^ 1];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "a shuffle hands on what was read": (
        f"{WORDS}words[t] = t;\n__syncwarp(); const u32 read = words[t ^ 1];\n"
        "words[t] = [[shuffle_xor(read, 1)||read]];",
        (RACE, "reads (body:3)", "writes (body:4)"),
    ),
    "a shuffle hands nothing on to other warps": (
        f"{WORDS}words[t] = t;\n__syncthreads(); const u32 read = shuffle_xor(words[t ^ 32], 1);\n"
        "[[__syncthreads();]] words[t] = read;",
        (RACE, "reads (body:3)", "writes (body:4)"),
    ),
    "bytes of one word": (
        f"{WORDS}((u8 *)words)[t [[+ 0||/ 2]]] = 1;",
        ("race at byte 0 of", "thread 1 writes (body:2)", "thread 0 writes (body:2)"),
    ),
    "ldmatrix": (
        f"{WORDS}{ROWS}[[__syncwarp();]] u32 r[4];\nldmatrix_x4(r, words + t / 32 * 128 + t % 32 * 4);",
        (RACE, "writes (body:2)", "reads (line 4)"),
    ),
    "ldmatrix_trans": (
        f"{WORDS}{ROWS}[[__syncwarp();]] u32 r[2];\nldmatrix_x2_trans(r, words + t / 32 * 128 + t % 32 * 4);",
        (RACE, "writes (body:2)", "reads (line 4)"),
    ),
    "a copy that is waited for": (
        f"{WORDS}cp_async4(words + t, x + 4 * t);\ncp_async_commit(); [[cp_async_wait<0>();]]\nout[t] = words[t];",
        (RACE, "thread 0 reads (body:4)", "cp_async of thread 0 writes (line 2)"),
    ),
    "a copy by another thread": (
        f"{WORDS}cp_async4(words + t, x + 4 * t);\ncp_async_commit(); cp_async_wait<0>(); [[__syncthreads();]]\n"
        "out[t] = words[t ^ 1];",
        (RACE, "thread 0 reads (body:4)", "cp_async of thread 1 writes (line 2)"),
    ),
    "a wait behind the barrier": (
        f"{WORDS}cp_async4(words + t, x + 4 * t);\ncp_async_commit(); [[cp_async_wait<0>();||]] __syncthreads();\n"
        "[[||cp_async_wait<0>();]] out[t] = words[t ^ 1];",
        (RACE, "reads (body:4)", "writes (line 2)"),
    ),
    "a copy over what others read": (
        f"{WORDS}words[t] = t;\n__syncthreads();\nout[t] = words[t ^ 1]; [[__syncthreads();]]\n"
        "cp_async4(words + t, x + 4 * t); cp_async_commit(); cp_async_wait<0>();",
        (RACE, "thread 33 reads (body:4)", "thread 32 writes (line 5)"),
    ),
    "a copy over one that has not arrived": (
        f"{WORDS}cp_async4(words + t, x + 4 * t); cp_async_commit(); [[cp_async_wait<0>();]]\n"
        "cp_async4(words + t, x); cp_async_commit(); cp_async_wait<0>();",
        (RACE, "cp_async of thread 0 writes (line 3)", "cp_async of thread 0 writes (line 2)"),
    ),
    "an atomic operation": (
        f"{WORDS}words[t] = 0;\n__syncthreads(); atomicAdd(&words[t / 32], t);\n[[__syncthreads();]]\n"
        "out[t] = words[0];",
        (RACE, "updates (line 3)", "reads (body:5)"),
    ),
    "global memory": (
        f"{WORDS}out[t] = t;\n[[__syncthreads();]]\nwords[t] = out[63 - t];",
        ("of the 1024 at", "in global memory", "writes (body:2)", "reads (body:4)"),
    ),
    "a copy of what was written": (
        f"{WORDS}out[t] = t;\n[[__syncthreads();]] cp_async4(words + t, out + (t ^ 32));\n"
        "cp_async_commit(); cp_async_wait<0>();",
        ("in global memory", "thread 32 writes (body:2)", "thread 0 reads (line 3)"),
    ),
    "results of two thread blocks": (
        f"{WORDS}out[ [[64||63]] * blockIdx.x + t] = t;",
        ("race at byte 252 of the", "thread 0 writes (body:2)", "thread 63 writes in block (0, 0, 0) (body:2)"),
    ),
    "what an earlier thread block reads": (
        f"{WORDS}if (blockIdx.x == 0) words[t] = out[t];\nif (blockIdx.x == [[3||2]]) out[t] = t;",
        ("in global memory", "thread 0 writes (body:3)", "thread 0 reads in block (0, 0, 0) (body:2)"),
    ),
    "a signal of a thread block": (
        f"{WORDS}if (blockIdx.x == 0) {{ [[out[t] = t; ||]]arrive_among_blocks(out + 200); [[||out[t] = t;]] }}\n"
        "else { wait_among_blocks(out + 200, 1); words[t] = out[63 - t]; }",
        ("in global memory", "reads (body:3)", "writes in block (0, 0, 0) (body:2)"),
    ),
    "a signal of a signal": (
        f"{WORDS}if (blockIdx.x == 0) {{ out[t] = t; arrive_among_blocks(out + 200); }}\n"
        "if (blockIdx.x == 1) { [[wait_among_blocks(out + 200, 1);]] arrive_among_blocks(out + 201); }\n"
        "if (blockIdx.x == 2) { wait_among_blocks(out + 201, 1); words[t] = out[63 - t]; }",
        ("in global memory", "reads (body:4)", "writes in block (0, 0, 0) (body:2)"),
    ),
    "an atomic operation of thread blocks": (
        f"{WORDS}[[atomicAdd(out, t)||out[0] += t]];",
        ("in global memory", "writes (body:2)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_any_gpu(name: str) -> None:
    text, messages = KERNELS[name]
    x, y = np.zeros(64, np.uint32), np.zeros(256, np.uint32)
    blocks = 3 if "blockIdx" in text else 1
    one_kernel.run(DEVICE, right(text), x, x, y, threads=64, groups=blocks)
    with pytest.raises(DeviceError) as error:
        one_kernel.run(DEVICE, wrong(text), x, x, y, threads=64, groups=blocks)
    assert [one for one in messages if one not in str(error.value)] == [], str(error.value)


def test_kernels_in_plain_c() -> None:
    text = (
        "SHARED f32 words[64]; const int t = THREAD_ID; words[t] = 1;\n[[BARRIER();]]\n"
        "((f32 *)y)[t] = words[63 - t];"
    )
    y = np.zeros(64, np.float32)
    one_kernel.run(DEVICE, right(text), y, threads=64, dialect="plain")
    assert (y == 1).all()
    with pytest.raises(
        DeviceError, match=r"thread 32 writes \(body:1\), and before that thread 31 reads \(body:3\)"
    ):
        one_kernel.run(DEVICE, wrong(text), y, threads=64, dialect="plain")


# ---- Kernels of Hopper, of 128 threads ----------------------------------------------------------------------------

# mbarriers at 32768 and 8 bytes further; boxes of 64 x 64 numbers of 16 bits, 8 KiB
BEGIN = (
    """
    const u32 t = threadIdx.x, barrier = shared + 32768; u32 *words = (u32 *)storage, *out = (u32 *)y;
    if (t == 0) {
        mbarrier_init(barrier, ARRIVALS); mbarrier_init(barrier + 8, 128); mbarrier_init_fence();
    }
    __syncthreads();
""".replace("\n", " ")
    + "\n"
)
LOAD = "mbarrier_arrive_expect(barrier, 8192); tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);"
STORE = "tma_store_3d(shared, tables.maps[1], 0, 0, 0); tma_store_commit();"
SUMS = "f32 sums[16]; "
PRODUCT = (
    "wgmma_fence(); wgmma_f16<false, false>(sums, wgmma_descriptor(shared), wgmma_descriptor(shared), false); "
    "wgmma_commit();"
)
FENCE = "no async_proxy_fence behind a write at byte"
HOPPER_KERNELS = {
    "an mbarrier": (
        "words[t] = t; mbarrier_arrive(barrier + 8);\n[[mbarrier_wait(barrier + 8, 0);]]\nout[t] = words[t ^ 1];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "another phase of an mbarrier": (
        "mbarrier_arrive(barrier + 8); mbarrier_wait(barrier + 8, 0);\nwords[t] = t; mbarrier_arrive(barrier + 8);\n"
        "mbarrier_wait(barrier + 8, [[1||0]]); out[t] = words[t ^ 1];",
        (RACE, "writes (body:3)", "reads (body:4)"),
    ),
    "a write behind the arrival": (
        "[[words[t] = t; ||]]mbarrier_arrive(barrier + 8); [[||words[t] = t;]]\nmbarrier_wait(barrier + 8, 0);\n"
        "out[t] = words[t ^ 1];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "a barrier of another warpgroup": (
        "words[t] = t;\n[[__syncthreads();||warpgroup_barrier(1 + t / 128);]]\nout[t] = words[t ^ 128];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "a barrier of the warpgroup": (
        "words[t] = t;\n[[warpgroup_barrier(1 + t / 128);]]\nout[t] = words[t ^ 64];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
    "reads and writes by address": (
        "shared_store4(shared + 4 * t, t);\n[[__syncthreads();]]\nout[t] = shared_load4(shared + 4 * (t ^ 1));",
        (RACE, "writes (line 2)", "reads (line 4)"),
    ),
    "stmatrix": (
        "stmatrix_x4(shared + 16 * t, t, t, t, t);\n[[__syncwarp();]]\nout[t] = words[4 * t];",
        (RACE, "writes (line 2)", "reads (body:4)"),
    ),
    "all who read a box have waited": (
        f"if (t == 0) {{ {LOAD} mbarrier_wait(barrier, 0); }}\n[[__syncthreads();]]\nout[t] = words[t];",
        (RACE, "tma_load of mbarrier 32768 writes (line 2)", "reads (body:4)"),
    ),
    "a box over what others read": (
        f"out[t] = words[t];\n[[__syncthreads();]]\nif (t == 0) {{ {LOAD} }} mbarrier_wait(barrier, 0);",
        (RACE, "reads (body:2)", "tma_load of mbarrier 32768 writes (line 4)"),
    ),
    "a box over what others wrote": (
        f"words[t] = t;\n[[async_proxy_fence();]] __syncthreads();\n"
        f"if (t == 0) {{ {LOAD} }} mbarrier_wait(barrier, 0);",
        (FENCE, "writes (body:2)", "tma_load of mbarrier 32768 writes (line 4)"),
    ),
    "a ring of two stages": (
        f"for (int n = 0; n < 6; ++n) {{\nif (t == 0) {{ [[if (n) mbarrier_wait(barrier + 8, n - 1 & 1);]] {LOAD} }}\n"
        "mbarrier_wait(barrier, n & 1); out[t] += words[t]; mbarrier_arrive(barrier + 8); }",
        (RACE, "reads (body:4)", "tma_load of mbarrier 32768 writes (line 3)"),
    ),
    "a stored box without a fence": (
        f"words[t] = t; [[async_proxy_fence();]]\n__syncthreads();\nif (t == 0) {{ {STORE} }}",
        (FENCE, "writes (body:2)", "tma_store of thread 0 reads (line 4)"),
    ),
    "a fence of the storing thread alone": (
        f"words[t] = t;\n[[async_proxy_fence();]] __syncthreads();\nif (t == 0) {{ async_proxy_fence(); {STORE} }}",
        (FENCE, "thread 1 writes (body:2)", "tma_store of thread 0 reads (line 4)"),
    ),
    "a fence behind the barrier": (
        f"words[t] = t; [[async_proxy_fence();]]\n__syncthreads(); async_proxy_fence();\nif (t == 0) {{ {STORE} }}",
        (FENCE, "thread 1 writes (body:2)", "tma_store of thread 0 reads (line 4)"),
    ),
    "a stored box without a barrier": (
        f"words[t] = t; async_proxy_fence();\n[[__syncthreads();]]\nif (t == 127) {{ {STORE} }}",
        (RACE, "thread 96 writes (body:2)", "tma_store of thread 127 reads (line 4)"),
    ),
    "a box that has yet to be stored": (
        f"if (t == 0) {{ {STORE} [[tma_store_wait_read<0>();]] }}\n__syncthreads();\nwords[t] = t;",
        (RACE, "tma_store of thread 0 reads (line 2)", "writes (body:4)"),
    ),
    "a newer box that has yet to be stored": (
        f"if (t == 0) {{ {STORE} tma_store_commit(); tma_store_wait_read<[[1||2]]>(); }}\n__syncthreads();\n"
        f"words[t] = t;",
        (RACE, "tma_store of thread 0 reads (line 2)", "writes (body:4)"),
    ),
    "others must know that a box was stored": (
        f"if (t == 0) {{ {STORE} tma_store_wait_read<0>(); }}\n[[__syncthreads();]]\nwords[t] = t;",
        (RACE, "tma_store of thread 0 reads (line 2)", "thread 96 writes (body:4)"),
    ),
    "a product of what was written": (
        f"words[t] = t; [[async_proxy_fence();]]\n__syncthreads(); {SUMS}\n{PRODUCT} wgmma_wait<0>();",
        (FENCE, "writes (body:2)", "wgmma of warpgroup 0 reads (line 4)"),
    ),
    "a product without a barrier": (
        f"words[t] = t; async_proxy_fence();\n[[__syncthreads();]] {SUMS}\n{PRODUCT} wgmma_wait<0>();",
        (RACE, "writes (body:2)", "wgmma of warpgroup 0 reads (line 4)"),
    ),
    "all threads of a product know of its copies": (
        f"if (t == 0) {{ {LOAD} }}\nif (t % 32 == 0) mbarrier_wait(barrier, 0); [[__syncwarp();||shuffle_xor(t, 1);]]\n"
        f"{SUMS} {PRODUCT} wgmma_wait<0>();",
        (RACE, "tma_load of mbarrier 32768 writes (line 2)", "wgmma of warpgroup 0 reads (line 4)"),
    ),
    "an operand that is overwritten": (
        f"{SUMS}\n{PRODUCT} [[wgmma_wait<0>();]] __syncthreads();\nwords[t] = t; [[||wgmma_wait<0>();]]",
        (RACE, "wgmma of warpgroup 0 reads (line 3)", "writes (body:4)"),
    ),
    "an operand of the group that is not waited for": (
        f"{SUMS}\n{PRODUCT} wgmma_commit(); wgmma_wait<[[1||2]]>(); __syncthreads();\nwords[t] = t; wgmma_wait<0>();",
        (RACE, "wgmma of warpgroup 0 reads (line 3)", "writes (body:4)"),
    ),
    "the wait of another warpgroup": (
        f"{SUMS}\nif (t < 128) {{ {PRODUCT} wgmma_wait<0>(); }} [[__syncthreads();]]\nif (t > 127) words[t] = t;",
        (RACE, "wgmma of warpgroup 0 reads (line 3)", "writes (body:4)"),
    ),
    "boxes of two thread blocks": (
        "if (t == 0) { tma_store_3d(shared, tables.maps[1], 0, [[64||32]] * blockIdx.x, 0);\n"
        "tma_store_commit(); }",
        ("in global memory", "thread 0 writes (line 2)", "thread 0 writes in block (0, 0, 0) (line 2)"),
    ),
    "a barrier of the cluster": (
        "words[t] = t; [[cluster_arrive();||cluster_arrive_relaxed();]]\ncluster_wait();\nout[t] = words[t ^ 1];",
        (RACE, "writes (body:2)", "reads (body:4)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOPPER_KERNELS)
def test_kernels_of_hopper(name: str) -> None:
    text, messages = HOPPER_KERNELS[name]
    text = BEGIN.replace("ARRIVALS", "1") + text
    y = np.zeros((1, 64, 64), np.float16)
    maps = tuple(one_hopper_kernel.row_major(operand, y, (64, 64, 1)) for operand in (0, 2))
    threads = 256 if "another warpgroup" in name or "t / 128" in text else 128
    blocks = 2 if "blockIdx" in text else 1
    one_hopper_kernel.run(DEVICE, right(text), y, y, y, maps, threads=threads, blocks=blocks)
    with pytest.raises(DeviceError) as error:
        one_hopper_kernel.run(DEVICE, wrong(text), y, y, y, maps, threads=threads, blocks=blocks)
    assert [one for one in messages if one not in str(error.value)] == [], str(error.value)


LEAVE = "shared_store16(shared + 16 * t, uint4{t, 0, 0, 0});\ncluster_arrive(); cluster_wait();\n"
READ = "out[64 * blockIdx.x + t] = cluster_load16(cluster_address(shared + 16 * t, blockIdx.x ^ 1)).x;\n"
LAST = "\ncluster_arrive_relaxed(); cluster_wait();"
CLUSTERS = {
    "a barrier behind the reads": (
        f"{LEAVE}{READ}[[cluster_arrive_relaxed(); cluster_wait();]]\nshared_store4(shared + 16 * t, 0);{LAST}",
        "block 0 of the cluster: it writes (line 6), and others read, behind barrier 1 of the cluster",
    ),
    "a write between arrival and wait": (
        f"{LEAVE}{READ}cluster_arrive_relaxed(); [[cluster_wait();||]]\nshared_store4(shared + 16 * t, 0);\n"
        f"[[||cluster_wait();]]{LAST}",
        "block 0 of the cluster: it writes (line 6), and others read, behind barrier 1 of the cluster",
    ),
    "other words": (
        f"{LEAVE}{READ}shared_store4(shared + [[1024||0]] + 16 * t, 0);{LAST}",
        "block 0 of the cluster: it writes (line 5), and others read, behind barrier 1 of the cluster",
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_shared_memory_of_other_thread_blocks(name: str) -> None:
    text, message = CLUSTERS[name]
    text = f"const u32 t = threadIdx.x; u32 *out = (u32 *)y;\n{text}"
    y = np.zeros((1, 64, 64), np.float16)
    maps = (one_hopper_kernel.row_major(0, y, (64, 64, 1)),)
    one_hopper_kernel.run(DEVICE, right(text), y, y, y, maps, threads=64, blocks=2, cluster=2)
    with pytest.raises(DeviceError, match=re.escape(message)):
        one_hopper_kernel.run(DEVICE, wrong(text), y, y, y, maps, threads=64, blocks=2, cluster=2)


def test_more_barriers_of_a_cluster_than_are_emulated() -> None:
    text = (
        "for (int n = 0; n < 4; ++n) { cluster_arrive(); cluster_wait(); }\n"
        "cluster_arrive(); shared_store4(shared + 16 * threadIdx.x, 0); cluster_wait();"
    )
    y = np.zeros((1, 64, 64), np.float16)
    maps = (one_hopper_kernel.row_major(0, y, (64, 64, 1)),)
    with pytest.raises(DeviceError, match="more than 4 barriers of a cluster are not emulated"):
        one_hopper_kernel.run(DEVICE, text, y, y, y, maps, threads=64, blocks=2, cluster=2)
