"""Recurrent layers and CTC in cuDNN's names, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnn_programs as programs
import jitdnn.cudnn as c
from cudnn_programs import Program

rng = np.random.default_rng(3)
LENGTHS = (5, 4, 2)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


def torch_layers(
    cell: str, inputs: int, hidden: int, layers: int, bidirectional: bool, projection: int
) -> Any:
    named: dict[str, Any] = {"bidirectional": bidirectional, "dtype": torch.float64}
    if cell == "LSTM":
        return torch.nn.LSTM(inputs, hidden, layers, proj_size=projection, **named)
    if cell == "GRU":
        return torch.nn.GRU(inputs, hidden, layers, **named)
    return torch.nn.RNN(inputs, hidden, layers, nonlinearity=cell[4:].lower(), **named)


CASES = {
    "lstm": ("LSTM", 2, "BIDIRECTIONAL", 0, "SEQ_MAJOR_UNPACKED"),
    "lstm, projected, packed": ("LSTM", 1, "UNIDIRECTIONAL", 3, "SEQ_MAJOR_PACKED"),
    "gru, batch first": ("GRU", 2, "UNIDIRECTIONAL", 0, "BATCH_MAJOR_UNPACKED"),
    "tanh": ("RNN_TANH", 1, "BIDIRECTIONAL", 0, "SEQ_MAJOR_PACKED"),
    "relu": ("RNN_RELU", 1, "UNIDIRECTIONAL", 0, "SEQ_MAJOR_UNPACKED"),
}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(p: Program, name: str) -> None:
    cell, layers, directions, projection, layout = CASES[name]
    inputs, hidden, steps, batch = 4, 5, max(LENGTHS), len(LENGTHS)
    bidirectional = directions == "BIDIRECTIONAL"
    count = 2 if bidirectional else 1
    model = torch_layers(cell, inputs, hidden, layers, bidirectional, projection)
    size = (projection or hidden) * count
    padded = normal(steps, batch, inputs)
    dy = normal(steps, batch, size)
    hx, dh = (
        normal(layers * count, batch, projection or hidden),
        normal(layers * count, batch, projection or hidden),
    )
    cx, dc = normal(layers * count, batch, hidden), normal(layers * count, batch, hidden)
    mask = np.arange(steps)[:, None] < np.array(LENGTHS)
    order = [(t, n) for t in range(steps) for n in range(batch) if mask[t, n]]

    def arranged(x: Any) -> Any:
        """(T, N, V) in the case's layout."""
        if layout == "SEQ_MAJOR_PACKED":
            return np.array([x[t, n] for t, n in order])
        return np.ascontiguousarray(x.transpose(1, 0, 2)) if layout.startswith("BATCH") else x

    gates = {"LSTM": 4, "GRU": 3}.get(cell, 1)

    def parameter(kind: str, layer: int, gate: int) -> tuple[str, int]:
        tail = f"_l{layer // count}{'_reverse' * (layer % count)}"
        if gate == 2 * gates:
            return "weight_hr" + tail, 0
        which = "ih" if gate < gates else "hh"
        return f"{'weight' if kind == 'matrix' else 'bias'}_{which}{tail}", gate % gates

    def fill(kind: str, layer: int, gate: int, extents: tuple[int, ...]) -> Any:
        own, row = parameter(kind, layer, gate)
        values = getattr(model, own).detach().numpy()
        return (values if own.startswith("weight_hr") else values[row * hidden : (row + 1) * hidden]).astype(
            np.float32
        )

    found = programs.recurrent(
        p, cell, arranged(padded), LENGTHS, layers, hidden, directions, "DOUBLE_BIAS", layout,
        {"y": arranged(dy * mask[..., None]), "hy": dh, "cy": dc}, projection, fill, (hx, cx),
    )  # fmt: skip
    source, first, cells = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (padded, hx, cx)
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(source, torch.tensor(LENGTHS))
    result, last = model(packed, (first, cells) if cell == "LSTM" else first)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(result)
    hn, cn = last if cell == "LSTM" else (last, None)
    loss = (y * torch.tensor(dy * mask[..., None])).sum() + (hn * torch.tensor(dh)).sum()
    if cn is not None:
        loss = loss + (cn * torch.tensor(dc)).sum()
    loss.backward()

    def close(one: Any, other: Any) -> None:
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=2e-4, atol=2e-5)

    close(found["y"], torch.tensor(arranged(y.detach().numpy())))
    close(found["hy"], hn)
    assert source.grad is not None
    assert first.grad is not None
    close(found["dx"], torch.tensor(arranged(source.grad.numpy())))
    close(found["dhx"], first.grad)
    if cn is not None:
        assert cells.grad is not None
        close(found["cy"], cn)
        close(found["dcx"], cells.grad)
    for kind, layer, gate, start, extents in found["places"]:
        own, row = parameter(kind, layer, gate)
        grad = getattr(model, own).grad
        expected = grad if own.startswith("weight_hr") else grad[row * hidden : (row + 1) * hidden]
        close(found["dw"][start : start + int(np.prod(extents))], expected.ravel())


def small(p: Program, flags: int, drop: Any = None) -> tuple[Any, Any, Any]:
    rnn, x_desc, y_desc = (
        c.cudnnCreateRNNDescriptor(), c.cudnnCreateRNNDataDescriptor(), c.cudnnCreateRNNDataDescriptor()
    )  # fmt: skip
    c.cudnnSetRNNDescriptor_v8(
        rnn, 0, c.CUDNN_RNN_TANH, c.CUDNN_RNN_NO_BIAS, c.CUDNN_UNIDIRECTIONAL, c.CUDNN_LINEAR_INPUT, c.CUDNN_DATA_FLOAT,
        c.CUDNN_DATA_FLOAT, c.CUDNN_DEFAULT_MATH, 3, 4, 4, 2, drop, flags,
    )  # fmt: skip
    layout = c.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED
    c.cudnnSetRNNDataDescriptor(x_desc, c.CUDNN_DATA_FLOAT, layout, 3, 2, 3, (3, 1), None)
    c.cudnnSetRNNDataDescriptor(y_desc, c.CUDNN_DATA_FLOAT, layout, 3, 2, 4, (3, 1), -7.0)
    return rnn, x_desc, y_desc


def test_inference_fills_the_padding(p: Program) -> None:
    rnn, x_desc, y_desc = small(p, c.CUDNN_RNN_PADDED_IO_ENABLED)
    total = c.cudnnGetRNNWeightSpaceSize(p.handle, rnn)
    weights, x, y = np.zeros(total // 4, np.float32), normal(3, 2, 3), np.full((3, 2, 4), np.nan, np.float32)
    weights[:] = 0.1
    work, reserve = c.cudnnGetRNNTempSpaceSizes(p.handle, rnn, c.CUDNN_FWD_MODE_INFERENCE, x_desc)
    assert reserve == 0
    rest = (total, weights, work, p.space(work), 0, None)
    c.cudnnRNNForward(
        p.handle,
        rnn,
        c.CUDNN_FWD_MODE_INFERENCE,
        None,
        x_desc,
        x,
        y_desc,
        y,
        None,
        None,
        None,
        None,
        None,
        None,
        *rest,
    )
    below, above = np.zeros((2, 4)), np.zeros((2, 4))
    for step in range(3):
        below = np.tanh((0.1 * x[step].sum(1) + 0.1 * below.sum(1))[:, None] * np.ones(4))
        above = np.tanh((0.1 * below.sum(1) + 0.1 * above.sum(1))[:, None] * np.ones(4))
        np.testing.assert_allclose(y[step, : 2 if step < 1 else 1], above[: 2 if step < 1 else 1], rtol=1e-5)
    assert (y[1:, 1] == -7.0).all()


def test_misuse(p: Program) -> None:
    rnn, x_desc, _ = small(p, c.CUDNN_RNN_PADDED_IO_DISABLED)
    with pytest.raises(c.CudnnBadParam, match="PADDED_IO"):
        c.cudnnGetRNNTempSpaceSizes(p.handle, rnn, c.CUDNN_FWD_MODE_INFERENCE, x_desc)
    rnn, x_desc, y_desc = small(p, c.CUDNN_RNN_PADDED_IO_ENABLED)
    total = c.cudnnGetRNNWeightSpaceSize(p.handle, rnn)
    weights, x, y = np.zeros(total // 4, np.float32), normal(3, 2, 3), normal(3, 2, 4)
    work, reserve = c.cudnnGetRNNTempSpaceSizes(p.handle, rnn, c.CUDNN_FWD_MODE_TRAINING, x_desc)
    space, kept = p.space(work), p.space(reserve)
    states = (None, None, None, None, None, None)
    for rest in (
        (total - 1, weights, work, space, reserve, kept),
        (total, weights[:-1], work, space, reserve, kept),
        (total, weights, work, space, reserve - 1, kept),
        (total, weights, work, space, reserve, None),
    ):
        with pytest.raises(c.CudnnBadParam):
            c.cudnnRNNForward(
                p.handle, rnn, c.CUDNN_FWD_MODE_TRAINING, None, x_desc, x, y_desc, y, *states, *rest
            )
    with pytest.raises(c.CudnnNotSupported, match="SKIP"):
        c.cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 0, c.CUDNN_SKIP_INPUT, 0, 0, 0, 3, 4, 4, 1, None, 0)


def test_dropout_between_layers(p: Program) -> None:
    """The gradients use the numbers that the forward pass used: the sum of y is linear in the last layer's input."""
    drop, states = c.cudnnCreateDropoutDescriptor(), np.zeros(16, np.uint8)
    c.cudnnSetDropoutDescriptor(drop, p.handle, 0.5, states, 16, 1)
    rnn, x_desc, y_desc = small(p, c.CUDNN_RNN_PADDED_IO_ENABLED, drop)
    total = c.cudnnGetRNNWeightSpaceSize(p.handle, rnn)
    weights = 0.3 * normal(total // 4)
    work, reserve = c.cudnnGetRNNTempSpaceSizes(p.handle, rnn, c.CUDNN_FWD_MODE_TRAINING, x_desc)
    x, dy = normal(3, 2, 3), normal(3, 2, 4)
    none = (None, None, None, None, None, None)

    def forward(source: Any) -> tuple[Any, Any]:
        y, kept = np.zeros((3, 2, 4), np.float32), p.space(reserve)
        c.cudnnRestoreDropoutDescriptor(drop, p.handle, 0.5, begun, 16, 1)
        c.cudnnRNNForward(
            p.handle, rnn, c.CUDNN_FWD_MODE_TRAINING, None, x_desc, source, y_desc, y, *none, total, weights, work,
            p.space(work), reserve, kept,
        )  # fmt: skip
        return y, kept

    begun = states.copy()
    y, kept = forward(x)
    begun = states.copy()
    dx = np.zeros_like(x)
    c.cudnnRNNBackwardData_v8(
        p.handle, rnn, None, y_desc, y, dy, x_desc, dx, None, None, None, None, None, None, None, None, total, weights,
        work, p.space(work), reserve, kept,
    )  # fmt: skip
    c.cudnnSetDropoutDescriptor(drop, p.handle, 0.5, states, 16, 1)
    step = normal(3, 2, 3)
    values = []
    for sign in (1.0, -1.0):
        c.cudnnSetDropoutDescriptor(drop, p.handle, 0.5, states, 16, 1)
        begun = states.copy()
        moved, _ = forward((x + sign * 1e-2 * step).astype(np.float32))
        mask = np.arange(3)[:, None] < np.array([3, 1])
        values.append((moved * dy * mask[..., None]).sum(dtype=np.float64))
    assert abs((values[0] - values[1]) / 2e-2 - (dx * step).sum(dtype=np.float64)) < 2e-3


@pytest.mark.parametrize("normalizes", [True, False])
def test_ctc(p: Program, normalizes: bool) -> None:
    logits = normal(7, 3, 5)
    labels, lengths = [[1, 2, 2], [4], [3, 1]], [7, 4, 6]
    x = logits if normalizes else np.asarray(torch.softmax(torch.tensor(logits), 2))
    costs, slopes = programs.ctc(p, x, labels, lengths, normalizes)
    source = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    flat = torch.tensor([label for each in labels for label in each])
    losses = torch.nn.functional.ctc_loss(
        source.log_softmax(2),
        flat,
        torch.tensor(lengths),
        torch.tensor([len(each) for each in labels]),
        reduction="none",
    )
    losses.sum().backward()
    assert source.grad is not None
    np.testing.assert_allclose(costs, losses.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(slopes, source.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_ctc_by_later_names(p: Program) -> None:
    x = normal(6, 2, 4)
    loss, desc = c.cudnnCreateCTCLossDescriptor(), p.tensor(x)
    c.cudnnSetCTCLossDescriptor_v9(
        loss, c.CUDNN_DATA_FLOAT, c.CUDNN_LOSS_NORMALIZATION_SOFTMAX, c.CUDNN_CTC_SKIP_OOB_GRADIENTS, 2
    )
    labels, counts, lengths = (np.array(v, np.int32) for v in ([1, 2, 3], [2, 1], [6, 3]))
    assert c.cudnnGetCTCLossWorkspaceSize_v8(p.handle, 0, loss, desc, desc) == 0
    costs, slopes = np.full(2, np.nan, np.float32), np.full_like(x, 9)
    c.cudnnCTCLoss_v8(p.handle, 0, loss, desc, x, labels, counts, lengths, costs, desc, slopes, 0, None)
    plain, expected = programs.ctc(p, x, [[1, 2], [3]], [6, 3], True)
    np.testing.assert_array_equal(costs, plain)
    np.testing.assert_array_equal(slopes[:3], expected[:3])
    assert (slopes[3:, 1] == 9).all()
    c.cudnnCTCLoss_v8(p.handle, 0, loss, desc, x, labels, counts, lengths, costs, None, None, 0, None)
    counts[0] = 3
    with pytest.raises(c.CudnnBadParam, match="maxLabelLength"):
        c.cudnnCTCLoss_v8(p.handle, 0, loss, desc, x, labels, counts, lengths, costs, None, None, 0, None)
