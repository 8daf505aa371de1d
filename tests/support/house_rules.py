"""The rules of the house: each is a function from one source file to its violations, (line, what is wrong).

``tests/test_house.py`` applies them and says what is excepted.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

MAY_IMPORT = {
    "proto": set(),
    "apps": {"engine"},
    "engine": {"proto"},
    "python_backend": {"engine", "proto"},
    "actors": {"engine", "python_backend", "proto"},
    "front_ends": {"actors", "engine", "proto", "python_backend"},
    "gateway": {"actors", "engine", "front_ends", "proto"},
    "cluster": {"actors", "engine", "gateway"},
    "simulations": {"actors", "engine", "front_ends", "gateway", "proto"},
    "api": {"actors", "apps", "clients", "cluster", "engine", "front_ends", "gateway", "proto"},
    "clients": {"engine", "proto"},
    "foresight": {"actors", "clients", "engine", "front_ends", "proto", "simulations"},
}
"""The import rule: which folders each folder may import from, besides itself."""

LIBRARY = tuple(MAY_IMPORT)
FOLDERS = (*LIBRARY, "package", "tests", "benchmarks", "deploy", "docs", "model_repository")
PLAIN = (
    "package",
    "engine",
    "python_backend",
    "apps",
    "actors",
    "front_ends",
    "gateway",
    "cluster",
    "api",
    "benchmarks",
    "proto",
    "simulations",
    "foresight",
    "clients",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "ROADMAP.md",
    "CHANGELOG.md",
)

EVENT_LOOPS_AND_SOCKETS = {"trio", "anyio", "httptools", "h2", "socket", "ssl", "select", "selectors"}
ASYNCIO = {"asyncio", "trio_asyncio", "uvloop", "aiohttp", "grpclib.server"}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

Violations = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Source:
    """A source file: its path from the root of the repository, with slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Made without garbage collection, which would look through all trees again and again, and finds nothing."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(self.text, self.path)
        finally:
            if collects:
                gc.enable()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]

    @property
    def in_library(self) -> bool:
        return self.folder in LIBRARY

    @property
    def module(self) -> str:
        """Dotted name below ``trireme``: ``engine.clock``; a package's is that of its folder."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """Dotted name of the package that the file lies in, from which its relative imports count."""
        return self.module if self.path.endswith("/__init__.py") else self.module.rpartition(".")[0]


Rule = Callable[[Source], Violations]


def imports(source: Source, nodes: list[ast.AST] | None = None) -> Iterator[tuple[int, str, str]]:
    """Every import as (line, module, name): absolute names as written, our own as ``trireme.FOLDER…``."""
    for node in source.nodes if nodes is None else nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["trireme", *source.package.split(".")]
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, base] if base else parts)
            for alias in node.names:
                yield node.lineno, base, alias.name


def starts_with(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def called_name(call: ast.Call) -> str:
    """The last name of what is called: ``open_memory_channel`` for ``trio.open_memory_channel[int](4)``."""
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    named = (item.value for item in call.keywords if item.arg == keyword)
    return call.args[position] if len(call.args) > position else next(named, None)


# -- the import rule ---------------------------------------------------------------------------------------------------


def folders_import_downwards_only(source: Source) -> Violations:
    """api → actors, engine; simulations → actors, engine; actors → python_backend → engine; all → proto."""
    if not source.in_library:
        return
    for line, module, name in imports(source):
        target = (module if module != "trireme" else f"trireme.{name}").split(".")
        if target[0] == "trireme" and target[1] not in {source.folder, *MAY_IMPORT[source.folder]}:
            yield line, f"{source.folder}/ imports from {target[1]}/"


def protocols_know_no_front_ends(source: Source) -> Violations:
    """In api/ only the command line, which puts the server together, knows whether front ends are apart from it."""
    if source.folder != "api" or source.path.startswith("api/cli/"):
        return
    for line, module, name in imports(source):
        target = module if module != "trireme" else f"trireme.{name}"
        if starts_with(target, {"trireme.front_ends", "trireme.api.cli"}):
            yield line, f"{source.path} imports from {target}"


def imports_inside_are_relative(source: Source) -> Violations:
    if not source.in_library:
        return
    for node in source.nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(starts_with(name, {"trireme"}) for name in names):
            yield (
                getattr(node, "lineno", 0),
                "imports trireme by its absolute name, not relatively",
            )


def engine_knows_no_event_loop(source: Source) -> Violations:
    """engine/ is plain synchronous Python: no trio, no sockets, no coroutines."""
    if source.folder != "engine":
        return
    for line, module, _ in imports(source):
        if starts_with(module, EVENT_LOOPS_AND_SOCKETS):
            yield line, f"engine/ imports {module}"
    for node in source.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith | ast.AsyncFor):
            yield node.lineno, "engine/ is synchronous, and this is a coroutine"


def server_has_no_asyncio(source: Source) -> Violations:
    if source.in_library:
        for line, module, _ in imports(source):
            if starts_with(module, ASYNCIO):
                yield line, f"imports {module}; the server runs on trio alone"


def package_file_only_names(source: Source) -> Violations:
    """An ``__init__.py`` says what others may use, and holds no code."""
    if not source.in_library or not source.path.endswith("/__init__.py"):
        return
    for node in source.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        listing = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (docstring or listing or isinstance(node, ast.Import | ast.ImportFrom)):
            yield node.lineno, "a package file holds imports and __all__ only"


def import_edges(source: Source, modules: set[str]) -> set[str]:
    """Our own modules that this one imports, at any time, or for a type checker alone."""
    edges = set()
    for _, module, name in imports(source):
        base = module.removeprefix("trireme").removeprefix(".")
        inner = f"{base}.{name}" if base else name
        edges |= {inner} & modules or {base} & modules
    return edges - {source.module}


def find_circles(sources: list[Source]) -> list[list[str]]:
    """The modules that import each other in a circle, a list for each tangle of circles; empty if there is none."""
    modules = {source.module for source in sources}
    waiting = {source.module: import_edges(source, modules) for source in sources}
    while free := [module for module, edges in waiting.items() if not edges & waiting.keys()]:
        for module in free:
            del waiting[module]
    reached = {module: _reached(module, waiting) for module in waiting}
    tangles = {frozenset(other for other in reached[module] if module in reached[other]) for module in waiting}
    return sorted(sorted(tangle) for tangle in tangles if tangle)


def _reached(module: str, edges: dict[str, set[str]]) -> set[str]:
    """What a module imports, directly or not; among the modules that are left."""
    reached: set[str] = set()
    pending = [module]
    while pending:
        for other in edges[pending.pop()] & edges.keys() - reached:
            reached.add(other)
            pending.append(other)
    return reached


# -- size ------------------------------------------------------------------------------------------------------------


def files_are_short(source: Source) -> Violations:
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield lines, f"{lines} lines; more than {MAX_FILE_LINES} means that a concept is missing"


def functions_are_short(source: Source) -> Violations:
    if not source.in_library:
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines, more than {MAX_FUNCTION_LINES}"


# -- words -----------------------------------------------------------------------------------------------------------

LEFT_UNDONE = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HAC[K]|NotImplemented[E]rror)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wor[k]|far[m]|roo[t]|hom[e]/\w+|tm[p]/\w+/)\b|index-ur[l]|~/\.?[a-z]")


RIDDLE = re.compile(
    r"\b(?:whoeve[r]|whomeve[r]|nobod[y]|everybod[y]|somebod[y]|in one breat[h]|hears? the new[s]"
    r"|(?:leave|leaves|left) wor[d]|wor[d] (?:is )?left|what becomes o[f])\b",
    re.IGNORECASE,
)
"""Turns that hide who acts or what happens. A comment names the client, task, thread or model that is meant."""


def nothing_is_left_undone(source: Source) -> Violations:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := LEFT_UNDONE.search(line):
            yield number, f"says {match.group()}"


def words_are_plain(source: Source) -> Violations:
    """No riddles in what the server is made of, nor in its documents; texts that clients may know stay as they are."""
    if source.folder not in PLAIN and not source.path.startswith("tests/support/"):
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := RIDDLE.search(line):
            yield number, f"says {match.group()!r}; name what is meant"


def no_machine_paths(source: Source) -> Violations:
    """Nothing speaks of the machine that it was written on."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := MACHINE_PATH.search(line):
            yield number, f"names a path of some machine: {match.group()}"


# -- habits ----------------------------------------------------------------------------------------------------------


def errors_are_caught_by_name(source: Source) -> Violations:
    """No bare except, no BaseException; Exception only where `EXCEPTIONS` says why."""
    if not source.in_library:
        return
    for node in source.nodes:
        caught: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "bare except"
            else:
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and called_name(node) == "suppress":
            caught = node.args
        for name in {ast.unparse(item) for item in caught} & {"Exception", "BaseException"}:
            yield getattr(node, "lineno", 0), f"catches {name}"


def time_and_chance_are_injected(source: Source) -> Violations:
    """What decides asks the injected Clock and the injected random.Random, or it could not be replayed."""
    if source.folder not in {"engine", "python_backend", "actors", "front_ends", "gateway", "simulations"}:
        return
    for line, module, name in imports(source):
        if module == "time" or (module == "random" and name not in {"", "Random"}):
            yield line, f"imports {name or module}"
    for node in source.nodes:
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            chance = re.fullmatch(r"random\.(?!Random$)\w+|np\.random\.\w+|os\.urandom|uuid\.uuid[14]", text)
            if chance or re.fullmatch(r"(datetime\.)?datetime\.(now|utcnow|today)", text):
                yield node.lineno, f"uses {text}"


def library_does_not_print(source: Source) -> Violations:
    """Only the command line talks to people."""
    if not source.in_library or source.path.startswith("api/cli/"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "prints"


def queues_are_bounded(source: Source) -> Violations:
    """Every mailbox, channel and queue has a bound; a deque is a queue unless `EXCEPTIONS` knows better."""
    if not source.in_library:
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = called_name(node)
        unbounded = {
            "open_memory_channel": lambda call: "inf" in ast.unparse(call),
            "Mailbox": lambda call: not (call.args or call.keywords) or "inf" in ast.unparse(call),
            "Queue": lambda call: argument(call, 0, "maxsize") is None,
            "LifoQueue": lambda call: argument(call, 0, "maxsize") is None,
            "PriorityQueue": lambda call: argument(call, 0, "maxsize") is None,
            "SimpleQueue": lambda call: True,
            "deque": lambda call: argument(call, 1, "maxlen") is None,
        }.get(name)
        if unbounded is not None and unbounded(node):
            yield node.lineno, f"an unbounded {name}"


def no_state_in_modules(source: Source) -> Violations:
    """State belongs to objects that someone owns: no ``global``, no cache that grows for ever."""
    if not source.in_library:
        return
    for node in source.nodes:
        if isinstance(node, ast.Global):
            yield node.lineno, "a global statement"
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        for decorator in decorators:
            if re.fullmatch(r"(functools\.)?(cache|lru_cache\((maxsize=)?None\))", ast.unparse(decorator)):
                yield decorator.lineno, "a cache without a bound"


def public_functions_are_annotated(source: Source) -> Violations:
    """Types on every parameter and result of every public function and method, and of every ``__init__``."""
    if not source.in_library:
        return
    scopes: list[tuple[ast.Module | ast.ClassDef, bool]] = [(source.tree, False)]
    while scopes:
        scope, is_class = scopes.pop()
        for node in scope.body:
            if isinstance(node, ast.ClassDef):
                scopes.append((node, True))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
                yield from unannotated(node, is_class)


def is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def unannotated(function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> Violations:
    listed = function.args
    parameters = [*listed.posonlyargs, *listed.args]
    static = any(ast.unparse(item) == "staticmethod" for item in function.decorator_list)
    if is_method and not static:
        parameters = parameters[1:]
    parameters += [item for item in (*listed.kwonlyargs, listed.vararg, listed.kwarg) if item is not None]
    missing = [item.arg for item in parameters if item.annotation is None]
    missing += [] if function.returns else ["return"]
    if missing:
        yield function.lineno, f"{function.name} has no type for {', '.join(missing)}"


def find_shared_names(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Public classes and type aliases of the library with the same name, and the files that define them.

    A file below ``python_backend/child/utils/`` has the names of Triton's utilities, which users' models import.
    """
    found: dict[str, list[str]] = {}
    for source in sources:
        if source.in_library and not source.path.startswith("python_backend/child/utils/"):
            for name in dict.fromkeys(defined_types(source.tree.body)):
                found.setdefault(name, []).append(source.path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def defined_types(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.If():
                yield from defined_types([*node.body, *node.orelse])
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                if is_public(name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    yield name
            case _:
                pass


def no_sleep_in_tests(source: Source) -> Violations:
    """Tests wait for events; a test that sleeps is slow, or flaky, or both."""
    if source.folder != "tests":
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}:
            yield node.lineno, "sleeps"


RULES: tuple[Rule, ...] = (
    folders_import_downwards_only,
    protocols_know_no_front_ends,
    imports_inside_are_relative,
    engine_knows_no_event_loop,
    server_has_no_asyncio,
    package_file_only_names,
    files_are_short,
    functions_are_short,
    nothing_is_left_undone,
    words_are_plain,
    no_machine_paths,
    errors_are_caught_by_name,
    time_and_chance_are_injected,
    library_does_not_print,
    queues_are_bounded,
    no_state_in_modules,
    public_functions_are_annotated,
    no_sleep_in_tests,
)
