"""Structures in the memory of a GPU, which say where numbers lie and how many; a kernel doubles those numbers.

python examples/module_structures.py [cuda | opencl]
"""

import sys

import numpy as np

import jitdnn as jd
from jitdnn import targets

CUDA = """
struct Row { long long count; float *values; };
__global__ void twice(const Row *rows, float factor) {
  Row row = rows[blockIdx.x];
  for (long long i = threadIdx.x; i < row.count; i += blockDim.x) row.values[i] *= factor;
}
"""
OPENCL = """
typedef struct { long count; __global float *values; } Row;
__kernel void twice(__global const Row *rows, float factor) {
  Row row = rows[get_group_id(0)];
  for (long i = get_local_id(0); i < row.count; i += get_local_size(0)) row.values[i] *= factor;
}
"""
# the same structure as NumPy has it
ROW = np.dtype([("count", np.int64), ("values", np.uint64)], align=True)

usable = [name for name in ("cuda", "opencl") if targets.get(name).missing() is None]
device = sys.argv[1] if len(sys.argv) > 1 else next(iter(usable), None)
if device is None:
    print(f"no device: {targets.get('cuda').missing()}; {targets.get('opencl').missing()}")
    raise SystemExit(0)

arrays = [np.arange(8, dtype=np.float32), np.linspace(-1, 1, 5, dtype=np.float32)]
there = [jd.to_device(array, device) for array in arrays]
rows = np.array([(array.size, array.pointer) for array in there], ROW)
memory = jd.to_device(rows.view(np.uint8), device)

twice = jd.module(CUDA if device == "cuda" else OPENCL, device=device)["twice"]
# `uses` names what is reached by the addresses in `memory`, so that it is waited for and kept in order
twice(memory, 2.0, grid=len(rows), block=32, uses=there)
for array, doubled in zip(arrays, there, strict=True):
    print(f"{device}: {array} became {doubled.numpy()}")
    assert (doubled.numpy() == 2 * array).all()
# one structure alone, the second: its address is that of the memory and 16 bytes
twice(memory[rows.itemsize :], 0.5, grid=1, block=32, uses=there)
assert (there[1].numpy() == arrays[1]).all()
