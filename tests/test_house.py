"""The style of the house, as a test.

The rules are in ``tests/support/house_rules.py``. Two tables at the end hold snippets that must and must not be
reported, so that a rule that sees nothing any more is noticed. What a rule has to let pass stands in `EXCEPTIONS` with
the reason; an entry that is no longer needed is an error too.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from house_rules import (
    FOLDERS,
    RULES,
    Rule,
    Source,
    engine_knows_no_event_loop,
    errors_are_caught_by_name,
    files_are_short,
    find_circles,
    find_shared_names,
    folders_import_downwards_only,
    functions_are_short,
    imports_inside_are_relative,
    library_does_not_print,
    no_machine_paths,
    no_sleep_in_tests,
    no_state_in_modules,
    nothing_is_left_undone,
    package_file_only_names,
    protocols_know_no_front_ends,
    public_functions_are_annotated,
    queues_are_bounded,
    server_has_no_asyncio,
    time_and_chance_are_injected,
    words_are_plain,
)

ROOT = Path(__file__).parents[1]

EXCEPTIONS: dict[tuple[Rule, str], str] = {
    (files_are_short, "api/cli/flag_table.py"): "one table: a row for each flag",
    (time_and_chance_are_injected, "python_backend/child/process.py"): "measures in the model's process",
    (queues_are_bounded, "python_backend/child/calls.py"): "responses within the window that the server keeps",
    (queues_are_bounded, "python_backend/child/process_host.py"): "a batch and a few words; of open calls a window",
    (queues_are_bounded, "python_backend/child/channel.py"): "what answers to a bounded number of requests need",
    (time_and_chance_are_injected, "engine/clock.py"): "the one place where the clock of the machine is read",
    (errors_are_caught_by_name, "apps/declared/host.py"): "the boundary to user code",
    (errors_are_caught_by_name, "apps/declared/adapters.py"): "whatever a library raises of an incomplete object",
    (errors_are_caught_by_name, "apps/inspecting.py"): "the boundary to user code",
    (errors_are_caught_by_name, "actors/admission.py"): "gives a lease back, and raises it again",
    (errors_are_caught_by_name, "actors/executors.py"): "the boundary to foreign code: what it raises is its answer",
    (errors_are_caught_by_name, "actors/instances.py"): "the supervisor of instances",
    (errors_are_caught_by_name, "front_ends/processes.py"): "the supervisor of front ends",
    (errors_are_caught_by_name, "actors/step_executor.py"): "the boundary to foreign code, as in executors.py",
    (errors_are_caught_by_name, "engine/backends/generation/instance.py"): "others are in the step of a broken request",
    (errors_are_caught_by_name, "engine/backends/generation/encoding/instance.py"): "the same",
    (errors_are_caught_by_name, "engine/backends/generation/constraint_readings.py"): "the same",
    (errors_are_caught_by_name, "engine/backends/generation/tokenizer.py"): "the package raises nothing narrower",
    (errors_are_caught_by_name, "actors/stream_executor.py"): "the boundary to foreign code, as in executors.py",
    (errors_are_caught_by_name, "actors/actor.py"): "what a recipient raises is for its supervisor",
    (queues_are_bounded, "actors/actor.py"): "recipients once, calls of threads for each work, mail to its bound",
    (errors_are_caught_by_name, "actors/offload.py"): "carries what foreign code raises to who waits for it",
    (errors_are_caught_by_name, "simulations/due_calls.py"): "carries what a server raises to the task that ends a run",
    (errors_are_caught_by_name, "simulations/planning/event_loop.py"): "carries what a planner's code raises to `play`",
    (errors_are_caught_by_name, "simulations/planning/executor.py"): "the same",
    (errors_are_caught_by_name, "simulations/planning/play.py"): "the same",
    (
        errors_are_caught_by_name,
        "engine/gpu/host_callback.py",
    ): "what waits for one stream is not for the others to pay",
    (errors_are_caught_by_name, "engine/gpu/pipeline.py"): "a batch may fail halfway, of whatever its backend raises",
    (errors_are_caught_by_name, "actors/model.py"): "closing foreign code, and the supervisor of its scheduler",
    (errors_are_caught_by_name, "actors/loading.py"): "loading foreign code",
    (errors_are_caught_by_name, "python_backend/child/utils/runner.py"): "the boundary to user code",
    (errors_are_caught_by_name, "python_backend/child/wire.py"): "the text of a user's object",
    (errors_are_caught_by_name, "front_ends/port_calls.py"): "a defect must cost its own call only",
    (errors_are_caught_by_name, "front_ends/port.py"): "a defect must cost its own request only",
    (errors_are_caught_by_name, "front_ends/port_answers.py"): "a defect must cost its own request only",
    (errors_are_caught_by_name, "engine/repository/agents.py"): "the boundary to agents, which are foreign code",
    (errors_are_caught_by_name, "engine/repository/cloud/download.py"): "carries it to the thread that waits",
    (errors_are_caught_by_name, "engine/plugins.py"): "the same: importing installed packages' classes",
    (errors_are_caught_by_name, "engine/scheduling/strategy.py"): "the boundary to strategies, which are foreign code",
    (errors_are_caught_by_name, "engine/host_policies.py"): "carries what work raises to who waits for it",
    (errors_are_caught_by_name, "actors/poller.py"): "whatever a model's files come up with costs that model",
    (errors_are_caught_by_name, "actors/model_control.py"): "a defect costs the client's load, not the server",
    (errors_are_caught_by_name, "actors/following.py"): "a defect costs the look at a model, not the server",
    (errors_are_caught_by_name, "api/http/h2/connection.py"): "a defect in the application costs its request",
    (errors_are_caught_by_name, "api/http2/connection.py"): "a defect costs its connection, not the server",
    (errors_are_caught_by_name, "api/http2/driver.py"): "a defect costs its connection, not the server",
    (errors_are_caught_by_name, "api/grpc/replica/connection.py"): "a defect costs its connection, not the gateway",
    (queues_are_bounded, "api/grpc/replica/calls.py"): "answers within their stream's window",
    (queues_are_bounded, "api/grpc/replica/link.py"): "requests, of which `LinkLimits` says how many may wait",
    (errors_are_caught_by_name, "api/grpc/call.py"): "a defect in a handler costs its call, not the connection",
    (
        errors_are_caught_by_name,
        "api/pipeline.py",
    ): "answers inside a model's scheduler: a defect costs the call only",
    (errors_are_caught_by_name, "api/grpc/stream_infer.py"): "the same, for answers on a stream",
    (errors_are_caught_by_name, "api/http/app.py"): "a defect in a handler costs its request, not the connection",
    (errors_are_caught_by_name, "api/http/infer/handler.py"): "the same, for requests without a task",
    (errors_are_caught_by_name, "api/http/h1/connection.py"): "a defect costs its connection, not the server",
    (server_has_no_asyncio, "python_backend/child/utils/event_loop.py"): "a model's process is not the server",
    (queues_are_bounded, "engine/fair_queue.py"): "each connection once",
    (queues_are_bounded, "front_ends/remote_server.py"): "a few words of each request and lease in flight",
    (queues_are_bounded, "front_ends/waiting.py"): "tasks that wait: requests that have been received, one each",
    (queues_are_bounded, "engine/admission/shares.py"): "requests that wait for their address's share, one each",
    (queues_are_bounded, "engine/admission/budget.py"): "what waits for the budget, the bound of everything else",
    (queues_are_bounded, "actors/piecework.py"): "threads that wait, of which `Offload` has so many",
    (queues_are_bounded, "actors/offload.py"): "batches that its instance has credits for, and the word to stop",
    (errors_are_caught_by_name, "actors/slot.py"): "the supervisor of slots",
    (errors_are_caught_by_name, "actors/shadows.py"): "a defect costs a copy, not who answers the client",
    (
        queues_are_bounded,
        "engine/scheduling/sequence/slot_core.py",
    ): "requests in it hold shares of the server's budget",
    (queues_are_bounded, "engine/gpu/cuda_device.py"): "streams and events, of which batches in flight have a few each",
    (queues_are_bounded, "engine/gpu/pinned_pool.py"): "blocks of memory, of which the limit says how many there are",
    (queues_are_bounded, "engine/scheduling/dispatcher.py"): "instances, and jobs within the server-wide budget",
    (queues_are_bounded, "engine/scheduling/queueing.py"): "instances, and jobs within the server-wide budget",
}
"""Files that may break a rule, each with the reason."""


SAME_THING = {
    "Buffer": "what has bytes: Python models' processes import nothing of the server",
}
"""Public names that two files define, each with the reason."""


def house() -> list[Source]:
    """Every Python file that people wrote."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    written = (path for path in files if not path.is_relative_to(ROOT / "proto" / "messages"))
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(written)]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return house()


def rule_name(rule: object) -> str:
    return getattr(rule, "__name__", "")


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_rule_holds_everywhere(rule: Rule, sources: list[Source]) -> None:
    """No file breaks the rule, and no exception from it is out of date."""
    broken: list[str] = []
    excused: set[str] = set()
    for source in sources:
        for line, what in rule(source):
            excused.add(source.path)
            if (rule, source.path) not in EXCEPTIONS:
                broken.append(f"{source.path}:{line}: {what}")
    stale = [path for about, path in EXCEPTIONS if about is rule and path not in excused]
    assert not broken, "\n" + "\n".join(broken)
    assert not stale, f"no longer needed in EXCEPTIONS: {stale}"


def test_texts_name_no_machine_and_leave_nothing_undone() -> None:
    """The same words are kept out of documents, configurations and scripts."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.txt"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    files += [path for ending in ("md", "pbtxt", "proto", "json") for path in ROOT.glob(f"[a-z]*/**/*.{ending}")]
    texts = [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in files]
    assert len(texts) > 10
    rules = (nothing_is_left_undone, words_are_plain, no_machine_paths)
    broken = [
        f"{text.path}:{line}: {what}"
        for text in texts
        for rule in rules
        if (rule, text.path) not in EXCEPTIONS
        for line, what in rule(text)
    ]
    assert broken == []


def test_no_example_fails_because_the_machine_is_slow() -> None:
    """And every run tries the same ones, unless others are asked for."""
    chosen = hypothesis.settings()
    assert chosen.deadline is None
    assert hypothesis.HealthCheck.too_slow in chosen.suppress_health_check


def test_no_import_circles(sources: list[Source]) -> None:
    """Not among types either: what only a type checker imports counts."""
    assert find_circles([source for source in sources if source.in_library]) == []


def test_import_circles_are_found() -> None:
    circle = [Source("engine/a.py", "from .b import B"), Source("engine/b.py", "from . import c")]
    for closing in ("def f():\n    from .a import A", "if TYPE_CHECKING:\n    from .a import A"):
        others = [Source("engine/d.py", "from .a import A"), Source("engine/e.py", "from .f import F")]
        tangle = [*circle, Source("engine/c.py", closing), *others, Source("engine/f.py", "from . import e, a")]
        assert find_circles(tangle) == [["engine.a", "engine.b", "engine.c"], ["engine.e", "engine.f"]]
    for harmless in ("from ..proto import a", "import a"):
        assert find_circles([*circle, Source("engine/c.py", harmless)]) == []


def test_public_names_mean_one_thing(sources: list[Source]) -> None:
    """No two files define a public class, or type alias, of the same name. Protocols have names of their own, too."""
    shared = find_shared_names(sources)
    assert {name: paths for name, paths in shared.items() if name not in SAME_THING} == {}
    assert shared.keys() == SAME_THING.keys()


def test_shared_names_are_found() -> None:
    one = Source(
        "engine/a.py", "class Thing: ...\nAlias = int | str\n_P = int\nMAX = 1\nT = TypeVar('T')\nThing = Thing"
    )
    other = "if X:\n    class Thing: ...\nelse:\n    Alias = str\nclass _P: ...\nMAX = 2\nT = TypeVar('T')\nx = Thing"
    both = ["engine/a.py", "actors/b.py"]
    assert find_shared_names([one, Source("actors/b.py", other)]) == {"Thing": both, "Alias": both}
    for elsewhere in ("tests/b.py", "python_backend/child/utils/b.py"):
        assert find_shared_names([one, Source(elsewhere, other)]) == {}


BROKEN: list[tuple[Rule, str, str]] = [
    (folders_import_downwards_only, "engine/scheduling/x.py", "from ...actors.model import Model"),
    (folders_import_downwards_only, "engine/x.py", "from .. import actors"),
    (folders_import_downwards_only, "engine/x.py", "from ..python_backend.child import protocol"),
    (folders_import_downwards_only, "python_backend/x.py", "from ..actors.model import Model"),
    (folders_import_downwards_only, "actors/x.py", "def f():\n    from ..api.http import codec"),
    (folders_import_downwards_only, "actors/__init__.py", "from ..simulations import world"),
    (folders_import_downwards_only, "proto/x.py", "from ..engine import tensor"),
    (folders_import_downwards_only, "api/x.py", "import trireme.simulations.world"),
    (protocols_know_no_front_ends, "api/http/x.py", "from ...front_ends.remote_server import RemoteServer"),
    (protocols_know_no_front_ends, "api/grpc/x.py", "from ... import front_ends"),
    (protocols_know_no_front_ends, "api/x.py", "def f():\n    from .cli.cores import front_end_count"),
    (imports_inside_are_relative, "api/x.py", "from trireme.engine import tensor"),
    (engine_knows_no_event_loop, "engine/x.py", "import trio.lowlevel"),
    (engine_knows_no_event_loop, "engine/x.py", "def f():\n    from socket import socket"),
    (engine_knows_no_event_loop, "engine/x.py", "async def f() -> None: ..."),
    (server_has_no_asyncio, "api/http/x.py", "import asyncio.events"),
    (package_file_only_names, "engine/__init__.py", "NAMES = {}"),
    (files_are_short, "tests/x.py", "\n" * 501),
    (functions_are_short, "actors/x.py", "class A:\n    async def f(self):\n" + "        pass\n" * 60),
    (nothing_is_left_undone, "engine/x.py", "# TO" + "DO: later"),
    (nothing_is_left_undone, "engine/x.py", "raise NotImplemented" + "Error"),
    (words_are_plain, "engine/x.py", "# for whoeve" + "r asks"),
    (words_are_plain, "docs/x.md", "Nobod" + "y waits"),
    (words_are_plain, "simulations/x.py", "# nobod" + "y waits"),
    (words_are_plain, "tests/support/x.py", "# nobod" + "y waits"),
    (no_machine_paths, "docs/x.md", "see /wor" + "k/main for more"),
    (no_machine_paths, "docs/x.md", "written to /tm" + "p/out/file"),
    (errors_are_caught_by_name, "actors/x.py", "try: ...\nexcept: ..."),
    (errors_are_caught_by_name, "actors/x.py", "try: ...\nexcept (OSError, BaseException): ..."),
    (errors_are_caught_by_name, "actors/x.py", "with contextlib.suppress(Exception): ..."),
    (time_and_chance_are_injected, "engine/x.py", "import time"),
    (time_and_chance_are_injected, "actors/x.py", "from time import monotonic"),
    (time_and_chance_are_injected, "simulations/x.py", "x = random.random()"),
    (time_and_chance_are_injected, "actors/x.py", "x = datetime.datetime.now()"),
    (library_does_not_print, "api/http/x.py", "print(1)"),
    (queues_are_bounded, "actors/x.py", "trio.open_memory_channel(math.inf)"),
    (queues_are_bounded, "actors/x.py", "trio.open_memory_channel[int](float('inf'))"),
    (queues_are_bounded, "actors/x.py", "Mailbox()"),
    (queues_are_bounded, "actors/x.py", "queue.Queue()"),
    (queues_are_bounded, "actors/x.py", "queue.SimpleQueue()"),
    (queues_are_bounded, "engine/x.py", "collections.deque()"),
    (no_state_in_modules, "engine/x.py", "def f():\n    global x"),
    (no_state_in_modules, "engine/x.py", "@functools.lru_cache(maxsize=None)\ndef f(): ..."),
    (public_functions_are_annotated, "engine/x.py", "def f(a) -> None: ..."),
    (public_functions_are_annotated, "engine/x.py", "class A:\n    async def f(self, *, a: int): ..."),
    (no_sleep_in_tests, "tests/x.py", "time.sleep(1)"),
]

FINE: list[tuple[Rule, str, str]] = [
    (folders_import_downwards_only, "api/http/x.py", "from ...actors import InferenceServer\nfrom ..cli import main"),
    (folders_import_downwards_only, "engine/x.py", "from ..proto import y\nimport numpy"),
    (protocols_know_no_front_ends, "api/cli/x.py", "from ...front_ends.remote_server import RemoteServer"),
    (protocols_know_no_front_ends, "gateway/x.py", "from ..front_ends import link"),
    (imports_inside_are_relative, "tests/x.py", "from trireme.engine import tensor"),
    (engine_knows_no_event_loop, "actors/x.py", "import trio\nasync def f() -> None: ..."),
    (package_file_only_names, "engine/__init__.py", '"""Doc."""\nfrom .x import X\n__all__ = ["X"]'),
    (words_are_plain, "engine/x.py", "# it becomes of use; the words that are left"),
    (no_machine_paths, "docs/x.md", "a/work/b, https://x.org/home/index.html, 1/root"),
    (errors_are_caught_by_name, "actors/x.py", "try: ...\nexcept (OSError, ValueError): ..."),
    (time_and_chance_are_injected, "actors/x.py", "from random import Random\nimport random\nr: random.Random"),
    (queues_are_bounded, "actors/x.py", "trio.open_memory_channel[int](8)\nMailbox(8)\ndeque((), 8)\ndeque(maxlen=8)"),
    (no_state_in_modules, "engine/x.py", "@functools.lru_cache(maxsize=8)\ndef f(): ..."),
    (public_functions_are_annotated, "engine/x.py", "class A:\n    def f(self, a: int) -> None: ...\ndef _g(a): ..."),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=lambda value: rule_name(value) or None)
def test_rule_sees_violation(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), FINE, ids=lambda value: rule_name(value) or None)
def test_rule_lets_good_code_pass(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_has_shown_that_it_sees() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)
