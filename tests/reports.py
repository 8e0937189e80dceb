"""An audit, its way and claims as they are written, like those of the default net."""

from __future__ import annotations

import html
import re
from typing import Any

from spiritlevel.report import page as draw
from spiritlevel.results.result import result_from

CHANGES = [7e-9, 0.0, 4e-9, 2e-8, 3e-8]


def page(data: dict[str, Any], title: str | None = None) -> str:
    """The page of a result that was written so."""
    return draw(result_from(data), title=title)


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
    values = {"here": here, "sharpened": estimate(more.pop("largest", here["value"]))}
    return {
        "name": name,
        "title": title,
        "family": "curvature",
        "values": values,
        "infimum": infimum(here["value"], None),
        "promised": False,
        "outcome": "did not move",
        "apart": 0.0,
        **more,
    }


def infimum(value: float, bound: float | None) -> dict[str, Any]:
    known = {"value": value, "lower_bound": bound, "proved": bound is not None}
    return {**known, "matrix": "hessian", "point": "balanced", "refuted": None}


def rows() -> list[dict[str, Any]]:
    """A row of each kind of verdict."""
    moved = {"outcome": "moved"}
    kept = {"promised": True, "outcome": "invariant", "family": "invariant"}
    broken = {"outcome": "broke its promise"}
    budget = {"stderr": 0.0066, "status": "budget spent", "remedy": "raise the budget"}
    return [
        row("loss", "loss", estimate(0.00628816, status="exact"), **kept),
        row(
            "hessian_spectral",
            "spectral norm",
            estimate(2.04829, residual=2.4e-6),
            infimum=infimum(1.36249, 1.36238),
            largest=3.103e6,
            **moved,
        ),
        row(
            "hessian_frobenius",
            "Frobenius norm",
            estimate(2.9552, **budget),
            infimum=infimum(2.29041, None),
            largest=4.309e6,
            **moved,
        ),
        row("gradient_norm", "gradient norm", estimate(0.0064123)),
        row("fisher_rao", "Fisher-Rao norm", estimate(0.886), **kept | broken),
    ]


def certificate(relative: float, verdict: str = "exact") -> dict[str, Any]:
    seen = {"absolute": 3e-6, "on_data": relative, "on_random_inputs": relative}
    return {"verdict": verdict, "relative": relative, "examples": 1437, **seen}


def rest(reached: float = 0.00292) -> dict[str, Any]:
    """Of a point that a step improves, or of one that it does not."""
    seen = {"lowest": 0.0, "highest": 2.05, "products": 12}
    return {"loss": 0.00629, "reached": reached, "model": 0.0, "slope": 0.0064, **seen}


def audit(**more: Any) -> dict[str, Any]:
    blocked = {
        "operation": "gelu",
        "module": "act",
        "parameters": [f"{i}.weight" for i in range(8)],
        "reason": "is not proportional to what goes in",
    }
    return {
        "kind": "audit",
        "schema": 4,
        "network": "Net",
        "rows": rows(),
        "rest": rest(),
        "group": {"dim": 48, "kinds": {"hidden": 48}, "blocked": [blocked]},
        "certificates": {"balanced": certificate(7e-8), "sharpened": certificate(5e-8)},
        "way": None,
        "provenance": {
            "examples": 1437,
            "parameters": 2778,
            "mode": "eval",
            "seed": 7,
            "strength": 1.0,
            "seconds": 8.25,
            "seconds_for_points": 1.5,
            "products": 512.0,
            "dtype": "float32",
            "device": "cpu",
            "notes": [],
            "refused": {},
            "interrupted": "",
            "versions": {"spiritlevel": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        },
        **more,
    }


def way() -> dict[str, Any]:
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
    found = {"shown": shown, "numbers": numbers, "holds": verdict != "fails"}
    return {
        "name": name,
        "statement": f"What the {name} says.",
        "source": "Dinh et al. 2017, 5",
        "built": "a random twin",
        "about": "example" if verdict == "own example" else "network",
        "finding": None if verdict == "not checked" else found,
        "seconds": 0.5,
        "skipped": "",
        "caption": "",
        **more,
    }


def claims(**figures: str) -> dict[str, Any]:
    """One that holds, with a figure; one that does not; an example; one that was not checked."""
    return {
        "kind": "claims",
        "schema": 3,
        "network": "the net of the digits",
        "rows": [
            claim("hessian_law", "error 7e-16", "holds", caption="The law, drawn."),
            claim("log_convexity", "least slack -0.2", "fails"),
            claim("radial_map", "Jacobian within 2e-09", "own example"),
            claim("stability_edge", "", "not checked", skipped="does not apply: no minimum"),
        ],
        "figures": figures,
        "provenance": {
            "seconds": 41.23,
            "notes": [],
            "refused": {},
            "interrupted": "",
            "versions": {"spiritlevel": "0.1.0"},
        },
    }
