"""Whether a network is piecewise linear in each of its parameters, decided on its graph.

Every tensor carries the set of parameters that it depends on, with the promise that each of its
elements is piecewise linear in each of them alone. Sums, maxima and rectifiers unite the sets;
products keep the promise where no parameter is in two factors; nothing else is known to keep it.
Then d2f/dp2 = 0 for every single parameter p, and diag(H) = diag(G) whatever the loss of f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import set_apart
from spiritlevel.objective import Objective
from spiritlevel.symmetry.find import canonical_names, predictor_of
from spiritlevel.symmetry.tracing.graph import SUBGRAPHS, capture, name_of
from spiritlevel.symmetry.tracing.rules import SHAPE_OPERATIONS
from spiritlevel.symmetry.tracing.state import arguments, module_of

Reason = Literal["coordinates", "loss", "untraced", "product", "operation"]
Params = frozenset[str]
NONE: Params = frozenset()


@dataclass(frozen=True)
class Obstacle:
    """Why a network is not known to be piecewise linear in each of its parameters."""

    reason: Reason
    operation: str = ""
    module: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.operation} in {self.module}" if self.module else self.operation
        names = ", ".join(self.parameters)
        return {
            "coordinates": "the objective is in other coordinates than those of its model",
            "loss": "the loss is not known to be a function of the outputs alone",
            "untraced": "the model cannot be traced",
            "product": f"{place} multiplies what depends on {names} with itself",
            "operation": f"{place} is not known to be piecewise linear in {names}",
        }[self.reason]


Value = Params | Obstacle


@dataclass(frozen=True)
class Product:
    """What an operation multiplies, and what it bends; all else that it takes is added."""

    factors: tuple[Any, ...] = ()
    bent: tuple[Any, ...] = ()


def multilinear(objective: Objective) -> bool:
    """Whether a network is known to be piecewise linear in each of its parameters.

    Then the diagonals of the Hessian and of the Gauss-Newton matrix are the same.
    """
    return obstacle(objective) is None


@set_apart()
def obstacle(objective: Objective) -> Obstacle | None:
    """The first thing that stands against it; None if it is known to be so."""
    if objective.coordinates:
        return Obstacle("coordinates")
    if objective.loss.on_outputs is None:
        return Obstacle("loss")
    predictor, movable = predictor_of(objective, None)
    try:
        program = capture(predictor)
    except SpiritlevelError:
        return Obstacle("untraced")
    inputs = _inputs(program, movable, canonical_names(predictor.model))
    found = _walked(program.graph_module, inputs)
    return found if isinstance(found, Obstacle) else None


def _inputs(program: ExportedProgram, movable: set[str], names: dict[str, str]) -> list[Value]:
    """What goes into the graph: parameters that move, each in itself; the rest is constant."""
    found: list[Value] = []
    for spec in program.graph_signature.input_specs:
        name = names.get(str(spec.target).removeprefix("model.")) if spec.target else None
        moves = spec.kind == InputKind.PARAMETER and name in movable
        found.append(frozenset([name]) if moves and name is not None else NONE)
    return found


def _walked(root: fx.GraphModule, inputs: Iterable[Value]) -> Value:
    """What the outputs of a graph depend on, or the first obstacle on the way to them."""
    env: dict[fx.Node, Value] = {}
    given = iter(inputs)
    for node in root.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            env[node] = NONE
        elif node.op == "output":
            return _united(env[n] for n in node.all_input_nodes)
        else:
            env[node] = _called(root, node, env)
    raise AssertionError("a graph without an output")


def _called(root: fx.GraphModule, node: fx.Node, env: dict[fx.Node, Value]) -> Value:
    if _is_step(node):
        return NONE
    depends = _united(env[n] for n in node.all_input_nodes)
    if isinstance(depends, Obstacle) or not depends:
        return depends
    name = name_of(node)
    if name in SUBGRAPHS:
        return _entered(root, node, env)
    form = _form(node, name)
    if form is None:
        return Obstacle("operation", name, module_of(node), tuple(sorted(depends)))
    bent = _held(form.bent, env)
    if bent:
        return Obstacle("operation", name, module_of(node), tuple(sorted(bent)))
    for one, other in combinations([_held(factor, env) for factor in form.factors], 2):
        if one & other:
            return Obstacle("product", name, module_of(node), tuple(sorted(one & other)))
    return depends


def _is_step(node: fx.Node) -> bool:
    """Whether what it makes is constant in pieces: integers, truth values, rounded numbers."""
    made = node.meta.get("val")
    whole = isinstance(made, Tensor) and not (made.is_floating_point() or made.is_complex())
    return whole or name_of(node) in STEPS


def _united(values: Iterable[Value]) -> Value:
    found = NONE
    for value in values:
        if isinstance(value, Obstacle):
            return value
        found |= value
    return found


def _entered(root: fx.GraphModule, node: fx.Node, env: dict[fx.Node, Value]) -> Value:
    """The graph inside a node, which takes what follows it among the arguments."""
    held = {n: getattr(root, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"}
    inner = next(n for n, module in held.items() if isinstance(module, fx.GraphModule))
    rest: Any = node.args[node.args.index(inner) + 1 :]
    return _walked(held[inner], [env[n] if isinstance(n, fx.Node) else NONE for n in rest])


def _held(tree: Any, env: dict[fx.Node, Value]) -> Params:
    """The parameters in some arguments, none of which is an obstacle."""
    if isinstance(tree, (tuple, list)):
        return NONE.union(*(_held(item, env) for item in tree))
    found = env[tree] if isinstance(tree, fx.Node) else NONE
    assert not isinstance(found, Obstacle)
    return found


# What the operations are ----------------------------------------------------------------------


def _form(node: fx.Node, name: str) -> Product | None:
    """The operation as a product of sums; None if it is not known to be one."""
    if name in LINEAR_IN_PIECES or name in SHAPE_OPERATIONS:
        return Product()
    given = arguments(node)
    if name in FACTORS:
        return Product(tuple(given[key] for key in FACTORS[name]))
    if name in FORMS:
        return FORMS[name](given)
    return None


def _quotient(given: dict[str, Any]) -> Product | None:
    return None if given.get("rounding_mode") else Product(bent=(given["other"],))


def _norm(given: dict[str, Any]) -> Product:
    """(x - mean) / sqrt(var + eps) * gain + bias, with statistics of its own or given ones."""
    own = given.get("training", given.get("use_input_stats", "running_mean" not in given))
    if own:
        return Product(bent=(given["input"],))
    moved = (given["input"], given["running_mean"])
    return Product((moved, given["weight"]), bent=(given["running_var"],))


FORMS: dict[str, Callable[[dict[str, Any]], Product | None]] = {
    "einsum": lambda given: Product(tuple(given["tensors"])),
    "lerp": lambda given: Product(((given["self"], given["end"]), given["weight"])),
    **dict.fromkeys(["div", "divide", "true_divide"], _quotient),
    **dict.fromkeys(
        ["batch_norm", "instance_norm", "_native_batch_norm_legit_functional", "layer_norm"], _norm
    ),
    **dict.fromkeys(["_native_batch_norm_legit_no_training", "group_norm", "rms_norm"], _norm),
    "_weight_norm": lambda given: Product(bent=(given["v"],)),
    "scaled_dot_product_attention": lambda given: Product(
        bent=(given["query"], given["key"], given["attn_mask"])
    ),
}
FACTORS = {
    "linear": ("input", "weight"),
    **{f"conv{back}{n}d": ("input", "weight") for n in (1, 2, 3) for back in ("", "_transpose")},
    "matmul": ("self", "other"),
    **dict.fromkeys(["mm", "bmm"], ("self", "mat2")),
    "mv": ("self", "vec"),
    "dot": ("self", "tensor"),
    **dict.fromkeys(["vdot", "mul", "multiply"], ("self", "other")),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "addcmul": ("tensor1", "tensor2"),
    "prelu": ("self", "weight"),
    "bilinear": ("input1", "input2", "weight"),
}
LINEAR_IN_PIECES = frozenset(
    "getitem neg positive abs relu leaky_relu rrelu hardtanh clamp clamp_min clamp_max clip "
    "threshold hardshrink softshrink hardsigmoid nan_to_num add sub rsub sum mean cumsum amax amin "
    "max min maximum minimum sort topk where masked_fill index index_select index_put gather "
    "embedding dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout "
    "clone contiguous detach alias to _to_copy type_as lift_fresh_copy copy fill slice_scatter "
    "select_scatter diagonal_scatter pad constant_pad_nd upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d col2im".split()
    + [
        f"{kind}{n}d{rest}"
        for n in (1, 2, 3)
        for kind, rest in (
            ("max_pool", ""),
            ("max_pool", "_with_indices"),
            ("avg_pool", ""),
            ("adaptive_avg_pool", ""),
            ("adaptive_max_pool", ""),
            ("upsample_nearest", ""),
        )
    ]
)
# Constant in pieces: their derivative is 0 wherever there is one.
STEPS = frozenset(
    "sign sgn floor ceil round trunc zeros_like ones_like full_like new_zeros new_ones new_full "
    "zero".split()
)
