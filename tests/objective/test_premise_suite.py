"""Every certificate, bound and verdict of random small networks, confronted with brute force."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from premises.case import Case
from premises.draws import cases
from premises.found import FOUND
from premises.nets import ARCHITECTURES
from premises.verdicts import confront

LONG = os.environ.get("SPIRITLEVEL_LONG") == "1"
EACH = 120 if LONG else 6  # of every architecture: more than 2,000, or 100, in all


@pytest.mark.parametrize("architecture", ARCHITECTURES)
# torch on its own second derivatives of weight_norm
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_what_is_promised_holds(architecture: str) -> None:
    """The same cases every time; one that fails is printed and can be built again."""

    @seed(sorted(ARCHITECTURES).index(architecture))
    @settings(
        max_examples=EACH,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases(architecture))
    def promised(case: Case) -> None:
        confront(case)

    promised()


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_what_was_wrong_once_holds(name: str) -> None:
    confront(FOUND[name])
