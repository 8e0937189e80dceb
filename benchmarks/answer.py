"""The tables of docs/study.md, from the networks in docs/fashion.csv.

python benchmarks/answer.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spiritlevel.results.study import Findings, Ranked, Row
from spiritlevel.studies import analyse, read_csv

NETWORKS = Path(__file__).parents[1] / "docs" / "fashion.csv"
CONTROLS = ("labels", "network", "width", "depth", "times", "batch", "optimizer")
PARTS: tuple[dict[str, Any], ...] = (
    {"network": "mlp", "labels": 0.0},
    {"network": "cnn", "labels": 0.0},
)


def found() -> list[Findings]:
    """Of all networks, and of two parts in which family and labels stand still."""
    networks = read_csv(NETWORKS)
    whole = analyse(networks, name="fashion", controls=CONTROLS)
    return [whole, *(analyse(networks, where=one) for one in PARTS)]


def tables(parts: list[Findings]) -> list[str]:
    """Measures that rescaling moves, with the orbit divided out beside them; then all others."""
    whole = parts[0]
    bottoms = {row.bottom for row in whole if row.bottom}
    moved = [row for row in whole if row.bottom]
    rest = [row for row in whole if not row.bottom and row.name not in bottoms - {"orbit_trace"}]
    return [
        *_table("tau, divided out, change, Psi, divided out, sign error, divided out"),
        *(_line(row, _against(whole, row)) for row in moved),
        "",
        *_table("MLPs, divided out, change, CNNs, divided out, change"),
        *(_line(row, [c for p in parts[1:] for c in _against(p, row)[:3]]) for row in moved),
        "",
        *_table("rescaling, tau, MLPs, CNNs, Psi, given all axes, sign error"),
        *(_line(row, _alone(parts, row)) for row in rest),
    ]


def _against(part: Findings, row: Row) -> list[str]:
    """As it was taken, and with the orbit divided out."""
    here, there = part[row.name], part[part[row.name].bottom]
    assert here.gain is not None
    taus = [_short(here.tau), _short(there.tau), _short(here.gain)]
    return [*taus, *(f"{one.psi:.2f}" for one in (here, there)), _signs(here), _signs(there)]


def _alone(parts: list[Findings], row: Row) -> list[str]:
    assert row.partial is not None
    taus = [_short(part[row.name].tau) for part in parts]
    word = "does nothing" if row.invariant else "moves it"
    return [word, *taus, f"{row.psi:.2f}", _short(row.partial), _signs(row)]


def _signs(row: Row) -> str:
    assert row.signs is not None
    return f"{row.signs.mean:.2f}, at most {row.signs.largest:.2f}"


def _table(columns: str) -> list[str]:
    heads = ["measure", *columns.split(", ")]
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]


def _short(ranked: Ranked) -> str:
    return f"{ranked.value:.2f} [{ranked.low:.2f}, {ranked.high:.2f}]"


def _line(row: Row, cells: list[str]) -> str:
    return f"| {' | '.join([row.title, *cells])} |"


if __name__ == "__main__":
    print("\n".join(tables(found())))
