"""Every entry of the registry through the same checks on a network with attention."""

from __future__ import annotations

import pytest

import conformance
import spiritlevel as sl


@pytest.mark.parametrize("net", conformance.ATTENTION)
@pytest.mark.parametrize("name", sorted(sl.MEASURES))
def test_conforms(name: str, net: str) -> None:
    conformance.conforms(name, net)
