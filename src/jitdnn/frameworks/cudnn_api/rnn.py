"""Recurrent layers: sizes of what they need, places of the weights, forward and both gradients.

The weights lie in one space: for each pseudo-layer the matrices of the input and of the state and the projection,
then the
biases of all. What the gradients need is kept in the reserve: the values of the forward pass, the gradients of the
gates,
which those of the weights are made of, and the state of dropout.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.errors import NotSupported
from jitdnn.frameworks.cudnn_api.dropout import STATE_BYTES, advance, dropped_of
from jitdnn.frameworks.cudnn_api.enums import (
    cudnnForwardMode_t,
    cudnnRNNClipMode_t,
    cudnnWgradMode_t,
)
from jitdnn.frameworks.cudnn_api.handles import checked, inner
from jitdnn.frameworks.cudnn_api.launch import launch, plan_of
from jitdnn.frameworks.cudnn_api.memory import bound, placed, space, with_room
from jitdnn.frameworks.cudnn_api.objects import byte_count, choice, number
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.rnn_descriptors import Layers, Sequences, layers_of, sequences_of
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import cudnnTensorDescriptor, set_tensor, tensor_of
from jitdnn.handle import Handle
from jitdnn.ops.to_device import beside
from jitdnn.problems.rnn import Recurrent
from jitdnn.tensor import DTYPES, Array, TensorDescriptor, borrow, numpy_dtype

_CACHE_LINE = 64


def _problem(direction: str, own: Layers, x: Sequences, is_training: bool) -> Recurrent:
    """The problem of layers and sequences. Raises BadParam, InvalidArgument."""
    if x.size != own.input_size:
        raise BadParam(
            f"xDesc has vectors of {x.size} and rnnDesc inputs of {own.input_size}: they must be equal"
        )
    if x.dtype != own.dtype:
        raise BadParam(f"xDesc is of {x.dtype} and rnnDesc of {own.dtype}: they must be of one type")
    sequences, steps = "packed" if x.is_packed else "lengths" if own.is_padded else "whole", x.steps
    if sequences == "whole" and any(length != steps for length in x.lengths):
        raise BadParam(
            f"seqLengthArray is {x.lengths}: where lengths differ, auxFlags must have CUDNN_RNN_PADDED_IO_ENABLED"
        )
    mode, _, low, high = own.clip
    clip = (low, high) if mode is cudnnRNNClipMode_t.CUDNN_RNN_CLIP_MINMAX and own.cell == "lstm" else None
    dropout = 0.0 if own.dropout is None or not is_training else dropped_of(own.dropout).probability
    return Recurrent(
        direction, own.cell, max(x.lengths) if x.is_packed else steps, x.batch, x.size, own.hidden, own.layers,
        own.is_bidirectional, own.projection % own.hidden, own.bias, sequences, sum(x.lengths) if x.is_packed else 0,
        "i32", x.is_batch_major, is_training, True, True, clip, dropout, own.dtype,
    )  # fmt: skip


def _places(own: Layers) -> tuple[dict[str, tuple[int, tuple[int, ...]]], int]:
    """Where each weight begins, in elements, and its shape; and how many elements there are."""
    # the shapes do not depend on the sequences
    example = Recurrent(
        "fwd", own.cell, 1, 1, own.input_size, own.hidden, own.layers, own.is_bidirectional,
        own.projection % own.hidden, own.bias,
    )  # fmt: skip
    shapes = list(example.weight_shapes())
    ordered = [
        *(s for s in shapes if s[0].startswith("weight")),
        *(s for s in shapes if s[0].startswith("bias")),
    ]
    found, end = {}, 0
    for name, shape in ordered:
        found[name] = (end, shape)
        end += prod(shape)
    return found, end


def _tail(own: Layers, pseudoLayer: int) -> str:
    """How the names of the weights of a pseudo-layer end."""
    directions = 2 if own.is_bidirectional else 1
    return f"_l{pseudoLayer // directions}{'_reverse' * (pseudoLayer % directions)}"


def _weights(own: Layers, weightSpace: Any, size: int, name: str, writes: bool = False) -> dict[str, Array]:
    places, elements = _places(own)
    needed = elements * DTYPES[own.dtype]
    if byte_count(size, "weightSpaceSize") < needed:
        raise BadParam(f"weightSpaceSize is {size}: the weights take {needed} bytes")
    whole = bound(weightSpace, TensorDescriptor((elements,), (1,), own.dtype), name, writes)
    itemsize = DTYPES[own.dtype]
    return {
        key: placed(whole, TensorDescriptor.packed(shape, own.dtype), start * itemsize)
        for key, (start, shape) in places.items()
    }


@api
def cudnnGetRNNWeightSpaceSize(handle: Any, rnnDesc: Any) -> int:
    """Return the bytes of all weights."""
    checked(handle)
    own = layers_of(rnnDesc)
    return _places(own)[1] * DTYPES[own.dtype]


@api
def cudnnGetRNNWeightParams(
    handle: Any,
    rnnDesc: Any,
    pseudoLayer: int,
    weightSpaceSize: int,
    weightSpace: Any,
    linLayerID: int,
    mDesc: Any,
    bDesc: Any,
) -> tuple[Any, Any]:
    """Return (mAddr, bAddr): the matrix and the bias of one gate as parts of weightSpace, None for what there is
    not, and
    set mDesc to (1, rows, columns) and bDesc to (1, rows, 1)."""
    checked(handle)
    own = layers_of(rnnDesc)
    layer = number(pseudoLayer, "pseudoLayer", 0, own.states - 1)
    places, elements = _places(own)
    gates = {"lstm": 4, "gru": 3}.get(own.cell, 1)
    last = 2 * gates - 1 + (own.projection % own.hidden > 0)
    gate, tail = number(linLayerID, "linLayerID", 0, last), _tail(own, layer)
    if byte_count(weightSpaceSize, "weightSpaceSize") < elements * DTYPES[own.dtype]:
        raise BadParam(
            f"weightSpaceSize is {weightSpaceSize}: the weights take {elements * DTYPES[own.dtype]} bytes"
        )
    if gate == 2 * gates:
        start, (rows, columns) = places["weight_hr" + tail]
        bias = None
    else:
        kind, gate = ("ih", gate) if gate < gates else ("hh", gate - gates)
        start, (_, columns) = places[f"weight_{kind}{tail}"]
        rows, bias = own.hidden, places.get(f"bias_{kind}{tail}")
        start += gate * rows * columns
    set_tensor(mDesc, TensorDescriptor.packed((1, rows, columns), own.dtype), "mDesc")
    matrix = _part(weightSpace, own.dtype, start, rows * columns)
    if bias is None:
        if isinstance(bDesc, cudnnTensorDescriptor):
            bDesc.value = None
        return matrix, None
    set_tensor(bDesc, TensorDescriptor.packed((1, rows, 1), own.dtype), "bDesc")
    return matrix, _part(weightSpace, own.dtype, bias[0] + gate * rows, rows)


def _part(weightSpace: Any, dtype: str, start: int, count: int) -> Any:
    """Elements of the space, as a slice of the array that it is; None for None, when only the shape is asked for."""
    if weightSpace is None:
        return None
    array = borrow(weightSpace, False, "weightSpace")
    if len(array.descriptor.shape) != 1:
        raise BadParam(f"weightSpace has shape {array.descriptor.shape}: its parts are had of a vector")
    unit = 1 if array.descriptor.dtype == dtype else DTYPES[dtype] // DTYPES[array.descriptor.dtype]
    return weightSpace[start * unit : (start + count) * unit]


def _sections(own: Layers, x: Sequences) -> tuple[TensorDescriptor, TensorDescriptor, int]:
    """What the reserve holds: the kept values, the gradients of the gates, and where those begin."""
    forward, data = _problem("fwd", own, x, True), _problem("bwd_data", own, x, True)
    saved = forward.operands[forward.places["saved"]].descriptor
    slopes = data.operands[data.places["dgates"]].descriptor
    return saved, slopes, -(-saved.nbytes // _CACHE_LINE) * _CACHE_LINE


def _reserve_bytes(own: Layers, x: Sequences) -> int:
    _, slopes, start = _sections(own, x)
    return with_room(start + -(-slopes.nbytes // _CACHE_LINE) * _CACHE_LINE + STATE_BYTES)


def _reserved(own: Layers, x: Sequences, reserveSpace: Any, size: int) -> dict[str, Array]:
    """The parts of the reserve, from the first aligned address on."""
    saved, slopes, start = _sections(own, x)
    size = byte_count(size, "reserveSpaceSize")
    whole = space(reserveSpace, size, _reserve_bytes(own, x), "reserveSpace")
    assert whole is not None
    first = -whole.pointer % _CACHE_LINE
    end = first + start + -(-slopes.nbytes // _CACHE_LINE) * _CACHE_LINE
    return {
        "saved": placed(whole, saved, first),
        "dgates": placed(whole, slopes, first + start),
        "state": placed(whole, TensorDescriptor.packed((4,), "u32"), end),
    }


@api
def cudnnGetRNNTempSpaceSizes(handle: Any, rnnDesc: Any, fwdMode: int, xDesc: Any) -> tuple[int, int]:
    """Return (workSpaceSize, reserveSpaceSize) in bytes, for sequences as in xDesc; inference needs no reserve."""
    own, x = layers_of(rnnDesc), sequences_of(xDesc, "xDesc")
    runner = checked(handle).handle(own.math)
    device_id = getattr(runner.device, "device_id", None)
    is_training = choice(cudnnForwardMode_t, fwdMode, "fwdMode") is cudnnForwardMode_t.CUDNN_FWD_MODE_TRAINING
    directions = ("fwd", "bwd_data", "bwd_weights") if is_training else ("fwd",)
    plans = [plan_of(runner, device_id, _problem(direction, own, x, is_training)) for direction in directions]
    reserve = _reserve_bytes(own, x) if is_training else 0
    return with_room(max(plan.workspace for plan in plans)), reserve


class _Call:
    """The arrays of a call by name, and what has to be made for it."""

    def __init__(self, handle: Any, own: Layers, x: Sequences, is_training: bool) -> None:
        self.runner: Handle = checked(handle).handle(own.math)
        self.own, self.x, self.is_training = own, x, is_training
        self.arrays: dict[str, Array] = {}

    def sequences(self, name: str, desc: Sequences, array: Any, writes: bool = False) -> None:
        """x, y or a gradient of them."""
        size = self.own.input_size if name in ("x", "dx") else self.result_size
        wanted = self.x._replace(size=size, fill=None)
        if desc._replace(fill=None) != wanted:
            raise BadParam(
                f"the descriptor of {name} is {desc}: with the input and rnnDesc it must be {wanted}"
            )
        tensor = TensorDescriptor.packed(desc.shape, desc.dtype)
        self.arrays[name] = bound(array, tensor, name, writes)

    @property
    def result_size(self) -> int:
        own = self.own
        return (own.projection or own.hidden) * (2 if own.is_bidirectional else 1)

    def state(self, name: str, desc: Any, array: Any, is_cell: bool, writes: bool = False) -> None:
        """A state or its gradient: (pseudo-layers, batch, size). Zeros for None, or memory that nobody looks at."""
        own = self.own
        shape = (own.states, self.x.batch, own.hidden if is_cell else own.projection or own.hidden)
        packed = TensorDescriptor.packed(shape, own.dtype)
        if array is None:
            self.arrays[name] = self._beside(np.zeros(shape, numpy_dtype(own.dtype)))
            return
        tensor = tensor_of(desc, "cDesc" if is_cell else "hDesc")
        if tensor.shape != shape or tensor.dtype != own.dtype:
            raise BadParam(
                f"the descriptor of {name} is {tensor.shape} of {tensor.dtype}: it must be {shape} of {own.dtype}"
            )
        if tensor != packed:
            raise NotSupported(f"the descriptor of {name} has strides {tensor.strides}: states are packed")
        self.arrays[name] = bound(array, tensor, name, writes)

    def _beside(self, values: Any) -> Array:
        """An array of the library's own where those of the sequences are, which are bound first."""
        return borrow(beside(values, next(iter(self.arrays.values()))))

    def lengths(self) -> None:
        if self.x.is_packed:
            counts = [sum(length > step for length in self.x.lengths) for step in range(max(self.x.lengths))]
            self.arrays["lengths"] = self._beside(np.array(counts, np.int32))
        elif self.own.is_padded:
            self.arrays["lengths"] = self._beside(np.array(self.x.lengths, np.int32))

    def run(self, direction: str, workSpace: Any, workSpaceSize: int, beta: float = 0.0) -> None:
        problem = _problem(direction, self.own, self.x, self.is_training)
        self.lengths()
        inputs = [(operand.name, self.arrays[operand.name]) for operand in problem.inputs]
        outputs = [(operand.name, self.arrays[operand.name]) for operand in problem.outputs]
        size = byte_count(workSpaceSize, "workSpaceSize")
        device_id = self.arrays["saved"].device_id if "saved" in self.arrays else inputs[0][1].device_id
        plan = plan_of(self.runner, device_id, problem)
        launch(self.runner, plan, inputs, outputs, 1.0, beta, workSpace, size)


@api
def cudnnRNNForward(
    handle: Any,
    rnnDesc: Any,
    fwdMode: int,
    devSeqLengths: Any,
    xDesc: Any,
    x: Any,
    yDesc: Any,
    y: Any,
    hDesc: Any,
    hx: Any,
    hy: Any,
    cDesc: Any,
    cx: Any,
    cy: Any,
    weightSpaceSize: int,
    weightSpace: Any,
    workSpaceSize: int,
    workSpace: Any,
    reserveSpaceSize: int,
    reserveSpace: Any,
) -> None:
    """y and the last states hy, cy of sequences x from the states hx, cx (None: 0); lengths are those of xDesc."""
    own, given = layers_of(rnnDesc), sequences_of(xDesc, "xDesc")
    is_training = choice(cudnnForwardMode_t, fwdMode, "fwdMode") is cudnnForwardMode_t.CUDNN_FWD_MODE_TRAINING
    called = _Call(handle, own, given, is_training)
    result = sequences_of(yDesc, "yDesc")
    called.sequences("x", given, x)
    called.sequences("y", result, y, True)
    called.state("hx", hDesc, hx, False)
    called.state("hn", hDesc, hy, False, True)
    if own.cell == "lstm":
        called.state("cx", cDesc, cx, True)
        called.state("cn", cDesc, cy, True, True)
    called.arrays |= _weights(own, weightSpace, weightSpaceSize, "weightSpace")
    if is_training:
        reserved = _reserved(own, given, reserveSpace, reserveSpaceSize)
        called.arrays["saved"] = reserved["saved"]
        called.arrays["state"] = reserved["state"]
        _keep_dropout(own, reserved["state"], inner(handle))
    called.run("fwd", workSpace, workSpaceSize)
    if result.fill and own.is_padded and not given.is_packed:
        for number_, length in enumerate(given.lengths):
            rest, one = slice(length, None), slice(number_, number_ + 1)
            if length < given.steps:
                parts = (one, rest) if given.is_batch_major else (rest, one)
                jd.fill(called.arrays["y"].part(*parts), result.fill, handle=called.runner)


def _keep_dropout(own: Layers, target: Array, handle: Handle) -> None:
    """The state that this pass drops by, for the gradients too."""
    if own.dropout is None:
        return
    used = advance(dropped_of(own.dropout), handle)
    if used is not None:
        jd.transform(beside(used.words(), target), out=target, handle=handle)


@api
def cudnnRNNBackwardData_v8(
    handle: Any,
    rnnDesc: Any,
    devSeqLengths: Any,
    yDesc: Any,
    y: Any,
    dy: Any,
    xDesc: Any,
    dx: Any,
    hDesc: Any,
    hx: Any,
    dhy: Any,
    dhx: Any,
    cDesc: Any,
    cx: Any,
    dcy: Any,
    dcx: Any,
    weightSpaceSize: int,
    weightSpace: Any,
    workSpaceSize: int,
    workSpace: Any,
    reserveSpaceSize: int,
    reserveSpace: Any,
) -> None:
    """dx, dhx, dcx from dy, dhy, dcy (None: 0), with what the forward pass kept; the gates' gradients go to the
    reserve."""
    own, given = layers_of(rnnDesc), sequences_of(xDesc, "xDesc")
    called = _Call(handle, own, given, True)
    called.sequences("dy", sequences_of(yDesc, "yDesc"), dy)
    called.sequences("dx", given, dx, True)
    called.state("dhn", hDesc, dhy, False)
    called.state("dhx", hDesc, dhx, False, True)
    if own.cell == "lstm":
        called.state("dcn", cDesc, dcy, True)
        called.state("dcx", cDesc, dcx, True, True)
        called.state("cx", cDesc, cx, True)
    called.state("hx", hDesc, hx, False)
    called.arrays |= _weights(own, weightSpace, weightSpaceSize, "weightSpace")
    called.arrays |= _reserved(own, given, reserveSpace, reserveSpaceSize)
    called.run("bwd_data", workSpace, workSpaceSize)


@api
def cudnnRNNBackwardWeights_v8(
    handle: Any,
    rnnDesc: Any,
    addGrad: int,
    devSeqLengths: Any,
    xDesc: Any,
    x: Any,
    hDesc: Any,
    hx: Any,
    yDesc: Any,
    y: Any,
    weightSpaceSize: int,
    dweightSpace: Any,
    workSpaceSize: int,
    workSpace: Any,
    reserveSpaceSize: int,
    reserveSpace: Any,
) -> None:
    """The weights' gradients, added to what dweightSpace holds or in its place; after cudnnRNNBackwardData_v8."""
    own, given = layers_of(rnnDesc), sequences_of(xDesc, "xDesc")
    adds = choice(cudnnWgradMode_t, addGrad, "addGrad") is cudnnWgradMode_t.CUDNN_WGRAD_MODE_ADD
    called = _Call(handle, own, given, True)
    called.sequences("x", given, x)
    called.state("hx", hDesc, hx, False)
    slopes = _weights(own, dweightSpace, weightSpaceSize, "dweightSpace", True)
    called.arrays |= {"d" + name: array for name, array in slopes.items()}
    called.arrays |= _reserved(own, given, reserveSpace, reserveSpaceSize)
    called.run("bwd_weights", workSpace, workSpaceSize, 1.0 if adds else 0.0)
