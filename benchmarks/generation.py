"""Generating models beside `transformers serve`, and what their batching and their shared memory are worth.

    python benchmarks/generation.py [--only peer batching prefix] [--peer COMMAND] [--shape small] [--quick]

A Llama of random weights, made here, on this machine's processor, over OpenAI's completions, streamed, always the most
probable token. Server and client share the cores; each server has as many threads for torch (`--threads`).

`peer`: tokens a second, CPU time of the server a token, and time to the first text, at 1, 8 and 32 clients, beside
`transformers serve` with its continuous batching, in turns; while one is asked the other is suspended. Both have memory
for as many tokens, and as many tokens in a step. Prompts have 16 to 256 tokens, and 16 to 96 follow. Clients begin all
at once; the time to the first text is that of the requests after their first ones.

`batching`: the same network behind a dynamic batcher that has `transformers` generate whole batches (a `model.py`): a
batch is answered when its longest text is over, and only then the next one begins. 8 to 512 tokens follow, most of
them few (the logarithm is uniform), and 32 clients ask.

`prefix`: prompts that have their first 1,000 tokens in common, with shared beginnings and without.

The peer is installed by `pip install 'transformers[serving]'` into any environment.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import tokenizers
from generation_client import Answered, Asked, ask
from generation_networks import SHAPES, document_paths, make_network
from servers import Server, free_port, serving, trireme

CLIENTS = (1, 8, 32)
MODEL = "network"
UNSHARED, WHOLE = "unshared", "whole_batches"
COMMON = 1_000
BLOCK, STEP, MEMORY = 16, 512, 32_768
"""Tokens; those that a model has here if nothing else is said."""

WHOLE_PY = '''"""Batches of prompts, each batch generated as a whole by transformers."""

import json

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        directory = f"{args['model_repository']}/{args['model_version']}"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
        self.tokenizer.pad_token_id = 0
        self.network = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()

    def execute(self, requests):
        prompts = [pb_utils.get_input_tensor_by_name(each, "text_input").as_numpy()[0, 0].decode() for each in requests]
        counts = [json.loads(each.parameters())["max_tokens"] for each in requests]
        given = self.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        with torch.inference_mode():
            tokens = self.network.generate(**given, max_new_tokens=max(counts), do_sample=False, pad_token_id=0)
        start = given["input_ids"].shape[1]
        texts = [self.tokenizer.decode(row[start : start + count]) for row, count in zip(tokens, counts)]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([[text.encode()]], object))])
            for text in texts
        ]
'''

WHOLE_CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: 5000 }
parameters { key: "openai_text_input" value { string_value: "text_input" } }
parameters {
  key: "openai_parameters"
  value { string_value: "{\\"max_tokens\\": \\"max_tokens\\", \\"temperature\\": \\"temperature\\"}" }
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--peer", default="transformers serve", help="the command that starts it")
    parser.add_argument("--shape", choices=SHAPES, default="medium")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=3, help="of `peer`")
    parser.add_argument("--quick", action="store_true", help="fewer requests, in one round")
    given = parser.parse_args()
    if given.quick:
        given.rounds = 1
    os.environ |= {"OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1"}
    print(f"{given.shape}, {given.dtype}, {given.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / MODEL / "1"
        prompts = Prompts(make_network(version, given.shape, given.dtype))
        (version.parent / "config.pbtxt").write_text('backend: "generation"\n')
        for part in given.only:
            PARTS[part](given, Path(folder), prompts)
    return 0


class Prompts:
    """Prompts of so many tokens, from this repository's documents; no two of them alike."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._chance = Random(1)
        self._tokens = tokenizer.encode("".join(path.read_text() for path in document_paths())).ids

    def of(self, tokens: int) -> str:
        start = self._chance.randrange(len(self._tokens) - tokens)
        return self._tokenizer.decode(self._tokens[start : start + tokens])

    def mixed(self, count: int, prompt: tuple[int, int], new: Callable[[Random], int]) -> list[Asked]:
        """Requests with prompts of such lengths."""
        return [Asked(self.of(self._chance.randint(*prompt)), new(self._chance)) for _ in range(count)]


def rate(answers: Sequence[Answered], seconds: float) -> float:
    """Tokens a second."""
    return sum(each.tokens for each in answers) / seconds


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(math.ceil(share * len(values)), len(values)) - 1]


@contextmanager
def own_server(repository: Path) -> Iterator[tuple[Server, int]]:
    """Trireme, and its port for OpenAI's clients."""
    port = free_port()
    with trireme(repository, "--openai-port", str(port), "--front-ends", "0") as server:
        yield server, port


# Beside the peer.


def beside_peer(given: argparse.Namespace, repository: Path, prompts: Prompts) -> None:
    model = str(repository / MODEL / "1")
    port = free_port()
    command = [*shlex.split(given.peer), model, "--continuous-batching", "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--cb-max-batch-tokens", str(STEP)]
    command += ["--cb-block-size", str(BLOCK), "--cb-num-blocks", str(MEMORY // BLOCK)]
    with ExitStack() as stack:
        server, own_port = stack.enter_context(own_server(repository))
        peer = stack.enter_context(serving("peer", command, port, is_ready=is_healthy))
        targets = {"Trireme": (server, own_port, MODEL), "peer": (peer, port, model)}
        for _, target_port, name in targets.values():
            ask(target_port, name, prompts.mixed(2, (32, 64), lambda _chance: 8), 2)
        for each, *_ in targets.values():
            each.signal(signal.SIGSTOP)
        print("clients: tokens/s, CPU ms a token, time to the first text in ms at p50 and p95; medians of rounds")
        for clients in given.clients:
            found: dict[str, list[tuple[float, ...]]] = {name: [] for name in targets}
            for _ in range(given.rounds):
                count = max(6, (2 if given.quick else 3) * clients)
                requests = prompts.mixed(count, (16, 256), lambda chance: chance.randint(16, 96))
                for name, (each, target_port, target_model) in targets.items():
                    each.signal(signal.SIGCONT)
                    cpu_s = each.cpu_s()
                    answers, seconds = ask(target_port, target_model, requests, clients)
                    cpu_ms = (each.cpu_s() - cpu_s) * 1e3 / sum(answer.tokens for answer in answers)
                    each.signal(signal.SIGSTOP)
                    first = [answer.first_s * 1e3 for answer in answers if answer.number >= clients]
                    row = (rate(answers, seconds), cpu_ms, percentile(first, 0.5), percentile(first, 0.95))
                    found[name].append(row)
            rows = {
                name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in found.items()
            }
            for name, row in rows.items():
                print(f"  {clients:3} {name:10}" + "".join(f"{value:10.1f}" for value in row))
            ratios = [own / other for own, other in zip(rows["Trireme"], rows["peer"], strict=True)]
            print(f"  {clients:3} {'times':10}" + "".join(f"{ratio:10.2f}" for ratio in ratios), flush=True)


def is_healthy(server: Server) -> bool:
    try:
        return b"ok" in server.get("/health")
    except (OSError, SystemExit):
        return False


# Beside batches that are generated as a whole.


def beside_whole_batches(given: argparse.Namespace, repository: Path, prompts: Prompts) -> None:
    version = repository / WHOLE / "1"
    version.mkdir(parents=True)
    for path in (repository / MODEL / "1").iterdir():
        (version / path.name).symlink_to(path)
    (version / "model.py").write_text(WHOLE_PY)
    (version.parent / "config.pbtxt").write_text(WHOLE_CONFIG)
    clients, count = 32, 48 if given.quick else 128
    requests = prompts.mixed(
        count, (16, 64), lambda chance: round(math.exp(chance.uniform(math.log(8), math.log(512))))
    )
    rows = []
    with own_server(repository) as (_, port):
        print(f"{clients} clients, {count} requests: tokens/s, mean time of an answer in s")
        for name, label in ((MODEL, "steps"), (WHOLE, "whole batches")):
            ask(port, name, requests[:2], 2, counts=False)
            answers, seconds = ask(port, name, requests, clients, counts=False)
            rows.append((rate(answers, seconds), statistics.mean(answer.whole_s for answer in answers)))
            print(f"  {label:15}{rows[-1][0]:10.1f}{rows[-1][1]:10.2f}")
    print(f"  {'times':15}{rows[0][0] / rows[1][0]:10.2f}{rows[1][1] / rows[0][1]:10.2f}", flush=True)


# Shared beginnings.


def shared_beginnings(given: argparse.Namespace, repository: Path, prompts: Prompts) -> None:
    version = repository / UNSHARED / "1"
    version.parent.mkdir()
    version.symlink_to(repository / MODEL / "1")
    (version.parent / "config.pbtxt").write_text(
        'backend: "generation"\nparameters { key: "prefix_sharing" value { string_value: "0" } }\n'
    )
    common = prompts.of(COMMON)
    print(f"prompts with {COMMON} tokens in common and 16 more: time to the first text in ms, at p50")
    with own_server(repository) as (_, port):
        for clients in (1, 8):
            count = (8 if given.quick else 24) if clients == 1 else 16
            requests = [Asked(f"{common} {prompts.of(16)}", 4) for _ in range(count)]
            times = {}
            for name in (MODEL, UNSHARED):
                ask(port, name, requests[:1], 1)  # the first one computes them
                answers, _ = ask(port, name, requests[1:], clients)
                times[name] = statistics.median(answer.first_s for answer in answers) * 1e3
            ratio = times[UNSHARED] / times[MODEL]
            print(
                f"  {clients} clients: {times[MODEL]:.1f}, without {times[UNSHARED]:.1f}: {ratio:.1f} times", flush=True
            )


PARTS = {"peer": beside_peer, "batching": beside_whole_batches, "prefix": shared_beginnings}

if __name__ == "__main__":
    raise SystemExit(main())
