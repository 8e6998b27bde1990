"""Nets that were made elsewhere, as prototxt with their weights: models of ONNX, programs of torch.export, and code of
Keras or PyTorch that lists layers. Nothing of a file or a text is run."""

from jitdnn.studio.nets.imports.imported import import_code, import_file

__all__ = ["import_code", "import_file"]
