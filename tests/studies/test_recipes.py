"""A configuration is a training: the same alone and in a stack, and nothing is left unsaid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.studies import recipes
from spiritlevel.studies.datasets import images, noisy
from spiritlevel.studies.study import Trained

SMALL: dict[str, Any] = {"examples": 200, "width": 8, "depth": 1, "epochs": 40, "batch": 50}


def numbers(found: Any) -> dict[str, float]:
    assert isinstance(found, Trained), found
    return dict(found.numbers)


def test_a_stack_gives_what_each_training_gives() -> None:
    tasks = [
        ({**SMALL, "times": times, "labels": labels, "stop": 0.5}, seed)
        for times, labels, seed in [(0.3, 0.0, 0), (1.0, 0.0, 1), (1.0, 0.1, 0)]
    ]
    together = recipes.train_many(tasks)
    assert len({recipes.together(config) for config, _ in tasks}) == 1
    for found, (config, seed) in zip(together, tasks, strict=True):
        alone = recipes.train(config, seed)
        assert numbers(found) == pytest.approx(numbers(alone), rel=1e-4)
        assert isinstance(found, Trained)
        apart = (found.objective.vector - alone.objective.vector).abs().max()
        assert float(apart) < 1e-4
        starts = zip(found.init.parameters(), alone.init.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in starts)


def test_numbers_are_those_of_the_network() -> None:
    found = recipes.train({**SMALL, "labels": 0.2, "rate": 0.3}, 3)
    known = images("digits")
    y = noisy(known.y[:200], 0.2, 3)
    outputs = found.objective.predictions()
    wrong = float((outputs.argmax(1) != y).float().mean())
    assert found.numbers["train_error"] == pytest.approx(wrong)
    assert found.numbers["train_loss"] == pytest.approx(found.objective.value(), rel=1e-5)
    assert found.numbers["gap"] == found.numbers["test_error"] - found.numbers["train_error"]
    assert found.numbers["rate_over_batch"] == 0.3 / 50
    assert found.numbers["epochs"] == 40
    assert found.history is not None
    assert len(found.history.epochs) == 40


def test_a_loss_that_is_not_reached_is_an_error() -> None:
    config = {**SMALL, "epochs": 2, "stop": 1e-3}
    with pytest.raises(SpiritlevelError, match=r"is 2.* after 2 epochs, not 0.001"):
        recipes.train(config, 0)
    (found,) = recipes.train_many([(config, 0)])
    assert isinstance(found, SpiritlevelError)
    assert "after 2 epochs" in str(found)


def test_training_ends_where_losses_stop_falling() -> None:
    from spiritlevel.results.history import Epoch

    ends = recipes._end(recipes.Recipe(patience=2))
    assert callable(ends)
    losses = [3.0, 2.0, 2.5, 1.9, 1.9, 2.0, 1.8]
    told = [ends(Epoch(i, i, loss, 0.1, 0.0)) for i, loss in enumerate(losses, 1)]
    assert told == [False, False, False, False, False, True, False]


def test_a_batch_is_no_larger_than_the_data() -> None:
    config = {**SMALL, "epochs": 2, "rate": 0.1}
    whole, more = (recipes.train({**config, "batch": batch}, 0) for batch in (0, 5000))
    assert numbers(whole) == numbers(more)
    assert whole.numbers["rate_over_batch"] == 0.1 / 200
    (found,) = recipes.train_many([({**config, "batch": 5000}, 0)])
    assert numbers(found)["rate_over_batch"] == 0.1 / 200


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("depth", [1, 3])
def test_networks_are_as_deep_and_wide_as_they_are_asked_for(
    network: str, norm: str, depth: int
) -> None:
    model = recipes.network(recipes.Recipe(network=network, norm=norm, depth=depth, width=5), 0)
    layers = [m for m in model if isinstance(m, (nn.Linear, nn.Conv2d))]
    norms = [m for m in model if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    norms += [m for m in model if isinstance(m, (nn.LayerNorm, nn.GroupNorm))]
    assert len(layers) == depth + 1
    assert len(norms) == (depth if norm != "none" else 0)
    assert layers[0].weight.shape[0] == 5
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_same_seed_is_the_same_network() -> None:
    state = torch.get_rng_state()
    a, b, c = (recipes.network(recipes.Recipe(), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a[1].weight, b[1].weight)  # type: ignore[arg-type]
    assert not torch.equal(a[1].weight, c[1].weight)  # type: ignore[arg-type]


def test_labels_that_are_drawn() -> None:
    """A tenth of those drawn are right by chance."""
    y = images("digits").y
    assert torch.equal(noisy(y, 0.0, 0), y)
    n = len(y)
    for share in (0.2, 1.0):
        changed = np.mean([float((noisy(y, share, seed) != y).float().mean()) for seed in range(8)])
        error = 4 * (share * 0.09 / n / 8) ** 0.5
        assert changed == pytest.approx(0.9 * share, abs=error)
    assert not torch.equal(noisy(y, 0.5, 0), noisy(y, 0.5, 1))


def test_what_a_recipe_does_not_have_is_refused() -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("the axis='widht' is not known", {"widht": 3}),
        ("width=0: give a whole number", {"width": 0}),
        ("network='rnn' is not known", {"network": "rnn"}),
        ("optimizer='lion' is not known", {"optimizer": "lion"}),
        ("labels=-1", {"labels": -1}),
        ("labels=1.5: give a share", {"labels": 1.5}),
        ("stop=0.5 and patience=3 are two ways to end: give one", {"stop": 0.5, "patience": 3}),
        ("examples is 10000; digits has 1437", {"examples": 10_000}),
    ]
    for match, config in wrong:
        with pytest.raises(SpiritlevelError, match=match):
            recipes.train(config, 0)
    with pytest.raises(SpiritlevelError, match="the axis='rates' is not known"):
        recipes.grid(rates=[1.0])
    assert recipes.grid(width=[1, 2], depth=3) == {"width": [1, 2], "depth": [3]}


def test_data_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPIRITLEVEL_DATA", raising=False)
    with pytest.raises(SpiritlevelError, match=r"needs the file fashion_mnist.npz .*IRITLEVEL_D"):
        images("fashion")
    with pytest.raises(SpiritlevelError, match="data is 'cifar'; there are: digits, fashion"):
        images("cifar")
