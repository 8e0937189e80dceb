"""All statistics of a study: how well each measure ranks the outcome of its networks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spiritlevel.base.doors import a, number, one_of
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.provenance import provenance
from spiritlevel.results.study import Findings, Network, Row
from spiritlevel.studies.given import axes, enough, key, several, varied
from spiritlevel.studies.rows import rows
from spiritlevel.studies.sample import Sample, sampled
from spiritlevel.studies.signs import LEAST

FEW = 10  # configurations: percentiles over so few resampled ones are too narrow


def analyse(
    networks: Sequence[Network],
    *,
    outcome: str = "gap",
    controls: Sequence[str] = (),
    examples: int | None = None,
    least: float = LEAST,
    resamples: int = 1000,
    seed: int = 0,
    name: str = "study",
    planned: int | None = None,
    failed: int | None = None,
    where: Mapping[str, Any] | None = None,
) -> Findings:
    """How well each measure of the networks ranks one of their numbers, the `outcome`.

    `controls` are axes or numbers that partial correlations are given. The noise of the outcome,
    for the sign error, is a number "<outcome>_stderr" of each network, or sqrt(e (1 - e) /
    `examples`) for its "test_error" e on so many test examples; environments with fewer than
    `least` effective pairs are left out of it. How many networks were `planned` and how many of
    them `failed` is told where it is given, not used. `where` leaves only networks with these
    values of axes; of how many that were planned, and how many of those failed, nobody says.
    """
    begin, where = time.perf_counter(), {} if where is None else where
    _refuse(networks, resamples, examples, least, name, planned, failed)
    every, networks = len(networks), _those(networks, where)
    sample, kept = sampled(networks, outcome, controls, examples, resamples, seed)
    values, refused = _measured(kept, sample)
    found = tuple(rows(sample, values, least))
    notes = [*_notes(sample, len(networks), outcome, found), *_few(sample, values)]
    if where:
        chosen = ", ".join(f"{axis} = {value}" for axis, value in where.items())
        notes.append(f"only networks with {chosen}: {len(networks)} of {every}")
    planned, failed = (None, None) if where else (planned, failed)
    told = provenance(begin, notes, planned=planned, failed=failed)
    told |= {"refused": refused}
    given = tuple([controls] if isinstance(controls, str) else controls)
    varying = _axes([one.config for one in kept])
    return Findings(name, outcome, varying, given, found, tuple(networks), told)


def _those(networks: Sequence[Network], where: Mapping[str, Any]) -> Sequence[Network]:
    a("where", where, Mapping, "axes with a value each")
    for axis, value in where.items():
        one_of("an axis in where", axis, dict.fromkeys(k for n in networks for k in n.config))
        known = list(
            {key(n.config[axis]): n.config[axis] for n in networks if axis in n.config}.values()
        )
        if value not in known:
            one_of(f"where[{axis!r}]", value, known)
        networks = [one for one in networks if one.config.get(axis) == value]
    return networks


def _refuse(
    networks: Any, resamples: Any, examples: Any, least: Any, name: Any, planned: Any, failed: Any
) -> None:
    wanted = "a list of networks, as Findings.networks holds them"
    a("networks", networks, Sequence, wanted)
    if isinstance(networks, str) or not all(isinstance(one, Network) for one in networks):
        raise SpiritlevelError(f"networks holds something else: give {wanted}")
    enough(np.ones(len(networks), bool), "been given", 3)
    number("resamples", resamples, 1, whole=True)
    number("least", least, above=0)
    a("name", name, str, "the name of the study")
    for word, value, lowest in (
        ("examples", examples, 1),
        ("planned", planned, 1),
        ("failed", failed, 0),
    ):
        if value is not None:
            number(word, value, lowest, whole=True)


def _measured(
    networks: Sequence[Network], sample: Sample
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The values of every measure that can be ranked, and why others cannot."""
    found, refused = {}, {}
    for label in dict.fromkeys(label for one in networks for label in one.values):
        row = np.array([one.values.get(label, np.nan) for one in networks], dtype=float)
        try:
            known = ~np.isnan(row)
            enough(known, "it", 3)
            varied(it=row[known])
            varied(**{f"the outcome of the {known.sum()} that have it": sample.outcome[known]})
            several(sample.clusters[known], 3)
            found[label] = row
        except SpiritlevelError as error:
            refused[label] = str(error)
    if not found:
        raise SpiritlevelError("networks: no measure of theirs varies; give some with values")
    return found, refused


def _axes(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The axes that vary with their values, numbers in order."""
    found = {}
    for axis in axes(configs, len(configs)):
        values = list({key(config[axis]): config[axis] for config in configs}.values())
        numbers = all(isinstance(value, (int, float)) for value in values)
        found[axis] = sorted(values) if numbers else values
    return found


def _notes(sample: Sample, networks: int, outcome: str, rows: Sequence[Row]) -> list[str]:
    found = [f"p is adjusted for {len(rows)} measures"] if len(rows) > 1 else []
    if not sample.varying:
        found.append("all networks have one configuration: each is resampled and permuted alone")
    if networks > len(sample.outcome):
        found.append(f"{networks - len(sample.outcome)} networks have no {outcome}: left out")
    along = sample.along(np.ones(len(sample.outcome), bool))
    lacking = {axis: pairs.incomplete for axis, pairs in along.items() if pairs.incomplete}
    if lacking:
        where = ", ".join(f"{count} along {axis}" for axis, count in lacking.items())
        found.append(f"the grid has holes, settings that lack a value: {where}")
    if along and all(row.signs is None for row in rows):
        found.append("no environment has enough effective pairs for a sign error: give more seeds")
    elif sample.noise is None and along:
        found.append(f"no noise of {outcome} is told: all pairs count alike in the sign error")
    return found


def _few(sample: Sample, values: Mapping[str, np.ndarray]) -> list[str]:
    """Of how few configurations intervals are."""
    if (size := sample.draws.shape[1]) < FEW:
        return [f"{size} configurations are few: the intervals are too narrow"]
    sizes = {label: sample.configurations(~np.isnan(row)) for label, row in values.items()}
    return [
        f"{label} is known of {size} configurations, which are few: its interval is too narrow"
        for label, size in sizes.items()
        if size < FEW
    ]
