"""Everything that is promised of a network, confronted with the truth about it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import spiritlevel as sl
from premise_cases import IGNORED, KINDS, Case, given_loss
from premise_truth import Truth, exponents_of, least_found, moved, norm_of, truth_of
from spiritlevel.judging import Outcome
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
    batches = [batch[1] for batch in truth.data.batches]
    reasons = {
        ("objective", "microbatch=.* would change the loss"): not truth.is_sum or _skips(truth),
        # a mean over labels that are all ignored is 0 / 0, in the user's own function
        ("objective", "the loss is nan"): any(bool((y == IGNORED).all()) for y in batches),
        ("ggn", "must see outputs and loss apart"): kind.of_model,
        ("ggn", "needs a loss that is a sum over examples"): kind.of_model
        or not truth.is_sum
        or _skips(truth),
        ("ggn", "is not convex in the outputs"): not truth.is_convex,
        ("ggn", "the Gauss-Newton matrix of this loss is empty"): not bool(g.any()),
        ("sharpen", "no layer that can be scaled has positive curvature"): True,
        ("sharpen", "has no rescaling symmetry"): True,
        ("trace of hessian", "not known to be a sum of exponentials"): kind.of_model
        or not truth.is_sum
        or not truth.is_convex
        or not bool(g.any())
        or _skips(truth)
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


def close(found: Tensor | float, truth: Tensor, rounding: float, wobble: Tensor, what: str) -> None:
    found = torch.as_tensor(found, dtype=torch.float64).detach()
    scale = float(truth.abs().max())
    gap = (found - truth).abs()
    allowed = rounding * (scale + 1e-12) + 30 * wobble
    worst = float((gap - allowed).max())
    assert bool((gap <= allowed).all()), f"{what}: off by {float(gap.max()):.3g} of {scale:.3g}, {worst:.3g} too much"


def check_values(bench: Bench) -> None:
    """Value, gradient and products against dense derivatives of the whole data."""
    truth, o = bench.truth, bench.objective
    point, tight = truth.point, 1e-9 if bench.case.double else 1e-4
    close(o.value(), truth.value(point).detach(), tight, truth.wobble(truth.value), "value")
    close(o.gradient(), truth.gradient(point), tight, truth.wobble(truth.gradient), "gradient")
    draws = torch.Generator().manual_seed(1)
    v = torch.randn(len(point), 2, generator=draws, dtype=torch.float64)
    operator = sl.hessian(o, compile=False)
    wobble = truth.wobble(lambda p: truth.hessian(p) @ v)
    rounding = max(bench.rounding, 30 * (operator.check or 0.0))  # where it is made by differences
    close(operator @ v.to(o.dtype), bench.hessian @ v, rounding, wobble, "hessian")
    if KINDS[bench.case.loss].of_model:
        return
    wobble = truth.wobble(lambda p: truth.gauss_newton(p) @ v)
    close(sl.ggn(o) @ v.to(o.dtype), bench.gauss_newton @ v, bench.rounding, wobble, "ggn")


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
    usual = max(change(bench, point * (1 + 1e-11 * noise.roll(i)), elsewhere=False)[0] for i in range(3))
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
            assert verdict == "refuted", f"{name} that moves predictions by {outputs:.2g}: {verdict}"


# Least values over the orbit ----------------------------------------------------------------------


def check_minimum(bench: Bench, norm: str, kind: str) -> None:
    """What is said of the least value, against the matrix itself and a search over the orbit."""
    o, group = bench.objective, bench.group
    try:
        found = sl.orbit.minimum(o, group, norm=norm, operator=kind)  # type: ignore[arg-type]
    except sl.SpiritlevelError as error:
        raise allowed(bench.truth, f"{norm} of {kind}", error) from error
    t = found.log_scales
    outputs, loss = change(bench, bench.at(t))
    assert outputs <= 1e-6, f"another network is returned: predictions move by {outputs:.2g}"
    assert loss <= 1e-6, f"another network is returned: the loss moves by {loss:.2g}"
    if found.divided_out:
        return
    there = norm_of(_dense(bench, kind, bench.at(t)), norm)
    here = norm_of(bench.matrix(kind), norm)
    slack = {"spectral": 5e-3, "trace": 1e-5, "frobenius": 1e-5}[norm]
    slack += 0 if bench.case.double else 1e-2
    assert abs(found.value - there) <= slack * abs(there) + 1e-12, (
        f"said to be {found.value:.6g}, is {there:.6g} at the returned point"
    )
    assert abs(found.before - here) <= (slack + 1e-2) * abs(here) + 1e-12, (
        f"before: said to be {found.before:.6g}, is {here:.6g}"
    )
    _confront(bench, found, norm, kind)


def _dense(bench: Bench, kind: str, vector: Tensor) -> Tensor:
    truth = bench.truth
    return truth.hessian(vector) if kind == "hessian" else truth.gauss_newton(vector)


def _confront(bench: Bench, found: Any, norm: str, kind: str) -> None:
    """With the least value that a direct search finds."""
    matrix, b, dim = bench.matrix(kind), bench.exponents, bench.group.dim
    if dim == 0:
        return
    best = _best(bench, norm, kind, found.log_scales.double())
    random = [bench.group.random(i, 0.7) for i in range(20)]
    best = min(best, *(norm_of(moved(matrix, b, t), norm) for t in random))
    rounding = 1e-6 if bench.case.double else 1e-2
    if found.lower_bound is not None:
        assert found.lower_bound <= best + rounding * abs(best) + 1e-12, (
            f"no less than {found.lower_bound:.6g} is said, {best:.6g} is found"
        )
    if found.status is sl.Status.CONVERGED:
        tolerance = 1e-2 + rounding
        assert found.value <= best + tolerance * abs(best) + 1e-12, (
            f"{found.value:.6g} is said to be least, {best:.6g} is found"
        )


# Estimates ----------------------------------------------------------------------------------------


def check_ends(bench: Bench) -> None:
    """Both ends of the spectrum: what has converged is an eigenvalue, and the right one."""
    for name, make, matrix in _operators(bench):
        values = torch.linalg.eigvalsh(matrix)
        scale = float(values.abs().max())
        # the smallest of a positive semi-definite matrix is 0, and takes all products there are
        ends = [("largest", values.flip(0)[:2]), ("smallest", values[:1])][: 1 + (name == "hessian")]
        for which, wanted in ends:
            found = sl.eigenvalues(make(), len(wanted), which=which, budget=100, seed=bench.case.seed)
            for e, true in zip(found, wanted.tolist(), strict=True):
                if e.status is not sl.Status.CONVERGED:
                    continue
                allowed = 1.01 * e.error + (1e-9 if bench.case.double else 1e-4) * scale
                assert abs(e.value - true) <= allowed, (
                    f"{which} of {name}: {e.value:.6g} ± {e.error:.2g} ({e.status.value}), {true:.6g}"
                )


def check_estimates(bench: Bench) -> None:
    """Traces and Frobenius norms within eight standard errors."""
    for name, make, matrix in _operators(bench):
        rounding = bench.rounding * float(matrix.norm())
        for estimate, true in (
            (sl.trace(make(), budget=60, seed=bench.case.seed), float(matrix.trace())),
            (sl.frobenius(make(), budget=60, seed=bench.case.seed), float(matrix.norm())),
        ):
            gap = abs(estimate.value - true)
            assert gap <= 8 * estimate.error + 10 * rounding, f"of {name}: {estimate}, {true:.6g}"


def _operators(bench: Bench) -> list[tuple[str, Any, Tensor]]:
    o = bench.objective
    found: list[tuple[str, Any, Tensor]] = [
        ("hessian", lambda: sl.hessian(o, compile=False), bench.hessian)
    ]
    if not KINDS[bench.case.loss].of_model:
        found.append(("ggn", lambda: sl.ggn(o), bench.gauss_newton))
    return found


# Twins on purpose ---------------------------------------------------------------------------------


def check_sharpen(bench: Bench) -> None:
    """A twin with an eigenvalue as large as was asked for."""
    o, group = bench.objective, bench.group
    target = 100 * norm_of(bench.hessian, "spectral") + 1e-3
    try:
        found = sl.sharpen(o, target=target, group=group)
    except sl.SpiritlevelError as error:
        raise allowed(bench.truth, "sharpen", error) from error
    there = torch.cat([p.double().reshape(-1) for p in found.objective.params.values()])
    outputs, loss = change(bench, there)
    assert max(outputs, loss) <= (1e-8 if bench.case.double else 1e-4), "another network"
    reached = norm_of(bench.truth.hessian(there), "spectral")
    slack = 1e-6 if bench.case.double else 1e-2
    assert reached >= (1 - slack) * found.reached >= (1 - 2 * slack) * target, (
        f"{target:.6g} was asked for, {found.reached:.6g} is said, {reached:.6g} is reached"
    )


def check_discrete(bench: Bench) -> None:
    """Permutations of units and flips of signs keep all predictions, and the loss."""
    params = bench.truth.named(bench.truth.point)
    draws = torch.Generator().manual_seed(bench.case.seed)
    # statistics of BatchNorm are buffers, which would have to move along
    with_buffers = bench.case.architecture == "batch norm"
    for units in () if with_buffers else sl.symmetry.permutations(bench.objective):
        moved = units.act(params, torch.randperm(units.size, generator=draws))
        _same_network(bench, moved, f"a permutation of {units.name}")
    signs = sl.symmetry.sign_flips(bench.objective)
    flips = torch.rand(signs.group.dim, generator=draws) < 0.5
    _same_network(bench, signs.act(params, flips), "a flip of signs")


def _same_network(bench: Bench, named: Any, what: str) -> None:
    vector = torch.cat([named[name].reshape(-1) for name in bench.truth.names])
    outputs, loss = change(bench, vector)
    assert max(outputs, loss) <= 1e-8, f"{what} moves predictions by {outputs:.2g}, {loss:.2g}"


# Audits and comparisons ---------------------------------------------------------------------------

NORMS = {"hessian_spectral": "spectral", "hessian_trace": "trace", "hessian_frobenius": "frobenius"}
AUDITED = (*NORMS, "lambda_max", "lambda_min", "fisher_rao", "adaptive_spectral", "gradient_norm")
LEAST = {"orbit_trace": "trace", "orbit_spectral": "spectral"}


def _measured(truth: Truth, name: str, vector: Tensor) -> float:
    """A measure at a point, from dense matrices there."""
    if name == "loss":
        return float(truth.value(vector))
    if name == "gradient_norm":
        return float(truth.gradient(vector).norm())
    if name == "fisher_rao":
        return float((vector @ truth.gauss_newton(vector) @ vector).clamp(min=0).sqrt())
    h = truth.hessian(vector)
    if name == "adaptive_spectral":
        return norm_of(vector.abs()[:, None] * h * vector.abs()[None, :], "spectral")
    if name in NORMS:
        return norm_of(h, NORMS[name])
    return float(torch.linalg.eigvalsh(h)[-1 if name == "lambda_max" else 0])


def check_audit(bench: Bench) -> None:
    """Every value at every point of two rows, what is invariant, and what is proved to be least."""
    first = bench.case.seed % len(AUDITED)
    names = ["loss", AUDITED[first], AUDITED[(first + 1 + bench.case.examples) % len(AUDITED)]]
    found = sl.audit(bench.objective, names, group=bench.group, seed=bench.case.seed)
    _check_notes(bench, found)
    points = {"here": bench.truth.point} | {p: bench.at(t) for p, t in found.elements.items()}
    for point, vector in points.items():
        outputs, loss = change(bench, vector)
        assert max(outputs, loss) <= 1e-6, f"{point} is another network: {outputs:.2g}, {loss:.2g}"
    for row in found.rows:
        assert not row.bug, f"{row.name}: {row.text}"
        truths = {p: _measured(bench.truth, row.name, points[p]) for p in row.values}
        _check_row(bench, row, truths, points)
        if row.infimum.proved:
            assert row.infimum.matrix is not None
            _check_bound(bench, row.infimum, NORMS[row.name], row.infimum.matrix)


def _check_row(bench: Bench, row: Any, truths: dict[str, float], points: dict[str, Tensor]) -> None:
    tight = 1e-7 if bench.case.double else 1e-2
    for point, e in row.values.items():
        # the ends of a spectrum are known to the size of the whole
        scale = float(torch.linalg.matrix_norm(bench.truth.hessian(points[point])))
        allowed = (8 if e.stderr else 1.01) * e.error + tight * max(abs(truths[point]), scale)
        if row.name in ("loss", "fisher_rao", "gradient_norm"):
            allowed = 10 * tight * abs(truths[point])
        right = abs(e.value - truths[point]) <= allowed
        assert right or not e.converged, f"{row.name} at {point}: {e}, is {truths[point]:.6g}"
    if row.outcome is Outcome.INVARIANT:
        low, high = min(truths.values()), max(truths.values())
        assert high - low <= 1e-6 * abs(high), f"{row.name} is not invariant: {truths}"


def _check_bound(bench: Bench, infimum: Any, norm: str, kind: str) -> None:
    best = _best(bench, norm, kind)
    rounding = 1e-6 if bench.case.double else 1e-2
    assert infimum.lower_bound <= best + rounding * abs(best), (
        f"{norm} of {kind}: no less than {infimum.lower_bound:.6g} is said, {best:.6g} is found"
    )
    assert infimum.value <= best + (1e-2 + rounding) * abs(best), (
        f"{norm} of {kind}: {infimum.value:.6g} is said to be least, {best:.6g} is found"
    )


def _best(bench: Bench, norm: str, kind: str, *starts: Tensor) -> float:
    """The least value that a direct search over the orbit finds."""
    matrix, b, dim = bench.matrix(kind), bench.exponents, bench.group.dim
    if dim == 0:
        return norm_of(matrix, norm)
    zero = torch.zeros(dim, dtype=torch.float64)
    return least_found(matrix, b, norm, [zero, bench.group.random(bench.case.seed, 1.0), *starts])


def _check_notes(bench: Bench, audit: Any) -> None:
    """What an audit leaves out is left out for a true reason."""
    for note in audit.provenance["notes"]:
        named = re.match(r"no (\w+): (.*)", note, re.DOTALL)
        if named:
            try:
                raise allowed(bench.truth, "row of ggn", sl.SpiritlevelError(named[2]))
            except Refused:
                continue


def check_orbit_measures(bench: Bench) -> None:
    """The least values as rows of an audit: from here and from a point far away."""
    found = sl.audit(bench.objective, list(LEAST), group=bench.group, seed=bench.case.seed)
    _check_notes(bench, found)
    for row in found.rows:
        assert not row.bug, f"{row.name}: {row.text}"
        if row.infimum.proved and not _one_sided(bench):
            _check_bound(bench, row.infimum, LEAST[row.name], "ggn")


def _one_sided(bench: Bench) -> bool:
    return bool(sl.orbit.minimum(bench.objective, bench.group, norm="trace").divided_out)


def check_compare(bench: Bench) -> None:
    """Two networks of one kind: which is sharper, and whether that survives."""
    other = bench_of(replace(bench.case, seed=bench.case.seed + 1, steps=40 - bench.case.steps))
    benches = {"a": bench, "b": other}
    name = ("hessian_spectral", "hessian_trace", "hessian_frobenius")[bench.case.seed % 3]
    objectives = {n: b.objective for n, b in benches.items()}
    pair = sl.compare(objectives, [name], seed=bench.case.seed)[name]
    for n, e in zip((pair.sharper, pair.other), pair.values, strict=True):
        _check_row_value(benches[n], name, e)
    if pair.least is None:
        assert pair.answer in ("undecided", "equal")
        return
    assert pair.matrix is not None
    best = [_best(benches[n], NORMS[name], pair.matrix) for n in (pair.sharper, pair.other)]
    for interval, b in zip(pair.least, best, strict=True):
        assert interval.low <= b * (1 + 1e-6), f"at least {interval.low:.6g} is said, {b:.6g} found"
    sharper, flatter = best
    if pair.answer == "survives":
        assert sharper > 0.999 * flatter, f"survives is said, least are {sharper:.6g}, {flatter:.6g}"
    if pair.answer == "coordinates":
        assert sharper < 1.03 * flatter, f"coordinates is said of {sharper:.6g}, {flatter:.6g}"


def _check_row_value(bench: Bench, name: str, e: sl.Estimate) -> None:
    true, tight = _measured(bench.truth, name, bench.truth.point), 1e-7 if bench.case.double else 1e-2
    allowed = 8 * e.error + tight * float(bench.hessian.norm())
    assert abs(e.value - true) <= allowed or not e.converged, f"{name}: {e}, is {true:.6g}"
