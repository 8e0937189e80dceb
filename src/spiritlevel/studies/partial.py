"""Rank correlation of two numbers given others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.study import Ranked
from spiritlevel.studies.given import Numbers, complete, generator, labels, matched, several, varied
from spiritlevel.studies.ranks import drawn, interval, resampled
from spiritlevel.studies.tally import Layout

SINGULAR = 1e-9


def partial_kendall(
    x: Numbers,
    y: Numbers,
    given: Mapping[str, Numbers],
    clusters: Sequence[Hashable] | np.ndarray,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Ranked:
    """Partial tau-b given controls, with its 95 % interval as in `kendall_interval`.

    -P_xy / sqrt(P_xx P_yy) for P the inverse of the matrix of all tau-b, which is the partial
    correlation of the signs of all pairs; for one control z it is Kendall's (t_xy - t_xz t_yz) /
    sqrt((1 - t_xz^2) (1 - t_yz^2)).
    """
    x, y = matched(x=x, y=y)
    if not isinstance(given, Mapping) or not given:
        raise SpiritlevelError(f"given is {given!r:.60}: give the numbers of each control by name")
    if not all(isinstance(name, str) for name in given):
        raise SpiritlevelError(f"given has the names {list(given)!r:.60}: give texts")
    given = {f"given[{name!r}]": row for name, row in given.items()}
    controls = [matched(x=x, **{name: row})[1] for name, row in given.items()]
    clusters = labels("clusters", clusters, len(x))
    number("resamples", resamples, 1, whole=True)
    source = generator(seed)
    known = complete(x, y, *controls, what="all numbers", least=3)
    x, y, *controls = (row[known] for row in (x, y, *controls))
    varied(x=x, y=y, **dict(zip(given, controls, strict=True)))
    several(clusters[known], 2)
    layout = Layout(clusters[known], int(clusters.max()) + 1)
    rows = [y, *controls]
    draws = drawn(layout.size, resamples, source)
    found = partial(resampled(layout, [x], rows, draws), resampled(layout, rows, rows, draws))[0]
    if not np.isfinite(found[0]):
        raise SpiritlevelError("given: the controls rank x or y fully; give others")
    return interval(found)


def partial(taus: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Of every x with the first of some rows given the others, in every resample.

    From the taus of x with these rows (x by rows by resamples), and those among the rows.
    """
    with_y, with_controls = taus[:, 0], np.moveaxis(taus[:, 1:], 1, -1)
    y_controls = among[0, 1:].T
    inverse = _inverse(np.moveaxis(among[1:, 1:], -1, 0))
    through = np.einsum("xrk,rkl->xrl", with_controls, inverse)
    rest_x = 1 - (through * with_controls).sum(-1)
    rest_y = 1 - np.einsum("rk,rkl,rl->r", y_controls, inverse, y_controls)
    both = with_y - (through * y_controls).sum(-1)
    rest = np.where((rest_x > SINGULAR) & (rest_y > SINGULAR), rest_x * rest_y, np.nan)
    return both / np.sqrt(rest)


def _inverse(matrices: np.ndarray) -> np.ndarray:
    """NaN where controls follow from each other, or one does not vary in a resample."""
    known = np.isfinite(matrices).all((1, 2))
    found = np.full(matrices.shape, np.nan)
    some = np.where(known)[0]
    regular = some[np.linalg.eigvalsh(matrices[some])[:, 0] > SINGULAR]
    found[regular] = np.linalg.inv(matrices[regular])
    return found
