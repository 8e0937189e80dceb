"""Tables of measures and comparisons as plain data, with a row of every kind."""

from __future__ import annotations

from typing import Any

from reports import estimate

VERSIONS = {"spiritlevel": "0.1.0", "torch": "2.13.0"}


def line(name: str, title: str, value: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "title": title, "shared": False, **estimate(value, **more)}


def table() -> dict[str, Any]:
    rows = [
        line("loss", "loss", 0.00628816, status="exact", matvecs=0, seconds=0.0),
        line("hessian_spectral", "spectral norm", 2.04829, residual=2.4e-6),
        line("hessian_trace", "trace", 9.12, stderr=0.15, status="budget spent", remedy="raise it"),
        line("layer_traces.0", "  in 0", 3.62, stderr=0.065) | {"shared": True},
        line("keskar", "Keskar sharpness", 0.0765, status="lower bound"),
    ]
    return {
        "schema": 1,
        "rows": rows,
        "verdict": "Close to a minimum: a step gains nothing.",
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
            "versions": VERSIONS,
        },
    }


def pair(name: str, title: str, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "family": "curvature",
        "sharper": "large",
        "other": "small",
        "values": [estimate(7.64852, residual=9e-6), estimate(0.213251, residual=2.5e-7)],
        "ratio": 35.9,
        "least": None,
        "turned": None,
        "turned_value": None,
        "answer": answer,
        "verdict": f"the verdict on {title}",
        **more,
    }


def comparison() -> dict[str, Any]:
    """A pair of each answer."""
    turned = {"turned": "reached", "turned_value": 26.04}
    return {
        "schema": 1,
        "names": ["small", "large"],
        "pairs": [
            pair("loss", "loss", "survives", family="loss"),
            pair(
                "hessian_spectral",
                "spectral norm",
                "survives",
                least=[[5.271, 5.283], [0.1532, 0.1535]],
                **turned,
            ),
            pair("hessian_trace", "trace", "coordinates", least=[[2.0, 2.0], [2.0, 2.0]], **turned),
            pair("keskar", "Keskar sharpness", "undecided", **turned),
            pair("orbit_trace", "least trace on orbit", "equal"),
        ],
        "provenance": {
            "seed": 7,
            "seconds": 29.4,
            "notes": ["small: the weights are those under 'model.'"],
            "refused": {},
            "versions": VERSIONS,
        },
    }


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
    return data | {"names": names, "pairs": pairs}
