"""The symmetries of a network, and a twin that was made along them, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from spiritlevel.base.estimate import Estimate
from spiritlevel.base.spoken import at_least
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.grid import Column, Grid, cells
from spiritlevel.results.provenance import Provenance, remarks
from spiritlevel.results.result import Result

MEANING = {
    "hidden": "units between two layers",
    "gain": "gains of norms and the next layer",
    "norm input": "what a norm divides out",
    "residual": "channels of a residual stream",
    "query-key": "queries up, keys down",
    "value-output": "values up, output projection down",
    "gate": "the linear branch of a gated unit",
    "dead": "biases that no prediction sees",
    "linear": "between two linear maps",
}
ROWS = 60
COLUMNS = (Column("from -> to"), Column("kind"), Column("channels", right=True))


class Reason(Enum):
    """Why no factor passes an operation."""

    BENDS = "is not proportional to what goes in"
    CONSTANT = "meets a constant that cannot move along"
    EPS = "has an eps that cannot move along"
    STATISTICS = "has statistics that stay as they are"
    NO_RULE = "has no rule, so what passes is held still"


@dataclass(frozen=True)
class Block:
    """An operation that some scales cannot pass."""

    told = ("by",)

    operation: str
    module: str
    parameters: tuple[str, ...]
    reason: Reason = Reason.NO_RULE

    @property
    def by(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.operation}{f' in {self.module}' if self.module else ''}"


@dataclass(frozen=True)
class Generator:
    """One direction of the group: a channel that can be scaled, and what makes up for it."""

    name: str
    kind: str
    layer: str


HINTS = {
    Reason.STATISTICS: "With statistics free, running statistics move along.",
    Reason.EPS: "With eps approximate, what the eps of a norm breaks a little is admitted.",
}


@dataclass(frozen=True)
class Freedom:
    """How many rescalings change no prediction, how many of each kind, and what blocks others."""

    dim: int
    kinds: dict[str, int]
    blocked: tuple[Block, ...]


@dataclass(frozen=True)
class Left:
    """A freedom that is not divided out: of how many units, maps, operations or parameters it is.

    Permutations and signs are orthogonal maps of the parameters: no norm, spectrum or ball moves.
    With the others a least value over all rescalings is not that over all networks of one function.
    """

    told = ("text",)

    kind: Literal["permutations", "signs", "heads", "linear", "eps", "blocked", "unchosen"]
    count: int

    @property
    def moves(self) -> bool:
        """Whether a least value over all rescalings may be above that over all networks."""
        return self.kind not in ("permutations", "signs")

    @property
    def text(self) -> str:
        many = f"{self.count:,}"
        return {
            "permutations": f"{many} units can change places: no norm and no spectrum sees that",
            "signs": f"{many} units can change their sign: no norm and no spectrum sees that",
            "heads": f"{many} maps of attention heads (any invertible matrix) are not divided out; "
            "geodesic_curvature is a measure that does",
            "linear": f"{many} channels between linear maps can be mixed by any invertible matrix: "
            "only their scales are divided out",
            "eps": f"{many} norms would let rescalings pass, were it not for their eps",
            "blocked": f"{many} operations have no rule and let no rescaling pass: some may hide",
            "unchosen": f"{many} parameters are not chosen, so that no rescaling moves them",
        }[self.kind]


@dataclass(frozen=True, eq=False)
class Symmetries(Result, kind="symmetries", schema=2):
    """Every rescaling of a model's parameters that changes no prediction.

    `norms` counts those whose eps breaks it a little; `frozen` parameters are moved by nothing, and
    `unused` ones in part not reached by the example.
    """

    network: str
    parameters: int
    group: Freedom
    generators: tuple[Generator, ...]
    norms: int
    frozen: tuple[str, ...]
    unused: tuple[str, ...]
    provenance: Provenance

    @property
    def title(self) -> str:
        return f"Symmetries of {self.network}"

    def grid(self) -> Grid:
        many = f"{self.group.dim} rescalings of {self.parameters:,} parameters"
        head = f"{many} leave every prediction as it is"
        if self.norms:
            head += f", up to the eps of {self.norms} norms"
        layers = Counter((g.name.rsplit(", channel", 1)[0], g.kind) for g in self.generators)
        rows = [
            cells(name, f"{kind}: {MEANING.get(kind, '')}", str(count))
            for (name, kind), count in list(layers.items())[:ROWS]
        ]
        if len(layers) > ROWS:
            rest = sum(list(layers.values())[ROWS:])
            rows.append(cells(f"... and {len(layers) - ROWS} more", "", str(rest)))
        above = cells(head, style="bold")
        return Grid(COLUMNS, tuple(rows), above, cells(*self.lines(), style="dim"))

    def lines(self) -> list[str]:
        """What blocks more, what never moves, and what would admit more."""
        blocks: dict[tuple[str, Reason], list[Block]] = {}
        for block in self.group.blocked:
            blocks.setdefault((block.operation, block.reason), []).append(block)
        lines = ["Blocked"] if blocks else []
        for (operation, reason), found in blocks.items():
            held = _few(sorted({p for b in found for p in b.parameters}), 4)
            place = _few([b.module for b in found])
            lines.append(f"  {operation} in {place}: {held} (it {reason.value})")
        if self.frozen:
            lines.append(f"Never moved: {_few(self.frozen, 6)}")
        if self.unused:
            lines.append(f"Not reached by this example: parts of {_few(self.unused, 4)}")
        met = {block.reason for block in self.group.blocked}
        lines += [hint for reason, hint in HINTS.items() if reason in met]
        return lines + [f"note: {note}" for note in remarks(self.provenance)]

    def records(self) -> list[dict[str, Any]]:
        return [{"name": g.name, "kind": g.kind, "layer": g.layer} for g in self.generators]


def _few(names: Sequence[str], most: int = 3) -> str:
    named = [n or "the model" for n in dict.fromkeys(names)]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


@dataclass(frozen=True, eq=False)
class Sharpening(Result, kind="sharpening", schema=2):
    """A twin with the same predictions that was made as sharp as was asked for."""

    network: str
    target: float
    before: Estimate
    reached: float
    generator: str
    certificate: Certificate
    provenance: Provenance

    @property
    def title(self) -> str:
        return f"A sharper twin of {self.network}"

    def grid(self) -> Grid:
        reached = f"at least {at_least(self.reached)}"
        rows = (
            cells("largest Hessian eigenvalue", f"{self.before} -> {reached}"),
            cells("by scaling", self.generator),
            cells("predictions", str(self.certificate)),
        )
        below = [*(f"note: {note}" for note in remarks(self.provenance))]
        return Grid((Column(""), Column("")), rows, (), cells(*below))

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "target": self.target,
                "before": self.before.value,
                "reached": self.reached,
                "generator": self.generator,
                "verdict": self.certificate.verdict,
                "relative": self.certificate.relative,
                "absolute": self.certificate.absolute,
            }
        ]
