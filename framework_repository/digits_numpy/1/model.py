"""The digits network in numpy, for the Python backend: the same layers and weights as its twins."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with np.load(os.path.join(pb_utils.get_model_dir(), "weights.npz")) as stored:
            self.weights = dict(stored)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        images = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        values = self.weights
        hidden = images[:, None] / values["brightest"]
        for number in (1, 2, 3):
            hidden = np.maximum(convolved(hidden, values[f"weight{number}"], values[f"bias{number}"]), 0)
            if number > 1:
                hidden = halved(hidden)
        hidden = hidden.reshape(len(images), -1)
        hidden = np.maximum(hidden @ values["weight4"].T + values["bias4"], 0)
        logits = hidden @ values["weight5"].T + values["bias5"]
        grown = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = (grown / grown.sum(axis=1, keepdims=True)).astype(np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("PROBABILITIES", probabilities)])


def convolved(images, weight, bias):
    """3 x 3, with a margin of zeros: [n, channels, height, width]."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwyx,ocyx->nohw", windows, weight, optimize=True) + bias[:, None, None]


def halved(images):
    """The largest of each 2 x 2."""
    count, channels, height, width = images.shape
    return images.reshape(count, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5))
