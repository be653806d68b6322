"""Single mistakes in a source file: one operator, constant, condition or call changed at a time.

A mistake replaces a few bytes of the file, so that line numbers and everything else stay. What no
test needs to notice is left out: log calls, error messages, assertions, annotations, decorators and
code that runs for type checkers only.

Rules: pure. The same source gives the same mistakes in the same order.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGERS = {"logger", "log", "_logger"}
LOG_CALLS = {"debug", "info", "warning", "error", "exception"}


class Mistake(NamedTuple):
    """A change of one place; positions are in bytes of the file."""

    start: int
    stop: int
    line: int
    kind: str
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """The file with the mistake in it."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


def mistakes_of(source: bytes) -> list[Mistake]:
    """Return every mistake that this module knows how to make in a file, in order of place."""
    found = _Finder(source)
    found.visit(ast.parse(source))
    return sorted(found.mistakes)


def is_python(source: bytes) -> bool:
    """Whether a file with a mistake in it can be imported at all."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.mistakes: list[Mistake] = []
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        if not _is_left_out(node):
            super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if each is not None:
                self.visit(each)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 -- ast's names

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in node.body:
            self.visit(each)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        sides = (node.left, *node.comparators)
        for place, operator in enumerate(node.ops):
            self._between(sides[place], sides[place + 1], COMPARED.get(type(operator)))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        self._between(node.left, node.right, COMPUTED.get(type(node.op)))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.generic_visit(node)
        word = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, word)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            self._replace(self._start(node), self._start(node.operand), "", "a not left out")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._node(node, str(not node.value), "the other truth")
        elif isinstance(node.value, int):
            self._node(node, str(node.value + 1), "one more")

    def visit_If(self, node: ast.If | ast.While) -> None:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):
            text = self._source[self._start(node.test) : self._stop(node.test)].decode()
            self._node(node.test, f"not ({text})", "the other branch")

    visit_While = visit_If  # noqa: N815 -- ast's names

    def visit_Break(self, node: ast.Break) -> None:
        self._node(node, "continue", "goes on")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._node(node, "break", "ends")

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in CALLED:
            self._node(node.func, CALLED[node.func.id], "the other end")

    def visit_Expr(self, node: ast.Expr) -> None:
        self.generic_visit(node)
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            self._node(node, "pass", "a call left out")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self._node(node, "pass", "a change left out")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._node(node, "pass", "a change left out")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._node(node, "pass", "an error left out")

    def _between(self, left: ast.AST, right: ast.AST, words: tuple[str, str] | None) -> None:
        """Replace the operator that stands between two operands."""
        if words is None:
            return
        start, stop = self._stop(left), self._start(right)
        gap = self._source[start:stop]
        before, after = (word.encode() for word in words)
        if gap.count(before) == 1:
            at = start + gap.index(before)
            self._replace(at, at + len(before), after.decode(), "another operator")

    def _node(self, node: ast.AST, after: str, kind: str) -> None:
        self._replace(self._start(node), self._stop(node), after, kind)

    def _replace(self, start: int, stop: int, after: str, kind: str) -> None:
        line = self._source.count(b"\n", 0, start) + 1
        before = self._source[start:stop].decode()
        self.mistakes.append(Mistake(start, stop, line, kind, before, after))

    def _start(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined] # an expr

    def _stop(self, node: ast.AST) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined] # an expr


def _is_left_out(node: ast.AST) -> bool:
    """Whether nothing in a node is worth a test: what is logged, asserted, or typed."""
    if isinstance(node, ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    return isinstance(owner, ast.Name) and owner.id in LOGGERS and call.func.attr in LOG_CALLS


def lines_of(mistake: Mistake, source: bytes) -> Iterator[str]:
    """The first line that changes, before and after, without its indentation."""
    for text in (source, mistake.applied(source)):
        yield text.split(b"\n")[mistake.line - 1].decode().strip()
