"""Wrong arguments of every public function: one SpiritlevelError each, before any work is done.

One valid call of each is written down in `calls`; the wrong ones are made from the signatures.
"""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

import spiritlevel as sl
from cases import BY_NAME, labels, randn
from spiritlevel.coordinates.inputs import Representation
from spiritlevel.objective import Objective
from spiritlevel.orbit.program import matrix_of, problem_of
from sweeping import parameters, shown, wrong

# Records of what was found: the library makes them.
RESULTS = set(
    "Audit Certificate Claim Claims Comparison Estimate Finding Group Result SpiritlevelError "
    "Status Table coordinates.HessianLaw coordinates.Reparametrization coordinates.Reranked "
    "coordinates.inputs.Ranking coordinates.inputs.Laws orbit.OrbitMinimum orbit.Problem "
    "orbit.Solution orbit.Span orbit.Supremum symmetry.Certificate symmetry.Generator "
    "symmetry.Operation symmetry.Group symmetry.HeadMap symmetry.Signs symmetry.Units "
    "witnesses.slopes.Lipschitz witnesses.volume.InfiniteVolume".split()
)
# Run inside every product, with what the library itself hands over.
INSIDE = set(
    "Objective.total Objective.outputs Objective.returned Objective.together Objective.here "
    "Objective.gradient_sum Objective.total_of Objective.place Objective.replaced "
    "Group.result".split()
)
# Wrong only once the model has run: outputs that it does not have, data that it does not take.
AFTER_RUNNING = {"heads", "data", "loss", "example"}
# Values that the types and names call wrong and that are right.
RIGHT: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("coordinates.inputs.affine", "shift"): lambda v: getattr(v, "shape", ()) == (1, 1, 2),
    ("Objective.named", "vector"): lambda v: getattr(v, "shape", ()) == (17,),  # numbers or not
    # told by the library
    **{("Operator", name): lambda v: True for name in ("check", "rounding", "remark")},
}
SAYS = r"\bgive\b|choose|needs?\b|\buse\b|there (are|is)|not an? |(has to|must) be|a vector"
# No valid call is made: it takes long, or there is none.
NOT_MADE = {"default_objective", "symmetry.unregister_operation", "MEASURES['layer_traces']"}
KINDS = (
    "Objective Group Operator Audit Comparison Table Claims Density Signs Units HeadMap Ranking"
).split()


RESULT_KINDS = ("Audit", "Comparison", "Table", "Claims")


class WorkDoneError(Exception):
    """The model was run though an argument was wrong."""


def small(scale: float = 1.0) -> Objective:
    torch.manual_seed(0)
    first = nn.Linear(2, 3)
    with torch.no_grad():
        first.weight.mul_(scale)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(3, 2)).double()
    return Objective(net, (randn(6, 2), labels(6, classes=2)), F.cross_entropy)


@functools.cache
def shared() -> dict[str, Any]:
    """What a parameter of some name takes, wherever it occurs."""
    net = small()
    group = sl.symmetries(net)
    return {
        "objective": net,
        "model": net,
        "one": net,
        "twin": net,
        "group": group,
        "operator": sl.from_matrix(torch.eye(5).double()),
        "target": 10.0,
        "epsilon": 0.1,
        "radius": 0.1,
        "norm": 1.0,
        "t": group.random(0),
        "s": group.random(1),
        "coordinates": sl.coordinates.Diagonal(torch.full((net.size,), 2.0).double()),
        "center": net.vector,
        "params": net.params,
        "moved": net.params,
        "measure": lambda objective: objective.value(),
        "eta": net.vector,
        "theta": net.vector,
        "representation": Representation(lambda x: 2 * x, lambda u: u / 2),
        "seed": 0,
    }


@functools.cache
def calls() -> dict[str, dict[str, Any]]:
    """The valid call of each, beyond what `shared` gives: names of functions -> arguments."""
    net = shared()["objective"]
    units, signs, head = instances()["Units"], instances()["Signs"], instances()["HeadMap"]
    tanh, attention = BY_NAME["mlp"].objective(), BY_NAME["TransformerEncoderLayer"].objective()
    truth = Normal(torch.zeros(1), torch.ones(1))
    law = torch.distributions.Independent(truth, 1)
    wide = torch.distributions.Independent(Normal(torch.zeros(1), 2 * torch.ones(1)), 1)
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    rows = (randn(6, 2), labels(6, classes=2))
    here, flips = net.vector, signs.random(0)
    return {
        "Objective": {"model": module, "data": rows, "loss": F.cross_entropy, "params": "*"},
        "Operator": {
            **{"size": 5, "dtype": torch.float64, "device": torch.device("cpu")},
            "matvec": lambda v: v,
        },
        "audit": {"measures": ["loss"], "way": False},
        "claims": {"objective": net, "names": "radial_map", "figures": False},
        "compare": {"objectives": {"a": net, "b": small(2.0)}, "measures": ["loss"]},
        "coordinates.Chain": {"parts": (shared()["coordinates"],)},
        "coordinates.Custom": {
            "forward": lambda e: 2 * e,
            "inverse": lambda t: t / 2,
            "near": here,
        },
        "coordinates.Diagonal": {"factors": torch.ones(net.size)},
        "coordinates.Linear": {"matrix": torch.eye(net.size)},
        "coordinates.Power": {"a": 0.5},
        "coordinates.Radial": {"r_hat": 0.1, "delta": 1.0, "rho": 0.2},
        "coordinates.WeightNorm": {"blocks": ((0, 3, 2),)},
        "coordinates.hessian_law": {},
        "coordinates.inputs.Representation": {"forward": lambda x: x, "inverse": lambda x: x},
        "coordinates.inputs.affine": {"shift": torch.zeros(2), "matrix": torch.eye(2)},
        "coordinates.inputs.standardization": {},
        "coordinates.inputs.whitening": {},
        "coordinates.inputs.represent": {},
        "coordinates.inputs.input_gradients": {},
        "coordinates.inputs.input_gradient_norm": {},
        "coordinates.inputs.opposing": {"other": small(-2.0)},
        "coordinates.inputs.ranked": {"truth": law, "models": {"a": wide, "b": law}, "draws": 20},
        "coordinates.rerank": {"objectives": [net, net.at(here + 1)], "order": [1, 0]},
        "coordinates.weight_norm": {"params": "*.weight"},
        "default_objective": {},
        **{name: {} for name in "density diagonal eigenpairs eigenvalues fisher".split()},
        **{name: {} for name in "frobenius ggn ggn_diagonal hessian".split()},
        "from_matrix": {"matrix": torch.eye(3)},
        "measure": {"names": ["loss"]},
        "negative_eigenvalues": {},
        "orbit.balanced": {},
        "orbit.minimum": {"norm": "trace", "operator": "ggn"},
        "orbit.operator_of": {"problem": problem_of(net, None, None, matrix_of(net, "ggn"))},
        "orbit.search": {"evaluations": 2},
        "orbit.supremum": {"target": 1e-9},
        "output_gradients": {},
        "register": {"name": "a measure of the sweep"},
        "restricted": {"operator": sl.hessian(net), "names": "0.*"},
        "scaled": {"diagonal": torch.ones(5)},
        **{name: {} for name in "sharpen sharpen_many zero_in_ball verify".split()},
        "symmetries": {"model": module},
        "symmetry.register_operation": {
            **{"name": "sweep::nothing", "operation": sl.symmetry.Operation(), "replace": True}
        },
        "symmetry.unregister_operation": {"name": "sweep::nothing"},
        "symmetry.head_maps": {"model": attention},
        "symmetry.permutations": {"model": module},
        "symmetry.sign_flips": {"model": tanh},
        "trace": {},
        "witnesses.slopes.lipschitz": {},
        "witnesses.volume.scale_factor": {},
        "witnesses.volume.box_intervals": {"boxes": 2},
        "witnesses.volume.box_log_volumes": {"size": 5, "alpha": 2.0, "growth": 1.0, "boxes": 2},
        "witnesses.volume.infinite_volume": {"boxes": 2},
        "witnesses.volume.worst_in_box": {},
        "worst_in_ball": {},
        "write_report": {"result": instances()["Table"], "path": Path("/dev/null")},
        **{f"MEASURES[{name!r}]": {} for name in sl.MEASURES},
        "Audit.__getitem__": {"name": "loss"},
        "load": {"path": written("Table")},
        **{f"{kind}.{m}": {} for kind in RESULT_KINDS for m in ("to_csv", "to_json")},
        "Result.from_dict": {"data": instances()["Table"].to_dict()},
        "Comparison.of": {"measure": "loss"},
        "Claims.__getitem__": {"name": "radial_map"},
        "Comparison.__getitem__": {"key": "loss"},
        "Table.__getitem__": {"name": "loss"},
        "Density.count_below": {"threshold": 0.0},
        "Operator.__matmul__": {"vectors": torch.ones(5)},
        "Objective.named": {"vector": here},
        "Objective.mean": {"of": lambda batch: 0.0},
        "Objective.at": {},
        "Objective.reparametrize": {},
        "Objective.edited": {"edit": lambda model: None},
        "Objective.on": {"batches": [rows]},
        "Objective.few": {"n": 2},
        "Objective.to": {"dtype": torch.float64},
        "Group.pieces": {"index": 0},
        **{f"Group.{m}": {} for m in "inverse compose random evaluate log_scales act".split()},
        "Group.factors": {},
        "Group.flat_factors": {"shapes": net.shapes},
        "Group.pull": {"values": net.params},
        "Group.matrix": {"names": ["0.weight"]},
        **{f"Group.{m}": {} for m in "locate apply verify".split()},
        "Group.restrict": {"kinds": next(iter(shared()["group"].kinds))},
        "Group.select": {"indices": [0]},
        "Group.of_layers": {"element": shared()["group"].layerwise().random()},
        "Signs.random": {},
        "Signs.act": {"params": tanh.params, "flips": flips},
        "Signs.inverse": {"flips": flips},
        "Signs.apply": {"objective": tanh, "flips": flips},
        "Units.random": {},
        "Units.act": {"order": units.random(0)},
        "Units.inverse": {"order": units.random(0)},
        "Units.apply": {"order": units.random(0)},
        "HeadMap.random": {},
        "HeadMap.act": {"params": attention.params, "matrix": head.random(0)},
        "HeadMap.inverse": {"matrix": head.random(0)},
        "HeadMap.apply": {"objective": attention, "matrix": head.random(0)},
        "Ranking.best": {"criterion": "earth mover", "represented": True},
        "Ranking.shift": {"criterion": "earth mover"},
    }


def written(kind: str) -> Path:
    """A file that holds a result."""
    path = Path(tempfile.mkdtemp()) / "result.json"
    instances()[kind].to_json(path)
    return path


@functools.cache
def instances() -> dict[str, Any]:
    """One of each class whose methods people call."""
    net, c = shared()["objective"], sl.coordinates
    law = torch.distributions.Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    return {
        "Objective": net,
        "Group": shared()["group"],
        "Operator": shared()["operator"],
        "Audit": sl.audit(net, ["loss"], way=False),
        "Comparison": sl.compare({"a": net, "b": small(2.0)}, ["loss"]),
        "Table": sl.measure(net, ["loss"]),
        "Claims": sl.claims(net, "radial_map", figures=False),
        "Density": sl.density(shared()["operator"]),
        "Signs": sl.symmetry.sign_flips(BY_NAME["mlp"].objective()),
        "Units": sl.symmetry.permutations(net)[0],
        "HeadMap": sl.symmetry.head_maps(BY_NAME["TransformerEncoderLayer"].objective())[0],
        "Ranking": c.inputs.ranked(law, {"a": law}, shared()["representation"], draws=20),
    }


def public() -> dict[str, Callable[..., Any]]:
    """Every function and constructor that a user calls, each once, by its first name."""
    found: dict[str, Callable[..., Any]] = {}

    def collect(home: types.ModuleType, prefix: str, names: list[str]) -> None:
        for name in sorted(names, key=lambda n: isinstance(getattr(home, n), types.ModuleType)):
            value = getattr(home, name)
            if isinstance(value, types.ModuleType):
                collect(value, f"{prefix}{name}.", getattr(value, "__all__", None) or own(value))
            elif callable(value) and value not in found.values():
                found[prefix + name] = value

    def own(module: types.ModuleType) -> list[str]:
        named = [(n, v) for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
        return [n for n, v in named if getattr(v, "__module__", "") == module.__name__]

    collect(sl, "", list(sl.__all__))
    found["Result.from_dict"] = sl.Result.from_dict
    found |= {f"MEASURES[{name!r}]": measure for name, measure in sl.MEASURES.items()}
    return {name: f for name, f in found.items() if name not in RESULTS}


def methods() -> dict[str, Callable[..., Any]]:
    """The methods with arguments of what the functions return."""
    found = {}
    for kind, instance in instances().items():
        for name, plain in inspect.getmembers(type(instance), callable):
            if name.startswith("_") and name not in ("__getitem__", "__matmul__", "__call__"):
                continue
            if len(inspect.signature(plain).parameters) > 1:
                found[f"{kind}.{name}"] = getattr(instance, name)
    return {name: f for name, f in found.items() if name not in INSIDE}


def valid(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of the valid call: what has no default, and what the table gives."""
    known = parameters(function)
    needed = {n for n, (_, default) in known.items() if default is inspect.Parameter.empty}
    return {n: shared()[n] for n in needed if n in shared()} | calls()[name]


def test_every_public_function_is_in_the_table() -> None:
    assert {*public(), *methods()} == set(calls())


def test_little_is_left_out() -> None:
    """Parameters that take anything, and for which nothing wrong is made up."""
    every = {**public(), **methods()}
    kinds = {n: kind for f in every.values() for n, (kind, _) in parameters(f).items()}
    left = {n for n, kind in kinds.items() if not [*wrong(n, kind, None)]}
    # true or false, as everything is
    assert left == {*"figures is_sharpness keep_count psd replace represented way".split()}


TWO: Any = np.int64(2)  # numbers to everybody but a type checker
SHARE: Any = np.float32(0.1)
TEN: Any = torch.tensor(10.0)
RANDOM = torch.Generator().manual_seed(0)
FINE: list[Callable[[], Any]] = [
    lambda: sl.trace(shared()["operator"], seed=TWO, budget=30 * TWO),
    lambda: sl.eigenvalues(shared()["operator"], TWO, tol=SHARE, seed=RANDOM),
    lambda: sl.sharpen(shared()["objective"], target=TEN),
    lambda: sl.sharpen(shared()["objective"], target=SHARE),
    lambda: sl.zero_in_ball(shared()["objective"], 1, group=shared()["group"]),
    lambda: shared()["group"].random(TWO, scale=1),
    lambda: shared()["group"].select(i for i in np.arange(2)),
    lambda: sl.verify(shared()["objective"], shared()["objective"], seed=-1),
    lambda: sl.measure(shared()["objective"], ("loss",), seed=2**63, compile=False),
    lambda: sl.fisher(shared()["objective"], "sampled", seed=2**63).dense(),
    lambda: sl.MEASURES["keskar"](shared()["objective"], eps=SHARE),
    lambda: Objective(
        nn.Linear(2, 2),
        (randn(6, 2), labels(6, classes=2)),
        F.cross_entropy,
        seed=TWO,
        microbatch=TWO,
        device=torch.device("cpu"),
        params=("weight", "bias"),
    ).value(),
]


@pytest.mark.parametrize("call", FINE)
def test_what_is_as_good_as_a_number(call: Callable[[], Any]) -> None:
    """Scalars of numpy and torch, generators, and whole numbers in the place of others."""
    assert call() is not None  # not refused: each returns what it was asked for


@pytest.mark.parametrize("name", public())
def test_wrong_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = _faults(name, public()[name], monkeypatch)
    assert not faults, "\n".join([str(len(faults)), *faults])


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_of_methods(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {n: f for n, f in methods().items() if n.startswith(f"{kind}.")}
    faults = [fault for n, f in found.items() for fault in _faults(n, f, monkeypatch)]
    assert found
    assert not faults, "\n".join([str(len(faults)), *faults])


def _faults(name: str, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The valid call is made; every wrong one is refused before the model is run."""
    right = valid(name, function)
    if name not in NOT_MADE:
        _called(function, right)
    faults = []
    for parameter, (kind, default) in parameters(function).items():
        with monkeypatch.context() as patch:
            if parameter not in AFTER_RUNNING:
                patch.setattr(Objective, "_run", _works)
                patch.setattr("spiritlevel.symmetry.find.capture", _works)
            for value in wrong(parameter, kind, right.get(parameter, default)):
                if not RIGHT.get((name, parameter), lambda _: False)(value):
                    fault = _fault(function, {**right, parameter: value}, parameter)
                    faults += [f"{name}: {parameter}={shown(value)}: {fault}"] if fault else []
    return faults


def _works(*given: Any, **named: Any) -> None:
    raise WorkDoneError("the model was run before the argument was refused")


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    kinds = inspect.signature(function).parameters.values()
    first = [given[p.name] for p in kinds if p.kind is p.POSITIONAL_ONLY]
    names = {p.name for p in kinds if p.kind is p.POSITIONAL_ONLY}
    return function(*first, **{n: v for n, v in given.items() if n not in names})


def _fault(function: Callable[..., Any], given: dict[str, Any], parameter: str) -> str:
    """What is wrong with the way in which a wrong argument is met; nothing if it is refused."""
    try:
        _called(function, given)
    except sl.SpiritlevelError as error:
        text = str(error)
        named = re.search(rf"\b{re.escape(parameter)}\b", text) or re.search(SAYS, text)
        return "" if named else f"the message does not say what to give: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "accepted"
