"""What MLServer serves: a model that gives back its input, or runs its ONNX file."""
# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Served(MLModel):
    async def load(self) -> bool:
        told = self.settings.parameters.extra
        self.session = None
        if told["kind"] == "onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = told["threads"]
            options.inter_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(told["file"], options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if self.session is None:
            made = ResponseOutput(
                name="OUTPUT0", shape=given.shape, datatype=given.datatype, parameters=given.parameters, data=given.data
            )
        else:
            array = NumpyCodec.decode_input(given)
            name = self.session.get_outputs()[0].name
            (result,) = self.session.run([name], {given.name: array.astype(np.float32, copy=False)})
            made = NumpyCodec.encode_output(name, result)
        return InferenceResponse(model_name=self.name, outputs=[made])
