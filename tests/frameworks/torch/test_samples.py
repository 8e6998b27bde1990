"""PyTorch's own samples of the functions that `use` takes over: results and gradients are those without it."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="the samples that ship with PyTorch import it")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import JitdnnError  # noqa: E402
from jitdnn.frameworks.torch.functional import ROUTES  # noqa: E402
from torch_kernels import watched  # noqa: E402

NAMES = (
    *(
        f"nn.functional.{name}{space}d"
        for space in (1, 2, 3)
        for name in ("conv", "conv_transpose", "max_pool", "avg_pool")
    ),
    *(f"nn.functional.{name}" for name in ("linear", "batch_norm", "layer_norm", "group_norm", "instance_norm")),
    "nn.functional.rms_norm",
    *(f"nn.functional.{name}" for name in ("elu", "gelu", "silu", "mish", "hardswish")),
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
    *(f"nn.functional.{name}" for name in ("cross_entropy", "grid_sample", "scaled_dot_product_attention")),
    *(f"nn.functional.interpolate:{mode}" for mode in ("nearest", "bilinear", "trilinear", "bicubic")),
)  # fmt: skip
TYPES = {torch.float32: (5, 2e-5), torch.float64: (3, 1e-10)}  # samples taken, tolerance
# the gradient of a row of one element is 0, what is left of it is a rounding times 1 / sqrt(epsilon) = 316
COARSE = {("nn.functional.layer_norm", torch.float32): 316 * 2**-21}
ERRORS = {torch.bfloat16: 2**-6, torch.float32: 2e-5, torch.complex64: 2e-5}


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    """PyTorch's table of operators takes seconds to import: not while tests are collected."""
    return importlib.import_module("torch_samples")


def of(samples: ModuleType, name: str) -> Any:
    name, _, variant = name.partition(":")
    return next(info for info in samples.op_db if info.name == name and info.variant_test_name == variant)


def taken(samples: ModuleType, info: Any, dtype: Any, most: int) -> list[Any]:
    """So many samples, evenly taken."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(
            info.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point or dtype.is_complex)
        )
    if len(found) <= most:
        return found
    return [found[number * (len(found) - 1) // (most - 1)] for number in range(most)]


def outcome(samples: ModuleType, info: Any, sample: Any) -> tuple[list[Any], list[Any]]:
    """The results, and the gradients of what has one, on copies of a sample's arguments."""
    arguments = samples.copy_of([sample.input, list(sample.args), dict(sample.kwargs)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = info(arguments[0], *arguments[1], **arguments[2])
    results = [one for one in (result if isinstance(result, tuple) else (result,)) if one is not None]
    given = [one for one in samples.tensors_of(arguments) if one.requires_grad]
    outputs = [one for one in results if one.requires_grad]
    if not given or not outputs:
        return results, []
    generator = torch.Generator().manual_seed(0)
    dy = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outputs]
    return results, list(torch.autograd.grad(outputs, given, dy, allow_unused=True))


@pytest.mark.parametrize("name", NAMES)
def test_samples(samples: ModuleType, name: str) -> None:
    info = of(samples, name)
    ran = 0
    for dtype, (most, tolerance) in TYPES.items():
        coarse = COARSE.get((name, dtype), tolerance)
        for sample in taken(samples, info, dtype, most):
            expected, slopes = outcome(samples, info, sample)
            with watched() as seen, jt.use(measure="never"):
                found, gradients = outcome(samples, info, sample)
            ran += any(kind.decision.is_ours for kind in seen)
            samples.agree(found, expected, tolerance, f"{sample.summary()}: result")
            for one, other in zip(gradients, slopes, strict=True):
                assert (one is None) == (other is None), sample.summary()
                if other is not None:
                    samples.agree(one, other, coarse, f"{sample.summary()}: gradient")
    assert ran >= 2, f"ours ran {ran} times: torch was compared with itself"


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_refuses(samples: ModuleType, name: str) -> None:
    """An error of the same class, by torch: the words may be those of the operator beneath."""
    info = of(samples, name)
    if info.error_inputs_func is None:
        pytest.skip("no samples of errors")
    for wrong in info.error_inputs("cpu"):
        sample = wrong.sample_input
        with jt.use(measure="never"), pytest.raises(wrong.error_type) as error:
            outcome(samples, info, sample)
        assert not isinstance(error.value, JitdnnError)


@pytest.mark.parametrize("name", NAMES)
def test_other_types(samples: ModuleType, name: str) -> None:
    """Half precision by whoever takes it, complex numbers by torch."""
    info = of(samples, name)
    for dtype in (torch.bfloat16, torch.complex64):
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for sample in taken(samples, info, dtype, 3):
            expected, _ = outcome(samples, info, sample)
            with jt.use(measure="never"):
                found, _ = outcome(samples, info, sample)
            # both are rounded once, and may be rounded apart
            tolerance = ERRORS[dtype]
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=tolerance, atol=8 * tolerance, equal_nan=True)


def test_every_route_has_samples() -> None:
    named = {function.__name__ for function in ROUTES}
    known = {name.removeprefix("nn.functional.").partition(":")[0] for name in NAMES}
    # in test_eager.py: some have no samples there, those of adaptive pools have windows of several sizes, torch's own
    adaptive = {f"adaptive_{kind}_pool{space}d" for kind in ("avg", "max") for space in (1, 2, 3)}
    # and torch has no function of these: test_deferred.py, test_batch_norm_activation.py and that of instances
    own = {"batch_norm_activation", "batch_norm_sum_relu", "instance_norm_activation"}
    assert named <= known | adaptive | own | {"_silu", "lstm", "gru", "rnn_tanh", "rnn_relu"}
