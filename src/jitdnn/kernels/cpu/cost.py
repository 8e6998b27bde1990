"""What the processors' cost models were fitted to: shares of caches and of rates, without dimension, in one table.

Sizes and rates are facts of the processor (`rtcg/processor.py`): a block that should stay in the L2 cache takes
`isa.processor.l2(share)` bytes, and a line from memory costs `line_bytes / (factor * memory_rate)` cycles. Only
shares and factors stand here, those of each algorithm together; cycles that instructions take are with the algorithm.
"""

from __future__ import annotations

# ---- several algorithms
NONTEMPORAL_L3 = 3.0  # results from here on are not read from any cache afterwards
# of a convolution's result: the next layer begins to read what was written first, which has left the caches by then
NONTEMPORAL_CONVOLUTION_L3 = 1.5
# between the input that is read and that is prefetched, which must stay until then
PREFETCH_DISTANCE_L1 = 0.375
REPEATED_OPERAND_L2 = 0.625  # of the operand that the inner loop reads again; the rest streams by
SEPARATE_GROUPS_L2 = 1.0  # tensors up to this size stay from one group to the next
# times as long as a line of a stream: of one that is loaded for one pixel of a group
SEPARATE_GROUP_LINE = 2.25

# ---- implicit GEMM
GEMM_INPUT_TILE_L2 = 0.25  # an input tile shares the L2 cache with the panels and with what is written
GEMM_SPILLED_SUMS_L2 = 1.0  # of a task: each pass reads and writes all of them
# a block's input that is read where it is: whole lines, of which parts are used
GEMM_UNPACKED_INPUT_L2 = 0.390625
GEMM_L2_WAY = 0.0625  # one way of the L2 cache: addresses so far apart fall into the same set
GEMM_PANEL_L1 = 1.0  # a panel of at least this size arrives from the L2 cache
GEMM_REREAD_OPERAND_L2 = 0.5  # an operand beyond this is read again from beyond the L2 cache
GEMM_PREFETCHED_INPUT_L2 = 0.5  # the next block's input, beside what the present block reads
GEMM_CACHED_RESULT_L2 = 0.5  # a result up to this size stays: its lines need no prefetch
# the part of a packed filter that leaves the caches before it is read is beyond this
GEMM_PACKED_FILTER_L3 = 1.0
GEMM_L2_RATE = 0.625  # at which panels arrive without delaying the products
GEMM_L3_RATE = 1.0  # the same for a large filter that every block reads again
# bytes of memory traffic that take as long as an element of a packed filter beyond the L3 cache
GEMM_WRITE_BYTES, GEMM_READ_BYTES = 16.0, 48.0

# ---- im2col
IM2COL_COPY_L2_RATE = 5 / 24  # of NumPy's copies, read plus written
