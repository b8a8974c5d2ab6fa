"""Every shipped optimizer, trials to run it on, and a stand-in that follows the weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from sweeper.engine.optimizers.optimizer import Optimizer, StepInfo, UpdateHps
from sweeper.registry import build_plugin
from sweeper.scaling.spec import ParamSpec, Role

CONF = Path(__file__).parents[2] / "conf" / "optimizer"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))


def shipped(name: str, **changed: Any) -> Optimizer:
    """The optimizer of a config, with some of its values changed."""
    made: Optimizer = build_plugin(yaml.safe_load((CONF / f"{name}.yaml").read_text()) | changed)
    return made


def spec(role: Role, *shape: int) -> ParamSpec:
    return ParamSpec(
        name="w", role=role, shape=shape, base_shape=shape,
        fan_in=1, fan_out=1, base_fan_in=1, base_fan_out=1,
    )  # fmt: skip


SPECS = (
    spec(Role.EMBEDDING, 5, 4),
    spec(Role.HIDDEN, 6, 4),
    spec(Role.HIDDEN, 3, 7),
    spec(Role.HIDDEN, 3, 2, 4),
    spec(Role.VECTOR, 4),
    spec(Role.READOUT, 3, 6),
    spec(Role.FIXED),
)


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one batched trial trains with; a parameter's lr and eps differ from the next one's."""

    lr: float = 0.1
    eps: float = 1e-8
    weight_decay: float = 0.0
    seed: int = 0
    values: dict[str, float] = field(default_factory=dict)
    """Factors on the optimizer's settings."""

    def lr_of(self, index: int) -> float:
        return self.lr / (1 + index)

    def eps_of(self, index: int) -> float:
        return self.eps * (1 + index)


def normal(shape: Sequence[int], *seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(n * 1009**i for i, n in enumerate(seed)))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def _column(values: list[float], dims: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).view(-1, *[1] * dims)


class OptimizerRun:
    """A batch in training on random gradients, a trial's all drawn from its seed."""

    def __init__(
        self,
        optimizer: Optimizer,
        members: Sequence[Member],
        specs: Sequence[ParamSpec] = SPECS,
        dtype: torch.dtype = torch.float64,
        compiler: Any = None,
    ) -> None:
        self.specs, self.dtype, self.steps = specs, dtype, 0
        self.seeds = [member.seed for member in members]
        self.params = [
            torch.stack([normal(s.shape, m.seed, i, dtype=dtype) for m in members]).requires_grad_()
            for i, s in enumerate(specs)
        ]
        kinds = [optimizer.kind(s) for s in specs]
        settings = [optimizer.settings(m.values) for m in members]
        each = list(enumerate(len(s.shape) for s in specs))
        self.update_hps = UpdateHps(
            kinds=kinds,
            lr=[_column([m.lr_of(i) for m in members], dims, dtype) for i, dims in each],
            eps=[_column([m.eps_of(i) for m in members], dims, dtype) for i, dims in each],
            weight_decay=[_column([m.weight_decay for m in members], d, dtype) for _, d in each],
            settings={
                name: torch.tensor([row[name] for row in settings], dtype=dtype)
                for name in settings[0]
            },
        )
        with torch.no_grad():
            self.state = optimizer.init(self.params, kinds)
        self.update = compiler(optimizer.update) if compiler else optimizer.update

    def grads(self) -> list[Tensor]:
        """The next step's: of scales from 1e-2 to 1, so that averages have something to average."""
        t = self.steps
        return [
            torch.stack([normal(s.shape, k, i, t + 1, dtype=self.dtype) for k in self.seeds])
            * 10 ** -((t + i) % 3)
            for i, s in enumerate(self.specs)
        ]

    def now(self, factors: Sequence[float] | float) -> StepInfo:
        """The next step."""
        schedule = [factors] * len(self.seeds) if isinstance(factors, float) else list(factors)
        self.steps += 1
        like = self.params[0].detach()
        step = torch.tensor(self.steps, device=like.device)
        return StepInfo(step=step, schedule=like.new_tensor(schedule))

    def step(
        self, factors: Sequence[float] | float = 1.0, grads: list[Tensor] | None = None
    ) -> None:
        step_grads = self.grads() if grads is None else grads
        with torch.no_grad():
            self.update(self.params, step_grads, self.state, self.update_hps, self.now(factors))

    def train(self, steps: int = 4) -> list[Tensor]:
        for _ in range(steps):
            self.step(1.0 - 0.2 * (self.steps % 4))
        return [p.detach() for p in self.params]

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Of all tensors, as an engine does that knows nothing of the optimizer."""

        def each(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [function(t.detach()) for t in tensors]

        hps, self.params = self.update_hps, [p.requires_grad_() for p in each(self.params)]
        self.state = {name: each(tensors) for name, tensors in self.state.items()}
        settings = {name: function(values) for name, values in hps.settings.items()}
        decay = each(hps.weight_decay)
        self.update_hps = replace(
            hps, lr=each(hps.lr), eps=each(hps.eps), weight_decay=decay, settings=settings
        )

    def select(self, rows: list[int]) -> None:
        """Drop all other trials."""
        index, self.seeds = torch.tensor(rows), [self.seeds[row] for row in rows]
        self.change(lambda tensor: tensor.index_select(0, index))
