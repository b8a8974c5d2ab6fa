"""A pack: trials that share architecture, data and length, trained as one model.

The weights, moments and scale buffers of K trials are stacked along a leading dimension; the
loss of a plain module is mapped over it with `torch.func.vmap`, and the gradient is taken
outside the map, which keeps attention on its fast path. Nothing is ever reduced over trials,
so a diverging neighbour changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sweeper.data.corpus import Batch, Corpus
from sweeper.errors import SweeperError
from sweeper.scaling.spec import ParamSpec
from sweeper.training.draw import normal
from sweeper.training.optimizer import Factors
from sweeper.training.recipe import Recipe, prepare
from sweeper.trial import Trial

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""What weights are kept in, by precision: bfloat16 is an autocast over float32 weights."""


def draw(spec: ParamSpec, std: float, seed: int, dtype: torch.dtype) -> Tensor:
    """Initial values of one parameter, by (seed, name) alone: company in a pack changes nothing."""
    if spec.init != "normal":
        return torch.ones(spec.shape, dtype=dtype) * (spec.init == "ones")
    return (normal(spec.name, spec.shape, seed) * std).to(dtype)


@contextmanager
def quiet_attention() -> Iterator[None]:
    """Without torch's warning that on a CPU attention under vmap runs trial by trial.

    At the sizes of proxies that is as fast as a batched product with an explicit softmax.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
        yield


def _peel(stacked: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first trial's slices."""
    return {name: value[0] for name, value in stacked.items()}


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Trials of one setup, and the corpus that its data names."""

    trials: tuple[Trial, ...]
    corpus: Corpus


class PackRun:
    """A pack in the middle of its training."""

    def __init__(self, pack: Pack, device: str = "cpu", *, compiled: bool = False) -> None:
        """Draw the weights of every trial and stack them on `device`."""
        self.pack, self.device = pack, torch.device(device)
        self.recipe: Recipe = prepare(pack.trials[0].setup)
        self.dtype = DTYPES[self.recipe.train.precision]
        with self.device:
            self.model = self.recipe.model().to(self.dtype)
        self.params = self._draw()
        self.buffers = self._buffers()
        self.factors = self._factors()
        self.state = self.recipe.optimizer.init(list(self.params.values()))
        self.seeds = sorted({trial.seed for trial in pack.trials})
        self.rows = torch.tensor([self.seeds.index(t.seed) for t in pack.trials])
        self.step_index = 0
        self._loss = self._mapped_loss(compiled)

    def _draw(self) -> dict[str, Tensor]:
        stacked: dict[str, list[Tensor]] = {}
        for trial in self.pack.trials:
            scales = self.recipe.scales(trial.values())
            for spec in self.recipe.specs:
                value = draw(spec, scales[spec.name].init_std, trial.seed, self.dtype)
                stacked.setdefault(spec.name, []).append(value)
        return {
            name: torch.stack(values).to(self.device).requires_grad_()
            for name, values in stacked.items()
        }

    def _buffers(self) -> dict[str, Tensor]:
        """Scale buffers [K]; SweeperError when the model has no place for what a scheme asks."""
        known = {name for name, _ in self.model.named_buffers()}
        rows = [self.recipe.buffers(trial.values()) for trial in self.pack.trials]
        names = sorted(set().union(*rows))
        if absent := [name for name in names if name not in known]:
            raise SweeperError(f"the model cannot apply these scales: {', '.join(absent)}")
        return {
            name: torch.tensor(
                [row.get(name, 1.0) for row in rows], dtype=self.dtype, device=self.device
            )
            for name in names
        }

    def _factors(self) -> Factors:
        optimizer, rows = self.recipe.optimizer, []
        for trial in self.pack.trials:
            values = trial.values()
            scales = self.recipe.scales(values)
            rows.append([(values["eta"] * s.lr, s.eps, s.weight_decay) for s in scales.values()])
        lists: list[list[Tensor]] = []
        for index, scale in enumerate((1.0, optimizer.eps, optimizer.weight_decay)):
            lists.append(
                [
                    torch.tensor([row[i][index] * scale for row in rows], dtype=self.dtype)
                    .to(self.device)
                    .view(-1, *[1] * len(spec.shape))
                    for i, spec in enumerate(self.recipe.specs)
                ]
            )
        return Factors(lr=lists[0], eps=lists[1], weight_decay=lists[2])

    def _mapped_loss(self, compiled: bool) -> Callable[..., Tensor]:
        """Losses [K] of stacked weights and buffers on inputs and targets [K, batch, ...]."""
        model: nn.Module = self.model

        def loss(params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
            return cast(Tensor, functional_call(model, {**params, **buffers}, (x, y)))

        if len(self.pack.trials) == 1:
            # Alone, a trial is spared the map: its stacked dimension is only peeled off.
            def first(params: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
                return loss(_peel(params), _peel(buffers), x[0], y[0])[None]

            function: Callable[..., Tensor] = first
        else:
            function = vmap(loss)
        return cast(Callable[..., Tensor], torch.compile(function)) if compiled else function

    def _autocast(self) -> Any:
        if self.recipe.train.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _stacked(self, batches: Sequence[Batch], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [K, batch, ...] from one batch a seed."""
        xs, ys = zip(*batches, strict=True)
        x, y = (torch.from_numpy(np.stack(part))[rows].to(self.device) for part in (xs, ys))
        return (x.to(self.dtype) if x.is_floating_point() else x), y

    def step(self) -> Tensor:
        """One optimizer step of every trial; losses [K] before it, left on the device."""
        train, corpus = self.recipe.train, self.pack.corpus
        batches = [
            corpus.batch(seed, self.step_index, train.batch_size, train.seq_len)
            for seed in self.seeds
        ]
        with self._autocast():
            losses = self._loss(self.params, self.buffers, *self._stacked(batches, self.rows))
        params = list(self.params.values())
        grads = torch.autograd.grad(losses.sum(), params)
        with torch.no_grad():
            share = train.schedule(self.step_index)
            self.recipe.optimizer.update(params, list(grads), self.state, self.factors, share)
        self.step_index += 1
        return losses.detach()

    @torch.no_grad()
    def heldout(self) -> Tensor:
        """Mean loss [K] on held-out samples, the same for every trial."""
        train, losses = self.recipe.train, []
        zeros = torch.zeros_like(self.rows)
        batches = self.pack.corpus.heldout(train.batch_size, train.seq_len, train.heldout_batches)
        for batch in batches:
            with self._autocast():
                stacked = self._stacked([batch], zeros)
                losses.append(self._loss(self.params, self.buffers, *stacked))
        return torch.stack(losses).mean(0)
