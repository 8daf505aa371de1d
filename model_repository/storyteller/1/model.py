"""Tells a story, word by word, as it makes it up. The network was trained by ``train_storyteller.py``."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
LONGEST = 10_000


class Network:
    """Guesses the next character of a text, from the weights in ``weights.npz``."""

    def __init__(self, path):
        with np.load(path) as weights:
            self.alphabet = bytes(weights["alphabet"]).decode()
            names = ("embedding", "input", "input_bias", "state", "state_bias", "output", "output_bias")
            (
                self.embedding,
                self.input,
                self.input_bias,
                self.state,
                self.state_bias,
                self.output,
                self.output_bias,
            ) = (weights[name].astype(np.float32) for name in names)

    def start(self):
        """The state in which nothing was read yet."""
        return np.zeros(self.state.shape[1], np.float32)

    def read(self, state, character):
        """The state after one more character, which must be of the alphabet: one step of a gated recurrent unit."""
        given = self.input @ self.embedding[self.alphabet.index(character)] + self.input_bias
        kept = self.state @ state + self.state_bias
        size = len(state)
        reset, update = np.split(1 / (1 + np.exp(-(given[: 2 * size] + kept[: 2 * size]))), 2)
        new = np.tanh(given[2 * size :] + reset * kept[2 * size :])
        return update * state + (1 - update) * new

    def guess(self, state, temperature, random):
        """A next character; the lower the temperature, the likelier."""
        scores = self.output @ state + self.output_bias
        if temperature == 0:
            return self.alphabet[scores.argmax()]
        odds = np.exp((scores - scores.max()) / temperature)
        return self.alphabet[random.choice(len(odds), p=odds / odds.sum())]


def words(network, prompt, length, temperature, random):
    """`length` characters or some more behind `prompt`, up to the end of a word; each word with the space behind it."""
    state = network.start()
    for character in "\n\n" + prompt:
        if character in network.alphabet:
            state = network.read(state, character)
    word = ""
    for number in range(length + 100):
        character = network.guess(state, temperature, random)
        state = network.read(state, character)
        word += character
        if character.isspace():
            yield word
            word = ""
            if number + 1 >= length:
                return
    yield word


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network(os.path.join(pb_utils.get_model_dir(), "weights.npz"))
        # A story is told by a thread of its own, so that many are told at the same time, and a listener who is slow
        # holds up nobody else: `send` waits for him.
        self.tellers = ThreadPoolExecutor(max_workers=16)

    def execute(self, requests):
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0].decode()
            settings = json.loads(request.parameters())
            self.tellers.submit(self.tell, request.get_response_sender(), prompt, settings)

    def finalize(self):
        self.tellers.shutdown()

    def tell(self, sender, prompt, settings):
        try:
            length = int(settings.get("length", 200))
            temperature = float(settings.get("temperature", 0.5))
            random = np.random.default_rng(int(settings["seed"]) if "seed" in settings else None)
            if not 1 <= length <= LONGEST or not 0 <= temperature <= 10:
                raise ValueError(f"length must be from 1 to {LONGEST}, and temperature from 0 to 10")
        except (TypeError, ValueError) as error:
            refusal = pb_utils.TritonError(f"storyteller: {error}", pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=refusal), FINAL)
            return
        for word in words(self.network, prompt, length, temperature, random):
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([word], object))]))
        sender.send(flags=FINAL)
