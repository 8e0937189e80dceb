"""Numbers, twins, audits and comparisons, confronted with the truth."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import spiritlevel as sl
from premises.case import Case
from premises.checks import (
    Bench,
    Refused,
    allowed,
    bench_of,
    best_found,
    blind,
    change,
    check_bound,
    check_elements,
    check_minimum,
    check_strangers,
    check_values,
    orbit_of,
)
from premises.losses import KINDS
from premises.orbits import norm_of
from premises.truth import Truth
from spiritlevel.audits.verdicts import Outcome

# Estimates ----------------------------------------------------------------------------------------


def check_ends(bench: Bench) -> None:
    """Both ends of the spectrum: what has converged is an eigenvalue, and the right one."""
    for name, make, matrix in _operators(bench):
        values = torch.linalg.eigvalsh(matrix)
        rounding = (1e-9 if bench.case.double else 1e-4) * float(values.abs().max())
        tops = sl.eigenvalues(make(), 2, budget=100, seed=bench.case.seed)
        pairs = list(zip(tops, values.flip(0).tolist(), strict=False))
        if name == "hessian":  # of a semi-definite matrix it is 0, and takes all products there are
            low = sl.eigenvalues(make(), which="smallest", budget=100, seed=bench.case.seed)
            pairs.append((low[0], float(values[0])))
        for e, true in pairs:
            right = abs(e.value - true) <= 1.01 * e.error + rounding
            assert right or not e.converged, f"of {name}: {e} ({e.status.value}), is {true:.6g}"


def check_estimates(bench: Bench) -> None:
    """Traces and Frobenius norms within eight standard errors."""
    for name, make, matrix in _operators(bench):
        rounding = bench.rounding * float(matrix.norm())
        for estimate, true in (
            (sl.trace(make(), budget=40, seed=bench.case.seed), float(matrix.trace())),
            (sl.frobenius(make(), budget=40, seed=bench.case.seed), float(matrix.norm())),
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
    found = sl.audit(bench.objective, names, group=bench.group, seed=bench.case.seed, way=False)
    _check_notes(bench, found)
    points = {"here": bench.truth.point} | {
        p: bench.at(t) for p, t in found.points.elements.items()
    }
    for point, vector in points.items():
        outputs, loss = change(bench, vector)
        assert max(outputs, loss) <= 1e-6, f"{point} is another network: {outputs:.2g}, {loss:.2g}"
    for row in found.rows:
        assert not row.bug, f"{row.name}: {row.text}"
        truths = {p: _measured(bench.truth, row.name, points[p]) for p in row.values}
        _check_row(bench, row, truths, points)
        if row.infimum.proved:
            assert row.infimum.matrix is not None
            matrix = bench.matrix(row.infimum.matrix)
            best = best_found(bench, matrix, bench.exponents, NORMS[row.name])
            check_bound(bench, row.infimum, best, sure=True)


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
        slack = 1e-6 * abs(high) + blind(bench.case)
        assert high - low <= slack, f"{row.name} is not invariant: {truths}"


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
    try:
        found = sl.audit(
            bench.objective, list(LEAST), group=bench.group, seed=bench.case.seed, way=False
        )
    except sl.SpiritlevelError as error:  # no row at all
        raise allowed(bench.truth, "row of ggn", error) from error
    _check_notes(bench, found)
    for row in found.rows:
        assert not row.bug, f"{row.name}: {row.text}"
        if row.infimum.proved:
            best = best_found(bench, *orbit_of(bench, "ggn", one_sided=True), LEAST[row.name])
            check_bound(bench, row.infimum, best, sure=True)


def check_compare(bench: Bench) -> None:
    """Two networks of one kind: which is sharper, and whether that survives."""
    other = bench_of(replace(bench.case, seed=bench.case.seed + 1, steps=40 - bench.case.steps))
    benches = {"a": bench, "b": other}
    name = ("hessian_spectral", "hessian_trace", "hessian_frobenius")[bench.case.seed % 3]
    objectives = {n: b.objective for n, b in benches.items()}
    try:
        found = sl.compare(objectives, [name], seed=bench.case.seed)
    except sl.SpiritlevelError as refusal:
        lost = min(float(b.hessian.norm() / (1 + b.truth.point.norm())) for b in (bench, other))
        if bench.case.double or lost >= 1e-6:
            raise AssertionError(f"nothing is compared: {refusal}") from refusal
        raise Refused from refusal
    pair = found[name]
    for n, e in zip((pair.sharper, pair.other), pair.values, strict=True):
        _check_row_value(benches[n], name, e)
    if pair.least is None:  # without rescalings the values, which were checked, decide
        alone = not (bench.group.dim or other.group.dim)
        assert pair.answer in ("undecided", "equal") or (alone and pair.answer == "survives")
        return
    assert pair.matrix is not None
    two = [benches[n] for n in (pair.sharper, pair.other)]
    best = [best_found(b, b.matrix(pair.matrix), b.exponents, NORMS[name]) for b in two]
    for interval, low in zip(pair.least, best, strict=True):
        assert interval.low <= low * (1 + 1e-6), f"at least {interval.low:.6g}, found {low:.6g}"
    sharper, flatter = best
    if pair.answer == "survives":
        assert sharper > 0.999 * flatter, (
            f"survives is said, least are {sharper:.6g}, {flatter:.6g}"
        )
    if pair.answer == "coordinates":
        assert sharper < 1.03 * flatter, f"coordinates is said of {sharper:.6g}, {flatter:.6g}"


def _check_row_value(bench: Bench, name: str, e: sl.Estimate) -> None:
    true, tight = (
        _measured(bench.truth, name, bench.truth.point),
        1e-7 if bench.case.double else 1e-2,
    )
    allowed = 8 * e.error + tight * float(bench.hessian.norm()) + blind(bench.case)
    assert abs(e.value - true) <= allowed or not e.converged, f"{name}: {e}, is {true:.6g}"


LOOKS = {
    "ends": check_ends,
    "estimates": check_estimates,
    "sharpen": check_sharpen,
    "discrete": check_discrete,
    "audit": check_audit,
    "orbit measures": check_orbit_measures,
    "compare": check_compare,
}


def confront(case: Case) -> None:
    """All that every case shows, and what this one is looked at for."""
    try:
        bench = bench_of(case)
        for check in (check_values, check_elements, check_strangers):
            check(bench)
        look(bench)
    except Refused:
        return


def look(bench: Bench) -> None:
    if " of " in bench.case.look:
        check_minimum(bench, *bench.case.look.split(" of "))
    elif bench.case.look != "nothing":
        LOOKS[bench.case.look](bench)
