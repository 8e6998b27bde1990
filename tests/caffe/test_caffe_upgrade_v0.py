"""The syntax of 2013: every field to its place, padding folded, and nets that run."""

from __future__ import annotations

import numpy as np
import pytest

from jitdnn.caffe import load_net
from jitdnn.caffe.prototxt import parse, to_text
from jitdnn.caffe.schema import V1_TYPES, NetParameter, V1LayerParameter
from jitdnn.caffe.schema_v0 import V0LayerParameter
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.caffe.upgrade_v0 import _PLACES, V0_TYPES, upgrade_v0
from jitdnn.errors import InvalidArgument


def net(text: str) -> NetParameter:
    return parse(text, NetParameter)


# the beginning of an ImageNet net as it was written in 2013, with a layer of every kind that has fields
OLD = """
name: "old"
layers {
  layer {
    name: "data" type: "data" source: "train_leveldb" meanfile: "mean.binaryproto" batchsize: 256 cropsize: 227
    mirror: true scale: 0.5 rand_skip: 3
  }
  top: "data" top: "label"
}
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "data" top: "pad1" }
layers {
  layer {
    name: "conv1" type: "conv" num_output: 96 kernelsize: 11 stride: 4 group: 2 biasterm: false
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 1 }
    blobs_lr: 1. blobs_lr: 2. weight_decay: 1. weight_decay: 0.
  }
  bottom: "pad1" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 pad: 1 } bottom: "conv1" top: "pool1" }
layers { layer { name: "norm1" type: "lrn" local_size: 7 alpha: 0.0001 beta: 0.5 k: 2 } bottom: "pool1" top: "norm1" }
layers { layer { name: "cat" type: "concat" concat_dim: 0 } bottom: "norm1" top: "cat" }
layers { layer { name: "fc" type: "innerproduct" num_output: 10 biasterm: true weight_filler { type: "xavier" } }
         bottom: "cat" top: "fc" }
layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.25 } bottom: "fc" top: "fc" }
layers { layer { name: "loss" type: "softmax_loss" } bottom: "fc" bottom: "label" }
"""
NEW = """
name: "old"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.5 mirror: true crop_size: 227 mean_file: "mean.binaryproto" }
  data_param { source: "train_leveldb" batch_size: 256 rand_skip: 3 }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param {
    num_output: 96 bias_term: false pad: 2 kernel_size: 11 group: 2 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 1 }
  }
}
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }
}
layer {
  name: "norm1" type: "LRN" bottom: "pool1" top: "norm1" lrn_param { local_size: 7 alpha: 0.0001 beta: 0.5 k: 2 }
}
layer { name: "cat" type: "Concat" bottom: "norm1" top: "cat" concat_param { concat_dim: 0 } }
layer {
  name: "fc" type: "InnerProduct" bottom: "cat" top: "fc"
  inner_product_param { num_output: 10 bias_term: true weight_filler { type: "xavier" } }
}
layer { name: "drop" type: "Dropout" bottom: "fc" top: "fc" dropout_param { dropout_ratio: 0.25 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" }
"""


def test_layer_by_layer() -> None:
    old = net(OLD)
    before = old.copy()
    assert upgrade_net(old) == net(NEW)
    assert old == before
    assert net(to_text(old)) == old


@pytest.mark.parametrize("kind", V0_TYPES)
def test_every_type_with_every_field_that_it_may_have(kind: str) -> None:
    """Values go where the tables say, and come back from the printed text; defaults are alike there."""
    names = [name for name, places in _PLACES.items() if kind in places]
    values = {}
    for name in names:
        field = V0LayerParameter.fields[name]
        if field.message is not None:
            values[name] = field.message()
        else:
            values[name] = {"boolean": True, "string": "s", "enum": "AVE"}.get(field.kind, 3)
    old = V1LayerParameter(layer=V0LayerParameter(name="l", type=kind, **values), bottom=["b"], top=["t"])
    new = upgrade_net(NetParameter(layers=[old])).layer[0]
    assert (new.name, new.type, new.bottom, new.top) == ("l", V1_TYPES[V0_TYPES[kind]][1], ["b"], ["t"])
    for name in names:
        holder_name, new_name = _PLACES[name][kind]
        holder = getattr(new, holder_name) if holder_name else new
        assert getattr(holder, new_name) in (values[name], [values[name]])
        default = V0LayerParameter.fields[name].default
        if default and not holder.fields[new_name].is_repeated and new_name != "concat_dim":
            assert holder.fields[new_name].default == default
    assert net(to_text(NetParameter(layer=[new]))) == NetParameter(layer=[new])


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            'name: "a" type: "convolution"',
            r"'a' \(line 1\) has the type 'convolution', .* did you mean 'conv'",
        ),
        ('name: "a" type: "softmaxloss"', "did you mean 'softmax_loss'"),
        ('name: "a" type: "qqqq"', "there are accuracy, bnll, .*window_data, padding"),
        ('name: "a"', "has no type"),
        ('name: "a" type: "relu" num_output: 3', r"type 'relu' has no num_output \(line 1\): take it out"),
        ('name: "a" type: "data" new_num: 3', "has no new_num"),
        ('name: "a" type: "pool" group: 3', "has no group"),
    ],
)
def test_what_cannot_be_upgraded(layer: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        upgrade_net(net(f"layers {{ layer {{ {layer} }} }}"))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidArgument, match=r"(?s)line 1.*'cov'.*\n.*line 2.*has no pad"):
        upgrade_net(
            net(
                'layers { layer { name: "a" type: "cov" } }\nlayers { layer { name: "b" type: "lrn" pad: 1 } }'
            )
        )


PAD = 'layers { layer { name: "p" type: "padding" pad: 3 } bottom: "x" top: "p" }\n'


def test_padding_goes_to_all_that_read_it() -> None:
    text = PAD + "".join(
        f'layers {{ layer {{ name: "{name}" type: "{kind}" kernelsize: 7 pad: 9 }} bottom: "p" top: "{name}" }}'
        for name, kind in (("c", "conv"), ("d", "pool"))
    )
    first, second = upgrade_v0(net(text)).layers
    assert (first.bottom, first.convolution_param.pad) == (["x"], [3])
    assert (second.bottom, second.pooling_param.pad) == (["x"], 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            PAD + 'layers { layer { name: "r" type: "relu" } bottom: "p" }',
            r"'p' \(line 1\).*'r' \(line 2\) is 'relu'",
        ),
        (PAD + 'layers { layer { name: "c" type: "conv" } bottom: "p" bottom: "x" }', "with one bottom"),
        (PAD + 'layers { name: "c" type: CONVOLUTION bottom: "p" }', "is 'CONVOLUTION'"),
        ('layers { layer { name: "p" type: "padding" } top: "p" }', "one bottom and one top"),
    ],
)
def test_padding_that_nothing_takes(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        upgrade_net(net(text))


def test_a_net_of_2013_runs() -> None:
    """A net with padding, against the same net in V2."""
    old = """
      input: "data" input_dim: 2 input_dim: 3 input_dim: 9 input_dim: 9
      layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "pad" }
      layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 stride: 2
                       weight_filler { type: "gaussian" std: 0.1 } } bottom: "pad" top: "conv" }
      layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
      layers { layer { name: "prob" type: "softmax" } bottom: "conv" top: "prob" }
    """
    new = """
      input: "data" input_shape { dim: 2 dim: 3 dim: 9 dim: 9 }
      layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
              convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1
                                  weight_filler { type: "gaussian" std: 0.1 } } }
      layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
      layer { name: "prob" type: "Softmax" bottom: "conv" top: "prob" }
    """
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9))
    found, expected = (load_net(text, seed=1).forward(data=x)["prob"] for text in (old, new))
    assert found.shape == (2, 4, 5, 5)
    np.testing.assert_array_equal(found, expected)
