"""Recurrent layers on an NVIDIA GPU beside PyTorch's, which cuDNN runs: `python benchmarks/recurrent_gpu.py`.

Each call, or training step, is a CUDA graph; ours and PyTorch's take turns, and medians of the turns are printed.
Of f32 there is a row for products of tf32, cuDNN's default, and one for those of fp32, the same for both. Errors are
those of y, and in training of the gradient of x, against PyTorch's own layer in float64.
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
MATHS = {"f32": ("tf32", "fp32"), "f16": ("fp32",), "bf16": ("fp32",)}


def main() -> None:
    """Time one kind of layer for every batch, number of units, type and math that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--dtype", choices=tuple(TYPES), nargs="+", default=list(TYPES)[:2])
    parser.add_argument(
        "--math", choices=("tf32", "fp32"), nargs="+", default=["tf32", "fp32"], help="of f32"
    )
    parser.add_argument("--training", action="store_true")
    given = parser.parse_args()
    print("cell batch hidden type math | ours us | cuDNN us | cuDNN / ours | errors: ours, cuDNN")
    for hidden in given.hidden:
        for batch in given.batch:
            for dtype in given.dtype:
                for math in MATHS[dtype]:
                    if dtype != "f32" or math in given.math:
                        row(given, batch, hidden, dtype, math)


def row(given: Any, batch: int, hidden: int, name: str, math: str) -> None:
    """Check and time one layer."""
    dtype = TYPES[name]
    torch.backends.cudnn.allow_tf32 = math == "tf32"
    torch.manual_seed(0)
    cells: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    module = cells[given.cell](hidden, hidden, given.layers, bidirectional=given.bidirectional)
    module = module.to("cuda", dtype)
    weights = [weight.detach() for weight in module._flat_weights]
    x = torch.randn(given.steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=given.training)
    dy = torch.randn(given.steps, batch, hidden * (1 + given.bidirectional), device="cuda", dtype=dtype)
    forward, backward = (jd.lstm, jd.lstm_backward) if given.cell == "lstm" else (jd.gru, jd.gru_backward)
    how = {"bidirectional": given.bidirectional}

    def ours() -> list[torch.Tensor]:
        with jd.settings(math=math):
            y, *_, saved = forward(x.detach(), weights, training=given.training, **how)
            if not given.training:
                return [y]
            return [y, backward(dy, x.detach(), weights, saved, **how)[0]]

    def theirs(layer: Any = module, x: torch.Tensor = x, dy: torch.Tensor = dy) -> list[torch.Tensor]:
        with torch.set_grad_enabled(given.training):
            y, _ = layer(x)
            if not given.training:
                return [y.detach()]
            return [y.detach(), torch.autograd.grad(y, [x, *layer.parameters()], dy)[0]]

    exact = cells[given.cell](hidden, hidden, given.layers, bidirectional=given.bidirectional).to(
        "cuda", torch.float64
    )
    exact.load_state_dict({key: value.double() for key, value in module.state_dict().items()})
    with torch.backends.cudnn.flags(enabled=False):
        wanted = theirs(exact, x.detach().double().requires_grad_(given.training), dy.double())
    errors = []
    for found in (ours(), theirs()):
        each = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
        errors.append(" ".join(f"{error:.1e}" for error in each))
        assert max(each) < (2e-2 if name == "bf16" else 3e-3), each
    taken = interleaved(torch, [lambda _: ours(), lambda _: theirs()], 1, 9)
    own, other = (1e6 * statistics.median(each) for each in taken)
    print(
        f"{given.cell} {batch} {hidden} {name} {math if name == 'f32' else '-'} | {own:.0f} | {other:.0f} | "
        f"{other / own:.2f} | {', '.join(errors)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
