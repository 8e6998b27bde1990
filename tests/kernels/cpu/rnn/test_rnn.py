"""Recurrent layers: the definition against PyTorch, the algorithms against the definition, the public functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import jitdnn as jd
from conformance import INSTRUCTION_SETS, check, unreached
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.kernels.cpu.rnn.algorithm import FusedSteps
from jitdnn.kernels.cpu.rnn.launch import launch_of
from jitdnn.kernels.cpu.rnn.plan import TILES_PER_GROUP
from jitdnn.problems import Recurrent, parse
from jitdnn.tensor import numpy_dtype
from strategies import recurrents

DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")

# ---- the definition, and through it the public functions, against PyTorch


def module_of(cell: str, inputs: int, hidden: int, layers: int, dtype: torch.dtype, **options: Any) -> Any:
    torch.manual_seed(0)
    kinds: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    if cell in kinds:
        return kinds[cell](inputs, hidden, layers, **options).to(dtype)
    return torch.nn.RNN(inputs, hidden, layers, nonlinearity=cell, **options).to(dtype)


def both_ways(
    cell: str, sequences: str = "whole", layers: int = 2, proj: int = 0, dtype: torch.dtype = torch.float64,
    algorithm: str | None = "reference", inputs: int = 4, hidden: int = 6, **options: Any,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """(ours, PyTorch's): y, the last states, and the gradients of everything, for sequences of 5, 1 and 3 steps."""
    if proj:
        options["proj_size"] = proj
    module = module_of(cell, inputs, hidden, layers, dtype, **options)
    batch_first, bidirectional = options.get("batch_first", False), options.get("bidirectional", False)
    states = layers * (2 if bidirectional else 1)
    lengths = torch.tensor([5, 3, 1] if sequences == "packed" else [5, 1, 3])
    x = torch.randn(3, 5, inputs, dtype=dtype) if batch_first else torch.randn(5, 3, inputs, dtype=dtype)
    first = [torch.randn(states, 3, proj or hidden, dtype=dtype)]
    if cell == "lstm":
        first.append(torch.randn(states, 3, hidden, dtype=dtype))
    how: dict[str, Any] = {"bidirectional": bidirectional}
    pack = torch.nn.utils.rnn.pack_padded_sequence
    given: Any = x.requires_grad_()
    for state in first:
        state.requires_grad_()
    if sequences == "packed":
        given = pack(x, lengths, batch_first)
        how["batch_sizes"] = given.batch_sizes
    elif sequences == "lengths":
        given = pack(x, lengths, batch_first, enforce_sorted=False)
        how["lengths"] = lengths
    y, last = module(given, tuple(first) if cell == "lstm" else first[0])
    if sequences == "packed":
        x, y = given.data, y.data
    else:
        how["batch_first"] = batch_first
        if sequences == "lengths":
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first, total_length=5)
    results = [y, *(last if cell == "lstm" else (last,))]
    slopes = [torch.randn_like(result) for result in results]
    weights = [weight.detach() for weight in module._flat_weights]
    theirs = [*results, *torch.autograd.grad(results, [x, *first, *module._flat_weights], slopes)]

    how["algorithm"] = algorithm
    x, first = x.detach(), [state.detach() for state in first]
    if cell == "lstm":
        *ours, saved = jd.lstm(x, weights, *first, training=True, **how)
        *back, dweights = jd.lstm_backward(slopes[0], x, weights, saved, *first, *slopes[1:], **how)
    elif cell == "gru":
        *ours, saved = jd.gru(x, weights, *first, training=True, **how)
        *back, dweights = jd.gru_backward(slopes[0], x, weights, saved, *first, *slopes[1:], **how)
    else:
        *ours, saved = jd.rnn(x, weights, first[0], cell, training=True, **how)
        *back, dweights = jd.rnn_backward(slopes[0], x, weights, saved, first[0], slopes[1], cell, **how)
    return [*ours, *back, *dweights], [tensor.detach() for tensor in theirs]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor], bound: float) -> None:
    assert len(ours) == len(theirs)
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.shape == other.shape
        error = float((mine - other).norm() / other.norm())
        assert error <= bound, f"result {number} differs by {error:.2g}"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sequences", ["whole", "lengths", "packed"])
@pytest.mark.parametrize("cell", ["relu", "tanh", "lstm", "gru"])
def test_the_definition_is_pytorchs(cell: str, sequences: str, bidirectional: bool) -> None:
    assert_close(*both_ways(cell, sequences, bidirectional=bidirectional), 1e-12)


@pytest.mark.parametrize(
    ("cell", "sequences", "options"),
    [
        ("lstm", "whole", {"proj": 3, "layers": 3}),
        ("lstm", "lengths", {"proj": 5, "bidirectional": True, "batch_first": True}),
        ("gru", "whole", {"bias": False, "batch_first": True}),
        ("tanh", "packed", {"bias": False, "layers": 1}),
        ("lstm", "lengths", {"bias": False, "layers": 1, "batch_first": True}),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projection_biases_and_batch_first(cell: str, sequences: str, options: dict[str, Any]) -> None:
    assert_close(*both_ways(cell, sequences, **options), 1e-12)


def test_fused_steps_against_pytorch() -> None:
    options = {"bidirectional": True, "inputs": 19, "hidden": 37, "dtype": torch.float32}
    assert_close(*both_ways("lstm", "packed", algorithm="fused_steps", **options), 3e-6)


# ---- every algorithm against the definition


def arrays_for(p: Recurrent, seed: int = 0) -> dict[str, Any]:
    """Random arrays for every input of a problem; what an earlier pass gives is made by that pass."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for operand in p.sources:
        shape = operand.descriptor.shape
        if operand.name in ("saved", "dgates"):
            earlier = p.directed("fwd" if operand.name == "saved" else "bwd_data", is_training=True)
            own = arrays_for(earlier, seed) | found
            names = [source.name for source in earlier.sources]
            results = earlier.reference(*(own[name] for name in names))
            found |= {name: own[name] for name in names if name not in found}
            found[operand.name] = dict(zip((o.name for o in earlier.outputs), results, strict=True))[
                operand.name
            ]
        elif operand.name in found:
            continue
        elif operand.name == "lengths":
            found["lengths"] = lengths_for(p, rng)
        elif operand.name == "state":
            found["state"] = np.array([7, 1, 3, 0])
        elif "weight" in operand.name:
            found[operand.name] = rng.uniform(-1.0, 1.0, shape) / np.sqrt(shape[1])
        else:
            found[operand.name] = rng.standard_normal(shape)
        # what the problem's own type holds, so that an earlier pass sees the same numbers
        if operand.name in found and operand.dtypes is None:
            found[operand.name] = found[operand.name].astype(numpy_dtype(p.dtype)).astype(np.float64)
    return found


def lengths_for(p: Recurrent, rng: np.random.Generator) -> Any:
    if p.sequences == "lengths":
        return rng.permutation(np.resize([p.steps, 0, 1, p.steps - 1], p.batch))
    counts: list[int] = []
    left = p.rows - p.steps
    for t in range(p.steps):
        most = min(left, p.batch - 1 if t == 0 else counts[-1] - 1)
        counts.append(1 + most)
        left -= most
    assert left == 0
    return np.array(counts)


def check_rnn(words: str, **how: Any) -> set[str]:
    p = parse(words)
    assert isinstance(p, Recurrent)
    found = arrays_for(p)
    return check(p, inputs=[found[operand.name] for operand in p.sources], **how)


WORDS = [
    "lstm t3 n75 inputs20 hidden150 layers2 bidirectional proj70 lengths64 f32",
    "lstm t4 n5 inputs70 hidden16 layers2 packed32 rows11 f32",
    "lstm t2 n2 inputs3 hidden5 input_bias batch_major clip_low-0.125 clip_high0.25 zero_states bf16",
    "gru t3 n4 inputs5 hidden17 layers3 bidirectional lengths32 dropout0.25 f32",
    "gru t2 n1 inputs33 hidden70 recurrent_bias f16",
    "tanh t5 n9 inputs8 hidden70 layers2 bidirectional packed64 rows20 f32",
    "relu t1 n1 inputs1 hidden1 no_bias f64",
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("words", WORDS)
def test_awkward_sizes(words: str, direction: str) -> None:
    training = " training" if direction == "fwd" else ""
    assert "fused_steps" in check_rnn(f"rnn_{direction} {words}{training}")


@pytest.mark.parametrize(
    "words",
    [
        "rnn_fwd lstm t3 n3 inputs4 hidden7 layers3 f32",
        "rnn_fwd gru t4 n2 inputs4 hidden7 layers2 lengths64 f32",
        "rnn_bwd_data gru t3 n3 inputs4 hidden7 lengths64 no_final f32",
    ],
)
def test_without_training_and_without_last_gradients(words: str) -> None:
    assert "fused_steps" in check_rnn(words)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrower_instruction_sets(direction: str, cpu: str) -> None:
    training = " training" if direction == "fwd" else ""
    words = f"rnn_{direction} gru t2 n3 inputs5 hidden9 lengths64 f32{training}"
    check_rnn(words, cpu=cpu, threads=(1,))


@pytest.mark.parametrize(
    "words",
    [
        "rnn_fwd gru t4 n3 inputs5 hidden6 f32 hx=s20,1,3 x=s1,40,7 y=s18,-200,3",
        "rnn_bwd_data lstm t4 n3 inputs5 hidden6 f32 dhn=s0,6,1 dx=s7,100,2 dy=s18,-200,3",
        "rnn_fwd tanh t4 n3 inputs5 hidden6 packed64 rows8 f32 x=s-5,1 y=s1,8",
    ],
)
def test_orders_in_memory(words: str) -> None:
    assert "fused_steps" in check_rnn(words)


@pytest.mark.parametrize(
    "words",
    [
        "rnn_fwd lstm t3 n2 inputs5 hidden9 bidirectional both_biases lengths64 f32",
        "rnn_fwd gru t4 n3 inputs4 hidden7 both_biases bf16",
        "rnn_fwd lstm t2 n1 inputs4 hidden20 proj6 training f64",
        # more weights than the L2 cache holds: one direction after the other
        "rnn_fwd lstm t3 n1 inputs3 hidden600 bidirectional f64",
        "rnn_fwd tanh t3 n2 inputs3 hidden1100 layers2 bidirectional f64",
    ],
)
def test_weights_that_the_caller_keeps(words: str) -> None:
    p, device = parse(words), host(1)
    assert isinstance(p, Recurrent)
    launch = launch_of(p, device, is_kept=True)
    assert (launch.kept is not None) == (p.layers == 1)
    assert (("turn", 1) in launch.phases) == (p.hidden >= 600)
    assert "fused_steps" in check_rnn(words)


@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru"])
def test_kept_weights_give_what_the_weights_give(cell: str) -> None:
    rng, gates = np.random.default_rng(0), {"tanh": 1, "lstm": 4, "gru": 3}[cell]
    shapes = [(gates * 7, 5), (gates * 7, 7), (gates * 7,), (gates * 7,)] * 2
    weights = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    layer = {"tanh": jd.rnn, "lstm": jd.lstm, "gru": jd.gru}[cell]
    kept, how, once = jd.KeptFilter(weights), {"bidirectional": True, "algorithm": "fused_steps"}, 0
    for steps in (3, 40):
        x = rng.uniform(-1, 1, (steps, 2, 5)).astype(np.float32)
        for ours, expected in zip(layer(x, kept, **how), layer(x, weights, **how), strict=True):
            np.testing.assert_array_equal(ours, expected)
        once = kept.nbytes if steps == 3 else once
    # prepared once for sequences of any length
    assert kept.nbytes == once >= sum(w.nbytes for w in weights)
    weights[1] *= 2
    kept.update()
    for ours, expected in zip(layer(x, kept, **how), layer(x, weights, **how), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_kept_weights_are_a_list() -> None:
    w = np.ones((4, 28, 7), np.float32)
    with pytest.raises(InvalidType, match="one of a list"):
        jd.lstm(np.ones((2, 1, 7), np.float32), jd.KeptFilter(w))
    with pytest.raises(InvalidType, match="w\\[1\\]"):
        jd.KeptFilter([w, "w"])
    with pytest.raises(InvalidType):
        jd.matmul(w[0], jd.KeptFilter([w]))


def test_weights_in_pieces_are_refused_and_left_to_the_reference() -> None:
    assert check_rnn("rnn_fwd tanh t2 n3 inputs4 hidden5 f32 weight_ih_l0=s1,5") == {"reference"}


def test_every_algorithm_is_reached() -> None:
    problems = [f"rnn_{direction} {WORDS[0]}" for direction in DIRECTIONS] + [
        "rnn_fwd lstm t1 n1 inputs128 hidden32"
    ]
    assert unreached([parse(words) for words in problems]) == set()


def test_shared_steps_pieces_of_panels_and_groups_of_tiles_are_met() -> None:
    """That is what the first of the awkward sizes is for."""
    p, device = parse(f"rnn_fwd {WORDS[0]}"), host(2)
    assert isinstance(p, Recurrent)
    for launch in (launch_of(p, device), launch_of(p.directed("bwd_data"), device)):
        integers = dict(zip(launch.key.slots, launch.integers, strict=True))
        assert dict(launch.phases)["step"] == 2
        assert p.batch > TILES_PER_GROUP * launch.key.step_rows
        assert integers["step.chunk"] < p.size


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_directions_whose_weights_no_cache_holds_together(cell: str, direction: str) -> None:
    """All steps of one run behind those of the other, forward and backward."""
    device = host(2)
    gates, near = 3 if cell == "gru" else 4, device.threads * device.isa.processor.l2(1.0)
    hidden = 3 + math.isqrt(int(near) // (2 * gates * 4))
    training = " training" if direction == "fwd" else ""
    words = (
        f"rnn_{direction} {cell} t3 n4 inputs5 hidden{hidden} layers2 bidirectional lengths32{training} f32"
    )
    problem = parse(words)
    assert isinstance(problem, Recurrent)
    turns = [name for name, _ in launch_of(problem, device).phases].count("turn")
    assert turns == (0 if direction == "bwd_weights" else problem.layers)
    assert "fused_steps" in check_rnn(words)


def test_wrong_lengths_read_and_write_nothing_else() -> None:
    """The public functions refuse such numbers; a kernel that gets them stays inside all the same."""
    for words, numbers in (("lengths64", [9, -3, 2]), ("packed64 rows7", [3, 99, 3, -1])):
        p = parse(f"rnn_fwd lstm t4 n3 inputs5 hidden6 {words} training f32")
        assert isinstance(p, Recurrent)
        arrays = [
            np.array(numbers) if operand.name == "lengths" else np.random.default_rng(0).uniform(-1, 1, shape)
            for operand in p.sources
            for shape in [operand.descriptor.shape]
        ]
        check(p, inputs=arrays)


def test_the_code_does_not_depend_on_steps_batch_and_order() -> None:
    device = host(1)
    one = parse("rnn_fwd lstm t5 n8 inputs4 hidden6 lengths64 f32")
    other = parse("rnn_fwd lstm t50 n16 inputs4 hidden6 lengths64 f32 x=s4,200,1")
    assert isinstance(one, Recurrent)
    assert isinstance(other, Recurrent)
    assert launch_of(one, device).key == launch_of(other, device).key
    assert FusedSteps().refuse(other, device) is None


# ---- strings and shapes


@settings(max_examples=150, deadline=None)
@given(recurrents())
def test_round_trip(p: Recurrent) -> None:
    again = parse(str(p))
    assert again == p
    assert str(again) == str(p)
    assert again.operands == p.operands


def test_canonical_strings() -> None:
    p = Recurrent("fwd", "lstm", 5, 3, 8, 16, 2, True, 4, is_training=True, clip=(-1.0, 2.0), element="f64")
    assert str(p) == (
        "rnn_fwd lstm t5 n3 inputs8 hidden16 layers2 bidirectional proj4 training clip_low-1.0 clip_high2.0 f64"
    )
    assert str(p.directed("bwd_weights")) == (
        "rnn_bwd_weights lstm t5 n3 inputs8 hidden16 layers2 bidirectional proj4 clip_low-1.0 clip_high2.0 f64"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("gru t5 n3 inputs8 hidden16 proj4", InvalidArgument),
        ("lstm t5 n3 inputs8 hidden16 proj16", InvalidArgument),
        ("lstm t0 n3 inputs8 hidden16", InvalidShape),
        ("tanh t5 n3 inputs8 hidden16 clip_low-1 clip_high1", InvalidArgument),
        ("lstm t5 n3 inputs8 hidden16 clip_low0.5 clip_high1", InvalidArgument),
        ("lstm t5 n3 inputs8 hidden16 packed64 rows16", InvalidShape),
        ("lstm t5 n3 inputs8 hidden16 lengths16", InvalidArgument),
        ("lstm t5 n3 inputs8 hidden16 i32", InvalidType),
    ],
)
def test_what_no_recurrent_layer_has(words: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse(f"rnn_fwd {words}")
