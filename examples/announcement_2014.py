"""The program of cuDNN's announcement (September 2014), call by call, in the names that cuDNN has today.

    python examples/announcement_2014.py                                 # with one image
    python examples/announcement_2014.py --images 128 --device cuda      # as announced: 5 GB of memory

Beside each call stands what it was called then, where that has changed. The function `announcement` takes the
module: NVIDIA's
library under the same names (tests/helpers/nvidia_cudnn.py) runs it as jitdnn.cudnn does.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import jitdnn as jd
import jitdnn.cudnn as cudnn


def announcement(
    c: Any, handle: Any, ImageInBatch: Any, Filter: Any, make: Any, pad: int = 0
) -> tuple[Any, tuple[int, ...]]:
    """The convolution of images by filters with stride 2, flipped as in the announcement; `make` allocates float32
    memory.

    Returns the result and its extents, which the library tells.
    """
    n, channels, height, width = ImageInBatch.shape
    filters, _, rows, columns = Filter.shape

    # set descriptors; the type of the data came with cuDNN 2, formats of filters with 5, the type of the arithmetic
    # with 6
    InputDesc = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptor(
        InputDesc, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, n, channels, height, width
    )
    FilterDesc = c.cudnnCreateFilterDescriptor()
    c.cudnnSetFilter4dDescriptor(  # cudnnSetFilterDescriptor
        FilterDesc, c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_NCHW, filters, channels, rows, columns
    )
    convDesc = c.cudnnCreateConvolutionDescriptor()
    c.cudnnSetConvolution2dDescriptor(  # cudnnSetConvolutionDescriptor, which took the two descriptors too
        convDesc, pad, pad, 2, 2, 1, 1, c.CUDNN_CONVOLUTION, c.CUDNN_DATA_FLOAT
    )

    # query the layout of the output
    n_out, c_out, h_out, w_out = c.cudnnGetConvolution2dForwardOutputDim(  # cudnnGetOutputTensor4dDim
        convDesc, InputDesc, FilterDesc
    )

    # set and allocate the output
    OutputDesc = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptor(
        OutputDesc, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, n_out, c_out, h_out, w_out
    )
    ImageBatchOut = make((n_out, c_out, h_out, w_out))

    # launch the convolution; algorithms and workspaces came with cuDNN 2, and this one takes no workspace
    c.cudnnConvolutionForward(
        handle, 1.0, InputDesc, ImageInBatch, FilterDesc, Filter, convDesc,
        c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, None, 0, 0.0, OutputDesc, ImageBatchOut,
    )  # fmt: skip

    for destroy, desc in (
        (c.cudnnDestroyTensorDescriptor, InputDesc),
        (c.cudnnDestroyFilterDescriptor, FilterDesc),
        (c.cudnnDestroyConvolutionDescriptor, convDesc),
        (c.cudnnDestroyTensorDescriptor, OutputDesc),
    ):
        destroy(desc)
    return ImageBatchOut, (n_out, c_out, h_out, w_out)


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description="the program of cuDNN's announcement")
    for name, default in (
        ("images", 1),
        ("channels", 96),
        ("size", 221),
        ("filters", 256),
        ("taps", 7),
        ("pad", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, opencl")
    given = parser.parse_args(arguments)
    on_gpu = given.device != "cpu"

    rng = np.random.default_rng(0)
    images = rng.standard_normal((given.images, given.channels, given.size, given.size), np.float32)
    filters = rng.standard_normal((given.filters, given.channels, given.taps, given.taps), np.float32)

    def make(shape: tuple[int, ...]) -> Any:
        return jd.empty(shape, "f32", given.device) if on_gpu else np.empty(shape, np.float32)

    if on_gpu:  # cudaMalloc and cudaMemcpy
        images, filters = jd.to_device(images, given.device), jd.to_device(filters, given.device)
    handle = cudnn.cudnnCreate(given.device)
    result = None
    for run in ("first run, which compiles", "second run"):
        start = time.perf_counter()
        result, (n, k, h, w) = announcement(cudnn, handle, images, filters, make, given.pad)
        if on_gpu:
            result.wait()
        seconds = time.perf_counter() - start
        flops = 2.0 * n * k * h * w * given.channels * given.taps**2
        print(f"{n}x{k}x{h}x{w}, {run}: {1e3 * seconds:.1f} ms, {1e-9 * flops / seconds:.0f} GFLOP/s")
    cudnn.cudnnDestroy(handle)
    return result


if __name__ == "__main__":
    main()
