"""The table: right numbers, honest costs, words, JSON."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

import spiritlevel as sl
from cases import BY_NAME
from spiritlevel.base.estimate import Estimate, Status, format_error, format_value


@pytest.fixture(scope="module")
def objective() -> sl.Objective:
    return BY_NAME["mlp"].objective()


@pytest.fixture(scope="module")
def table(objective: sl.Objective) -> Any:
    return sl.measure(objective, tol=1e-6, rtol=0.02, budget=2000)


def test_every_number_agrees_with_the_dense_hessian(table: Any, objective: sl.Objective) -> None:
    dense = BY_NAME["mlp"].dense_hessian()
    values = torch.linalg.eigvalsh(dense)
    truth = {
        "loss": objective.value(),
        "gradient_norm": float(objective.gradient().norm()),
        "hessian_spectral": float(values.abs().max()),
        "lambda_max": float(values[-1]),
        "lambda_min": float(values[0]),
        "hessian_trace": float(values.sum()),
        "hessian_frobenius": float(values.norm()),
        "effective_rank": float(values.sum() ** 2 / values.square().sum()),
        "layer_traces.0": float(dense.diagonal()[:25].sum()),
        "layer_traces.2": float(dense.diagonal()[25:].sum()),
    }
    assert {row.name for row in table} == set(truth)
    for name, value in truth.items():
        found = table[name]
        assert found.converged
        assert abs(found.value - value) <= 4 * found.error + 1e-9 * abs(value), name


def test_shared_work_is_paid_once(table: Any) -> None:
    shared = {row.name for row in table if row.shared}
    assert shared == {
        "lambda_max",
        "lambda_min",
        "layer_traces.0",
        "layer_traces.2",
        "hessian_frobenius",
        "effective_rank",
    }
    paid = sum(row.estimate.matvecs for row in table if not row.shared)
    assert table.provenance["products"] == pytest.approx(paid + table.rest.products)


def test_table_prints_and_writes_itself(table: Any, tmp_path: Any) -> None:
    text = str(table)
    for part in ("spectral norm", "±", "shared", "jvp of gradient", "43 parameters, 10 examples"):
        assert part in text
    written = json.loads(table.to_json(tmp_path / "t.json"))
    assert json.loads((tmp_path / "t.json").read_text()) == written
    assert written["schema"] == 2
    row = next(r for r in written["rows"] if r["name"] == "hessian_trace")
    assert row["estimate"]["value"] == table["hessian_trace"].value
    assert row["estimate"]["stderr"] == table["hessian_trace"].stderr
    assert written["provenance"]["versions"]["torch"] == torch.__version__
    assert "spectral norm</td>" in table.to_html()
    with pytest.raises(sl.SpiritlevelError, match="no row 'x'; there are: loss"):
        table["x"]


def test_the_same_seed_gives_the_same_table(objective: sl.Objective) -> None:
    def values(seed: int) -> list[float]:
        return [row.estimate.value for row in sl.measure(objective, seed=seed)]

    assert values(3) == values(3)
    assert values(3) != values(4)


def test_only_what_is_asked_is_computed(objective: sl.Objective) -> None:
    cheap = sl.measure(objective, ["loss", "gradient_norm"])
    assert [row.name for row in cheap] == ["loss", "gradient_norm"]
    assert cheap.provenance["products"] == 0
    assert "product" not in cheap.provenance
    with pytest.raises(sl.SpiritlevelError, match="unknown measure 'sharpness': did you mean"):
        sl.measure(objective, ["sharpness"])
    with pytest.raises(sl.SpiritlevelError, match="'hessian_trac': did you mean hessian_trace or"):
        sl.measure(objective, ["hessian_trac"])
    for title, name in (("trace", "hessian_trace"), ("Spectral norm", "hessian_spectral")):
        with pytest.raises(sl.SpiritlevelError, match=f"{title!r}: did you mean {name};"):
            sl.measure(objective, [title])
    with pytest.raises(sl.SpiritlevelError, match="no row 'gradient norm': did you mean grad"):
        cheap["gradient norm"]


def test_an_interruption_keeps_the_rows_that_are_done(
    objective: sl.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: Any) -> Estimate:
        raise KeyboardInterrupt

    entry = sl.MEASURES["hessian_trace"]
    monkeypatch.setitem(sl.MEASURES, "hessian_trace", replace(entry, function=stop))
    table = sl.measure(objective)
    assert [row.name for row in table][-1] == "lambda_min"
    assert table.provenance["interrupted"] == "5 of 9 measures were done"
    assert "interrupted: 5 of 9 measures were done" in str(table)


def test_an_interruption_inside_a_row_ends_the_table(
    objective: sl.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while noise is drawn: that row keeps its draws, and no other is begun."""
    plain, drawn = sl.Objective.value, []

    def value(self: sl.Objective) -> float:
        drawn.append(self)
        if len(drawn) == 12:
            signal.raise_signal(signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(sl.Objective, "value", value)
    table = sl.measure(objective, ["expected_sharpness", "gradient_norm"], rtol=1e-9)
    assert [row.name for row in table] == ["expected_sharpness"]
    assert table["expected_sharpness"].status is Status.INTERRUPTED
    assert table.provenance["interrupted"] == "1 of 2 measures were done"


def test_what_did_not_converge_stands_out(objective: sl.Objective) -> None:
    table = sl.measure(objective, ["hessian_trace", "hessian_frobenius"], rtol=1e-9, budget=30)
    assert table["hessian_trace"].status is Status.BUDGET
    assert str(table).count("budget spent") == 1
    assert "budget spent: raise budget or rtol (trace, Frobenius norm)" in str(table)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (79.6512, 0.034, "79.651"),
        (1087.3, 47.0, "1087"),
        (0.0062881, 0.0, "0.00628810"),
        (1.2345e8, 1e5, "1.2345e+08"),
        (-0.0015, 0.0014, "-0.0015"),
        (float("inf"), 1.0, "inf"),
        (0.0, 0.0, "0.0"),
    ],
)
def test_values_show_the_digits_that_are_known(value: float, error: float, text: str) -> None:
    assert format_value(value, error) == text


def test_errors_show_two_digits() -> None:
    assert [format_error(e) for e in (0.0341, 47.1, 1.26e-7, 0.0)] == [
        "0.034",
        "47",
        "1.3e-07",
        "0",
    ]
