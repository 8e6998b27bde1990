"""What the processors' cost models were fitted to: shares of caches and of rates, without dimension, in one table.

Sizes and rates are facts of the processor (`rtcg/processor.py`): a block that should stay in the L2 cache takes
`isa.processor.l2(share)` bytes, and a line from memory costs `line_bytes / (factor * memory_rate)` cycles. Only
shares and factors stand here, those of each algorithm together; cycles that instructions take are with the algorithm.
A name ends in the cache that a share is of, `_L1`, `_L2`, `_L3`; without one it is of the last cache of all cores
(`processor.last_cache`), or a factor of what its comment says.
"""

from __future__ import annotations

from jitdnn.rtcg.processor import Processor

# ---- Winograd: forward and backward data

WINOGRAD_PACKED_INPUT_L1 = 0.75  # a packed tile row, read once for each tile; V is written past it
WINOGRAD_PACKED_FILTER_L1 = (
    1.5  # Kp packed channels of a panel, read once: a part of them comes from the L2 cache
)
WINOGRAD_V_L2 = 0.21875  # V of a block that every panel finds; U and M of the panels stream by
WINOGRAD_V_L3 = 0.625  # V of all tiles that every panel finds; the filters stream by
WINOGRAD_U_L2 = 0.3125  # U of Kc channels, where the filter is resident; M stays, V streams by
WINOGRAD_PREFETCH_L2 = 0.625  # U, M and the filter's next Kc channels together
WINOGRAD_L2 = 0.75  # what V, U and M may take before a part of them is read from the L3 cache
WINOGRAD_L3 = 1.0  # what is used in turn without going to memory
WINOGRAD_RETAINED_L3 = 0.375  # of V and U: the L3 cache still has all of it when it is used again
WINOGRAD_LOST_L3 = 1.5  # and of so much next to nothing
WINOGRAD_MEMORY_RATE = 0.75  # streams of many points are short: they do not reach the rate of one long stream
WINOGRAD_EVICTED_L3_RATE = 13 / 12  # V that leaves the L2 cache before it is read, with what it evicts

# ---- Winograd: filter's gradient. A vector costs so many cache lines from where it is.

WINOGRAD_WGRAD_UNIT_L1 = 2.0  # a packed unit of tiles: the larger it is, the fewer rows are read twice
WINOGRAD_WGRAD_OPERANDS_L3 = 1.5  # all tiles of both operands, where the sums are resident
WINOGRAD_WGRAD_L2 = 0.68359375  # operands, or sums, that are read again before they are evicted
WINOGRAD_WGRAD_L3 = 0.3125  # the same
WINOGRAD_WGRAD_STORED_L3 = (
    0.1875  # lines, of a vector of an operand that is stored past the L2 cache: mostly hidden
)
WINOGRAD_WGRAD_STORED_MEMORY = 1.25  # past the L3 cache: the line is read before it is written
WINOGRAD_WGRAD_PACKED_MEMORY = 0.75  # read in order from a tensor in memory
WINOGRAD_WGRAD_PRODUCT_L3 = 0.225  # read by products, which hide most of it
WINOGRAD_WGRAD_PRODUCT_MEMORY = 0.375
WINOGRAD_WGRAD_CARRIED_L2 = 1.5  # of carried sums: read and written
WINOGRAD_WGRAD_CARRIED_L3 = 1.3125
WINOGRAD_WGRAD_CARRIED_MEMORY = 1.5
WINOGRAD_WGRAD_FINISH_MEMORY = 0.75  # of sums that are read in order once more
WINOGRAD_WGRAD_SCATTERED_L3 = 1.5  # of a tap that is stored on its own
WINOGRAD_WGRAD_SCATTERED_MEMORY = 3.0

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


def memory_speed(processor: Processor, share: float) -> float:
    """Bytes per second of a share of what one thread reads from memory."""
    return share * (processor.memory_rate * processor.clock)


# ---- ways of a cache: lines that lie a multiple of a way apart evict each other

L1_WAY_BYTES = 4096  # a page: L1 is indexed by the part of an address that translation leaves as it is
L2_WAYS = 16


def l1_ways(processor: Processor) -> int:
    """Ways of the L1 data cache."""
    return max(1, processor.l1_bytes // L1_WAY_BYTES)


def l2_way_bytes(processor: Processor) -> int:
    """Bytes of one way of the L2 cache."""
    return processor.l2(1 / L2_WAYS)


# ---- direct convolution

DIRECT_STACK_L1 = 0.5  # filters or sums of a task, on the stack: the images stream by
DIRECT_RUN_L2 = 0.09375  # input that a run of tiles reads before the next channels read it again
# over channels
DIRECT_PANEL_L1 = 0.5  # the panel of the filter, on the stack
DIRECT_FILTER_TILE_L1 = 0.75  # what a tile reads of the filter: the next tile of pixels reads it again
DIRECT_TILE_L1 = (
    1.0  # pixels and filter of a tile that sums along channels, one of which the next tile reads again
)
DIRECT_L2_RATE = 0.8  # at which larger ones arrive from the L2 cache
DIRECT_FILTER_L2 = 0.5  # a filter whose vectors cost no waiting
DIRECT_REREAD_L3_RATE = 1.0  # of l3_rate, for images that are read again for each block of a large filter
DIRECT_NEAR_FILTER_L3 = 0.125  # a filter that makes vectors wait little
DIRECT_FILTER_L3 = 0.375  # a larger one comes from memory: L3 also holds the images
# over pixels
DIRECT_INPUT_L1 = 1.0  # a tile's input that L1 has in time: the hardware prefetches its rows
DIRECT_STRIDED_INPUT_L1 = 0.25  # the same where a stride leaves out pixels
DIRECT_STRIDED_IMAGES_L2 = 0.75  # images that may still be there, where rows are left out
DIRECT_IMAGES_L3 = 0.5  # the same where all rows are read: the results are there as well
DIRECT_STRIDED_L3_RATE = 4 / 3  # of l3_rate: the fit has part of the transfer behind the products
DIRECT_MEMORY_RATE = 1.0  # of memory_rate
# over groups
DIRECT_GROUPS_IMAGES_L3 = 1.0  # both tensors
DIRECT_GROUPS_MEMORY_RATE = 2.0  # of memory_rate: half of it is hidden behind products
DIRECT_WRITTEN_L3 = 0.25  # results that are still there when they are written again
DIRECT_INTERLEAVED_INPUT_L2 = 0.125  # input that interleaved correlations read one after the other
# over groups, packed
DIRECT_PACKED_VECTOR_L2 = 0.5  # planes of one vector of groups: the next image's are prefetched
DIRECT_PACKED_PLANES_L2 = 1.0  # planes of all of them, above which copying scattered vectors waits
DIRECT_PACKED_IMAGES_L3 = 0.375  # images that may still be there
DIRECT_PACKED_MEMORY_RATE = 1.0  # of memory_rate: transposing waits for it
# filter's gradients
DIRECT_WGRAD_IMAGES_L2 = 1.0  # x and dy of one group
DIRECT_WGRAD_IMAGES_L3 = 1.0  # x and dy
DIRECT_WGRAD_PIXELS_L3_RATE = 2 / 3  # of l3_rate, as rows of planes reach
DIRECT_WGRAD_CHANNELS_L3_RATE = 5 / 6  # of l3_rate, as runs of channels reach
DIRECT_WGRAD_MEMORY_RATE = 1.0  # of memory_rate
DIRECT_WGRAD_PIXELS_BLOCK_L1 = 0.75  # what the passes over a row block read again and again
DIRECT_WGRAD_SMALL_PLANES_L1 = 0.125  # planes of a group so small that a unit takes several groups
DIRECT_WGRAD_CHANNELS_BLOCK_L2 = 0.0625  # what the passes over a row block read
DIRECT_WGRAD_GROUPS_BLOCK_L2 = 0.09375  # the same of all groups

# ---- elementwise operations, random numbers and resampling

ELEMENTWISE_STREAM = 1.5  # outputs from here on do not fit any cache: they are written past it
ELEMENTWISE_MEMORY_RATE = 5 / 6  # of memory_rate, reads and writes together
EMBEDDING_MEMORY_RATE = 0.5  # of memory_rate: rows begin anywhere

# ---- reductions and normalization

REDUCTION_STREAM = 1.5  # outputs from here on do not fit any cache: they are written past it
REDUCTION_MEMORY_RATE = 2 / 3  # of memory_rate
REDUCTION_CYCLES = 0.9  # times a cycle of the clock, what was counted as a cycle takes
REDUCTION_UNIT_L2 = 0.5  # a unit that its next pass finds in the cache
REDUCTION_FAR_L3 = 0.5  # of all units, from where on the order of memory matters
NORMALIZATION_UNIT_L2 = 0.5  # the same of a normalization's forward pass: else its statistics are one pass
NORMALIZATION_TENSOR_L2 = 0.5  # smaller tensors stay in the cache, whatever the order
NORMALIZATION_CHANNEL_L2 = 0.125  # of x in one channel, which stays beside dy and what is written
NORMALIZATION_RUN_L2 = 0.25  # pixels of x that all channels are done of, one after the other
NORMALIZATION_PIECE_L3 = 0.125  # of the tensors that are read twice
LAYER_NORM_STREAM = 1.5  # a dx from here on fits no cache: it is written past it
LAYER_NORM_MEMORY_RATE = 5 / 6  # of memory_rate
LRN_SUMS_L2 = 0.25  # sums that are kept at once, backward; beyond that fewer vectors go together

# ---- recurrent layers

RNN_ROWS_L2 = 0.75  # weights that stay in the L2 cache from step to step
RNN_ROWS_LAST = 0.75
RNN_CHUNK_L1 = 0.375  # a chunk of a panel, which stays there while the tiles of a group are computed

# ---- several algorithms
NONTEMPORAL = 1.5  # results from here on are not read from any cache afterwards
# of a convolution's result: the next layer begins to read what was written first, which has left the caches by then
NONTEMPORAL_CONVOLUTION = 0.75
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
GEMM_BLOCK_RESULTS_L2 = (
    0.125  # a block's results, and what their epilogue reads, to which every panel returns
)
GEMM_NEAR_FILTER_L2 = 1.0  # a filter up to this size may be read again by every small block
GEMM_CACHED_RESULT_L2 = 0.5  # a result up to this size stays: its lines need no prefetch
GEMM_CACHED_INPUT_L2 = 0.5  # an image up to this size is there still from the layer before
# the part of a packed filter that leaves the caches before it is read is beyond this
GEMM_PACKED_FILTER = 0.5
GEMM_L2_RATE = 0.625  # at which panels arrive without delaying the products
GEMM_L3_RATE = 1.0  # the same for a large filter that every block reads again
# bytes of memory traffic that take as long as an element of a packed filter beyond the L3 cache
GEMM_WRITE_BYTES, GEMM_READ_BYTES = 16.0, 48.0

# ---- pooling
POOLING_PLANE_L2 = 0.25  # rows of a plane that are pooled along one axis after the other

# ---- products with few rows
SKINNY_STACK_L2 = 0.0625  # a block's sums and the copied panel, on the stack
SKINNY_PANEL_L1 = 0.375  # of b, which every row tile reads again
SKINNY_AHEAD_L1 = 0.25  # of b, prefetched where it is read in place
SKINNY_L2 = 0.75  # a large matrix up to this size arrives from the L2 cache
SKINNY_LAST = 0.75  # the same of the last cache
SKINNY_L3_RATE = 1.0

# ---- im2col
IM2COL_COPY_L2_RATE = 5 / 24  # of NumPy's copies, read plus written
