"""Tables of measures and comparisons as they are written, with a row of every kind."""

from __future__ import annotations

from typing import Any

from reports import certificate, estimate, rest

VERSIONS = {"spiritlevel": "0.1.0", "torch": "2.13.0"}


def line(name: str, title: str, value: float, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "title": title, "shared": False, "part": False}
    if name == "loss":
        found |= {"family": "loss", "invariances": ["diagonal", "permutation"]}
    else:
        found |= {"family": "curvature", "invariances": ["permutation"]}
    return {**found, "estimate": estimate(value, **more)}


def table() -> dict[str, Any]:
    rows = [
        line("loss", "loss", 0.00628816, status="exact", matvecs=0, seconds=0.0),
        line("hessian_spectral", "spectral norm", 2.04829, residual=2.4e-6),
        line("hessian_trace", "trace", 9.12, stderr=0.15, status="budget spent", remedy="raise it"),
        line("layer_traces.0", "in 0", 3.62, stderr=0.065) | {"shared": True, "part": True},
        line("keskar", "Keskar sharpness", 0.0765, status="lower bound"),
    ]
    return {
        "kind": "table",
        "schema": 2,
        "rows": rows,
        "rest": rest(reached=0.00629),
        "provenance": {
            "parameters": 2778,
            "examples": 1437,
            "mode": "eval",
            "dtype": "float32",
            "device": "cpu",
            "seed": 7,
            "products": 50.0,
            "seconds": 1.94,
            "product": "jvp of gradient",
            "product_check": 3e-10,
            "product_rounding": 3e-6,
            "notes": ["the model holds torch.bfloat16"],
            "refused": {},
            "interrupted": "",
            "versions": VERSIONS,
        },
    }


def pair(name: str, title: str, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "family": "curvature",
        "is_sharpness": True,
        "sharper": "large",
        "other": "small",
        "values": [estimate(7.64852, residual=9e-6), estimate(0.213251, residual=2.5e-7)],
        "least": None,
        "matrix": None,
        "order": None,
        "turned": None,
        "answer": answer,
        **more,
    }


def comparison() -> dict[str, Any]:
    """A pair of each answer."""
    reached = {"outcome": "reached", "value": 26.04, "reason": "scaling"}
    turned = {"turned": reached | {"certificate": certificate(0)}}
    pairs = [
        pair("loss", "loss", "survives", family="loss", is_sharpness=False),
        pair(
            "hessian_spectral",
            "spectral norm",
            "survives",
            least=[interval(5.271, 5.283), interval(0.1532, 0.1535)],
            **turned,
        ),
        pair("hessian_trace", "trace", "coordinates", least=[interval(2.0, 2.0)] * 2, **turned),
        pair("keskar", "Keskar sharpness", "undecided", **turned),
        pair("orbit_trace", "least trace on orbit", "equal"),
    ]
    return {
        "kind": "comparison",
        "schema": 3,
        "names": ["small", "large"],
        "values": values(pairs),
        "pairs": pairs,
        "provenance": {
            "seed": 7,
            "seconds": 29.4,
            "notes": ["small: the weights are those under 'model.'"],
            "refused": {},
            "interrupted": "",
            "versions": VERSIONS,
        },
    }


def interval(low: float, high: float) -> dict[str, float]:
    return {"value": high, "low": low, "high": high}


def values(pairs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of every measure, the value of every network."""
    found: dict[str, dict[str, Any]] = {}
    for one in pairs:
        both = zip((one["sharper"], one["other"]), one["values"], strict=True)
        found.setdefault(one["name"], {}).update(both)
    return found


def three() -> dict[str, Any]:
    """Three networks with long names: three answers to every measure."""
    data = comparison()
    names = ["small", "large", "runs/2026-11-15/resnet_wide_augmented/last.ckpt"]
    pairs = []
    for found in data["pairs"]:
        pairs += [
            found,
            found | {"sharper": names[2], "other": "small"},
            found | {"sharper": names[2], "other": "large"},
        ]
    return data | {"names": names, "pairs": pairs, "values": values(pairs)}
