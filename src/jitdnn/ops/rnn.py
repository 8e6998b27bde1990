"""Recurrent layers over anybody's arrays: relu, tanh, LSTM and GRU, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import check_choice, flag, sequence, settled_before
from jitdnn.errors import InvalidShape, InvalidType
from jitdnn.handle import Handle
from jitdnn.ops.call import SETTING, Op, Recipe, WorkspaceLimit, call
from jitdnn.ops.dropout import DropoutState
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.ops.rnn_form import Clip, Form, Given, form_of, layers_of, shape_of
from jitdnn.problems.rnn import Recurrent
from jitdnn.tensor import TensorDescriptor

_SIMPLE = ("tanh", "relu")
_MOST_WEIGHTS = 1 << 14  # layers are unrolled when they are compiled
_Inputs = Sequence[TensorDescriptor]
_Outs = Sequence[TensorDescriptor | None]


def rnn(
    x: Any,
    weights: Sequence[Any] | KeptFilter,
    hx: Any = None,
    nonlinearity: str = "tanh",
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    training: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (y, hn), in training (y, hn, saved): layers of h = f(W x + b + U h' + c), f "tanh" or "relu".

    `x`: (T, N, I), or (N, T, I) with `batch_first`, or packed: (rows, I) with `batch_sizes` (T,), as PyTorch's
    PackedSequence has them. `lengths` (N,): the steps of each sequence, which may come in any order; y is 0
    beyond. Both are int32 or int64 in host memory. y is as x, with R numbers for each direction side by side.

    `weights`: for each layer, and there for each direction, weight_ih (gates * H, I or what the layer below gives),
    weight_hh (gates * H, R), then bias_ih and bias_hh (gates * H) or one of them or none, then weight_hr (R, H) for a
    projection: what `torch.nn.RNN._flat_weights` holds. A single bias is that of the "input" or, by
    `bias="recurrent"`, the other. The number of layers follows. A `KeptFilter` of such a list has the weights of one
    layer prepared once for all calls. `hx`: (layers * directions, N, R), 0 if None.

    All arrays are of one type: float16, bfloat16, float32 or float64. Inside, float16 and bfloat16 are computed in
    float32. `saved` is what `rnn_backward` needs. The result y is alpha * y + beta * out; `out` is y's array or a
    tuple as returned, None for what is to be allocated.

    `dropout`: the probability with which each number that goes from one layer to the next is dropped, by the numbers
    of `state`, which goes on to its next ones. The gradients need the state as it was before: keep `state.copy()`.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    check_choice(nonlinearity, _SIMPLE, "nonlinearity")
    given = Given(nonlinearity, bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state)
    return _forward(
        given, x, weights, hx, None, training, alpha, beta, out, handle, algorithm, workspace_limit
    )


def lstm(
    x: Any,
    weights: Sequence[Any] | KeptFilter,
    hx: Any = None,
    cx: Any = None,
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    training: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    clip: Clip = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (y, hn, cn), in training (y, hn, cn, saved): layers of long short-term memory.

    The gates are in PyTorch's order: input, forget, cell, output. `cx`: (layers * directions, N, H), given together
    with `hx`. A projection (R < H) is taken from the weights' shapes. `clip`: lowest (at most 0) and highest (at
    least 0) value of c; where c is clipped it has no gradient. The other arguments and errors are those of `rnn`.
    """
    given = Given("lstm", bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state, clip)
    return _forward(given, x, weights, hx, cx, training, alpha, beta, out, handle, algorithm, workspace_limit)


def gru(
    x: Any,
    weights: Sequence[Any] | KeptFilter,
    hx: Any = None,
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    training: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (y, hn), in training (y, hn, saved): layers of gated recurrent units, as cuDNN and PyTorch have them.

    The reset gate is applied after the recurrent product: n = tanh(W x + b + r * (U h' + c)). The gates are in
    PyTorch's order: reset, update, new. The arguments and errors are those of `rnn`.
    """
    given = Given("gru", bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state)
    return _forward(
        given, x, weights, hx, None, training, alpha, beta, out, handle, algorithm, workspace_limit
    )


def rnn_backward(
    dy: Any,
    x: Any,
    weights: Sequence[Any],
    saved: Any,
    hx: Any = None,
    dhn: Any = None,
    nonlinearity: str = "tanh",
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    out_weights: Sequence[Any] | None = None,
    need_weights: bool = True,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (dx, dhx, dweights) of `rnn`, which was given the other arguments and returned `saved`.

    `dy` and `dhn` are the gradients of y and hn; dhn may be None for 0. dhx is None if hx is. dweights is a list
    like `weights`, or None without `need_weights`: each is alpha * gradient + beta * what `out_weights` holds, so
    that beta = 1 accumulates. `out`: the array for dx. `state` is as it was before the forward call; it is not
    changed. Raises as `rnn` does.
    """
    check_choice(nonlinearity, _SIMPLE, "nonlinearity")
    given = Given(nonlinearity, bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state)
    dx, dhx, _, dweights = _backward(
        given, dy, x, weights, saved, hx, None, dhn, None, alpha, beta, out, out_weights, need_weights, handle,
        algorithm, workspace_limit,
    )  # fmt: skip
    return dx, dhx, dweights


def lstm_backward(
    dy: Any,
    x: Any,
    weights: Sequence[Any],
    saved: Any,
    hx: Any = None,
    cx: Any = None,
    dhn: Any = None,
    dcn: Any = None,
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    clip: Clip = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    out_weights: Sequence[Any] | None = None,
    need_weights: bool = True,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (dx, dhx, dcx, dweights) of `lstm`; dhn and dcn are given together or not at all.

    The other arguments and errors are those of `rnn_backward`.
    """
    given = Given("lstm", bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state, clip)
    return _backward(
        given, dy, x, weights, saved, hx, cx, dhn, dcn, alpha, beta, out, out_weights, need_weights, handle,
        algorithm, workspace_limit,
    )  # fmt: skip


def gru_backward(
    dy: Any,
    x: Any,
    weights: Sequence[Any],
    saved: Any,
    hx: Any = None,
    dhn: Any = None,
    *,
    bidirectional: bool = False,
    bias: str = "input",
    lengths: Any = None,
    batch_sizes: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    state: DropoutState | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    out_weights: Sequence[Any] | None = None,
    need_weights: bool = True,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
) -> Any:
    """Return (dx, dhx, dweights) of `gru`; arguments and errors as for `rnn_backward`."""
    given = Given("gru", bidirectional, bias, lengths, batch_sizes, batch_first, dropout, state)
    dx, dhx, _, dweights = _backward(
        given, dy, x, weights, saved, hx, None, dhn, None, alpha, beta, out, out_weights, need_weights, handle,
        algorithm, workspace_limit,
    )  # fmt: skip
    return dx, dhx, dweights


def _forward(
    called: Given, x: Any, weights: Sequence[Any] | KeptFilter, hx: Any, cx: Any, training: bool, alpha: float,
    beta: float, out: Any, handle: Handle | None, algorithm: str | None, workspace_limit: WorkspaceLimit,
) -> Any:  # fmt: skip
    op, run, cell = _FORWARD, None, called.cell
    if isinstance(weights, KeptFilter):
        op, run, weights = _FORWARD_KEPT, weights.run, weights.w
        if not isinstance(weights, tuple):
            raise InvalidType("weights is a KeptFilter of one array: it must be one of a list of arrays")
    weights = sequence(weights, "weights", _MOST_WEIGHTS)
    form, index = form_of(called, x, weights, training, (hx, cx))
    given = [("x", x), *index, *_states(cell, (("hx", hx), ("cx", cx)))]
    given += [(f"weights[{place}]", weight) for place, weight in enumerate(weights)]
    names, arrays = zip(*given, strict=True)
    results = 2 + (cell == "lstm") + form.is_training
    if not isinstance(out, tuple) and out is not None:
        out = (out, *[None] * (results - 1))
    found = call(
        op,
        names,
        arrays,
        form,
        out,
        alpha,
        beta,
        handle,
        algorithm,
        workspace_limit,
        results=results,
        run=run,
    )
    if form.dropout and called.state is not None:
        called.state.advance()
    return found


def _backward(
    called: Given, dy: Any, x: Any, weights: Sequence[Any], saved: Any, hx: Any, cx: Any, dhn: Any, dcn: Any,
    alpha: float, beta: float, out: Any, out_weights: Sequence[Any] | None, need_weights: bool, handle: Handle | None,
    algorithm: str | None, workspace_limit: WorkspaceLimit,
) -> tuple[Any, Any, Any, list[Any] | None]:  # fmt: skip
    weights, cell = sequence(weights, "weights", _MOST_WEIGHTS), called.cell
    form, index = form_of(called, x, weights, True, (hx, cx), (dhn, dcn))
    shapes = tuple(shape_of(weight, f"weights[{place}]") for place, weight in enumerate(weights))
    need_weights = flag(need_weights, "need_weights")
    given = [("dy", dy), *index]
    if form.has_final:
        given += _states(cell, (("dhn", dhn), ("dcn", dcn)))
    if form.has_states and cell in ("lstm", "gru"):
        given.append(("cx", cx) if cell == "lstm" else ("hx", hx))
    given += [
        (f"weights[{place}]", weight) for place, weight in enumerate(weights) if len(shapes[place]) == 2
    ]
    # beside the operands: x is not read, but its shape decides
    given.append(("saved", saved))
    names, arrays = zip(*given, strict=True)
    results = 2 + (1 + (cell == "lstm")) * form.has_states
    found = call(
        _BACKWARD_DATA, names, arrays, (*form, shape_of(x, "x"), shapes),
        (out, *[None] * (results - 1)), handle=handle, algorithm=algorithm, workspace_limit=workspace_limit,
        results=results,
    )  # fmt: skip
    dx, *states, dgates = found
    dhx, dcx = (*states, None, None)[:2]
    if not need_weights:
        return dx, dhx, dcx, None
    given = [("x", x), *index, *([("hx", hx)] if form.has_states else ())]
    given += [("saved", saved), ("dgates", dgates)]
    names, arrays = zip(*given, strict=True)
    outs = None if out_weights is None else sequence(out_weights, "out_weights", _MOST_WEIGHTS)
    dweights = call(
        _BACKWARD_WEIGHTS, names, arrays, (*form, shapes), outs,
        alpha, beta, handle, algorithm, workspace_limit, results=len(weights),
    )  # fmt: skip
    return dx, dhx, dcx, list(dweights)


def _states(cell: str, pair: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, array) for name, array in pair[: 1 + (cell == "lstm")] if array is not None]


def _describe(
    direction: str, form: Form, x: tuple[int, ...], weights: Sequence[tuple[int, ...]], inputs: _Inputs, outs: _Outs
) -> Recipe:  # fmt: skip
    """The problem from the shapes of x and of all weights; the operands as they are given, else packed."""
    if len(x) != (2 if form.sequences == "packed" else 3):
        wanted = "(rows, I)" if form.sequences == "packed" else "(T, N, I)"
        raise InvalidShape(f"x has shape {x}: it must be {wanted}")
    directions = 2 if form.is_bidirectional else 1
    hidden, projection, biases, layers = layers_of(form.cell, weights, directions)
    steps, batch, rows = x[0], x[1], 0
    if form.sequences == "packed":
        steps, batch, rows = inputs[1].shape[0], form.batch, x[0]
    elif form.is_batch_major:
        steps, batch = batch, steps
    index = inputs[1].dtype if form.sequences != "whole" else "i64"
    problem = Recurrent(
        direction, form.cell, steps, batch, x[-1], hidden, layers,
        form.is_bidirectional, projection, ("no_bias", form.single_bias, "both_biases")[biases], form.sequences, rows,
        index, form.is_batch_major, form.is_training, form.has_states, form.has_final, form.clip, form.dropout,
        inputs[0].dtype,
    )  # fmt: skip
    named = zip((operand.name for operand in problem.operands), (*inputs, *outs), strict=True)
    return Recipe(problem.arranged([(name, tensor) for name, tensor in named if tensor is not None]))


def _make_forward(inputs: _Inputs, outs: _Outs, *form: Any) -> Recipe:
    known = Form(*form)
    shapes = [tensor.shape for tensor in inputs[-known.weights :]]
    return _describe("fwd", known, inputs[0].shape, shapes, inputs, outs)


def _make_backward_data(inputs: _Inputs, outs: _Outs, *form: Any) -> Recipe:
    *known, x, shapes = form
    return _describe("bwd_data", Form(*known), x, shapes, inputs, outs)


def _make_backward_weights(inputs: _Inputs, outs: _Outs, *form: Any) -> Recipe:
    *known, shapes = form
    return _describe("bwd_weights", Form(*known), inputs[0].shape, shapes, inputs, outs)


# `form_of` settles what callers say: the number of results and the arrays of a call follow from it
_SETTLED = tuple(settled_before(name) for name in Form._fields)
_SHAPES = settled_before("shapes")

_FORWARD = Op(_make_forward, _SETTLED)
_FORWARD_KEPT = Op(_make_forward, _SETTLED, keeps_filter=True)
_BACKWARD_DATA = Op(_make_backward_data, (*_SETTLED, settled_before("x_shape"), _SHAPES))
_BACKWARD_WEIGHTS = Op(_make_backward_weights, (*_SETTLED, _SHAPES))
