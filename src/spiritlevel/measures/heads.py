"""The metric of attention heads, and coordinates that no change of basis inside a head sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.objective import Objective
from spiritlevel.symmetry.units import Axis, HeadMap, head_maps

SINGULAR = 1e-7  # relative: a direction of a head that has no weights


@dataclass(frozen=True)
class Side:
    """The weights U and the biases b of one side of a head, rows in its basis: [U, b] = B F s.

    `places` are those in the flat vector, (d, columns). B B' = U U'; B goes to A B where U goes to
    A U, and F = [W, beta] stays. `sizes` is s for each column, 1 for weights; a bias is of the size
    s^2 = b' (U U')^-1 b, so that beta has length one. The last `biases` columns are biases.
    """

    places: Tensor
    frame: Tensor
    inside: Tensor
    sizes: Tensor
    biases: int
    full: bool  # whether U has the rank d

    def turned(self, z: Tensor) -> Tensor:
        """B Z s: coordinates as parameters, in columns or in blocks of them."""
        sizes = self.sizes if z.ndim == 2 else self.sizes[:, None]
        return torch.tensordot(self.frame.to(z), z, 1) * sizes.to(z)

    def pulled(self, v: Tensor) -> Tensor:
        """B' V s, the transpose of that."""
        sizes = self.sizes if v.ndim == 2 else self.sizes[:, None]
        return torch.tensordot(self.frame.T.to(v), v * sizes.to(v), 1)

    def geodesic(self, z: Tensor) -> Tensor:
        """B (F + Z + F'' / 2) s, F'' the acceleration of the geodesic that leaves along Z.

        The metric is tr(M^-1 dU dU') + db' M^-1 db / (b' M^-1 b), M = U U'. Its geodesics have
        U'' = M' M^-1 U' - (U' U'^T + K) M^-1 U, M' of U U' along the way, K from the biases; here
        M = 1 at the point.
        """
        cut, inside = z.shape[1] - self.biases, self.inside.to(z)
        w, beta = inside[:, :cut], inside[:, cut:]
        v, c = z[:, :cut], z[:, cut:] * (self.sizes[cut:] > 0)
        turn = v @ w.T + w @ v.T
        lengths, along = c.square().sum(0), 2 * (beta * c).sum(0)
        pull = v @ v.T + c @ c.T - (beta * lengths) @ beta.T
        bends = turn @ c + c * (along - (beta * (turn @ beta)).sum(0)) - beta * lengths
        bent = torch.cat([turn @ v - pull @ w, bends], 1)
        return self.turned(inside + z + bent / 2)


@dataclass(frozen=True)
class Head:
    """Both sides of a head, and what it takes to leave out the maps (A U, A^-T V) of its basis.

    In coordinates these are (X F_u, -C^-1 X' C F_v) for any X, with C = B_u' B_v. What is taken out
    of (Z_u, Z_v) solves X P_u + (C P_v C') X (C C')^-1 = Z_u F_u' - C F_v Z_v' C^-1, P = F F', by
    `left`, `right` and `weights`; the rest is orthogonal to all of them.
    """

    up: Side
    down: Side
    mix: Tensor  # C
    left: Tensor
    right: Tensor
    weights: Tensor

    def horizontal(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of both sides without what only changes the basis."""
        u, v = self.up.inside, self.down.inside
        skew = torch.linalg.solve(self.mix, (self.mix @ v @ down.T), left=False)
        found = self.left.T @ (up @ u.T - skew) @ self.right / self.weights
        x = self.left @ found @ self.right.T
        return up - x @ u, down + torch.linalg.solve(self.mix, x.T @ self.mix @ v)


@dataclass(frozen=True)
class Chart:
    """Coordinates u of the parameters around a point, in which the metric is the identity there.

    Heads whose maps are found have those of their sides; all else has the metric 1 / theta^2. What
    is zero stays zero.
    """

    theta: Tensor
    heads: tuple[Head, ...]

    @property
    def sides(self) -> list[Side]:
        return [side for head in self.heads for side in (head.up, head.down)]

    def push(self, u: Tensor) -> Tensor:
        """The direction of the parameters that a vector (or a block) of coordinates is."""
        result = u * (self.theta.abs() if u.ndim == 1 else self.theta.abs()[:, None])
        for side in self.sides:
            result[side.places] = side.turned(u[side.places])
        return result

    def pull(self, v: Tensor) -> Tensor:
        """A slope in the parameters as one in the coordinates: the transpose of `push`."""
        result = v * (self.theta.abs() if v.ndim == 1 else self.theta.abs()[:, None])
        for side in self.sides:
            result[side.places] = side.pulled(v[side.places])
        return result

    def point(self, u: Tensor) -> Tensor:
        """Where the geodesic that leaves along u is after one unit of time, to second order."""
        result = self.theta + self.theta.abs() * u + self.theta * u.square() / 2
        for side in self.sides:
            result = result.index_put((side.places,), side.geodesic(u[side.places]))
        return result

    def horizontal(self, u: Tensor) -> Tensor:
        """The nearest coordinates that are orthogonal to every map of every head."""
        result = torch.where(self.theta == 0, 0.0, u)
        for head in self.heads:
            up, down = head.up.places, head.down.places
            moving = [(head.up.sizes > 0).to(u), (head.down.sizes > 0).to(u)]
            given = (u[up] * moving[0]).double(), (u[down] * moving[1]).double()
            left, right = head.horizontal(*given)
            result[up], result[down] = left.to(u), right.to(u)
        return result


@set_apart()
def chart_of(objective: Objective, name: str, instead: str) -> Chart:
    """That of all heads; an error of the measure `name` where there are none, or they overlap."""
    maps = head_maps(objective)
    if not maps:
        raise SpiritlevelError(
            f"{name} is of attention heads whose basis is free; none was found here (rotated or "
            f"normalized queries and keys have no free one): use {instead}"
        )
    heads = tuple(_head(objective, one) for one in maps)
    chart = Chart(objective.vector, heads)
    taken = torch.cat([side.places.reshape(-1) for side in chart.sides])
    if len(taken.unique()) < len(taken):
        raise SpiritlevelError(
            f"some weights belong to two heads, or to both sides of one: {name} has no metric for "
            f"them; use {instead}"
        )
    return chart


def _head(objective: Objective, one: HeadMap) -> Head:
    up, down = _side(objective, one.up), _side(objective, one.down)
    mix = up.frame.T @ down.frame
    if not (up.full and down.full):  # without such a solution
        return Head(up, down, mix, mix, mix, mix)
    values, left = torch.linalg.eigh(mix @ down.inside @ down.inside.T @ mix.T)
    factor = torch.linalg.cholesky(up.inside @ up.inside.T)
    half = torch.linalg.inv(factor.T @ mix)  # half' half = L^-1 (C C')^-1 L^-T
    others, turn = torch.linalg.eigh(half.T @ half)
    right = torch.linalg.solve(factor.T, turn)
    return Head(up, down, mix, left, right, 1 + values[:, None] * others)


def _side(objective: Objective, side: tuple[tuple[Axis, Tensor], ...]) -> Side:
    theta, shapes = objective.vector, objective.shapes
    found = [(name, _places(objective, name, axis, rows)) for (name, axis), rows in side]
    weights = torch.cat([where for name, where in found if len(shapes[name]) > 1], 1)
    biases = [where for name, where in found if len(shapes[name]) == 1]
    frame, back, rows, full = _framed(theta[weights].double())
    columns, sizes = [rows], [torch.ones_like(rows[0])]
    for where in biases:
        inside = back @ theta[where].double()
        length = inside.norm()
        columns.append(inside / length if length > 0 else inside)
        sizes.append(length[None])
    places = torch.cat([weights, *biases], 1)
    return Side(places, frame, torch.cat(columns, 1), torch.cat(sizes), len(biases), full)


def _framed(u: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """B with B B' = U U', its inverse, B^-1 U, and whether there is an inverse.

    U = P S Q' by singular values, and B = P S R with the rotation R nearest to Q' G, G any fixed
    matrix: it makes up for the choice of P and Q, so that A U has A B and the same B^-1 U.
    """
    left, sizes, right = torch.linalg.svd(u, full_matrices=False)
    some = right @ gaussian((u.shape[1], u.shape[0]), generator(0), u)
    a, _, b = torch.linalg.svd(some, full_matrices=False)
    known = sizes > SINGULAR * sizes[0]
    inverse = torch.where(known, 1 / sizes, 0.0)
    turn = a @ b
    full = len(sizes) == len(u) and bool(known.all())
    return (left * sizes) @ turn, turn.T @ (inverse[:, None] * left.T), turn.T @ right, full


def _places(objective: Objective, name: str, axis: int, rows: Tensor) -> Tensor:
    """Where the rows of a head lie in the flat vector, (d, columns)."""
    span = objective.spans[name]
    index = torch.arange(span.start, span.stop).reshape(objective.shapes[name]).movedim(axis, 0)
    return index[rows].reshape(len(rows), -1).to(objective.device)
