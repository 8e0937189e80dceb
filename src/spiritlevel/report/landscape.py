"""A surface in words: every text and number that its page shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spiritlevel.base.spoken import share
from spiritlevel.report.pictures import (
    SAME,
    Words,
    at,
    change_key,
    change_words,
    common,
    far,
    holes,
    refuted,
    said,
    short,
)
from spiritlevel.results.landscape import Sheet, Surface
from spiritlevel.results.places import ends
from spiritlevel.results.scales import scale

ALIKE = 1e-3  # of the range of values: sheets that differ by less look alike
QUANTITIES = {"loss": "loss", "convexity": "|λmin / λmax|"}


def surface_words(surface: Surface) -> Words:
    """What the template shows of a surface, as texts, and the numbers that are drawn."""
    return {
        **common(surface.provenance),
        "headline": surface_headline(surface),
        "keys": _surface_keys(surface),
        "word": QUANTITIES[surface.quantity],
        "quantity": surface.quantity,
        "rows": [_sheet_row(surface, sheet) for sheet in surface.sheets],
        "labels": [sheet.name for sheet in surface.sheets],
        "directions": [_direction(d) for d in surface.directions],
        "path": _path(surface),
        "drawn": min(map(len, surface.axes)) > 1
        and any(_ends(s)[0] is not None for s in surface.sheets),
        "broken": any(v is not None and not math.isfinite(v) for v in _all(surface)),
        "blank": any(v is None for v in _all(surface)),
        "estimated": any(sheet.errors is not None for sheet in surface.sheets),
        "data": _surface_data(surface),
    }


def surface_headline(surface: Surface) -> str:
    """What a reader should take away, in one or two sentences."""
    reached = {s.name: largest for s in surface.sheets if (largest := _ends(s)[1]) is not None}
    if not reached:
        return "No finite value was found over this plane."
    first, *others = surface.sheets
    if not others:
        return _alone(surface, first) + holes(_all(surface))
    apart = refuted([sheet.certificate for sheet in others])
    if apart is not None:
        return f"These points are not one network: their predictions differ by {apart}."
    same = SAME if all(sheet.certificate for sheet in others) else "Several points"
    if surface.quantity == "convexity":
        words = "|λmin / λmax| over this plane reaches"
    else:
        words = "losses over this plane reach"
    if _alike(surface):
        landscape = "landscape" if surface.quantity == "loss" else "ratios"
        return f"{same}, and over this plane the same {landscape}.{holes(_all(surface))}"
    missing = next((sheet.name for sheet in surface.sheets if sheet.name not in reached), None)
    if missing is not None:
        return f"{same}: no value is finite over the plane {at(missing)}."
    home = reached[first.name]
    other = max((s.name for s in others), key=lambda name: far(reached[name], home))
    return (
        f"{same}: {words} {said(home)} {at(first.name)} and "
        f"{said(reached[other])} {at(other)}.{holes(_all(surface))}"
    )


def _alone(surface: Surface, sheet: Sheet) -> str:
    least, largest = _ends(sheet)
    assert least is not None
    assert largest is not None
    centre = surface.centre(sheet.name)
    if surface.quantity == "convexity":
        ratio = f"The least eigenvalue is at most {said(largest)} of the largest in size"
        middle = "" if centre is None else f", and {said(centre)} at the centre"
        return f"{ratio} over this plane{middle}."
    if centre is None or not math.isfinite(centre):
        return f"Over this plane the loss lies between {said(least)} and {said(largest)}."
    lower = f", and is least, {said(least)}, elsewhere" if least < centre else ""
    return (
        f"From {said(centre)} at the centre, the loss reaches {said(largest)} over this plane"
        f"{lower}."
    )


def _alike(surface: Surface) -> bool:
    """If no value differs between the sheets by more than could be seen."""
    least, largest = ends(_all(surface))
    if least is None or largest is None:
        return False
    seen = ALIKE * (largest - least)
    flat = [[v for row in sheet.values for v in row] for sheet in surface.sheets]
    return all(_near(place, seen) for place in zip(*flat, strict=True))


def _near(values: Sequence[float | None], seen: float) -> bool:
    if any(v is None or not math.isfinite(v) for v in values):
        return all(v is None for v in values) or all(
            v is not None and not math.isfinite(v) for v in values
        )
    least, largest = ends(values)
    assert least is not None
    assert largest is not None
    return largest - least <= seen


def _all(surface: Surface) -> list[float | None]:
    return [v for sheet in surface.sheets for row in sheet.values for v in row]


def _ends(sheet: Sheet) -> tuple[float | None, float | None]:
    return ends([v for row in sheet.values for v in row])


def _surface_keys(surface: Surface) -> list[Words]:
    """The numbers of the headline, large."""
    what = "Largest " + QUANTITIES[surface.quantity]
    keys = change_key(sheet.certificate for sheet in surface.sheets)
    if len(surface.sheets) == 1:
        return keys
    known = [(s, largest) for s in surface.sheets if (largest := _ends(s)[1]) is not None]
    shown = (
        [known[0], max(known[1:], key=lambda pair: far(pair[1], known[0][1]))] if known[1:] else []
    )
    for sheet, largest in shown:
        centre = surface.centre(sheet.name)
        note = "" if centre is None else f"{said(centre)} at the centre"
        kind = "plain" if sheet is surface.sheets[0] else "moves"
        keys.append(
            {"label": f"{what}, {sheet.name}", "number": said(largest), "note": note, "kind": kind}
        )
    return keys


def _sheet_row(surface: Surface, sheet: Sheet) -> Words:
    values = [v for row in sheet.values for v in row]
    done = [v for v in values if v is not None]
    least, largest = ends(values)
    finite = sum(math.isfinite(v) for v in done)
    return {
        "name": sheet.name,
        "least": said(least),
        "centre": said(surface.centre(sheet.name)),
        "largest": said(largest),
        "finite": f"{finite:,} of {len(values):,}",
        "change": change_words(sheet.certificate),
    }


def _sentence(surface: Surface, index: int) -> str:
    """What the slider says at a sheet."""
    sheet, count = surface.sheets[index], len(surface.sheets)
    least, largest = _ends(sheet)
    texts = [f"Point {index + 1} of {count}, {sheet.name}."] if count > 1 else []
    what = "Losses" if surface.quantity == "loss" else "Ratios"
    if least is None or largest is None:
        texts.append("No value is finite.")
    else:
        texts.append(f"{what} from {said(least)} to {said(largest)}.")
    told = change_words(sheet.certificate)
    if told["number"]:
        texts.append(f"Largest change of any prediction: {told['number']}, {told['on']}.")
    elif count > 1 and index == 0:
        texts.append("The predictions of the other points are compared with those of this one.")
    return " ".join(texts)


def _surface_data(surface: Surface) -> Words:
    """What is drawn, each number to six digits."""
    values = _all(surface)
    default, log = scale(values), scale(values, log=True)
    linear = scale(values, log=False)
    return {
        "x": surface.x,
        "y": surface.y,
        "names": [direction.name for direction in surface.directions],
        "word": QUANTITIES[surface.quantity],
        "first": "log" if default is not None and default.log else "linear",
        "scales": {"log": log and asdict(log), "linear": linear and asdict(linear)},
        "path": [asdict(step) for step in surface.path],
        "sheets": [
            {
                "name": sheet.name,
                "values": short(sheet.values),
                "accuracies": None if sheet.accuracies is None else short(sheet.accuracies),
                "words": _sentence(surface, index),
                "change": change_words(sheet.certificate)["number"],
            }
            for index, sheet in enumerate(surface.sheets)
        ],
    }


def _direction(direction: Any) -> Words:
    return {"name": direction.name, "norm": f"{direction.norm:.3g}"}


def _path(surface: Surface) -> Words | None:
    if not surface.path:
        return None
    first, last = surface.path[0], surface.path[-1]
    off = max(step.off for step in surface.path)
    within = ""
    if surface.explained is not None:
        one, two = surface.explained
        within = f"{share(one + two)} of its variance lies in the plane ({one:.0%} and {two:.0%})"
    return {
        "steps": f"{len(surface.path):,}",
        "first": first.name,
        "last": last.name,
        "off": f"{off:.3g}",
        "within": within,
    }
