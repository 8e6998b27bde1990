"""One formula over many lists of arrays at once, in one launch on a GPU (multi-tensor apply, PyTorch's foreach):
small arrays cost what they have to move, and not a launch each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.handle import Handle, settled_handle
from jitdnn.kernels.tables import multi_tensor_kernel
from jitdnn.ops.elementwise import ElementwiseKernel
from jitdnn.ops.gpu_call import GpuCall
from jitdnn.ops.to_device import number_on
from jitdnn.ops.user_kernel import Formulas, computing_dtype
from jitdnn.retention import Recent
from jitdnn.rtcg.formulas import formula
from jitdnn.tensor import DeviceArray, TensorDescriptor, borrow, numpy_dtype, packed_strides

Row = tuple[Sequence[Any], Sequence[Any]]
"""The inputs of the formula and its outputs: arrays of one axis and one length, and numbers."""

_TABLES = 64  # that one formula keeps on the devices


class MultiTensor:
    """A formula over rows of arrays.

    `numbers` names the inputs that are one number in each row: one of Python's, or an array of one element on the
    device, which is read when the kernel runs. The other inputs and the outputs of a row are arrays of one axis, packed
    and of one length; they have the same dtypes in all rows. Outputs may be inputs of their own row; what one row
    writes no other one may read or write.

    On devices whose kernels can follow addresses in memory (NVIDIA's) all rows are one launch, which reads addresses
    and lengths from a table there. The table is made when rows are new (`settle`, or the call), so what a graph has
    captured runs again as long as the arrays stay where they are. Elsewhere, and where rows that are new come while
    calls are captured, they are computed one by one. Results are the same but for how a compiler
    contracts a sum of two products.
    """

    def __init__(self, function: Formulas, numbers: Sequence[str] = ()) -> None:
        """Make it of a formula as `jd.elementwise` takes it."""
        self.formula = formula(function)
        inputs = self.formula.results[0].inputs
        unknown = [name for name in numbers if name not in inputs]
        if unknown:
            raise InvalidArgument(f"{unknown[0]!r} is no input of the formula: there are {', '.join(inputs)}")
        self.inputs = inputs
        self._numbers = tuple(position for position, name in enumerate(inputs) if name in numbers)
        self._each = ElementwiseKernel(self.formula)
        self._tables: Recent[Any, DeviceArray] = Recent(_TABLES)

    def __repr__(self) -> str:
        return f"<multi_tensor {'; '.join(map(str, self.formula.results))}>"

    def __call__(self, rows: Sequence[Row], handle: Handle | None = None) -> None:
        """Compute all rows, which may be in any order.

        Raises InvalidShape, InvalidType and InvalidArgument for rows that do not fit.
        """
        handle = settled_handle(handle)
        if not self._is_one_launch(rows):
            self._one_by_one(rows, handle)
            return
        found = self._prepared(rows, handle)
        if found is None:
            return
        kernel, table, arrays, written, call = found
        stream = call.stream(handle, arrays, written)
        runner = call.runner(handle)
        if not runner.launches:
            return
        at = self._on_device(table, call, stream)
        if at is None:  # nothing can be sent now
            self._one_by_one(rows, handle)
            return
        runner.launch(stream, kernel, [at.pointer], 1.0, 0.0, 0)
        call.after(handle, stream, [*arrays, *written, borrow(at)])

    def settle(self, rows: Sequence[Row], handle: Handle | None = None) -> None:
        """Make what a call with these rows needs and compute nothing: before the call is captured into a graph."""
        handle = settled_handle(handle)
        found = self._prepared(rows, handle) if self._is_one_launch(rows) else None
        if found is not None:
            _, table, arrays, written, call = found
            self._on_device(table, call, call.stream(handle, arrays, written))

    def _one_by_one(self, rows: Sequence[Row], handle: Handle) -> None:
        for inputs, outputs in rows:
            self._each(*inputs, out=tuple(outputs) if len(outputs) > 1 else outputs[0], handle=handle)

    def _is_one_launch(self, rows: Sequence[Row]) -> bool:
        """Whether all arrays are on one device that takes them at once."""
        for inputs, outputs in rows:
            if len(inputs) != len(self.inputs) or len(outputs) != len(self.formula.results):
                raise InvalidArgument(
                    f"a row has {len(inputs)} inputs and {len(outputs)} outputs: the formula takes {len(self.inputs)} "
                    f"({', '.join(self.inputs)}) and has {len(self.formula.results)} results"
                )
        arrays = [each for _, outputs in rows for each in outputs]
        return bool(arrays) and all(
            isinstance(each, DeviceArray) and reads_addresses(each.gpu) for each in arrays
        )

    def _prepared(self, rows: Sequence[Row], handle: Handle) -> Any:
        """The kernel, the key and maker of its table, the arrays read and written, and the call; None without an
        element.
        """
        rows = [row for row in rows if row[1][0].size]
        if not rows:
            return None
        device_id = rows[0][1][0].gpu.device_id
        runner = handle.at(device_id)
        call = GpuCall(handle, runner, ["jitdnn"])
        read: list[Any] = []
        written: list[Any] = []
        lengths = []
        dtypes: list[str] = []  # empty for a number of Python's
        for inputs, outputs in rows:
            length = outputs[0].size
            lengths.append(length)
            of_row = []
            for position, (name, x) in enumerate(zip(self.inputs, inputs, strict=True)):
                if position in self._numbers and not isinstance(x, DeviceArray):
                    of_row.append("")
                    continue
                borrowed = self._borrowed(x, name, device_id, 1 if position in self._numbers else length)
                of_row.append(borrowed.descriptor.dtype)
            for out in outputs:
                of_row.append(self._borrowed(out, "an output", device_id, length).descriptor.dtype)
            dtypes = dtypes or of_row
            if any(one and other and one != other for one, other in zip(dtypes, of_row, strict=True)):
                raise InvalidType(
                    f"rows have arrays of {', '.join(filter(None, dtypes))} and of {', '.join(filter(None, of_row))}: "
                    "all must have the same dtypes"
                )
            dtypes = [one or other for one, other in zip(dtypes, of_row, strict=True)]
        computing = computing_dtype(self.formula, [dtype for dtype in dtypes if dtype])
        kinds = [dtype or computing for dtype in dtypes]
        key = (self, handle.settings.serial, device_id, tuple(kinds), tuple(lengths))
        known = handle.calls.recall(key)
        if known is None:
            known = multi_tensor_kernel(
                self.formula.results, kinds, self._numbers, lengths, runner.on_gpu, computing
            )
            handle.calls.put(key, known, handle.settings.plans_limit)
        kernel, table = known
        addresses = []
        for inputs, outputs in rows:
            each = [
                borrow(x) if isinstance(x, DeviceArray) else number_on(call, x, numpy_dtype(kind), name)
                for name, x, kind in zip(self.inputs, inputs, kinds, strict=False)
            ]
            made = [borrow(out) for out in outputs]
            addresses.append(tuple(array.pointer for array in (*each, *made)))
            read += each
            written += made
        return kernel, (table, tuple(addresses), tuple(lengths)), read, written, call

    def _borrowed(self, x: Any, name: str, device_id: Any, length: int) -> Any:
        array = borrow(x)
        descriptor = array.descriptor
        if array.device_id != device_id:
            raise DeviceError(f"{name} is not on the device of the outputs, {device_id[0]}:{device_id[1]}")
        if descriptor.size != length or descriptor.strides != packed_strides(descriptor.shape):
            raise InvalidShape(
                f"{name} has shape {descriptor.shape} and strides {descriptor.strides}: in this row it must be packed "
                f"and have {length} elements"
            )
        return array

    def _on_device(self, made: Any, call: GpuCall, stream: Any) -> DeviceArray | None:
        """The table in the device's memory; None where it is not there and the stream is captured."""
        table, addresses, lengths = made
        key = (call.gpu.device_id, addresses, lengths)
        found = self._tables.recall(key)
        if found is None:
            if call.gpu.is_capturing(stream):
                return None
            words = table(addresses)
            found = DeviceArray.empty(call.gpu, TensorDescriptor.packed(words.shape, "i64"), stream)
            call.gpu.write(found.pointer, np.ascontiguousarray(words), stream)
            self._tables.put(key, found)
        return found


def reads_addresses(gpu: Any) -> bool:
    """Whether kernels of a device reach memory by addresses that they read from memory."""
    target = targets.find(gpu.device_id[0])
    return target is not None and target.reads_addresses
