"""From a module to its graph, and a walk along it that applies the rules."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import fixed_rng, without_fastpath
from spiritlevel.base.tensors import leaves, map_tensors
from spiritlevel.symmetry.tracing.equations import squash
from spiritlevel.symmetry.tracing.rules import SHAPE_OPERATIONS, Rule
from spiritlevel.symmetry.tracing.state import Reason, Scales, Walk, arguments, schema

Lookup = Callable[[fx.Node, str], Rule | None]
# A rule that meets what it does not expect: equations that it has stated are sound, the rest blocks
NOT_UNDERSTOOD = (
    NotImplementedError, MemoryError, RuntimeError, IndexError, TypeError, ValueError,
    ArithmeticError,
)  # fmt: skip
SUBGRAPHS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
BENDING = frozenset(
    "tanh sigmoid logsigmoid gelu silu elu selu celu mish softplus softsign exp expm1 log log1p "
    "logsumexp erf sin cos hardtanh hardsigmoid hardswish hardshrink softshrink tanhshrink clamp "
    "clamp_min clamp_max threshold round floor ceil trunc rnn_tanh rnn_tanh_cell lstm gru "
    "lstm_cell gru_cell".split()
)  # operations that let no factor through, whatever rule there might be
IN_FLOATS = ("im2col", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")


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
        reason = str(error).strip().splitlines()
        raise SpiritlevelError(
            f"symmetries cannot be found: torch.export could not trace this model "
            f"({type(error).__name__}: {reason[0][:200] if reason else 'no reason given'}). "
            "Control flow that depends on the data and operations that torch does not know stop "
            "it; take them out (torch.where, torch.cond, a registered fake kernel), or give the "
            "part that can be traced. measure() and all that needs no symmetry still work"
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
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SpiritlevelError(
            f"the model does not take this example of shape {shapes}: {first[:200]}"
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def name_of(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    return getattr(target, "__name__", str(target))


def shape_action(node: fx.Node) -> Callable[..., Any]:
    """The operation for ids, whose strides are not those of the traced tensors."""
    if name_of(node) in ("view", "_unsafe_view"):
        if node.meta["val"].dtype != node.all_input_nodes[0].meta["val"].dtype:
            raise NotImplementedError  # other bits, not another shape
        return torch.reshape
    action: Any = node.target
    if name_of(node) in IN_FLOATS:
        return lambda ids, *args, **kw: action(ids.double(), *args, **kw).long()  # exact to 2^53
    return action


class Interpreter:
    """Carries scales through a graph: constants are computed, the rest follows the rules."""

    def __init__(
        self,
        walk: Walk,
        root: nn.Module,
        dead: Mapping[fx.Node, Tensor],
        rules: Lookup,
        pinned: Mapping[str, str] | None = None,
    ) -> None:
        """`pinned`: nodes that must not move, by name, and what they are called."""
        self.walk, self.root, self.dead, self.rules = walk, root, dead, rules
        self.pinned = pinned or {}

    def run(self, graph: fx.Graph, inputs: Iterable[Any]) -> Any:
        env: dict[fx.Node, Any] = {}
        given, live = iter(inputs), _live(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = operator.attrgetter(node.target)(self.root)
            elif node.op == "output":
                return fx.map_arg(node.args[0], env.__getitem__)
            elif node in live:
                env[node] = self._call(node, env)
                if node.name in self.pinned:  # at once, so that what follows is not blamed
                    self.walk.block(env[node], self.pinned[node.name])
        raise AssertionError("a graph without an output")

    def _call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        self.walk.node = node
        args: Any = fx.map_arg(node.args, env.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, env.__getitem__)
        moving = [v for v in _tree((args, kwargs)) if isinstance(v, Scales)]
        name = name_of(node)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if name in SUBGRAPHS:
            return self._enter(args)
        if not moving:
            return _computed(node, args, kwargs)
        if "val" not in node.meta or name.startswith(("_assert", "sym_")):
            return None
        with suppress(*NOT_UNDERSTOOD):
            if name in SHAPE_OPERATIONS:
                return self._move(node, name, args, kwargs)
            rule = self.rules(node, name)
            if rule is not None:
                given: Any = fx.map_arg(arguments(node), env.__getitem__)
                if node in self.dead:
                    given = self._without_dead(node, given)
                return rule(self.walk, *_in_order(node, given), **_by_name(node, given))
        return self._block(node, name, moving)

    def _enter(self, args: tuple[Any, ...]) -> Any:
        module = next(a for a in args if isinstance(a, fx.GraphModule))
        given = args[args.index(module) + 1 :]
        inner = Interpreter(self.walk, module, self.dead, self.rules)
        return inner.run(module.graph, given)

    def _move(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
        """A shape operation, on the ids."""
        action = shape_action(node)
        if name in ("cat", "concat", "stack"):
            return self._joined(name, args, kwargs)
        if not isinstance(args[0], Scales):  # a constant in the shape of something else
            return action(*_term(args, 0), **_term(kwargs, 0))
        count = len(args[0].terms)
        found = [action(*_term(args, k), **_term(kwargs, k)) for k in range(count)]
        if isinstance(found[0], (tuple, list)):
            return tuple(Scales(tuple(parts)) for parts in zip(*found, strict=True))
        return Scales(tuple(found))

    def _joined(self, name: str, args: Any, kwargs: Any) -> Scales:
        pieces = [self.walk.single(v) for v in args[0]]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        join = torch.stack if name == "stack" else torch.cat
        if name != "stack":  # torch.cat ignores empty one-dimensional tensors
            pieces = [p for p in pieces if p.shape != (0,)]
        return Scales((squash(join(pieces, dim)),))

    def _without_dead(self, node: fx.Node, given: Mapping[str, Any]) -> dict[str, Any]:
        """The bias without the elements that no prediction sees."""
        bias = "bias" if "bias" in given else "self"
        gone = self.dead[node]
        ids = self.walk.single(given[bias])
        self.walk.note("dead", ids[gone])
        self.walk.system.touched.update(
            v for n in ids[gone].tolist() for v, _ in self.walk.system.forms[n]
        )
        return {**given, bias: Scales((torch.where(gone, 0, ids),))}

    def _block(self, node: fx.Node, name: str, moving: list[Scales]) -> Any:
        reason = Reason.BENDS if name in BENDING else Reason.NO_RULE
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


def _in_order(node: fx.Node, given: Mapping[str, Any]) -> list[Any]:
    return [given[a.name] for a in schema(node) if not a.kwarg_only]


def _by_name(node: fx.Node, given: Mapping[str, Any]) -> dict[str, Any]:
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
