"""The numbers of this tree are those that were recorded."""

from __future__ import annotations

import json

import golden


def test_every_number_is_the_recorded_one() -> None:
    """To as many digits as are stable when sums are made in another order."""
    record = json.loads(golden.RECORD.read_text(encoding="utf-8"))
    wrong, met = {}, []
    for name, found in golden.numbers():
        kept, numbers = record[name], golden.finite(found)
        met.append(name)
        assert set(numbers) == set(kept), name
        for key, value in numbers.items():
            known, moves = kept[key]
            if abs(value - known) > 20 * moves + golden.stable(key) * abs(known) + golden.TINY:
                wrong[f"{name}: {key}"] = (value, known)
    assert not wrong
    assert met == list(record)
