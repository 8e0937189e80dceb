"""docs/study.md says of docs/fashion.csv what the statistics say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spiritlevel.studies import analyse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line; and the numbers of the answer are in them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import answer

    parts = answer.found()
    lines = [line for line in answer.tables(parts) if line]
    sys.modules.pop("answer")
    assert len(lines) > 40
    assert [line for line in lines if line not in PAGE.splitlines()] == []
    whole, mlp, cnn = parts
    assert [len(part.networks) for part in parts] == [576, 144, 144]
    gains = [row.gain for row in whole if row.gain is not None]
    assert (len(gains), sum(gain.low > 0 for gain in gains)) == (11, 10)
    assert not any(gain.high < 0 for gain in gains)
    assert sum(row.p < 0.05 for row in whole) == 29
    assert max(row.partial.value for row in whole if row.partial) <= 0.25
    robust = [row.name for row in whole if row.signs and row.signs.largest < 0.995]
    assert robust == ["pac_bayes_magnitude_flatness"]
    assert f"(p = {whole['hessian_trace'].p:.3f}), and its least value" in PAGE.replace("\n", " ")
    assert whole["orbit_trace"].p < 0.05 < whole["hessian_trace"].p
    mlps = analyse(whole.networks, where={"network": "mlp"}, resamples=10)
    for part in (whole, mlps, mlp, cnn):  # relative to the size of each weight
        first = max(part, key=lambda row: row.psi or 0.0)
        assert first.name in ("adaptive_average", "pac_bayes_magnitude_flatness")
    words = " ".join(re.sub(r"[`*]", "", PAGE).split())
    for part, name, sentence in (
        (whole, "hessian_trace", "a Kendall tau of {} as they were handed over"),
        (whole, "orbit_trace", "its least value over the orbit with {}"),
    ):
        assert sentence.format(part[name].tau.text) in words
    for part, name, said in (
        (mlp, "hessian_trace", "trace 0.54"),
        (mlp, "hessian_spectral", "spectral norm 0.51"),
        (mlp, "parameter_norm", "those of them with true labels with −0.46"),
        (mlps, "parameter_norm", "the MLPs among them with 0.02"),
        (cnn, "adaptive_average", "first among CNNs with true labels (0.50, 0.46)"),
        (mlp, "adaptive_average", "among such MLPs (0.65, 0.64)"),
        (mlp, "adaptive_spectral", "adaptive_spectral (0.66)"),
    ):
        digits = re.findall(r"−?\d\.\d\d", said)[0].replace("−", "-")
        assert f"{part[name].tau.value:.2f}" == digits
        assert said in words
