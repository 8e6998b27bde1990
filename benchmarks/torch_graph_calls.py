"""Host time of calls that the code of Inductor's graphs makes, beside the same by PyTorch's dispatcher.

    python benchmarks/torch_graph_calls.py [--seconds 4]

Microseconds of processor time of the calling thread, on a processor, on tensors so small that kernels take nothing; the
least of samples of 1000 calls in turns. Results are allocated as that code allocates them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from time import thread_time
from typing import Any

import torch

import jitdnn.torch as jt
from jitdnn.frameworks.torch import convolution_sums, inductor_lowering, operators, settled
from jitdnn.frameworks.torch.channel_sums import MOMENTS, Sums
from jitdnn.frameworks.torch.convolution_sums import Summed

_CALLS = 1000
_IDENTITY = '[["cast",["%0","torch.float32"],{}]]'
_GEOMETRY = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def ways() -> dict[str, Callable[[], Any]]:
    """Calls of a convolution of one pixel, alone and with the moments of its result."""
    x, w = torch.ones(1, 4, 1, 1), torch.ones(4, 4, 1, 1)
    own = settled.text_of("forward", x, w, None, False, _GEOMETRY, "threads=1")
    form = tuple(x.shape), tuple(x.stride()), "float32"
    both = str(Summed(own, Sums((form,), False, ((MOMENTS, _IDENTITY),), "threads=1"), 0))
    return {
        "convolution, operator": lambda: operators.settled_convolution.default(x, w, None, own),
        "convolution, code of a graph": inductor_lowering.call(x, w, None, own),
        "and sums, operator": lambda: convolution_sums.convolution_sums.default(x, w, [], both),
        "and sums, code of a graph": inductor_lowering.convolution_sums_call(x, w, [], both),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    jt.InductorPass().uuid()  # makes the functions known to Inductor
    calls = ways()
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(8):
            call()
    end = thread_time() + seconds
    while thread_time() < end:
        for name, call in calls.items():
            begin = thread_time()
            for _ in range(_CALLS):
                call()
            least[name] = min(least[name], (thread_time() - begin) / _CALLS)
    for name, one in least.items():
        sys.stdout.write(f"{name:30} {1e6 * one:6.2f}\n")


if __name__ == "__main__":
    main()
