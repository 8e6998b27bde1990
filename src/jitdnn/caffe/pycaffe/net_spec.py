"""Nets written in Python: NetSpec, `layers` and `params`, as pycaffe has them.

n = NetSpec()
n.data = L.Input(shape=dict(dim=[1, 1, 28, 28]))
n.conv = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=dict(type="xavier"))
n.pool = L.Pooling(n.conv, kernel_size=2, stride=2, pool=P.Pooling.MAX)
text = str(n.to_proto())
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from jitdnn.caffe import schema, schema_layers
from jitdnn.caffe.message import Field, Message
from jitdnn.caffe.schema import LayerParameter, NetParameter
from jitdnn.errors import InvalidArgument


def _messages() -> dict[str, str]:
    """By type of a layer, the field of LayerParameter with its parameters: ConvolutionParameter of Convolution."""
    return {
        field.message.__name__.removesuffix("Parameter"): name
        for name, field in LayerParameter.fields.items()
        if field.message is not None and name.endswith("_param")
    }


_MESSAGES = _messages()


class Top:
    """What a layer makes: number `n` of `fn`."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn, self.n = fn, n

    def to_proto(self) -> NetParameter:
        """The net that makes this top."""
        return to_proto(self)

    def _to_proto(self, made: _Made) -> None:
        self.fn._to_proto(made)


class Function:
    """A layer with its bottoms and fields."""

    def __init__(self, type_name: str, inputs: tuple[Any, ...], params: Mapping[str, Any]) -> None:
        self.type_name = type_name
        for value in inputs:
            if not isinstance(value, Top):
                raise InvalidArgument(
                    f"{type_name} is given {value!r} as a bottom: bottoms are tops of other layers, and fields are "
                    "given by name"
                )
        self.inputs: tuple[Top, ...] = inputs
        self.params = dict(params)
        count = int(self.params.pop("ntop", 1))
        self.in_place = bool(self.params.pop("in_place", False))
        self.tops = tuple(Top(self, number) for number in range(count))

    def _to_proto(self, made: _Made) -> None:
        if self in made.layers:
            return
        bottoms = []
        for top in self.inputs:
            top._to_proto(made)
            bottoms.append(made.layers[top.fn].top[top.n])
        layer = LayerParameter(type=self.type_name, bottom=bottoms)
        layer.top = list(bottoms) if self.in_place else [made.top_name(top) for top in self.tops]
        layer.name = made.name(self)
        for key, value in self.params.items():
            _assign_field(layer, self.type_name, key, value)
        made.layers[self] = layer


class _Made:
    """The layers that are made already, and the names of tops."""

    def __init__(self, names: dict[Top | Function, str]) -> None:
        self.names = names
        self.layers: OrderedDict[Function, LayerParameter] = OrderedDict()
        self._numbers: Counter[str] = Counter()

    def top_name(self, top: Top) -> str:
        return self._named(top, top.fn.type_name)

    def name(self, function: Function) -> str:
        if function not in self.names and function.tops:
            self.names[function] = self.top_name(function.tops[0])
        return self._named(function, function.type_name)

    def _named(self, what: Top | Function, type_name: str) -> str:
        if what not in self.names:
            self._numbers[type_name] += 1
            self.names[what] = f"{type_name}{self._numbers[type_name]}"
        return self.names[what]


def to_proto(*tops: Top) -> NetParameter:
    """The net that makes these tops, names made up; `str` of it is its text."""
    made = _Made({})
    for top in tops:
        top._to_proto(made)
    return NetParameter(layer=list(made.layers.values()))


class NetSpec:
    """Tops by name, assigned as attributes or items; `to_proto` makes a net of them.

    A layer is named after its first top, unless it is given a `name`.
    """

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, Top | Function):
            raise InvalidArgument(
                f"{name} = {value!r}: a top is needed, one; a layer of several gives a tuple of them"
            )
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.tops:
            raise AttributeError(f"there is no top {name!r}: there are {', '.join(self.tops)}")
        return self.tops[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    __delitem__ = __delattr__

    def to_proto(self) -> NetParameter:
        """The net, whose text is `str` of it."""
        made = _Made({top: name for name, top in self.tops.items()})
        for top in self.tops.values():
            top._to_proto(made)
        return NetParameter(layer=list(made.layers.values()))


class Layers:
    """`layers.TYPE(bottoms..., field=value...)` is a layer of that type: its top, or a tuple of `ntop` of them (with
    ntop=0 the layer itself).

    Fields are those of its own message (`kernel_size` of Convolution), of LayerParameter (`loss_weight`, `param`), or
    messages by name (`transform_param=dict(scale=0.5)`). `in_place=True` gives the bottom back.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def layer(*bottoms: Top, **fields: Any) -> Any:
            function = Function(name, bottoms, fields)
            if not function.tops:
                return function
            return function.tops[0] if len(function.tops) == 1 else function.tops

        return layer


class _Values:
    """The values of the enumerations of a message, as attributes."""

    def __init__(self, message: type[Message]) -> None:
        for field in message.fields.values():
            for name, number in field.values.items():
                setattr(self, name, number)


class Parameters:
    """`params.MESSAGE.VALUE` is the number of a value: `params.Pooling.MAX`."""

    def __getattr__(self, name: str) -> _Values:
        for module in (schema_layers, schema):
            message = getattr(module, f"{name}Parameter", None)
            if isinstance(message, type) and issubclass(message, Message):
                return _Values(message)
        raise AttributeError(f"there is no message {name}Parameter")


layers, params = Layers(), Parameters()


def _assign_field(layer: LayerParameter, type_name: str, key: str, value: Any) -> None:
    holder = _MESSAGES.get(type_name)
    if holder is not None and not (key.endswith("param") and key in LayerParameter.fields):
        field = LayerParameter.fields[holder]
        assert field.message is not None, holder
        if key in field.message.fields:
            if not layer.has(holder):
                setattr(layer, holder, field.message())
            _assign(getattr(layer, holder), key, value)
            return
    if key not in LayerParameter.fields:
        raise InvalidArgument(f"a layer of type {type_name} has no field {key!r}")
    _assign(layer, key, value)


def _assign(message: Message, key: str, value: Any) -> None:
    field = type(message).fields.get(key)
    if field is None:
        raise InvalidArgument(f"{type(message).__name__} has no field {key!r}")
    if field.is_repeated:
        values = list(value) if isinstance(value, list | tuple) or hasattr(value, "__array__") else [value]
        setattr(message, key, [_value(field, item) for item in values])
    else:
        setattr(message, key, _value(field, value))


def _value(field: Field[Any], value: Any) -> Any:
    """What the field takes for a value: messages for dicts, names for the numbers of enumerations."""
    if field.message is not None and isinstance(value, Mapping):
        made = field.message()
        for key, item in value.items():
            _assign(made, key, item)
        return made
    if field.kind == "enum" and not isinstance(value, str):
        number = operator.index(value)
        return next((name for name, other in field.values.items() if other == number), value)
    if field.kind == "boolean" and value in (0, 1):
        return bool(value)
    if field.kind == "real" and not isinstance(value, str):
        return float(value)
    if field.kind == "integer" and hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)
    return value
