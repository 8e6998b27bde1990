"""How Inductor's code calls our convolutions of static shapes: a plain function, into memory that Inductor gives.

A call through PyTorch's dispatcher into Python takes 13 us more than the launch behind it, and what it returns is
memory that Inductor neither plans nor uses again. So the operators are lowered as Inductor lowers matrix products: to a
call of a function that is known to its code by name, `extern_kernels.NAME(..., out=buf)`. All this is private to
PyTorch. Where it is not as expected, and where C++ is generated, which calls no Python, the operators stay.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from jitdnn.frameworks.torch import channel_sums, channel_values, convolution_sums, settled, settled_pointwise
from jitdnn.frameworks.torch.concatenation import cat_in_place, interleave, places_of, stored
from jitdnn.frameworks.torch.convolution_pointwise import convolution_pointwise
from jitdnn.frameworks.torch.fresh import fresh
from jitdnn.frameworks.torch.inductor_forms import has_static_form
from jitdnn.frameworks.torch.inductor_groups import cast_each
from jitdnn.frameworks.torch.settled import settled_convolution


class _Expression(str):
    """An argument of a call in Inductor's code, which writes the representations of constants."""

    __slots__ = ()
    __repr__ = str.__str__


_NAMES = _Expression("globals()")
#: whether Inductor's code calls these functions; None while that is not known
_is_known: bool | None = None
#: whether Inductor makes one kernel of `cast_each`
can_group = False
#: whether Inductor computes parts of `cat_in_place` where they belong
can_concatenate = False


def register() -> None:
    """Make the functions known to the code that Inductor generates, or has kept, and the lowering to Inductor; once.

    Where this PyTorch lacks something nothing happens: Inductor calls the operator then.
    """
    global _is_known
    if _is_known is not None:
        return
    _is_known = False
    try:
        from torch._inductor import ir
        from torch._inductor.lowering import (
            constrain_to_fx_strides,
            empty_strided,
            fallback_handler,
            register_lowering,
        )
        from torch._inductor.select_algorithm import extern_kernels

        needed = (
            ir.ExternKernelOut,
            ir.FixedLayout,
            ir.TensorBox.create,
            ir.ExternKernel.require_exact_strides,
            ir.ExternKernel.get_outputs,
            ir.MutationOutput,
            ir.NoneLayout,
            empty_strided,
        )
    except (ImportError, AttributeError):
        return
    assert needed
    extern_kernels.jitdnn_convolution = settled.shortest(settled.launch)
    extern_kernels.jitdnn_convolution_with_bias = settled.shortest(settled.launch_with_bias)
    extern_kernels.jitdnn_convolution_pointwise = settled_pointwise.launch
    extern_kernels.jitdnn_channel_sums = channel_sums.launch
    extern_kernels.jitdnn_channel_values = channel_values.launch
    extern_kernels.jitdnn_convolution_sums = convolution_sums.launch
    plain, fused, sums, values, both = (
        fallback_handler(one.default, add_to_fallback_set=False)
        for one in (
            settled_convolution,
            convolution_pointwise,
            channel_sums.channel_sums,
            channel_values.channel_values,
            convolution_sums.convolution_sums,
        )
    )

    @register_lowering(settled_convolution.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower(a: Any, b: Any, bias: Any, text: str) -> Any:
        forms = settled.forms_of_operands(text)
        strides = [form[1] for form in forms]
        operands = _laid([a, b], strides) if bias is None else _laid([a, b, bias], [*strides, (1,)])
        if not _generates_python():
            return plain(*operands[:2], None if bias is None else operands[2], text)
        name = "jitdnn_convolution" if bias is None else "jitdnn_convolution_with_bias"
        return _called(name, operands, text, settled.form_of_result(text))

    @register_lowering(convolution_pointwise.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_pointwise(*given: Any, **named: Any) -> Any:
        node = _graph().current_node
        x, w, operands, *arguments = node.args
        values = [one.meta["val"] for one in (x, w, *operands)]
        if named or len(arguments) != 7 or not all(map(has_static_form, values)):
            given, named = constrain_to_fx_strides(node, *given, **named)
            return fused(*given, **named)
        laid = _laid([*given[:2], *given[2]], [value.stride() for value in values])
        if not _generates_python():
            return fused(*laid[:2], laid[2:], *given[3:])
        text = settled_pointwise.text_of(values, arguments)
        return _called("jitdnn_convolution_pointwise", laid, text, settled_pointwise.form_of_result(text))

    @register_lowering(channel_sums.channel_sums.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_sums(operands: Sequence[Any], text: str) -> Any:
        laid = _laid(operands, [strides for _, strides, _ in channel_sums.Sums.of(text).forms])
        if not _generates_python():
            return sums(laid, text)
        return _called("jitdnn_channel_sums", laid, text, channel_sums.form_of_result(text))

    @register_lowering(channel_values.channel_values.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_values(operands: Sequence[Any], text: str) -> Any:
        laid = _laid(operands, [strides for _, strides, _ in channel_values.Values.of(text).forms])
        if not _generates_python():
            return values(laid, text)
        return _called("jitdnn_channel_values", laid, text, channel_values.form_of_result(text))

    @register_lowering(convolution_sums.convolution_sums.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_both(a: Any, w: Any, operands: Sequence[Any], text: str) -> Any:
        summed = convolution_sums.Summed.of(text)
        laid = _laid([a, w, *operands], [form[1] for form in summed.forms])
        if not _generates_python():
            return both(*laid[:2], laid[2:], text)
        return _called("jitdnn_convolution_sums", laid, text, summed.y, [summed.form])

    _is_known = True
    _register_groups()
    _register_concatenations()


def _register_concatenations() -> None:
    """Lower concatenations to memory of which their parts are views, as Inductor lowers `torch.cat`."""
    global can_concatenate
    try:
        from torch._inductor import ir
        from torch._inductor.lowering import register_lowering

        needed = (
            ir.ConcatKernel.realize_into,
            ir.SliceView.create,
            ir.FixedLayout,
            ir.ReinterpretView,
            ir.StorageBox,
        )
    except (ImportError, AttributeError):
        return
    assert needed

    def put(parts: Sequence[Any], places: Sequence[Callable[[Any], Any]], shape: Any, strides: Any) -> Any:
        graph, first = _graph(), parts[0]
        layout = ir.FixedLayout(first.get_device(), first.get_dtype(), list(shape), list(strides))
        whole = ir.ConcatKernel(name=None, layout=layout, inputs=[])
        box = ir.StorageBox(whole)
        written = []
        for one, place_in in zip(parts, places, strict=True):
            place = place_in(box)
            written.append(_by_call(one, place) or ir.ConcatKernel.realize_into(one, place))
        whole.name = graph.register_buffer(whole)
        whole.inputs = ir.ConcatKernel.unwrap_storage(written)
        graph.register_operation(whole)
        return ir.TensorBox(box)

    @register_lowering(cat_in_place.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower(parts: Sequence[Any], dim: int, strides: Sequence[int]) -> Any:
        shape = list(parts[0].get_size())
        ends = list(accumulate(one.get_size()[dim] for one in parts))
        shape[dim] = ends[-1]
        places = [
            partial(ir.SliceView.create, dim=dim, start=begin, end=end, clamp=False)
            for begin, end in pairwise([0, *ends])
        ]
        return put(parts, places, shape, strides)

    @register_lowering(interleave.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_interleaved(parts: Sequence[Any], windows: Sequence[int], strides: Sequence[int]) -> Any:
        batch, channels, *space = parts[0].get_size()
        shape = [batch, channels, *(size * of for size, of in zip(space, windows, strict=True))]
        steps = [*strides[:2], *(step * of for step, of in zip(strides[2:], windows, strict=True))]

        def place_in(box: Any, offset: int) -> Any:
            own = ir.FixedLayout(
                parts[0].get_device(), parts[0].get_dtype(), [batch, channels, *space], steps, offset=offset
            )
            return ir.ReinterpretView(data=box, layout=own)

        offsets = [sum(map(operator.mul, place, strides[2:])) for place in places_of(windows)]
        return put(parts, [partial(place_in, offset=one) for one in offsets], shape, strides)

    @register_lowering(stored.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower_stored(x: Any) -> Any:
        x.realize()
        return x

    can_concatenate = True


def _register_groups() -> None:
    """Lower casts of a list to a horizontal fusion, as Inductor lowers `torch._foreach_add`."""
    global can_group
    try:
        from torch._inductor.codegen.common import BackendFeature
        from torch._inductor.graph import GraphLowering
        from torch._inductor.lowering import register_lowering, to_dtype

        needed = (BackendFeature.FOREACH, GraphLowering.has_feature, GraphLowering.register_operation_list)
    except (ImportError, AttributeError):
        return
    assert needed

    @register_lowering(cast_each.default, type_promotion_kind=None)  # type: ignore[untyped-decorator]
    def lower(xs: Sequence[Any], dtype: Any) -> list[Any]:
        made, graph = [to_dtype(x, dtype, copy=True) for x in xs], _graph()
        if graph.has_feature(xs[0].get_device(), BackendFeature.FOREACH):
            for one in made:
                one.realize()
            graph.register_operation_list([one.get_operation_name() for one in made])
        return made

    can_group = True


def call(a: Tensor, b: Tensor, bias: Tensor | None, text: str) -> Callable[[], Any]:
    """A call as the code of a graph makes it, to measure."""
    if not _is_known:
        return lambda: settled_convolution.default(a, b, bias, text)
    launch = settled.shortest(settled.launch if bias is None else settled.launch_with_bias)
    operands = (a, b) if bias is None else (a, b, bias)
    return _launched(launch, operands, text, settled.form_of_result(text))


def pointwise_call(
    x: Tensor, w: Tensor, operands: Sequence[Tensor], arguments: Sequence[Any]
) -> Callable[[], Any]:
    """The same of a convolution and what follows; `arguments` of the operator behind its operands."""
    if not _is_known:
        return lambda: convolution_pointwise.default(x, w, operands, *arguments)
    text = settled_pointwise.text_of((x, w, *operands), arguments)
    return _launched(
        settled_pointwise.launch, (x, w, *operands), text, settled_pointwise.form_of_result(text)
    )


def sums_call(operands: Sequence[Tensor], text: str) -> Callable[[], Any]:
    """The same of sums over the pixels of channels."""
    if not _is_known:
        return lambda: channel_sums.channel_sums.default(operands, text)
    return _launched(channel_sums.launch, operands, text, channel_sums.form_of_result(text))


def values_call(operands: Sequence[Tensor], text: str) -> Callable[[], Any]:
    """The same of values with numbers of channels."""
    if not _is_known:
        return lambda: channel_values.channel_values.default(operands, text)
    return _launched(channel_values.launch, operands, text, channel_values.form_of_result(text))


def convolution_sums_call(a: Tensor, w: Tensor, operands: Sequence[Tensor], text: str) -> Callable[[], Any]:
    """The same of a convolution and sums of its results."""
    if not _is_known:
        return lambda: convolution_sums.convolution_sums.default(a, w, operands, text)
    summed = convolution_sums.Summed.of(text)
    return _launched(convolution_sums.launch, (a, w, *operands), text, summed.y, [summed.form])


def _launched(
    launch: Callable[..., None],
    operands: Sequence[Tensor],
    text: str,
    result: settled.Form,
    others: Sequence[settled.Form] = (),
) -> Callable[[], Any]:
    """What allocates the result, and what is written beside it, and launches."""
    device = operands[0].device
    made, beside = fresh(*result, device), [fresh(*form, device) for form in others]

    def run() -> Any:
        y, behind = made(), [one() for one in beside]
        launch(*operands, *behind, text, None, out=y)
        return (y, *behind) if behind else y

    return run


def _by_call(one: Any, place: Any) -> Any:
    """The buffer of a part that a call gives in the strides of its place, put there; None for other parts."""
    from torch._inductor import ir

    buffer = getattr(getattr(one, "data", None), "data", None)
    if not isinstance(buffer, ir.ExternKernelOut) or not isinstance(buffer.layout, ir.FixedLayout):
        return None
    if list(buffer.layout.stride) != list(place.get_stride()) or not isinstance(place, ir.ReinterpretView):
        return None
    buffer.layout = ir.NonOwningLayout(place)
    return buffer


def _graph() -> Any:
    from torch._inductor.virtualized import V

    return V.graph


def _generates_python() -> bool:
    graph = _graph()
    return not (graph.cpp_wrapper or getattr(graph, "fx_wrapper", False) or graph.aot_mode)


def _laid(operands: Sequence[Any], strides: Sequence[Sequence[int]]) -> list[Any]:
    """Values of Inductor's graph as they are to lie in memory."""
    from torch._inductor import ir

    exact = ir.ExternKernel.require_exact_strides
    return [exact(one, list(own)) for one, own in zip(operands, strides, strict=True)]


def _called(
    name: str, operands: Sequence[Any], text: str, result: settled.Form, others: Sequence[settled.Form] = ()
) -> Any:
    """The node of Inductor's graph for a call of a function; with the forms of `others`, nodes of all its results.

    Inductor has calls with one result. What is written beside it is memory that Inductor allocates before the call,
    which is given it behind the operands and changes it.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import empty_strided

    shape, strides, dtype = result
    device = operands[0].get_device()
    layout = ir.FixedLayout(device, dtype, list(shape), list(strides))
    beside = [empty_strided(list(own), list(steps), dtype=of, device=device) for own, steps, of in others]
    real = [ir.ExternKernel.realize_input(one) for one in (*operands, *beside)]
    made = _with_others() if beside else ir.ExternKernelOut
    node = made(layout, real, (text, _NAMES), python_kernel_name=f"extern_kernels.{name}")
    node.mutation_outputs = [ir.MutationOutput(ir.NoneLayout(device=device), one, node) for one in beside]
    box = ir.TensorBox.create(node)
    return (box, *beside) if beside else box


@cache
def _with_others() -> Any:
    from torch._inductor import ir

    class WithOthers(ir.ExternKernelOut):
        """A call that writes more than its result, which may be all that is read: Inductor allocates no result then."""

        def codegen(self, wrapper: Any) -> None:
            removed = _graph().removed_buffers
            if self.get_name() in removed:
                removed.discard(self.get_name())
                wrapper.codegen_allocation(self)
            super().codegen(wrapper)

    return WithOthers
