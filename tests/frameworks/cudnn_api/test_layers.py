"""Pooling, softmax, activations, normalizations, dropout and spatial transformers, against NumPy and PyTorch in
float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_programs as programs
import jitdnn.cudnn as c
from cudnn_programs import Program

rng = np.random.default_rng(11)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


def channels_last(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def double(x: Any) -> Any:
    return torch.tensor(np.ascontiguousarray(x), dtype=torch.float64, requires_grad=True)


def close(found: Any, expected: Any, limit: float = 1e-5) -> None:
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
    np.testing.assert_allclose(
        found, expected, rtol=limit, atol=limit * max(1.0, float(np.abs(expected).max()))
    )


@pytest.mark.parametrize(
    "mode", ["MAX", "MAX_DETERMINISTIC", "AVERAGE_COUNT_INCLUDE_PADDING", "AVERAGE_COUNT_EXCLUDE_PADDING"]
)
def test_pooling(p: Program, mode: str) -> None:
    x = channels_last(normal(2, 3, 9, 8))
    window, pads, strides = (3, 2), (1, 0), (2, 1)
    source = double(x)
    if mode.startswith("MAX"):
        y = torch.nn.functional.max_pool2d(source, window, strides, pads)
    else:
        y = torch.nn.functional.avg_pool2d(source, window, strides, pads, count_include_pad="INCLUDE" in mode)
    dy = channels_last(normal(*y.shape))
    y.backward(torch.tensor(np.ascontiguousarray(dy), dtype=torch.float64))
    found = programs.pooling(p, x, dy, mode, window, pads, strides, 2.0, 0.5)
    close(found[0], 2.0 * y.detach().numpy() + 0.5 * dy)
    assert source.grad is not None
    close(found[1], 2.0 * source.grad.numpy() + 0.5 * x)


@pytest.mark.parametrize("mode", ["INSTANCE", "CHANNEL"])
@pytest.mark.parametrize("algo", ["FAST", "ACCURATE", "LOG"])
def test_softmax(p: Program, algo: str, mode: str) -> None:
    x, dy = normal(2, 5, 3, 4), normal(2, 5, 3, 4)
    source = double(x)
    flat = source.reshape(2, -1) if mode == "INSTANCE" else source
    function = torch.log_softmax if algo == "LOG" else torch.softmax
    y = function(flat, 1).reshape(x.shape)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    found = programs.softmax(p, x, dy, algo, mode)
    close(found[0], y)
    close(found[1], source.grad)


ACTIVATIONS = {
    "SIGMOID": (0.0, torch.sigmoid),
    "RELU": (0.0, torch.relu),
    "TANH": (0.0, torch.tanh),
    "CLIPPED_RELU": (0.7, lambda x: x.clamp(0, 0.7)),
    "ELU": (1.3, lambda x: torch.nn.functional.elu(x, 1.3)),
    "IDENTITY": (0.0, lambda x: x * 1.0),
    "SWISH": (1.5, lambda x: x * torch.sigmoid(1.5 * x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(p: Program, name: str) -> None:
    coef, function = ACTIVATIONS[name]
    x, dy = normal(2, 3, 5, 4), normal(2, 3, 5, 4)
    source = double(x)
    y = function(source)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    found = programs.activation(p, x, dy, name, coef)
    close(found[0], y)
    close(found[1], source.grad)


def test_activation_in_place_and_blended(p: Program) -> None:
    x = normal(2, 3, 4)
    y, desc, act = x.copy(), p.tensor(x), p.activation("RELU")
    c.cudnnActivationForward(p.handle, act, 1.0, desc, y, 0.0, desc, y)
    close(y, np.maximum(x, 0))
    out = np.full_like(x, 3)
    c.cudnnActivationForward(p.handle, act, 2.0, desc, x, -1.0, desc, out)
    close(out, 2 * np.maximum(x, 0) - 3)


def test_lrn(p: Program) -> None:
    x, dy = normal(2, 7, 3, 4), normal(2, 7, 3, 4)
    source = double(x)
    y = torch.nn.functional.local_response_norm(source, 5, alpha=0.3, beta=0.6, k=1.5)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    found = programs.lrn(p, x, dy, 5, 0.3, 0.6, 1.5)
    close(found[0], y)
    close(found[1], source.grad)


def test_divisive_normalization(p: Program) -> None:
    x, means, dy = normal(2, 3, 6, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 5)
    desc, norm = p.tensor(x), c.cudnnCreateLRNDescriptor()
    c.cudnnSetLRNDescriptor(norm, 3, 0.8, 0.75, 1.2)
    mode = c.CUDNN_DIVNORM_PRECOMPUTED_MEANS
    temp, temp2 = np.empty_like(x), np.empty_like(x)

    def formula(source: Any, centre: Any) -> Any:
        squares = torch.nn.functional.avg_pool2d((source - centre) ** 2, 3, 1, 1, count_include_pad=True)
        return source * (1.2 + 0.8 * squares) ** -0.75

    for given in (means, None):
        source, centre = double(x), double(np.zeros_like(x) if given is None else given)
        y = formula(source, centre)
        y.backward(torch.tensor(dy, dtype=torch.float64))
        out, dx, dmeans = np.full_like(x, np.nan), np.ones_like(x), np.ones_like(x)
        c.cudnnDivisiveNormalizationForward(
            p.handle, norm, mode, 1.0, desc, x, given, temp, temp2, 0.0, desc, out
        )
        close(out, y)
        assert source.grad is not None
        assert centre.grad is not None
        for wanted in (dmeans, None):
            dx[...] = 1
            c.cudnnDivisiveNormalizationBackward(
                p.handle, norm, mode, 1.0, desc, x, given, dy, temp, temp2, 0.5, desc, dx, wanted
            )
            close(dx, source.grad.numpy() + 0.5)
        close(dmeans, centre.grad.numpy() + 0.5)


@pytest.mark.parametrize("mode", ["SPATIAL", "PER_ACTIVATION", "SPATIAL_PERSISTENT"])
def test_batch_norm(p: Program, mode: str) -> None:
    x, dy = normal(4, 3, 2, 5), normal(4, 3, 2, 5)
    shape = (1, 3, 2, 5) if mode == "PER_ACTIVATION" else (1, 3, 1, 1)
    scale, bias = normal(*shape), normal(*shape)
    axes = (0,) if mode == "PER_ACTIVATION" else (0, 2, 3)
    source, gamma, beta = double(x), double(scale), double(bias)
    mean, var = source.mean(axes, keepdim=True), source.var(axes, correction=0, keepdim=True)
    y = (source - mean) / torch.sqrt(var + 1e-3) * gamma + beta
    y.backward(torch.tensor(dy, dtype=torch.float64))
    found = programs.batch_norm(p, x, dy, scale, bias, mode, 1e-3, 0.25)
    count = x.size // scale.size
    expected = {
        "y": y, "dx": source.grad, "mean": 0.75 * 0.5 + 0.25 * mean,
        "var": 0.75 * 2.0 + 0.25 * var * count / (count - 1),
    }  # fmt: skip
    for name, value in expected.items():
        close(found[name], value, 2e-5)
    assert gamma.grad is not None
    assert beta.grad is not None
    close(found["dscale"], gamma.grad.numpy() + 1.0)
    close(found["dbias"], beta.grad.numpy() + 1.0)
    inferred = (x - found["mean"]) / np.sqrt(found["var"] + 1e-3) * scale + bias
    close(found["inferred"], inferred)


@pytest.mark.parametrize("later_names", [False, True])
def test_batch_norm_with_addition_and_activation(p: Program, later_names: bool) -> None:
    x, z, dy = normal(4, 3, 2, 5), normal(4, 3, 2, 5), normal(4, 3, 2, 5)
    scale, bias = normal(1, 3, 1, 1), normal(1, 3, 1, 1)
    source, other, gamma, beta = double(x), double(z), double(scale), double(bias)
    plain = torch.nn.functional.batch_norm(
        source, None, None, gamma.flatten(), beta.flatten(), True, eps=1e-3
    )
    result = torch.relu(plain + other)
    result.backward(torch.tensor(dy, dtype=torch.float64))
    desc, params, act = p.tensor(x), p.tensor(scale), p.activation("RELU")
    y, dx, dz = (np.full_like(x, np.nan) for _ in range(3))
    dscale, dbias = np.full_like(scale, np.nan), np.full_like(bias, np.nan)
    h = p.handle
    if later_names:
        how = (c.CUDNN_NORM_PER_CHANNEL, c.CUDNN_NORM_OPS_NORM_ADD_ACTIVATION, c.CUDNN_NORM_ALGO_STANDARD)
        assert c.cudnnGetNormalizationTrainingReserveSpaceSize(h, *how, act, desc, 1) == 0
        assert (
            c.cudnnGetNormalizationForwardTrainingWorkspaceSize(
                h, *how, desc, desc, desc, params, act, params, 1
            )
            == 0
        )
        c.cudnnNormalizationForwardTraining(
            h, *how, 1.0, 0.0, desc, x, params, scale, bias, 1.0, params, None, None, 1e-3, None, None, act, desc,
            z, desc,
            y, None, 0, None, 0, 1,
        )  # fmt: skip
        c.cudnnNormalizationBackward(
            h, *how, 1.0, 0.0, 1.0, 0.0, desc, x, desc, y, desc, dy, desc, dz, desc, dx, params, scale, bias,
            dscale, dbias,
            1e-3, params, None, None, act, None, 0, None, 0, 1,
        )  # fmt: skip
    else:
        mode, ops = c.CUDNN_BATCHNORM_SPATIAL, c.CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION
        assert (
            c.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
                h, mode, ops, desc, desc, desc, params, act
            )
            == 0
        )
        assert c.cudnnGetBatchNormalizationTrainingExReserveSpaceSize(h, mode, ops, act, desc) == 0
        c.cudnnBatchNormalizationForwardTrainingEx(
            h, mode, ops, 1.0, 0.0, desc, x, desc, z, desc, y, params, scale, bias, 1.0, None, None, 1e-3, None,
            None, act,
            None, 0, None, 0,
        )  # fmt: skip
        c.cudnnBatchNormalizationBackwardEx(
            h, mode, ops, 1.0, 0.0, 1.0, 0.0, desc, x, desc, y, desc, dy, desc, dz, desc, dx, params, scale, bias,
            dscale,
            dbias, 1e-3, None, None, act, None, 0, None, 0,
        )  # fmt: skip
    close(y, result)
    for found, leaf in ((dx, source), (dz, other), (dscale, gamma), (dbias, beta)):
        close(found, leaf.grad, 2e-5)


def test_norm_inference(p: Program) -> None:
    x, z = normal(2, 3, 4, 4), normal(2, 3, 4, 4)
    scale, bias, mean = (normal(1, 3, 1, 1) for _ in range(3))
    var = np.abs(normal(1, 3, 1, 1)) + 0.5
    first, second = c.cudnnCreateTensorDescriptor(), c.cudnnCreateTensorDescriptor()
    c.cudnnDeriveNormTensorDescriptor(first, second, p.tensor(x), c.CUDNN_NORM_PER_CHANNEL, 1)
    assert c.cudnnGetTensor4dDescriptor(first) == c.cudnnGetTensor4dDescriptor(second)
    y = np.full_like(x, np.nan)
    c.cudnnNormalizationForwardInference(
        p.handle, c.CUDNN_NORM_PER_CHANNEL, c.CUDNN_NORM_OPS_NORM_ADD_ACTIVATION, c.CUDNN_NORM_ALGO_STANDARD, 1.0, 0.0,
        p.tensor(x), x, first, scale, bias, second, mean, var, p.tensor(z), z, p.activation("RELU"), p.tensor(y), y,
        1e-3, 1,
    )  # fmt: skip
    close(y, np.maximum((x - mean) / np.sqrt(var + 1e-3) * scale + bias + z, 0))


def test_parameters_of_half_precision_are_float(p: Program) -> None:
    x, derived = normal(2, 3, 4, 5, dtype="float16"), c.cudnnCreateTensorDescriptor()
    c.cudnnDeriveBNTensorDescriptor(derived, p.tensor(x), c.CUDNN_BATCHNORM_PER_ACTIVATION)
    assert c.cudnnGetTensorNdDescriptor(derived, 8)[:3] == (c.CUDNN_DATA_FLOAT, 4, (1, 3, 4, 5))


def test_dropout(p: Program) -> None:
    x, dy = np.ones((3, 50, 40), np.float32), normal(3, 50, 40)
    desc, drop = p.tensor(x), c.cudnnCreateDropoutDescriptor()
    states = np.zeros(c.cudnnDropoutGetStatesSize(p.handle), np.uint8)
    size = c.cudnnDropoutGetReserveSpaceSize(desc)
    c.cudnnSetDropoutDescriptor(drop, p.handle, 0.25, states, states.nbytes, 42)
    assert c.cudnnGetDropoutDescriptor(drop, p.handle)[0::2] == (0.25, 42)
    begun = states.copy()
    outs, reserves = [], []
    for _ in range(2):
        y, reserve = np.full_like(x, np.nan), np.zeros(size, np.uint8)
        c.cudnnDropoutForward(p.handle, drop, desc, x, desc, y, reserve, size)
        outs.append(y)
        reserves.append(reserve)
    assert set(np.unique(outs[0])) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((outs[0] == 0).mean() - 0.25) < 0.03
    assert (outs[0] != outs[1]).any()
    for y, reserve in zip(outs, reserves, strict=True):
        dx = np.full_like(x, np.nan)
        c.cudnnDropoutBackward(p.handle, drop, desc, dy, desc, dx, reserve, size)
        np.testing.assert_allclose(dx, dy * y, rtol=1e-6)
    again = np.full_like(x, np.nan)
    c.cudnnRestoreDropoutDescriptor(drop, p.handle, 0.25, begun, begun.nbytes, 42)
    c.cudnnDropoutForward(p.handle, drop, desc, x, desc, again, reserves[0], size)
    np.testing.assert_array_equal(again, outs[0])
    c.cudnnDropoutForward(p.handle, drop, desc, x, desc, again, reserves[0], size)
    np.testing.assert_array_equal(again, outs[1])


def test_spatial_transformer(p: Program) -> None:
    x, dy = normal(2, 3, 7, 6), normal(2, 3, 5, 8)
    theta = (np.eye(2, 3) + 0.2 * rng.standard_normal((2, 2, 3))).astype(np.float32)
    source, maps = double(x), double(theta)
    grid = torch.nn.functional.affine_grid(maps, [2, 3, 5, 8], align_corners=True)
    grid.retain_grad()
    y = torch.nn.functional.grid_sample(source, grid, align_corners=True)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    found = programs.spatial(p, x, theta, dy)
    for name, expected in {
        "grid": grid, "y": y, "dx": source.grad, "dgrid": grid.grad, "dtheta": maps.grad
    }.items():  # fmt: skip
        close(found[name], expected, 1e-4)


def test_gradients_of_the_sampler_are_blended_apart(p: Program) -> None:
    x, dy, theta = normal(1, 2, 4, 4), normal(1, 2, 4, 4), np.eye(2, 3, dtype=np.float32)[None]
    plain = programs.spatial(p, x, theta, dy)
    st = c.cudnnCreateSpatialTransformerDescriptor()
    c.cudnnSetSpatialTransformerNdDescriptor(st, c.CUDNN_SAMPLER_BILINEAR, c.CUDNN_DATA_FLOAT, 4, dy.shape)
    dx, dgrid = np.ones_like(x), np.ones((1, 4, 4, 2), np.float32)
    desc = p.tensor(x)
    c.cudnnSpatialTfSamplerBackward(
        p.handle, st, 2.0, desc, x, 1.0, desc, dx, 1.0, desc, dy, plain["grid"], -1.0, dgrid
    )
    close(dx, 2 * plain["dx"] + 1)
    close(dgrid, plain["dgrid"] - 1)
