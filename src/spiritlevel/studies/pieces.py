"""The statements of a file that a name in it depends on: what each changes, and what it reads."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

from spiritlevel.studies.grasp import DEFINED, FUNCTIONS, executed, grasping, root, set_here

READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
MAKES = ("STORE_GLOBAL", "DELETE_GLOBAL")  # in a function that declares a name as global
BINDS = ("STORE_NAME", "DELETE_NAME")
ANNOTATIONS = __future__.annotations.compiler_flag
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Piece:
    """A statement at the top level, with the names that it may change and those that it reads."""

    node: ast.stmt
    text: str
    changes: frozenset[str]
    reads: frozenset[str]


def pieces(text: str) -> list[Piece]:
    """All statements of a file but its imports, as they follow each other.

    A statement changes what it binds, whose items or attributes it sets, what it is decorated with,
    and all of the file that a call of it can get hold of (`grasp`); of what is imported what it
    mentions if it is an expression by itself (random.seed(1)), also in the functions that it calls.
    One with a body, an `if` or a `for`, is one piece.
    """
    tree, lines = ast.parse(text), text.split("\n")  # splitlines() knows other ends than Python
    flags, top = _flags(tree), list(_statements(tree.body))
    defined = _defined(node for node, _ in top)
    bound = [_globals(node, flags) for node, _ in top]
    names = {name: [_globals(one, flags) for one in them] for name, them in defined.items()}
    own, foreign = {name for binds, _ in bound for name in binds}, _imported(tree, here=False)
    run = [(n, b) for (n, guarded), (b, _) in zip(top, bound, strict=True) if not guarded]
    grasped = grasping(run, names, _imported(tree, here=True))

    @functools.cache
    def done_by(name: str) -> set[str]:
        """What is imported and changed by the functions of this name."""
        pairs = zip(defined[name], names[name], strict=True)
        return {one for node, (_, reads) in pairs for one in _changed_within(node) & reads}

    found = []
    for (node, guarded), (binds, reads) in zip(top, bound, strict=True):
        changes = set(binds)
        if not guarded:
            parts = list(executed(node))
            changes |= grasped(node) | {name for one in parts for name in set_here(one)}
            changes |= (_mentioned(parts) & foreign) | (_decorating(parts) & own)
            changes |= {n for one in _called(parts, defined) for n in done_by(one)} & foreign
        found.append(Piece(node, _text(lines, node), frozenset(changes), frozenset(reads)))
    return found


def reached(there: list[Piece], start: str) -> list[Piece]:
    """What a name depends on: functions by their names, then what is executed, in its order."""
    known: dict[str, list[Piece]] = {}
    for piece in there:
        for name in piece.changes:
            known.setdefault(name, []).append(piece)
    found: set[str] = set()
    ahead = [start]
    while ahead:
        found.add(one := ahead.pop())
        read = {name for piece in known.get(one, ()) for name in piece.reads}
        ahead += (read & known.keys()) - found

    def place(piece: Piece) -> tuple[bool, str]:
        """A function may be moved, unless it is decorated or something else changes it."""
        node = piece.node
        if isinstance(node, FUNCTIONS) and not node.decorator_list and len(known[node.name]) == 1:
            return False, node.name
        return True, ""

    return sorted((piece for piece in there if piece.changes & found), key=place)


# What there is -----------------------------------------------------------------------------------


def _statements(body: list[ast.stmt], guarded: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Those that a name may depend on; of a script that is started, only what its part binds."""
    for node in body:
        kind = _guard(node) if isinstance(node, ast.If) else ""
        if isinstance(node, ast.If) and kind:
            if kind == "__name__":
                yield from _statements(node.body, True)
            yield from _statements(node.orelse, guarded)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, guarded


def _guard(node: ast.If) -> str:
    """Whether it is `if __name__ == "__main__":` or `if TYPE_CHECKING:`."""
    test = node.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
        told = {ast.dump(side) for side in (test.left, *test.comparators)}
        return "__name__" if told == MAIN else ""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name if name == "TYPE_CHECKING" else ""


MAIN = {ast.dump(ast.parse(side, mode="eval").body) for side in ("__name__", "'__main__'")}


def _imported(tree: ast.Module, *, here: bool) -> set[str]:
    """Names of what is imported from here, whose calls only begin what a study does, or of else."""
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            home = getattr(node, "module", None)
            for alias in node.names:
                if ((home or alias.name).partition(".")[0] == "spiritlevel") is here:
                    found.add(alias.asname or alias.name.partition(".")[0])
    return found


def _defined(top: Iterable[ast.stmt]) -> dict[str, list[Defined]]:
    """Functions and classes by their names, also those inside of an `if`."""
    found: dict[str, list[Defined]] = {}
    ahead: list[ast.AST] = list(top)
    while ahead:
        node = ahead.pop()
        if isinstance(node, DEFINED):
            found.setdefault(node.name, []).append(node)
        elif not isinstance(node, ast.Lambda):
            ahead += ast.iter_child_nodes(node)
    return found


# What it does ------------------------------------------------------------------------------------


def _flags(tree: ast.Module) -> int:
    """With annotations as texts, what is named only there is not read."""
    imports = [one for one in tree.body if isinstance(one, ast.ImportFrom)]
    names = {a.name for one in imports if one.module == "__future__" for a in one.names}
    return ANNOTATIONS if "annotations" in names else 0


def _globals(node: ast.stmt, flags: int) -> tuple[set[str], set[str]]:
    """Names of the module that it binds, also inside of functions, and that it reads."""
    whole = ast.Module([node], [])
    code = compile(whole, "<statement>", "exec", flags, dont_inherit=True, optimize=0)
    binds, reads = set(), set()
    for one in codes(code):
        for step in dis.get_instructions(one):
            if step.opname in READS:
                reads.add(step.argval)
            elif step.opname in MAKES or (one is code and step.opname in BINDS):
                binds.add(step.argval)
    return binds, reads


def codes(code: CodeType) -> Iterator[CodeType]:
    """It and all that is defined inside."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes(one)


def _changed_within(node: ast.AST) -> set[str]:
    """In a function: what is set, and whose methods are called for what they do."""
    found = set()
    for one in ast.walk(node):
        found |= set_here(one)
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            found |= {root(one.value.func)} if isinstance(one.value.func, ast.Attribute) else set()
    return found


def _decorating(nodes: Iterable[ast.AST]) -> set[str]:
    return {root(one) for node in nodes for one in getattr(node, "decorator_list", ())}


def _mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    """All names of expressions that stand by themselves, which are there for what they do."""
    alone = [node for node in nodes if isinstance(node, ast.Expr)]
    inner = [one for node in alone for one in executed(node)]
    return {one.id for one in inner if isinstance(one, ast.Name)}


def _called(nodes: Iterable[ast.AST], defined: Mapping[str, list[Defined]]) -> set[str]:
    """Functions and classes of the file that are called, also by others of them."""
    found: set[str] = set()
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        heads = [node.func] if isinstance(node, ast.Call) else []
        for name in map(root, [*heads, *getattr(node, "decorator_list", ())]):
            if name in defined and name not in found:
                found.add(name)
                ahead += [inner for one in defined[name] for inner in ast.walk(one)]
    return found


# How it is written -------------------------------------------------------------------------------


def _text(lines: list[str], node: ast.stmt) -> str:
    """Its lines, decorators too, without docstrings and what nobody sees at the end of a line."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    within = list(ast.walk(node))
    left = {place for one in within for place in _docstring(lines, one)}
    texts = [one for one in within if isinstance(one, (ast.Constant, ast.JoinedStr))]
    exact = {place for one in texts for place in range(one.lineno, one.end_lineno or 0)}
    places = [place for place in range(first, (node.end_lineno or first) + 1) if place not in left]
    told = [lines[place - 1] for place in places]
    pairs = zip(places, told, strict=True)
    return "\n".join(line if place in exact else line.rstrip() for place, line in pairs)


def _docstring(lines: list[str], node: ast.AST) -> Iterable[int]:
    """The lines that it has to itself."""
    if not isinstance(node, DEFINED) or ast.get_docstring(node, clean=False) is None:
        return ()
    one = node.body[0]
    last = one.end_lineno or one.lineno
    before = lines[one.lineno - 1].encode()[: one.col_offset]
    after = lines[last - 1].encode()[one.end_col_offset :]
    shared = before.strip() or after.strip().startswith(b";")
    return () if shared else range(one.lineno, last + 1)
