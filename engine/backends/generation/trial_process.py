"""The process in which a constraint is read first; run as a script, so that it needs nothing but llguidance.

It is given a JSON object: ``grammar``, ``limits``, ``tokens`` (texts that are a token by themselves), ``seconds`` of
computing time, ``nbytes`` of memory, and ``stack`` bytes. It prints what is wrong with the grammar, or nothing.
"""

import json
import resource
import sys
import threading


def main() -> None:
    """Read it, within the limits."""
    sys.path.append(sys.argv[1])  # where llguidance is
    import llguidance

    given = json.load(sys.stdin)
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, given["seconds"]),
        (resource.RLIMIT_AS, used + given["stack"] + given["nbytes"]),
    ):
        resource.setrlimit(limit, (value, value))
    wrong: list[str] = []

    def read() -> None:
        matcher = llguidance.LLMatcher(
            llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytewise(given["tokens"])), slices=[]),
            given["grammar"],
            log_level=0,
            limits=llguidance.LLParserLimits(**given["limits"]),
        )
        if matcher.is_error():
            wrong.append(matcher.get_error())
        else:
            matcher.deep_copy().compute_logit_bias()

    threading.stack_size(given["stack"])
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    sys.stdout.write(json.dumps(wrong))


class Bytewise:
    """A token for each byte, and those that the model has beside its bytes."""

    bos_token_id = None

    def __init__(self, added: dict[str, int]) -> None:
        count = max(added.values(), default=-1) + 1
        texts = {number: text.encode() for text, number in added.items()}
        free = [number for number in range(count + 257) if number not in texts]
        texts.update({number: bytes([byte]) for byte, number in enumerate(free[:256])})
        self.eos_token_id = end = max(free[256], count)
        texts[end] = b"<|trireme end of text|>"
        self.tokens = [texts.get(number, b"") for number in range(end + 1)]
        self.special_token_ids = [*added.values(), end]
        self._of_bytes = free[:256]

    def __call__(self, text: bytes) -> list[int]:
        return [self._of_bytes[byte] for byte in text]


if __name__ == "__main__":
    main()
