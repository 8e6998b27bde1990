"""Micro-kernels, and what moves their operands: packing, transposing, prefetching, stores with alpha and beta."""
