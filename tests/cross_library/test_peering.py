"""A peer that is missing is never passed over in silence."""

from __future__ import annotations

import importlib
import sys

import pytest

from peering import peer


def test_a_missing_peer_skips_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    monkeypatch.delenv("PEERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"needs curvlinops of the extra \[peers\]"):
        peer("curvlinops")


def test_a_missing_peer_is_an_error_where_peers_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    monkeypatch.setenv("PEERS", "required")
    with pytest.raises(ImportError, match="curvlinops"):
        peer("curvlinops")
    assert peer("math") is importlib.import_module("math")
