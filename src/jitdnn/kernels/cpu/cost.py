"""What the processors' cost models were fitted to: shares of caches and of rates, without dimension, in one table.

Sizes and rates are facts of the processor (`rtcg/processor.py`): a block that should stay in the L2 cache takes
`isa.processor.l2(share)` bytes, and a line from memory costs `line_bytes / (factor * memory_rate)` cycles. Only
shares and factors stand here, those of each algorithm together; cycles that instructions take are with the algorithm.
"""

from __future__ import annotations
