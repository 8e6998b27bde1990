"""ONNX's interface for backends: a model is read once and run as often as wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from jitdnn.errors import DeviceError, InvalidArgument, NotSupported
from jitdnn.frameworks.onnx.bounds import check_bounds, reading
from jitdnn.frameworks.onnx.checking import check, check_covered
from jitdnn.frameworks.onnx.files import Again, read
from jitdnn.frameworks.onnx.graph import Graph, as_values, copied
from jitdnn.frameworks.onnx.inlining import in_place
from jitdnn.frameworks.onnx.operators import OPERATORS
from jitdnn.frameworks.onnx.outside import tensors_of
from jitdnn.graph.engine import Engine, new_shared
from jitdnn.graph.lower.builder import Shared
from jitdnn.graph.originals import Originals


class Prepared(BackendRep):
    """A model that is ready to run, any number of times."""

    def __init__(
        self, graph: Graph, declared: Sequence[onnx.ValueInfoProto] = (), again: Again | None = None,
        kept: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`again`: the file from which constants of these names are read once more where their memory was given
        back."""
        self._graph = graph
        self._shared: Shared | None = None
        self._originals = Originals()
        if again is not None:
            self._originals.add(
                [graph.constants[name] for name in kept], lambda: again.arrays(kept), is_sure=True
            )
        #: what the model says of its inputs
        self.declared = tuple(map(copied, declared))
        #: of the engines that are made from now on
        self.settings: dict[str, Any] = {}
        self._engines: dict[tuple[str, ...], Engine] = {}
        #: the inputs without a value in the model
        self.inputs: tuple[str, ...] = tuple(name for name in graph.inputs if name not in graph.constants)
        self.outputs: tuple[str, ...] = graph.outputs

    def engine(self, names: Iterable[str]) -> Engine:
        """The engine for inputs of these names; of the others the model's own values are constants."""
        given = tuple(name for name in self._graph.inputs if name in names)
        found = self._engines.get(given)
        if found is None:
            graph = self._graph
            constants = {name: value for name, value in graph.constants.items() if name not in given}
            missing = {name: None for name in graph.inputs if name not in given and name not in constants}
            if self._shared is None:
                self._shared = new_shared("device" in self.settings, self._originals)
            found = Engine(
                graph.steps,
                given,
                graph.outputs,
                {**missing, **constants},
                shared=self._shared,
                **self.settings,
            )
            found = self._engines.setdefault(given, found)
        return found

    def named(self, inputs: Any) -> dict[str, Any]:
        """Inputs as arrays by name. Raises InvalidArgument."""
        if isinstance(inputs, Mapping):
            missing = [name for name in self.inputs if name not in inputs]
            unknown = [name for name in inputs if name not in self._graph.inputs]
            if missing or unknown:
                raise InvalidArgument(
                    f"inputs missing: {missing}, unknown: {unknown}; the model takes {list(self.inputs)}"
                )
            return dict(zip(inputs, as_values(inputs.values(), tuple(inputs)), strict=True))
        names = self._graph.inputs if len(inputs) == len(self._graph.inputs) else self.inputs
        return dict(zip(names, as_values(inputs, names), strict=True))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the model's outputs, as NumPy arrays in the model's order.

        `inputs`: arrays in the order of the model's inputs, or a dictionary of them by name. Values that the
        model has as initializers need not be given. Raises InvalidArgument for inputs that are missing or
        unknown, NotSupported where an operator does not cover what it is given.
        """
        if kwargs:
            raise InvalidArgument(f"run takes no options: {sorted(kwargs)} are not known")
        return self.run_named(self.named(inputs))

    def run_named(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The outputs for arrays by name, as `named` gives them. Raises as `run` does."""
        try:
            return tuple(self.engine(given).run(given))
        except DeviceError:
            raise  # of a GPU's memory, which says so itself
        except MemoryError as error:
            raise InvalidArgument(f"the outputs do not fit into memory: {error}") from error


class Backend(OnnxBackend):
    """jitdnn as a backend of ONNX (`onnx.backend.base.Backend`), on the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for "CPU"."""
        return device.split(":")[0] == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True if every operator of the model is covered with the attributes that it has."""
        try:
            cls.prepare(model, device, **kwargs)
        except NotSupported:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | str | PathLike[str], device: str = "CPU", **kwargs: Any
    ) -> Prepared:
        """Return the model, ready to run. With the path of a file, tensors that it keeps in other files of its folder
        are mapped into memory, and must not change as long as the model is used.

        Functions of the model are put in place, and so are operators that ONNX itself defines by others and
        that have no function of their own here. Raises InvalidArgument for a model that is not valid or beyond
        `jitdnn.limits`, or a device that is not "CPU", NotSupported for operators and attributes that are not covered,
        all of them in one message, and for tensors in other files, which `load` reads.
        """
        if kwargs:
            raise InvalidArgument(f"prepare takes no options: {sorted(kwargs)} are not known")
        if not cls.supports_device(device):
            raise InvalidArgument(f'device is {device!r}: this backend runs on "CPU"')
        folder, again = None, None
        if isinstance(model, (str, PathLike)):
            file = Path(model)
            with suppress(OSError):  # which `read` says
                again = Again(file)
            model, folder = read(file), file.absolute().parent
            if again is not None and not again.is_same:
                again = None
        with reading(), tensors_of(folder):
            check_bounds(model, folder is not None)
            check(model, OPERATORS)
            check_covered(model, OPERATORS)
            model = in_place(model, OPERATORS)
            versions = {entry.domain: entry.version for entry in model.opset_import}
            kept = [
                tensor.name
                for tensor in model.graph.initializer
                if tensor.data_location != onnx.TensorProto.EXTERNAL
            ]
            graph = Graph.read(model.graph, versions, OPERATORS)
            return Prepared(graph, model.graph.input, again, kept)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Return the outputs of the model: `prepare` and `run` in one."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of a single node for the inputs that it names, in their order.

        `opset_version` (by keyword): the version of the operator set, the newest known to onnx by default.
        `outputs_info` is not needed. Raises as `prepare` and `Prepared.run` do.
        """
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        if kwargs:
            raise InvalidArgument(f"run_node takes no options but opset_version: {sorted(kwargs)}")
        if not cls.supports_device(device):
            raise InvalidArgument(f'device is {device!r}: this backend runs on "CPU"')
        # every place of an input takes an array of its own, also where the node names one twice
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        for position, name in enumerate(node.input):
            alone.input[position] = name and f"input {position}"
        nothing = onnx.TypeProto()
        graph = onnx.helper.make_graph(
            [alone],
            "node",
            [onnx.helper.make_value_info(name, nothing) for name in alone.input if name],
            [onnx.helper.make_value_info(name, nothing) for name in alone.output if name],
        )
        return Prepared(Graph.read(graph, {"": version, node.domain: version}, OPERATORS)).run(inputs)
