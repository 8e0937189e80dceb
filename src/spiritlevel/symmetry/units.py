"""Beyond the diagonal: permutations of units, and GL(d) of attention heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator, map_tensors
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.objective.module import cast
from spiritlevel.symmetry.find import walked
from spiritlevel.symmetry.gaps import same
from spiritlevel.symmetry.predictors import predictor_of
from spiritlevel.symmetry.tracing.equations import WILD, ZERO, compact
from spiritlevel.symmetry.tracing.labels import elementwise
from spiritlevel.symmetry.tracing.record import Operation, Rule
from spiritlevel.symmetry.tracing.state import Heads, Scales, Walk
from spiritlevel.symmetry.verify import exactly, verify

LARGE = 8  # units of a set, from which on one order of it is as good as never drawn twice
MOST_SPLIT = 64  # units of a set that is split into its interchangeable parts
SAME = 1e-5  # relative: models may round to float32 inside
Axis = tuple[str, int]  # a parameter, and the axis along which units lie


@dataclass(frozen=True)
class Units:
    """n interchangeable units: for each axis of a parameter, the places of every unit."""

    name: str
    places: dict[Axis, Tensor]  # (units, places of one unit)

    @property
    def size(self) -> int:
        return len(next(iter(self.places.values())))

    def random(self, seed: int | torch.Generator = 0) -> Tensor:
        return torch.randperm(self.size, generator=generator(seed))

    def inverse(self, order: Tensor) -> Tensor:
        self._refuse(order)
        return order.argsort()

    def act(self, params: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
        """Put unit order[i] in the place of unit i, everywhere."""
        _refuse_params(params, list(self.places.items()))
        self._refuse(order)
        result = dict(params)
        for (name, axis), places in self.places.items():
            if name not in result:
                continue
            index = torch.arange(result[name].shape[axis])
            index[places.reshape(-1)] = places[order].reshape(-1)
            result[name] = result[name].index_select(axis, index.to(result[name].device))
        return {n: t.clone() if t is params[n] else t for n, t in result.items()}

    def apply(self, objective: Objective, order: Tensor) -> Objective:
        only_objectives(objective)
        return _applied(self, objective, order)

    def _refuse(self, order: Tensor) -> None:
        tensor_doors.tensor("order", order, self.size)
        if sorted(order.tolist()) != list(range(self.size)):
            raise SpiritlevelError(f"order has to be a permutation of {self.size} units")


@dataclass(frozen=True)
class HeadMap:
    """GL(d) of one head: x -> A x on `up`, and A^-T on `down` where they lie in one product.

    For "query-key" the scores q'k stay; for "value-output" the output O v does. With grouped
    queries one key head serves several query heads, which all move together.
    """

    name: str
    kind: str
    up: tuple[tuple[Axis, Tensor], ...]  # axis of a parameter, places of the d dimensions
    down: tuple[tuple[Axis, Tensor], ...]

    @property
    def size(self) -> int:
        """d, of d x d matrices."""
        return len(self.up[0][1])

    def random(self, seed: int | torch.Generator = 0, scale: float = 0.3) -> Tensor:
        doors.number("scale", scale)
        draws = generator(seed)
        noise = torch.randn(self.size, self.size, generator=draws, dtype=torch.float64)
        return torch.linalg.matrix_exp(scale * noise)

    def inverse(self, matrix: Tensor) -> Tensor:
        self._refuse(matrix)
        return torch.linalg.inv(matrix)

    def act(self, params: Mapping[str, Tensor], matrix: Tensor) -> dict[str, Tensor]:
        """A on one side, its inverse transposed on the other."""
        _refuse_params(params, [*self.up, *self.down])
        self._refuse(matrix)
        matrix = matrix.detach().cpu().double()
        result = {name: tensor.clone() for name, tensor in params.items()}
        for side, factor in ((self.up, matrix), (self.down, torch.linalg.inv(matrix).T)):
            for (name, axis), places in side:
                moved = result[name].movedim(axis, 0)
                block = (
                    moved[places].flatten(1).double().cpu()
                    if moved.ndim > 1
                    else (moved[places][:, None].double().cpu())
                )
                changed = (factor @ block).reshape(len(places), *moved.shape[1:])
                moved[places] = changed.to(moved)
        return result

    def apply(self, objective: Objective, matrix: Tensor) -> Objective:
        only_objectives(objective)
        return objective.at(self.act(objective.params, matrix))

    def _refuse(self, matrix: Tensor) -> None:
        tensor_doors.tensor("matrix", matrix, self.size, self.size)
        if not float(torch.linalg.cond(matrix.double())) < 1 / torch.finfo(torch.float64).eps:
            raise SpiritlevelError("matrix has no inverse; give another, such as random(seed)")


def _refuse_params(params: Any, sides: list[tuple[Axis, Tensor]]) -> None:
    """Tensors in which some places do not exist."""
    tensor_doors.tensors("params", params)
    for (name, axis), places in sides:
        shape = tuple(params[name].shape) if name in params else None
        if shape is not None and (len(shape) <= axis or shape[axis] <= int(places.max())):
            raise SpiritlevelError(
                f"params holds {name!r} of shape {shape}; give those of the model that this was "
                "found in"
            )


def _applied(units: Units, objective: Objective, order: Tensor) -> Objective:
    names = {name for name, _ in units.places}
    held = {n: b for n, b in objective.buffers.items() if n in names}
    moved = units.act({**objective.params, **held}, order)
    buffers = {n: moved.pop(n) for n in held}
    return objective.at(moved, buffers=buffers)


Move = tuple[Units | HeadMap, Tensor]  # a symmetry and one of its elements


@set_apart()
def permutations(model: nn.Module | Objective, example: Any = None) -> tuple[Units, ...]:
    """Sets of units that can change places: hidden units, channels, streams, whatever they do.

    Each is proved: a set that changes a prediction is left out.
    """
    labels, _ = _labelled(model, example)
    sets: dict[tuple[Any, ...], list[dict[Axis, list[int]]]] = {}
    for units in _by_label(labels).values():
        signature = tuple((axis, len(found)) for axis, found in units.items())
        sets.setdefault(signature, []).append(units)
    candidates = []
    for signature, members in sets.items():
        if len(members) < 2:
            continue
        places = {axis: torch.tensor([unit[axis] for unit in members]) for axis, _ in signature}
        candidates.append(Units(_name(list(places)), places))
    # Large sets move at once as a rule, and two proofs do for all: orders that are drawn for each
    # do not make up for one another. Small sets might.
    large = [_generating(one, seed) for seed, one in enumerate(candidates) if one.size >= LARGE]
    together = all(_proved(model, example, moves) for moves in zip(*large, strict=True))
    return tuple(
        part
        for one in candidates
        for part in (
            [one] if together and one.size >= LARGE else _interchangeable(model, example, one)
        )
    )


def _interchangeable(model: nn.Module | Objective, example: Any, units: Units) -> list[Units]:
    """The whole set if it can be permuted at will, else its parts that can."""
    if units.size < 2:
        return []
    if all(_proved(model, example, [move]) for move in _generating(units)):
        return [units]
    if units.size > MOST_SPLIT:
        return []
    swaps = [(units, _swap(units.size, 0, i)) for i in range(1, units.size)]
    alike = [0, *(i for i, move in enumerate(swaps, 1) if _proved(model, example, [move]))]
    rest = [i for i in range(units.size) if i not in alike]
    parts = [_part(units, alike)] if len(alike) > 1 else []
    return parts + (_interchangeable(model, example, _part(units, rest)) if rest else [])


def _generating(units: Units, seed: int = 0) -> tuple[Move, Move]:
    """A cycle and a transposition in it generate all permutations: two proofs are enough."""
    order = units.random(seed)
    cycle, swap = torch.empty_like(order), torch.arange(units.size)
    cycle[order] = order.roll(1)
    swap[order[0]], swap[order[1]] = order[1], order[0]
    return (units, cycle), (units, swap)


def _swap(size: int, a: int, b: int) -> Tensor:
    order = torch.arange(size)
    order[a], order[b] = b, a
    return order


def _part(units: Units, members: list[int]) -> Units:
    return Units(units.name, {axis: places[members] for axis, places in units.places.items()})


@set_apart()
def head_maps(model: nn.Module | Objective, example: Any = None) -> tuple[HeadMap, ...]:
    """GL(d) on queries and keys, and on values and outputs, of every attention head.

    Heads whose queries or keys are rotated or normalized have no such freedom. Each is proved: a
    map that changes a prediction is left out.
    """
    labels, heads = _labelled(model, example)
    units = _by_label(labels)
    found: list[HeadMap] = []
    for attention in heads:
        found += _query_key(attention, units) + _value_output(attention, units)
    moves = [(one, one.random(seed)) for seed, one in enumerate(found, 1)]
    if not _proved(model, example, moves):
        moves = [move for move in moves if _proved(model, example, [move])]
    return tuple(one for one, _ in moves)


def _labelled(
    model: nn.Module | Objective, example: Any
) -> tuple[dict[str, list[Tensor]], list[Heads]]:
    """The label of every place along every axis of the parameters, and the attention heads."""
    walk = Walk(statistics="free", gauge=False)
    scales = walked(walk, model, example, _label_rule)
    labels = {name: _axes(walk, value) for name, value in scales.items()}

    def settled(ids: Tensor | None) -> Tensor | None:
        return None if ids is None else walk.system.canonical(ids)

    heads = [
        Heads(h.module, settled(h.query), settled(h.key), settled(h.value)) for h in walk.heads
    ]
    return labels, heads


def _label_rule(node: fx.Node, operation: Operation) -> Rule | None:
    """The rule for labels: of the operation itself, or of every elementwise one."""
    by_element = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return operation.labels or (elementwise if by_element else None)


def _axes(walk: Walk, value: Scales) -> list[Tensor]:
    """For each axis the labels along it, where one term lies along that axis alone."""
    found = []
    for axis in range(value.ndim):
        label = torch.full((value.shape[axis],), ZERO)
        for term in value.terms:
            small = compact(walk.system.canonical(term))
            if small.shape[axis] > 1 and small.numel() == small.shape[axis]:
                label = small.reshape(-1)
        found.append(label)
    return found


def _by_label(labels: dict[str, list[Tensor]]) -> dict[int, dict[Axis, list[int]]]:
    """Every unit: its label, and where it lies."""
    units: dict[int, dict[Axis, list[int]]] = {}
    for name, axes in labels.items():
        for axis, along in enumerate(axes):
            for place, label in enumerate(along.tolist()):
                if label not in (WILD, ZERO):
                    units.setdefault(label, {}).setdefault((name, axis), []).append(place)
    return units


def _query_key(attention: Heads, units: dict[int, dict[Axis, list[int]]]) -> list[HeadMap]:
    if attention.query is None or attention.key is None:
        return []
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for q, k in zip(attention.query.tolist(), attention.key.tolist(), strict=True):
        groups.setdefault(tuple(k), []).append(tuple(q))
    found = []
    for number, (key, queries) in enumerate(groups.items()):
        if not all(_distinct(row, units) for row in (key, *queries)):
            continue
        up = tuple(side for q in queries for side in _side(q, units, 0))
        name = f"{attention.module or 'attention'}, head {number}"
        found.append(HeadMap(name, "query-key", up, _side(key, units, 0)))
    return found


def _value_output(attention: Heads, units: dict[int, dict[Axis, list[int]]]) -> list[HeadMap]:
    if attention.value is None:
        return []
    found = []
    rows = list(dict.fromkeys(tuple(row) for row in attention.value.tolist()))
    for number, row in enumerate(rows):
        if not _distinct(row, units):
            continue
        sides = _side(row, units, None)
        repeats = len([r for r in attention.value.tolist() if tuple(r) == row])
        # a value lies once in what makes it, and once for every head in what takes it
        own = _maker(row, units)
        up = tuple(s for s in sides if s[0] in own)
        down = tuple(s for s in sides if s[0] not in own)
        if up and len(down) == repeats * len({axis for axis, _ in down}):
            name = f"{attention.module or 'attention'}, head {number}"
            found.append(HeadMap(name, "value-output", up, down))
    return found


def _maker(row: tuple[int, ...], units: dict[int, dict[Axis, list[int]]]) -> set[Axis]:
    """The projection that makes the values and its bias: the first matrix that is met."""
    axes = list(units[row[0]])
    first = next((a for a in axes if not a[0].endswith("bias")), axes[0])
    stem = first[0].rpartition("weight")[0]
    return {a for a in axes if a == first or a[0] == f"{stem}bias"}


def _distinct(row: tuple[int, ...], units: dict[int, dict[Axis, list[int]]]) -> bool:
    return len(set(row)) == len(row) > 0 and all(label in units for label in row)


def _side(
    row: tuple[int, ...], units: dict[int, dict[Axis, list[int]]], only: int | None
) -> tuple[tuple[Axis, Tensor], ...]:
    """For each axis on which the d labels lie: their places, once for every repetition."""
    found = []
    for axis in units[row[0]]:
        if not all(axis in units[label] for label in row):
            continue
        counts = {len(units[label][axis]) for label in row}
        for repeat in range(min(counts) if only is None else 1):
            found.append((axis, torch.tensor([units[label][axis][repeat] for label in row])))
    return tuple(found)


def _name(axes: list[Axis]) -> str:
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name, _ in axes))
    return modules[0] if len(modules) == 1 else f"{modules[0]} -> {modules[-1]}"


def _proved(model: nn.Module | Objective, example: Any, moves: Sequence[Move]) -> bool:
    """Whether all of these elements, one after the other, leave the predictions as they are."""
    if not moves:
        return True
    if isinstance(model, Objective):
        twin = exact = exactly(model)
        for symmetry, element in moves:
            twin = symmetry.apply(twin, element)
        return verify(exact, twin).holds
    predictor, _ = predictor_of(model, example)
    exact_model = cast(predictor.model, torch.float64, torch.device("cpu"))
    given = map_tensors(lambda t: t.double() if t.is_floating_point() else t, predictor.example)
    held = {**dict(exact_model.named_parameters()), **dict(exact_model.named_buffers())}
    names = {name for symmetry, _ in moves for name in _touched(symmetry)}
    moved = {n: t.detach() for n, t in held.items() if n in names}
    for symmetry, element in moves:
        moved = symmetry.act(moved, element)
    with torch.no_grad():
        before = predictor.answers(exact_model, given)
        for name, tensor in moved.items():
            held[name].data.copy_(tensor)
        after = predictor.answers(exact_model, given)
    return all(same(a, b, SAME) for a, b in zip(before, after, strict=True))


def _touched(symmetry: Units | HeadMap) -> list[str]:
    if isinstance(symmetry, Units):
        return [name for name, _ in symmetry.places]
    return [name for (name, _), _ in (*symmetry.up, *symmetry.down)]
