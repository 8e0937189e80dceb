"""One valid call of every public function and method: what each is given."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal

import bounded
import calling_bounds
import calling_studies
import courses
import spiritlevel as sl
import zoo
from cases import BY_NAME, labels, randn
from spiritlevel.coordinates.inputs import Representation
from spiritlevel.objective import Objective
from spiritlevel.orbit.program import matrix_of, problem_of

RESULT_KINDS = tuple(
    "Audit Comparison Forecast Table Claims Line Surface Spectra History Bounds Findings".split()
)


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


Calls = dict[str, dict[str, Any]]


@functools.cache
def calls() -> Calls:
    """The valid call of each, beyond what `shared` gives: names of functions -> arguments."""
    return {
        **_of_objectives(),
        **_of_operators(),
        **_of_coordinates(),
        **_of_orbits(),
        **_of_symmetries(),
        **_of_groups(),
        **_of_units(),
        **_of_witnesses(),
        **_of_landscapes(),
        **_of_training(),
        **calling_bounds.calls(shared()["objective"]),
        **calling_studies.calls(),
        **_of_results(),
    }


def plain(*names: str) -> Calls:
    """What `shared` gives is enough."""
    return {name: {} for name in names}


def _of_objectives() -> Calls:
    net, rows = shared()["objective"], (randn(6, 2), labels(6, classes=2))
    return {
        "Objective": {"model": module(), "data": rows, "loss": F.cross_entropy, "params": "*"},
        "Objective.named": {"vector": net.vector},
        "Objective.mean": {"of": lambda batch: 0.0},
        **plain("Objective.at", "Objective.reparametrize", "default_objective"),
        "Objective.edited": {"edit": lambda model: None},
        "Objective.on": {"batches": [rows]},
        "Objective.few": {"n": 2},
        "Objective.to": {"dtype": torch.float64},
    }


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


def _of_operators() -> Calls:
    return {
        "Operator": {
            **{"size": 5, "dtype": torch.float64, "device": torch.device("cpu")},
            "matvec": lambda v: v,
        },
        "Operator.__matmul__": {"vectors": torch.ones(5)},
        "Operator.expect": {"products": 5},
        **plain(*"hessian ggn ggn_diagonal fisher output_gradients".split()),
        **plain(*"eigenvalues eigenpairs density negative_eigenvalues".split()),
        **plain(*"trace diagonal frobenius".split()),
        "from_matrix": {"matrix": torch.eye(3)},
        "restricted": {"operator": sl.hessian(shared()["objective"]), "names": "0.*"},
        "scaled": {"diagonal": torch.ones(5)},
        "Density.count_below": {"threshold": 0.0},
        "Density.sum_over": {"of": torch.square, "low": 0.0, "high": 1.0},
    }


def _of_coordinates() -> Calls:
    net = shared()["objective"]
    law, wide = (Independent(Normal(torch.zeros(1), s * torch.ones(1)), 1) for s in (1, 2))
    maps = {
        "Chain": {"parts": (shared()["coordinates"],)},
        "Custom": {"forward": lambda e: 2 * e, "inverse": lambda t: t / 2, "near": net.vector},
        "Diagonal": {"factors": torch.ones(net.size)},
        "Linear": {"matrix": torch.eye(net.size)},
        "Power": {"a": 0.5},
        "Radial": {"r_hat": 0.1, "delta": 1.0, "rho": 0.2},
        "WeightNorm": {"blocks": ((0, 3, 2),)},
        "hessian_law": {},
        "rerank": {"objectives": [net, net.at(net.vector + 1)], "order": [1, 0]},
        "weight_norm": {"params": "*.weight"},
    }
    inputs = {
        "Representation": {"forward": lambda x: x, "inverse": lambda x: x},
        "affine": {"shift": torch.zeros(2), "matrix": torch.eye(2)},
        **plain(*"standardization whitening represent".split()),
        **plain(*"input_gradients input_gradient_norm".split()),
        "opposing": {"other": small(-2.0)},
        "ranked": {"truth": law, "models": {"a": wide, "b": law}, "draws": 20},
    }
    return {
        **{f"coordinates.{name}": given for name, given in maps.items()},
        **{f"coordinates.inputs.{name}": given for name, given in inputs.items()},
        "Ranking.best": {"criterion": "earth mover", "represented": True},
        "Ranking.shift": {"criterion": "earth mover"},
    }


def _of_orbits() -> Calls:
    net = shared()["objective"]
    return {
        **plain("orbit.balanced", "orbit.representative"),
        "orbit.minimum": {"norm": "trace", "operator": "ggn"},
        "orbit.operator_of": {"problem": problem_of(net, None, None, matrix_of(net, "ggn"))},
        "orbit.search": {"evaluations": 2},
        "orbit.supremum": {"target": 1e-9},
        **plain("orbit.worst_case", "WorstCase.witness", "Proof.holds"),
    }


def _of_symmetries() -> Calls:
    return {
        "symmetries": {"model": module()},
        **plain("verify"),
        "symmetry.register_operation": {
            **{"name": "sweep::nothing", "operation": sl.symmetry.Operation(), "replace": True}
        },
        "symmetry.unregister_operation": {"name": "sweep::nothing"},
        "symmetry.head_maps": {"model": BY_NAME["TransformerEncoderLayer"].objective()},
        "symmetry.permutations": {"model": module()},
        "symmetry.sign_flips": {"model": BY_NAME["mlp"].objective()},
    }


def _of_groups() -> Calls:
    net, group = shared()["objective"], shared()["group"]
    methods = {
        "pieces": {"index": 0},
        **plain(*"inverse compose random evaluate log_scales act factors".split()),
        **plain(*"locate apply verify".split()),
        "flat_factors": {"shapes": net.shapes},
        "pull": {"values": net.params},
        "matrix": {"names": ["0.weight"]},
        "restrict": {"kinds": next(iter(group.kinds))},
        "select": {"indices": [0]},
        "of_layers": {"element": group.layerwise().random()},
    }
    return {f"Group.{name}": given for name, given in methods.items()}


def _of_units() -> Calls:
    signs, units, head = (instances()[kind] for kind in ("Signs", "Units", "HeadMap"))
    tanh, attention = BY_NAME["mlp"].objective(), BY_NAME["TransformerEncoderLayer"].objective()
    flips, order, matrix = signs.random(0), units.random(0), head.random(0)
    return {
        **plain("Signs.random", "Units.random", "HeadMap.random"),
        "Signs.act": {"params": tanh.params, "flips": flips},
        "Signs.inverse": {"flips": flips},
        "Signs.apply": {"objective": tanh, "flips": flips},
        **{f"Units.{name}": {"order": order} for name in ("act", "inverse", "apply")},
        "HeadMap.act": {"params": attention.params, "matrix": matrix},
        "HeadMap.inverse": {"matrix": matrix},
        "HeadMap.apply": {"objective": attention, "matrix": matrix},
    }


def _of_witnesses() -> Calls:
    volume = {
        **plain("scale_factor", "worst_in_box"),
        **{name: {"boxes": 2} for name in ("box_intervals", "infinite_volume")},
        "box_log_volumes": {"size": 5, "alpha": 2.0, "growth": 1.0, "boxes": 2},
    }
    return {
        **plain(*"sharpen sharpen_many zero_in_ball worst_in_ball".split()),
        **plain("witnesses.slopes.lipschitz"),
        **{f"witnesses.volume.{name}": given for name, given in volume.items()},
    }


def _of_landscapes() -> Calls:
    net, file = shared()["objective"], Path(tempfile.mkdtemp()) / "a file"
    other, few = net.at(net.vector + 0.1), {"steps": 3, "journal": None}
    return {
        "landscape.aligned": {"a": net, "b": other},
        "landscape.convexity": {"steps": 3, "kind": "gaussian", "directions": None},
        "landscape.interpolate": {"a": net, "b": other, **few},
        "landscape.line": {**few, "kind": "layer", "directions": None},
        "landscape.plane": {**few, "kind": "layer", "directions": None},
        "landscape.spectra": {"probes": 2, "steps": 3, "top": 2},
        "landscape.trajectory": {
            "checkpoints": [net.vector + 1, net.vector * 2],
            **few,
        },
        **{f"{kind}.to_npz": {"path": file} for kind in ("Line", "Surface", "Spectra")},
        **plain(*(f"{kind}.plot" for kind in ("Line", "Surface", "Spectra"))),
        "Surface.to_vtk": {"path": file},
        **plain("Surface.centre", "Density.plot"),
        "Line.__getitem__": {"name": "direction 1"},
        "Surface.__getitem__": {"name": "as given"},
        "Spectra.__getitem__": {"name": "as given"},
    }


def _of_training() -> Calls:
    net, model, t = shared()["objective"], module().double(), sl.training
    weights: dict[str, Any] = {"params": list(model.parameters())}
    plane: dict[str, Any] = {**weights, "base": torch.optim.SGD}
    rows = (randn(6, 2), labels(6, classes=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    binary = t.discrete.perceptron(9, 0.3, seed=0)
    solved = t.discrete.solutions(binary)[0]
    return {
        "training.SAM": {**plane, "model": model, "orbit": None, "eta": 0.01},
        "training.SGLD": {**weights, "lr": 0.1},
        "training.EntropySGD": {**plane, "model": model},
        "training.ReplicatedSGD": plane,
        "training.FlatMinimumSearch": {**plane, "model": model},
        "training.PathSGD": {**plane, "model": model, "example": rows[0]},
        "training.SaddleFreeNewton": {"params": list(net.module.parameters()), "objective": net},
        "training.RaiseThenDecay": {"optimizer": optimizer, "peak": 2.0, "rise": 2, "fall": 2},
        "training.Restarting": {
            "optimizer": optimizer,
            "schedule": torch.optim.lr_scheduler.CosineAnnealingLR,
            "period": 3,
        },
        "training.Watch": {"objective": net, "measures": ["loss"]},
        "training.fit": {
            **{"model": model, "data": rows, "loss": F.cross_entropy, "optimizer": optimizer},
            **{"epochs": 1, "checkpoint": None},
        },
        "training.watch_checkpoints": {"checkpoints": [net.params], "measures": ["loss"]},
        "training.discrete.perceptron": {"size": 9, "load": 0.3},
        "training.discrete.committee": {"inputs": 3, "hidden": 3, "load": 0.3},
        "training.discrete.energies": {"instance": binary, "weights": solved},
        **{f"training.discrete.{n}": {"instance": binary} for n in ("anneal", "rbp", "sbpi")},
        "training.discrete.replicated_anneal": {"instance": binary},
        "training.discrete.solutions": {"instance": binary},
        "training.discrete.local_entropy": {
            **{"instance": binary, "solution": solved, "distance": 2}
        },
        "training.discrete.count_within": {
            **{"instance": binary, "solution": solved, "distance": 2}
        },
        "History.plot": {},
        "History.readings": {"name": "lambda_max"},
        "History.__getitem__": {"name": courses.full().moments[0].name},
    }


def _of_results() -> Calls:
    net, table = shared()["objective"], instances()["Table"]
    return {
        "audit": {"measures": ["loss"], "way": False},
        "claims": {"objective": net, "names": "any_labels", "figures": False},
        "compare": {"objectives": {"a": net, "b": small(2.0)}, "measures": ["loss"]},
        "estimate": {"measures": ["loss"]},
        "measure": {"names": ["loss"]},
        "register": {"name": "a measure of the sweep"},
        **{f"MEASURES[{name!r}]": _of_measure(name) for name in sl.MEASURES},
        "load": {"path": written("Table")},
        "write_report": {"result": table, "path": Path("/dev/null")},
        **plain(*(f"{kind}.{m}" for kind in RESULT_KINDS for m in ("to_csv", "to_json"))),
        "Result.from_dict": {"data": table.to_dict()},
        "Audit.__getitem__": {"name": "loss"},
        "Comparison.of": {"measure": "loss"},
        "Claims.__getitem__": {"name": "any_labels"},
        "Comparison.__getitem__": {"key": "loss"},
        "Forecast.__getitem__": {"name": "loss"},
        "Table.__getitem__": {"name": "loss"},
    }


def _of_measure(name: str) -> dict[str, Any]:
    """A network for which it is defined, and how that came to be."""
    known = zoo.trained("transformer" if name.startswith("geodesic") else "mlp")
    return {"objective": known.objective(), "init": known.init, "losses": zoo.LOSSES}


def written(kind: str) -> Path:
    """A file that holds a result."""
    path = Path(tempfile.mkdtemp()) / "result.json"
    instances()[kind].to_json(path)
    return path


@functools.cache
def worst() -> sl.orbit.WorstCase:
    return sl.orbit.worst_case(shared()["objective"], shared()["group"], radius=0.1)


def instances() -> dict[str, Any]:
    """One of each class whose methods people call."""
    net, c = shared()["objective"], sl.coordinates
    law = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    return {
        "Objective": net,
        "Group": shared()["group"],
        "Operator": shared()["operator"],
        "Audit": sl.audit(net, ["loss"], way=False),
        "Comparison": sl.compare({"a": net, "b": small(2.0)}, ["loss"]),
        "Forecast": sl.estimate(net, ["loss"]),
        "Table": sl.measure(net, ["loss"]),
        "Claims": sl.claims(net, "any_labels", figures=False),
        "Line": sl.landscape.line(net, steps=3),
        "Surface": sl.landscape.plane(net, steps=3),
        "Spectra": sl.landscape.spectra(net, probes=2, steps=3, top=2),
        "History": courses.full(),
        "Bounds": bounded.full(),
        **calling_studies.instances(),
        "Density": sl.density(shared()["operator"]),
        "Signs": sl.symmetry.sign_flips(BY_NAME["mlp"].objective()),
        "Units": sl.symmetry.permutations(net)[0],
        "HeadMap": sl.symmetry.head_maps(BY_NAME["TransformerEncoderLayer"].objective())[0],
        "WorstCase": worst(),
        "Proof": worst().proof,
        "Ranking": c.inputs.ranked(law, {"a": law}, shared()["representation"], draws=20),
    }
