"""From a module to its graph, and a walk along it that applies the rules."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from spiritlevel.base.errors import SpiritlevelError, first_line
from spiritlevel.base.scope import fixed_rng, without_fastpath
from spiritlevel.base.tensors import leaves, map_tensors
from spiritlevel.symmetry.tracing.equations import squash
from spiritlevel.symmetry.tracing.record import Operation, Rule
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.state import Reason, Scales, Walk, arguments, schema

Lookup = Callable[[fx.Node, Operation], Rule | None]
# A rule that meets what it does not expect: equations that it has stated are sound, the rest blocks
NOT_UNDERSTOOD = (
    NotImplementedError, MemoryError, RuntimeError, IndexError, TypeError, ValueError,
    ArithmeticError,
)  # fmt: skip
SUBGRAPHS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


class Predictor(nn.Module):
    """Tensors in, all predictions out: what is exported.

    `answers(model, example)` are the predictions, and the loss as the last one where `with_loss`:
    where it is no function of the predictions, it has to stay too.
    """

    def __init__(
        self,
        model: nn.Module,
        answers: Callable[..., Iterable[Tensor]],
        example: Any,
        with_loss: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.answers, self.example = model, answers, example
        self.with_loss = with_loss

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        found = tuple(self.answers(self.model, map_tensors(lambda _: next(given), self.example)))
        # an output that is an input or a parameter as it is has no node of its own
        return tuple(t.clone() for t in found)


@without_fastpath()
def capture(predictor: Predictor) -> ExportedProgram:
    """The torch.export graph, or one clear message why there is none."""
    inputs = tuple(leaves(predictor.example))
    _try_eagerly(predictor, inputs)
    try:
        with torch.no_grad(), _silence():
            program = torch.export.export(predictor, inputs, strict=False)
            _drop_idle_dropout(program.graph)
            if _writes(program):
                program = program.run_decompositions({})  # every operation makes a new tensor
                _check_same(program, predictor, inputs)
                _forget_buffers(program)
        _check_sizes(program)
        return program
    except Exception as error:  # torch.export fails in very many ways
        raise SpiritlevelError(
            "what is read off a graph cannot be found: torch.export could not trace this model "
            f"({type(error).__name__}: {first_line(error, 200)}). "
            "Control flow that depends on the data and operations that torch does not know stop "
            "it; take them out (torch.where, torch.cond, a registered fake kernel), or give the "
            "part that can be traced. Measures that need neither symmetries nor paths still work"
        ) from None


def _try_eagerly(predictor: Predictor, inputs: tuple[Tensor, ...]) -> None:
    """What the model itself says of an example that it does not take."""
    try:
        with torch.no_grad(), fixed_rng(0):
            predictor(*inputs)
    except SpiritlevelError:
        raise
    except Exception as error:  # any model, any mistake
        shapes = ", ".join(str(tuple(t.shape)) for t in inputs)
        raise SpiritlevelError(
            f"the model does not take this example of shape {shapes}: {first_line(error, 200)}"
        ) from None


def _drop_idle_dropout(graph: fx.Graph) -> None:
    """A dropout that drops nothing is its input itself, which torch does not tell of it."""
    for node in graph.nodes:
        idle = arguments(node).get("train") is False
        if idle and name_of(node).endswith("dropout") and isinstance(node.meta["val"], Tensor):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _writes(program: ExportedProgram) -> bool:
    """Whether an operation writes into a tensor that has other names too."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return any(_is_write(node) for graph in graphs for node in graph.nodes)


def _is_write(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    into: Any = node.args[0] if node.args else None
    counted = isinstance(into, fx.Node) and into.op == "placeholder" and len(into.users) == 1
    return bool(node.users) or not counted  # a counter of batches is read by nobody


def _forget_buffers(program: ExportedProgram) -> None:
    """Only predictions are outputs, not what buffers become."""
    output = program.graph.output_node()
    wanted = set(program.graph_signature.user_outputs)
    results: Any = output.args[0]
    output.args = (tuple(n for n in results if getattr(n, "name", None) in wanted),)


def _check_same(program: ExportedProgram, predictor: Predictor, inputs: tuple[Tensor, ...]) -> None:
    """That no writing was lost: torch.einsum returns views, for one, without saying so."""
    found = []
    for run in (predictor, program.module(check_guards=False)):
        with torch.no_grad(), fixed_rng(0):
            found.append(leaves(run(*(t.clone() for t in inputs))))
    for a, b in zip(*found, strict=True):
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(a.abs().max()), equal_nan=True):
            raise ValueError("what is written in place is lost on the way")


def _check_sizes(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and not all(isinstance(n, int) for n in value.shape):
            raise ValueError(f"the size of what {name_of(node)} makes depends on the data")


@contextmanager
def _silence() -> Iterator[None]:
    """What torch.export prints about a private copy is of no use to anybody."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # whole graphs
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def name_of(node: fx.Node) -> str:
    """As the table calls it: other libraries may use the names of torch for something else."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.removeprefix("aten::")
    return getattr(target, "__name__", str(target))


class Traversal:
    """One value for each node of a graph: constants are computed, the rest is for `passed`."""

    moving: tuple[type, ...]  # the kinds of what depends on parameters or inputs

    def passed(self, node: fx.Node, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
        """The value behind an operation; `given` are all arguments by name."""
        raise NotImplementedError

    def inner(self) -> Traversal:
        """The same for a graph inside of a node."""
        return self

    def run(self, root: fx.GraphModule, inputs: Iterable[Any]) -> Any:
        env: dict[fx.Node, Any] = {}
        values, live = iter(inputs), _live(root.graph)
        for node in root.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(values)
            elif node.op == "get_attr":
                env[node] = operator.attrgetter(node.target)(root)
            elif node.op == "output":
                return fx.map_arg(node.args[0], env.__getitem__)
            elif node in live:
                env[node] = self.called(node, env)
        raise AssertionError("a graph without an output")

    def called(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args: Any = fx.map_arg(node.args, env.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, env.__getitem__)
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        if name_of(node) in SUBGRAPHS:
            module = next(a for a in args if isinstance(a, fx.GraphModule))
            return self.inner().run(module, args[args.index(module) + 1 :])
        if not self.moved((args, kwargs)):
            return _computed(node, args, kwargs)
        given: Any = fx.map_arg(arguments(node), env.__getitem__)
        return self.passed(node, args, kwargs, given)

    def moved(self, tree: Any) -> list[Any]:
        """What depends on parameters or inputs among some arguments."""
        return [value for value in _tree(tree) if isinstance(value, self.moving)]


class Interpreter(Traversal):
    """Carries scales through a graph by the rules of its operations."""

    moving = (Scales,)

    def __init__(
        self,
        walk: Walk,
        dead: Mapping[fx.Node, Tensor],
        rules: Lookup,
        pinned: Mapping[str, str] | None = None,
    ) -> None:
        """`pinned`: nodes that must not move, by name, and what they are called."""
        self.walk, self.dead, self.rules = walk, dead, rules
        self.pinned = pinned or {}

    def inner(self) -> Interpreter:
        return Interpreter(self.walk, self.dead, self.rules)

    def called(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        self.walk.node = node
        found = super().called(node, env)
        if node.name in self.pinned:  # at once, so that what follows is not blamed
            self.walk.block(found, self.pinned[node.name])
        return found

    def passed(self, node: fx.Node, args: Any, kwargs: Any, given: dict[str, Any]) -> Any:
        name = name_of(node)
        if "val" not in node.meta or name.startswith(("_assert", "sym_")):
            return None
        operation = known(name)
        with suppress(*NOT_UNDERSTOOD):
            if operation.moves is not None:
                return self._move(operation.moves(node), args, kwargs)
            rule = self.rules(node, operation)
            if rule is not None:
                if node in self.dead:
                    given = self._without_dead(node, operation.bias, given)
                return rule(self.walk, *in_order(node, given), **by_name(node, given))
        return self._block(node, name, self.moved((args, kwargs)))

    def _move(self, action: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An operation that only moves elements, on the ids."""
        if isinstance(args[0], (tuple, list)):  # it joins several tensors
            pieces = [self.walk.single(v) for v in args[0]]
            return Scales((squash(action(pieces, *args[1:], **kwargs)),))
        if not isinstance(args[0], Scales):  # a constant in the shape of something else
            return action(*_term(args, 0), **_term(kwargs, 0))
        count = len(args[0].terms)
        found = [action(*_term(args, k), **_term(kwargs, k)) for k in range(count)]
        if isinstance(found[0], (tuple, list)):
            return tuple(Scales(tuple(parts)) for parts in zip(*found, strict=True))
        return Scales(tuple(found))

    def _without_dead(self, node: fx.Node, bias: str, given: dict[str, Any]) -> dict[str, Any]:
        """The bias without the elements that no prediction sees."""
        gone = self.dead[node]
        ids = self.walk.single(given[bias])
        self.walk.note("dead", ids[gone])
        self.walk.system.touched.update(
            v for n in ids[gone].tolist() for v, _ in self.walk.system.forms[n]
        )
        return {**given, bias: Scales((torch.where(gone, 0, ids),))}

    def _block(self, node: fx.Node, name: str, moving: list[Scales]) -> Any:
        reason = Reason.BENDS if known(name).bends else Reason.NO_RULE
        for value in moving:
            self.walk.block(value, name, reason)
        return map_values(lambda v: self.walk.still(v.shape), node.meta["val"])


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the output depends on."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def in_order(node: fx.Node, given: Mapping[str, Any]) -> list[Any]:
    return [given[a.name] for a in schema(node) if not a.kwarg_only]


def by_name(node: fx.Node, given: Mapping[str, Any]) -> dict[str, Any]:
    return {a.name: given[a.name] for a in schema(node) if a.kwarg_only}


def _computed(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """A constant, computed."""
    action = node.target
    assert callable(action)
    with torch.no_grad():
        return action(*args, **kwargs)


def _tree(tree: Any) -> Iterable[Any]:
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tree(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _tree(item)
    else:
        yield tree


def map_values(function: Callable[[Tensor], Any], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return tuple(map_values(function, item) for item in tree)
    return tree


def _term(tree: Any, k: int) -> Any:
    """The k-th term of the first value; of others only the shape matters."""
    if isinstance(tree, Scales):
        return tree.terms[min(k, len(tree.terms) - 1)]
    if isinstance(tree, (tuple, list)):
        return type(tree)(_term(item, k) for item in tree)
    if isinstance(tree, Mapping):
        return {key: _term(item, k) for key, item in tree.items()}
    return tree
