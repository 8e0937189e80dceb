"""One thread for each worker, long files first, and a user's own module for the command to find."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# a shell starts what runs in its background deaf to Ctrl-C, and tests press it
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two workers with two threads each would fight for two cores
# Laws are right or wrong, not fast or slow; new examples are for whoever sits at the machine.
settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("house")

# The longest files, longest first: two workers that take them last wait for each other.
FIRST = (
    *("test_kills", "test_conformance", "test_premise_suite", "test_conformance_stacked"),
    *("test_conformance_attention", "test_conformance_recurrent", "test_docs", "test_untouched"),
    *("test_orbit", "test_worst", "test_planes"),
    *("test_symmetry_random", "test_theorems", "test_golden", "test_curvature", "test_sweep"),
    *("test_symmetry", "test_comparing_truth", "test_cli_audit", "test_audit_truth", "test_audit"),
    *("test_comparing", "test_alignment", "test_forecast", "test_degree", "test_claims"),
    *("test_spectral_truth", "test_reparam", "test_diagonals", "test_cli", "test_supremum"),
    *("test_entropy", "test_attention", "test_metric", "test_stability", "test_cli_claims"),
    *("test_symmetry_options", "test_volumes", "test_landscape_curvature", "test_norms"),
    *("test_training_claims", "test_spectral", "test_results", "test_volume", "test_enclosure"),
    *("test_additions", "test_fit_kill", "test_sam_scaling", "test_watch", "test_discrete"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file stays."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


def pytest_collection_finish() -> None:
    """What was imported stays: to look for rubbish in it again and again is a tenth of all work."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


MINE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import spiritlevel as sl

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))

def noisy():
    return torch.nn.Sequential(net(), torch.nn.Dropout(0.5))

def data():
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 4, generator=g), torch.randint(0, 3, (20,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=8)

def objective():
    return sl.Objective(net(), data(), torch.nn.functional.cross_entropy)

def broken():
    raise RuntimeError("this factory does not work")

def nan():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    return model

def empty():
    return []

def wrong_shape():
    return torch.randn(20, 7), torch.randint(0, 3, (20,))

number = 3

def my_loss(model, batch):
    return model(batch[0]).square().sum(), len(batch[0])
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path
