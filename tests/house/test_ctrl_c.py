"""Ctrl-C amid an estimate that something bigger is made of: what comes out is no whole result."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from cases import labels, randn
from spiritlevel.base.operator import Operator

MOMENTS = (0.25, 0.5, 0.75, 0.95)  # where it comes, as shares of all products


def net(seed: int = 0) -> sl.Objective:
    torch.manual_seed(seed)
    layers = (nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return sl.Objective(
        nn.Sequential(*layers).double(), (randn(24, 5), labels(24)), F.cross_entropy
    )


WHOLES: dict[str, Callable[[sl.Objective], Any]] = {
    "minimum": lambda o: sl.orbit.minimum(o, norm="spectral"),
    "minimum of H": lambda o: sl.orbit.minimum(o, norm="spectral", operator="hessian"),
    "worst_case": lambda o: sl.orbit.worst_case(o, radius=0.5),
    "supremum": lambda o: sl.orbit.supremum(o, measure=sl.MEASURES["lambda_max"], target=50.0),
    "sharpen": lambda o: sl.sharpen(o, target=1e4),
    "rerank": lambda o: sl.coordinates.rerank([o, net(1)], [1, 0]),
    "compare": lambda o: sl.compare({"a": o, "b": net(1)}, ["hessian_spectral"]),
    "audit": lambda o: sl.audit(o, ["hessian_spectral", "hessian_trace"], way=False),
    "way": lambda o: sl.audit(o, ["loss"]),
    "watch_checkpoints": lambda o: sl.training.watch_checkpoints(o, [o, net(1)], ["lambda_max"]),
    "spectra": lambda o: sl.landscape.spectra(o, layers=True),
    "convexity": lambda o: sl.landscape.convexity(o, steps=3),
    "a row of parts": lambda o: sl.measure(o, ["sgd_growth", "loss"]),
    "a measure of parts": sl.MEASURES["sgd_stability"],
}


class Pressed:
    """Counts products, and presses Ctrl-C at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.products, self.at = 0, -1
        plain = Operator.__matmul__

        def product(operator: Operator, other: Tensor) -> Tensor:
            self.products += 1
            if self.products == self.at:
                signal.raise_signal(signal.SIGINT)
            return plain(operator, other)

        monkeypatch.setattr(Operator, "__matmul__", product)


@pytest.mark.parametrize("name", WHOLES)
def test_no_whole_is_made_of_halves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = Pressed(monkeypatch)
    WHOLES[name](net())
    total = pressed.products
    assert total > 4
    for share in MOMENTS:
        pressed.products, pressed.at = 0, max(round(share * total), 1)
        try:
            found = WHOLES[name](net())
        except KeyboardInterrupt:
            found = None
        assert found is None or found.provenance["interrupted"], share
        assert pressed.products < pressed.at + 2, "it went on"


@pytest.mark.parametrize(("name", "press"), [("lambda_max", 8), ("hessian_frobenius", 60)])
def test_what_is_asked_for_itself_keeps_what_is_done(
    name: str, press: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = net()
    matrix = sl.hessian(objective).dense()
    truth = torch.linalg.eigvalsh(matrix)[-1] if name == "lambda_max" else matrix.norm()
    pressed = Pressed(monkeypatch)
    pressed.at = press
    found = sl.measure(objective, [name], rtol=1e-9)[name]
    assert found.status is sl.Status.INTERRUPTED
    assert abs(found.value - float(truth)) <= 4 * found.error
    assert found.error < 1.2 * abs(float(truth))
