"""What a walk through a graph knows: scales of tensors, equations, and what blocked what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx

from spiritlevel.results.symmetry import Block, Reason
from spiritlevel.symmetry.tracing.equations import (
    WILD,
    ZERO,
    Number,
    System,
    compact,
    constant_along,
    squash,
)

Given = Mapping[str, Any]  # the arguments of an operation by name
Statistics = Literal["fixed", "free"]
Eps = Literal["exact", "approximate"]
TINY = 1e-3  # a constant below it that is added under a root is an eps


@dataclass(frozen=True)
class Scales:
    """The log-scale of every element: a sum of tensors of ids, each as large as the tensor.

    Activations have one term; a matrix of parameters has two, one for its rows and one for its
    columns.
    """

    terms: tuple[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        return self.terms[0].shape

    @property
    def ndim(self) -> int:
        return self.terms[0].ndim


@dataclass(frozen=True)
class Norm:
    """A normalization whose eps a scale of its input would break a little."""

    module: str
    operation: str
    eps: float
    scale: Tensor  # ids of the scale of its input


@dataclass(frozen=True)
class Heads:
    """One attention: ids of its queries, keys and values, (heads, dimensions) each."""

    module: str
    query: Tensor | None
    key: Tensor | None
    value: Tensor | None


@dataclass
class Walk:
    """The state of one walk."""

    statistics: Statistics = "fixed"
    eps: Eps = "exact"
    system: System = field(default_factory=System)
    blocks: list[Block] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    notes: list[tuple[str, Tensor]] = field(default_factory=list)
    heads: list[Heads] = field(default_factory=list)
    gauge: bool = True
    signed: bool = False  # factors may be negative
    node: fx.Node | None = None

    # Where we are -----------------------------------------------------------------------------

    @property
    def module(self) -> str:
        """The path of the module that the present operation belongs to."""
        return module_of(self.node)

    @property
    def shape(self) -> torch.Size:
        """The shape of what the present operation makes."""
        assert self.node is not None
        value = self.node.meta["val"]
        return (value[0] if isinstance(value, (tuple, list)) else value).shape

    @property
    def meets_parameter(self) -> bool:
        """Whether the present operation takes a parameter as it is."""
        assert self.node is not None
        return any(n.op == "placeholder" for n in self.node.all_input_nodes)

    def option(self, name: str) -> Any:
        """An argument of the present operation by its name in the schema."""
        assert self.node is not None
        return arguments(self.node).get(name)

    # Scales -----------------------------------------------------------------------------------

    def single(self, value: Any) -> Tensor:
        """The scales of a value as one tensor of ids."""
        if isinstance(value, Scales):
            return self.system.merge(list(value.terms))
        return self._lifted(value)

    def terms(self, value: Any) -> list[Tensor]:
        return list(value.terms) if isinstance(value, Scales) else [self._lifted(value)]

    def _lifted(self, value: Any) -> Tensor:
        """The ids of a constant: zeros fit any factor, infinities any positive one."""
        if not isinstance(value, Tensor):
            value = torch.tensor(value)
        free = value == 0
        if not self.signed and value.dtype != torch.bool:
            free = free | value.isinf()
        return squash(torch.where(free, WILD, ZERO))

    def made(self, ids: Tensor, shape: torch.Size | None = None) -> Scales:
        return Scales((ids.expand(self.shape if shape is None else shape),))

    def still(self, shape: torch.Size) -> Scales:
        """A tensor that never moves."""
        return Scales((torch.tensor(ZERO).expand(shape),))

    def tied(self, value: Any, dims: list[int]) -> Tensor:
        """One scale along `dims`; terms that are constant there need no equation."""
        terms = self.terms(value)
        inner = [t for t in terms if not constant_along(t, dims)]
        outer = [compact(t) for t in terms if constant_along(t, dims)]
        if inner:
            outer.append(self.system.tie(self.system.merge(inner), dims))
        shape = [1 if d in {x % value.ndim for x in dims} else n for d, n in enumerate(value.shape)]
        return self.system.merge(outer).expand(shape)

    def contract(self, values: list[Any], terms: list[Tensor], dims: list[int]) -> Tensor:
        """Products summed over `dims`: the sum of the terms must not depend on them.

        `terms` are the values' terms laid out over one common index space; the result keeps the
        dims with size 1. Rows of a matrix that is used for the first time get their names here.
        """
        system = self.system
        full = list(torch.broadcast_shapes(*(t.shape for t in terms)))
        for dim in dims:
            full[dim] = 1
        if any(bool((compact(t) == WILD).all()) for t in terms):  # sums of zeros
            return torch.tensor(WILD).expand(full)
        system.fresh = self._fresh(values)
        terms = [system.canonical(t) for t in terms]
        inner = [t for t in terms if not constant_along(t, dims)]
        outer = [compact(t) for t in terms if constant_along(t, dims)]
        if inner:
            outer.append(system.tie(system.merge(inner), dims))
        found = system.rename(system.merge(outer)).expand(full)
        system.fresh = set()
        return found

    def _fresh(self, values: list[Any]) -> set[int]:
        """Unknowns of parameters that nothing has met yet."""
        system = self.system
        found: set[int] = set()
        for value in values:
            if isinstance(value, Scales) and len(value.terms) > 1:
                for number in torch.cat([compact(t).unique() for t in value.terms]).tolist():
                    if system.is_fresh(number):
                        found.add(system.forms[number][0][0])
        return found

    # Events -----------------------------------------------------------------------------------

    def block(self, value: Any, operation: str, reason: Reason = Reason.CONSTANT) -> None:
        """The operation lets no scale through."""
        if not isinstance(value, Scales):
            return
        lost: set[str] = set()
        first = value.terms[0]
        if len(value.terms) == 1:
            lost = self.system.vanish(first)
        else:  # rows + columns = 0 without laying the matrix out
            ids = [compact(t).unique() for t in value.terms]
            ids = [some[some != WILD] for some in ids]
            if not all(len(some) for some in ids):
                return
            for some in ids:
                lost |= self._parameters(some)
                self.system.equate_all(some, some[:1])
            self.system.vanish(self.system.merge([some[:1] for some in ids]))
        if lost:
            self.blocks.append(Block(operation, self.module, tuple(sorted(lost)), reason))

    def _parameters(self, ids: Tensor) -> set[str]:
        forms = [self.system.reduced(n) for n in ids.tolist() if n != WILD]
        return {self.system.origins[v].parameter for form in forms for v, _ in form}

    def note(self, kind: str, value: Any) -> None:
        """Remember that these scales pass here; generators get their kinds from it."""
        terms = value.terms if isinstance(value, Scales) else (value,)
        self.notes += [(kind, compact(t)) for t in terms if isinstance(t, Tensor)]

    def power(self, value: Any, power: Number) -> Scales:
        return self.made(self.system.times(self.single(value), power))


def schema(node: fx.Node) -> list[torch.Argument]:
    """What an operation takes, in order; nothing for what is no operation of torch."""
    target = node.target
    return target._schema.arguments if isinstance(target, torch._ops.OpOverload) else []


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, with the defaults that a graph leaves out."""
    given = dict(zip((a.name for a in schema(node)), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema(node)}


def module_of(node: fx.Node | None) -> str:
    stack = node.meta.get("nn_module_stack") if node is not None else None
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return path.removeprefix("L['self'].").removeprefix("model.") if path != "model" else ""
