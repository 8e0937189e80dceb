"""What the literature reports of a protocol, held to the networks of a study."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.ranks import kendall
from spiritlevel.results.study import Network, Ranked
from spiritlevel.theorems.statistics import paired_interval

SEEDS = 2  # at least: the interval is over them
ALIKE = 5  # that give one tau to the last digit: signs of fewer agree by chance too often


class Outcome(enum.Enum):
    """What the networks say of a reported direction."""

    SAME = "as reported"
    OTHER = "the other way round"
    OPEN = "open"


@dataclass(frozen=True)
class Reported:
    """With more of `x`, more (or `less`) of `y`; both are axes, numbers or measures."""

    x: str
    y: str
    less: bool = False

    @property
    def text(self) -> str:
        return f"{self.y} {'falls' if self.less else 'grows'} with {self.x}"


@dataclass(frozen=True)
class Direction:
    """A reported direction, and the tau that was found: its mean over seeds, with a t interval."""

    reported: Reported
    tau: Ranked
    seeds: int
    networks: int

    @property
    def outcome(self) -> Outcome:
        sign = -1 if self.reported.less else 1
        ends = sorted((sign * self.tau.low, sign * self.tau.high))
        if ends[0] > 0:
            return Outcome.SAME
        return Outcome.OTHER if ends[1] < 0 else Outcome.OPEN

    @property
    def text(self) -> str:
        return (
            f"{self.reported.text}: {self.outcome.value}, tau {self.tau.text}, {self.seeds} seeds, "
            f"{self.networks} networks"
        )


def direction(
    networks: Sequence[Network], reported: Reported, axes: Mapping[str, Sequence[Any]]
) -> Direction:
    """The mean over seeds of tau-a between x and y while all other axes stand still.

    Where x is no axis of the grid, of the tau over all networks of a seed. Networks of one seed
    share their data and their start, so that seeds are what is independent.
    """
    for column in _both(reported):
        _refuse_unknown(networks, column)
    known = [n for n in networks if all(math.isfinite(_value(n, c, axes)) for c in _both(reported))]
    seeds = sorted({n.seed for n in known})
    taus = [tau for seed in seeds if (tau := _tau(known, seed, reported, axes)) is not None]
    if len(taus) < SEEDS:
        raise SpiritlevelError(
            f"{reported.text}: {len(taus)} seeds have networks that differ in {reported.x}; "
            f"{SEEDS} are the least for an interval"
        )
    return Direction(reported, _ranked(taus), len(taus), len(known))


def _ranked(taus: Sequence[float]) -> Ranked:
    """The mean with its t interval; a few that are all alike do not say how far they spread."""
    mean, low, high = paired_interval(taus)
    if len(taus) < ALIKE and max(taus) - min(taus) < 1e-9:
        return Ranked(mean, -1.0, 1.0)
    return Ranked(mean, max(low, -1.0), min(high, 1.0))


def _both(reported: Reported) -> tuple[str, str]:
    return reported.x, reported.y


def _tau(
    networks: Sequence[Network], seed: int, reported: Reported, axes: Mapping[str, Sequence[Any]]
) -> float | None:
    """Of one seed; None where nothing differs in x."""
    strata: dict[tuple[Any, ...], list[Network]] = defaultdict(list)
    for network in networks:
        if network.seed == seed:
            others = [axis for axis in axes if axis != reported.x] if reported.x in axes else []
            strata[tuple(network.config.get(axis) for axis in others)].append(network)
    found = []
    for members in strata.values():
        x, y = ([_value(n, column, axes) for n in members] for column in _both(reported))
        if len(set(x)) > 1:
            found.append(kendall(x, y).a)
    return sum(found) / len(found) if found else None


def _value(network: Network, column: str, axes: Mapping[str, Sequence[Any]]) -> float:
    """A number of a network; texts of an axis are counted in the order of the grid."""
    if column in network.config:
        value = network.config[column]
        if not isinstance(value, str):
            return float(value)
        order = list(axes.get(column, [value]))  # one value is no axis
        if value not in order:
            raise SpiritlevelError(
                f"axes[{column!r}] has no {value!r}, which a network has; there are: "
                f"{', '.join(map(str, order))}"
            )
        return float(order.index(value))
    found = [part[column] for part in (network.numbers, network.values) if column in part]
    return found[0] if found else math.nan


def _refuse_unknown(networks: Sequence[Network], column: str) -> None:
    """Refuse what no network has; some may not be measured yet."""
    parts = [part for n in networks for part in (n.config, n.numbers, n.values)]
    if networks and not any(column in part for part in parts):
        raise SpiritlevelError(
            f"{column!r} is neither an axis nor a number nor a measure of the networks; there are: "
            f"{', '.join(dict.fromkeys(name for part in parts for name in part))}"
        )
