"""The page of an audit: what it says, and that nothing in it can break out of it."""

from __future__ import annotations

import html
import json
import re

import pytest

import reports
from reports import page, text
from spiritlevel.report import audit as words
from spiritlevel.results.verdicts import Outcome


def cells(source: str, name: str) -> str:
    """The row of a measure, as it is read."""
    found = re.search(rf'<tr role="row" data-name="{name}">.*?</tr>', source, flags=re.DOTALL)
    assert found, name
    return text(found[0])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("loss", "loss 0.00628816 – – ✓ invariant"),
        (
            "hessian_spectral",
            "spectral norm 2.04829 ± 2.4e-06 1.3625 ■ proved, ≥ 1.3623, of the Hessian 3.103e6 "
            "≠ moved x 1.5e6 on purpose",
        ),
        (
            "hessian_frobenius",
            "Frobenius norm 2.9552 ± 0.0066 budget spent: raise the budget ≤ 2.2905 □ found, of "
            "the Hessian 4.309e6 ≠ moved x 1.5e6 on purpose",
        ),
        ("gradient_norm", "gradient norm 0.00641230 – – ○ did not move here"),
        ("fisher_rao", "Fisher-Rao norm 0.886000 – – ✗ declared invariant but moved: a bug"),
    ],
)
def test_a_row_shows_value_error_bound_and_verdict(name: str, shown: str) -> None:
    assert cells(page(reports.audit()), name) == shown


def test_the_verdict_comes_first_with_its_numbers() -> None:
    data = reports.audit(way=reports.way())
    del data["rows"][-1]  # the broken promise would be the headline
    seen = text(page(data))
    order = [
        "Audit of Net",
        "Sharpness (spectral norm of the Hessian): 2.05 as trained, 1.36 when 48 rescalings are",
        "! Not at rest: a Newton step lowers the loss by 54%",
        "Largest change of any prediction 7e-08 of the largest prediction, on 1,437 examples",
        "Spectral norm of the Hessian, as trained 2.05 1.36 with the rescalings taken away",
        "Least spectral norm 1.3625 of the Hessian, proved: nothing on the orbit is below 1.3623",
        "The measures",
        "Along the orbit",
        "The certificate",
        "sharpened ✓ exact 5e-08 3e-06",
        "48 independent rescalings of the parameters change no prediction. hidden 48",
        "gelu in act 0.weight, 1.weight, 2.weight, 3.weight, 4.weight, 5.weight and 2 more",
        "How to read this",
        "seed 7",
        "products 512 seconds 8.2 spiritlevel 0.1.0 torch 2.13.0 python 3.11.7",
    ]
    assert [words for words in order if words not in seen] == []
    places = [seen.index(words) for words in order]
    assert places == sorted(places)


def test_a_bound_is_rounded_down_and_never_up() -> None:
    data = reports.audit()
    for bound, shown in [(1.99999, "1.9999"), (-1.23451, "-1.2346"), (3103999.0, "3.1039e6")]:
        data["rows"][1]["infimum"]["lower_bound"] = bound
        assert f"≥ {shown}, of the Hessian" in cells(page(data), "hessian_spectral")


def test_infinite_factors_and_zeros() -> None:
    data = reports.audit()
    data["rows"][1]["values"]["sharpened"]["value"] = "Infinity"
    data["rows"][1] |= {"infimum": reports.infimum(0.0, 0.0)}
    seen = text(page(data))
    assert "∞" in cells(page(data), "hessian_spectral")
    assert "Least spectral norm 0 of the Hessian, proved: nothing on the orbit is below 0" in seen


def test_what_comes_from_outside_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    data, way = reports.audit(), reports.way()
    data["rows"][0] |= {"title": f"loss {evil}", "name": '"><b>', "family": evil}
    data["provenance"] |= {"notes": [f"note {evil}"], "refused": {evil: evil}}
    data["group"]["blocked"][0]["operation"] = evil
    data["certificates"][evil] = reports.certificate(1e-9)
    way["outputs"] = [evil, "</script>"]
    source = page({**data, "way": way}, evil)
    assert "<script>alert" not in source
    assert source.count("</script>") == 3  # the theme, the data, the figure
    assert f"note {evil}" in html.unescape(source)
    data = re.search(r'id="way">(.*?)</script>', source)
    assert data
    assert json.loads(data[1])["outputs"] == [evil, "</script>"]


def test_a_loss_that_overflows_is_still_json() -> None:
    way = reports.way()
    way["stops"][-1]["slice"][0] = "Infinity"
    data = re.search(r'id="way">(.*?)</script>', page(reports.audit(way=way)))
    assert data
    assert json.loads(data[1], parse_constant=pytest.fail)["stops"][-1]["slice"][0] is None


def test_the_file_needs_nothing_else() -> None:
    source = page(reports.audit(way=reports.way()))
    assert "http://" not in source
    assert "https://" not in source
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(|\bimport\b.*from", source)
    assert "default-src 'none'" in source


def test_without_a_way_the_page_says_why_there_is_no_figure() -> None:
    data = reports.audit()
    data["group"] = {"dim": 0, "kinds": {}, "blocked": []}
    data["certificates"] = {}
    data["rows"] = data["rows"][:1]
    data["rows"][0]["values"].pop("sharpened")
    source = page(data)
    seen = text(source)
    assert "this network has no rescaling that keeps its predictions" in seen
    assert "There is one point only" in seen
    assert "No rescaling of the parameters keeps the predictions." in seen
    assert 'id="stop"' not in source
    assert "as trained" not in seen


def test_an_interrupted_audit_and_its_notes_are_told() -> None:
    data = reports.audit()
    assert "Interrupted" not in page(data)
    data["provenance"] |= {"interrupted": "3 of 8 measures were done", "notes": ["not moved: why"]}
    data["provenance"]["refused"] = {"keskar": "too large"}
    seen = text(page(data))
    assert "Interrupted: 3 of 8 measures were done" in seen
    assert "Notes no keskar: too large not moved: why" in seen


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("exact", "the same up to rounding"),
        ("rounding", "the same as far as single precision tells"),
        ("approximate", "what the eps of a norm does"),
        ("refuted", "They are not the same"),
    ],
)
def test_the_weakest_certificate_counts(verdict: str, words: str) -> None:
    data = reports.audit()
    data["certificates"]["sharpened"]["verdict"] = verdict
    assert words in text(page(data))


def test_predictions_that_are_identical_are_called_so() -> None:
    data = reports.audit()
    for certificate in data["certificates"].values():
        certificate |= {"relative": 0.0, "absolute": 0.0}
    assert "Largest change of any prediction 0 identical bit for bit" in text(page(data))


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("too uncertain", "○ undecided: too uncertain"),
        ("changed sign", "≠ changed sign, from 0.00629 to 0.00629"),
        ("below its bound", "✗ below its proved bound at the point here: a bug"),
    ],
)
def test_each_outcome_has_its_sign(outcome: str, words: str) -> None:
    """What is too uncertain is no invariance, whatever was promised."""
    data = reports.audit()
    data["rows"][0]["outcome"] = outcome
    data["rows"][0]["infimum"]["refuted"] = "here"
    assert words in cells(page(data), "loss")


def test_every_outcome_of_an_audit_is_known() -> None:
    assert set(words.KINDS) == set(Outcome)


def test_at_a_minimum_nothing_warns() -> None:
    data = reports.audit()
    data["rest"] = reports.rest(reached=0.00629)
    source = page(data)
    assert '<p class="lead">Close to a minimum: a Newton step lowers the loss by 0%' in source
    assert '<p class="warning">' not in source
