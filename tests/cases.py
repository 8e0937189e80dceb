"""The problems that the tests share: every kind of net that the library says it works for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel import Objective
from spiritlevel.base.operator import Operator
from spiritlevel.curvature.engine import Engine

N = 10
SPLITS = ([10], [5, 5], [8, 2], [1] * 10)
DENSE: dict[str, Tensor] = {}  # Hessians by the name of the case


@dataclass(frozen=True)
class Case:
    """A model with data, and its mean loss written down without the library."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: Callable[..., Any] | None
    mean: Callable[[nn.Module, Any], Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.make().double()
        for module in model.modules():  # fresh statistics would hide mistakes
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        return model

    def objective(self, **options: Any) -> Objective:
        return Objective(self.model(), self.data(), self.loss, **{**self.options, **options})

    def dense_hessian(self) -> Tensor:
        """By double backward over the plain loss of the whole data set; made once."""
        if self.name not in DENSE:
            DENSE[self.name] = self._dense_hessian()
        return DENSE[self.name].clone()

    def _dense_hessian(self) -> Tensor:
        model, data = self.model(), self.data()
        model.train(self.options.get("mode") == "train")
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        shapes = [model.get_parameter(name).shape for name in names]
        point = torch.cat([model.get_parameter(name).detach().reshape(-1) for name in names])

        def loss(vector: Tensor) -> Tensor:
            pieces = vector.split([shape.numel() for shape in shapes])
            params = {
                f"model.{n}": p.view(s) for n, p, s in zip(names, pieces, shapes, strict=True)
            }
            return torch.func.functional_call(Holder(model), params, (self.mean, data))

        with sdpa_kernel(SDPBackend.MATH):
            return torch.autograd.functional.hessian(loss, point)  # type: ignore[return-value]


class Holder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, mean: Callable[[nn.Module, Any], Tensor], data: Any) -> Tensor:
        return mean(self.model, data)


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape: int, classes: int = 3, seed: int = 2) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def splits(data: tuple[Tensor, ...] | dict[str, Tensor], sizes: list[int]) -> Iterator[Any]:
    """The same examples in batches of the given sizes."""
    if isinstance(data, dict):
        columns = [tensor.split(sizes) for tensor in data.values()]
        for row in zip(*columns, strict=True):
            yield dict(zip(data, row, strict=True))
    else:
        yield from zip(*(tensor.split(sizes) for tensor in data), strict=True)


class First(nn.Module):
    """A recurrent net or an encoder with a head on the last step."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        return self.head((out[0] if isinstance(out, tuple) else out)[:, -1])


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def normed(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3))


def embedded() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=7,
        n_positions=6,
        n_embd=4,
        n_inner=5,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=7,
        hidden_size=4,
        intermediate_size=3,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def tokens(n: int = 4, length: int = 5) -> dict[str, Tensor]:
    """Text with a different number of counted labels in every row."""
    ids = labels(n, length, classes=7)
    target = ids.clone()
    for i in range(n):
        target[i, : i + 1] = -100
    return {"input_ids": ids, "labels": target}


def mean_over_tokens(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.reshape(-1, 7), batch["labels"][:, 1:].reshape(-1))


def cross_entropy(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(data[0]), data[1])


def _classifier(name: str, make: Callable[[], nn.Module], *shape: int, **options: Any) -> Case:
    def data() -> tuple[Tensor, Tensor]:
        return randn(N, *shape), labels(N)

    return Case(name, make, data, F.cross_entropy, cross_entropy, options)


CASES = [
    _classifier("mlp", mlp, 4),
    _classifier("relu mlp", lambda: mlp(nn.ReLU), 4),
    _classifier("cnn with BatchNorm", cnn, 1, 6, 6),
    _classifier("cnn with BatchNorm in train mode", cnn, 1, 6, 6, mode="train"),
    _classifier("LayerNorm", lambda: normed(nn.LayerNorm(6)), 4),
    _classifier("RMSNorm", lambda: normed(nn.RMSNorm(6)), 4),
    _classifier("GroupNorm", lambda: normed(nn.GroupNorm(2, 6)), 4),
    Case(
        "embedding",
        embedded,
        lambda: (labels(N, 3, classes=5, seed=3), labels(N)),
        F.cross_entropy,
        cross_entropy,
    ),
    _classifier("LSTM", lambda: First(nn.LSTM(2, 3, batch_first=True), 3), 4, 2),
    _classifier("GRU", lambda: First(nn.GRU(2, 3, batch_first=True), 3), 4, 2),
    _classifier(
        "TransformerEncoderLayer",
        lambda: First(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), 4),
        3,
        4,
    ),
    Case("GPT-2", gpt2, tokens, None, mean_over_tokens),
    Case("Llama", llama, tokens, None, mean_over_tokens),
    Case(
        "mean squared error",
        mlp,
        lambda: (randn(N, 4), randn(N, 3, seed=4)),
        F.mse_loss,
        lambda model, data: F.mse_loss(model(data[0]), data[1]),
    ),
]
BY_NAME = {case.name: case for case in CASES}
# Llama's norms round to float32 inside, so that float64 ends near 1e-7.
TOLERANCE = {"Llama": 2e-5}


@functools.cache
def small_net(activation: type[nn.Module] = nn.ReLU) -> Objective:
    """4-6-5-3 on points of three clouds, trained near a minimum."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = torch.arange(90) % 3
        x = torch.randn(90, 4) + 1.2 * F.one_hot(y, 4)
        net = nn.Sequential(
            *(nn.Linear(4, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 3))
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(400):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    return Objective(net, (x, y), F.cross_entropy, dtype=torch.float64)


def engine_of(operator: Operator) -> Engine:
    """What sums its products over the batches."""
    found = operator.matvec.__self__  # type: ignore[attr-defined]
    assert isinstance(found, Engine)
    return found
