"""Operators: break a function by naming a symbol in it. The syntax tree is changed, never the text.

`rewritten(function, *operators)` makes the broken function, in the module that it comes from.

| operator                       | names                       | and                                                  |
|--------------------------------|-----------------------------|------------------------------------------------------|
| `calling(callee, other)`       | what is called              | calls `other(callee)` in its place                   |
| `becoming(name, change)`       | a local variable            | changes its value right after it is assigned         |
| `deciding(*names, becomes)`    | what a condition looks at   | makes the condition always true, or never            |
| `dropping(*names)`             | what a term looks at        | leaves the term out of its `and` or `or`             |
| `swallowing(exception)`        | an exception that is caught | goes on as if nothing had happened                   |
| `indexing(name, index)`        | what is indexed             | always takes the same entry                          |
| `moving(name, after)`          | two local variables         | assigns the first right after the second             |

A name may be dotted, and the last parts are enough: `limits.epsilon` is also that of `self.file.limits.epsilon`.
`seen` are local variables that `other` or `change` is given as well.

An operator must find its symbol in as many places as it expects (one, unless it says `times`). Otherwise it raises
`Gone`, which says what is missing in which function.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Given = str  # the name by which the broken function calls what an operator brings


class Gone(Exception):
    """The code has changed, and no longer has what a mutant breaks."""


def expect(found: int, times: int, symbol: str, where: str) -> None:
    if found != times:
        raise Gone(f"{where} has {found} of {symbol} and this mutant expects {times}; write the mutant anew")


@dataclass(frozen=True)
class Operator:
    """swap: what takes the place of a node, or None to keep it. brings: an object that the new nodes refer to."""

    symbol: str
    swap: Callable[[ast.AST, Given], Any]
    brings: Any = None
    times: int = 1

    def __call__(self, tree: ast.AST, given: Given, where: str) -> None:
        swap, found = self.swap, 0

        class Swap(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                nonlocal found
                new = swap(self.generic_visit(node), given)
                found += new is not None
                return node if new is None else new

        Swap().generic_visit(tree)
        expect(found, self.times, self.symbol, where)


def rewritten(function: Any, *operators: Any) -> Any:
    """The function, broken; what is patched in its module is patched for it too."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    assert isinstance(definition, ast.FunctionDef)
    free = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
    values = {name: cell.cell_contents for name, cell in free.items()}
    for place, operator in enumerate(operators):
        operator(definition, f"_given_{place}", plain.__qualname__)
        values[f"_given_{place}"] = operator.brings
    tree = ast.parse(f"def made({', '.join(values)}):\n    return {definition.name}")
    assert isinstance(tree.body[0], ast.FunctionDef)
    tree.body[0].body.insert(0, definition)
    scope: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(tree), f"<mutant of {plain.__qualname__}>", "exec")
    exec(code, plain.__globals__, scope)
    return scope["made"](**values)


# --- Operators ---------------------------------------------------------------------------------------------------


def calling(callee: str, other: Callable[..., Any], *seen: str, times: int = 1) -> Operator:
    """Where `callee` was called, `other(callee, *seen)` is, with the same arguments."""

    def swap(node: ast.AST, given: Given) -> Any:
        if isinstance(node, ast.Call) and _is(node.func, callee):
            return ast.Call(_call(given, node.func, *map(_load, seen)), node.args, node.keywords)

    return Operator(f"a call of {callee}", swap, other, times)


def becoming(name: str, change: Callable[..., Any], *seen: str) -> Operator:
    """Right after the local variable `name` is assigned, it becomes `change(name, *seen)`."""

    def swap(node: ast.AST, given: Given) -> Any:
        if _assigns(node, name):
            changed = _call(given, *map(_load, (name, *seen)))
            return [node, ast.Assign([ast.Name(name, ast.Store())], changed)]

    return Operator(f"an assignment of {name}", swap, change)


def deciding(*names: str, becomes: bool) -> Operator:
    """The `if` whose condition mentions all these names always goes one way."""

    def swap(node: ast.AST, given: Given) -> Any:
        if isinstance(node, ast.If | ast.IfExp) and _mentions(node.test, names):
            node.test = ast.Constant(becomes)
            return node

    return Operator(f"a condition on {' and '.join(names)}", swap)


def dropping(*names: str) -> Operator:
    """The term of an `and` or `or` that mentions all these names is left out."""

    def swap(node: ast.AST, given: Given) -> Any:
        if not isinstance(node, ast.BoolOp):
            return None
        kept = [term for term in node.values if not _mentions(term, names)]
        if not kept or len(kept) == len(node.values):
            return None
        expect(len(node.values) - len(kept), 1, f"a term on {' and '.join(names)}", ast.unparse(node))
        return kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)

    return Operator(f"a term on {' and '.join(names)}", swap)


def swallowing(exception: str) -> Operator:
    """Where this exception was caught, nothing is done about it."""

    def swap(node: ast.AST, given: Given) -> Any:
        if isinstance(node, ast.ExceptHandler) and node.type is not None and _mentions(node.type, (exception,)):
            node.body = [ast.Pass()]
            return node

    return Operator(f"a handler of {exception}", swap)


def indexing(name: str, index: int) -> Operator:
    """Where `name` was indexed, it is by this number."""

    def swap(node: ast.AST, given: Given) -> Any:
        if isinstance(node, ast.Subscript) and _is(node.value, name):
            return ast.Subscript(node.value, ast.Constant(index), node.ctx)

    return Operator(f"an index of {name}", swap)


@dataclass(frozen=True)
class moving:
    """The assignment of the local variable `name` comes right after that of `after`."""

    name: str
    after: str
    brings: Any = None

    def __call__(self, tree: ast.AST, given: Given, where: str) -> None:
        del given
        bodies = [body for node in ast.walk(tree) for _, body in ast.iter_fields(node) if _is_body(body)]
        (moved, home), (before, other) = (self._only(name, bodies, where) for name in (self.name, self.after))
        home.remove(moved)
        other.insert(other.index(before) + 1, moved)

    def _only(self, name: str, bodies: list[list[ast.stmt]], where: str) -> tuple[ast.stmt, list[ast.stmt]]:
        found = [(statement, body) for body in bodies for statement in body if _assigns(statement, name)]
        expect(len(found), 1, f"an assignment of {name}", where)
        return found[0]


# --- Symbols in a tree -------------------------------------------------------------------------------------------


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(given: Given, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_load(given), list(arguments), [])


def _dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; what is no name before the first dot is left out."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, attribute):
            return f"{_dotted(value)}.{attribute}"
    return ""


def _is(node: ast.AST, name: str) -> bool:
    return f".{_dotted(node)}".endswith(f".{name}")


def _mentions(node: ast.AST, names: tuple[str, ...]) -> bool:
    parts = list(ast.walk(node))
    return all(any(_is(part, name) for part in parts) for name in names)


def _assigns(node: ast.AST, name: str) -> bool:
    """Also as one of several targets."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in ast.walk(target)]
    return any(isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id == name for part in parts)


def _is_body(field: Any) -> bool:
    return isinstance(field, list) and bool(field) and isinstance(field[0], ast.stmt)
