"""Answers a request once for each of its numbers, from a thread, some time after `execute` has returned."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.repeaters = ThreadPoolExecutor(max_workers=32)

    def execute(self, requests):
        waits_ms = []
        for request in requests:
            numbers, delays_ms, (wait_ms,) = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().tolist() for name in ("IN", "DELAY", "WAIT")
            )
            waits_ms.append(wait_ms)
            if len(numbers) == len(delays_ms):
                self.repeaters.submit(repeat, request.get_response_sender(), numbers, delays_ms)
            else:
                text = f"expected IN and DELAY shape to match, got [{len(numbers)}] and [{len(delays_ms)}]"
                error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
                response = pb_utils.InferenceResponse(error=error)
                request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        time.sleep(max(waits_ms) / 1000)

    def finalize(self):
        self.repeaters.shutdown()


def repeat(sender, numbers, delays_ms):
    for index, (number, delay_ms) in enumerate(zip(numbers, delays_ms, strict=False)):
        time.sleep(delay_ms / 1000)
        if sender.is_cancelled():
            break
        outputs = [
            pb_utils.Tensor("OUT", np.array([number], np.int32)),
            pb_utils.Tensor("IDX", np.array([index], np.uint32)),
        ]
        sender.send(pb_utils.InferenceResponse(outputs))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
