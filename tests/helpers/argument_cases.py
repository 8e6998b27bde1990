"""A right call of every public function, and everything that nobody should pass to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch

import jitdnn as jd

AnyArray = np.ndarray[Any, Any]


def reals(*shape: int) -> AnyArray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


class Case(NamedTuple):
    """A function that is called rightly by these arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def case(function: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return Case(function, arguments, options)


X, W, DY = reals(2, 4, 6, 5), reals(4, 2, 3, 3), reals(2, 4, 4, 3)
POOLED = reals(2, 4, 3, 2)
CHANNELS, MEANS = reals(4), reals(4)
GROUPED, ROWS = reals(2, 2), reals(2, 4, 6, 1)
SCORES, CLASSES = reals(3, 5), np.array([0, 4, 2])
LOGITS = np.log(np.full((6, 2, 5), 0.2, np.float32))
LABELS, STEPS, COUNTS = np.array([[1, 2], [3, 3]]), np.array([6, 5]), np.array([2, 1])
Q, LSE = reals(1, 2, 4, 8), reals(1, 2, 4)
FEATURES = reals(1, 4, 16)
SEQUENCE = reals(5, 2, 3)
WEIGHTS = [reals(4, 3), reals(4, 4), reals(4), reals(4)]
LSTM_WEIGHTS = [reals(16, 3), reals(16, 4), reals(16), reals(16)]
GRU_WEIGHTS = [reals(12, 3), reals(12, 4), reals(12), reals(12)]
THETA, GRID = reals(2, 2, 3), reals(2, 4, 3, 2)
INDICES = np.zeros((2, 4, 3, 2), np.int64)
CONV = "conv_fwd n1 c2 h5 w5 k2 r3 s3"

ACTIVATIONS = (
    "clipped_relu elu gelu hard_sigmoid hard_swish identity leaky_relu mish "
    "relu selu sigmoid softplus swish tanh"
)
FUNCTIONS = (
    "absolute arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh erf exp exp2 expm1 floor isfinite isinf "
    "isnan log10 log1p log1pexp log2 normal_cdf normal_tail reciprocal rint rsqrt sign sin sinh sqrt square tan trunc"
)
PAIRS = "arctan2 floor_divide fmod maximum minimum power remainder"


def saved(cell: Callable[..., Any], weights: list[AnyArray]) -> Any:
    return cell(SEQUENCE, weights, training=True)[-1]


def cases() -> dict[str, Case]:
    """By the name of the function."""
    _, mean, rstd = jd.batch_norm(X, CHANNELS, CHANNELS, save=True)
    attended = jd.multi_head_attention(FEATURES, FEATURES, FEATURES, 2, return_saved=True)
    loss, lse, total = jd.cross_entropy(SCORES, CLASSES, return_saved=True)
    kernel = jd.elementwise("x, y: x * y + 1")
    found: dict[str, Case] = {name: case(getattr(jd, name), X) for name in ACTIVATIONS.split()}
    found |= {f"{name}_backward": case(getattr(jd, f"{name}_backward"), X, X) for name in ACTIVATIONS.split()}
    found |= {name: case(getattr(jd, name), 0.5) for name in FUNCTIONS.split()}
    found |= {name: case(getattr(jd, name), 0.5, 0.25) for name in PAIRS.split()}
    found |= {
        "clip": case(jd.clip, 0.5, 0.0, 1.0),
        "fma": case(jd.fma, 0.5, 0.25, 1.0),
        "where": case(jd.where, True, 0.25, 1.0),
        "trace": case(jd.trace, lambda x: x + 1.0),
        "adaptive_avg_pool": case(jd.adaptive_avg_pool, X, 2),
        "adaptive_avg_pool_backward": case(jd.adaptive_avg_pool_backward, POOLED, X.shape),
        "adaptive_max_pool": case(jd.adaptive_max_pool, X, 2),
        "adaptive_max_pool_backward": case(jd.adaptive_max_pool_backward, POOLED, X, POOLED),
        "attention": case(jd.attention, Q, Q, Q),
        "attention_backward": case(jd.attention_backward, Q, Q, Q, Q, Q, LSE),
        "autotune": case(jd.autotune, lambda n: lambda: None, {"n": [1, 2]}, "argument cases", 0.0),
        "chain": case(jd.chain, lambda x: jd.relu(x), threads=1),
        "batch_norm": case(jd.batch_norm, X, CHANNELS, CHANNELS, MEANS.copy(), abs(MEANS)),
        "batch_norm_inference": case(jd.batch_norm_inference, X, CHANNELS, CHANNELS, MEANS, abs(MEANS)),
        "batch_norm_backward": case(jd.batch_norm_backward, X, X, CHANNELS, mean, rstd),
        "conv": case(jd.conv, X, W, CHANNELS, groups=2),
        "conv_backward_bias": case(jd.conv_backward_bias, DY),
        "conv_backward_data": case(jd.conv_backward_data, DY, W, X.shape, groups=2),
        "conv_backward_filter": case(jd.conv_backward_filter, X, DY, W.shape, groups=2),
        "conv_transpose": case(jd.conv_transpose, DY, W, groups=2),
        "Prologue": case(jd.Prologue, CHANNELS, CHANNELS, "relu"),
        "cross_entropy": case(jd.cross_entropy, SCORES, CLASSES, np.ones(5, np.float32)),
        "cross_entropy_backward": case(jd.cross_entropy_backward, loss, SCORES, CLASSES, lse, total),
        "ctc_loss": case(jd.ctc_loss, LOGITS, LABELS, STEPS, COUNTS),
        "ctc_loss_backward": case(
            jd.ctc_loss_backward, np.ones(1, np.float32), LOGITS, LABELS, STEPS, COUNTS
        ),
        "divisive_norm": case(jd.divisive_norm, X),
        "divisive_norm_backward": case(jd.divisive_norm_backward, X, X),
        "dropout": case(jd.dropout, X, 0.5, jd.DropoutState(3)),
        "dropout_backward": case(jd.dropout_backward, X, 0.5, jd.DropoutState(3)),
        "DropoutState": case(jd.DropoutState, 3),
        "DropoutState.from_bytes": case(jd.DropoutState.from_bytes, bytes(jd.DropoutState(3))),
        "elementwise": case(jd.elementwise, "x: x + 1"),
        "a kernel of elementwise": case(kernel, X, 2.0),
        "embedding": case(jd.embedding, CLASSES, SCORES.T.copy()),
        "embedding_backward": case(jd.embedding_backward, SCORES, CLASSES, 5),
        "group_norm": case(jd.group_norm, X, 2, CHANNELS, CHANNELS),
        "group_norm_backward": case(jd.group_norm_backward, X, X, CHANNELS, GROUPED, GROUPED, groups=2),
        "instance_norm": case(jd.instance_norm, X, CHANNELS, CHANNELS),
        "instance_norm_backward": case(jd.instance_norm_backward, X, X, CHANNELS, reals(2, 4), reals(2, 4)),
        "KeptFilter": case(jd.KeptFilter, W),
        "layer_norm": case(jd.layer_norm, X, reals(5), reals(5)),
        "layer_norm_backward": case(jd.layer_norm_backward, X, X, reals(5), ROWS, ROWS),
        "rms_norm": case(jd.rms_norm, X, reals(5)),
        "rms_norm_backward": case(jd.rms_norm_backward, X, X, reals(5), ROWS),
        "lrn": case(jd.lrn, X),
        "lrn_backward": case(jd.lrn_backward, X, X),
        "matmul": case(jd.matmul, SCORES, SCORES.T),
        "module": case(jd.module, "define void @f(ptr %a, i64 %b, i64 %c) { ret void }"),
        "multi_head_attention": case(jd.multi_head_attention, FEATURES, FEATURES, FEATURES, 2),
        "multi_head_attention_backward": case(
            jd.multi_head_attention_backward, FEATURES, FEATURES, FEATURES, FEATURES, attended[1], 2
        ),
        "plan": case(jd.plan, CONV),
        "plan_net": case(jd.plan_net, [CONV, ("second", CONV)]),
        "parse": case(jd.parse, CONV),
        "avg_pool": case(jd.avg_pool, X, 2),
        "avg_pool_backward": case(jd.avg_pool_backward, POOLED, X.shape, 2),
        "global_avg_pool": case(jd.global_avg_pool, X),
        "global_max_pool": case(jd.global_max_pool, X),
        "max_pool": case(jd.max_pool, X, 2),
        "max_pool_backward": case(jd.max_pool_backward, POOLED, X, POOLED, 2),
        "prelu": case(jd.prelu, X, CHANNELS),
        "prelu_backward": case(jd.prelu_backward, X, X, CHANNELS),
        "bernoulli": case(jd.bernoulli, (3, 4), 0.5, jd.DropoutState(3)),
        "normal": case(jd.normal, (3, 4), 0.5, 1.0, jd.DropoutState(3)),
        "uniform": case(jd.uniform, (3, 4), 0.5, 1.0, jd.DropoutState(3)),
        "reduce": case(jd.reduce, X),
        "reduction": case(jd.reduction, "x: x * x"),
        "a kernel of reduction": case(jd.reduction(), X),
        "resize": case(jd.resize, X, 4),
        "resize_backward": case(jd.resize_backward, POOLED, X.shape),
        "rnn": case(jd.rnn, SEQUENCE, WEIGHTS),
        "rnn_backward": case(jd.rnn_backward, reals(5, 2, 4), SEQUENCE, WEIGHTS, saved(jd.rnn, WEIGHTS)),
        "lstm": case(jd.lstm, SEQUENCE, LSTM_WEIGHTS),
        "lstm_backward": case(
            jd.lstm_backward, reals(5, 2, 4), SEQUENCE, LSTM_WEIGHTS, saved(jd.lstm, LSTM_WEIGHTS)
        ),
        "gru": case(jd.gru, SEQUENCE, GRU_WEIGHTS),
        "gru_backward": case(
            jd.gru_backward, reals(5, 2, 4), SEQUENCE, GRU_WEIGHTS, saved(jd.gru, GRU_WEIGHTS)
        ),
        "scan": case(jd.scan, "x: x * x"),
        "a kernel of scan": case(jd.scan(), X),
        "softmax": case(jd.softmax, X),
        "softmax_backward": case(jd.softmax_backward, X, X),
        "affine_grid": case(jd.affine_grid, THETA, (4, 3)),
        "affine_grid_backward": case(jd.affine_grid_backward, GRID),
        "grid_sample": case(jd.grid_sample, X, GRID),
        "grid_sample_backward": case(jd.grid_sample_backward, DY, X, GRID),
        "add": case(jd.add, X, X),
        "fill": case(jd.fill, X.copy(), 2.0),
        "multiply": case(jd.multiply, X, X),
        "op_tensor": case(jd.op_tensor, X, X),
        "scale": case(jd.scale, X.copy(), 2.0),
        "empty": case(jd.empty, (3, 4)),
        "to_device": case(jd.to_device, X),
        "concat": case(jd.concat, [X, X]),
        "fold": case(jd.fold, reals(2, 4, 6, 4), 2),
        "slice": case(jd.slice, X, [0, 1], [2, 3]),
        "split": case(jd.split, X, 2),
        "transform": case(jd.transform, X),
        "unfold": case(jd.unfold, X, 2),
        "tune": case(jd.tune, []),
        "max_unpool": case(jd.max_unpool, POOLED, INDICES, (6, 5)),
        "max_unpool_backward": case(jd.max_unpool_backward, X, INDICES),
        "warm": case(jd.warm, []),
        "Handle": case(jd.Handle),
        "current_handle": case(jd.current_handle),
        "TensorDescriptor": case(jd.TensorDescriptor, (3, 4), (4, 1), "f32"),
        "TensorDescriptor.packed": case(jd.TensorDescriptor.packed, (3, 4), "f32"),
        "TensorDescriptor.broadcast_to": case(
            jd.TensorDescriptor.packed((3, 4), "f32").broadcast_to, (2, 3, 4)
        ),
        "TensorDescriptor.transpose": case(jd.TensorDescriptor.packed((3, 4), "f32").transpose, (1, 0)),
        "TensorDescriptor.insert_axis": case(jd.TensorDescriptor.packed((3, 4), "f32").insert_axis, 1),
        "TensorDescriptor.slice": case(jd.TensorDescriptor.packed((3, 4), "f32").slice, slice(1, 2)),
    }
    return found


class Raises:
    """An object that raises whatever is done with it."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def _fail(self, *arguments: Any) -> Any:
        raise ZeroDivisionError("nobody looks at me")

    __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __bool__ = __repr__ = __str__ = _fail
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __hash__ = __array__ = __call__ = _fail  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = __buffer__ = _fail

    @property
    def shape(self) -> Any:
        raise ZeroDivisionError("nobody looks at me")

    dtype = ndim = __array_interface__ = __dlpack__ = __cuda_array_interface__ = settings = place = shape


class Endless:
    """A sequence without an end, that says that it has two entries."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(1)


class Lies(str):
    """Text that is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def deep_tuple(depth: int) -> tuple[Any, ...]:
    found: tuple[Any, ...] = ()
    for _ in range(depth):
        found = (found,)
    return found


NONSENSE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "7": lambda: 7,
    "2**31 - 1": lambda: 2**31 - 1,
    "2**31": lambda: 2**31,
    "-2**31": lambda: -(2**31),
    "2**40": lambda: 2**40,
    "2**63": lambda: 2**63,
    "-2**63 - 1": lambda: -(2**63) - 1,
    "10**400": lambda: 10**400,
    "10**9": lambda: 10**9,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "1e300": lambda: 1e300,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"),
    "complex": lambda: 1 + 2j,
    "empty text": lambda: "",
    "text": lambda: "nonsense",
    "long text": lambda: "x" * 10**6,
    "digits": lambda: "9" * 5000,
    "text with a zero": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "text that is equal to all": lambda: Lies("nonsense"),
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(16),
    "memoryview": lambda: memoryview(b"abcd"),
    "empty tuple": lambda: (),
    "pair": lambda: (2, 1),
    "list": lambda: [1, 1],
    "list of nothing": lambda: [None, None],
    "ragged": lambda: [[1, 2], [3]],
    "pairs": lambda: [(1, 1), (0, 1)],
    "reals": lambda: (1.5, 2.5),
    "texts": lambda: ("a", "b"),
    "nines": lambda: (1,) * 9,
    "large pair": lambda: (2**31 - 1, 2**31 - 1),
    "huge pair": lambda: (2**46, 2),
    "huge numbers": lambda: [10**400, 10**400],
    "endless": Endless,
    "nested list": lambda: nested(50_000),
    "nested tuple": lambda: deep_tuple(500),
    "recursive": lambda: (lambda each: (each.append(each), each)[1])([]),
    "range": lambda: range(2),
    "huge range": lambda: range(10**12),
    "huger range": lambda: range(10**30),
    "dict": lambda: {1: 2},
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset({1, 2}),
    "generator": lambda: (1 for _ in range(2)),
    "endless generator": lambda: itertools.repeat(1),
    "slice": lambda: slice(1, 2),
    "Ellipsis": lambda: ...,
    "object": object,
    "type": lambda: int,
    "class of array": lambda: np.ndarray,
    "function": lambda: len,
    "lambda": lambda: lambda x: x,
    "module": lambda: jd,
    "exception": lambda: ValueError("no"),
    "int64": lambda: np.int64(1),
    "uint64": lambda: np.uint64(2**64 - 1),
    "float32": lambda: np.float32(0.5),
    "NumPy nan": lambda: np.float64("nan"),
    "bfloat16": lambda: ml_dtypes.bfloat16(1.0),
    "bool_": lambda: np.bool_(True),
    "complex64": lambda: np.complex64(1),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "str_": lambda: np.str_("a"),
    "0-d array": lambda: np.array(1),
    "0-d bool": lambda: np.array(True),
    "0-d text": lambda: np.array("3"),
    "1-d array": lambda: np.array([1, 1]),
    "1 element": lambda: np.array([1]),
    "1 real": lambda: np.array([1.0], np.float32),
    "empty array": lambda: np.zeros(0, np.float32),
    "object array": lambda: np.array([None, {}], object),
    "complex array": lambda: np.zeros((2, 2), np.complex64),
    "structured": lambda: np.zeros(2, [("a", "i4")]),
    "big-endian": lambda: np.zeros((2, 4, 6, 5), ">f4"),
    "2-d array": lambda: np.ones((2, 2), np.int64),
    "broadcast": lambda: np.broadcast_to(np.float32(1), (2, 4, 6, 5)),
    "huge view": lambda: np.broadcast_to(np.float32(1), (2**24, 2**24)),
    "masked": lambda: np.ma.zeros((2, 4, 6, 5), np.float32),
    "int array": lambda: np.ones((2, 4, 6, 5), np.int32),
    "f64": lambda: np.ones((2, 4, 6, 5)),
    "read-only": lambda: np.frombuffer(bytes(2 * 4 * 6 * 5 * 4), np.float32).reshape(2, 4, 6, 5),
    "9-d": lambda: np.zeros((1,) * 9, np.float32),
    "dtype": lambda: np.dtype("float32"),
    "torch scalar": lambda: torch.tensor(1),
    "torch real": lambda: torch.tensor(0.5),
    "torch bool": lambda: torch.tensor(True),
    "torch complex": lambda: torch.tensor(1j),
    "torch pair": lambda: torch.tensor([1, 1]),
    "torch meta": lambda: torch.zeros(2, 4, 6, 5, device="meta"),
    "torch sparse": lambda: torch.zeros(2, 4).to_sparse(),
    "torch dtype": lambda: torch.float32,
    "Size": lambda: torch.Size([1, 1]),
    "raises": Raises,
    "pair that raises": lambda: (Raises(), Raises()),
    "list that raises": lambda: [Raises(), Raises()],
    "arrays": lambda: (np.zeros(2), np.zeros(2)),
    "Nones": lambda: (None, None, None),
    "nested out": lambda: ((None, None), None),
    "handle": jd.Handle,
    "state": lambda: jd.DropoutState(1),
    "descriptor": lambda: jd.TensorDescriptor.packed((2, 4, 6, 5), "f32"),
    "problem": lambda: jd.parse(CONV),
    "traced": lambda: jd.trace(lambda x: x),
}
