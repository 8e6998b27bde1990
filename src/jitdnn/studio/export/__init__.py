"""A trained net taken along: Caffe's files, ONNX, bundles that check themselves, and what answers from one."""
