"""Programs in cuDNN's own names, for whatever module has them: jitdnn.cudnn, or NVIDIA's library.

Each takes the module `c`, `put` (a NumPy array to where the module computes), a handle and arrays, and returns
NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Put = Callable[[Array], Any]

TYPES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "int8": "INT8",
    "int32": "INT32",
}


def fetched(x: Any) -> Array:
    """An array in host memory."""
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


class Program:
    """The module, a handle, and short ways to describe tensors."""

    def __init__(self, c: Any, put: Put, handle: Any = None) -> None:
        self.c, self.put = c, put
        self.handle = c.cudnnCreate() if handle is None else handle

    def type_of(self, x: Array) -> int:
        return int(getattr(self.c, f"CUDNN_DATA_{TYPES[x.dtype.name]}"))

    def tensor(self, x: Array, strides: Sequence[int] | None = None) -> Any:
        """The descriptor of an array, by its own extents and strides."""
        made = self.c.cudnnCreateTensorDescriptor()
        steps = [step // x.itemsize for step in x.strides] if strides is None else strides
        self.c.cudnnSetTensorNdDescriptor(made, self.type_of(x), x.ndim, x.shape, steps)
        return made

    def filter(self, w: Array, format: int | None = None) -> Any:
        made = self.c.cudnnCreateFilterDescriptor()
        order = self.c.CUDNN_TENSOR_NCHW if format is None else format
        self.c.cudnnSetFilterNdDescriptor(made, self.type_of(w), order, w.ndim, w.shape)
        return made

    def convolution(
        self, pads: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int = 1,
        flips: bool = False, computed: str = "FLOAT",
    ) -> Any:  # fmt: skip
        c = self.c
        made = c.cudnnCreateConvolutionDescriptor()
        mode = c.CUDNN_CONVOLUTION if flips else c.CUDNN_CROSS_CORRELATION
        kind = getattr(c, f"CUDNN_DATA_{computed}")
        c.cudnnSetConvolutionNdDescriptor(made, len(pads), pads, strides, dilations, mode, kind)
        c.cudnnSetConvolutionGroupCount(made, groups)
        return made

    def activation(self, name: str, coef: float = 0.0, propagates: bool = True) -> Any:
        c = self.c
        made = c.cudnnCreateActivationDescriptor()
        nan = c.CUDNN_PROPAGATE_NAN if propagates else c.CUDNN_NOT_PROPAGATE_NAN
        c.cudnnSetActivationDescriptor(made, getattr(c, f"CUDNN_ACTIVATION_{name}"), nan, coef)
        return made

    def space(self, size: int) -> Any:
        return self.put(np.zeros(max(size, 1), np.uint8)) if size else None


def best(found: Sequence[Any]) -> int:
    """The first algorithm of a query that is there."""
    return int(next(one.algo for one in found if one.status == 0))


def convolution(
    p: Program, x: Array, w: Array, y: Array, dy: Array, alpha: float, beta: float, **form: Any
) -> tuple[Array, Array, Array, Array]:
    """(y, dx, dw, db) of a convolution, each blended into what there is (y; x; w; 0) with alpha and beta."""
    c, h = p.c, p.handle
    x_desc, w_desc, conv = p.tensor(x), p.filter(w), p.convolution(**form)
    extents = c.cudnnGetConvolutionNdForwardOutputDim(conv, x_desc, w_desc, x.ndim)
    assert tuple(extents) == y.shape
    y_desc = p.tensor(y)
    algo = best(c.cudnnGetConvolutionForwardAlgorithm_v7(h, x_desc, w_desc, conv, y_desc, 8))
    size = c.cudnnGetConvolutionForwardWorkspaceSize(h, x_desc, w_desc, conv, y_desc, algo)
    xs, ws, ys, dys = (p.put(array) for array in (x, w, y.copy(order="K"), dy))
    c.cudnnConvolutionForward(
        h, alpha, x_desc, xs, w_desc, ws, conv, algo, p.space(size), size, beta, y_desc, ys
    )
    dx, dw, db = (
        p.put(x.copy(order="K")),
        p.put(w.copy(order="K")),
        p.put(np.zeros((1, y.shape[1], *[1] * (y.ndim - 2)), y.dtype)),
    )
    algo = best(c.cudnnGetConvolutionBackwardDataAlgorithm_v7(h, w_desc, y_desc, conv, x_desc, 8))
    size = c.cudnnGetConvolutionBackwardDataWorkspaceSize(h, w_desc, y_desc, conv, x_desc, algo)
    c.cudnnConvolutionBackwardData(
        h, alpha, w_desc, ws, y_desc, dys, conv, algo, p.space(size), size, beta, x_desc, dx
    )
    algo = best(c.cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, x_desc, y_desc, conv, w_desc, 8))
    size = c.cudnnGetConvolutionBackwardFilterWorkspaceSize(h, x_desc, y_desc, conv, w_desc, algo)
    c.cudnnConvolutionBackwardFilter(
        h, alpha, x_desc, xs, y_desc, dys, conv, algo, p.space(size), size, beta, w_desc, dw
    )
    b_desc = p.tensor(np.zeros((1, y.shape[1], *[1] * (y.ndim - 2)), y.dtype))
    c.cudnnConvolutionBackwardBias(h, alpha, y_desc, dys, 0.0, b_desc, db)
    return fetched(ys), fetched(dx), fetched(dw), fetched(db)


def bias_activation(
    p: Program, x: Array, w: Array, z: Array, bias: Array, scales: tuple[float, float], name: str, **form: Any
) -> Array:
    """act(alpha1 * conv + alpha2 * z + bias)."""
    c, h = p.c, p.handle
    x_desc, w_desc, conv, y_desc, b_desc = (
        p.tensor(x), p.filter(w), p.convolution(**form), p.tensor(z), p.tensor(bias)
    )  # fmt: skip
    algo = c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
    size = c.cudnnGetConvolutionForwardWorkspaceSize(h, x_desc, w_desc, conv, y_desc, algo)
    y = p.put(np.full_like(z, np.nan))
    c.cudnnConvolutionBiasActivationForward(
        h, scales[0], x_desc, p.put(x), w_desc, p.put(w), conv, algo, p.space(size), size, scales[1], y_desc, p.put(z),
        b_desc, p.put(bias), p.activation(name), y_desc, y,
    )  # fmt: skip
    return fetched(y)


def pooling(
    p: Program, x: Array, dy: Array, mode: str, window: Sequence[int], pads: Sequence[int], strides: Sequence[int],
    alpha: float = 1.0, beta: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """(y, dx)."""
    c, h = p.c, p.handle
    pool = c.cudnnCreatePoolingDescriptor()
    kind = getattr(c, f"CUDNN_POOLING_{mode}")
    c.cudnnSetPoolingNdDescriptor(pool, kind, c.CUDNN_PROPAGATE_NAN, len(window), window, pads, strides)
    x_desc, y_desc = p.tensor(x), p.tensor(dy)
    assert tuple(c.cudnnGetPoolingNdForwardOutputDim(pool, x_desc, x.ndim)) == dy.shape
    xs, plain, dx = p.put(x), p.put(np.full_like(dy, np.nan)), p.put(x.copy(order="K"))
    c.cudnnPoolingForward(h, pool, 1.0, x_desc, xs, 0.0, y_desc, plain)
    c.cudnnPoolingBackward(h, pool, alpha, y_desc, plain, y_desc, p.put(dy), x_desc, xs, beta, x_desc, dx)
    y = p.put(dy.copy(order="K"))
    c.cudnnPoolingForward(h, pool, alpha, x_desc, xs, beta, y_desc, y)
    return fetched(y), fetched(dx)


def softmax(p: Program, x: Array, dy: Array, algo: str, mode: str) -> tuple[Array, Array]:
    """(y, dx)."""
    c, h, desc = p.c, p.handle, p.tensor(x)
    how = getattr(c, f"CUDNN_SOFTMAX_{algo}"), getattr(c, f"CUDNN_SOFTMAX_MODE_{mode}")
    y, dx = p.put(np.full_like(x, np.nan)), p.put(np.full_like(x, np.nan))
    c.cudnnSoftmaxForward(h, *how, 1.0, desc, p.put(x), 0.0, desc, y)
    c.cudnnSoftmaxBackward(h, *how, 1.0, desc, y, desc, p.put(dy), 0.0, desc, dx)
    return fetched(y), fetched(dx)


def activation(p: Program, x: Array, dy: Array, name: str, coef: float) -> tuple[Array, Array]:
    """(y, dx)."""
    c, h, desc, act = p.c, p.handle, p.tensor(x), p.activation(name, coef)
    if name == "SWISH":
        c.cudnnSetActivationDescriptorSwishBeta(act, coef)
    xs, y, dx = p.put(x), p.put(np.full_like(x, np.nan)), p.put(np.full_like(x, np.nan))
    c.cudnnActivationForward(h, act, 1.0, desc, xs, 0.0, desc, y)
    c.cudnnActivationBackward(h, act, 1.0, desc, y, desc, p.put(dy), desc, xs, 0.0, desc, dx)
    return fetched(y), fetched(dx)


def lrn(p: Program, x: Array, dy: Array, *how: float) -> tuple[Array, Array]:
    """(y, dx)."""
    c, h, desc = p.c, p.handle, p.tensor(x)
    norm = c.cudnnCreateLRNDescriptor()
    c.cudnnSetLRNDescriptor(norm, *how)
    mode = c.CUDNN_LRN_CROSS_CHANNEL_DIM1
    xs, y, dx = p.put(x), p.put(np.full_like(x, np.nan)), p.put(np.full_like(x, np.nan))
    c.cudnnLRNCrossChannelForward(h, norm, mode, 1.0, desc, xs, 0.0, desc, y)
    c.cudnnLRNCrossChannelBackward(h, norm, mode, 1.0, desc, y, desc, p.put(dy), desc, xs, 0.0, desc, dx)
    return fetched(y), fetched(dx)


def batch_norm(
    p: Program, x: Array, dy: Array, scale: Array, bias: Array, mode: str, epsilon: float, factor: float
) -> dict[str, Array]:
    """Training, gradients and inference with the running statistics that training left."""
    c, h, desc = p.c, p.handle, p.tensor(x)
    kind = getattr(c, f"CUDNN_BATCHNORM_{mode}")
    derived = c.cudnnCreateTensorDescriptor()
    c.cudnnDeriveBNTensorDescriptor(derived, desc, kind)
    xs, scales, biases = p.put(x), p.put(scale), p.put(bias)
    mean, var = p.put(np.full_like(scale, 0.5)), p.put(np.full_like(scale, 2.0))
    saved, rstd = p.put(np.full_like(scale, np.nan)), p.put(np.full_like(scale, np.nan))
    y, dx, inferred = (p.put(np.full_like(x, np.nan)) for _ in range(3))
    dscale, dbias = p.put(np.ones_like(scale)), p.put(np.ones_like(bias))
    c.cudnnBatchNormalizationForwardTraining(
        h, kind, 1.0, 0.0, desc, xs, desc, y, derived, scales, biases, factor, mean, var, epsilon, saved, rstd
    )
    c.cudnnBatchNormalizationBackward(
        h, kind, 1.0, 0.0, 1.0, 1.0, desc, xs, desc, p.put(dy), desc, dx, derived, scales, dscale, dbias, epsilon,
        saved, rstd,
    )  # fmt: skip
    c.cudnnBatchNormalizationForwardInference(
        h, kind, 1.0, 0.0, desc, xs, desc, inferred, derived, scales, biases, mean, var, epsilon
    )
    found = {
        "y": y,
        "dx": dx,
        "dscale": dscale,
        "dbias": dbias,
        "mean": mean,
        "var": var,
        "inferred": inferred,
    }
    return {name: fetched(array) for name, array in found.items()}


def spatial(p: Program, x: Array, theta: Array, dy: Array) -> dict[str, Array]:
    """A grid of affine maps, the image at its places, and all gradients."""
    c, h = p.c, p.handle
    st = c.cudnnCreateSpatialTransformerDescriptor()
    c.cudnnSetSpatialTransformerNdDescriptor(st, c.CUDNN_SAMPLER_BILINEAR, p.type_of(x), dy.ndim, dy.shape)
    grid = p.put(np.full((dy.shape[0], *dy.shape[2:], 2), np.nan, x.dtype))
    dgrid, dtheta = p.put(np.zeros((dy.shape[0], *dy.shape[2:], 2), x.dtype)), p.put(np.zeros_like(theta))
    xs, y, dx = p.put(x), p.put(np.full_like(dy, np.nan)), p.put(np.zeros_like(x))
    x_desc, y_desc = p.tensor(x), p.tensor(dy)
    c.cudnnSpatialTfGridGeneratorForward(h, st, p.put(theta), grid)
    c.cudnnSpatialTfSamplerForward(h, st, 1.0, x_desc, xs, grid, 0.0, y_desc, y)
    c.cudnnSpatialTfSamplerBackward(
        h, st, 1.0, x_desc, xs, 0.0, x_desc, dx, 1.0, y_desc, p.put(dy), grid, 0.0, dgrid
    )
    c.cudnnSpatialTfGridGeneratorBackward(h, st, dgrid, dtheta)
    found = {"grid": grid, "y": y, "dx": dx, "dgrid": dgrid, "dtheta": dtheta}
    return {name: fetched(array) for name, array in found.items()}


def reduction(
    p: Program, a: Array, c_array: Array, op: str, alpha: float, beta: float, indexed: bool
) -> tuple[Array, Array | None]:
    """(C, indices)."""
    c, h = p.c, p.handle
    how = c.cudnnCreateReduceTensorDescriptor()
    wanted = c.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES if indexed else c.CUDNN_REDUCE_TENSOR_NO_INDICES
    c.cudnnSetReduceTensorDescriptor(
        how,
        getattr(c, f"CUDNN_REDUCE_TENSOR_{op}"),
        p.type_of(a),
        c.CUDNN_PROPAGATE_NAN,
        wanted,
        c.CUDNN_32BIT_INDICES,
    )
    a_desc, c_desc = p.tensor(a), p.tensor(c_array)
    size = c.cudnnGetReductionIndicesSize(h, how, a_desc, c_desc)
    work = c.cudnnGetReductionWorkspaceSize(h, how, a_desc, c_desc)
    indices, out = p.space(size), p.put(c_array.copy(order="K"))
    c.cudnnReduceTensor(
        h, how, indices, size, p.space(work), work, alpha, a_desc, p.put(a), beta, c_desc, out
    )
    where = fetched(indices)[:size].view(np.uint32).reshape(c_array.shape) if indexed else None
    return fetched(out), where


def pair(
    p: Program, a: Array, b: Array, c_array: Array, op: str, scales: tuple[float, float, float]
) -> Array:
    """C = op(alpha1 * A, alpha2 * B) + beta * C."""
    c, h = p.c, p.handle
    how = c.cudnnCreateOpTensorDescriptor()
    c.cudnnSetOpTensorDescriptor(
        how, getattr(c, f"CUDNN_OP_TENSOR_{op}"), p.type_of(a), c.CUDNN_PROPAGATE_NAN
    )
    out = p.put(c_array.copy(order="K"))
    c.cudnnOpTensor(
        h,
        how,
        scales[0],
        p.tensor(a),
        p.put(a),
        scales[1],
        p.tensor(b),
        p.put(b),
        scales[2],
        p.tensor(c_array),
        out,
    )
    return fetched(out)


def recurrent(
    p: Program, cell: str, x: Array, lengths: Sequence[int], layers: int, hidden: int, directions: str, bias: str,
    layout: str, grads: dict[str, Array], projection: int = 0, fill: Callable[[str, int, int, tuple[int, ...]],
    Array] | None = None,
    states: tuple[Array, Array] | None = None, hy: tuple[int, ...] = (), dropout: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Recurrent layers forward and both gradients; `fill` gives the weights by kind, layer and gate."""
    c, h = p.c, p.handle
    rnn, x_desc, y_desc = (
        c.cudnnCreateRNNDescriptor(),
        c.cudnnCreateRNNDataDescriptor(),
        c.cudnnCreateRNNDataDescriptor(),
    )
    kind, computed = p.type_of(x), c.CUDNN_DATA_DOUBLE if x.dtype == np.float64 else c.CUDNN_DATA_FLOAT
    c.cudnnSetRNNDescriptor_v8(
        rnn, c.CUDNN_RNN_ALGO_STANDARD, getattr(c, f"CUDNN_{cell}"), getattr(c, f"CUDNN_RNN_{bias}"),
        getattr(c, f"CUDNN_{directions}"), c.CUDNN_LINEAR_INPUT, kind, computed, c.CUDNN_FMA_MATH, x.shape[-1], hidden,
        projection or hidden, layers, dropout, c.CUDNN_RNN_PADDED_IO_ENABLED,
    )  # fmt: skip
    batch, steps, count = len(lengths), max(lengths), 2 if directions == "BIDIRECTIONAL" else 1
    size, shape = (projection or hidden) * count, getattr(c, f"CUDNN_RNN_DATA_LAYOUT_{layout}")
    c.cudnnSetRNNDataDescriptor(x_desc, kind, shape, steps, batch, x.shape[-1], lengths, None)
    c.cudnnSetRNNDataDescriptor(y_desc, kind, shape, steps, batch, size, lengths, 0.0)
    work, reserve = c.cudnnGetRNNTempSpaceSizes(h, rnn, c.CUDNN_FWD_MODE_TRAINING, x_desc)
    total = c.cudnnGetRNNWeightSpaceSize(h, rnn)
    flat = np.zeros(total // x.itemsize, x.dtype)
    gates = {"LSTM": 8, "GRU": 6}.get(cell, 2)
    places: list[tuple[str, int, int, int, tuple[int, ...]]] = []
    for layer in range(layers * count):
        for gate in range(gates + (projection > 0)):
            m_desc, b_desc = c.cudnnCreateTensorDescriptor(), c.cudnnCreateTensorDescriptor()
            matrix, vector = c.cudnnGetRNNWeightParams(h, rnn, layer, total, flat, gate, m_desc, b_desc)
            for name, part, desc in (("matrix", matrix, m_desc), ("bias", vector, b_desc)):
                if part is None:
                    continue
                extents = c.cudnnGetTensorNdDescriptor(desc, 3)[2]
                start = (
                    part.__array_interface__["data"][0] - flat.__array_interface__["data"][0]
                ) // x.itemsize
                places.append((name, layer, gate, start, extents))
                assert fill is not None
                part[...] = fill(name, layer, gate, extents).ravel()
    hidden_shape = (layers * count, batch, projection or hidden)
    h_desc, c_desc = (
        p.tensor(np.zeros(hidden_shape, x.dtype)),
        p.tensor(np.zeros((layers * count, batch, hidden), x.dtype)),
    )
    weights, space, kept = p.put(flat), p.space(work), p.space(reserve)
    hx, cx = (None, None) if states is None else map(p.put, states)
    if cell != "LSTM":
        cx = None
    out = {
        "y": p.put(np.full((*x.shape[:-1], size), 0, x.dtype)), "hy": p.put(np.zeros(hidden_shape, x.dtype)),
        "cy": p.put(np.zeros((layers * count, batch, hidden), x.dtype)), "dx": p.put(np.zeros_like(x)),
        "dhx": p.put(np.zeros(hidden_shape, x.dtype)), "dcx": p.put(np.zeros((layers * count, batch, hidden), x.dtype)),
        "dw": p.put(np.zeros_like(flat)),
    }  # fmt: skip
    xs, held = p.put(x), p.put(np.array(lengths, np.int32))
    is_lstm = cell == "LSTM"
    c.cudnnRNNForward(
        h, rnn, c.CUDNN_FWD_MODE_TRAINING, held, x_desc, xs, y_desc, out["y"], h_desc, hx, out["hy"], c_desc, cx,
        out["cy"] if is_lstm else None, total, weights, work, space, reserve, kept,
    )  # fmt: skip
    c.cudnnRNNBackwardData_v8(
        h, rnn, held, y_desc, out["y"], p.put(grads["y"]), x_desc, out["dx"], h_desc, hx, p.put(grads["hy"]),
        out["dhx"],
        c_desc, cx, p.put(grads["cy"]) if is_lstm else None, out["dcx"] if is_lstm else None, total, weights, work,
        space,
        reserve, kept,
    )  # fmt: skip
    c.cudnnRNNBackwardWeights_v8(
        h, rnn, c.CUDNN_WGRAD_MODE_ADD, held, x_desc, xs, h_desc, hx, y_desc, out["y"], total, out["dw"], work, space,
        reserve, kept,
    )  # fmt: skip
    found: dict[str, Any] = {name: fetched(array) for name, array in out.items()}
    found["places"] = places
    return found


def ctc(
    p: Program, x: Array, labels: Sequence[Sequence[int]], lengths: Sequence[int], normalizes: bool
) -> tuple[Array, Array]:
    """(losses, gradients)."""
    c, h = p.c, p.handle
    loss, desc = c.cudnnCreateCTCLossDescriptor(), p.tensor(x)
    norm = c.CUDNN_LOSS_NORMALIZATION_SOFTMAX if normalizes else c.CUDNN_LOSS_NORMALIZATION_NONE
    c.cudnnSetCTCLossDescriptorEx(loss, p.type_of(x), norm, c.CUDNN_NOT_PROPAGATE_NAN)
    flat, counts = [label for each in labels for label in each], [len(each) for each in labels]
    algo = c.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
    size = c.cudnnGetCTCLossWorkspaceSize(h, desc, desc, flat, counts, lengths, algo, loss)
    costs, slopes = p.put(np.full(x.shape[1], np.nan, x.dtype)), p.put(np.full_like(x, np.nan))
    c.cudnnCTCLoss(
        h, desc, p.put(x), flat, counts, lengths, costs, desc, slopes, algo, loss, p.space(size), size
    )
    return fetched(costs), fetched(slopes)
