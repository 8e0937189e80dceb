"""Two networks with what tells nothing apart divided out: scales and the order of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensor_doors import seeded
from spiritlevel.base.tensors import flatten, generator
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.orbit.representative import representative
from spiritlevel.results.certificate import VERDICTS
from spiritlevel.symmetry import Certificate, Group, Units, permutations, verify
from spiritlevel.symmetry.group import only_groups

FEW = 64  # examples on which sets of units are found; what is moved is proved on all
STARTS = 3
GAIN = 1e-12  # of what all products together could be: less is rounding
Weights = dict[str, Tensor]
Orders = list[Tensor]  # for every set of units: which of them comes to the place of which


@dataclass(frozen=True)
class Alignment:
    """Two networks that predict what they did, as near to each other as was found.

    The first is the representative of its orbit; the second too, with its units in other places.
    `moved` of the `units` that can be exchanged changed place. Distances are those of all
    parameters: as given, between the representatives, and with the units moved. The first two
    are in different coordinates, so that the second may be larger; the third is never larger than
    the second. That no order of the units is better is not proved.
    """

    first: Objective
    second: Objective
    certificates: tuple[Certificate, ...]  # of the two representatives, and of the units moved
    moved: int
    units: int
    distance_before: float
    distance_rescaled: float
    distance_after: float

    @property
    def certificate(self) -> Certificate:
        """The weakest of the proofs."""
        return max(self.certificates, key=lambda c: (VERDICTS.index(c.verdict), c.relative))


@set_apart()
def aligned(
    a: Objective, b: Objective, *, group: Group | None = None, starts: int = STARTS, seed: int = 0
) -> Alignment:
    """max over the orders P of interchangeable units of <theta_a, P theta_b>, both rescaled before.

    Both go to the point of their orbit with the least weight norm. Then one set of units of b after
    another is matched to those of a by a linear assignment that is solved exactly, until nothing
    changes, from several starts (Ainsworth et al., 2023, algorithm 1).
    """
    only_objectives(a, b)
    only_groups(group)
    number("starts", starts, 1, whole=True)
    seeded(seed)
    _refuse_other(a, b)
    first, second = representative(a, group), representative(b, group)
    few = second.objective.on([second.objective.few(FEW)])
    sets = permutations(few)
    ours, theirs = _weights(first.objective), _weights(second.objective)
    orders = _matched(sets, ours, theirs, starts, seed)
    moved = _moved(sets, second.objective, orders)
    proof = verify(second.objective, moved).require()
    return Alignment(
        first=first.objective,
        second=moved,
        certificates=(first.certificate, second.certificate, proof),
        moved=sum(int((order != torch.arange(len(order))).sum()) for order in orders),
        units=sum(units.size for units in sets),
        distance_before=_distance(a, b),
        distance_rescaled=_distance(first.objective, second.objective),
        distance_after=_distance(first.objective, moved),
    )


def _refuse_other(a: Objective, b: Objective) -> None:
    """Networks whose parameters or buffers have other names or shapes."""
    ours, theirs = ({**o.buffers, **o.params} for o in (a, b))
    for name in {**ours, **theirs}:
        shapes = [tuple(w[name].shape) if name in w else "none" for w in (ours, theirs)]
        if shapes[0] != shapes[1] or (name in a.params) != (name in b.params):
            raise SpiritlevelError(
                f"b is no network like a: {name!r} has the shape {shapes[0]} in a and {shapes[1]} "
                "in b; give two of one architecture, with the same params"
            )


def _distance(a: Objective, b: Objective) -> float:
    ours, theirs = _weights(a), _weights(b)
    return float((flatten(ours) - flatten({n: theirs[n] for n in ours})).norm())


def _weights(objective: Objective) -> Weights:
    return {n: p.detach().cpu().double() for n, p in objective.params.items()}


def _moved(sets: Sequence[Units], objective: Objective, orders: Orders) -> Objective:
    """The objective with every set of units in its order; running statistics move along."""
    held = {n: b for n, b in objective.buffers.items() if any(n in _names(u) for u in sets)}
    state = {**objective.params, **held}
    for units, order in zip(sets, orders, strict=True):
        state = units.act(state, order)
    buffers = {n: state.pop(n) for n in held}
    return objective.at(state, buffers=buffers)


def _matched(
    sets: Sequence[Units], ours: Weights, theirs: Weights, starts: int, seed: int
) -> Orders:
    """The best orders from several starts: as they are, by sorted weights, and at random."""
    draws = generator(seed)
    best, most = [torch.arange(units.size) for units in sets], _product(ours, theirs)
    for start in range(starts if sets else 0):
        if start == 0:
            orders = [torch.arange(units.size) for units in sets]
        elif start == 1:
            orders = _by_sorted_weights(sets, ours, theirs)
        else:
            orders = [units.random(draws) for units in sets]
        orders, found = _descended(sets, ours, theirs, orders, draws)
        if found > most + GAIN * _most(ours, theirs):
            best, most = orders, found
    return best


def _descended(
    sets: Sequence[Units], ours: Weights, theirs: Weights, orders: Orders, draws: torch.Generator
) -> tuple[Orders, float]:
    """One set after another in its best order, the others fixed, until none gets better."""
    orders, here = list(orders), dict(theirs)
    for units, order in zip(sets, orders, strict=True):
        here = _act(units, here, order)
    least, better = GAIN * _most(ours, theirs), True
    while better:
        better = False
        for place in torch.randperm(len(sets), generator=draws).tolist():
            units, names = sets[place], _names(sets[place]) & ours.keys()
            order = _assigned(_products(units, ours, here))
            there = _act(units, here, order)
            # where a matrix has the same units on both axes, the sum is not linear in the order
            gain = sum(float((ours[n] * (there[n] - here[n])).sum()) for n in names)
            if gain > least:
                here, orders[place], better = there, orders[place][order], True
    return orders, _product(ours, here)


def _by_sorted_weights(sets: Sequence[Units], ours: Weights, theirs: Weights) -> Orders:
    """Each set in the best order as far as can be told while those after it have no order yet.

    Along axes without an order the weights are sorted: units that differ by the order of others
    only are then alike (the bound of Gilmore and Lawler for quadratic assignments).
    """
    here, loose = dict(theirs), [axis for units in sets for axis in units.places]
    orders = []
    for units in sets:
        order = _assigned(_products(units, ours, here, loose))
        here = _act(units, here, order)
        for axis in units.places:
            loose.remove(axis)
        orders.append(order)
    return orders


def _products(
    units: Units, ours: Weights, theirs: Weights, loose: Sequence[tuple[str, int]] = ()
) -> Tensor:
    """<weights of unit i of a, weights of unit j of b>, over all axes on which they lie."""
    found = torch.zeros(units.size, units.size, dtype=torch.float64)
    for (name, axis), places in units.places.items():
        if name in ours:
            others = [d for n, d in loose if n == name and d != axis]
            rows = [_rows(w[name], axis, places, others) for w in (ours, theirs)]
            found += rows[0] @ rows[1].T
    return found


def _rows(tensor: Tensor, axis: int, places: Tensor, loose: Sequence[int]) -> Tensor:
    """One row for every unit: all its weights, sorted along the loose axes."""
    if not loose:
        return tensor.movedim(axis, 0)[places].flatten(1)
    fixed = [d for d in range(tensor.ndim) if d != axis and d not in loose]
    last = sorted({*loose})
    laid = tensor.permute(axis, *fixed, *last).flatten(1 + len(fixed))
    return laid[places].sort(dim=-1).values.flatten(1)


def _assigned(products: Tensor) -> Tensor:
    """The order with the largest sum."""
    return torch.from_numpy(linear_sum_assignment(products.numpy(), maximize=True)[1])


def _act(units: Units, weights: Weights, order: Tensor) -> Weights:
    touched = {n: weights[n] for n in _names(units) & weights.keys()}
    return {**weights, **units.act(touched, order)}


def _names(units: Units) -> set[str]:
    return {name for name, _ in units.places}


def _product(ours: Weights, theirs: Weights) -> float:
    return sum(float((w * theirs[n]).sum()) for n, w in ours.items())


def _most(ours: Weights, theirs: Weights) -> float:
    """|theta_a| |theta_b|: no product is larger."""
    return float(flatten(ours).norm() * flatten(theirs).norm())
