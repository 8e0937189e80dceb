"""kill -9 at random moments of a training: what comes out is what comes out without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import killing

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")


@pytest.fixture(scope="module")
def courses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, killing.__file__, tmp_path_factory.mktemp("killed")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", killing.OPTIMIZERS)
def test_a_killed_training_ends_bit_for_bit_where_it_would_have(
    kind: str, courses: dict[str, Any]
) -> None:
    found, steps = courses[kind], killing.STEPS
    assert len(found["steps"]) == killing.KILLS
    assert found["steps"] == sorted(set(found["steps"]))  # every run made some steps
    assert found["steps"][-1] < killing.EPOCHS * steps
    assert found["differ"] == []
    killed, whole = found["losses"]
    assert killed == whole
    assert [epoch["step"] for epoch in whole] == [steps, 2 * steps, 3 * steps]
