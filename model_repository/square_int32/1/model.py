"""Answers the number n with n responses, each of them n: together they are its square."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            (number,) = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist()
            sender = request.get_response_sender()
            for _ in range(number):
                if sender.is_cancelled():
                    break
                output = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
