"""Functions of PyTorch that are ours in eager calls alone, beside torch's own, in turns in one process.

    python benchmarks/torch_functions.py [NAME ...] [--threads 1] [--backward] [--device cpu] [--seconds 1]
        [--json FILE]

Ours are called as a converted module calls them. Milliseconds are the least of all turns, on a GPU of some calls one
after the other without waiting; the last number is how many times as fast as torch's ours are. Without NAME all run;
embedding, which stays torch's, is there to show why.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

import jitdnn as jd
from jitdnn.devices.quiet import settle
from jitdnn.frameworks.torch.functional import routed
from jitdnn.frameworks.torch.options import handle_of

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def cases() -> dict[str, Case]:
    """Functions of torch with their arguments, by what they are."""
    torch.manual_seed(0)
    found: dict[str, Case] = {}
    for cell in ("LSTM", "GRU", "RNN"):
        for steps, batch, width, layers in (
            (32, 1, 128, 1),
            (64, 16, 256, 1),
            (50, 8, 128, 2),
            (20, 64, 512, 1),
        ):
            model = getattr(torch.nn, cell)(width, width, layers)
            states = [torch.zeros(layers, batch, width) for _ in range(2)]
            hx = states if cell == "LSTM" else states[0]
            arguments = (
                torch.randn(steps, batch, width),
                hx,
                model._flat_weights,
                True,
                layers,
                0.0,
                True,
                False,
                False,
            )
            name = f"{cell.lower()} {steps} steps, {batch} x {width}, {layers} layers"
            function = torch.rnn_tanh if cell == "RNN" else getattr(torch, cell.lower())
            found[name] = (function, arguments, {})
    for shape, is_causal in (((1, 8, 128, 64), False), ((2, 12, 512, 64), True), ((8, 4, 64, 32), False)):
        q, k, v = (torch.randn(shape) for _ in range(3))
        found[f"attention {shape}{' causal' if is_causal else ''}"] = (
            F.scaled_dot_product_attention, (q, k, v), {"is_causal": is_causal},
        )  # fmt: skip
    for rows in ((64, 10), (8, 1000), (8192, 1000)):
        x, labels = torch.randn(rows), torch.randint(rows[1], rows[:1])
        found[f"softmax {rows}"] = (F.softmax, (x, 1), {})
        found[f"log_softmax {rows}"] = (F.log_softmax, (x, 1), {})
        found[f"cross_entropy {rows}"] = (F.cross_entropy, (x, labels), {})
    for images in ((1, 64, 56, 56), (8, 256, 14, 14), (1, 3, 224, 224)):
        for mode in ("nearest", "bilinear", "bicubic"):
            found[f"interpolate {mode} {images}"] = (
                F.interpolate, (torch.randn(images),), {"scale_factor": 2.0, "mode": mode},
            )  # fmt: skip
    for images in ((1, 64, 56, 56), (8, 3, 112, 112)):
        grid = 2 * torch.rand(images[0], *images[2:], 2) - 1
        found[f"grid_sample {images}"] = (
            F.grid_sample,
            (torch.randn(images), grid),
            {"align_corners": False},
        )
    for table, indices in (((30000, 768), (8, 128)), ((1000, 16), (64,))):
        arguments = (torch.randint(table[0], indices), torch.randn(table))
        found[f"embedding {table} at {indices}"] = (F.embedding, arguments, {})
    for images in ((1, 64, 56, 56), (8, 256, 14, 14)):
        x = torch.randn(images)
        for name in ("relu", "relu6", "leaky_relu", "elu"):
            found[f"{name} {images}"] = (getattr(F, name), (x,), {})
        weight, bias = torch.randn(images[1]), torch.randn(images[1])
        found[f"group_norm {images}"] = (F.group_norm, (x, 32, weight, bias), {})
        found[f"instance_norm {images}"] = (F.instance_norm, (x, None, None, weight, bias), {})
        found[f"adaptive_avg_pool2d {images} to 1"] = (F.adaptive_avg_pool2d, (x, 1), {})
        found[f"adaptive_avg_pool2d {images} to 7"] = (F.adaptive_avg_pool2d, (x, 7), {})
        found[f"adaptive_max_pool2d {images} to 7"] = (F.adaptive_max_pool2d, (x, 7), {})
        for loss in (F.mse_loss, F.l1_loss, F.binary_cross_entropy_with_logits):
            found[f"{loss.__name__} {images}"] = (loss, (x, torch.rand(images)), {})
    for rows in ((8, 128, 768), (1024, 4096)):
        found[f"rms_norm {rows}"] = (
            F.rms_norm,
            (torch.randn(rows), rows[-1:], torch.randn(rows[-1]), 1e-6),
            {},
        )
    scores = torch.randn(50, 16, 30).log_softmax(2)
    targets, lengths = torch.randint(1, 30, (16, 20)), torch.full((16,), 20)
    found["ctc_loss 50 steps, 16 x 30"] = (F.ctc_loss, (scores, targets, torch.full((16,), 50), lengths), {})
    return found


#: ours of functions that stay torch's, for the reason that this shows
OWN: dict[Any, Callable[..., Any]] = {
    F.embedding: lambda indices, table: jd.embedding(indices, table, handle=handle_of("")),
    F.relu: lambda x: jd.relu(x, handle=handle_of("")),
    F.relu6: lambda x: jd.clipped_relu(x, 6.0, handle=handle_of("")),
    F.leaky_relu: lambda x: jd.leaky_relu(x, handle=handle_of("")),
    F.mse_loss: jd.reduction("x, y: (x - y) * (x - y)"),
    F.l1_loss: jd.reduction("x, y: absolute(x - y)"),
    F.binary_cross_entropy_with_logits: jd.reduction(
        "x, y: maximum(x, 0.0) - x * y + log1p(exp(-absolute(x)))"
    ),
    F.ctc_loss: lambda *given: jd.ctc_loss(*given, handle=handle_of("")),
}


def ways(case: Case, has_gradients: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Ours and torch's as functions of nothing."""
    function, arguments, named = case
    leaves = [one for one in torch.utils._pytree.tree_leaves(arguments) if one is not None]
    wanted = [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]
    for one in wanted:
        one.requires_grad_(has_gradients)

    def call(run: Callable[[], Any]) -> Callable[[], Any]:
        def once() -> Any:
            y = run()
            if has_gradients:
                outputs = [one for one in torch.utils._pytree.tree_leaves(y) if one.requires_grad]
                return torch.autograd.grad(outputs, wanted, [torch.ones_like(one) for one in outputs])
            return y

        return once

    if function in OWN:
        return call(lambda: OWN[function](*arguments)), call(lambda: function(*arguments, **named))
    return (
        call(lambda: routed(function, arguments, named, "measure=never")),
        call(lambda: function(*arguments, **named)),
    )


def least(
    both: tuple[Callable[[], Any], Callable[[], Any]], seconds: float, wait: Callable[[], Any]
) -> list[float]:
    """Seconds of one call of each, the least of samples in turns; `wait` returns when the device is done."""
    best, calls = [math.inf, math.inf], [1, 1]
    for run in (*both, *both):
        run()
    end = perf_counter() + seconds
    while perf_counter() < end:
        for place, run in enumerate(both):
            settle()
            run()
            wait()
            begin = perf_counter()
            for _ in range(calls[place]):
                run()
            wait()
            taken = (perf_counter() - begin) / calls[place]
            best[place] = min(best[place], taken)
            calls[place] = min(100, max(1, math.ceil(1e-3 / taken)))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_device(arguments.device)
    made = cases()
    torch.set_default_device(None)
    wait = torch.cuda.synchronize if arguments.device.startswith("cuda") else lambda: None
    rows = []
    with torch.set_grad_enabled(arguments.backward):
        for name, case in made.items():
            is_wanted = not arguments.names or name.startswith(tuple(arguments.names))
            if not is_wanted or (arguments.backward and case[0] in OWN):
                continue
            ours, stock = least(ways(case, arguments.backward), arguments.seconds, wait)
            rows.append({"name": name, "ours ms": 1e3 * ours, "torch ms": 1e3 * stock, "speed": stock / ours})
            sys.stdout.write(f"{name:44s}{1e3 * ours:10.4f}{1e3 * stock:10.4f}{stock / ours:8.2f}\n")
            sys.stdout.flush()
    if arguments.json is not None:
        arguments.json.write_text("\n".join(map(json.dumps, rows)) + "\n")


if __name__ == "__main__":
    main()
