"""Modules of `torch.nn` that stay as they are when a model is converted, and why."""

from __future__ import annotations

LEFT: dict[tuple[str, ...], str] = {
    (
        "Embedding",
    ): "measured: PyTorch's is faster; PyTorch / jitdnn 0.1 to 0.9 in a forward pass of float32 on a processor",
    ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"): (
        "it uses the numbers of PyTorch's random generator; with those of jitdnn a seed would give another result"
    ),
    ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer"): (
        "their forward is a single PyTorch function that calls nothing of jitdnn's; "
        "`F.scaled_dot_product_attention` that a model calls itself is replaced in `jt.use()`"
    ),
    ("ReLU6", "LeakyReLU", "Hardtanh"): (
        "measured: PyTorch's is faster; PyTorch / jitdnn 0.6 to 0.8 in a forward pass of float32 on a processor: both "
        "make one pass over memory, and jitdnn has more host overhead"
    ),
    ("RNNCell", "LSTMCell", "GRUCell"): "not compared with PyTorch's",
    ("LPPool2d", "MaxUnpool2d"): "not compared with PyTorch's: few models have them",
    ("MSELoss", "L1Loss", "BCEWithLogitsLoss"): (
        "one pass over the outputs of a model per step: `jd.reduction` takes 0.2 to 0.5 of PyTorch's time forward"
    ),
    ("NLLLoss", "KLDivLoss"): "not compared with PyTorch's",
    ("CTCLoss",): "measured: PyTorch's is faster, 0.9 of jitdnn's time in a forward pass",
}
"""Names of classes -> the reason. What neither this nor `modules.CONVERTED` names stays as it is, too."""
