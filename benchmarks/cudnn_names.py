"""What a call in cuDNN's names costs the host, beside the own function of the library and, on a GPU, NVIDIA's library.

    python benchmarks/cudnn_names.py                  # host memory, one thread
    python benchmarks/cudnn_names.py --device cuda    # calls are given to the stream and not waited for

Small tensors, so that the kernel is over before the call is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jitdnn as jd
import jitdnn.cudnn as own

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))


def microseconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The best of ten rounds of 200 calls, a call."""
    for _ in range(3):
        call()
    times = []
    for _ in range(10):
        wait()
        start = time.perf_counter()
        for _ in range(200):
            call()
        times.append(time.perf_counter() - start)
    wait()
    return 1e6 * min(times) / 200


def programs(c: Any, handle: Any, x: Any, w: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """A convolution and an activation, described once."""
    desc, filters = c.cudnnCreateTensorDescriptor(), c.cudnnCreateFilterDescriptor()
    conv, act = c.cudnnCreateConvolutionDescriptor(), c.cudnnCreateActivationDescriptor()
    c.cudnnSetTensor4dDescriptor(desc, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, *x.shape)
    c.cudnnSetFilter4dDescriptor(filters, c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_NCHW, *w.shape)
    c.cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, c.CUDNN_CROSS_CORRELATION, c.CUDNN_DATA_FLOAT)
    c.cudnnSetActivationDescriptor(act, c.CUDNN_ACTIVATION_RELU, c.CUDNN_PROPAGATE_NAN, 0.0)
    algo = c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    return {
        "convolution": lambda: c.cudnnConvolutionForward(
            handle, 1.0, desc, x, filters, w, conv, algo, None, 0, 0.0, desc, y
        ),
        "relu": lambda: c.cudnnActivationForward(handle, act, 1.0, desc, x, 0.0, desc, y),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.standard_normal(s, np.float32) for s in ((1, 8, 6, 6), (8, 8, 3, 3), (1, 8, 6, 6))
    ]
    if given.device != "cpu":
        arrays = [jd.to_device(array, given.device) for array in arrays]
    x, w, y = arrays
    wait = getattr(y, "wait", lambda: None)
    rows = {"cuDNN's names": programs(own, own.cudnnCreate(given.device), x, w, y)}
    rows["jitdnn"] = {
        "convolution": lambda: jd.conv(x, w, padding=1, out=y),
        "relu": lambda: jd.relu(x, out=y),
    }
    if given.device.startswith("cuda"):
        import nvidia_cudnn

        reason = nvidia_cudnn.missing()
        if reason is None:  # through ctypes, and each call is waited for
            rows["NVIDIA's, waited for"] = programs(nvidia_cudnn, nvidia_cudnn.cudnnCreate(), x, w, y)
    with jd.settings(threads=1):
        for name, calls in rows.items():
            times = ", ".join(f"{what} {microseconds(call, wait):.1f} us" for what, call in calls.items())
            sys.stdout.write(f"{name}: {times}\n")


if __name__ == "__main__":
    main()
