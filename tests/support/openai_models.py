"""Models that clients of OpenAI's interface use, for tests."""

from __future__ import annotations

from pathlib import Path

from python_models import write_model

ECHO = '''
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


    class TritonPythonModel:
        """Repeats the words of its prompt, as many as ``max_tokens`` says; a prompt of ``settings`` gives the sampling
        parameters, ``fail`` an error, ``fail late`` one after a word, ``forever`` no end before it is cancelled."""

        def execute(self, requests):
            for request in requests:
                self.answer(request)

        def value(self, request, name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy().reshape(-1)[0]

        def answer(self, request):
            sender = request.get_response_sender()
            prompt = self.value(request, "text_input", b"").decode()
            settings = json.loads(self.value(request, "sampling_parameters", b"{}"))
            stream = self.value(request, "stream", False)
            flags = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens")
            assert all(self.value(request, name, False) for name in flags)
            if prompt == "settings":
                self.send(sender, json.dumps(settings, sort_keys=True), "stop", 1, 1)
            elif prompt == "forever":
                while not sender.is_cancelled():
                    self.send(sender, "on " * 2000, "None", 1, 1)
                pb_utils.Logger.log_info("forever was cancelled")
            elif prompt == "fail":
                error = pb_utils.TritonError("echo: no room for the prompt", pb_utils.TritonError.UNAVAILABLE)
                sender.send(pb_utils.InferenceResponse(error=error), FINAL)
                return
            else:
                self.repeat(sender, prompt, settings, stream)
            sender.send(flags=FINAL)

        def repeat(self, sender, prompt, settings, stream):
            words = prompt.split(" ")
            said = words[: settings.get("max_tokens", len(words))]
            reason = "length" if len(said) < len(words) else "stop"
            logprobs = "logprobs" in settings
            if not stream:
                self.send(sender, " ".join(said), reason, len(words), len(said), said if logprobs else None)
                return
            for number, word in enumerate(said):
                last = number == len(said) - 1
                text = word if last else word + " "
                self.send(sender, text, reason if last else "None", len(words), 1, [text] if logprobs else None)
                if prompt == "fail late":
                    error = pb_utils.TritonError("echo: the network gave no number")
                    sender.send(pb_utils.InferenceResponse(error=error))
                    return

        def send(self, sender, text, reason, given, made, tokens=None):
            outputs = [
                pb_utils.Tensor("text_output", np.array([text.encode()], object)),
                pb_utils.Tensor("finish_reason", np.array([reason.encode()], object)),
                pb_utils.Tensor("num_input_tokens", np.array([given], np.uint32)),
                pb_utils.Tensor("num_output_tokens", np.array([made], np.uint32)),
            ]
            if tokens is not None:
                other = {"logprob": -2.0, "rank": 2, "decoded_token": "x"}
                chosen = [{"5": {"logprob": -0.5, "rank": 1, "decoded_token": each}, "6": other} for each in tokens]
                outputs.append(pb_utils.Tensor("logprobs", np.array([json.dumps(chosen).encode()], object)))
            sender.send(pb_utils.InferenceResponse(outputs))
'''

_FLAGS = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")

ECHO_CONFIG = (
    """
    backend: "python"
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
    output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
    output { name: "logprobs" data_type: TYPE_STRING dims: [ -1 ] }
    model_transaction_policy { decoupled: true }
    parameters { key: "openai_formats" value { string_value: "structured_outputs" } }
    instance_group { kind: KIND_CPU count: 2 }
    parameters { key: "openai_tool_calls" value { string_value: "hermes" } }
    """
    + "\n".join(f'    input {{ name: "{name}" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}' for name in _FLAGS)
    + "\n"
)

LENGTHS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            texts = [pb_utils.get_input_tensor_by_name(each, "TEXT").as_numpy() for each in requests]
            vectors = [np.array([[len(row[0]), 0.5]], np.float32) for batch in texts for row in batch]
            count = pb_utils.Tensor("num_tokens", np.array([[3]], np.uint32))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("VECTOR", each), count]) for each in vectors]
"""

LENGTHS_CONFIG = """
    backend: "python"
    max_batch_size: 8
    input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "VECTOR" data_type: TYPE_FP32 dims: [ 2 ] }
    output { name: "num_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
    parameters { key: "openai_text_input" value { string_value: "TEXT" } }
    parameters { key: "openai_embeddings_output" value { string_value: "VECTOR" } }
    dynamic_batching { }
"""

TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ raise_exception('tools have no say here') }}{% endif %}
{{- message.content }} {% endfor %}
{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor %}say
"""


def write_openai_models(repository: Path) -> None:
    """`echo`, with the tensors of the vLLM backend, a chat template and the adapters `doll` and `sheep`; `lengths`, for
    embeddings; and `identity`, which is nothing for OpenAI's clients."""
    directory = write_model(repository, "echo", ECHO, ECHO_CONFIG)
    (directory / "1" / "chat_template.jinja").write_text(TEMPLATE.strip())
    (directory / "1" / "model.json").write_text('{"enable_lora": "true"}')
    (directory / "1" / "multi_lora.json").write_text('{"doll": "/dolls", "sheep": "/sheep"}')
    write_model(repository, "lengths", LENGTHS, LENGTHS_CONFIG)
    write_model(repository, "identity")
