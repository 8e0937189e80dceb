"""Wrong arguments of every public function: one SpiritlevelError each, before any work is done.

One valid call of each is written down in calling.py; the wrong ones are made from the signatures.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calling_studies
import spiritlevel as sl
from calling import calls, instances, shared
from cases import labels, randn
from spiritlevel.objective import Objective
from sweeping import parameters, shown, wrong

# Records of what was found: the library makes them.
RESULTS = set(
    "Audit Bound Bounds Certificate Claim Claims Comparison Estimate Finding Forecast Group "
    "History Line Result Spectra SpiritlevelError Status Surface Table landscape.Alignment "
    "coordinates.HessianLaw "
    "coordinates.Reparametrization coordinates.Reranked "
    "coordinates.inputs.Ranking coordinates.inputs.Laws orbit.OrbitMinimum orbit.Problem "
    "orbit.Representative orbit.Choice orbit.Proof orbit.WorstCase "
    "orbit.Solution orbit.Span orbit.Supremum symmetry.Certificate symmetry.Generator "
    "symmetry.Operation symmetry.Group symmetry.HeadMap symmetry.Signs symmetry.Units "
    "bounds.Description bounds.FlatBox bounds.LeastDivergence bounds.Stability "
    "training.Wrapping training.discrete.Instance training.discrete.Searched "
    "witnesses.slopes.Lipschitz witnesses.volume.InfiniteVolume".split()
) | {*calling_studies.RESULTS}
# Run inside every product, with what the library itself hands over.
INSIDE = set(
    "Objective.total Objective.outputs Objective.returned Objective.together Objective.here "
    "Objective.gradient_sum Objective.total_of Objective.place Objective.replaced Objective.part "
    "Objective.divisible Group.result".split()
) | {*calling_studies.INSIDE}
# Wrong only once the model has run: outputs that it does not have, data that it does not take.
AFTER_RUNNING = {"heads", "data", "loss", "example"}
# Values that the types and names call wrong and that are right.
RIGHT: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("coordinates.inputs.affine", "shift"): lambda v: getattr(v, "shape", ()) == (1, 1, 2),
    ("Objective.named", "vector"): lambda v: getattr(v, "shape", ()) == (17,),  # numbers or not
    ("compare", "init"): lambda v: v == {},
    **{
        (f"training.{name}", argument): lambda v: type(v) is int and v in (0, -1)
        for name, arguments in {
            "SAM": "rho eta",
            "SGLD": "temperature weight_decay",
            "FlatMinimumSearch": "weight tolerance change",
            "RaiseThenDecay": "end last_epoch",
            "ReplicatedSGD": "coupling",
            "SaddleFreeNewton": "damping lr",
            "fit": "stop",
            "watch_checkpoints": "rate",
            "discrete.count_within": "distance",
            "discrete.local_entropy": "distance",
            "discrete.sbpi": "share",
        }.items()
        for argument in arguments.split()
    },
    **{
        (f"bounds.{name}", argument): lambda v: type(v) in (int, float) and v in (0, math.inf)
        for name, arguments in {
            **dict.fromkeys("maurer mcallester quadratic thiemann".split(), "error kl"),
            **dict.fromkeys("catoni dziugaite_roy".split(), "error kl"),
            **dict.fromkeys("drawn vc path spectral_margin spectral_frobenius".split(), "error"),
            **dict.fromkeys("kl_inverse kl_inverse_below".split(), "error budget"),
            **dict.fromkeys("hardt_convex hardt_strongly_convex".split(), "largest"),
            **dict.fromkeys("pac_bayes survey".split(), "share epochs"),
            "Recipe": "epochs rate spread_rate momentum last prior_rate informed_rate",
            "bits_back": "epochs",
            "expected_sharpness": "error norm sharpness",
            "kl": "q p",
            "occam": "error nats",
        }.items()
        for argument in arguments.split()
    },
    **{
        (f"bounds.{name}", "checkpoint"): lambda v: isinstance(v, str) and bool(v)
        for name in ("pac_bayes", "survey")
    },
    ("training.SAM", "norm"): lambda v: type(v) is float and v == float("inf"),
    ("training.fit", "checkpoint"): lambda v: isinstance(v, str) and bool(v),
    # told by the library
    **{("Operator", name): lambda v: True for name in ("check", "rounding", "remark")},
    **calling_studies.RIGHT,
}
SAYS = r"\bgive\b|choose|needs?\b|\buse\b|there (are|is)|not an? |(has to|must) be|a vector"
# No valid call is made: it takes long, or there is none.
NOT_MADE = {"default_objective", "symmetry.unregister_operation", "MEASURES['layer_traces']"}
NOT_MADE |= calling_studies.NOT_MADE
KINDS = (
    "Objective Group Operator Audit Comparison Forecast Table Claims Density Signs Units HeadMap "
    "Ranking Line Surface Spectra History Bounds Findings Store Study WorstCase Proof"
).split()


class WorkDoneError(Exception):
    """A model was run, or a figure drawn, though an argument was wrong."""


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
    assert left == {
        *"absolute audit certify figures fold is_sharpness keep_count psd replace".split(),
        *"represented way align layers watch least orbit schedule sync test".split(),
        *"before create keep_weights retry sure".split(),
    }


TWO: Any = np.int64(2)  # numbers to everybody but a type checker
SHARE: Any = np.float32(0.1)
TEN: Any = torch.tensor(10.0)


def of(change: Callable[..., Any]) -> Callable[..., Any]:
    """Of the objective, the group and the operator that everything is tried on."""
    return lambda *words: change(*(shared()[n] for n in ("objective", "group", "operator")), *words)


# a function of some numbers, what stands for them, and the numbers themselves
ALIKE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "trace": (
        of(lambda o, g, a, seed, budget: sl.trace(a, seed=seed, budget=budget).value),
        (TWO, 30 * TWO),
        (2, 60),
    ),
    "eigenvalues": (
        of(lambda o, g, a, k, tol: [e.value for e in sl.eigenvalues(a, k, tol=tol)]),
        (TWO, SHARE),
        (2, 0.1),
    ),
    "a generator": (
        of(lambda o, g, a, seed: g.random(seed)),
        (torch.Generator().manual_seed(3),),
        (3,),
    ),
    "a tensor": (of(lambda o, g, a, t: sl.sharpen(o, target=t).objective.vector), (TEN,), (10.0,)),
    "sharpen": (of(lambda o, g, a, t: sl.sharpen(o, target=t).objective.vector), (SHARE,), (0.1,)),
    "a radius": (
        of(lambda o, g, a, r: sl.zero_in_ball(o, r, group=g).objective.vector),
        (1,),
        (1.0,),
    ),
    "random": (of(lambda o, g, a, seed, scale: g.random(seed, scale)), (TWO, 1), (2, 1.0)),
    "select": (
        of(lambda o, g, a, chosen: g.select(chosen).matrix().toarray()),
        ((i for i in np.arange(2)),),
        ([0, 1],),
    ),
    "a seed below zero": (
        of(lambda o, g, a, seed: sl.verify(o, o, seed=seed).relative),
        (-1,),
        (0,),
    ),
    "a large seed": (
        of(lambda o, g, a, seed: sl.measure(o, ("loss",), seed=seed, compile=False)["loss"].value),
        (2**63,),
        (0,),
    ),
    "a large seed that is drawn from": (
        of(lambda o, g, a, seed: sl.fisher(o, "sampled", seed=seed).dense()),
        (2**63,),
        (2**63,),  # the same draws
    ),
    "keskar": (of(lambda o, g, a, eps: sl.MEASURES["keskar"](o, eps=eps).value), (SHARE,), (0.1,)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_as_good_as_a_number(name: str) -> None:
    """Scalars of numpy and torch, generators, and whole numbers in the place of others."""
    function, given, plain = ALIKE[name]
    found, expected = function(*given), function(*plain)
    # 0.1 in float32 is another number, and searches magnify that
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-12)


def test_what_is_as_good_as_a_number_for_an_objective() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(2, 2), randn(6, 2), labels(6, classes=2)
    options: dict[str, Any] = {"seed": TWO, "microbatch": TWO, "device": torch.device("cpu")}
    found = Objective(net, (x, y), F.cross_entropy, params=("weight", "bias"), **options)
    assert len(found.batches) == 3
    assert found.seed == 2
    assert found.value() == pytest.approx(F.cross_entropy(net(x.float()), y).item(), rel=1e-6)


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
    """The valid call is made; wrong ones are refused before a model is run or a figure drawn."""
    right = valid(name, function)
    if name not in NOT_MADE:
        _called(function, right)
    faults = []
    for parameter, (kind, default) in parameters(function).items():
        with monkeypatch.context() as patch:
            if parameter not in AFTER_RUNNING:
                patch.setattr(Objective, "_run", _works)
                patch.setattr("spiritlevel.symmetry.find.capture", _works)
                patch.setattr("matplotlib.figure.Figure.draw_without_rendering", _works)
            for value in wrong(parameter, kind, right.get(parameter, default)):
                if not RIGHT.get((name, parameter), lambda _: False)(value):
                    fault = _fault(function, {**right, parameter: value}, parameter)
                    faults += [f"{name}: {parameter}={shown(value)}: {fault}"] if fault else []
    return faults


def _works(*given: Any, **named: Any) -> None:
    raise WorkDoneError("work was done before the argument was refused")


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
