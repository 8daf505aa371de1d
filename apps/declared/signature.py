"""From a function's annotations to a model's inputs and outputs, or to a text that says what is missing and where."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .context import RequestContext
from .declaration import AnswerManner, InputSpec, OutputSpec
from .errors import DeclarationError, Faults, Problem
from .types import ElementType, TensorType

__trireme_hides_frames__ = True

DEFAULT_OUTPUT = "output"
"""The name of an output that the annotation gives none."""

_PLAIN: Mapping[Any, str] = {str: "BYTES", bytes: "BYTES", int: "INT64", float: "FP32", bool: "BOOL"}
"""What of a plain type may be meant."""

ONE_CONTEXT, LIST_OF_CONTEXTS = "RequestContext", "list[RequestContext]"

_INPUT_EXAMPLE = "{name}: FP32[8, 8]"
_OUTPUT_EXAMPLE = '-> {"probabilities": FP32[10]}'


class SignatureReader:
    """Reads the annotations of one function.

    Args:
        function: what is called: the function, or ``__call__`` of a class.
        owner: what a person declared, for texts: the function or the class.
        model: the model's name.
    """

    def __init__(self, function: Callable[..., Any], owner: Any, model: str) -> None:
        self._function, self._owner, self._model = function, owner, model
        code = getattr(inspect.unwrap(function), "__code__", None)
        self._file = code.co_filename if code else "<unknown file>"
        self._line = code.co_firstlineno if code else 0
        self._node = self._find_node() if code else None
        if self._node is not None:
            self._line = self._node.lineno

    @property
    def place(self) -> str:
        """File and line of the function."""
        return f"{self._file}:{self._line}"

    @property
    def manner(self) -> AnswerManner:
        """How it answers."""
        if inspect.isasyncgenfunction(self._function):
            return AnswerManner.YIELDS_AWAITED
        if inspect.isgeneratorfunction(self._function):
            return AnswerManner.YIELDS
        return AnswerManner.AWAITED if inspect.iscoroutinefunction(self._function) else AnswerManner.RETURNS

    def inputs(self) -> tuple[InputSpec, ...]:
        """One for each parameter. DeclarationError with all that cannot be an input, or if there is none."""
        found, faults = [], Faults()
        for each in self._parameters():
            if each.name != self.context():
                with faults.gathered():
                    found.append(self._input(each))
        if not found and not faults.problems:
            self.fail("it takes no parameter, and a model has at least one input", "(image: FP32[8, 8])")
        faults.tell()
        return tuple(found)

    def context(self) -> str:
        """The parameter that is given what is known of requests; empty if there is none."""
        return next((each.name for each in self._parameters() if self._context_form(each)), "")

    def check_context(self, *, of_many: bool) -> None:
        """Raises DeclarationError: the parameter is not annotated as what it is given.

        Args:
            of_many: the function is called for several requests at a time.
        """
        wanted = LIST_OF_CONTEXTS if of_many else ONE_CONTEXT
        for each in self._parameters():
            form = self._context_form(each)
            if form and form != wanted:
                number = "several requests" if of_many else "one request"
                self.fail(
                    f"parameter '{each.name}' is {form}, and the function is called for {number} at a time",
                    f"{each.name}: {wanted}",
                    each.name,
                )

    def _context_form(self, parameter: inspect.Parameter) -> str:
        """How a parameter's annotation asks for what is known of requests; empty if it does not."""
        annotation = parameter.annotation
        if isinstance(annotation, str):
            if RequestContext.__name__ not in annotation:
                return ""
            annotation = self._value(annotation, f"the annotation of parameter '{parameter.name}'", ONE_CONTEXT)
        if annotation is RequestContext:
            return ONE_CONTEXT
        return LIST_OF_CONTEXTS if RequestContext in getattr(annotation, "__args__", ()) else ""

    def _parameters(self) -> list[inspect.Parameter]:
        parameters = list(inspect.signature(self._function).parameters.values())
        return parameters[1:] if self._function is not self._owner else parameters  # without self

    def _input(self, parameter: inspect.Parameter) -> InputSpec:
        name, example = parameter.name, _INPUT_EXAMPLE.replace("{name}", parameter.name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            self.fail(f"parameter '{name}' is not given by name, as inputs are", example, name)
        if parameter.annotation is parameter.empty:
            self.fail(f"parameter '{name}' has no annotation", example, name)
        found = self._value(parameter.annotation, f"the annotation of parameter '{name}'", example, name)
        if isinstance(found, ElementType):
            one = f"{name}: {found.name}[1]"
            self.fail(f"the annotation of parameter '{name}' is {found.name} without dimensions", one, name)
        if not isinstance(found, TensorType):
            if isinstance(found, type) and found in _PLAIN:
                example = f"{name}: {_PLAIN[found]}[1]"
            self.fail(f"the annotation of parameter '{name}' is {_shown(found)}, which is no tensor", example, name)
        return InputSpec(name, found, parameter.default is not parameter.empty)

    def outputs(self) -> tuple[OutputSpec, ...]:
        """What it returns or yields. DeclarationError if that is not said, or cannot be."""
        annotation = inspect.signature(self._function).return_annotation
        if annotation is inspect.Signature.empty:
            self.fail("its result has no annotation", _OUTPUT_EXAMPLE)
        found = self._value(annotation, "the annotation of its result", _OUTPUT_EXAMPLE)
        arguments = getattr(found, "__args__", ())
        if self.manner.streams and arguments:  # Iterator[…] and its kin
            found = arguments[0]
        return self.outputs_of(found)

    def outputs_of(self, found: Any) -> tuple[OutputSpec, ...]:
        """The same, of what the annotation is."""
        if isinstance(found, ElementType):
            self.fail(f"the annotation of its result is {found.name} without dimensions", f"-> {found.name}[1]")
        if isinstance(found, TensorType):
            return (OutputSpec(DEFAULT_OUTPUT, found),)
        if not isinstance(found, Mapping) or not found:
            self.fail(
                f"the annotation of its result is {_shown(found)}, which is no tensor and no dictionary of tensors",
                _OUTPUT_EXAMPLE,
            )
        faults = Faults()
        for name, each in found.items():
            with faults.gathered():
                if not isinstance(name, str) or not name or not isinstance(each, TensorType):
                    self.fail(f"output {name!r} of its result is {_shown(each)}, which is no tensor", _OUTPUT_EXAMPLE)
        faults.tell()
        return tuple(OutputSpec(name, each) for name, each in found.items())

    def _value(self, annotation: Any, what: str, example: str, parameter: str = "") -> Any:
        """What an annotation is, which may be a text (``from __future__ import annotations``)."""
        if not isinstance(annotation, str):
            return annotation
        scope = dict(getattr(inspect.unwrap(self._function), "__globals__", {}))
        try:
            return eval(_with_quoted_names(annotation), scope)
        except (NameError, TypeError, SyntaxError, AttributeError) as error:
            self.fail(f"{what} is '{annotation}', which cannot be read: {error}", example, parameter)

    def fail(self, problem: str, example: str, parameter: str = "") -> NoReturn:
        """Raise a DeclarationError at the place of the function, or of one of its parameters."""
        line = self._line
        for each in self._arguments():
            if each.arg == parameter:
                line = each.lineno
        raise DeclarationError(
            Problem(problem, f"write, for example: {example}", self._file, line, self._model)
        ) from None

    def _arguments(self) -> list[ast.arg]:
        if self._node is None:
            return []
        given = self._node.args
        rest = [each for each in (given.vararg, given.kwarg) if each is not None]
        return [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]

    def _find_node(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function in its file, whose code begins at its first decorator."""
        if not os.path.isfile(self._file):
            return None
        try:
            with open(self._file, "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return None
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first == self._line and node.name == self._function.__name__:
                    return node
        return None


def _with_quoted_names(annotation: str) -> Any:
    """The code of an annotation. Names of outputs that have lost their quotes, as tools do it that take quotes in
    annotations for superfluous, get them back."""
    tree = ast.parse(annotation.strip(), mode="eval")
    if isinstance(tree.body, ast.Dict):
        for number, key in enumerate(tree.body.keys):
            if isinstance(key, ast.Name):
                tree.body.keys[number] = ast.copy_location(ast.Constant(key.id), key)
    return compile(tree, "<annotation>", "eval")


def _shown(value: Any) -> str:
    text = value.__name__ if isinstance(value, type) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
