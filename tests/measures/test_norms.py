"""Norms of weights against their formulas, what leaves them as they are, what they refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conformance
import spiritlevel as sl
import zoo
from architectures import objective_of, randomized
from cases import First, labels, randn
from spiritlevel.base.estimate import Status
from spiritlevel.measures.convolutions import periodic_kernel_norm
from spiritlevel.measures.instruments import Instruments

PRODUCTS = [
    f"log_{norm}_{kind}{over}"
    for norm in ("spectral", "frobenius")
    for kind in ("product", "sum")
    for over in ("", "_over_margin")
]


def value(name: str, objective: sl.Objective, **options: Any) -> float:
    found = sl.MEASURES[name](objective, **options)
    assert found.status is Status.EXACT
    assert found.error == 0
    return found.value


def matrices(objective: sl.Objective) -> list[Tensor]:
    return [p.double().reshape(len(p), -1) for p in objective.params.values() if p.ndim > 1]


def expected(ws: list[Tensor], starts: list[Tensor], gamma: float) -> dict[str, float]:
    """All of them from singular values, as in the paper."""
    spec = [float(torch.linalg.svdvals(w)[0]) ** 2 for w in ws]
    fro = [float(torch.linalg.svdvals(w).square().sum()) for w in ws]
    apart = [torch.linalg.svdvals(w - v) for w, v in zip(ws, starts, strict=True)]
    far = [float(s.square().sum()) for s in apart]
    d = len(ws)
    spectral, frobenius = math.prod(spec), math.prod(fro)
    over = spectral / gamma**2
    return {
        "log_spectral_product": math.log(spectral),
        "log_spectral_product_over_margin": math.log(over),
        "log_spectral_sum": math.log(d * spectral ** (1 / d)),
        "log_spectral_sum_over_margin": math.log(d * over ** (1 / d)),
        "log_spectral_bound_from_zero": math.log(
            over * sum(f / s for f, s in zip(fro, spec, strict=True))
        ),
        "log_spectral_bound_from_init": math.log(
            over * sum(f / s for f, s in zip(far, spec, strict=True))
        ),
        "stable_rank_sum": sum(f / s for f, s in zip(fro, spec, strict=True)),
        "log_frobenius_product": math.log(frobenius),
        "log_frobenius_product_over_margin": math.log(frobenius / gamma**2),
        "log_frobenius_sum": math.log(d * frobenius ** (1 / d)),
        "log_frobenius_sum_over_margin": math.log(d * (frobenius / gamma**2) ** (1 / d)),
        "frobenius_distance": sum(far),
        "spectral_distance": sum(float(s[0]) ** 2 for s in apart),
        "parameter_norm": sum(fro),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_norm_by_its_formula(dtype: torch.dtype) -> None:
    objective = conformance.objective().to(dtype)
    init = randn(objective.size, seed=7).to(dtype)
    starts = [p.double() for p in objective.named(init).values() if p.ndim > 1]
    gamma = sl.MEASURES["margin"](objective).value
    assert gamma > 0
    for name, number in expected(matrices(objective), starts, gamma).items():
        assert value(name, objective, init=init) == pytest.approx(number, rel=1e-10), name
    gamma = sl.MEASURES["margin"](objective, share=0.5).value
    assert value("log_spectral_product_over_margin", objective, share=0.5) == pytest.approx(
        value("log_spectral_product", objective) - 2 * math.log(gamma), rel=1e-10
    )


def test_the_geometric_sum_is_the_least_one_of_rescaled_layers() -> None:
    """d (prod ||W||^2)^(1/d) = min over factors of product one of sum c^2 ||W||^2."""
    objective = conformance.objective()
    squares = torch.stack([w.square().sum() for w in matrices(objective)])
    balanced = squares.log().mean().exp() * len(squares)
    assert math.exp(value("log_frobenius_sum", objective)) == pytest.approx(float(balanced))
    for seed in range(20):
        t = randn(len(squares), seed=seed)
        moved = (squares * (2 * (t - t.mean())).exp()).sum()
        assert float(moved) >= float(balanced) * (1 - 1e-12)


def images() -> sl.Objective:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 9, 3),
    )
    data = randn(12, 1, 6, 6), labels(12)
    return sl.Objective(randomized(net), data, F.cross_entropy)


def test_the_two_norms_of_convolutions() -> None:
    objective = images()
    a, b, c = (objective.params[n] for n in ("0.weight", "3.weight", "6.weight"))
    last = float(torch.linalg.matrix_norm(c, 2))
    kernels = [float(torch.linalg.matrix_norm(w.reshape(len(w), -1), 2)) for w in (a, b)]
    one, two = (1, 1), (2, 2)
    periodic = [
        periodic_kernel_norm(a, (6, 6), stride=one, dilation=one),
        periodic_kernel_norm(b, (6, 6), stride=two, dilation=one),
    ]
    found = value("log_spectral_product", objective)
    assert found == pytest.approx(2 * math.log(math.prod(kernels) * last), rel=1e-12)
    found = value("log_spectral_product", objective, convolution="periodic")
    assert found == pytest.approx(2 * math.log(math.prod(periodic) * last), rel=1e-12)
    ranks = value("stable_rank_sum", objective, convolution="periodic")
    sizes = [float(w.square().sum()) for w in (a, b, c)]
    tops = [*periodic, last]
    assert ranks == pytest.approx(sum(s / t**2 for s, t in zip(sizes, tops, strict=True)))
    with pytest.raises(sl.SpiritlevelError, match="choose one of 'kernel', 'periodic'"):
        value("log_spectral_product", objective, convolution="exact")


def test_folded_norms_are_those_of_the_folded_weights() -> None:
    objective = images()
    held = {**objective.params, **objective.buffers}
    scale = held["1.weight"] / (held["1.running_var"] + 1e-5).sqrt()
    folded = objective.at({"0.weight": held["0.weight"] * scale.reshape(3, 1, 1, 1)})
    init = torch.ones(objective.size, dtype=torch.float64)  # a gain of 1, of fresh statistics
    fresh = objective.named(init)
    fresh["0.weight"] = fresh["0.weight"] / math.sqrt(1 + 1e-5)
    starts = [p.reshape(len(p), -1) for p in fresh.values() if p.ndim > 1]
    gamma = sl.MEASURES["margin"](objective, share=1.0).value
    for name, number in expected(matrices(folded), starts, gamma).items():
        share = {"share": 1.0} if "share" in sl.MEASURES[name].parameters else {}
        found = value(name, objective, init=init, fold=True, **share)
        assert found == pytest.approx(number, rel=1e-10), name
        assert found != value(name, objective, init=init, **share), name


# What leaves them as they are --------------------------------------------------------------------


def moved(objective: sl.Objective, kind: str, seed: int = 1) -> sl.Objective:
    group = sl.symmetries(objective)
    group = group.layerwise() if kind == "layers" else group
    return group.apply(objective, group.random(seed, 1.0))


@pytest.mark.parametrize("name", ["stable_rank_sum", "parameter_norm", "path_norm_over_margin"])
def test_they_conform(name: str) -> None:
    conformance.check(sl.MEASURES[name])


@pytest.mark.parametrize("name", [*PRODUCTS, "log_spectral_bound_from_zero"])
def test_products_stay_in_chains_and_nowhere_else(name: str) -> None:
    """Why they promise nothing: gains of norms, and one norm before three matrices, move them."""
    chain = conformance.objective()
    here = value(name, chain)
    assert value(name, moved(chain, "layers")) == pytest.approx(here, rel=1e-9)
    assert value(name, moved(chain, "units")) != pytest.approx(here, rel=1e-2)
    share = {"share": 1.0} if name.endswith(("margin", "zero")) else {}
    encoder = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, norm_first=True)
    for objective in (objective_of(First(encoder, 4), 3, 4, classes=3), images()):
        here = value(name, objective, **share)
        assert value(name, moved(objective, "layers"), **share) != pytest.approx(here, rel=1e-3)
        assert not sl.MEASURES[name].promises("layer")


def test_folded_products_stay_where_gains_are_rescaled() -> None:
    objective = images()
    there = moved(objective, "layers")
    for name in ("log_spectral_product", "log_frobenius_product"):
        here = value(name, objective, fold=True)
        assert value(name, there, fold=True) == pytest.approx(here, rel=1e-9)
        assert value(name, there) != pytest.approx(value(name, objective), rel=1e-3)


def test_over_the_margin_the_size_of_the_outputs_drops_out() -> None:
    objective = conformance.objective()
    last = {n: 3 * p for n, p in objective.params.items() if n.startswith("4.")}
    larger = objective.at(last)
    torch.testing.assert_close(larger.predictions(), 3 * objective.predictions())
    init = randn(objective.size, seed=7)
    for name, entry in sl.MEASURES.items():
        if entry.family != "norm" or name == "fisher_rao":
            continue
        a, b = (value(name, one, init=init) for one in (objective, larger))
        assert math.isclose(a, b, rel_tol=1e-9) == ("output" in entry.invariances), name


@pytest.mark.parametrize("name", sorted(sl.MEASURES))
def test_renumbered_units(name: str) -> None:
    entry = sl.MEASURES[name]
    if entry.family != "norm" or name == "fisher_rao":
        return
    objective = conformance.objective()
    order = torch.tensor([3, 1, 5, 0, 2, 6, 4])
    p = objective.params
    rows = {n: p[n][order] for n in ("0.weight", "0.bias")}
    there = objective.at({**rows, "2.weight": p["2.weight"][:, order]})
    init = randn(objective.size, seed=7)
    a, b = (value(name, one, init=init) for one in (objective, there))
    assert math.isclose(a, b, rel_tol=1e-9) == ("permutation" in entry.invariances)


# Paths -------------------------------------------------------------------------------------------


def paths(objective: sl.Objective, of: Callable[[float], float]) -> float:
    """The sum over all paths from an input or a bias to an output of the product of `of(w)`."""
    layers = [m for m in objective.module if isinstance(m, nn.Linear)]  # type: ignore[union-attr]
    sizes = [layers[0].in_features, *(m.out_features for m in layers)]
    total = 0.0
    for start in range(len(layers)):
        for units in itertools.product(*(range(n) for n in sizes[start:])):
            steps = list(enumerate(itertools.pairwise(units), start))
            weights = [of(float(layers[d].weight[j, i])) for d, (i, j) in steps]
            total += math.prod(weights) if start == 0 else 0.0
        for units in itertools.product(*(range(n) for n in sizes[start + 1 :])):
            steps = list(enumerate(itertools.pairwise(units), start + 1))
            weights = [of(float(layers[d].weight[j, i])) for d, (i, j) in steps]
            total += of(float(layers[start].bias[units[0]])) * math.prod(weights)
    return total


def test_path_norms_against_every_path() -> None:
    objective = conformance.objective()
    assert value("l1_path_norm", objective) == pytest.approx(paths(objective, abs), rel=1e-12)
    gamma = sl.MEASURES["margin"](objective).value
    squares = paths(objective, lambda w: w * w)
    found = value("path_norm_over_margin", objective)
    assert found == pytest.approx(squares / gamma**2, rel=1e-12)
    known = zoo.trained("mlp")
    part = sl.Objective(known.net, (known.x, known.y), F.cross_entropy, params=["0.*"])
    assert value("l1_path_norm", part) == pytest.approx(paths(objective, abs), rel=1e-12)
    conformance.check(sl.MEASURES["l1_path_norm"])


def test_l1_paths_of_an_image_net() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    objective = objective_of(net, 1, 4, 4, classes=3)
    p = {n: t.abs() for n, t in objective.params.items()}
    first = F.conv2d(torch.ones(1, 1, 4, 4).double(), p["0.weight"], p["0.bias"], padding=1)
    out = F.avg_pool2d(first, 2).flatten(1) @ p["4.weight"].T + p["4.bias"]
    assert value("l1_path_norm", objective) == pytest.approx(float(out.sum()), rel=1e-12)
    with pytest.raises(sl.SpiritlevelError, match="layers without norms"):
        value("l1_path_norm", images())


# What is refused ---------------------------------------------------------------------------------


def test_what_has_no_norm_says_so() -> None:
    objective = conformance.objective()
    zero = objective.at({"2.weight": torch.zeros(6, 7, dtype=torch.float64)})
    for name in ("log_spectral_product", "log_frobenius_sum"):
        with pytest.raises(sl.SpiritlevelError, match="logarithm of its norm is minus infinity"):
            value(name, zero)
    with pytest.raises(sl.SpiritlevelError, match="has no stable rank"):
        value("stable_rank_sum", zero)
    with pytest.raises(sl.SpiritlevelError, match="give init="):
        value("frobenius_distance", objective)
    with pytest.raises(sl.SpiritlevelError, match="no weight has moved from init="):
        value("log_spectral_bound_from_init", objective, init=objective)
    assert value("spectral_distance", objective, init=objective) == 0
    units = sl.coordinates.Diagonal(torch.full((objective.size,), 2.0, dtype=torch.float64))
    with pytest.raises(sl.SpiritlevelError, match="in other coordinates"):
        value("parameter_norm", objective.reparametrize(units))


def test_margins_and_singular_values_are_found_once() -> None:
    tools = Instruments(conformance.objective())
    for name in PRODUCTS:
        sl.MEASURES[name].function(tools)
    assert tools.used("margins")
    table = sl.measure(conformance.objective(), [*PRODUCTS, "margin"])
    shared = {row.name for row in table if row.shared}
    assert shared == {*(n for n in PRODUCTS[2:] if n.endswith("margin")), "margin"}
