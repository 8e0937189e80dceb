"""The pages of a table of measures and of a comparison: what they say, and to whom."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path
from typing import Any

import pytest

import conformance
import reports
import spiritlevel as sl
import tables
from reports import page, text
from spiritlevel.base.estimate import format_value
from spiritlevel.results.result import result_from

EVIL = "<script>alert(1)</script>"

SURVIVES = "and it survives rescaling"


def cells(source: str, name: str) -> str:
    found = re.search(rf'<tr role="row" data-name="{name}".*?</tr>', source, flags=re.DOTALL)
    assert found, name
    return text(found[0])


def measured() -> str:
    return page(tables.table(), "Measures of a net")


def compared(data: dict[str, Any] | None = None) -> str:
    return page(data or tables.comparison())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("loss", "loss 0.00628816 D P 0.00"),
        ("hessian_spectral", "spectral norm 2.04829 ± 2.4e-06 P 20 0.50"),
        ("hessian_trace", "trace 9.12 budget spent: raise it ± 0.15 P 20 0.50"),
        ("layer_traces.0", "in 0 3.620 ± 0.065 P shared"),
        ("keskar", "Keskar sharpness ≥ 0.0765000 P 20 0.50"),
    ],
)
def test_a_row_of_measures(name: str, shown: str) -> None:
    assert cells(measured(), re.escape(name)) == shown


def test_measures_stand_below_their_families() -> None:
    source = measured()
    places = [source.index(f">{family}</th>") for family in ("loss", "curvature")]
    assert places == sorted(places)
    assert source.index('data-name="hessian_spectral"') > places[1] > places[0]
    assert "P renumbering hidden units" in source


def test_the_page_of_measures_in_order() -> None:
    seen = text(measured())
    order = [
        "Measures of a net",
        "Close to a minimum: a Newton step lowers the loss by 0%",
        "The measures",
        "how jvp of gradient against finite differences 3e-10 rounding 3e-06",
        "Notes the model holds torch.bfloat16",
        "How to read this",
        "parameters 2,778 examples 1,437 mode eval precision float32 on cpu seed 7 products 50",
    ]
    places = [seen.index(words) for words in order]
    assert places == sorted(places)


def test_a_table_without_curvature_says_less() -> None:
    data = tables.table()
    for key in ("product", "product_check", "product_rounding"):
        del data["provenance"][key]
    data["provenance"]["notes"] = []
    data |= {"rest": None, "rows": data["rows"][:1]}
    seen = text(page(data))
    assert "1 measure." in seen
    assert "The products" not in seen
    assert "Notes" not in seen
    assert "Interrupted" not in seen
    data["provenance"]["interrupted"] = "1 rows were done"
    assert "Interrupted: 1 rows were done" in text(page(data))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "loss",
            f"loss 0.213251 ± 2.5e-07 7.64852 ± 9.0e-06 ✓ large is larger, {SURVIVES}",
        ),
        (
            "hessian_spectral",
            "spectral norm 0.213251 ± 2.5e-07 least 0.1532 to 0.1535 7.64852 ± 9.0e-06 least 5.271 "
            "to 5.283 ✓ large is sharper, and it survives rescaling A twin of small with "
            "identical predictions has 26.0.",
        ),
        (
            "hessian_trace",
            "trace 0.213251 ± 2.5e-07 least 2.000 7.64852 ± 9.0e-06 least 2.000 ≠ large is "
            "sharper only in these coordinates A twin of small with identical predictions has "
            "26.0.",
        ),
        (
            "orbit_trace",
            "least trace on orbit 0.213251 ± 2.5e-07 7.64852 ± 9.0e-06 = equal",
        ),
    ],
)
def test_a_row_of_a_comparison(name: str, shown: str) -> None:
    """Values stand under their own network, whichever is the sharper one."""
    assert cells(compared(), name) == shown


def test_the_matrix_of_a_least_value_is_said_and_how_well_it_is_known() -> None:
    data = tables.comparison()
    data["pairs"][1]["matrix"] = "hessian"
    data["pairs"][2] |= {"matrix": "ggn", "order": 2}
    data["pairs"][3] |= {
        "matrix": "ggn",
        "least": [tables.interval(0.0, 3.0), tables.interval(-1e-9, 2.0)],
    }
    assert "least 0.1532 to 0.1535 of the Hessian" in cells(compared(data), "hessian_spectral")
    second = "least 2.000 of the Gauss-Newton matrix, to second order"
    assert second in cells(compared(data), "hessian_trace")
    assert "least ≤ 3.000 of the Gauss-Newton matrix" in cells(compared(data), "keskar")
    assert "least ≤ 2.000 of the Gauss-Newton matrix" in cells(compared(data), "keskar")


def answered(*answers: tuple[str, str]) -> str:
    """The headline of measures of sharpness with these answers: (answer, the sharper one)."""
    data = tables.comparison()
    other = {"small": "large", "large": "small"}
    data["pairs"] = [
        tables.pair(f"m{i}", f"m{i}", answer, sharper=sharper, other=other[sharper])
        for i, (answer, sharper) in enumerate(answers)
    ]
    data["values"] = tables.values(data["pairs"])
    found = re.search(r"<h1>(.*?)</h1>", compared(data))
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("answers", "headline"),
    [
        (
            [("survives", "large"), ("survives", "large"), ("undecided", "small")],
            "large is sharper than small by 2 of 3 measures, and that survives rescaling.",
        ),
        (
            [("survives", "small")],
            "small is sharper than large by the one measure, and that survives rescaling.",
        ),
        ([("survives", "small"), ("survives", "large")], "The measures disagree on which network"),
        ([("coordinates", "large"), ("equal", "large")], "No difference in sharpness survives"),
        ([("equal", "large")], "small and large are equally sharp."),
        ([("equal", "large"), ("undecided", "large")], "Which network is sharper is undecided."),
        ([], "No sharpness was compared."),
    ],
)
def test_the_headline_is_what_is_known(answers: list[tuple[str, str]], headline: str) -> None:
    assert answered(*answers).startswith(headline)


def test_a_larger_loss_is_no_sharpness() -> None:
    assert "large is sharper than small by 1 of 4 measures" in text(compared())


def test_the_cards_count_every_answer() -> None:
    seen = text(compared())
    assert "Differences that survive 2 of 5" in seen
    assert "Only in these coordinates 1 of 5" in seen
    assert "Equal 1 of 5" in seen
    assert "Undecided 1 of 5" in seen
    data = tables.comparison()
    data["pairs"] = data["pairs"][:2]
    data["values"] = tables.values(data["pairs"])
    seen = text(compared(data))
    assert "Only in these coordinates 0 of 2" in seen
    assert "Undecided" not in seen.split("The measures")[0]


def test_three_networks_have_an_answer_for_each_two() -> None:
    data = tables.three()
    row = cells(compared(data), "orbit_trace")
    last = data["names"][2]
    for two in ("large and small", f"{last} and small", f"{last} and large"):
        assert f"= {two}: equal" in row
    assert "Of 12 comparisons of sharpness, 3 survive rescaling." in text(compared(data))


def test_what_comes_from_outside_is_escaped() -> None:
    table = tables.table()
    table["rows"][0] |= {"title": EVIL, "name": '"><b>'}
    table["provenance"]["notes"] = [EVIL]
    comparison = tables.three()
    comparison["names"][2] = EVIL
    for pair in comparison["pairs"]:
        pair["title"] = EVIL
        pair["sharper"] = EVIL if pair["sharper"].startswith("runs") else pair["sharper"]
    comparison["values"] = tables.values(comparison["pairs"])
    for source in (page(table, EVIL), page(comparison, EVIL), html_of_results()):
        assert "<script>alert" not in source
        assert EVIL in html.unescape(source)
        assert source.count("</script>") <= 1  # the theme
    assert '"><b>' not in page(table)


def html_of_results() -> str:
    """What notebooks show of results whose names come from outside."""
    objective = conformance.objective()
    found = sl.compare({EVIL: objective, "b": objective}, ["loss"])
    return found.to_html() + found._repr_html_()


@pytest.mark.parametrize("source", [measured(), compared()])
def test_the_files_need_nothing_else(source: str) -> None:
    assert "http://" not in source
    assert "https://" not in source
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(|\bimport\b.*from", source)
    assert "default-src 'none'" in source


# From real results ----------------------------------------------------------------------------


def test_reports_of_real_results_show_their_numbers(tmp_path: Path) -> None:
    objective = conformance.objective()
    table = sl.measure(objective, ["loss", "lambda_max", "layer_traces"], compile=False)
    page = sl.write_report(table, tmp_path / "table.html").read_text(encoding="utf-8")
    for row in table:
        title, value, *_ = row.cells()
        assert cells(page, re.escape(row.name)).startswith(f"{title.strip()} {value}")
    assert table.verdict in html.unescape(page)
    twin = sl.sharpen(objective, target=1e3).objective
    found = sl.compare({"net": objective, "twin": twin}, ["loss", "hessian_spectral"])
    page = sl.write_report(found, tmp_path / "c.html", title="Mine").read_text(encoding="utf-8")
    pair = found["hessian_spectral"]
    assert pair.text in cells(page, "hessian_spectral")
    for network in ("net", "twin"):
        value = found.values["hessian_spectral"][network]
        shown = format_value(value.value, value.error)
        assert shown in cells(page, "hessian_spectral")
    assert "<title>Mine</title>" in page
    assert pair.text in html.unescape(found.to_html())


def test_other_things_have_no_report(tmp_path: Path) -> None:
    with pytest.raises(sl.SpiritlevelError, match="give a result, not a dict: what audit, measure"):
        sl.write_report({}, tmp_path / "r.html")  # type: ignore[arg-type]


def test_tables_in_notebooks_say_what_did_not_converge() -> None:
    table = sl.measure(conformance.objective(), ["lambda_max"], budget=1, tol=0, compile=False)
    assert not table["lambda_max"].converged
    assert html.escape(table["lambda_max"].remedy) in table.to_html()
    plain = sl.measure(conformance.objective(), ["loss"]).to_html()
    assert plain.count("<tr>") == 2
    assert "<p><br>" not in plain


def test_a_table_as_csv(tmp_path: Path) -> None:
    table = sl.measure(conformance.objective(), ["loss", "lambda_max"], compile=False)
    assert (tmp_path / "t.csv").write_text(table.to_csv()) > 0
    rows = list(csv.DictReader(io.StringIO(table.to_csv(tmp_path / "t.csv"))))
    assert (tmp_path / "t.csv").read_text() == table.to_csv()
    assert [row["name"] for row in rows] == ["loss", "lambda_max"]
    assert float(rows[1]["value"]) == table["lambda_max"].value
    assert float(rows[1]["residual"]) == table["lambda_max"].residual
    assert rows[0]["stderr"] == ""
    assert rows[1]["status"] == "converged"


def test_the_samples_have_the_keys_of_real_data() -> None:
    """Else these tests would test a page that nobody gets."""
    objective = conformance.objective()
    found = sl.compare({"a": objective, "b": objective}, ["loss"]).to_dict()
    sample = result_from(tables.comparison()).to_dict()
    assert set(found) == set(sample)
    assert set(found["pairs"][0]) == set(sample["pairs"][0])
    assert set(found["provenance"]) == set(sample["provenance"])
    table = sl.measure(objective, ["lambda_max"], compile=False).to_dict()
    sample = result_from(tables.table()).to_dict()
    assert set(table["rows"][0]) == set(sample["rows"][0])
    assert set(table["provenance"]) == set(sample["provenance"])
    audit = sl.audit(objective, ["loss"], way=False).to_dict()
    sample = result_from(reports.audit()).to_dict()
    assert set(audit) == set(sample)
    assert set(audit["provenance"]) == set(sample["provenance"])
