"""Modules of `torch.nn` that stay as they are when a model is converted, and why."""

from __future__ import annotations

LEFT: dict[tuple[str, ...], str] = {
    (
        "Embedding",
    ): "measured: torch's is faster, 0.1 to 0.9 of its time in a forward pass of float32 on a processor",
    ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"): (
        "its numbers are those of torch's generator, which ours do not draw: a seed would give another result"
    ),
    ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer"): (
        "their forward is one function of torch's, and nothing in it is ours; "
        "`F.scaled_dot_product_attention` that a model calls itself is taken in `jt.use()`"
    ),
    ("ReLU6", "LeakyReLU", "Hardtanh"): (
        "measured: torch's is faster, 0.6 to 0.8 of its time in a forward pass of float32 on a processor: one pass "
        "over memory for both, and the way to it is longer"
    ),
    ("RNNCell", "LSTMCell", "GRUCell"): "not compared with torch's",
    ("LPPool2d", "MaxUnpool2d"): "not compared with torch's: few models have them",
    ("MSELoss", "L1Loss", "BCEWithLogitsLoss"): (
        "a pass over the outputs of a model, once in a step: `jd.reduction` takes 0.2 to 0.5 of torch's time forward"
    ),
    ("NLLLoss", "KLDivLoss"): "not compared with torch's",
    ("CTCLoss",): "measured: torch's is faster, 0.9 of the time of ours in a forward pass",
}
"""Names of classes -> the reason. What neither this nor `modules.CONVERTED` names stays as it is, too."""
