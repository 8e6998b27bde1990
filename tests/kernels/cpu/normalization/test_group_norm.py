"""Group and instance normalization: every algorithm against the definition, that and the functions against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.problems import GroupNorm
from jitdnn.problems.normalization import Normalization
from normalization_cases import check_it, everything, inputs_of, normalization, rearranged
from strategies import normalizations

torch = pytest.importorskip("torch")

KINDS = ["group_norm_fwd", "group_norm_bwd"]

SHAPES = [
    "shape1x1 groups1",
    "shape3x8 groups2",
    "shape3x70 groups7",
    "shape2x6x5 groups3",
    "shape2x6x5 groups3 nhwc",
    "shape2x6x5x7 groups1",
    "shape2x6x5x7 groups1 nhwc",
    "shape2x6x5x7 groups6",  # instance
    "shape2x6x5x7 groups6 nhwc",
    "shape2x66x3x5 groups2 nhwc",
    "shape2x66x3x5 groups33 nhwc",
    "shape2x66x9x9 groups33",
    "shape2x4x3x2x5 groups2",
    "shape2x4x2x2x2x2x2 groups2",
    "shape2x20x3x5 groups4 f64 nhwc",
    "shape2x20x3x5 groups4 f64",
    "shape2x20x3x5 groups4 f16",
    "shape2x20x3x5 groups4 bf16 narrow nhwc",
]

# every shape with some kinds, every kind with some shapes: each pair costs a compilation
TEXTS = [
    f"{kind} {words}"
    for i, words in enumerate(SHAPES)
    for j, kind in enumerate(KINDS)
    if (i + j) % 2 == 0 or i > 12
]

PARTS = [
    "group_norm_fwd no_weight no_bias no_save",
    "group_norm_fwd no_weight",
    "group_norm_fwd no_bias epsilon0.5",
    "group_norm_bwd no_weight no_bias",
    "group_norm_bwd no_weight",
    "group_norm_bwd no_bias",
]

LARGE = ["shape2x4x150x140 groups2", "shape2x64x40x40 groups8 nhwc", "shape40x32x20x20 groups32"]


@pytest.mark.parametrize("text", TEXTS)
def test_awkward_shapes(text: str) -> None:
    check_it(normalization(text))


@pytest.mark.parametrize("kind", PARTS)
def test_parts_may_be_absent(kind: str) -> None:
    check_it(normalization(f"{kind} shape3x6x4x5 groups2"))
    check_it(normalization(f"{kind} shape3x6x4x5 groups6 nhwc"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", LARGE)
def test_large(words: str, kind: str) -> None:
    check_it(normalization(f"{kind} {words}"), scales=((1.0, 0.0),))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check_it(rearranged(normalization(f"{kind} shape3x18x5 groups3"), arrangement))


@pytest.mark.parametrize("kind", KINDS)
def test_between_layouts(kind: str) -> None:
    output = "y" if "fwd" in kind else "dx"
    check_it(normalization(f"{kind} shape2x20x5x6 groups5 nchw {output}=nhwc"))
    check_it(normalization(f"{kind} shape2x20x5x6 groups5 nhwc {output}=nchw"))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check_it(normalization(f"{kind} shape2x10x7x5 groups2"), cpu=cpu, scales=((1.0, 0.0),))


def test_every_algorithm_is_reached() -> None:
    assert unreached([normalization(text) for text in TEXTS]) == set()


@settings(max_examples=examples(30), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(normalizations(kinds=("group",)))
def test_any_group_norm(problem: Normalization) -> None:
    check_it(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize(
    "words", ["shape3x8x5x5 groups2", "shape3x8x5x5 groups2 nhwc", "shape1x4x200x190 groups2"]
)
def test_a_mean_far_from_zero_costs_no_digits(words: str) -> None:
    problem = normalization(f"group_norm_fwd {words}")
    arrays = inputs_of(problem, mean=1000.0)
    arrays[0][:, :, 0] = 0.0
    found = everything(problem, arrays)
    expected = found.pop("reference")
    for name, results in found.items():
        for operand, actual, wanted in zip(problem.outputs, results, expected, strict=True):
            # a mean of 1000 in f32 has its last digit at 6e-5, and y is no more exact than that
            tolerance = 3e-4 if operand.name == "y" else 3e-6
            np.testing.assert_allclose(
                actual, wanted, rtol=3e-6, atol=tolerance, err_msg=f"{name} {operand.name}"
            )


# the definition against PyTorch's


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_definition_is_torchs(groups: int) -> None:
    shape = (4, 6, 3, 5)
    forward = GroupNorm.make("fwd", shape, groups, epsilon=1e-3, dtype="f64")
    arrays = inputs_of(forward)
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    theirs = torch.nn.functional.group_norm(leaves[0], groups, leaves[1], leaves[2], 1e-3)
    y, *saved = forward.reference(*arrays)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    dy = np.random.default_rng(1).standard_normal(shape)
    expected = torch.autograd.grad(theirs, leaves, torch.tensor(dy))
    backward = GroupNorm.make("bwd", shape, groups, dtype="f64")
    for ours, gradient in zip(backward.reference(dy, *arrays[:2], *saved), expected, strict=True):
        np.testing.assert_allclose(ours, gradient.numpy(), rtol=1e-9, atol=1e-11)


# the public functions


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("groups", [3, None])
def test_functions_are_torchs(groups: int | None, is_last: bool, dtype: str) -> None:
    kind = getattr(torch, dtype)
    exact = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(4, 6, 5, 7, generator=generator).to(kind) for _ in range(2))
    if is_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    parameters = [torch.randn(6, generator=generator).to(kind) for _ in range(2)]
    leaves = [t.double().requires_grad_() for t in (x, *parameters)]
    if groups is None:
        theirs = torch.nn.functional.instance_norm(leaves[0], None, None, *leaves[1:], eps=1e-3)
        y, *saved = jd.instance_norm(x, *parameters, epsilon=1e-3, save=True)
        gradients = jd.instance_norm_backward(dy, x, parameters[0], *saved)
    else:
        theirs = torch.nn.functional.group_norm(leaves[0], groups, *leaves[1:], 1e-3)
        y, *saved = jd.group_norm(x, groups, *parameters, epsilon=1e-3, save=True)
        gradients = jd.group_norm_backward(dy, x, parameters[0], *saved, groups=groups)
    assert y.stride() == x.stride()
    assert gradients[0].stride() == x.stride()
    torch.testing.assert_close(y.double(), theirs.detach(), rtol=exact, atol=exact)
    assert [g.dtype for g in gradients] == [kind] * 3
    for ours, wanted in zip(gradients, torch.autograd.grad(theirs, leaves, dy.double()), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=20 * exact, atol=20 * exact)


def test_layout_puts_the_channels_last() -> None:
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((2, 5, 6, 4)).astype(np.float32) for _ in range(2))
    first = [a.transpose(0, 3, 1, 2) for a in (x, dy)]
    y, mean, rstd = jd.group_norm(x, 2, layout="NHWC", save=True)
    np.testing.assert_allclose(y, jd.group_norm(first[0], 2).transpose(0, 2, 3, 1), atol=1e-6)
    assert mean.shape == (2, 2)
    dx, _, _ = jd.group_norm_backward(dy, x, None, mean, rstd, groups=2, layout="NHWC")
    theirs, _, _ = jd.group_norm_backward(first[1], first[0], None, mean, rstd, groups=2)
    np.testing.assert_allclose(dx, theirs.transpose(0, 2, 3, 1), atol=1e-6)


def test_in_place() -> None:
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((4, 6, 9, 9)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(6).astype(np.float32)
    y, mean, rstd = jd.group_norm(x, 2, weight, save=True)
    expected = jd.group_norm_backward(dy, x, weight, mean, rstd, groups=2)
    gradients = jd.group_norm_backward(dy, x, weight, mean, rstd, groups=2, out=(dy, None, None))
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert jd.group_norm(x, 2, weight, out=x) is x
    np.testing.assert_array_equal(x, y)


X, C = np.ones((2, 6, 4), np.float32), np.ones(6, np.float32)
REFUSED = [
    (lambda: jd.group_norm(X, 4), InvalidArgument, "groups is 4: it must divide the 6 channels"),
    (lambda: jd.group_norm(X, "all"), InvalidArgument, "groups is 'all': only integers"),
    (lambda: jd.group_norm(X, 0), InvalidArgument, "groups is 0"),
    (lambda: jd.group_norm(C, 1), InvalidShape, "N, C and at most"),
    (lambda: jd.group_norm(X, 2, C[:2]), InvalidShape, "weight has shape (2,)"),
    (lambda: jd.instance_norm(X[:, :, :0]), InvalidShape, "at least 1"),
    (lambda: jd.group_norm_backward(X, X, C, C, C, groups=2), InvalidShape, "mean has shape (6,)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
