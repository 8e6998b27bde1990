"""What runs in registers: tiles of multiply-adds, packing, transposing, prefetching, stores with alpha and beta."""
