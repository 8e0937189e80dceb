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

from spiritlevel.errors import SpiritlevelError
from spiritlevel.scope import fixed_rng, without_fastpath
from spiritlevel.symmetry.forms import squash
from spiritlevel.symmetry.rules import SHAPE_OPERATIONS, Rule
from spiritlevel.symmetry.walk import Scales, Walk
from spiritlevel.tensors import leaves, map_tensors

Lookup = Callable[[fx.Node, str], Rule | None]
# A rule that meets what it does not expect: equations that it has stated are sound, the rest blocks
NOT_UNDERSTOOD = (NotImplementedError, MemoryError, RuntimeError, IndexError, TypeError, ValueError)
SUBGRAPHS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
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
    """The name of an operation, in place or not."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._opname
        return name[:-1] if name.endswith("_") and not name.startswith("_") else name
    return getattr(target, "__name__", str(target))


def in_place(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        target._opname.endswith("_") and not target._opname.startswith("_")
    )


def shape_action(node: fx.Node) -> Callable[..., Any]:
    """The operation for ids, whose strides are not those of the traced tensors."""
    if name_of(node) in ("view", "_unsafe_view"):
        if node.meta["val"].dtype != node.all_input_nodes[0].meta["val"].dtype:
            raise NotImplementedError  # other bits, not another shape
        return torch.reshape
    action = node.target
    assert callable(action)
    if name_of(node) in IN_FLOATS:
        return lambda ids, *args: action(ids.double(), *args).long()  # exact up to 2^53
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
                if in_place(node) and isinstance(node.args[0], fx.Node):
                    self._write(node, env)
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
                if node in self.dead:
                    kwargs, args = self._without_dead(node, name, args, kwargs)
                return rule(self.walk, *args, **kwargs)
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

    def _without_dead(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The bias without the elements that no prediction sees."""
        place = 0 if name == "addmm" else 2
        bias = kwargs.get("bias") if "bias" in kwargs else args[place]
        gone = self.dead[node]
        ids = self.walk.single(bias)
        self.walk.note("dead", ids[gone])
        self.walk.system.touched.update(
            v for n in ids[gone].tolist() for v, _ in self.walk.system.forms[n]
        )
        changed = Scales((torch.where(gone, 0, ids),))
        if "bias" in kwargs:
            return {**kwargs, "bias": changed}, args
        return kwargs, (*args[:place], changed, *args[place + 1 :])

    def _block(self, node: fx.Node, name: str, moving: list[Scales]) -> Any:
        for value in moving:
            self.walk.block(value, name)
        return map_values(lambda v: self.walk.still(v.shape), node.meta["val"])

    def _write(self, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        """What an operation in place changes under other names.

        A view of something else would change that too, unseen: then nothing may move.
        """
        target = node.args[0]
        assert isinstance(target, fx.Node)
        moving = isinstance(env[node], Scales)
        aliases = [n for n in _aliases(target) if isinstance(env.get(n), (Scales, Tensor))]
        if moving and aliases:
            for value in [env[n] for n in aliases] + [env[node]]:
                self.walk.block(value, f"{name_of(node)} in place on a view")
            for n in aliases:  # zeros may be zeros no more
                env[n] = self.walk.still(env[n].shape)
        env[target] = env[node]


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the output depends on; writing into one of them counts too."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        writes = in_place(node) and isinstance(node.args[0], fx.Node)
        touched = writes and bool(({node.args[0]} | _aliases(node.args[0])) & live)
        if node.op == "output" or node in live or touched:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


COPIES = {"cat", "concat", "stack", "repeat", "repeat_interleave", "tile", "roll"}
SAME = {"getitem", "detach", "alias", "to", "contiguous", "dropout", "feature_dropout"}
VIEWS = (SHAPE_OPERATIONS - COPIES) | SAME  # what may share memory with its input


def _aliases(node: Any) -> set[fx.Node]:
    """Nodes that may share memory with this one, itself left out."""
    root = node
    while name_of(root) in VIEWS and root.all_input_nodes:
        root = root.all_input_nodes[0]
    found, queue = {root}, [root]
    while queue:
        for user in queue.pop().users:
            if name_of(user) in VIEWS and user not in found:
                found.add(user)
                queue.append(user)
    return found - {node}


def _computed(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """A constant, computed; writing into one changes what shares its memory, as it should."""
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
