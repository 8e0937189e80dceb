"""What the statements of a file can get hold of, and so may change without binding it anew."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINED = (*FUNCTIONS, ast.ClassDef)
QUIET = {"len", "range", "isinstance"}  # change nothing, and hand on nothing that could be changed
Names = tuple[set[str], set[str]]  # of the module: bound, and read


def grasping(
    top: Sequence[tuple[ast.stmt, set[str]]],
    defined: Mapping[str, Sequence[Names]],
    ours: Iterable[str],
) -> Callable[[ast.stmt], set[str]]:
    """For a statement: names of the file whose values it may change.

    That is what it sets parts of, and all that it calls or hands to a call; what the functions and
    classes among these read or bind; and what may be, or be inside of, the same object, since one
    statement binds the one and mentions the other. Numbers and texts stay what they are, and calls
    of what is `ours` only begin what a study does.
    """
    quiet = {*ours, *QUIET} - {name for _, binds in top for name in binds}
    fixed = _fixed(top)
    links: dict[str, set[str]] = {name: set().union(*map(_both, n)) for name, n in defined.items()}
    for node, binds in top:
        given = binds | _roots(executed(node))
        joined = (given | _mentions(node, quiet)) - fixed if given else set()
        for name in joined:
            links[name] = links.get(name, set()) | joined
    held = {name for node, _ in top for name in _roots(executed(node))}  # functions with attributes
    plain = {node.name for node, _ in top if isinstance(node, FUNCTIONS)} - held
    own = {name for _, binds in top for name in binds} - fixed - plain

    def grasped(node: ast.stmt) -> set[str]:
        found: set[str] = set()
        ahead = list(_touched(node, quiet) - fixed)
        while ahead:
            if (name := ahead.pop()) not in found:
                found.add(name)
                ahead += links.get(name, set()) - fixed
        return found & own

    return grasped


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """What is executed where it stands: all but the bodies of functions."""
    yield node
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        arguments = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        inner: Iterable[ast.AST] = [*getattr(node, "decorator_list", ()), *arguments]
    else:
        inner = ast.iter_child_nodes(node)
    for one in inner:
        yield from executed(one)


def root(node: ast.AST) -> str:
    """a of a.b[c].d(e)."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def set_here(node: ast.AST) -> set[str]:
    """a where this is a.b or a[b] that is set or deleted."""
    held = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
    return {root(node)} - {""} if held else set()


def _roots(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for node in nodes for name in set_here(node)}


def _both(names: Names) -> set[str]:
    return names[0] | names[1]


def _fixed(top: Iterable[tuple[ast.stmt, set[str]]]) -> set[str]:
    """Names that are bound once, to what nothing can change."""
    top = list(top)
    counts = Counter(name for _, binds in top for name in binds)
    literal = (ast.Assign, ast.AnnAssign)
    return {
        name
        for node, binds in top
        if isinstance(node, literal) and node.value is not None and _unchanging(node.value)
        for name in binds
        if counts[name] == 1
    }


def _unchanging(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_unchanging, node.elts))
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


def _mentions(node: ast.AST, quiet: set[str]) -> set[str]:
    """Names that what comes of it may hold."""
    if isinstance(node, ast.Call) and root(node.func) in quiet:
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    inner = [*node.args.defaults, *node.decorator_list] if isinstance(node, FUNCTIONS) else None
    parts = ast.iter_child_nodes(node) if inner is None else inner
    return own.union(*(_mentions(one, quiet) for one in parts))


def _touched(node: ast.AST, quiet: set[str]) -> set[str]:
    """Names whose parts are set, or that are in what runs code of somebody."""
    nodes = list(executed(node))
    running = [part for one in nodes for part in _running(one, quiet)]
    inner = [one.id for part in running for one in ast.walk(part) if isinstance(one, ast.Name)]
    return _roots(nodes).union(inner)


def _running(node: ast.AST, quiet: set[str]) -> list[ast.AST]:
    """Calls, and where Python makes one by itself."""
    if isinstance(node, ast.Call):
        return [] if root(node.func) in quiet else [node]
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        loud = not (isinstance(node.iter, ast.Call) and root(node.iter.func) in quiet)
        return [node.iter] if loud else []
    if isinstance(node, ast.withitem):
        return [node.context_expr]
    if isinstance(node, ast.ClassDef):
        return [*node.bases, *(one.value for one in node.keywords), *node.decorator_list]
    if isinstance(node, ast.AugAssign):
        return [node.target]
    return list(node.decorator_list) if isinstance(node, FUNCTIONS) else []
