"""One row for each measure: measures that the same networks have share their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from spiritlevel.base.ranks import untied
from spiritlevel.results.study import Ranked, Row
from spiritlevel.studies import labels
from spiritlevel.studies.given import generator, numbered
from spiritlevel.studies.granulated import averaged
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
        draws = resampled(sample.layout(known), xs, [sample.outcome[known]], sample.draws)[:, 0]
        taus |= dict(zip(together, draws, strict=True))
        found |= {row.name: row for row in _group(sample, together, known, xs, draws, least)}
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
    least: float,
) -> list[Row]:
    """The rows of measures that these networks have."""
    y, along = sample.outcome[known], sample.along(known)
    weights = None if sample.noise is None else weighted(along, y, sample.noise[known])
    told = informed(sample.values(known), xs, y)
    clusters = numbered(sample.clusters[known])
    ps = permuted(clusters, xs, y, PERMUTATIONS, generator(sample.seed))
    partials = _partials(sample, known, xs)
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


def _partials(sample: Sample, known: np.ndarray, xs: Sequence[np.ndarray]) -> list[Ranked | None]:
    """Given the controls, of the networks that have all of them; None where nothing is left."""
    if not sample.controls:
        return [None] * len(xs)
    has = ~np.isnan(np.stack([row[known] for row in sample.controls.values()])).any(0)
    layout = sample.layout(np.flatnonzero(known)[has])
    given = [row[known][has] for row in (sample.outcome, *sample.controls.values())]
    taus = resampled(layout, [x[has] for x in xs], given, sample.draws)
    found = partial(taus, resampled(layout, given, given, sample.draws))
    return [interval(one) if np.isfinite(one[0]) else None for one in found]


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
    if both.sum() < 3:
        return None
    pair = [other[both], one[both]]
    high, low = resampled(sample.layout(both), pair, [sample.outcome[both]], sample.draws)[:, 0]
    return interval(high - low) if np.isfinite(high[0] - low[0]) else None
