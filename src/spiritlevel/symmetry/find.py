"""Find the group of a model: export, walk, collect what stayed free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from scipy.sparse import csr_matrix
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from spiritlevel.base.doors import one_of
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import generator
from spiritlevel.objective import Objective
from spiritlevel.symmetry.group import EpsScale, Generator, Group, only_groups
from spiritlevel.symmetry.predictors import canonical_names, predictor_of
from spiritlevel.symmetry.tracing.dead import dead_biases
from spiritlevel.symmetry.tracing.equations import WILD, Number, compact
from spiritlevel.symmetry.tracing.graph import Interpreter, Lookup, capture, name_of
from spiritlevel.symmetry.tracing.parameters import parameter_scales
from spiritlevel.symmetry.tracing.state import Block, Eps, Scales, Statistics, Walk, arguments

# in the order in which they name a generator that passes several
KINDS = (
    "dead",
    "query-key",
    "value-output",
    "residual",
    "norm input",
    "gain",
    "gate",
    "hidden",
    "linear",
)


@set_apart()
def symmetries(
    model: nn.Module | Objective,
    example: Any = None,
    *,
    statistics: Statistics = "fixed",
    eps: Eps = "exact",
) -> Group:
    """Every rescaling of the parameters that leaves all predictions as they are.

    From the torch.export graph: each operation states equations between the log-scales of its
    inputs, outputs and parameters, and what they leave free are the generators. Sound by
    construction; an operation that no rule covers blocks what passes it, and is named.

    - `example`: what the model takes (a tensor, a tuple of arguments, a dict of named ones); an
      Objective brings its own, and common models are guessed.
    - predictions are all tensors that the model returns. Where the loss of an Objective is no
      function of them (penalties on the weights), it has to stay as well.
    - `statistics`: "free" lets the running statistics of BatchNorm move along.
    - `eps`: "approximate" admits scales that the eps of a norm breaks a little.
    """
    one_of("statistics", statistics, get_args(Statistics))
    one_of("eps", eps, get_args(Eps))
    walk = Walk(statistics, eps)
    scales = walked(walk, model, example, lambda node, operation: operation.scales)
    group = collected(walk, scales)
    if isinstance(model, Objective):
        refuse_moved_loss(model, group)
    return group


def group_of(objective: Objective, group: Group | None) -> Group:
    """The group that is given, or the one that is found."""
    only_groups(group)
    return symmetries(objective) if group is None else group


def refuse_moved_loss(objective: Objective, group: Group) -> None:
    """What was read off a graph, held to the numbers once: a random element must change nothing."""
    if group.dim:
        group.apply(objective, group.random(0))


def walked(
    walk: Walk, model: nn.Module | Objective, example: Any, rules: Lookup
) -> dict[str, Scales]:
    """Export the model and walk along its graph; the scales of its parameters by name."""
    predictor, movable = predictor_of(model, example)
    program = capture(predictor)
    names = canonical_names(predictor.model)
    scales = _propagate(walk, program, movable, names, rules, predictor.with_loss)
    return {n: scales[n] for n in dict.fromkeys(names.values()) if n in scales}


def _propagate(
    walk: Walk,
    program: ExportedProgram,
    movable: set[str],
    names: Mapping[str, str],
    rules: Lookup,
    with_loss: bool,
) -> dict[str, Scales]:
    """Walk the graph; the scales of the parameters by name."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    places: dict[str, list[fx.Node]] = {}
    for node, spec in zip(nodes, specs, strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            own = names[str(spec.target).removeprefix("model.")]
            places.setdefault(own, []).append(node)
    statistics = _statistics(program.graph) if walk.statistics == "free" else set()
    scales: dict[str, Scales] = {}
    for name, uses in places.items():
        if name in movable or statistics.intersection(uses):
            scales[name] = parameter_scales(walk, name, uses[0].meta["val"].shape, uses)
    inputs = _inputs(walk, program, nodes, scales, names)
    dead = dead_biases(program.graph) if walk.gauge else {}
    answers = _answers(program)
    pinned = {n.name: "output" for node in answers for n in _as_returned(node)}
    if with_loss:
        pinned |= {n.name: "loss" for n in _as_returned(answers[-1])}
        reached = _reached(answers[-1], {n for n in pinned if pinned[n] == "output"})
        penalized = [n for n, uses in places.items() if n in scales and reached.intersection(uses)]
        if penalized:
            walk.blocks.append(Block("loss", "", tuple(sorted(penalized))))
    interpreter = Interpreter(walk, dead, rules, pinned)
    interpreter.run(program.graph_module, inputs)
    walk.node = None
    return scales


def _inputs(
    walk: Walk,
    program: ExportedProgram,
    nodes: list[fx.Node],
    scales: dict[str, Scales],
    names: Mapping[str, str],
) -> list[Any]:
    """What the graph is run on: scales of parameters, still inputs, constants."""
    inputs: list[Any] = []
    draws = generator(0)
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        own = names.get(str(spec.target).removeprefix("model.")) if spec.target else None
        if own in scales:
            inputs.append(scales[own])
        elif spec.kind == InputKind.USER_INPUT:
            inputs.append(walk.still(node.meta["val"].shape))
        else:
            inputs.append(_filled(_constant(program, spec), draws))
    return inputs


def _answers(program: ExportedProgram) -> list[fx.Node]:
    """The nodes of what the predictor returns, in order."""
    wanted = program.graph_signature.user_outputs
    named = {node.name: node for node in program.graph.nodes}
    return [named[name] for name in wanted if isinstance(name, str)]


def _as_returned(node: fx.Node) -> list[fx.Node]:
    """An answer and what it is a copy of."""
    return [node, *(node.all_input_nodes if name_of(node) == "clone" else ())]


def _reached(node: fx.Node, without: set[str]) -> set[fx.Node]:
    """What a node depends on by ways that do not pass the nodes `without`."""
    found, queue = {node}, [node]
    while queue:
        for source in queue.pop().all_input_nodes:
            if source not in found and source.name not in without:
                found.add(source)
                queue.append(source)
    return found


def _statistics(graph: fx.Graph) -> set[fx.Node]:
    """Running means and variances that a norm in eval mode reads."""
    found = set()
    for node in graph.nodes:
        given = arguments(node)
        own = given.get("training", given.get("use_input_stats", False))
        held = (given.get("running_mean"), given.get("running_var"))
        if own is False:
            found.update(n for n in held if isinstance(n, fx.Node))
    return found


def _constant(program: ExportedProgram, spec: Any) -> Tensor:
    held: Any = {**program.constants, **program.state_dict}[spec.target]
    return held.detach()


def _filled(state: Tensor, draws: torch.Generator) -> Tensor:
    """A copy; zeros that are only not filled yet (statistics at the start) are not structure."""
    if state.is_floating_point() and state.numel() and not bool(state.any()):
        return torch.rand(state.shape, generator=draws).to(state) + 0.5
    return state.clone()


@dataclass
class _Table:
    """Forms by row, as they are first met."""

    walk: Walk
    columns: dict[int, int]
    rows: dict[int, int]
    entries: list[tuple[int, int, float]]

    def place(self, ids: Tensor) -> Tensor:
        """Row numbers for a tensor of ids."""
        ids = self.walk.system.canonical(ids)
        small = compact(ids)
        values, where = small.unique(return_inverse=True)
        found = torch.tensor([self._row(n) for n in values.tolist()], dtype=torch.int64)
        return found[where].reshape(small.shape)

    def _row(self, number: int) -> int:
        if number not in self.rows:
            self.rows[number] = row = len(self.rows)
            form = () if number == WILD else self.walk.system.reduced(number)
            self.entries += [(row, self.columns[v], float(c)) for v, c in form if v in self.columns]
        return self.rows[number]

    def matrix(self) -> csr_matrix:
        rows, columns, values = zip(*self.entries, strict=True) if self.entries else ((), (), ())
        shape = (len(self.rows), len(self.columns))
        return csr_matrix((values, (rows, columns)), shape=shape, dtype=float)


def collected(walk: Walk, scales: dict[str, Scales]) -> Group:
    """The unknowns that stayed free, as a group."""
    system = walk.system
    for value in scales.values():
        _follow(walk, value)
    free: dict[int, None] = {}
    for value in scales.values():
        for term in value.terms:
            for number in compact(term).unique().tolist():
                free |= dict.fromkeys(v for v, _ in system.reduced(number))
    alive = [v for v in free if v in system.touched]
    table = _Table(walk, {v: i for i, v in enumerate(alive)}, {}, [])
    placements = {
        n: tuple(table.place(t) for t in _settled(walk, value)) for n, value in scales.items()
    }
    norms = tuple(EpsScale(n.module, n.operation, n.eps, table.place(n.scale)) for n in walk.norms)
    forms = table.matrix()
    unused = {system.origins[v].parameter for v in free if v not in system.touched}
    shapes = {n: value.shape for n, value in scales.items()}
    kinds = _kinds(walk)
    origins = [system.origins[v] for v in alive]
    group = Group(
        shapes,
        placements,
        forms,
        tuple(
            Generator(f"{o.parameter}, {o.role} {o.index}", kinds.get(v, "linear"), o.parameter)
            for v, o in zip(alive, origins, strict=True)
        ),
        blocks=_joined(b for b in walk.blocks if b.operation != "output"),
        unused=tuple(n for n in shapes if n in unused),
        buffers=frozenset(n for n in shapes if _is_statistic(n)),
        norms=norms,
    )
    return _named(group, [o.index for o in origins])


def _follow(walk: Walk, value: Scales) -> None:
    """What this example did not reach (later positions) moves as what it did reach.

    Along the last axis of each term: where all that was reached has one scale, the rest takes it.
    """
    system = walk.system
    for term in value.terms:
        small = compact(term)
        table = small.reshape(-1, small.shape[-1]) if small.ndim > 1 else small.reshape(-1, 1)
        if table.shape[0] < 2:
            continue
        for column in table.T.tolist():
            fresh = [n for n in column if system.is_fresh(n)]
            reached = {system.reduced(n) for n in column if not system.is_fresh(n) and n != WILD}
            if fresh and len(reached) == 1:
                (form,) = reached
                system.solved |= {system.forms[n][0][0]: form for n in fresh}


def _settled(walk: Walk, value: Scales) -> tuple[Tensor, ...]:
    """Rows + columns of a matrix with nothing in all rows that the columns could hold."""
    if len(value.terms) != 2 or compact(value.terms[1]).shape[0] > 1:
        return value.terms
    system = walk.system
    rows, columns = (compact(system.canonical(t)) for t in value.terms)
    common: set[tuple[int, Number]] | None = None
    for number in rows.unique().tolist():
        form = set(system.forms[number])
        common = form if common is None else common & form
        if not common:
            return rows, columns
    shift = torch.tensor(system.intern(tuple(sorted(common or ()))))
    return system.weighted(rows, shift, 1, -1), system.weighted(columns, shift)


def _joined(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """One entry for each place."""
    found: dict[Block, set[str]] = {}
    for block in blocks:
        found.setdefault(replace(block, parameters=()), set()).update(block.parameters)
    return tuple(replace(b, parameters=tuple(sorted(names))) for b, names in found.items())


def _is_statistic(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in ("running_mean", "running_var")


def _kinds(walk: Walk) -> dict[int, str]:
    """The kind of every free unknown: the first in KINDS of the places that it passes."""
    found: dict[int, int] = {}
    for kind, ids in walk.notes:
        rank = KINDS.index(kind)
        for number in ids.unique().tolist():
            for v, _ in walk.system.reduced(number) if number != WILD else ():
                found[v] = min(rank, found.get(v, rank))
    return {v: KINDS[rank] for v, rank in found.items()}


def _named(group: Group, channels: list[int]) -> Group:
    """Names that a person understands: from which layer to which, and the channel."""
    ups: list[list[str]] = [[] for _ in group.generators]
    downs: list[list[str]] = [[] for _ in group.generators]
    for name, placed in group.placements.items():
        for index in placed:
            part = group.forms[index.unique().numpy()].tocoo()
            for column, positive in sorted({*zip(part.col, part.data > 0, strict=True)}):
                side = ups[column] if positive else downs[column]
                if name not in side:
                    side.append(name)
    generators, layers = [], dict[tuple[Any, ...], str]()
    for g, up, down, channel in zip(group.generators, ups, downs, channels, strict=True):
        name = f"{_path(up, down)}, channel {channel}"
        # channels that move the same parameters are of one layer, whichever unknown stayed free
        layer = layers.setdefault((*up, None, *down, g.kind), g.layer)
        generators.append(replace(g, name=name, layer=layer))
    return replace(group, generators=tuple(generators))


def _path(up: list[str], down: list[str]) -> str:
    """Where a scale comes from and where it ends: modules, or parameters of one module."""

    def module(name: str) -> str:
        return name.rpartition(".")[0] or name

    sources, ends = ([*dict.fromkeys(module(n) for n in side)] for side in (up, down))
    if set(ends) <= set(sources[:1]):  # inside one module
        sources, ends = up, down
    start = sources[:1] or ends[:1]
    end = [m for m in ends if m not in start][-1:]
    between = len({*sources, *ends}) - len(start) - len(end)
    return " -> ".join(start + ([f"{between} more"] if between > 0 else []) + end)
