"""What `digits_pipeline` does, as a program: it asks the same three models, and says so where it is not sure."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class AnotherModelError(Exception):
    """A model that was asked has answered with an error."""


async def ask(request, model, output, tensor):
    """What `model` makes of `tensor`, on behalf of `request`."""
    inference = pb_utils.InferenceRequest(
        model_name=model,
        inputs=[tensor],
        requested_output_names=[output],
        request_id=request.request_id(),
        trace=request.trace(),
    )
    response = await inference.async_exec()
    if response.has_error():
        raise AnotherModelError(response.error())
    return pb_utils.get_output_tensor_by_name(response, output)


async def read(request):
    """The response to `request`."""
    settings = json.loads(request.parameters())
    try:
        image = await ask(request, "digits_decode", "IMAGE", pb_utils.get_input_tensor_by_name(request, "FILE"))
        probabilities = await ask(request, "digits", "PROBABILITIES", image)
        label = await ask(request, "digits_label", "LABEL", probabilities)
    except AnotherModelError as error:
        return pb_utils.InferenceResponse(error=error.args[0])
    best = probabilities.as_numpy().max(axis=1, keepdims=True)
    sure = best >= float(settings.get("min_probability", 0))
    labels = np.where(sure, label.as_numpy(), b"unsure").astype(object)
    return pb_utils.InferenceResponse([pb_utils.Tensor("LABEL", labels), probabilities])


class TritonPythonModel:
    async def execute(self, requests):
        """The requests of a batch are read side by side, so that the other models can batch them."""
        return await asyncio.gather(*[read(request) for request in requests])
