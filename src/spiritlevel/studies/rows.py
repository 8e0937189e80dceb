"""One row for each measure: measures that the same networks have share their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from spiritlevel.base.ranks import untied
from spiritlevel.results.study import Ranked, Row
from spiritlevel.studies import labels
from spiritlevel.studies.given import generator, numbered
from spiritlevel.studies.granules import averaged
from spiritlevel.studies.information import informed
from spiritlevel.studies.partial import partial
from spiritlevel.studies.permutation import holm, permuted
from spiritlevel.studies.ranks import interval, resampled
from spiritlevel.studies.sample import Sample
from spiritlevel.studies.signs import errors, weighted

PERMUTATIONS = 9999


def rows(sample: Sample, values: Mapping[str, np.ndarray], least: float) -> list[Row]:
    """All rows, the largest |tau| first."""
    groups: dict[bytes, list[str]] = {}
    for label, row in values.items():
        groups.setdefault(np.isnan(row).tobytes(), []).append(label)
    found: dict[str, Row] = {}
    taus: dict[str, np.ndarray] = {}
    for together in groups.values():
        known = ~np.isnan(values[together[0]])
        xs = [values[label][known] for label in together]
        draws, partials = _ranked(sample, known, xs)
        taus |= dict(zip(together, draws, strict=True))
        group = _group(sample, together, known, xs, draws, partials, least)
        found |= {row.name: row for row in group}
    adjusted = holm([found[label].p for label in values])
    ends = {label: labels.bottom(label, values) for label in values}
    gains = {x: _gain(sample, values, taus, x, end) for x, end in ends.items() if end}
    every = [
        replace(found[label], p=p, bottom=ends[label], gain=gains.get(label))
        for label, p in zip(values, adjusted, strict=True)
    ]
    return sorted(every, key=lambda row: -abs(row.tau.value))


def _group(
    sample: Sample,
    together: Sequence[str],
    known: np.ndarray,
    xs: Sequence[np.ndarray],
    taus: np.ndarray,
    partials: Sequence[Ranked | None],
    least: float,
) -> list[Row]:
    """The rows of measures that these networks have."""
    y, along = sample.outcome[known], sample.along(known)
    weights = None if sample.noise is None else weighted(along, y, sample.noise[known])
    told = informed(sample.values(known), xs, y)
    clusters = numbered(sample.clusters[known])
    ps = permuted(clusters, xs, y, PERMUTATIONS, generator(sample.seed))
    found = []
    for i, (label, x) in enumerate(zip(together, xs, strict=True)):
        title, family, invariant = labels.described(label)
        granules, information = averaged(along, x, y) if along else None, told[i]
        row = Row(
            name=label,
            title=title,
            family=family,
            invariant=invariant,
            n=len(x),
            tau=interval(taus[i]),
            tau_a=float(taus[i, 0] * (untied(x) * untied(y)) ** 0.5),
            p=float(ps[i]),
            psi=granules.psi if granules else None,
            by_axis=granules.by_axis if granules else {},
            information=information.least if information else None,
            signs=errors(along, x, y, weights, least),
            partial=partials[i],
        )
        found.append(row)
    return found


def _ranked(
    sample: Sample, known: np.ndarray, xs: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[Ranked | None]]:
    """tau in every resample; partial tau of the networks that have all controls, if it is left."""
    ys = [sample.outcome, *sample.controls.values()]
    has = known & ~np.isnan(ys).any(0)
    same = bool((has == known).all())
    first = _taus(sample, known, xs, ys if same else ys[:1])
    if len(ys) == 1 or sample.configurations(has) < 3:
        return first[:, 0], [None] * len(xs)
    taus = first if same else _taus(sample, has, [x[has[known]] for x in xs], ys)
    found = partial(taus, _taus(sample, has, [y[has] for y in ys], ys))
    return first[:, 0], [interval(one) if np.isfinite(one[0]) else None for one in found]


def _taus(
    sample: Sample, known: np.ndarray, xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]
) -> np.ndarray:
    return resampled(sample.layout(known), xs, [y[known] for y in ys], sample.draws)


def _gain(
    sample: Sample,
    values: Mapping[str, np.ndarray],
    taus: Mapping[str, np.ndarray],
    label: str,
    end: str,
) -> Ranked | None:
    """tau with the orbit divided out minus tau as it is, of the networks that have both."""
    one, other = values[label], values[end]
    both = ~(np.isnan(one) | np.isnan(other))
    if both.sum() == max((~np.isnan(one)).sum(), (~np.isnan(other)).sum()):
        return interval(taus[end] - taus[label])
    if sample.configurations(both) < 3:
        return None
    high, low = _taus(sample, both, [other[both], one[both]], [sample.outcome])[:, 0]
    return interval(high - low) if np.isfinite(high[0] - low[0]) else None
