"""What the processors' cost models were fitted to: shares of caches and of rates, without dimension, in one table.

Sizes and rates are facts of the processor (`rtcg/processor.py`): a block that should stay in the L2 cache takes
`isa.processor.l2(share)` bytes, and a line from memory costs `line_bytes / (factor * memory_rate)` cycles. Only
shares and factors stand here, those of each algorithm together; cycles that instructions take are with the algorithm.
"""

from __future__ import annotations

# ---- wgrad as an implicit GEMM

# An input tile and a panel share the L2 cache with the sums that stream through it.
GEMM_WGRAD_INPUT_TILE_L2 = 0.3125
GEMM_WGRAD_PANEL_L2 = 0.125
GEMM_WGRAD_TENSORS_L2 = 0.75  # x with dy, or dw: larger ones come from beyond the L2 cache
GEMM_WGRAD_LINE_L2 = 1.125  # times as long as at the rate of the L2 cache does a micro-kernel wait for a line
GEMM_WGRAD_SUM_L2 = 1.5  # and for a vector of sums, which is read and written between blocks
GEMM_WGRAD_LINE_L3 = 0.5625  # of the time at the rate of the L3 cache, for a line that was prefetched

# ---- grouped fprop and dgrad, grouped wgrad

GROUPED_BLOCK_L1 = 1.0  # a unit's packed block of x, most of which stays in the L1 cache
GROUPED_WGRAD_BLOCK_L1 = 1.25  # a unit's packed blocks of x and dy, likewise
GROUPED_UNITS_L2 = 0.3125  # the packed units of a task, which stay in the L2 cache
GROUPED_TENSORS_L3 = 1.25  # x with y: larger ones come from memory
GROUPED_L3_RATE = 1.0
GROUPED_MEMORY_RATE = 1.25
GROUPED_WGRAD_MEMORY_RATE = 0.875

# ---- FFT

FFT_SIGNALS_L2 = 0.5  # the signals of one call of SciPy
FFT_LONG_SIGNAL_L2 = 0.5  # a longer one does not stay in the L2 cache while it is transformed
FFT_SPECTRA_AT_ONCE_L3 = 0.25  # the spectra in memory at once, which products read from the L3 cache
# Spectra that products read come from the L2 cache at no cost, else from the L3 cache, else from memory.
FFT_SPECTRA_L2 = 0.75
FFT_SPECTRA_L3 = 1.0
FFT_L3_RATE = 20 / 9
FFT_MEMORY_RATE = 1.5
FFT_COPY_RATE = 5 / 6  # of the rate of memory, for copies that NumPy makes
