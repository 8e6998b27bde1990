"""Problems: what shapes and attributes they refuse, what their constructors take, and how work is counted."""

from __future__ import annotations

import pytest

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Activation, AddTensor, BiasGradient, Convolution, MatMul, Pooling, Softmax, parse
from jitdnn.problems.convolution import transposed_shape
from jitdnn.tensor import TensorDescriptor

CONV = "conv_fwd n1 c4 h5 w5 k6 r3 s3"


# well-formed words that name no operation: the type and the values and constraint in the message
@pytest.mark.parametrize(
    ("text", "error", "parts"),
    [
        (CONV + " pad-1", InvalidArgument, ("padding is -1", "must not be negative")),
        (CONV + " stride0", InvalidArgument, ("stride is 0", "at least 1")),
        (CONV + " dil0", InvalidArgument, ("dilation is 0", "at least 1")),
        (CONV + " g0", InvalidShape, ("groups is 0",)),
        (CONV + " g3", InvalidShape, ("c=4", "groups=3")),
        (CONV + " g4", InvalidShape, ("k=6", "groups=4")),
        (CONV + " x=s1,2,3,4 i32", InvalidType, ("i32", "f32 or f64")),
        ("conv_fwd n1 c4 h5 w0 k6 r3 s3", InvalidShape, ("w is 0",)),
        ("conv_fwd n1 c0 h5 w5 k6 r3 s3", InvalidShape, ("c is 0",)),
        ("conv_fwd n1 c4 h5 w5 k6 r0 s3", InvalidShape, ("r is 0",)),
        ("conv_fwd n-1 c4 h5 w5 k6 r1 s3", InvalidShape, ("-1",)),
        ("conv_fwd n1 c4 h5 w5 k6 r7 s3", InvalidShape, ("covers 7", "r=7", "image has 5", "h=5", "2 more")),
        ("conv_fwd n1 c4 h5 w5 k6 r3 s3 dil3x1", InvalidShape, ("covers 7", "dilation 3", "image has 5")),
        ("conv_fwd n1 c4 h5 w5 k6 r9 s3 pad1x0", InvalidShape, ("covers 9", "image has 7", "padding 1:1")),
        ("conv_fwd n1 c4 h5 w5 k6 r5 s5 stride2 pad0 y=s1,2,3,4", InvalidShape, ()),
        (CONV + " y=s9,0,3,1", InvalidArgument, ("y", "overlap")),
        ("conv_bwd_data n1 c4 h5 w5 k6 r3 s3 x=s100,25,1,1", InvalidArgument, ("dx", "overlap")),
        ("conv_bwd_filter n1 c4 h5 w5 k6 r3 s3 w=s0,9,3,1", InvalidArgument, ("dw", "overlap")),
        ("conv_bwd_data n1 k2 q5 c3 s3 stride2 outpad2", InvalidShape, ("output_padding 2", "stride 2")),
        ("conv_bwd_data n1 k2 q1 c3 s3 pad3", InvalidShape, ("extent -3", "padding 3:3")),
        ("conv_fwd n1 c4 k6", InvalidShape, ("spatial",)),
        ("pool_fwd max n1 c2 w5 window3 pad3", InvalidArgument, ("padding 3:3", "window 3")),
        ("pool_fwd max n1 c2 w5 window7 stride2 pad0", InvalidShape, ("window 7", "w=5", "2 more")),
        ("pool_fwd max n1 c2 w5 window9 stride2 ceil", InvalidShape, ("window 9", "w=5")),
        ("pool_fwd avg n1 c2 w5 window3 stride0", InvalidArgument, ("stride is 0",)),
        ("softmax_fwd shape3x4 axis2", InvalidArgument, ("axis 2", "-2 to 1")),
        ("softmax_fwd shape3x4 axis1x-1", InvalidArgument, ("none twice",)),
        ("add shape2x2x2x2x2x2x2x2x2", InvalidShape, ("1 to 8",)),
        ("add shape3x4 u8", InvalidType, ("u8",)),
        ("copy shape3x4 out=s0,1", InvalidArgument, ("out", "overlap")),
    ],
)
def test_shape_errors(text: str, error: type[Exception], parts: tuple[str, ...]) -> None:
    if not parts:  # the sane neighbour of the rows around it
        assert parse(text)
        return
    with pytest.raises(error) as caught:
        parse(text)
    for part in parts:
        assert part in str(caught.value)


# what only the constructors can be given
@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (
            lambda: Convolution.make("fwd", (1, 64, 5, 5), (8, 48, 3, 3)),
            InvalidShape,
            ("w has 48 input channels", "x has 64", "groups=1", "must be equal"),
        ),
        (
            lambda: Convolution.make("fwd", (1, 64, 5, 5), (8, 48, 3, 3), groups=2),
            InvalidShape,
            ("w must have 32",),
        ),
        (lambda: Convolution.make("fwd", (1, 4, 5, 5), (8, 4, 3)), InvalidShape, ("as many dims",)),
        (lambda: Convolution.make("fwd", (4, 5), (4, 5)), InvalidShape, ("(4, 5)", "1 to 3 spatial")),
        (lambda: Convolution.make("fwd", (1,) * 6, (1,) * 6), InvalidShape, ("1 to 3 spatial",)),
        (
            lambda: Convolution.make("forward", (1, 1, 5), (1, 1, 3)),
            InvalidArgument,
            ("'forward'", "'bwd_data'"),
        ),
        (lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), mode="x"), InvalidArgument, ("mode is 'x'",)),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), stride=1.5),
            InvalidArgument,
            ("integers", "1.5"),
        ),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), stride=(1, 2)),
            InvalidArgument,
            ("2 numbers",),
        ),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), padding=(1, 2)),
            InvalidArgument,
            ("2 entries",),
        ),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), padding=((1, 2, 3),)),
            InvalidArgument,
            ("pair",),
        ),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), (1, 1, 3), padding=(0.5,)),
            InvalidArgument,
            ("integers",),
        ),
        (
            lambda: Convolution.make(
                "fwd", (1, 1, 5), (1, 1, 3), y=TensorDescriptor.packed((1, 1, 4), "f32")
            ),
            InvalidShape,
            ("y has shape (1, 1, 4)", "give (1, 1, 3)"),
        ),
        (
            lambda: Convolution.make(
                "bwd_data", (1, 1, 5), (1, 1, 3), y=TensorDescriptor.packed((1, 1, 4), "f32")
            ),
            InvalidShape,
            ("dy has shape (1, 1, 4)",),
        ),
        (
            lambda: Convolution.make("fwd", (1, 1, 5), TensorDescriptor.packed((1, 1, 3), "f64")),
            InvalidType,
            ("x is f32 and w is f64",),
        ),
        (
            lambda: Convolution.make("fwd", TensorDescriptor((1, 1, 5), (5, 5, 1), "f32", 2), (1, 1, 3)),
            InvalidArgument,
            ("x has offset 2",),
        ),
        (lambda: transposed_shape((1, 3, 4), (2, 1, 3)), InvalidShape, ("dy has 3 channels", "k=2")),
        (lambda: transposed_shape((1, 2, 4), (2, 1, 3), output_padding=-1), InvalidArgument, ("at least 0",)),
        (
            lambda: BiasGradient.make((2, 3), db=TensorDescriptor.packed((2,), "f32")),
            InvalidShape,
            ("db must be (3,)",),
        ),
        (lambda: BiasGradient.make((3,)), InvalidShape, ("(3,)",)),
        (
            lambda: Pooling.make("bwd", "max", (1, 1, 4), 2, dx=TensorDescriptor.packed((1, 1, 5), "f32")),
            InvalidShape,
            ("dx has shape (1, 1, 5)", "x has (1, 1, 4)"),
        ),
        (
            lambda: Pooling.make("fwd", "max", (1, 1, 4), 2, dx=TensorDescriptor.packed((1, 1, 4), "f32")),
            InvalidArgument,
            ("dx is given",),
        ),
        (lambda: Pooling.make("fwd", "min", (1, 1, 4), 2), InvalidArgument, ("'min'", "'max', 'avg'")),
        (lambda: Pooling.make("fwd", "max", (1, 1, 4), 2, rounding="up"), InvalidArgument, ("'caffe'",)),
        (lambda: Softmax.make("fwd", (3,)), InvalidArgument, ("'channel'", "has 1")),
        (lambda: Softmax.make("fwd", (3, 4), axis="space"), InvalidArgument, ("'space'", "'instance'")),
        (lambda: Softmax.make("fwd", (3, 4), axis=()), InvalidArgument, ("at least one",)),
        (lambda: Softmax.make("fwd", (3, 4), algorithm="slow"), InvalidArgument, ("'slow'", "'log'")),
        (lambda: Activation.make("fwd", "relux", (3,)), InvalidArgument, ("'relux'", "'sigmoid'")),
        (lambda: Activation.make("fwd", "relu", (3,), saved="y"), InvalidArgument, ("saved is 'y'",)),
        (
            lambda: Activation.make("fwd", "relu", (3,), y=TensorDescriptor.packed((4,), "f32")),
            InvalidShape,
            ("(4,)", "(3,)"),
        ),
        (lambda: MatMul.make((2, 3), (4, 5)), InvalidShape, ("columns (3)", "rows (4)")),
        (lambda: MatMul.make((2,), (2, 5)), InvalidShape, ("at least 2 dims",)),
        (lambda: MatMul.make((2, 2, 3), (4, 3, 5)), InvalidShape, ("(2,)", "(4,)", "do not broadcast")),
        (
            lambda: MatMul.make((2, 3), (3, 5), c=TensorDescriptor.packed((2, 4), "f32")),
            InvalidShape,
            ("c has shape (2, 4)", "give (2, 5)"),
        ),
        (lambda: AddTensor.make((2, 3), (4, 3)), InvalidShape, ("(2, 3)", "(4, 3)")),
        (lambda: AddTensor.make((2, 3), out=(4, 3)), InvalidShape, ("(4, 3)",)),
    ],
)
def test_constructor_errors(make: object, error: type[Exception], parts: tuple[str, ...]) -> None:
    assert callable(make)
    with pytest.raises(error) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


def test_a_tensor_that_is_no_operand_does_not_tell_problems_apart() -> None:
    odd = TensorDescriptor((1, 2, 4), (99, 9, 2), "f32")
    gradients = {
        "dx": TensorDescriptor.packed((1, 2, 4), "f32"),
        "dy": TensorDescriptor.packed((1, 2, 2), "f32"),
    }
    first = Pooling.make("bwd", "avg", odd, 2, **gradients)
    second = Pooling.make("bwd", "avg", (1, 2, 4), 2, **gradients)
    assert first == second
    assert hash(first) == hash(second)


def test_constructors_take_what_make_takes() -> None:
    made = Convolution.make("fwd", (1, 2, 5, 6), (3, 2, 3, 3), 2, ((1, 0), 1), 1)
    given = Convolution("fwd", made.x, made.w, made.y, 2, [[1, 0], 1], [1, 1])  # type: ignore[arg-type]
    assert given == made
    assert hash(given) == hash(made)
    pooled = Pooling.make("fwd", "max", (1, 2, 5, 6), 3, 2, 1)
    given_pool = Pooling("fwd", "max", pooled.x, pooled.y, [3, 3], 2, 1)  # type: ignore[arg-type]
    assert given_pool == pooled
    assert hash(given_pool) == hash(pooled)


def test_a_shape_beside_a_descriptor_takes_its_dtype() -> None:
    x = TensorDescriptor.packed((1, 2, 5), "f64")
    assert Convolution.make("fwd", x, (3, 2, 3)).dtype == "f64"
    assert Convolution.make_transposed(x, (2, 3, 3)).dtype == "f64"
    assert MatMul.make(x, (5, 4)).dtype == "f64"
    assert AddTensor.make(x, (5,)).dtype == "f64"


def test_gradients_take_the_order_of_their_tensors() -> None:
    x = TensorDescriptor((1, 2, 4), (99, 9, 2), "f32")
    y = TensorDescriptor((1, 2, 2), (1, 1, 2), "f32")
    problem = Pooling("bwd", "max", x, y, (2,), (2,), ((0, 0),))
    assert problem.dx == x
    assert problem.dy == y


def test_sizes_beyond_32_bits() -> None:
    problem = parse("conv_fwd n1024 c512 h1000 w1000 k512 r3 s3 pad1 f32")
    elements = 1024 * 512 * 1000 * 1000
    assert problem.output.size == elements
    assert problem.flops == 2 * elements * 512 * 9
    assert problem.bytes == 4 * (2 * elements + 512 * 512 * 9)
    assert problem.output.strides[0] == 512 * 1000 * 1000
    assert parse(str(problem)) == problem
    assert parse("matmul m65536 k65536 n65536").flops == 2**49
    assert parse("add shape70000x70000 a=s0,1").bytes == 4 * (70000 + 2 * 70000**2)


@pytest.mark.parametrize(
    ("text", "flops", "size"),
    [
        # counted by hand: 2 operations, 2 images, 6 filters, 3x2 outputs, 2 channels a group, 3x3 taps
        ("conv_fwd n2 c4 h5 w4 k6 r3 s3 g2", 2 * 2 * 6 * 3 * 2 * 2 * 9, 4 * (2 * 80 + 6 * 2 * 9 + 2 * 36)),
        (
            "conv_bwd_filter n2 c4 h5 w4 k6 r3 s3 g2",
            2 * 2 * 6 * 3 * 2 * 2 * 9,
            4 * (2 * 80 + 6 * 2 * 9 + 2 * 36),
        ),
        ("conv_bwd_bias n2 k3 q5 f64", 30, 8 * 33),
        ("pool_fwd max n1 c2 h4 w4 window2", 2 * 4 * 4, 4 * (32 + 8)),
        ("matmul m2 k3 n4", 48, 4 * (6 + 12 + 8)),
        ("add shape5x2 a=s0,1", 10, 4 * (2 + 10 + 10)),
        ("conv_fwd n0 c4 h5 w4 k6 r3 s3", 0, 4 * 6 * 4 * 9),
    ],
)
def test_work_is_counted(text: str, flops: int, size: int) -> None:
    problem = parse(text)
    assert problem.flops == flops
    assert problem.bytes == size
