"""Everything that is promised of a network, confronted with the truth about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import spiritlevel as sl
from premises.case import Case
from premises.losses import KINDS, given_loss, own_words
from premises.orbits import divided, exponents_of, least_found, moved, norm_of
from premises.truth import Truth, truth_of
from spiritlevel.symmetry import Group

# piecewise linear in each parameter, and recognized as such
MULTILINEAR = ("relu", "no biases", "leaky", "max pooling", "mean pooling", "residual", "silent")


class Refused(Exception):
    """A true refusal: there is nothing more to confront."""


@dataclass(frozen=True)
class Bench:
    """An objective with the truth about it; matrices are those at its point, dense."""

    truth: Truth
    objective: sl.Objective
    group: Group
    exponents: Tensor  # B
    hessian: Tensor
    gauss_newton: Tensor

    @property
    def case(self) -> Case:
        return self.truth.case

    def matrix(self, kind: str) -> Tensor:
        return self.hessian if kind == "hessian" else self.gauss_newton

    def at(self, t: Tensor) -> Tensor:
        """The flat parameters of an element of the group, in float64."""
        named = self.group.act(self.truth.named(self.truth.point), t)
        return torch.cat([named[name].reshape(-1) for name in self.truth.names])

    @property
    def rounding(self) -> float:
        """Relative: what the precision of the user leaves of a number."""
        return 1e-8 if self.case.double else 1e-3


def bench_of(case: Case) -> Bench:
    truth = truth_of(case)
    heads = "main" if case.structure == "heads" else None
    try:
        objective = sl.Objective(
            truth.model,
            truth.data.batches,
            given_loss(case),
            microbatch=case.microbatch,
            heads=heads,
        )
    except sl.SpiritlevelError as error:
        raise allowed(truth, "objective", error) from error
    assert list(objective.params) == truth.names
    group = sl.symmetries(objective)
    ones = {name: torch.ones_like(p) for name, p in truth.named(truth.point).items()}
    exponents = exponents_of(group.act, ones, group.dim)
    point = truth.point
    return Bench(
        truth, objective, group, exponents, truth.hessian(point), truth.gauss_newton(point)
    )


# Refusals -----------------------------------------------------------------------------------------


def allowed(truth: Truth, door: str, error: sl.SpiritlevelError) -> Refused:
    """Whether a refusal is true of this case; else it is a fault."""
    text, case = str(error), truth.case
    kind = KINDS[case.loss]
    g = truth.gauss_newton(truth.point)
    reasons = {
        ("objective", "microbatch=.* would change the loss"): not truth.is_sum or _skips(truth),
        ("objective", "the loss is nan"): truth.has_empty_batch,
        ("ggn", "must see outputs and loss apart"): kind.of_model,
        ("ggn", "needs a loss that is a sum over examples"): kind.of_model
        or not truth.is_sum
        or _skips(truth),
        ("ggn", "is not convex in the outputs"): not truth.is_convex,
        ("ggn", "the Gauss-Newton matrix of this loss is empty"): not bool(g.any()),
        ("hessian", "nothing but rounding is left"): own_words(case) and blind(case) > g.norm(),
        ("sharpen", "no layer that can be scaled has positive curvature"): True,
        ("sharpen", "has no rescaling symmetry"): True,
        ("trace of hessian", "not known to be a sum of exponentials"): kind.of_model
        or not truth.is_sum
        or not truth.is_convex
        or not bool(g.any())
        or _skips(truth)
        or case.end == "log_softmax"
        or case.architecture not in MULTILINEAR,
    }
    for (where, pattern), holds in reasons.items():
        if door.endswith(where) and re.search(pattern, text):
            assert holds, f"a false refusal at {door}: {text}"
            return Refused(text)
    raise AssertionError(f"an unexpected refusal at {door}: {text}")


def _skips(truth: Truth) -> bool:
    """A user's own function that makes NaN of one ignored label alone."""
    return truth.case.order == "ignored late"


# Values -------------------------------------------------------------------------------------------


def check_values(bench: Bench) -> None:
    """Value, gradient and products against dense derivatives of the whole data."""
    truth, o, point = bench.truth, bench.objective, bench.truth.point
    tight = 1e-9 if bench.case.double else 1e-4
    close(truth, o.value(), truth.value(point), truth.value, tight, "value")
    close(truth, o.gradient(), truth.gradient(point), truth.gradient, tight, "gradient")
    draws = torch.Generator().manual_seed(1)
    v = torch.randn(len(point), 2, generator=draws, dtype=torch.float64)
    # products of weight_norm are differences of gradients
    rounding = 1e-5 if bench.case.architecture == "weight norm" else bench.rounding
    try:
        product = sl.hessian(o, compile=False) @ v.to(o.dtype)
    except sl.SpiritlevelError as error:
        raise allowed(truth, "hessian", error) from error
    close(truth, product, bench.hessian @ v, lambda p: truth.hessian(p) @ v, rounding, "hessian")
    if KINDS[bench.case.loss].of_model:
        return
    product, true = sl.ggn(o) @ v.to(o.dtype), bench.gauss_newton @ v
    close(truth, product, true, lambda p: truth.gauss_newton(p) @ v, bench.rounding, "ggn")


def blind(case: Case) -> float:
    """The curvature that the oracle does not see: it takes 1 - p from p.

    So does a user's own loss, whose error is multiplied by the squared slopes of the outputs.
    """
    return (1e-12 if case.double else 1e-6) * (case.confidence**2 if own_words(case) else 1)


def close(
    truth: Truth,
    found: Tensor | float,
    true: Tensor,
    of: Callable[[Tensor], Tensor],
    rounding: float,
    what: str,
) -> None:
    """Relative to the largest number, or as far as the oracle knows it."""
    scale = float(true.abs().max())
    gap = (torch.as_tensor(found, dtype=torch.float64) - true).abs().detach()
    if bool((gap <= rounding * scale).all()):
        return
    right = gap <= rounding * scale + 30 * truth.wobble(of) + blind(truth.case)
    assert bool(right.all()), f"{what}: off by {float(gap[~right].max()):.3g} of {scale:.3g}"


# Symmetries ---------------------------------------------------------------------------------------


def change(bench: Bench, vector: Tensor, *, elsewhere: bool = True) -> tuple[float, float]:
    """Of all predictions, on the data and elsewhere, relative, and of the loss."""
    truth = bench.truth
    draws = torch.Generator().manual_seed(3)
    fresh = torch.randn(truth.data.x.shape, generator=draws, dtype=torch.float64)
    worst = 0.0
    with torch.no_grad():
        for x in (None, fresh) if elsewhere else (None,):
            old, new = truth.predictions(truth.point, x), truth.predictions(vector, x)
            for a, b in zip(old, new, strict=True):
                gap = torch.where(a == b, 0.0, (a - b).abs() / (1e-2 + a.abs()))
                worst = max(worst, float(gap.max()))
        there, here = truth.value(vector), truth.value(truth.point)
    return worst, float((there - here).abs() / (1e-3 + here.abs()))


def check_elements(bench: Bench) -> None:
    """An element changes nothing, and its certificate says so."""
    group, o = bench.group, bench.objective
    if not group.dim:
        return
    for seed, scale in ((bench.case.seed, 0.5), (bench.case.seed + 1, 2.0)):
        t = group.random(seed, scale)
        outputs, loss = change(bench, bench.at(t))
        assert outputs <= 1e-8, f"predictions move by {outputs:.2g} along the group"
        assert loss <= 1e-8, f"the loss moves by {loss:.2g} along the group"
        twin = group.apply(o, t)
        found = group.verify(o, twin)
        assert found.verdict == "exact", f"an element is {found}"
        alone = sl.verify(o, twin)
        assert alone.verdict in (("exact",) if bench.case.double else ("exact", "rounding")), (
            f"an element without its group is {alone}"
        )


def check_strangers(bench: Bench) -> None:
    """What is no element is not exact: noise on all parameters, on one, and a step downhill."""
    truth, o = bench.truth, bench.objective
    point, draws = truth.point, torch.Generator().manual_seed(bench.case.seed)
    size = 10.0 ** float(torch.empty(()).uniform_(-9, -1, generator=draws))
    noise = torch.randn(len(point), generator=draws, dtype=torch.float64)
    one = torch.zeros(len(point), dtype=torch.float64)
    one[int(torch.randint(len(point), (), generator=draws))] = 1.0
    step = truth.gradient(point)
    shifts = {
        "noise": size * noise * point,
        "one parameter": size * one * point,
        "a step": size * step / (1e-30 + step.norm()) * point.norm(),
    }
    usual = max(
        change(bench, point * (1 + 1e-11 * noise.roll(i)), elsewhere=False)[0] for i in range(3)
    )
    for name, shift in shifts.items():
        there = point + shift
        outputs, _ = change(bench, there, elsewhere=False)
        twin = o.at(there.to(o.dtype))
        verdict = sl.verify(o, twin, group=bench.group).verdict
        if outputs > 30 * usual + 1e-12 and bench.case.double:
            assert verdict != "exact", (
                f"{name} of {size:.1g} that moves predictions by {outputs:.2g} is {verdict}"
            )
        if outputs > 1e-3:
            assert verdict == "refuted", (
                f"{name} that moves predictions by {outputs:.2g}: {verdict}"
            )


# Least values over the orbit ----------------------------------------------------------------------


def check_minimum(bench: Bench, norm: str, kind: str) -> None:
    """What is said of the least value, against the matrix itself and a search over the orbit."""
    truth, o, group = bench.truth, bench.objective, bench.group
    try:
        found = sl.orbit.minimum(o, group, norm=norm, operator=kind)  # type: ignore[arg-type]
    except sl.SpiritlevelError as error:
        raise allowed(truth, f"{norm} of {kind}", error) from error
    t = found.log_scales
    outputs, loss = change(bench, bench.at(t))
    assert outputs <= 1e-6, f"another network is returned: predictions move by {outputs:.2g}"
    assert loss <= 1e-6, f"another network is returned: the loss moves by {loss:.2g}"
    matrix, b = orbit_of(bench, kind, one_sided=bool(found.divided_out))
    there = norm_of(moved(matrix, b, t), norm)
    if not found.divided_out:  # then it is a number of the matrix itself at the returned point
        there = norm_of(_dense(bench, kind, bench.at(t)), norm)
    here = norm_of(matrix, norm)
    slack = {"spectral": 5e-3, "trace": 1e-5, "frobenius": 1e-5}[norm]
    slack += 0 if bench.case.double else 1e-2
    assert abs(found.value - there) <= slack * abs(there) + 1e-12, (
        f"said to be {found.value:.6g}, is {there:.6g} at the returned point"
    )
    assert abs(found.before - here) <= (slack + 1e-2) * abs(here) + 1e-12, (
        f"before: said to be {found.before:.6g}, is {here:.6g}"
    )
    if bench.group.dim:
        best = best_found(bench, matrix, b, norm, t.double())
        check_bound(bench, found, best, sure=found.status is sl.Status.CONVERGED)


def orbit_of(bench: Bench, kind: str, *, one_sided: bool) -> tuple[Tensor, Tensor]:
    """The matrix and B of the problem, with what would run away divided out."""
    matrix, truth = bench.matrix(kind), bench.truth
    if not one_sided:
        return matrix, bench.exponents
    curved = truth.is_sum and truth.is_convex and bool(bench.gauss_newton.any())
    known = curved and not KINDS[bench.case.loss].of_model
    masses = bench.gauss_newton.diagonal() if known else bench.hessian.norm(dim=1)
    parameters = [p.detach() for p in truth.exact.parameters()]
    return divided(matrix, masses, bench.exponents, parameters)


def _dense(bench: Bench, kind: str, vector: Tensor) -> Tensor:
    truth = bench.truth
    return truth.hessian(vector) if kind == "hessian" else truth.gauss_newton(vector)


def best_found(bench: Bench, matrix: Tensor, b: Tensor, norm: str, *starts: Tensor) -> float:
    """The least value that a direct search over the orbit finds, or a random element."""
    if not bench.group.dim:
        return norm_of(matrix, norm)
    starts = (*starts, bench.group.identity(), bench.group.random(bench.case.seed, 1.0))
    random = [bench.group.random(i, 0.7) for i in range(20)]
    return min(
        least_found(matrix, b, norm, list(starts)),
        *(norm_of(moved(matrix, b, t), norm) for t in random),
    )


def check_bound(bench: Bench, least: Any, best: float, *, sure: bool) -> None:
    """What is said to be least, and what nothing is said to be below, against what was found."""
    rounding = 1e-6 if bench.case.double else 1e-2
    if least.lower_bound is not None:
        assert least.lower_bound <= best + rounding * abs(best) + 1e-12, (
            f"no less than {least.lower_bound:.6g} is said, {best:.6g} is found"
        )
    if sure:
        assert least.value <= best + (1e-2 + rounding) * abs(best) + 1e-12, (
            f"{least.value:.6g} is said to be least, {best:.6g} is found"
        )
