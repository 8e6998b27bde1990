"""Recurrent layers on an NVIDIA GPU beside PyTorch's, which cuDNN runs: `python benchmarks/recurrent_gpu.py`.

Each call, or training step, is a CUDA graph; ours and PyTorch's take turns, and medians of the turns are printed, once
with cuDNN's products in tf32, its default for f32, and once in fp32. Results are compared before.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

import jitdnn as jd
from jitdnn.bench.gpu_timing import interleaved

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def main() -> None:
    """Time one kind of layer for every batch and number of units that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--dtype", choices=tuple(TYPES), default="f32")
    parser.add_argument("--training", action="store_true")
    given = parser.parse_args()
    print("batch hidden | ours us | cuDNN us | cuDNN / ours (each for tf32 and fp32 products of cuDNN)")
    for hidden in given.hidden:
        for batch in given.batch:
            row(given, batch, hidden)


def row(given: Any, batch: int, hidden: int) -> None:
    """Check and time one layer."""
    dtype = TYPES[given.dtype]
    cells: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    module = cells[given.cell](hidden, hidden, given.layers, bidirectional=given.bidirectional)
    module = module.to("cuda", dtype)
    weights = [weight.detach() for weight in module._flat_weights]
    x = torch.randn(given.steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=given.training)
    dy = torch.randn(given.steps, batch, hidden * (1 + given.bidirectional), device="cuda", dtype=dtype)
    forward, backward = (jd.lstm, jd.lstm_backward) if given.cell == "lstm" else (jd.gru, jd.gru_backward)
    how = {"bidirectional": given.bidirectional}

    def ours() -> torch.Tensor:
        y, *_, saved = forward(x.detach(), weights, training=given.training, **how)
        if given.training:
            backward(dy, x.detach(), weights, saved, **how)
        result: torch.Tensor = y
        return result

    def theirs() -> torch.Tensor:
        with torch.set_grad_enabled(given.training):
            y, _ = module(x)
            if given.training:
                torch.autograd.grad(y, [x, *module.parameters()], dy)
        result: torch.Tensor = y.detach()
        return result

    words = []
    for is_tf32 in (True, False) if given.dtype == "f32" else (True,):
        torch.backends.cudnn.allow_tf32 = is_tf32
        error = float((ours().double() - theirs().double()).norm() / theirs().double().norm())
        assert error < (2e-2 if given.dtype == "bf16" else 3e-3), error
        taken = interleaved(torch, [lambda _: ours(), lambda _: theirs()], 1, 9)
        own, other = (1e6 * statistics.median(each) for each in taken)
        words.append(f"{own:.0f} | {other:.0f} | {other / own:.2f}")
    print(f"{batch} {hidden} | {'  ;  '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
