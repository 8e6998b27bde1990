"""Old syntax to new, which layers a state lets in, and where Split layers go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.caffe.prototxt import parse, to_text
from jitdnn.caffe.rules import filter_net, is_met
from jitdnn.caffe.schema import (
    V1_TYPES,
    LayerParameter,
    NetParameter,
    NetState,
    NetStateRule,
    SolverParameter,
)
from jitdnn.caffe.splits import insert_splits
from jitdnn.caffe.upgrade import upgrade_net, upgrade_solver
from jitdnn.errors import InvalidArgument, NotSupported
from paths import SHARED

PROTOTXT = SHARED / "prototxt"
needs_shared = pytest.mark.skipif(
    not PROTOTXT.is_dir(), reason="no folder ../shared/prototxt beside this checkout"
)


def net(text: str) -> NetParameter:
    return parse(text, NetParameter)


def upgraded(text: str) -> str:
    return to_text(upgrade_net(net(text)))


# ---- V1 to V2


def test_v1_layer_by_layer() -> None:
    old = """
        name: "N"
        layers {
          name: "d" type: DATA top: "data"
          data_param { source: "s" batch_size: 2 scale: 0.5 mirror: true crop_size: 3 mean_file: "m" }
          include: { phase: TRAIN }
        }
        layers {
          name: "c" type: CONVOLUTION bottom: "data" top: "c"
          blobs_lr: 1 blobs_lr: 2 weight_decay: 3 weight_decay: 0
          param: "w" blob_share_mode: PERMISSIVE
          convolution_param { num_output: 4 kernel_size: 5 }
        }
        layers { name: "l" type: SOFTMAX_LOSS bottom: "c" bottom: "data" top: "l" loss_weight: 0.25 }
    """
    new = """
        name: "N"
        layer {
          name: "d" type: "Data" top: "data"
          data_param { source: "s" batch_size: 2 }
          transform_param { scale: 0.5 mirror: true crop_size: 3 mean_file: "m" }
          include { phase: TRAIN }
        }
        layer {
          name: "c" type: "Convolution" bottom: "data" top: "c"
          param { name: "w" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 3 }
          param { lr_mult: 2 decay_mult: 0 }
          convolution_param { num_output: 4 kernel_size: 5 }
        }
        layer { name: "l" type: "SoftmaxWithLoss" bottom: "c" bottom: "data" top: "l" loss_weight: 0.25 }
    """
    assert upgrade_net(net(old)) == net(new)


def test_the_original_is_left_alone() -> None:
    old = net('layers { name: "d" type: DATA data_param { scale: 2 } }')
    before = old.copy()
    upgrade_net(old)
    assert old == before


@pytest.mark.parametrize("name", [name for name in V1_TYPES if name != "NONE"])
def test_v1_types_are_v2_types_without_underscores(name: str) -> None:
    layer = upgrade_net(net(f'layers {{ name: "x" type: {name} }}')).layer[0]
    assert layer.type.upper().replace("WITH", "") == name.replace("_", "")


@needs_shared
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v1_legacy/mnist__lenet_train_test.prototxt", "mnist/lenet_train_test.prototxt"),
        ("v1_legacy/cifar10__cifar10_quick_train_test.prototxt", "cifar10/cifar10_quick_train_test.prototxt"),
        ("v1_legacy/bvlc_alexnet__train_val.prototxt", "bvlc_alexnet/train_val.prototxt"),
        (
            "v1_legacy/bvlc_reference_caffenet__train_val.prototxt",
            "bvlc_reference_caffenet/train_val.prototxt",
        ),
    ],
)
def test_caffes_own_v1_files_upgrade_to_its_v2_files(old: str, new: str) -> None:
    """BVLC shipped both; the upgrade must give what Caffe's own gave, field for field."""
    first, second = (
        upgrade_net(net((PROTOTXT / old).read_text())),
        upgrade_net(net((PROTOTXT / new).read_text())),
    )
    assert [_by_name(layer) for layer in first.layer] == [_by_name(layer) for layer in second.layer]


def _by_name(layer: LayerParameter) -> dict[str, object]:
    return {field.name: value for field, value in layer.present()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('layer { name: "a" }\nlayers { name: "b" }', r"mixes layer \(line 1\) and layers \(line 2\)"),
        ('layers { name: "b" }', "'b'.*has no type"),
        (
            'layers { name: "b" type: RELU blobs_lr: 1 weight_decay: 1 weight_decay: 1 }',
            "1 blobs_lr and 2 weight_decay",
        ),
        ('layers { name: "b" type: RELU blob_share_mode: STRICT }', "needs a param name"),
        ("input_dim: 1", "without an input"),
        ('input: "a" input_dim: 1 input_dim: 2', "need 4 input_dim"),
        ('input: "a" input: "b" input_shape { dim: 1 }', "need 2 input_shape"),
        ('input: "a" input_dim: 1 input_shape { dim: 1 }', "keep input_shape"),
    ],
)
def test_what_cannot_be_upgraded(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        upgrade_net(net(text))


def test_inputs_become_a_first_layer() -> None:
    by_dims = upgraded(
        'input: "a" input: "b" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4 '
        'input_dim: 5 input_dim: 6 input_dim: 7 input_dim: 8 layer { name: "x" type: "ReLU" }'
    )
    by_shapes = upgraded(
        'input: "a" input: "b" input_shape { dim: 1 dim: 2 dim: 3 dim: 4 } '
        'input_shape { dim: 5 dim: 6 dim: 7 dim: 8 } layer { name: "x" type: "ReLU" }'
    )
    assert by_dims == by_shapes
    layers = net(by_dims).layer
    assert [(layer.name, layer.type, layer.top) for layer in layers] == [
        ("input", "Input", ["a", "b"]),
        ("x", "ReLU", []),
    ]
    assert [shape.dim for shape in layers[0].input_param.shape] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_batch_norm_is_never_trained() -> None:
    layer = upgrade_net(net('layer { name: "b" type: "BatchNorm" param { lr_mult: 0 } }')).layer[0]
    assert [(spec.lr_mult, spec.decay_mult) for spec in layer.param] == [(0, 0)] * 3
    with pytest.raises(NotSupported, match="lr_mult 1"):
        upgrade_net(net('layer { name: "b" type: "BatchNorm" param { lr_mult: 1 } }'))


def test_solver_types() -> None:
    assert upgrade_solver(parse("solver_type: ADAGRAD", SolverParameter)) == SolverParameter(type="AdaGrad")
    assert upgrade_solver(parse("solver_type: 0", SolverParameter)).type == "SGD"
    assert upgrade_solver(parse("base_lr: 1", SolverParameter)) == SolverParameter(base_lr=1.0)
    with pytest.raises(InvalidArgument, match="keep type"):
        upgrade_solver(parse('solver_type: SGD type: "SGD"', SolverParameter))


# ---- which layers are in

TRAIN = NetState(phase="TRAIN", level=2, stage=["a", "b"])


@pytest.mark.parametrize(
    ("rule", "is_expected"),
    [
        ("", True),
        ("phase: TRAIN", True),
        ("phase: TEST", False),
        ("min_level: 2", True),
        ("min_level: 3", False),
        ("max_level: 2", True),
        ("max_level: 1", False),
        ("min_level: 0 max_level: 5", True),
        ('stage: "a"', True),
        ('stage: "a" stage: "b"', True),
        ('stage: "a" stage: "c"', False),
        ('not_stage: "c"', True),
        ('not_stage: "c" not_stage: "a"', False),
        ('phase: TRAIN stage: "a" not_stage: "c" min_level: 1', True),
        ('phase: TEST stage: "a"', False),
    ],
)
def test_rules(rule: str, is_expected: bool) -> None:
    assert is_met(parse(rule, NetStateRule), TRAIN) is is_expected


@pytest.mark.parametrize(
    ("layer", "is_expected"),
    [
        ("", True),
        ("include { phase: TRAIN }", True),
        ("include { phase: TEST }", False),
        ('include { phase: TEST } include { stage: "a" }', True),
        ("exclude { phase: TRAIN }", False),
        ("exclude { phase: TEST }", True),
        ('exclude { phase: TEST } exclude { stage: "a" }', False),
    ],
)
def test_any_include_keeps_and_any_exclude_drops(layer: str, is_expected: bool) -> None:
    kept = filter_net(net(f'layer {{ name: "x" {layer} }}'), TRAIN).layer
    assert bool(kept) is is_expected


def test_include_and_exclude_together() -> None:
    with pytest.raises(InvalidArgument, match=r"'x'.*include and exclude"):
        filter_net(net('layer { name: "x" include { } exclude { } }'), TRAIN)


@needs_shared
def test_the_stages_of_an_all_in_one_file() -> None:
    definition = net((PROTOTXT / "digits/v3plus_all_in_one/lenet.prototxt").read_text())
    by_stage = {
        stage: [layer.type for layer in filter_net(definition, NetState(stage=[stage])).layer]
        for stage in ("train", "val", "deploy")
    }
    body = [
        "Power",
        "Convolution",
        "Pooling",
        "Convolution",
        "Pooling",
        "InnerProduct",
        "ReLU",
        "InnerProduct",
    ]
    assert by_stage["train"] == ["Data", *body, "SoftmaxWithLoss"]
    assert by_stage["val"] == ["Data", *body, "Accuracy", "SoftmaxWithLoss"]
    assert by_stage["deploy"] == [*body, "Softmax"]


# ---- splits


def test_split_names_are_caffes() -> None:
    result = insert_splits(
        net(
            """layer { name: "in" type: "Input" top: "data" top: "label" }
               layer { name: "ip" bottom: "data" top: "ip" }
               layer { name: "relu" bottom: "ip" top: "ip" }
               layer { name: "acc" bottom: "ip" bottom: "label" top: "acc" }
               layer { name: "loss" bottom: "ip" bottom: "label" top: "loss" }"""
        )
    )
    assert [(layer.name, list(layer.bottom), list(layer.top)) for layer in result.layer] == [
        ("in", [], ["data", "label"]),
        ("label_in_1_split", ["label"], ["label_in_1_split_0", "label_in_1_split_1"]),
        ("ip", ["data"], ["ip"]),
        ("relu", ["ip"], ["ip"]),
        ("ip_relu_0_split", ["ip"], ["ip_relu_0_split_0", "ip_relu_0_split_1"]),
        ("acc", ["ip_relu_0_split_0", "label_in_1_split_0"], ["acc"]),
        ("loss", ["ip_relu_0_split_1", "label_in_1_split_1"], ["loss"]),
    ]


def test_a_loss_weight_moves_to_the_split() -> None:
    result = insert_splits(
        net(
            """layer { name: "in" top: "x" }
               layer { name: "a" bottom: "x" top: "a" loss_weight: 2 }
               layer { name: "b" bottom: "a" top: "b" }"""
        )
    )
    assert [layer.name for layer in result.layer] == ["in", "a", "a_a_0_split", "b"]
    assert [list(layer.loss_weight) for layer in result.layer] == [[], [0], [2, 0], []]
    assert result.layer[3].bottom == ["a_a_0_split_1"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_after_splitting_every_blob_has_one_reader(readers: list[tuple[int, bool]]) -> None:
    text = 'layer { name: "in" top: "b0" top: "b1" top: "b2" top: "b3" }'
    for index, (bottom, is_in_place) in enumerate(readers):
        top = f"b{bottom}" if is_in_place else f"t{index}"
        text += f'layer {{ name: "l{index}" bottom: "b{bottom}" top: "{top}" }}'
    made: set[str] = set()
    for layer in insert_splits(net(text)).layer:
        for name in layer.bottom:
            assert name in made
            made.remove(name)
        made.update(layer.top)


def test_unknown_bottoms() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'b' \(line 2\).*no layer before it has a top 'x'; there are a"
    ):
        insert_splits(net('layer { name: "a" top: "a" }\nlayer { name: "b" bottom: "x" }'))
    with pytest.raises(InvalidArgument, match="'MyData' is the name of a layer, whose first top is 'data'"):
        insert_splits(net('layer { name: "MyData" top: "data" }\nlayer { name: "b" bottom: "MyData" }'))
