"""An audit, a journey and claims as plain data, like those of the default net."""

from __future__ import annotations

import html
import re
from typing import Any

CHANGES = [7e-9, 0.0, 4e-9, 2e-8, 3e-8]


def text(source: str) -> str:
    """The page as it is read: without styles, scripts and tags."""
    bare = re.sub(r"<(style|script).*?</\1>", "", source, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def estimate(value: float, **more: Any) -> dict[str, Any]:
    return {
        "value": value,
        "stderr": None,
        "residual": None,
        "bound": None,
        "matvecs": 20,
        "seconds": 0.5,
        "status": "converged",
        "remedy": "",
        **more,
    }


def row(name: str, title: str, here: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "family": "curvature",
        "here": here,
        "values": {"here": here, "sharpened": estimate(more.get("largest", here["value"]))},
        "infimum": None,
        "largest": here["value"],
        "largest_at": "sharpened",
        "factor": 1.0,
        "promised": False,
        "moved": False,
        "outcome": "did not move",
        "verdict": "did not move here",
        **more,
    }


def infimum(value: float, bound: float | None) -> dict[str, Any]:
    known = {"value": value, "lower_bound": bound, "proved": bound is not None}
    return {**known, "matrix": "hessian", "point": "balanced", "refuted": None}


def audit() -> dict[str, Any]:
    """A row of each kind of verdict."""
    text = "moved x 2.3e6 on purpose with identical predictions"
    moved = {"moved": True, "outcome": "moved", "verdict": text}
    kept = {
        "promised": True,
        "outcome": "invariant",
        "verdict": "invariant",
        "family": "invariant",
    }
    broken = {"outcome": "broke its promise", "verdict": "declared invariant but moved: a bug"}
    liar = {**kept, "moved": True, **broken}
    rows = [
        row("loss", "loss", estimate(0.00628816, status="exact"), **kept),
        row(
            "hessian_spectral",
            "spectral norm",
            estimate(2.04829, residual=2.4e-6),
            infimum=infimum(1.36249, 1.36238),
            largest=3.103e6,
            factor=2.28e6,
            **moved,
        ),
        row(
            "hessian_frobenius",
            "Frobenius norm",
            estimate(2.9552, stderr=0.0066, status="budget spent", remedy="raise the budget"),
            infimum=infimum(2.29041, None),
            largest=4.309e6,
            factor=1.88e6,
            **moved,
        ),
        row("gradient_norm", "gradient norm", estimate(0.0064123)),
        row("fisher_rao", "Fisher-Rao norm", estimate(0.886), **liar),
    ]
    exact = {"verdict": "exact", "relative": 7e-8, "absolute": 3e-6}
    return {
        "schema": 3,
        "headline": "Two of five measures moved while no prediction changed.",
        "head": {
            "name": "hessian_spectral",
            "title": "spectral norm",
            "matrix": "hessian",
            "here": 2.04829,
            "least": 1.36249,
            "proved": False,
        },
        "rest": {"standing": "not at rest", "text": "Not at rest: a step lowers the loss."},
        "rows": rows,
        "group": {
            "dim": 48,
            "kinds": {"hidden": 48},
            "blocked": [{"by": "gelu in act", "parameters": [f"{i}.weight" for i in range(8)]}],
        },
        "certificates": {"balanced": exact, "sharpened": {**exact, "relative": 5e-8}},
        "provenance": {
            "examples": 1437,
            "parameters": 2778,
            "seed": 7,
            "strength": 1.0,
            "seconds": 8.25,
            "products": 512.0,
            "dtype": "float32",
            "device": "cpu",
            "notes": [],
            "interrupted": None,
            "versions": {"spiritlevel": "0.1.0", "torch": "2.13.0"},
        },
    }


def journey() -> dict[str, Any]:
    """Five stops: each sharpens the minimum four times, the predictions stay."""
    distances = [i / 10 for i in range(-5, 6)]
    labels = ["balanced", "here", "", "", "sharpened"]
    stops = []
    for i, (label, change) in enumerate(zip(labels, CHANGES, strict=True)):
        top = 1.5 * 4**i
        stops.append(
            {
                "position": i - 1.0,
                "label": label,
                "eigenvalues": [top / 2**k for k in range(7)] + [-0.001],
                "slice": [0.006 + top * x * x / 2 for x in distances],
                "predictions": [[0.9912341 + change, 0.0087659], [0.25, 0.75]],
                "change": change,
            }
        )
    return {
        "stops": stops,
        "distances": distances,
        "outputs": ["cat", "dog"],
        "examples": 1437,
        "kind": "probabilities",
    }


SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 180"><path id="a" d="M0 0"/></svg>'


def claim(name: str, shown: str, verdict: str, **more: Any) -> dict[str, Any]:
    numbers = {"relative error": 7.2e-16, "boxes": 60, "growth": 12039.4, "alpha": 2.0009861}
    return {
        "name": name,
        "title": name.replace("_", " "),
        "statement": f"What the {name} says.",
        "source": "Dinh et al. 2017, 5",
        "built": "a random twin",
        "about": "example" if verdict == "own example" else "network",
        "outcome": {"shown": shown, "numbers": numbers, "holds": verdict != "fails"},
        "seconds": 0.5,
        "skipped": "",
        "caption": "",
        "verdict": verdict,
        "holds": {"holds": True, "fails": False}.get(verdict),
        **more,
    }


def claims() -> dict[str, Any]:
    """One that holds, with a figure; one that does not; an example; one that was not checked."""
    skipped = {"outcome": None, "skipped": "does not apply: no minimum"}
    return {
        "schema": 2,
        "claims": [
            claim("hessian_law", "error 7e-16", "holds", caption="The law, drawn."),
            claim("log_convexity", "least slack -0.2", "fails"),
            claim("radial_map", "Jacobian within 2e-09", "own example"),
            claim("stability_edge", "", "not checked", **skipped),
        ],
        "holds": False,
        "network": "the net of the digits",
        "interrupted": "",
        "seconds": 41.23,
        "version": "0.1.0",
    }
