"""Numbers of one tree, kept, so that a rebuilt one can be compared with it.

    python tests/golden.py        # records golden.json anew: only where a number is meant to change

Every number is recorded with how far it moves when sums are made in another order (one thread or
two, batches cut or whole): that many digits of it are stable.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import spiritlevel as sl
from cases import BY_NAME
from spiritlevel.objective.default import digits

HERE = Path(__file__).parent
RECORD = HERE / "golden.json"
WEIGHTS = HERE / "golden.safetensors"  # of the embedded default: training rounds differently
SMALL = (
    *("mlp", "relu mlp", "cnn with BatchNorm", "LayerNorm", "GroupNorm", "embedding", "LSTM"),
    *("TransformerEncoderLayer", "mean squared error"),
)
NORMS = [(norm, kind) for norm in ("spectral", "trace", "frobenius") for kind in ("ggn", "hessian")]
LONG = ("many_eigenvalues", "reranking")  # claims that take half a minute
SAMPLED = ("PAC-Bayes", "entropy", "volume")
SLOW = ("orbit_frobenius", "metric_trace", "relative_log_determinant")
TINY = 1e-12  # what is zero but for rounding
LAST = 1e-9  # relative: no number is expected to be known better
# relative: where a search for the least norm ends depends on how it began and how its sums are
# rounded; what is proved of it is a gap of 5e-3. So do steps at a rate that was searched for.
SEARCHED = 1e-4
SEARCHES = (
    "orbit_spectral",
    "orbit_worst_case",
    "keskar",  # its iterations are counted, so that it ends amid its way
    "spectral of",
    "at flattest",
    "least hessian_spectral",
    "arbitrarily",
    "stability_edge: ",
)

Numbers = dict[str, float]


def default_net() -> nn.Sequential:
    sizes = (64, 32, 16, 10)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    net.load_state_dict(load_file(WEIGHTS))
    return net.double()


def default_objective(parts: int) -> sl.Objective:
    x, y = (t[:400] for t in digits()[0])
    return sl.Objective(default_net(), _cut((x.double(), y), parts), F.cross_entropy)


def _cut(data: tuple[torch.Tensor, ...], parts: int) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(t.chunk(parts) for t in data), strict=True))


def numbers(parts: int = 1) -> Iterator[tuple[str, Numbers]]:
    """Everything that is recorded, network by network; `parts` is the number of batches."""
    objective = default_objective(parts)
    yield "default, measured", _measured(objective, recorded())
    yield "default, audited", _audited(objective)
    yield "default, orbit", _orbit(objective, NORMS[:4])
    yield "default, claims", _claims(objective)
    for name in SMALL:
        small = BY_NAME[name].objective()
        found = _measured(small, ["loss", "gradient_norm", "hessian_spectral", "hessian_trace"])
        yield name, found | _orbit(small, NORMS)


def recorded() -> list[str]:
    """What is neither sampled for long nor in need of more than the objective."""
    return [
        name
        for name, entry in sl.MEASURES.items()
        if entry.family not in SAMPLED and not entry.needs and name not in SLOW
    ]


def _measured(objective: sl.Objective, names: list[str]) -> Numbers:
    table = sl.measure(objective, names)
    found: Numbers = {}
    for row in table.to_dict()["rows"]:
        found[row["name"]] = row["estimate"]["value"]
    return found


def _audited(objective: sl.Objective) -> Numbers:
    audit = sl.audit(objective, way=False)
    found: Numbers = {"dimension": audit.group.dim}
    for row in audit.to_dict()["rows"]:
        for point, value in row["values"].items():
            found[f"{row['name']} at {point}"] = value["value"]
        least = row.get("infimum") or {}
        found |= {
            f"least {row['name']}, {key}": least[key]
            for key in ("value", "lower_bound")
            if least.get(key) is not None
        }
    return found


def _orbit(objective: sl.Objective, norms: list[tuple[str, str]]) -> Numbers:
    group = sl.symmetries(objective)
    found: Numbers = {"dimension": group.dim, "blocked": len(group.blocks)}
    for norm, kind in norms:
        try:
            least = sl.orbit.minimum(objective, group, norm=norm, operator=kind)  # type: ignore[arg-type]
        except sl.SpiritlevelError:
            continue
        found[f"{norm} of {kind}"] = least.value
        found[f"{norm} of {kind}, before"] = least.before
        if least.lower_bound is not None:
            found[f"{norm} of {kind}, bound"] = least.lower_bound
    return found


def _claims(objective: sl.Objective) -> Numbers:
    found: Numbers = {}
    names = [n for n, claim in sl.CLAIMS.items() if not claim.long and n not in LONG]
    for claim in sl.claims(objective, names, figures=False).rows:
        found[f"{claim.name} holds"] = {"holds": 1, "fails": 0}.get(claim.verdict, -1)
        if claim.finding and claim.about == "network":
            found |= {f"{claim.name}: {key}": v for key, v in claim.finding.numbers.items()}
    return found


def stable(key: str) -> float:
    """To how many digits, relative, a number can be the recorded one."""
    return SEARCHED if any(word in key for word in SEARCHES) else LAST


def finite(found: Numbers) -> Numbers:
    return {key: float(v) for key, v in found.items() if v is not None and math.isfinite(v)}


def record() -> None:
    kept: dict[str, dict[str, list[float]]] = {}
    torch.set_num_threads(2)
    again = {name: finite(found) for name, found in numbers(parts=2)}
    torch.set_num_threads(1)
    for name, found in numbers():
        kept[name] = {
            key: [value, abs(value - again[name][key])] for key, value in finite(found).items()
        }
    text = json.dumps(kept, indent=1, allow_nan=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
