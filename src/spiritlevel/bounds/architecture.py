"""The numbers of a network that bounds of its class are made of: sizes, norms, inputs, margins.

The theorems of norms are about f(x) = A_L s(A_L-1 ... s(A_1 x)), without biases, with s(0) = 0 and
|s(a) - s(b)| <= |a - b|. Biases b are weights of a constant input 1 that every hidden layer passes
on: A = [[W, b], [0, 1]], the last one [W, b], and all norms, also that of the inputs (x, 1), are
those of the network so written. A convolution is the matrix that it is on images, and a spectral
norm above that of the matrix keeps a bound true, for every one of them rises with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import leaves
from spiritlevel.bounds.fitted import decisions
from spiritlevel.measures.convolutions import periodic_kernel_norm
from spiritlevel.measures.stacks import chain_of, traced
from spiritlevel.measures.weights import refuse_derived
from spiritlevel.objective import Objective, classes
from spiritlevel.symmetry.tracing.graph import name_of
from spiritlevel.symmetry.tracing.state import arguments

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
BENT = frozenset("tanh relu6 elu hardtanh".split())  # s(c a) is not c s(a) for all c > 0
SHORT = frozenset(
    "relu relu6 tanh view _unsafe_view reshape flatten permute movedim transpose t squeeze "
    "unsqueeze clone alias contiguous to _to_copy detach mean".split()
)  # that make no difference of inputs larger, and 0 of 0
FROM_INIT = "distances are from the weights before training, which no example has told of"
Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The parameters and the units of every layer of a classifier of two classes."""

    parameters: tuple[int, ...]
    units: tuple[int, ...]


@dataclass(frozen=True)
class Norms:
    """One matrix A of the chain: its sizes, and norms that are at least its own.

    `rows` is the sum of the norms of its rows, ||A'||_(2,1); `moved` and `moved_rows` are those of
    A - M, M from before training, or nothing but the constant that is passed on.
    """

    name: str
    parameters: int
    inputs: int
    outputs: int
    spectral: float
    frobenius: float
    moved: float
    moved_rows: float


@dataclass(frozen=True)
class Chain:
    """A classifier as the theorems have it, and what its data are.

    `radius` is the largest norm of an input, `length` the root of the sum of all their squares,
    `largest` the largest number in them, of `features`. It is `homogeneous` where s(c a) = c s(a)
    for c > 0 in all that lies between the matrices.
    """

    layers: tuple[Norms, ...]
    biased: bool
    homogeneous: bool
    radius: float
    length: float
    largest: float
    features: int
    examples: int
    classes: int  # 1 where one output tells two of them
    margins: Tensor  # f_y - max over c != y of f_c of every example
    assumptions: tuple[str, ...]
    origin: str  # what distances are from

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def width(self) -> int:
        """The largest number of rows or columns of a matrix."""
        return max(max(one.inputs, one.outputs) for one in self.layers)

    @property
    def parameters(self) -> int:
        return sum(one.parameters for one in self.layers)

    def share_below(self, margin: float) -> float:
        """The share of the examples whose margin is at most this."""
        return float((~(self.margins > margin)).double().mean())


def sizes(objective: Objective) -> Sizes:
    """For the VC dimension of the decision between two classes.

    Two outputs are compared by their difference, which one unit with half of the weights makes.
    """
    layers = chain_of(objective, "the VC bound")
    outputs = layers[-1].units
    one = objective.loss.likelihood == "bernoulli"
    if outputs != (1 if one else 2):
        raise SpiritlevelError(
            f"the VC bound is about two classes; this network has {outputs} outputs for each "
            "example"
        )
    parameters = [one.parameters for one in layers]
    parameters[-1] //= outputs
    return Sizes(tuple(parameters), tuple([one.units for one in layers[:-1]] + [1]))


@set_apart()
@torch.no_grad()
def chain(objective: Objective, init: Tensor | None = None) -> Chain:
    """The network as a chain of matrices, at its point; `init` are the weights before training."""
    refuse_derived(objective)
    (maps, homogeneous), held = _maps(objective), objective.params
    start = None if init is None else objective.named(init)
    biased = any(one.bias for one in maps)
    squares, largest, features = _inputs(objective)
    layers = tuple(_norms(one, held, start, biased, last=one is maps[-1]) for one in maps)
    known = decisions(objective)
    squares = squares + biased
    return Chain(
        layers,
        biased,
        homogeneous,
        float(squares.max().sqrt()),
        float(squares.sum().sqrt()),
        max(largest, float(biased)),
        features + biased,
        objective.examples,
        maps[-1].outputs,
        classes.margins(objective, known).double().cpu(),
        _said(maps, biased),
        "distances are from weights of zero" if init is None else FROM_INIT,
    )


@dataclass(frozen=True)
class _Map:
    """A linear map of the graph: which parameters it has, and where it is applied."""

    weight: str
    bias: str
    inputs: int
    outputs: int
    options: dict[str, Any] | None  # of a convolution, with the grid that it is on

    def norm(self, weight: Tensor) -> float:
        """||A||_2 of a layer; of a convolution that of the periodic one on the padded image.

        Padding with zeros embeds the image in that grid, and what is kept are some of its places.
        """
        if self.options is None:
            return float(torch.linalg.matrix_norm(weight, 2))
        return periodic_kernel_norm(weight, **self.options)


def _maps(objective: Objective) -> tuple[list[_Map], bool]:
    """The linear maps of a chain, and if the rest is homogeneous; refuses what is no such chain."""
    trace, found = traced(objective, "a norm bound"), list[_Map]()
    for node in trace.operations:
        if name_of(node) not in ("linear", *CONVOLUTIONS):
            _refuse_stretching(node)
            continue
        given = arguments(node)
        own = [given.get("weight"), given.get("bias")]
        if any(n is not None and trace.weights.get(n) not in objective.params for n in own):
            raise SpiritlevelError(
                f"norm bounds need the weights of every layer to be chosen parameters; those of "
                f"{node.name} are not (choose all with params=None)"
            )
        names = ["" if n is None else trace.weights[n] for n in own]
        before = node.all_input_nodes[0].meta["val"]
        units = [t.numel() // trace.copies for t in (before, node.meta["val"])]
        options = _options(before, node) if name_of(node) in CONVOLUTIONS else None
        found.append(_Map(names[0], names[1], units[0], units[1], options))
    if not found:
        raise SpiritlevelError("a norm bound needs a linear map in the network; there is none")
    return found, not any(name_of(node) in BENT for node in trace.operations)


def _options(before: Tensor, node: fx.Node) -> dict[str, Any]:
    """Stride, dilation, groups and the size of the padded image."""
    given = arguments(node)
    taps = given["weight"].meta["val"].shape[2:]
    axes = len(taps)

    def each(value: Any) -> list[int]:
        several = list(value) if isinstance(value, (list, tuple)) else [value]
        return several * axes if len(several) == 1 else several

    dilation, padding = each(given["dilation"]), given["padding"]
    if padding == "same":
        added = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
    else:
        added = [0] * axes if padding == "valid" else [2 * p for p in each(padding)]
    grid = tuple(n + a for n, a in zip(before.shape[-axes:], added, strict=True))
    return {
        "grid": grid,
        "stride": tuple(each(given["stride"])),
        "dilation": tuple(dilation),
        "groups": given["groups"],
    }


def _refuse_stretching(node: fx.Node) -> None:
    """Operations without weights have to have the Lipschitz constant 1, and to make 0 of 0."""
    name, given = name_of(node), arguments(node)
    fine = name in SHORT
    if name == "leaky_relu":
        fine = abs(given["negative_slope"]) <= 1
    elif name == "elu":
        fine = given["alpha"] <= 1 and given["scale"] == given["input_scale"] == 1
    elif name == "hardtanh":
        fine = given["min_val"] <= 0 <= given["max_val"]
    elif name.startswith("avg_pool"):  # a convolution with positive weights whose sum is 1
        fine = not any(given["padding"]) and not given["ceil_mode"]
        fine = fine and given.get("divisor_override") is None
    elif name.startswith("adaptive_avg_pool"):
        sizes = given["output_size"]
        seen = node.all_input_nodes[0].meta["val"].shape[-len(sizes) :]
        fine = all(n % k == 0 for n, k in zip(seen, sizes, strict=True))
    elif name.startswith("max_pool"):  # windows that do not overlap
        plain = not any(given["padding"]) and set(given["dilation"]) == {1}
        steps = given["stride"] or given["kernel_size"]
        fine = plain and all(s >= k for s, k in zip(steps, given["kernel_size"], strict=True))
    if not fine:
        raise SpiritlevelError(
            "norm bounds are those of a chain of linear layers, convolutions and operations "
            f"between them with |s(a) - s(b)| <= |a - b|, s(0) = 0; {name} is not known as such"
        )


def _norms(one: _Map, now: Named, start: Named | None, folded: bool, *, last: bool) -> Norms:
    weight, bias = _values(one, now)
    before = (0.0, 0.0) if start is None else _values(one, start)
    moved = weight - before[0], bias - before[1]
    places = one.outputs // len(weight)  # of a kernel, or of a layer on every step of a sequence
    passed = int(folded and not last)
    return Norms(
        name=one.weight,
        parameters=weight.numel() + (bias.numel() if one.bias else 0),
        inputs=one.inputs + folded,
        outputs=one.outputs + passed,
        spectral=_spectral(one, weight, bias, places, folded, passed),
        frobenius=math.sqrt(places * float(_rows(weight, bias).square().sum()) + passed),
        moved=math.sqrt(places) * float(_rows(*moved).norm()),
        moved_rows=places * float(_rows(*moved).sum()),
    )


def _rows(weight: Tensor, bias: Tensor) -> Tensor:
    """The norms of the rows of [W, b]."""
    return (weight.reshape(len(weight), -1).square().sum(1) + bias.square()).sqrt()


def _spectral(
    one: _Map, weight: Tensor, bias: Tensor, places: int, folded: bool, passed: int
) -> float:
    """||[[W, b], [0, 1]]||_2; of blocks no more than that of the norms of the blocks."""
    if one.options is None and places == 1:
        whole = torch.cat([weight, bias[:, None]], 1) if folded else weight
        if passed:
            last = torch.zeros_like(whole[:1])
            last[0, -1] = 1.0
            whole = torch.cat([whole, last])
        return float(torch.linalg.matrix_norm(whole, 2))
    blocks = [[one.norm(weight), math.sqrt(places) * float(bias.norm())], [0.0, float(passed)]]
    return float(torch.linalg.matrix_norm(torch.tensor(blocks, dtype=torch.float64), 2))


def _values(one: _Map, params: Named) -> tuple[Tensor, Tensor]:
    """W and b in double precision; zeros where there is no bias."""
    weight = params[one.weight].detach().double()
    if not one.bias:
        return weight, weight.new_zeros(len(weight))
    return weight, params[one.bias].detach().double()


def _inputs(objective: Objective) -> tuple[Tensor, float, int]:
    """The squared norm of every input, the largest number in them, and how many one has."""
    squares, largest, features = [], 0.0, 0
    for batch in objective.batches:
        given = list(leaves(batch[0] if isinstance(batch, (tuple, list)) else batch))
        if len(given) != 1 or not given[0].is_floating_point():
            raise SpiritlevelError(
                "norm bounds need one tensor of numbers as the input of the network, in batches "
                "(x, y)"
            )
        rows = given[0].reshape(len(given[0]), -1)
        squares.append(rows.double().square().sum(1))
        largest, features = max(largest, float(rows.abs().max())), rows.shape[1]
    return torch.cat(squares), largest, features


def _said(maps: list[_Map], biased: bool) -> tuple[str, ...]:
    said = [
        "the network is a chain of matrices and of maps with |s(a) - s(b)| <= |a - b|, s(0) = 0"
    ]
    if biased:
        said.append("biases are weights of a constant input 1, which hidden layers pass on")
    if any(one.options is not None for one in maps):
        said.append("spectral norms of convolutions are bounded by those of periodic ones")
    return tuple(said)
