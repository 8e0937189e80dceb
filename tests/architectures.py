"""Architectures whose symmetries are counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import labels, randn
from spiritlevel import Objective


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) ** 2


def mlp(activation: Callable[[], nn.Module]) -> nn.Module:
    a = activation
    return nn.Sequential(nn.Linear(64, 12), a(), nn.Linear(12, 10), a(), nn.Linear(10, 10))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width in (8, 8, 0, 16, 16, 0, 32):
        if width:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        else:
            layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(32, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 10)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


class Block(nn.Module):
    """Two convolutions beside a shortcut: "A" pads with zeros, "B" is a 1x1 convolution."""

    def __init__(self, inside: int, width: int, stride: int, option: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.extra, self.option = stride, width - inside, option
        if self.extra and option == "B":
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.extra and self.option == "B":
            x = self.shortcut(x)
        elif self.extra:
            half = self.extra // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], blocks: int, option: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        inside, stages = widths[0], []
        for number, width in enumerate(widths):
            for k in range(blocks):
                stages.append(Block(inside, width, 2 if number and not k else 1, option))
                inside = width
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(inside, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.linear(x.mean((2, 3)))


class DenseNet(nn.Module):
    """Two blocks of three layers: BN-ReLU-conv, concatenated; growth 4 from 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.first = nn.ModuleList(self._layer(8 + 4 * k, 4) for k in range(3))
        self.between = self._layer(20, 10)
        self.second = nn.ModuleList(self._layer(10 + 4 * k, 4) for k in range(3))
        self.norm = nn.BatchNorm2d(22)
        self.fc = nn.Linear(22, 10)

    @staticmethod
    def _layer(inside: int, width: int) -> nn.Sequential:
        conv = nn.Conv2d(inside, width, 3, padding=1, bias=False)
        return nn.Sequential(nn.BatchNorm2d(inside), nn.ReLU(), conv)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.first:
            x = torch.cat([x, layer(x)], dim=1)
        x = F.avg_pool2d(self.between(x), 2)
        for layer in self.second:
            x = torch.cat([x, layer(x)], dim=1)
        return self.fc(F.relu(self.norm(x)).mean((2, 3)))


class Attention(nn.Module):
    """Fused projections and torch's attention, or separate ones and attention by hand."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        if self.fused:
            shape = (b, n, 3, self.heads, d // self.heads)
            q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            q, k, v = (
                layer(x).view(b, n, self.heads, -1).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            scores = q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5
            out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


class ViT(nn.Module):
    def __init__(self, width: int, heads: int, depth: int, fused: bool) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, 5, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "attention": Attention(width, heads, fused),
                    "norm2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(
                        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
                    ),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            x = x + block["attention"](block["norm1"](x))  # type: ignore[index, operator]
            x = x + block["mlp"](block["norm2"](x))  # type: ignore[index, operator]
        return self.head(self.norm(x)[:, 0])


class Logits(nn.Module):
    """A language model as a function of its tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def gpt2(attention: str = "sdpa") -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=16, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = attention
    return Logits(GPT2LMHeadModel(config))


def llama(tied: bool = False, attention: str = "sdpa") -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, vocab_size=20, tie_word_embeddings=tied,
    )  # fmt: skip
    config._attn_implementation = attention
    return Logits(LlamaForCausalLM(config))


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and statistic generic, so that no symmetry is there by accident."""
    draws = torch.Generator().manual_seed(seed)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in state.items():
            if not tensor.is_floating_point() or name.endswith("inv_freq"):
                continue
            noise = torch.randn(tensor.shape, generator=draws)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif isinstance(tensor, nn.Parameter) or name.endswith("running_mean"):
                fan = tensor[0].numel() if tensor.ndim > 1 else 4
                tensor.copy_(noise / fan**0.5)
    return model.double().eval()


def objective_of(model: nn.Module, *shape: int, classes: int = 10, n: int = 6) -> Objective:
    data = (randn(n, *shape), labels(n, classes=classes))
    return Objective(randomized(model), data, F.cross_entropy)


@dataclass(frozen=True)
class Counted:
    """A model, what it takes, and the dimension of its group by hand."""

    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], Tensor]
    dim: int
    why: str
    options: dict[str, Any] = field(default_factory=dict)


def image(side: int, channels: int = 3) -> Callable[[], Tensor]:
    return lambda: randn(2, channels, side, side)


def tokens() -> Tensor:
    return torch.arange(12).reshape(2, 6) * 7 % 20


FREE = {"statistics": "free"}
ROUGH = {"eps": "approximate"}
_MLP = [
    ("ReLU", nn.ReLU, 22, "12 + 10 hidden units"),
    ("LeakyReLU", nn.LeakyReLU, 22, "12 + 10"),
    ("PReLU", nn.PReLU, 22, "12 + 10, slopes stay"),
    ("squared ReLU", Square, 22, "12 + 10, of degree 2"),
    ("no activation", nn.Identity, 22, "12 + 10"),
    ("ReLU6", nn.ReLU6, 0, "not homogeneous"),
    ("GELU", nn.GELU, 0, "not homogeneous"),
    ("SiLU", nn.SiLU, 0, "not homogeneous"),
    ("tanh", nn.Tanh, 0, "not homogeneous"),
    ("sigmoid", nn.Sigmoid, 0, "not homogeneous"),
    ("ELU", nn.ELU, 0, "not homogeneous"),
    ("Softplus", nn.Softplus, 0, "not homogeneous"),
]
COUNTED = [
    *(
        Counted(f"mlp, {name}", lambda a=a: mlp(a), lambda: randn(2, 64), dim, why)
        for name, a, dim, why in _MLP
    ),
    Counted("LeNet", lenet, image(28, 1), 6 + 16 + 120 + 84, "one for each unit"),
    Counted("VGG", vgg, image(16), 8 + 8 + 16 + 16 + 32 + 24, "one for each unit"),
    *(
        Counted(f"ResNet-20 A{name}", lambda: ResNet((16, 32, 64), 3, "A"), image(32), dim, why, kw)
        for name, kw, dim, why in (
            ("", {}, 400, "stream 16 + 16 + 32, gains 3 (16 + 32 + 64)"),
            (", free", FREE, 400 + 688, "and 688 channels before a norm"),
            (", free, eps", FREE | ROUGH, 400 + 2 * 688, "and gain against variance"),
        )
    ),
    *(
        Counted(f"ResNet B{name}", lambda: ResNet((4, 8), 1, "B"), image(8), dim, why, kw)
        for name, kw, dim, why in (
            ("", {}, 4 + 8 + 4 + 8, "a stream for each stage, gains"),
            (", free", FREE, 24 + 36, "4 + (4 + 4) + (8 + 8 + 8) channels before a norm"),
            (", free, eps", FREE | ROUGH, 24 + 2 * 36, "and gain against variance"),
        )
    ),
    *(
        Counted(f"DenseNet{name}", DenseNet, image(8), dim, why, kw)
        for name, kw, dim, why in (
            ("", {}, 120, "8 + 12 + 16 + 20 + 10 + 14 + 18 + 22 gains"),
            (", free", FREE, 120 + 42, "8 + 3 * 4 + 10 + 3 * 4 outputs of convolutions"),
            (", free, eps", FREE | ROUGH, 120 + 42 + 120, "and gain against variance"),
        )
    ),
    *(
        Counted(
            f"encoder layer, {'pre' if first else 'post'}-LN{', eps' if kw else ''}",
            lambda f=first: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=f),
            lambda: randn(2, 5, 16),
            dim,
            why,
            kw,
        )
        for first, kw, dim, why in (
            (True, {}, 112, "gains 2 * 16, QK 16, VO 16, dead key bias 16, hidden 32"),
            (True, ROUGH, 112, "the same: input and output pin the stream"),
            (False, {}, 80, "QK 16, VO 16, dead key bias 16, hidden 32"),
            (False, ROUGH, 81, "and the scale between the norms"),
        )
    ),
    *(
        Counted(
            f"ViT, {'fused' if fused else 'by hand'}{', eps' if kw else ''}",
            lambda f=fused: ViT(8, 2, 2, f),
            image(8),
            2 * 5 * 8 + 8 + len(kw),
            "in each block two gains, QK, VO, dead key bias; the last gain; the stream",
            kw,
        )
        for fused in (True, False)
        for kw in ({}, ROUGH)
    ),
    *(
        Counted(f"GPT-2, {attention}", lambda a=attention: gpt2(a), tokens, dim, why, kw)
        for attention in ("sdpa", "eager")
        for kw, dim, why in (
            ({}, 160, "2 (gains 2 * 16, QK 16, VO 16, dead key bias 16)"),
            (ROUGH, 161, "and the stream"),
        )
    ),
    *(
        Counted(
            f"Llama, {attention}, {'tied' if tied else 'untied'}",
            lambda a=attention, t=tied: llama(t, a),
            tokens,
            dim + len(kw),
            "2 (gains 2 * 16, QK pairs 2 * 4 / 2, VO 2 * 4, up-down 32), last gain; stream",
            kw,
        )
        for attention in ("sdpa", "eager")
        for tied, dim in ((False, 168), (True, 152))
        for kw in ({}, ROUGH)
    ),
]
