"""A group of rescalings theta -> exp(B t) * theta, as data."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import flatten
from spiritlevel.base.tensors import generator as random_generator
from spiritlevel.objective import Objective, only_objectives
from spiritlevel.results.provenance import Provenance, provenance
from spiritlevel.results.symmetry import Block, Freedom, Generator, Symmetries
from spiritlevel.results.terminal import RenderableType
from spiritlevel.symmetry.gaps import refuse_changed

if TYPE_CHECKING:
    from spiritlevel.symmetry.verify import Certificate

CHUNK = 1 << 20  # elements that are scaled while they lie in the cache


@dataclass(frozen=True)
class EpsScale:
    """A norm whose eps would have to move along: eps -> exp(2 s) eps, s its input's log-scale."""

    module: str
    operation: str
    eps: float
    forms: Tensor  # rows of the table of forms


@dataclass(frozen=True)
class Piece:
    """Some elements of one parameter and the exponent with which a generator scales them."""

    parameter: str
    exponents: Tensor  # broadcastable to the parameter

    def __str__(self) -> str:
        values = self.exponents.unique()
        if len(values) == 1:
            return f"{self.parameter} {float(values[0]):+g}"
        where = [_places(self.exponents, d) for d in range(self.exponents.ndim)]
        exponent = self.exponents[self.exponents != 0].unique().tolist()
        text = ", ".join(f"{e:+g}" for e in exponent)
        return f"{self.parameter}[{', '.join(where)}] {text}"


@dataclass(frozen=True, repr=False)
class Group:
    """theta -> exp(B t) * theta with the same predictions for every t.

    Row f of `forms` is a log-scale as a function of t; `placements` say, for each parameter, which
    rows its elements have: tensors of row numbers that are broadcast and added.
    """

    shapes: dict[str, torch.Size]
    placements: dict[str, tuple[Tensor, ...]]
    forms: csr_matrix  # (forms, dim)
    generators: tuple[Generator, ...]
    blocks: tuple[Block, ...] = ()
    unused: tuple[str, ...] = ()
    buffers: frozenset[str] = frozenset()
    norms: tuple[EpsScale, ...] = ()

    # What it is -------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        return len(self.generators)

    @property
    def kinds(self) -> dict[str, int]:
        """How many generators there are of each kind."""
        found: dict[str, int] = {}
        for g in self.generators:
            found[g.kind] = found.get(g.kind, 0) + 1
        return found

    @functools.cached_property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that nothing moves."""
        return tuple(n for n in self.shapes if n not in self._active and n not in self.buffers)

    @functools.cached_property
    def _active(self) -> dict[str, tuple[Tensor, ...]]:
        """The placements that some generator moves."""
        rows = torch.from_numpy(self.forms.getnnz(axis=1) > 0)
        found = {
            name: tuple(i for i in ids if bool(rows[i].any()))
            for name, ids in self.placements.items()
        }
        return {name: ids for name, ids in found.items() if ids}

    def pieces(self, index: int) -> tuple[Piece, ...]:
        """What generator number `index` scales, and with which exponents."""
        doors.place("index", index, self.dim)
        table = torch.from_numpy(self.forms[:, [index]].toarray()[:, 0])
        found = []
        for name, ids in self.placements.items():
            exponents = added([table[i] for i in ids])
            if bool(exponents.any()):
                found.append(Piece(name, exponents))
        return tuple(found)

    # Elements: vectors t ----------------------------------------------------------------------

    def identity(self) -> Tensor:
        return torch.zeros(self.dim, dtype=torch.float64)

    def inverse(self, t: Tensor) -> Tensor:
        return -self._checked(t)

    def compose(self, s: Tensor, t: Tensor) -> Tensor:
        return self._checked(s) + self._checked(t)

    def random(self, seed: int | torch.Generator = 0, scale: float = 0.5) -> Tensor:
        """Log-scales from N(0, scale^2), one per generator."""
        doors.number("scale", scale)
        draws = random_generator(seed)
        return scale * torch.randn(self.dim, generator=draws, dtype=torch.float64)

    # What they do -----------------------------------------------------------------------------

    def evaluate(self, t: Tensor) -> Tensor:
        """Every form at t."""
        return torch.from_numpy(self.forms @ self._checked(t).numpy())

    def log_scales(self, t: Tensor) -> dict[str, tuple[Tensor, ...]]:
        """B t: for each parameter the terms of its log-scale, to be broadcast and added."""
        table = self.evaluate(t)
        return {name: tuple(table[i] for i in ids) for name, ids in self.placements.items()}

    def act(self, params: Mapping[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        """exp(B t) * theta; what the group does not know stays as it is."""
        tensor_doors.tensors("params", params, self.shapes)
        table = exponential(self.evaluate(t))
        return {
            name: _scaled(tensor, [table[i] for i in self._active.get(name, ())])
            for name, tensor in params.items()
        }

    def factors(self, t: Tensor) -> dict[str, Tensor]:
        """exp(B t), laid out for each parameter."""
        return {
            name: exponential(added(terms)).expand(self.shapes[name])
            for name, terms in self.log_scales(t).items()
        }

    def flat_factors(self, t: Tensor, shapes: Mapping[str, torch.Size]) -> Tensor:
        """exp(B t) as one flat vector over the parameters of `shapes`, in order."""
        doors.a("shapes", shapes, Mapping, "shapes by name, such as objective.shapes")
        for name in doors.names("shapes", shapes):
            shape = shapes[name]
            doors.a("shapes", shape, torch.Size, "shapes by name, such as objective.shapes")
            doors.one_of(f"shapes[{name!r}]", shape, [self.shapes.get(name, shape)])
        factors, one = self.factors(t), torch.ones((), dtype=torch.float64)
        return flatten({name: factors.get(name, one).expand(s) for name, s in shapes.items()})

    def pull(self, values: Mapping[str, Tensor]) -> Tensor:
        """B' x for named tensors x: what each generator gathers."""
        tensor_doors.tensors("values", values, self.shapes)
        table = torch.zeros(self.forms.get_shape()[0], dtype=torch.float64)
        for name, ids in self.placements.items():
            if name in values:
                for index in ids:
                    summed = values[name].detach().cpu().double().sum_to_size(index.shape)
                    table.index_add_(0, index.reshape(-1), summed.reshape(-1))
        return torch.from_numpy(self.forms.T @ table.numpy())

    def matrix(self, names: Iterable[str] | None = None) -> csr_matrix:
        """B itself: one row per element of the parameters, in order."""
        parts = []
        for name in self.shapes if names is None else doors.names("names", names):
            doors.one_of("names", name, self.shapes)
            shape = self.shapes[name]
            part = csr_matrix((shape.numel(), self.dim))
            for index in self.placements.get(name, ()):
                part = part + self.forms[index.expand(shape).reshape(-1).numpy()]
            parts.append(part)
        return csr_matrix(vstack(parts))

    def locate(self, params: Mapping[str, Tensor], moved: Mapping[str, Tensor]) -> Tensor:
        """The t that takes `params` to `moved`, by least squares in the logarithms.

        Both by name, with the buffers that the group moves.
        """
        tensor_doors.tensors("params", params, self.shapes)
        tensor_doors.tensors("moved", moved, self.shapes)
        ratio, known = {}, {}
        missing = [n for n in self.placements if n not in params or n not in moved]
        if missing:
            raise SpiritlevelError(
                f"locate() needs {missing[0]!r} at both points: give "
                "{**objective.buffers, **objective.params}"
            )
        for name in self.placements:
            a, b = params[name].detach().cpu().double(), moved[name].detach().cpu().double()
            usable = (a != 0) & (b != 0)
            ratio[name] = torch.where(usable, (b / a).abs().log(), 0.0)
            known[name] = usable
        return self._least_squares(ratio, known)

    def _least_squares(self, target: dict[str, Tensor], known: dict[str, Tensor]) -> Tensor:
        """Conjugate gradients on B'B t = B' target."""
        t = self.identity()
        residual = self.pull(target)
        direction, norm, first = residual.clone(), float(residual @ residual), None
        for _ in range(2 * self.dim + 50):
            first = norm if first is None else first
            if norm <= 1e-28 * max(first, 1e-300) or norm == 0:
                break
            terms = self.log_scales(direction)
            image = {n: added(terms[n]).expand(self.shapes[n]) * known[n] for n in target}
            product = self.pull(image)
            step = norm / float(direction @ product)
            t, residual = t + step * direction, residual - step * product
            norm, old = float(residual @ residual), norm
            direction = residual + (norm / old) * direction
        return t

    # On objectives ----------------------------------------------------------------------------

    def apply(self, objective: Objective, t: Tensor) -> Objective:
        """The objective at exp(B t) * theta: another point, the same predictions.

        They are compared on a few examples before the point is handed out; `verify` proves it.
        """
        only_objectives(objective)
        held = objective.buffers
        state = {**objective.params, **{n: held[n] for n in self.buffers if n in held}}
        missing = [name for name in self.shapes if name not in state]
        if missing:
            raise SpiritlevelError(
                f"this group moves {missing[0]!r}, which the objective does not have as a "
                "parameter: make the group from the objective itself, symmetries(objective)"
            )
        moved = self.act(state, t)
        buffers = {name: moved.pop(name) for name in self.buffers}
        return refuse_changed(objective, objective.at(moved, buffers=buffers), bool(self.norms))

    def verify(self, objective: Objective, twin: Objective) -> Certificate:
        """The certificate that two objectives predict the same; see `verify`."""
        from spiritlevel.symmetry.verify import verify

        return verify(objective, twin, group=self)

    # Parts ------------------------------------------------------------------------------------

    def restrict(self, kinds: str | Iterable[str]) -> Group:
        """The subgroup of some kinds of generators."""
        wanted = set(doors.names("kinds", kinds))
        unknown = wanted - self.kinds.keys()
        if unknown:
            raise SpiritlevelError(
                f"no generator is of the kind {sorted(unknown)[0]!r}; there are: "
                + (", ".join(self.kinds) or "none")
            )
        chosen = [i for i, g in enumerate(self.generators) if g.kind in wanted]
        return self.select(chosen)

    def select(self, indices: Iterable[int]) -> Group:
        """The subgroup of some generators."""
        chosen = doors.places("indices", indices, self.dim)
        generators = tuple(self.generators[i] for i in chosen)
        return replace(self, forms=self.forms[:, chosen], generators=generators)

    def layerwise(self) -> Group:
        """One factor per layer, as in the paper: all channels of a layer move together."""
        keys = [(g.layer, g.kind) for g in self.generators]
        layers = list(dict.fromkeys(keys))
        places = [layers.index(key) for key in keys]
        shape = (self.dim, len(layers))
        together = csr_matrix(([1.0] * self.dim, (range(self.dim), places)), shape=shape)
        generators = []
        for layer, kind in layers:
            members = [g for g in self.generators if (g.layer, g.kind) == (layer, kind)]
            generators.append(Generator(_common(members), kind, layer))
        return replace(self, forms=self.forms @ together, generators=tuple(generators))

    def of_layers(self, element: Tensor) -> Tensor:
        """An element of `layerwise()` as one of this group: every channel moves as its layer."""
        keys = [(g.layer, g.kind) for g in self.generators]
        layers = list(dict.fromkeys(keys))
        tensor_doors.tensor("element", element, len(layers))
        return torch.stack([element[layers.index(key)] for key in keys])

    # For people -------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Group(dim={self.dim}, kinds={self.kinds})"

    def __str__(self) -> str:
        return str(self.result())

    def __rich__(self) -> RenderableType:
        return self.result().__rich__()

    def freedom(self) -> Freedom:
        """Its dimension and what blocks more, as plain data."""
        return Freedom(self.dim, self.kinds, self.blocks)

    def result(self, network: str = "a network", told: Provenance | None = None) -> Symmetries:
        """What was found, as plain data that can be written and read."""
        return Symmetries(
            network,
            sum(shape.numel() for shape in self.shapes.values()),
            self.freedom(),
            self.generators,
            len(self.norms),
            self.frozen,
            self.unused,
            told or provenance(time.perf_counter()),
        )

    def _checked(self, t: Tensor) -> Tensor:
        usable = isinstance(t, Tensor) and t.shape == (self.dim,) and bool(t.isfinite().all())
        if not usable:
            raise SpiritlevelError(
                f"an element of this group is a vector of {self.dim} finite log-scales; "
                f"got {f'shape {tuple(t.shape)}' if isinstance(t, Tensor) else type(t).__name__}"
            )
        return t.detach().cpu().double()


def only_groups(group: Any) -> None:
    """Refuse what is no Group, but for None: then it is found."""
    doors.a("group", group, (Group, type(None)), "a Group, such as symmetries(objective)")


def added(terms: Iterable[Tensor]) -> Tensor:
    """The sum of broadcastable terms; 0 if there are none."""
    total = torch.zeros((), dtype=torch.float64)
    for term in terms:
        total = total + term
    return total


def exponential(log_scale: Tensor) -> Tensor:
    """exp, exactly a power of two for multiples of log 2: such factors round nothing."""
    doublings = log_scale / math.log(2)
    whole = doublings.round()
    return torch.exp2(torch.where((doublings - whole).abs() < 1e-12, whole, doublings))


def _scaled(tensor: Tensor, factors: list[Tensor]) -> Tensor:
    """The product with all factors; large matrices chunk by chunk, while they are in the cache."""
    if not factors:
        return tensor.clone()
    factors = [factor.to(tensor) for factor in factors]
    if tensor.is_cuda or tensor.ndim < 2 or len(factors) == 1 or tensor.numel() <= CHUNK:
        return math.prod(factors[1:], start=tensor * factors[0])
    result = torch.empty_like(tensor)
    rows = max(CHUNK // max(tensor[0].numel(), 1), 1)
    for start in range(0, len(tensor), rows):
        piece = slice(start, start + rows)
        first, *rest = (f[piece] if f.shape[0] > 1 else f for f in factors)
        torch.mul(tensor[piece], first, out=result[piece])
        for factor in rest:
            result[piece].mul_(factor)
    return result


def _places(exponents: Tensor, dim: int) -> str:
    """Where along one axis a piece lies: a number, a few, or all."""
    others = [d for d in range(exponents.ndim) if d != dim]
    here = (exponents != 0).amax(others) if others else exponents != 0
    found = here.nonzero().flatten().tolist()
    if exponents.shape[dim] == 1 or len(found) == exponents.shape[dim]:
        return ":"
    if len(found) > 1 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}:{found[-1] + 1}"
    return str(found[0]) if len(found) == 1 else f"{len(found)} of {exponents.shape[dim]}"


def _common(members: list[Generator]) -> str:
    name = members[0].name.rsplit(", ", 1)[0]
    return f"{name}, {len(members)} channels together"
