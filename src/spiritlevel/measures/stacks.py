"""Networks that are one layer after another, read off their graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import map_tensors
from spiritlevel.objective import Objective
from spiritlevel.objective import batches as frozen
from spiritlevel.symmetry.predictors import EXAMPLES, on_cpu
from spiritlevel.symmetry.tracing.graph import Predictor, capture, name_of
from spiritlevel.symmetry.tracing.registry import known
from spiritlevel.symmetry.tracing.state import arguments

MAPS = ("linear", "conv1d", "conv2d", "conv3d", "convolution", "addmm", "mm", "matmul")
NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")
PLAIN = frozenset(
    "relu leaky_relu mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d clone alias contiguous to _to_copy detach "
    "getitem".split()
)  # operations without parameters that a chain may hold, beside those that only move elements
MOVED = ("t", "transpose", "permute", "view", "reshape", "alias", "detach", "to", "_to_copy")


@dataclass(frozen=True)
class Layer:
    """A linear map with its bias: how many numbers it has, and how many units it makes.

    A BatchNorm behind it is part of it: its gain is one with the weights, its bias with the bias.
    """

    parameters: int
    units: int
    biased: bool
    normed: bool = False


@dataclass(frozen=True)
class Trace:
    """What lies between inputs and outputs, in order, one operation behind the other."""

    operations: tuple[fx.Node, ...]
    weights: dict[fx.Node, str]  # the parameters by their names in the model
    trained: set[fx.Node]  # what is made of parameters alone
    copies: int  # of the network side by side: the examples of the example


def chain_of(objective: Objective, what: str) -> list[Layer]:
    """The layers of a chain of linear maps, convolutions, averages and rectifiers, in order.

    Anything else is refused, in the name of `what` needs a chain.
    """
    trace, layers = traced(objective, what), list[Layer]()
    for node in trace.operations:
        _extend(layers, node, trace.trained, trace.copies, what)
    if not layers:
        raise _refusal(what, "no linear map is in it")
    return layers


@set_apart()
@torch.no_grad()
def traced(objective: Objective, what: str) -> Trace:
    """The operations of a network in which nothing runs beside anything else."""
    batch = map_tensors(Tensor.cpu, objective.few(EXAMPLES))
    model, loss = on_cpu(objective)
    program = capture(Predictor(model, lambda m, b: [loss.outputs(m, b)], batch))
    places = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = list(zip(places, program.graph_signature.input_specs, strict=True))
    inputs = {n for n, spec in specs if spec.kind == InputKind.USER_INPUT}
    weights = {
        n: str(spec.target).removeprefix("model.")
        for n, spec in specs
        if spec.kind == InputKind.PARAMETER
    }
    copies = frozen.examples(batch) if frozen.divisible(batch) else 1
    signal = _signal(program.graph, inputs)
    trained = _reached(program.graph, set(weights)) - signal.keys()
    for node, given in signal.items():
        if len(given) != 1:  # what is split has to be joined again: there is one output
            raise _refusal(what, f"{name_of(node)} joins what ran beside each other")
    return Trace(tuple(signal), weights, trained, copies)


def _extend(
    layers: list[Layer], node: fx.Node, trained: set[fx.Node], copies: int, what: str
) -> None:
    """What an operation adds to the chain."""
    name, given = name_of(node), node.all_input_nodes[0]
    own = [n for n in node.all_input_nodes if n in trained]
    if name in MAPS and own:
        made = next((n for n in node.all_input_nodes[1:] if n.op != "placeholder"), None)
        if made is not None and made in trained and name_of(made) not in MOVED:
            raise _refusal(what, f"the weights of a {name} are computed ({name_of(made)})")
        numbers = sum(n.meta["val"].numel() for n in own)
        layers.append(Layer(numbers, node.meta["val"].numel() // copies, len(own) > 1))
    elif name in NORMS and not arguments(node).get("training") and name_of(given) in MAPS:
        last = layers.pop()
        channels = 0 if last.biased else given.meta["val"].shape[1]
        layers.append(Layer(last.parameters + channels, last.units, True, True))
    elif own or not (name in PLAIN or known(name).moves is not None):
        raise _refusal(what, f"{name} is nothing of that kind")


def _signal(graph: fx.Graph, inputs: set[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The operations between inputs and outputs, each with what of the inputs goes into it."""
    reached, live = _reached(graph, inputs), set[fx.Node]()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.update(node.all_input_nodes)
    chosen = [n for n in graph.nodes if n in reached and n in live and n.op == "call_function"]
    return {node: [n for n in node.all_input_nodes if n in reached] for node in chosen}


def _reached(graph: fx.Graph, start: set[fx.Node]) -> set[fx.Node]:
    """All that depends on some nodes, with them."""
    found = set(start)
    for node in graph.nodes:
        if found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _refusal(what: str, why: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"{what} is that of a chain of linear maps, convolutions, averages and rectifiers, each "
        f"behind the one before it; this network is none: {why}"
    )
