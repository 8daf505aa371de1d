"""What stands in for vLLM and for Triton's backend for it, which need a GPU and some gigabytes.

The backend asks `triton_python_backend_utils` for the same things as Triton's does: one file for all models, a package
`utils` beside it, an engine on an event loop of its own, answers sent by another thread, metrics of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

_ENGINE = '''
    """vLLM: it repeats the words of the prompt, with the name of the adapter before each."""

    import asyncio


    class AsyncEngineArgs:
        def __init__(self, *, model, enable_lora=False, tensor_parallel_size=1):
            self.model = model


    class Engine:
        def __init__(self, args):
            self.aborted = []

        async def generate(self, prompt, sampling, lora, number):
            for word in prompt.split()[: sampling.get("max_tokens", 100)]:
                await asyncio.sleep(0.001)
                yield f"{lora}:{word} " if lora else f"{word} "

        async def abort(self, number):
            self.aborted.append(number)
'''

_METRICS = """
    import triton_python_backend_utils as pb_utils


    class Metrics:
        def __init__(self, labels):
            self._tokens = pb_utils.MetricFamily(
                name="vllm:generation_tokens_total",
                description="Number of generation tokens processed.",
                kind=pb_utils.MetricFamily.COUNTER,
            )
            self._times = pb_utils.MetricFamily(
                name="vllm:time_to_first_token_seconds",
                description="Histogram of time to first token in seconds.",
                kind=pb_utils.MetricFamily.HISTOGRAM,
            )
            self.tokens = self._tokens.Metric(labels=labels)
            self.times = self._times.Metric(labels=labels, buckets=[0.001, 1.0])
"""

_MODEL = """
    import asyncio
    import itertools
    import json
    import os
    import queue
    import threading

    import numpy as np
    import triton_python_backend_utils as pb_utils
    from vllm.engine import AsyncEngineArgs, Engine

    from utils.metrics import Metrics

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


    class TritonPythonModel:
        @classmethod
        def auto_complete_config(cls, config):
            given = config.as_dict()
            there = {each["name"] for kind in ("input", "output") for each in given[kind]}
            inputs = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}]
            for name in ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_output_tokens"):
                inputs.append({"name": name, "data_type": "TYPE_BOOL", "dims": [1], "optional": True})
            inputs.append({"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True})
            for each in inputs:
                if each["name"] not in there:
                    config.add_input(each)
            for name, kind in (("text_output", "STRING"), ("finish_reason", "STRING"), ("num_output_tokens", "UINT32")):
                if name not in there:
                    config.add_output({"name": name, "data_type": f"TYPE_{kind}", "dims": [-1]})
            config.set_model_transaction_policy(dict(decoupled=True))
            config.set_max_batch_size(0)
            return config

        def initialize(self, args):
            self.config = json.loads(args["model_config"])
            assert pb_utils.using_decoupled_model_transaction_policy(self.config)
            assert args["model_instance_kind"] == "MODEL"
            output = pb_utils.get_output_config_by_name(self.config, "text_output")
            self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])
            with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
                settings = json.load(file)
            self.adapters = {}
            if str(settings.get("enable_lora", "")).lower() == "true":
                with open(os.path.join(pb_utils.get_model_dir(), "multi_lora.json")) as file:
                    self.adapters = json.load(file)
            self.metrics = None
            if self.config["parameters"].get("REPORT_CUSTOM_METRICS", {}).get("string_value") == "true":
                self.metrics = Metrics({"model": args["model_name"], "version": args["model_version"]})
            self.engine = Engine(AsyncEngineArgs(**settings))
            self.loop = asyncio.new_event_loop()
            self.answers = queue.Queue()
            self.numbers = itertools.count()
            self.threads = [threading.Thread(target=self.loop.run_forever), threading.Thread(target=self.send)]
            for thread in self.threads:
                thread.start()

        def execute(self, requests):
            for request in requests:
                asyncio.run_coroutine_threadsafe(self.answer(request), self.loop)
            return None

        def value(self, request, name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy()[0]

        async def answer(self, request):
            sender, state = request.get_response_sender(), {"cancelled": False}
            prompt = self.value(request, "text_input", b"").decode()
            sampling = self.value(request, "sampling_parameters", b"").decode() or request.parameters()
            sampling = json.loads(sampling)
            lora, number = sampling.pop("lora_name", ""), next(self.numbers)
            if lora and lora not in self.adapters:
                error = pb_utils.TritonError(f"LoRA {lora} is not supported, we currently support {[*self.adapters]}")
                text = pb_utils.Tensor("text_output", np.asarray([error.message()], dtype=self.dtype))
                sender.send(pb_utils.InferenceResponse(output_tensors=[text], error=error), flags=FINAL)
                return
            stream = self.value(request, "stream", False)
            said = []
            async for word in self.engine.generate(prompt, sampling, lora, number):
                if state["cancelled"] or (not stream and sender.is_cancelled()):
                    await self.engine.abort(number)
                    pb_utils.Logger.log_info(f"[vllm] aborted {self.engine.aborted}")
                    error = pb_utils.TritonError(message="Request was cancelled", code=pb_utils.TritonError.CANCELLED)
                    self.answers.put_nowait((sender, state, pb_utils.InferenceResponse(error=error), FINAL))
                    return
                said.append(word)
                if self.metrics is not None:
                    self.metrics.tokens.increment(1)
                    self.metrics.times.observe(0.5)
                if stream:
                    self.answers.put_nowait((sender, state, self.response(word, "", 1), 0))
            last = self.response("" if stream else "".join(said), "stop", 0 if stream else len(said))
            self.answers.put_nowait((sender, state, last, FINAL))

        def response(self, text, reason, count):
            return pb_utils.InferenceResponse(
                output_tensors=[
                    pb_utils.Tensor("text_output", np.asarray([text], dtype=self.dtype)),
                    pb_utils.Tensor("finish_reason", np.asarray([reason], dtype=np.object_)),
                    pb_utils.Tensor("num_output_tokens", np.asarray([count], dtype=np.uint32)),
                ]
            )

        def send(self):
            while (item := self.answers.get()) is not None:
                sender, state, response, flags = item
                sender.send(response, flags)
                if flags != FINAL:
                    state["cancelled"] = sender.is_cancelled()

        def finalize(self):
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.answers.put(None)
            for thread in self.threads:
                thread.join()
            pb_utils.Logger.log_info("[vllm] finalized")
"""

SAMPLE_CONFIG = """
backend: "vllm"
max_batch_size: 0
model_transaction_policy { decoupled: True }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_MODEL } ]
"""
"""As a repository for Triton has it."""


def write_vllm_backend(folder: Path) -> None:
    """A backend directory with the backend, and vLLM beside it."""
    for name, text in {"model.py": _MODEL, "utils/metrics.py": _METRICS, "vllm/engine.py": _ENGINE}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip(), encoding="utf-8")


def write_vllm_model(folder: Path, name: str, config: str = SAMPLE_CONFIG, adapters: tuple[str, ...] = ()) -> None:
    """A model as its users have it."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    settings = {"model": "some/model", **({"enable_lora": "true"} if adapters else {})}
    (version / "model.json").write_text(json.dumps(settings))
    if adapters:
        (version / "multi_lora.json").write_text(json.dumps({each: f"/adapters/{each}" for each in adapters}))
    (folder / name / "config.pbtxt").write_text(config)
