"""`model`: makes a function or a class a model that can be served.

What is decorated stays what it is: it can be called, tested and imported as before.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, Union, overload

from .declaration import MARK, Declaration, InputSpec, ModelOptions, OutputSpec
from .errors import DeclarationError, Faults, Problem, calling_place, note
from .signature import SignatureReader
from .types import TensorType

__trireme_hides_frames__ = True

T = TypeVar("T", bound=Callable[..., Any])
Delay = Union[str, float]

_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)")
_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@overload
def model(target: T, /) -> T: ...
@overload
def model(
    *,
    name: str = "",
    max_batch_size: int = 0,
    queue_delay: Delay = 0,
    instances: int = 1,
    batches: str = "array",
    in_process: bool = False,
    async_library: str = "asyncio",
    inputs: Mapping[str, TensorType] | None = None,
    outputs: Mapping[str, TensorType] | None = None,
    config: str = "",
) -> Callable[[T], T]: ...
def model(target: Any = None, /, **options: Any) -> Any:
    """Declare a function or a class as a model. Its parameters are the inputs, what it returns are the outputs.

    Args:
        name: of the model; default is that of the function or class.
        max_batch_size: most rows of a batch. 0: the function is called for each request, with arrays of the shapes in
            the annotations. Otherwise arrays have a first dimension for the rows, those of several requests among
            them.
        queue_delay: how long a request may wait for others of its batch: "2ms", "500us", or seconds.
        instances: how many batches are executed at a time.
        batches: "array": one array for each input, with the rows of all requests of the batch. "list": a list for each
            input, with an array for each request; the function returns a list with an answer for each.
        in_process: run on threads of the server, and not in processes of its own.
        async_library: "asyncio" or "trio", for an ``async def`` that runs in the server's process.
        inputs: by name, in place of annotations of parameters. A parameter that is there decides which are optional.
        outputs: by name, in place of the annotation of the result.
        config: more of the model's configuration, in the form of config.pbtxt.

    Returns:
        What was given, which can be called as before.

    Raises:
        DeclarationError: annotations are missing, or something cannot be served; it tells all of the model.
    """
    if target is not None:
        return _declared(target, {})
    return lambda given: _declared(given, options)


def _declared(target: Any, options: Mapping[str, Any]) -> Any:
    try:
        _check_options(target, options)
        setattr(target, MARK, declare(target, **options))
    except DeclarationError as error:
        if not note(error):
            raise
    return target


def declare(
    target: Any,
    *,
    name: str = "",
    max_batch_size: int = 0,
    queue_delay: Delay = 0,
    instances: int = 1,
    batches: str = "array",
    in_process: bool = False,
    async_library: str = "asyncio",
    inputs: Mapping[str, TensorType] | None = None,
    outputs: Mapping[str, TensorType] | None = None,
    config: str = "",
) -> Declaration:
    """What is declared of a function, a class, or an object that can be called. See `model`."""
    is_class = inspect.isclass(target)
    name = name or getattr(target, "__name__", type(target).__name__)
    _check_target(target, name)
    function = target if inspect.isroutine(target) else _call_of(target)
    reader, faults = SignatureReader(function, target, name), Faults()
    read: tuple[InputSpec, ...] = ()
    made: tuple[OutputSpec, ...] = ()
    delay_us = 0
    for problem, example in _mistakes(reader, name, max_batch_size, instances, batches, async_library):
        with faults.gathered():
            reader.fail(problem, example)
    with faults.gathered():
        delay_us = _delay_us(reader, queue_delay)
    with faults.gathered():
        read = (
            reader.inputs()
            if inputs is None
            else tuple(InputSpec(each, kind, _optional(function, each)) for each, kind in inputs.items())
        )
    with faults.gathered():
        made = reader.outputs() if outputs is None else reader.outputs_of(outputs)
    context = ""
    with faults.gathered():
        context = reader.context()
        reader.check_context(of_many=bool(max_batch_size) and not reader.manner.streams)
    faults.tell()
    chosen = ModelOptions(
        max_batch_size=max_batch_size,
        queue_delay_us=delay_us,
        instances=instances,
        batches=batches,
        in_process=in_process,
        async_library=async_library,
        config=config,
    )
    return Declaration(name, target, is_class, reader.manner, read, made, chosen, reader.place, context)


def _check_options(target: Any, options: Mapping[str, Any]) -> None:
    """Raises DeclarationError: there is an option that there is not."""
    known = list(inspect.signature(declare).parameters)[1:]
    name, problems = options.get("name") or getattr(target, "__name__", ""), []
    for option in [each for each in options if each not in known]:
        near = get_close_matches(option, known, n=1)
        remedy = f"did you mean: {near[0]}?" if near else f"write one of: {', '.join(known)}"
        problems.append(Problem(f"model() has no option '{option}'", remedy, *calling_place(), name))
    if problems:
        raise DeclarationError(*problems)


def _check_target(target: Any, name: str) -> None:
    """Raises DeclarationError: it cannot be called, or objects of the class cannot."""
    problem, example = "", ""
    if not callable(target):
        problem = f"{target!r} cannot be called: a model is a function, or a class with __call__"
        example = "def double(x: FP32[1]) -> FP32[1]: ..."
    elif inspect.isclass(target) and "__call__" not in dir(target):
        problem = f"class {target.__qualname__} has no __call__, by which it is asked"
        example = "def __call__(self, image: FP32[8, 8]) -> FP32[10]: ..."
    if problem:
        raise DeclarationError(Problem(problem, f"write, for example: {example}", *calling_place(), name))


def _call_of(target: Any) -> Callable[..., Any]:
    """The function behind ``__call__``."""
    return (target if inspect.isclass(target) else type(target)).__call__


def _optional(function: Callable[..., Any], name: str) -> bool:
    found = inspect.signature(function).parameters.get(name)
    return found is not None and found.default is not found.empty


def _mistakes(
    reader: SignatureReader, name: str, max_batch_size: int, instances: int, batches: str, async_library: str
) -> Iterator[tuple[str, str]]:
    """What is wrong with options, each with what to write."""
    if not _NAME.fullmatch(name):
        yield f"the name '{name}' cannot be one", 'name="classify"'
    for option, value, least in (("max_batch_size", max_batch_size, 0), ("instances", instances, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield f"{option} is {value!r}, and must be a whole number of at least {least}", f"{option}={least}"
    for option, value, allowed in (
        ("batches", batches, ("array", "list")),
        ("async_library", async_library, ("asyncio", "trio")),
    ):
        if value not in allowed:
            yield f"{option} is {value!r}, and must be one of: {', '.join(allowed)}", f'{option}="{allowed[0]}"'
    if batches == "list" and not max_batch_size:
        yield 'batches="list" needs batches', "max_batch_size=8"
    if batches == "list" and reader.manner.streams:
        yield 'batches="list" does not go with a generator, which answers one request', 'batches="array"'


def _delay_us(reader: SignatureReader, delay: Delay) -> int:
    found = _DELAY.fullmatch(delay.strip()) if isinstance(delay, str) else None
    if found is not None:
        return round(float(found[1]) * _UNITS_US[found[2]])
    if not isinstance(delay, (bool, str)) and isinstance(delay, (int, float)) and delay >= 0:
        return round(delay * 1e6)
    return reader.fail(f"queue_delay is {delay!r}, and must be a time", 'queue_delay="2ms"')
