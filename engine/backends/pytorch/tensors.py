"""Arrays to torch tensors and back.

Arrays and tensors on the CPU share memory. BYTES are lists of `str` in TorchScript, which has no tensors of text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...datatypes import BOOL, BYTES, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, DataType
from ...errors import InternalError, InvalidArgumentError

_TORCH_NAMES = {
    BOOL: "bool",
    UINT8: "uint8",
    INT8: "int8",
    INT16: "int16",
    INT32: "int32",
    INT64: "int64",
    FP16: "float16",
    FP32: "float32",
    FP64: "float64",
}


def check_datatype(datatype: DataType, role: str, name: str, model_name: str, *, text: bool) -> None:
    """Refuse types that PyTorch models cannot have.

    Args:
        text: whether the model's format knows strings.

    Raises:
        InvalidArgumentError: it is one.
    """
    if datatype in _TORCH_NAMES or (text and datatype is BYTES):
        return
    raise InvalidArgumentError(
        f"unsupported datatype {datatype.config_name} for {role} '{name}' for model '{model_name}'"
    )


def to_torch(torch: Any, array: np.ndarray, device: Any, *, own: bool = False) -> Any:
    """A tensor on `device`, or of text a list of `str`.

    Args:
        array: dtype `DataType.storage`, but elements of BYTES are `str`, one dimension (but for the batch's).
        own: no other code reads it. A model may write to its inputs, and what one gets in an ensemble, another one may
            get as well.
    """
    if array.dtype.hasobject:
        return array.ravel().tolist()
    if not own or not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()  # torch has no read-only tensors
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


class OutputCheck:
    """Makes an array of one output, if it is what the configuration promises."""

    def __init__(self, torch: Any, name: str, datatype: DataType, batching: bool) -> None:
        self._torch = torch
        self._name = name
        self._datatype = datatype
        self._batching = batching
        self._dtype = None if datatype is BYTES else getattr(torch, _TORCH_NAMES[datatype])

    def array(self, value: Any) -> np.ndarray:
        """The output as an array of its own, dtype `DataType.storage`: a model may keep what it has returned, and write
        to it when it is run again, while the answer is still being sent.

        Raises:
            InvalidArgumentError: it is of another type, or a scalar.
            InternalError: it is no tensor at all.
        """
        if self._torch.is_tensor(value):
            value = self._checked(value).detach()
            array = value.cpu().contiguous()
            return (array.clone() if array.data_ptr() == value.data_ptr() else array).numpy()
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            if self._dtype is not None:
                raise self._mismatch(BYTES.config_name)
            array = np.empty(len(value), object)
            array[:] = [each.encode() for each in value]
            return array.reshape(-1, 1) if self._batching else array
        raise _no_tensor()

    def on_device(self, value: Any, device: Any) -> Any:
        """The output as a contiguous tensor on a GPU, of its own as that of `array`. Raises as that does."""
        if self._torch.is_tensor(value):
            value = self._checked(value).detach().contiguous()
            return value.clone() if value.device == device else value.to(device)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            raise self._mismatch(BYTES.config_name)
        raise _no_tensor()

    def _checked(self, value: Any) -> Any:
        if value.dim() == 0:
            raise InvalidArgumentError(f"output '{self._name}' is a scalar which is not supported.")
        if value.dtype is not self._dtype:
            raise self._mismatch(_config_name(value.dtype))
        return value

    def _mismatch(self, provided: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"configuration expects datatype {self._datatype.config_name} for output '{self._name}', model provides "
            f"{provided}"
        )


def _no_tensor() -> InternalError:
    return InternalError(
        "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple containing one of these two "
        "types. It should not be a List / Dictionary of Tensors or a Scalar"
    )


def _config_name(dtype: Any) -> str:
    """``TYPE_…`` of a torch dtype, or torch's own name."""
    name = str(dtype).removeprefix("torch.")
    return next((datatype.config_name for datatype, known in _TORCH_NAMES.items() if known == name), name)
