"""Old files become V2: `layers` with enum types (V1) or a `layer` inside (V0), `input:` lines, `solver_type`.

Nothing here builds a net; a NetParameter goes in and an equal or newer one comes out, so that an upgraded
file can be printed. A file that mixes `layer` and `layers` is refused, as in Caffe.
"""

from __future__ import annotations

from jitdnn.caffe import schema
from jitdnn.caffe.schema import LayerParameter, NetParameter, ParamSpec, SolverParameter, V1LayerParameter
from jitdnn.caffe.schema_layers import BlobShape, InputParameter
from jitdnn.caffe.upgrade_v0 import is_v0, upgrade_v0
from jitdnn.errors import InvalidArgument, NotSupported


def upgrade_net(net: NetParameter) -> NetParameter:
    """Return the net in V2 syntax: only `layer`, no `input`. The argument is left as it is.

    Raises InvalidArgument for a net that mixes both syntaxes or whose `input` lines lack their shapes.
    """
    result = net.copy()
    if net.layers:
        if net.layer:
            raise InvalidArgument(
                f"this net mixes layer{net.layer[0].where()} and layers{net.layers[0].where()}: "
                "write all of them in one syntax, best as layer (V2)"
            ).at(net.layer[0].place())
        if is_v0(net):
            net = upgrade_v0(net)
        untyped = [layer for layer in net.layers if layer.type == "NONE"]
        if untyped:
            problems = [
                InvalidArgument(
                    f"layer {layer.name!r}{layer.where()} has no type: add one, as `type: CONVOLUTION`"
                ).at(layer.place())
                for layer in untyped
            ]
            raise InvalidArgument("\n".join(map(str, problems))).of(problems)
        result.layer = [_upgrade_layer(layer) for layer in net.layers]
        result.clear("layers")
    if net.has("input_dim") or net.has("input_shape"):
        if not net.has("input"):
            raise InvalidArgument(
                'input_dim or input_shape stands without an input: name it with `input: "data"`'
            )
        result.layer = [_input_layer(net), *result.layer]
    else:
        _check_inputs_without_shape(net, result)
    for name in ("input", "input_dim", "input_shape"):
        result.clear(name)
    for layer in result.layer:
        if layer.type == "BatchNorm":
            _freeze_statistics(layer)
    return result


def upgrade_solver(solver: SolverParameter, nets: bool = False) -> SolverParameter:
    """Return the solver with `type` in place of `solver_type`; nets inside of it are upgraded only with `nets`."""
    result = solver.copy()
    for field, value in solver.present() if nets else ():
        if field.message is NetParameter:
            newer = [upgrade_net(net) for net in value] if field.is_repeated else upgrade_net(value)
            setattr(result, field.name, newer)
    if solver.has("solver_type"):
        if solver.has("type"):
            raise InvalidArgument(
                f"solver_type{solver.where('solver_type')} and type{solver.where('type')} "
                "both name the solver: keep type"
            ).at(solver.place("solver_type"))
        result.type = schema.V1_SOLVERS[solver.solver_type][1]
        result.clear("solver_type")
    return result


def _upgrade_layer(old: V1LayerParameter) -> LayerParameter:
    new = LayerParameter(type=schema.V1_TYPES[old.type][1])
    new.position = old.position
    new.positions = dict(old.positions)
    twin = old.copy()
    for field, value in twin.present():
        if field.name in LayerParameter.fields and field.name not in ("type", "param"):
            setattr(new, field.name, value)
    if len(old.blobs_lr) != len(old.weight_decay) and old.blobs_lr and old.weight_decay:
        raise InvalidArgument(
            f"layer {old.name!r}{old.where()} has {len(old.blobs_lr)} blobs_lr and {len(old.weight_decay)} "
            "weight_decay: give one of each for every weight"
        ).at(old.place())
    if len(old.blob_share_mode) > len(old.param):
        raise InvalidArgument(
            f"layer {old.name!r}{old.where()}: blob_share_mode needs a param name for each entry"
        ).at(old.place())
    count = max(len(old.param), len(old.blobs_lr), len(old.weight_decay))
    new.param = [_param_spec(old, index) for index in range(count)]
    _move_transform(old, new)
    return new


def _param_spec(old: V1LayerParameter, index: int) -> ParamSpec:
    spec = ParamSpec()
    if index < len(old.param):
        spec.name = old.param[index]
    if index < len(old.blob_share_mode):
        spec.share_mode = old.blob_share_mode[index]
    if index < len(old.blobs_lr):
        spec.lr_mult = old.blobs_lr[index]
    if index < len(old.weight_decay):
        spec.decay_mult = old.weight_decay[index]
    return spec


def _move_transform(old: V1LayerParameter, new: LayerParameter) -> None:
    holder_name = schema.V1_TRANSFORM_HOLDERS.get(old.type)
    if holder_name is None or not new.has(holder_name):
        return
    holder = getattr(new, holder_name)
    for name in schema.V1_TRANSFORM_FIELDS:
        if holder.has(name):
            if not new.has("transform_param"):
                new.transform_param = type(new.transform_param)()
            setattr(new.transform_param, name, getattr(holder, name))
            holder.clear(name)


def _input_layer(net: NetParameter) -> LayerParameter:
    count = len(net.input)
    if net.has("input_shape") and net.has("input_dim"):
        raise InvalidArgument(
            "input_shape and input_dim both give the shapes of the inputs: keep input_shape"
        )
    if net.has("input_dim"):
        if len(net.input_dim) != 4 * count:
            raise InvalidArgument(
                f"{count} inputs need {4 * count} input_dim, four each; there are {len(net.input_dim)}"
            )
        shapes = [BlobShape(dim=net.input_dim[4 * i : 4 * i + 4]) for i in range(count)]
    else:
        if len(net.input_shape) != count:
            raise InvalidArgument(
                f"{count} inputs need {count} input_shape; there are {len(net.input_shape)}"
            )
        shapes = [shape.copy() for shape in net.input_shape]
    layer = LayerParameter(
        name="input", type="Input", top=list(net.input), input_param=InputParameter(shape=shapes)
    )
    layer.position = net.positions.get("input")
    return layer


def _check_inputs_without_shape(net: NetParameter, upgraded: NetParameter) -> None:
    """Inputs without shapes say nothing, as in Caffe, where a layer makes them."""
    made = {name for layer in upgraded.layer for name in layer.top}
    missing = [name for name in net.input if name not in made]
    if missing:
        raise InvalidArgument(
            f"input {', '.join(map(repr, missing))}{net.where('input')} has no shape: give input_shape, "
            "or four input_dim, for each input"
        ).at(net.place("input"))


def _freeze_statistics(layer: LayerParameter) -> None:
    """The three weights of BatchNorm are statistics: no step of a solver may touch them."""
    for spec in layer.param:
        if spec.has("lr_mult") and spec.lr_mult != 0:
            raise NotSupported(
                f"layer {layer.name!r}{layer.where()}: the weights of BatchNorm are statistics, and lr_mult "
                f"{spec.lr_mult:g} would train them: write 0, or no param at all"
            ).at(layer.place())
    layer.param = [ParamSpec(lr_mult=0.0, decay_mult=0.0) for _ in range(3)]
