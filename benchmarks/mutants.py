"""Mutants: small changes to a Python source, each of which should be noticed.

`mutants_of` lists all that a file can have, in the order of the source. Each replaces one stretch of text, so the rest
of the file, comments and line numbers included, stays what it is. Left out is what no test should have to notice: type
annotations, docstrings, `__repr__` and `__str__`, texts of errors, logging, assertions, and code outside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

_SWAPPED_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SWAPPED_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop", "appendleft": "append"}
_UNSEEN_FUNCTIONS = {"__repr__", "__str__"}
_LOGGERS = {"_log", "log", "logger", "_logger"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        path: of the file, relative to the repository.
        function: the qualified name of the function that is changed.
        line: from 1.
        operator: the kind of change.
        before, after: the text that is replaced, and what replaces it, both in one line for people.
        start, end: offsets of the replaced text in the source, in characters.
        replacement: the new text.
    """

    path: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    start: int
    end: int
    replacement: str

    def applied(self, source: str) -> str:
        """The source with this change."""
        return source[: self.start] + self.replacement + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.operator}: {self.before} -> {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a file that compile, in the order of the source."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    unique = {(each.start, each.end, each.replacement): (each, around) for each, around in finder.found}
    return [
        each for each, around in unique.values() if each.applied(source) != source and _compiles(each, source, around)
    ]


def _compiles(mutant: Mutant, source: str, around: slice) -> bool:
    """Whether the changed function is Python; `around`, its lines, is all that is compiled: files have many mutants."""
    function = source[around.start : mutant.start] + mutant.replacement + source[mutant.end : around.stop]
    try:
        compile(f"if True:\n{function}" if function[0].isspace() else function, "<mutant>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Goes through a file, and notes what can be changed inside functions."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[tuple[Mutant, slice]] = []
        self._path = path
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._names: list[str] = []
        self._inside = 0  # functions around
        self._around = slice(0, 0)  # the lines of the outermost one

    def _offset(self, line: int, column: int) -> int:
        """`column` counts UTF-8 bytes, as `ast` does."""
        start = self._lines[line - 1]
        text = self._source[start : self._lines[line]]
        return start + len(text.encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _note(self, node: ast.expr | ast.stmt, operator: str, after: ast.AST | str) -> None:
        if not self._inside:
            return
        text = after if isinstance(after, str) else ast.unparse(ast.fix_missing_locations(after))
        start, end = self._span(node)
        before = " ".join(self._source[start:end].split())
        replacement = text if isinstance(node, ast.stmt) else f"({text})"
        function = ".".join(self._names)
        mutant = Mutant(self._path, function, node.lineno, operator, before, text, start, end, replacement)
        self.found.append((mutant, self._around))

    # What is left out, and where we are.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _UNSEEN_FUNCTIONS:
            return
        self._names.append(node.name)
        if not self._inside:
            self._around = slice(self._lines[node.lineno - 1], self._span(node)[1])
        self._inside += 1
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._visit_body(node.body)
        self._inside -= 1
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts; and positions inside of them are not to be relied on."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """What must be true anyway."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Which error it is, and its text, is for tests of the protocols."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # Statements.

    def _visit_body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if _is_unseen(statement):
                continue
            if _can_be_dropped(statement):
                self._note(statement, "dropped statement", "pass")
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._visit_body([each for each in value if isinstance(each, ast.stmt)])
            elif isinstance(value, list):
                for each in value:
                    if isinstance(each, ast.AST):
                        self.visit(each)
            elif isinstance(value, ast.AST):
                self.visit(value)

    def _visit_test(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not _is_type_checking(node.test):
            if not isinstance(node.test, ast.Compare | ast.UnaryOp):  # these are negated otherwise
                self._note(node.test, "negated condition", ast.UnaryOp(ast.Not(), node.test))
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._visit_test(node)

    def visit_While(self, node: ast.While) -> None:
        self._visit_test(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_test(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            self._note(node.value, "changed result", ast.Constant(not node.value.value))
        elif node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.visit(node.value)

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            for other in _SWAPPED_COMPARISONS.get(type(operator), ()):
                operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                self._note(node, "comparison", ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._note(node, "and/or", ast.BoolOp(other, node.values))
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            self._note(node, "dropped operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._note(node, "removed not", node.operand)
        elif isinstance(node.op, ast.USub):
            self._note(node, "removed minus", node.operand)
            return
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _SWAPPED_OPERATORS.get(type(node.op))
        if other is not None and not _is_text(node.left) and not _is_text(node.right):
            self._note(node, "arithmetic", ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        other = _SWAPPED_OPERATORS.get(type(node.op))
        if other is not None and isinstance(node.target, ast.Name | ast.Attribute | ast.Subscript):
            self._note(node, "arithmetic", ast.AugAssign(node.target, other(), node.value))
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._note(node, "changed constant", ast.Constant(not value))
        elif isinstance(value, int | float):
            self._note(node, "changed constant", ast.Constant(value + 1))
            if value:
                self._note(node, "changed constant", ast.Constant(value - 1))

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in _SWAPPED_NAMES:
            swapped: ast.expr
            if isinstance(function, ast.Attribute):
                swapped = ast.Attribute(function.value, _SWAPPED_NAMES[name], function.ctx)
            else:
                swapped = ast.Name(_SWAPPED_NAMES[name], ast.Load())
            self._note(function, "swapped function", swapped)
        pairs = 0 if name in ("max", "min") else len(node.args) - 1  # whose order means nothing
        for index in range(pairs):
            first, second = node.args[index : index + 2]
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                arguments = [*node.args[:index], second, first, *node.args[index + 2 :]]
                self._note(node, "swapped arguments", ast.Call(function, arguments, node.keywords))
        if name not in ("cast", "isinstance"):
            self.generic_visit(node)


def _is_unseen(statement: ast.stmt) -> bool:
    """Docstrings, and calls of a logger."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in _LOGGERS


_DROPPED: tuple[Callable[[ast.stmt], bool], ...] = (
    lambda statement: isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await),
    lambda statement: isinstance(statement, ast.AugAssign | ast.Delete | ast.Continue | ast.Break),
    lambda statement: (
        isinstance(statement, ast.Assign)
        and all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    ),
)


def _can_be_dropped(statement: ast.stmt) -> bool:
    """Whether the function would still run without it."""
    return any(rule(statement) for rule in _DROPPED)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
