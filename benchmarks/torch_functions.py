"""Functions of PyTorch that are ours in eager calls alone, beside torch's own, in turns in one process.

    python benchmarks/torch_functions.py [NAME ...] [--threads 1] [--backward] [--seconds 1] [--json FILE]

Ours are called as a converted module calls them. Milliseconds are the least of all turns; the last number is how many
times as fast as torch's ours are. Without NAME all run; embedding, which stays torch's, is there to show why.
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
    for cell in ("LSTM", "GRU"):
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
            found[name] = (getattr(torch, cell.lower()), arguments, {})
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
    return found


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

    if function is F.embedding:
        return call(lambda: jd.embedding(*arguments, handle=handle_of(""))), call(
            lambda: function(*arguments)
        )
    return (
        call(lambda: routed(function, arguments, named, "measure=never")),
        call(lambda: function(*arguments, **named)),
    )


def least(both: tuple[Callable[[], Any], Callable[[], Any]], seconds: float) -> list[float]:
    """Seconds of one call of each, the least of samples in turns."""
    best, calls = [math.inf, math.inf], [1, 1]
    for run in (*both, *both):
        run()
    end = perf_counter() + seconds
    while perf_counter() < end:
        for place, run in enumerate(both):
            settle()
            run()
            begin = perf_counter()
            for _ in range(calls[place]):
                run()
            taken = (perf_counter() - begin) / calls[place]
            best[place] = min(best[place], taken)
            calls[place] = min(100, max(1, math.ceil(1e-3 / taken)))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    with torch.set_grad_enabled(arguments.backward):
        for name, case in cases().items():
            is_wanted = not arguments.names or name.startswith(tuple(arguments.names))
            if not is_wanted or (arguments.backward and name.startswith("embedding")):
                continue
            ours, stock = least(ways(case, arguments.backward), arguments.seconds)
            rows.append({"name": name, "ours ms": 1e3 * ours, "torch ms": 1e3 * stock, "speed": stock / ours})
            sys.stdout.write(f"{name:44s}{1e3 * ours:10.4f}{1e3 * stock:10.4f}{stock / ours:8.2f}\n")
            sys.stdout.flush()
    if arguments.json is not None:
        arguments.json.write_text("\n".join(map(json.dumps, rows)) + "\n")


if __name__ == "__main__":
    main()
