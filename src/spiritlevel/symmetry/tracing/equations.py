"""Log-scales as linear forms over unknowns, and the equations between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Number = int | Fraction
Form = tuple[tuple[int, Number], ...]  # (unknown, coefficient), sorted

WILD = 0  # the id of an element that is zero or infinite whatever happens: any scale fits it
ZERO = 1  # the id of the form 0: an element that never moves
MERGE_LIMIT = 20_000_000  # elements; beyond it forms are not laid out one by one


@dataclass(frozen=True)
class Origin:
    """Where an unknown comes from: a row, a column or an element of a parameter."""

    parameter: str
    role: str
    index: int


class System:
    """Forms by id, and what is known of the unknowns.

    Tensors of ids stand for tensors of log-scales; they are expanded (stride 0) wherever they are
    constant, so that the work grows with channels and not with weights or pixels.
    """

    def __init__(self) -> None:
        self.forms: list[Form] = [(), ()]
        self.ids: dict[Form, int] = {(): ZERO}
        self.origins: list[Origin] = []
        self.solved: dict[int, Form] = {}
        self.touched: set[int] = set()  # unknowns that some equation or product has met
        self.fresh: set[int] = set()  # unknowns of the matrix that is being used for the first time

    # Forms ------------------------------------------------------------------------------------

    def unknowns(self, parameter: str, role: str, count: int) -> Tensor:
        """Ids of new unknowns."""
        first = len(self.forms)
        for index in range(count):
            variable = len(self.origins)
            self.origins.append(Origin(parameter, role, index))
            self.ids[(variable, 1),] = len(self.forms)
            self.forms.append(((variable, 1),))
        return torch.arange(first, first + count)

    def is_fresh(self, number: int) -> bool:
        """Whether the form is an unknown that nothing has met."""
        form = self.forms[number]
        return len(form) == 1 and form[0][0] not in self.touched

    def intern(self, form: Form) -> int:
        if form not in self.ids:
            self.ids[form] = len(self.forms)
            self.forms.append(form)
        return self.ids[form]

    def reduced(self, number: int) -> Form:
        """The form behind an id, in unknowns that are still free."""
        return self._reduce(self.forms[number])

    def _reduce(self, form: Form) -> Form:
        solved = self.solved
        if not any(v in solved for v, _ in form):
            return form
        total: dict[int, Number] = {}
        for v, c in form:
            if v in solved:
                solved[v] = self._reduce(solved[v])
                for w, d in solved[v]:
                    total[w] = total.get(w, 0) + c * d
            else:
                total[v] = total.get(v, 0) + c
        return _sorted(total)

    # Equations --------------------------------------------------------------------------------

    def equate(self, a: int, b: int) -> None:
        """form a = form b; an element that is zero anyway asks for nothing."""
        if a == b or WILD in (a, b):
            return
        self._vanish(_minus(self.reduced(a), self.reduced(b)))

    def equate_all(self, a: Tensor, b: Tensor) -> None:
        """The same for two tensors of ids, element by element."""
        for x, y in _pairs(a, b)[0]:
            self.equate(x, y)

    def vanish(self, ids: Tensor) -> set[str]:
        """Every form = 0; the parameters that lose a freedom by it."""
        lost: set[str] = set()
        for number in compact(ids).unique().tolist():
            form = self.reduced(number)
            if number != WILD and form:
                lost |= {self.origins[v].parameter for v, _ in form}
                self._vanish(form)
        return lost

    def _vanish(self, form: Form) -> None:
        if not form:
            return
        # what is used for the first time follows what was there before
        pivot, factor = max(
            form,
            key=lambda vc: (
                abs(vc[1]) == 1,
                vc[0] in self.fresh,
                vc[0] not in self.touched,
                vc[0],
            ),
        )
        self.touched.update(v for v, _ in form)
        rest = {v: _exact(Fraction(-c) / Fraction(factor)) for v, c in form if v != pivot}
        self.solved[pivot] = _sorted(rest)

    def tie(self, ids: Tensor, dims: Iterable[int]) -> Tensor:
        """All elements along `dims` have one scale; that, with the dims kept as size 1."""
        dims = [d % ids.ndim for d in dims]
        ids = compact(ids)
        if all(ids.shape[d] == 1 for d in dims):
            return ids
        if not ids.numel():  # a sum over nothing is zero
            return torch.full([1 if d in dims else n for d, n in enumerate(ids.shape)], WILD)
        kept = [d for d in range(ids.ndim) if d not in dims]
        table = ids.permute(*kept, *dims).reshape(-1, _count(ids, dims))
        firsts = table.gather(1, (table != WILD).int().argmax(1, keepdim=True))
        self.equate_all(firsts, table)
        return firsts.reshape([1 if d in dims else n for d, n in enumerate(ids.shape)])

    # Sums -------------------------------------------------------------------------------------

    def weighted(self, a: Tensor, b: Tensor, ca: Number = 1, cb: Number = 1) -> Tensor:
        """The forms ca a + cb b, broadcast; zero times anything is zero."""
        pairs, places, shape = _pairs(a, b)
        found = [
            WILD
            if WILD in pair
            else self.intern(_plus(self.reduced(pair[0]), self.reduced(pair[1]), ca, cb))
            for pair in pairs
        ]
        for number in found:
            self.touched.update(v for v, _ in self.forms[number])
        return torch.tensor(found, dtype=torch.int64)[places].reshape(shape)

    def times(self, ids: Tensor, power: Number) -> Tensor:
        """The forms power * ids."""
        return self.weighted(ids, torch.tensor(ZERO), power).expand(ids.shape)

    def merge(self, terms: list[Tensor]) -> Tensor:
        """The sum of broadcastable terms as one tensor of ids."""
        total = terms[0]
        for term in terms[1:]:
            total = self.weighted(compact(total), compact(term))
        shape = torch.broadcast_shapes(*(t.shape for t in terms))
        return total.expand(shape)

    def choose(self, a: Tensor, b: Tensor) -> Tensor:
        """What the sum of two tensors has: their common scale; zero takes on the other's."""
        a, b = compact(a), compact(b)
        self.equate_all(a, b)
        return torch.where(a == WILD, b, a)

    def canonical(self, ids: Tensor) -> Tensor:
        """The same forms after all that is known now, expanded where they are constant."""
        small = compact(ids)
        values, places = small.unique(return_inverse=True)
        fresh = [n if n == WILD else self.intern(self.reduced(n)) for n in values.tolist()]
        found = torch.tensor(fresh, dtype=torch.int64)[places].reshape(small.shape)
        return squash(found).expand(ids.shape)

    def rename(self, ids: Tensor) -> Tensor:
        """Give long forms that hold a fresh unknown a short name.

        The new unknown takes the fresh one's place, so forms do not grow with depth.
        """
        values, places = compact(ids).unique(return_inverse=True)
        found = []
        for number in values.tolist():
            form = self.reduced(number)
            fresh = [v for v, c in form if abs(c) == 1 and v in self.fresh]
            if number == WILD or len(form) < 2 or not fresh:
                found.append(number if number == WILD else self.intern(form))
                continue
            pivot = fresh[-1]
            sign = next(c for v, c in form if v == pivot)
            origin = self.origins[pivot]
            name = int(self.unknowns(origin.parameter, origin.role, 1))
            variable = self.forms[name][0][0]
            self.origins[variable] = origin
            rest = {v: -c * sign for v, c in form if v != pivot} | {variable: sign}
            self.solved[pivot] = _sorted(rest)
            found.append(name)
        result = torch.tensor(found, dtype=torch.int64)[places].reshape(compact(ids).shape)
        return result.expand(ids.shape)


# Tensors of ids -------------------------------------------------------------------------------


def compact(ids: Tensor) -> Tensor:
    """Without the repetitions that stride 0 makes."""
    for dim, (size, stride) in enumerate(zip(ids.shape, ids.stride(), strict=True)):
        if stride == 0 and size > 1:
            ids = ids.narrow(dim, 0, 1)
    return ids


def squash(ids: Tensor) -> Tensor:
    """Expanded where it is constant, found by looking."""
    shape, small = ids.shape, compact(ids)
    for dim, size in enumerate(small.shape):
        first = small.narrow(dim, 0, min(1, size))
        if size > 1 and bool((small == first).all()):
            small = first
    return small.expand(shape)


def constant_along(ids: Tensor, dims: Iterable[int]) -> bool:
    return all(ids.shape[d] == 1 or ids.stride(d) == 0 for d in dims)


def _pairs(a: Tensor, b: Tensor) -> tuple[list[tuple[int, int]], Tensor, torch.Size]:
    """The different pairs of ids, which pair each element is, and the shape."""
    a, b = torch.broadcast_tensors(compact(a), compact(b))
    if a.numel() > MERGE_LIMIT:
        raise MemoryError(f"{a.numel()} scales would have to be laid out one by one")
    keys, places = ((a << 32) | b).unique(return_inverse=True)
    return [(k >> 32, k & 0xFFFFFFFF) for k in keys.tolist()], places, a.shape


def _count(ids: Tensor, dims: list[int]) -> int:
    total = 1
    for d in dims:
        total *= ids.shape[d]
    return total


# Arithmetic -----------------------------------------------------------------------------------


def _exact(value: Fraction) -> Number:
    return int(value) if value.denominator == 1 else value


def _sorted(total: dict[int, Number]) -> Form:
    return tuple(sorted((v, c) for v, c in total.items() if c))


def _plus(a: Form, b: Form, ca: Number = 1, cb: Number = 1) -> Form:
    total: dict[int, Number] = {v: ca * c for v, c in a}
    for v, c in b:
        total[v] = total.get(v, 0) + cb * c
    return _sorted(total)


def _minus(a: Form, b: Form) -> Form:
    return _plus(a, b, 1, -1)
