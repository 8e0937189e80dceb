"""Whatever is called, the user's model, random numbers and switches are as they were."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from cases import labels, randn
from spiritlevel import symmetry
from spiritlevel.base.scope import fixed_rng
from spiritlevel.cli import app
from spiritlevel.symmetry.tracing.example import guessed

SIZE = 3
ROUGH: dict[str, Any] = {"rtol": 0.5, "budget": 32}  # what is touched is touched by one product too


class Net(nn.Module):
    """Attention, BatchNorm and dropout, in a mixture of modes and with a frozen part."""

    runs = 0  # of any copy

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        Net.runs += 1
        torch.rand([])  # as nets with layer dropout do, in eval mode too
        return self.head(self.norm(self.encoder(x).mean(1)))


def model() -> Net:
    torch.manual_seed(0)
    net = Net().double()
    net.train()
    net.encoder.eval()
    net.encoder.linear1.train()
    net.encoder.norm1.requires_grad_(False)
    return net


def loader() -> DataLoader[Any]:
    draws = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(randn(7, 3, 4), labels(7)), batch_size=4, generator=draws)


def objective(net: nn.Module, **options: Any) -> sl.Objective:
    return sl.Objective(net, loader(), F.cross_entropy, **options)


def part(net: nn.Module) -> sl.Objective:
    """Of the hidden layer alone, where rescalings are, in one batch: matrices of it are small."""
    data = (randn(3, 3, 4), labels(3))
    return sl.Objective(net, data, F.cross_entropy, params="encoder.linear*")


def switches() -> dict[str, Any]:
    backends = torch.backends
    return {
        "mha": backends.mha.get_fastpath_enabled(),
        "flash": backends.cuda.flash_sdp_enabled(),
        "math": backends.cuda.math_sdp_enabled(),
        "efficient": backends.cuda.mem_efficient_sdp_enabled(),
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "mkldnn": backends.mkldnn.enabled,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
    }


@contextlib.contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    identities = {name: id(tensor) for name, tensor in net.named_parameters()}
    flags = [(m.training, dict(vars(m)).keys()) for m in net.modules()]
    needs = [(p.requires_grad, p.grad is None) for p in net.parameters()]
    before, numpy, python = switches(), np.random.get_state(), random.getstate()  # noqa: NPY002
    rng = torch.get_rng_state()
    try:
        yield
    finally:
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, state[name]), name
        assert {name: id(tensor) for name, tensor in net.named_parameters()} == identities
        assert [(m.training, dict(vars(m)).keys()) for m in net.modules()] == flags
        assert [(p.requires_grad, p.grad is None) for p in net.parameters()] == needs
        assert switches() == before
        assert torch.equal(torch.get_rng_state(), rng)
        assert str(np.random.get_state()) == str(numpy)  # noqa: NPY002
        assert random.getstate() == python


def product(operator: Callable[..., Any], net: nn.Module, *words: Any, **options: Any) -> Tensor:
    found = operator(objective(net), *words, **options)
    return found @ randn(found.size)


def _doubled(o: sl.Objective) -> sl.Objective:
    return o.at(o.vector * 2)


def _moved(o: sl.Objective) -> sl.Objective:
    group = sl.symmetries(o)
    return group.apply(o, group.random(0))


def _in_coordinates(o: sl.Objective) -> Tensor:
    bent = o.reparametrize(sl.coordinates.Power(o.vector + 0.1, 0.5, 0.1))
    return sl.hessian(bent) @ randn(o.size)


def _by_hand(o: sl.Objective) -> Tensor:
    own = sl.Operator(o.size, torch.float64, torch.device("cpu"), sl.ggn(o).matvec)
    return own @ randn(o.size)


def _study(net: nn.Module) -> None:
    """Two networks, in which a training draws and says what it likes."""

    def train(config: Any, seed: int) -> sl.studies.Trained:
        torch.set_default_dtype(torch.float64)
        gap = config["scale"] * float(torch.rand([]) + np.random.rand() + random.random())  # noqa: NPY002
        return sl.studies.Trained(objective(net), {"gap": gap})

    grid = {"scale": [1.0, 2.0]}
    study = sl.studies.Study("small", grid, train, ["parameter_norm"], seeds=2, version="1")
    with tempfile.TemporaryDirectory() as folder, study.run(f"{folder}/small.db") as store:
        assert len({network.numbers["gap"] for network in store.networks(study)}) == 4


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "Objective": objective,
    "Objective, train": lambda m: objective(m, mode="train", seed=0),
    "value": lambda m: objective(m).value(),
    "gradient": lambda m: objective(m).gradient(),
    "per_example_gradients": lambda m: objective(m).per_example_gradients(),
    "predictions": lambda m: objective(m).predictions(),
    "at": lambda m: _doubled(objective(m)).value(),
    "hessian": lambda m: product(sl.hessian, m),
    "hessian, train": lambda m: (
        sl.hessian(objective(m, mode="train", seed=0)) @ randn(objective(m).size)
    ),
    "hessian, differences": lambda m: product(sl.hessian, m, rung="difference of gradients"),
    "ggn": lambda m: product(sl.ggn, m),
    "ggn_diagonal": lambda m: sl.ggn_diagonal(objective(m)),
    "fisher": lambda m: product(sl.fisher, m, "sampled"),
    "output_gradients": lambda m: product(sl.output_gradients, m),
    "restricted": lambda m: sl.restricted(sl.hessian(objective(m)), "head.bias").dense(),
    "scaled": lambda m: product(lambda o: sl.scaled(sl.hessian(o), randn(o.size)), m),
    "from_matrix": lambda m: sl.from_matrix(
        sl.restricted(sl.ggn(objective(m)), "head.bias").dense()
    ).dense(),
    "Operator": lambda m: _by_hand(objective(m)),
    "eigenvalues": lambda m: sl.eigenvalues(sl.hessian(part(m)), 2, tol=0.1),
    "eigenpairs": lambda m: sl.eigenpairs(sl.hessian(part(m)), which="both", tol=0.1),
    "density": lambda m: sl.density(sl.hessian(objective(m)), probes=2, steps=5),
    "negative_eigenvalues": lambda m: sl.negative_eigenvalues(
        sl.hessian(objective(m)), probes=2, steps=5
    ),
    "trace": lambda m: sl.trace(sl.hessian(part(m)), method="hutch++", **ROUGH),
    "diagonal": lambda m: sl.diagonal(sl.hessian(objective(m)), probes=4),
    "frobenius": lambda m: sl.frobenius(sl.hessian(objective(m)), **ROUGH),
    "measure": lambda m: sl.measure(part(m), **ROUGH),
    "estimate": lambda m: sl.estimate(part(m), ["loss", "hessian_trace"], audit=True),
    "symmetries": lambda m: sl.symmetries(objective(m)),
    "symmetries of a module": lambda m: sl.symmetries(m, randn(2, 3, 4)),
    "Group": lambda m: _moved(objective(m)),
    "verify": lambda m: sl.verify(objective(m), objective(m)),
    "Certificate": lambda m: str(sl.verify(objective(m), objective(m))),
    "symmetry": lambda m: symmetry.permutations(part(m)),
    "head_maps": lambda m: symmetry.head_maps(m, randn(2, 3, 4)),
    "sign_flips": lambda m: symmetry.sign_flips(objective(m)),
    "audit": lambda m: sl.audit(part(m), ["hessian_spectral", "fisher_rao"], way=False, **ROUGH),
    "Audit": lambda m: str(sl.audit(part(m), ["loss"], way=False, **ROUGH)),
    "compare": lambda m: sl.compare({"a": part(m), "b": part(m)}, ["hessian_trace"], **ROUGH),
    "Comparison": lambda m: str(sl.compare({"a": objective(m), "b": objective(m)}, ["loss"])),
    "write_report": lambda m: sl.write_report(sl.measure(objective(m), ["loss"]), os.devnull),
    "claims": lambda m: sl.claims(objective(m), ["reparametrization_law", "any_labels"]),
    "coordinates": lambda m: _in_coordinates(objective(m)),
    "inputs": lambda m: sl.coordinates.inputs.input_gradient_norm(objective(m)),
    "witnesses": lambda m: sl.witnesses.slopes.lipschitz(objective(m)),
    "worst_in_ball": lambda m: sl.worst_in_ball(objective(m)),
    "noise and boxes": lambda m: sl.measure(
        objective(m),
        ["expected_sharpness", "keskar", "keskar_subspace", "relative_flatness"],
        **ROUGH,
    ),
    "plane": lambda m: sl.landscape.plane(part(m), "orbit", steps=3, orbit=1),
    "line": lambda m: sl.landscape.line(part(m), "hessian", steps=3, refine=1),
    "interpolate": lambda m: sl.landscape.interpolate(
        objective(m), _doubled(objective(m)), align=True, steps=3
    ),
    "trajectory": lambda m: sl.landscape.trajectory(
        part(m), [randn(part(m).size), randn(part(m).size, seed=2)], steps=3
    ),
    "spectra": lambda m: sl.landscape.spectra(part(m), probes=2, steps=3, top=2),
    "convexity": lambda m: sl.landscape.convexity(part(m), steps=3),
    "watch": lambda m: sl.training.Watch(part(m), ["hessian_trace"], **ROUGH).look(m, step=0),
    "survey": lambda m: sl.bounds.survey(
        objective(m), init=m, only="pac_bayes", epochs=1, draws=2, orbit=True
    ),
    "bits back": lambda m: sl.bounds.bits_back(objective(m), init=m, epochs=1, draws=2, orbit=True),
    "flat box": lambda m: sl.bounds.flat_box(objective(m), init=m, draws=2),
    "stability": lambda m: sl.bounds.stability(objective(m), pairs=2, steps=1),
    "representative": lambda m: sl.orbit.representative(objective(m)),
    "supremum": lambda m: sl.orbit.supremum(part(m), target=1e3),
    "search": lambda m: sl.orbit.search(objective(m), None, lambda o: o.vector.norm()),
    "worst_case": lambda m: sl.orbit.worst_case(part(m)).witness,
    "least Frobenius norm": lambda m: sl.orbit.minimum(part(m), norm="frobenius"),
    "orbit": lambda m: sl.orbit.minimum(objective(m), norm="trace"),
    "orbit, spectral": lambda m: sl.orbit.minimum(part(m), operator="hessian", tol=0.5),
    "sharpen": lambda m: sl.sharpen(objective(m), target=1e3),
    "sharpen_many": lambda m: sl.sharpen_many(part(m), target=1e3),
    "zero_in_ball": lambda m: sl.zero_in_ball(objective(m), 1e-2),
    "studies": _study,
    "default_objective": lambda m: sl.default_objective(),
    "app": lambda m: app(["measure", "--only", "loss"], standalone_mode=False),
}
FAILURES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "NaN": (
        lambda m: sl.Objective(m, (randn(3, 3, 4) * float("nan"), labels(3)), F.cross_entropy),
        "loss is nan",
    ),
    "dropout": (lambda m: objective(m, mode="train"), "differs between two evaluations"),
    "shuffled": (
        lambda m: sl.Objective(m, DataLoader(loader().dataset, shuffle=True), F.cross_entropy),
        "shuffles",
    ),
    "loss that raises": (
        lambda m: sl.Objective(m, loader(), lambda model, batch: batch.nothing),
        "no attribute 'nothing'",
    ),
    "measure": (lambda m: sl.measure(objective(m), ["nothing"]), "unknown measure 'nothing'"),
    "rung": (lambda m: sl.hessian(objective(m), rung="x"), "rung='x' is not known"),
    "restricted": (lambda m: sl.restricted(sl.hessian(objective(m)), "x"), "no parameter matches"),
    "example": (lambda m: sl.symmetries(m, randn(2, 3, 9)), "does not take this example"),
}


TRAINS = ("default_objective", "app")  # a net of their own: once is enough


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode)
        for name in CALLS
        for mode in ("plain", "no_grad", "inference")
        if mode == "plain" or name not in TRAINS
    ],
)
def test_calls_leave_no_trace(name: str, mode: str) -> None:
    """Also under no_grad and inference_mode, where validation hooks live."""
    net, before = model(), Net.runs
    outer = {
        "plain": contextlib.nullcontext,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }
    with outer[mode](), untouched(net):
        CALLS[name](net)
    assert Net.runs > before or name in TRAINS  # a case that leaves the net alone says nothing


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
def test_a_stack_of_networks_leaves_no_trace(mode: Any) -> None:
    with fixed_rng(0):
        models = [nn.Linear(4, SIZE), nn.Linear(4, SIZE).eval()]
        before = [model.weight.detach().clone() for model in models]
    with mode(), untouched(model()):
        data = randn(7, 4), labels(7)
        sl.training.fit_many(models, data, F.cross_entropy, lr=0.1, epochs=2)
    assert [one.training for one in models] == [True, False]
    assert all(p.grad is None and p.requires_grad for one in models for p in one.parameters())
    assert not any(map(torch.equal, (one.weight for one in models), before))


@pytest.mark.parametrize("name", FAILURES)
def test_failures_leave_no_trace(name: str) -> None:
    call, message = FAILURES[name]
    net = model()
    with untouched(net), pytest.raises((sl.SpiritlevelError, AttributeError), match=message):
        call(net)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_bare_modules_of_any_precision_are_copied(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    for example in (None, randn(2, 4).to(dtype)):
        with untouched(net):
            assert sl.symmetries(net, example).dim == 5
            assert [u.size for u in symmetry.permutations(net, example)] == [5]
            assert symmetry.sign_flips(net, example).dim == 0


def test_a_guessed_example_does_not_depend_on_the_global_generator() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        with untouched(net):
            found.append(guessed(net))
    assert found[0].shape == (2, 9)
    assert torch.equal(*found)


def test_every_public_function_is_tried() -> None:
    data = {
        "Estimate",
        "Status",
        "SpiritlevelError",
        "CLAIMS",
        "MEASURES",
        "__version__",
        "register",
        *(
            "Result",
            "Table",
            "Forecast",
            "Claims",
            "Claim",
            "Finding",
            "load",
            "Line",
            "Surface",
            "Spectra",
            "History",
            "Bound",
            "Bounds",
            "Findings",
        ),  # made of plain data
        *("bounds", "landscape", "training"),  # their functions are tried by their own names
    }
    assert set(sl.__all__) - data <= set(CALLS)


def test_the_users_generator_is_given_back() -> None:
    data = loader()
    state = data.generator.get_state()  # type: ignore[union-attr]
    sl.Objective(model(), data, F.cross_entropy)
    assert torch.equal(data.generator.get_state(), state)  # type: ignore[union-attr]


def test_a_device_that_sleeps_is_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would wake up with the seed of the library instead of the user's."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", pytest.fail)
    with fixed_rng(3):
        drawn = torch.rand(2)
    torch.default_generator.manual_seed(3)
    assert torch.equal(drawn, torch.rand(2))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: None)
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with fixed_rng(4):
        assert seeds == [4]


def test_the_guard_itself_sees_a_change() -> None:
    net = model()
    with pytest.raises(AssertionError, match="get_rng_state"), untouched(net):
        torch.rand(1)
    with pytest.raises(AssertionError, match="True"), untouched(net):
        net.eval()
    with pytest.raises(AssertionError, match="running_mean"), untouched(net):
        net.norm.running_mean += 1  # type: ignore[operator]
