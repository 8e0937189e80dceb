"""The unknown scales of a parameter: by rows and columns, or one for each element."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import fx

from spiritlevel.symmetry.tracing.equations import ZERO
from spiritlevel.symmetry.tracing.graph import name_of
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.state import Scales, Walk, arguments

ELEMENTS = 1_000_000  # a parameter with more elements is always taken as a matrix
ENTANGLED = 50_000  # and one with more is taken as a matrix though that may miss something


def parameter_scales(walk: Walk, name: str, shape: torch.Size, nodes: list[fx.Node]) -> Scales:
    """Unknowns for a parameter: rows + columns for a matrix, else one for each element.

    The sum is settled by giving the first column none (the walk's gauge). Rows that are cut apart
    before use (the projections of attention) get columns of their own.
    """
    users = [user for node in nodes for user in _final_users(node)]
    matrix = len(shape) >= 2 and all(_as_matrix(node, user) for node, user in users)
    if shape.numel() <= ENTANGLED and _is_entangled(nodes, users, shape):
        matrix = False
    if not matrix and shape.numel() <= ELEMENTS:
        return Scales((walk.system.unknowns(name, "element", shape.numel()).reshape(shape),))
    if len(shape) < 2:
        return walk.still(shape)
    first = any(known(name_of(user)).matrix == "first" for _, user in users)
    batch = () if first or len(shape) == 2 else shape[:-2]
    j, k = (shape[0], shape[1]) if not batch else (shape[-2], shape[-1])
    cuts = (_groups(users, j) or _cuts(nodes, j)) if not batch else [j]
    many = torch.Size(batch).numel()
    rows = walk.system.unknowns(name, "row", many * j).reshape(*batch, j, 1)
    columns = walk.system.unknowns(name, "column", many * len(cuts) * k)
    columns = columns.reshape(*batch, len(cuts), k).clone()
    if walk.gauge:
        columns[..., 0] = ZERO
    if len(cuts) > 1:
        columns = columns.repeat_interleave(torch.tensor(cuts), dim=0)
    if first and len(shape) > 2:
        extra = (None,) * (len(shape) - 2)
        rows, columns = rows[(..., *extra)], columns[(..., *extra)]
    return Scales((rows.expand(shape), columns.expand(shape)))


def _is_entangled(
    nodes: list[fx.Node], users: list[tuple[fx.Node, fx.Node]], shape: torch.Size
) -> bool:
    """Whether rows + columns say too little: cut by columns, or summed over in another way."""
    cut = any(_cut_axis(user) not in (None, 0) for node in nodes for user in node.users)
    return cut or (len(shape) > 2 and any(name_of(user) == "einsum" for _, user in users))


def _cut_axis(user: fx.Node) -> int | None:
    """The axis along which an operation cuts its input; None if it cuts nothing."""
    place = {"slice": 1, "select": 1, "split": 2, "split_with_sizes": 2, "chunk": 2}
    name = name_of(user)
    if name not in place:
        return None
    axis = user.args[place[name]] if len(user.args) > place[name] else user.kwargs.get("dim", 0)
    return axis if isinstance(axis, int) else None


def _groups(users: list[tuple[fx.Node, fx.Node]], rows: int) -> list[int] | None:
    """The heights of the groups of a grouped convolution; each has columns of its own."""
    counts = [given["groups"] for _, user in users if "groups" in (given := arguments(user))]
    count = counts[0] if counts and all(c == counts[0] for c in counts) else 1
    return [rows // count] * count if isinstance(count, int) and count > 1 else None


def _final_users(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """The operations that use a node, looked for behind changes of shape."""
    found = []
    for user in node.users:
        operation = known(name_of(user))
        if operation.moves is not None or operation.renames:
            found += _final_users(user)
        else:
            found.append((node, user))
    return found


def _as_matrix(node: fx.Node, user: fx.Node) -> bool:
    operation = known(name_of(user))
    added = arguments(user).get(operation.bias) is node
    return operation.matrix is not None and not added


def _cuts(nodes: list[fx.Node], rows: int) -> list[int]:
    """The heights of the blocks that all uses cut the rows into; one block if one does not."""
    edges = {0, rows}
    for user in (user for node in nodes for user in node.users):
        name, args = name_of(user), user.args
        if name in ("split", "split_with_sizes", "chunk") and _cut_axis(user) == 0:
            sizes = [v.shape[0] for v in user.meta["val"]]
            edges |= {sum(sizes[:i]) for i in range(len(sizes))}
        elif name == "slice" and _cut_axis(user) == 0:
            start, end = (*args[2:4], None, None)[:2]
            edges |= {int(e) for e in (start, end) if isinstance(e, int) and 0 < e < rows}
        else:
            return [rows]
    ordered = sorted(edges)
    return [b - a for a, b in pairwise(ordered)]
