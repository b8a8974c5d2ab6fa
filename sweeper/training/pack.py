"""A pack: trials that share architecture, data and length, trained as one model.

The weights, moments and scale buffers of K trials are stacked along a leading dimension; the
loss of a plain module is mapped over it with `torch.func.vmap`, and the gradient is taken
outside the map, which keeps attention on its fast path. Nothing is ever reduced over trials,
so a diverging neighbour changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from sweeper.data.corpus import Corpus
from sweeper.errors import SweeperError
from sweeper.scaling.prescription import Prescription, initial_distribution
from sweeper.training.draw import normal
from sweeper.training.feed import AHEAD, Feed
from sweeper.training.optimizer import StepInfo, UpdateHps, unsqueeze_like
from sweeper.training.prepare import PreparedSpec, prepare
from sweeper.training.program import Stacked, program, random_seed, weights_dtype
from sweeper.trial import Trial

Compile = Literal["auto", "on", "off"]
BALLAST = -1
"""The slot of a slice that no trial is in: it fills a pack up to a size that is compiled."""


@contextmanager
def quiet_attention() -> Iterator[None]:
    """Without torch's warning that on a CPU attention under vmap runs trial by trial.

    At the sizes of proxies that is as fast as a batched product with an explicit softmax.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
        yield


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Trials of one specification, and the corpus that its data names."""

    trials: tuple[Trial, ...]
    corpus: Corpus


class PackRun:
    """A pack in the middle of its training.

    `slots` tells for every slice which trial of the pack is in it. Slices can be dropped at any
    step (`keep`); what is left goes on as if the others had never been there.
    """

    def __init__(self, pack: Pack, device: str = "cpu", *, compile: Compile = "off") -> None:
        """Draw the weights of every trial and stack them on `device`.

        `compile`: from the first step on, or ("auto") where a GPU has a size compiled already.
        """
        self.pack, self.device = pack, torch.device(device)
        self.prepared: PreparedSpec = prepare(pack.trials[0].spec)
        self.dtype = weights_dtype(self.prepared)
        self.program = program(self.prepared, self.device)
        self.program.release()
        self.notices: list[str] = []
        self.slots, self.compiled = self._sized(compile)
        self.seeds = sorted({trial.seed for trial in pack.trials})
        self.feed = Feed(pack.corpus, self.prepared.train, self.seeds, self.device, self.dtype)
        self.step_index = 0
        trials = self._trials()
        prescriptions = [self.prepared.prescriptions(trial.hps) for trial in trials]
        self.rows = self._there([self.seeds.index(trial.seed) for trial in trials])
        self.params = self._drawn(prescriptions)
        self.buffers = self._buffers(trials)
        self.update_hps = self._update_hps(trials, prescriptions)
        self.state = self.prepared.optimizer.init(list(self.params.values()), self.update_hps.kinds)
        self._schedules, self._first = torch.empty(0), 0

    def _sized(self, compile: Compile) -> tuple[list[int], bool]:
        """The slots, filled up with ballast to a compiled size; and whether to compile."""
        slots = list(range(len(self.pack.trials)))
        if compile == "off" or (compile == "auto" and self.device.type == "cpu"):
            return slots, False
        if self._compiled_way(len(slots)) in self.program.refused:
            return slots, False
        sizes = self.program.sizes
        fitting = [size for size in sizes if len(slots) <= size <= 2 * len(slots)]
        if compile == "auto" and not fitting:
            return slots, False
        size = min(fitting, default=len(slots))
        sizes.add(size)
        return slots + [BALLAST] * (size - len(slots)), True

    def _compiled_way(self, count: int) -> str:
        return "compiled mapped" if count > 1 else "compiled alone"

    def compile(self, *, worth: bool) -> None:
        """Go on compiled if this size is compiled already, or if it is `worth` compiling."""
        sizes, count = self.program.sizes, len(self.slots)
        if self._compiled_way(count) in self.program.refused:
            return
        if self.device.type != "cpu" and (worth or count in sizes):
            self.compiled = True
            sizes.add(count)

    def _trials(self) -> list[Trial]:
        """The trial of every slice; ballast repeats the first."""
        return [self.pack.trials[max(slot, 0)] for slot in self.slots]

    def _there(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device)

    def _drawn(self, prescriptions: Sequence[dict[str, Prescription]]) -> Stacked:
        """Initial weights, by (seed, name) alone: company in a pack changes nothing."""
        params = {}
        for spec in self.prepared.specs:
            moments = [
                initial_distribution(spec.init, p[spec.name].init_std) for p in prescriptions
            ]
            means, stds = self._there(moments, torch.float64).unbind(1)
            # Trials of one seed share the draw: each weight is drawn once a seed, not once a trial.
            draws = torch.stack([normal(spec.name, spec.shape, seed) for seed in self.seeds])
            values = draws.to(self.device)[self.rows]
            values.mul_(unsqueeze_like(stds, values)).add_(unsqueeze_like(means, values))
            params[spec.name] = values.to(self.dtype).requires_grad_()
        return params

    def _buffers(self, trials: Sequence[Trial]) -> Stacked:
        """Scale buffers [K], and the module's own state [K, ...].

        SweeperError when the model has no place for what a scheme asks.
        """
        known = {name for name, _ in self.program.model.named_buffers()}
        values = {trial.key: self.prepared.buffers(trial.hps) for trial in trials}
        rows = [values[trial.key] for trial in trials]
        names = sorted(set().union(*rows))
        if absent := [name for name in names if name not in known]:
            raise SweeperError(
                f"the model cannot apply these scales: {', '.join(absent)}; give it modules that "
                "have them (sweeper.models.scaled), or take a scheme without, such as spectral"
            )
        self._own_state = [name for name in self.program.state() if name not in names]
        own = self.program.state()
        return {
            name: self._there([row.get(name, 1.0) for row in rows], self.dtype) for name in names
        } | {name: torch.stack([own[name]] * len(rows)) for name in self._own_state}

    def _update_hps(
        self, trials: Sequence[Trial], prescriptions: Sequence[dict[str, Prescription]]
    ) -> UpdateHps:
        """The trials' prescriptions as tensors, and their optimizer's settings."""
        optimizer, specs = self.prepared.optimizer, self.prepared.specs

        def stacked(field: str) -> list[Tensor]:
            rows = [[getattr(p[spec.name], field) for p in prescriptions] for spec in specs]
            return [
                self._there(row, self.dtype).view(-1, *[1] * len(spec.shape))
                for row, spec in zip(rows, specs, strict=True)
            ]

        settings = [optimizer.settings(trial.hps) for trial in trials]
        return UpdateHps(
            kinds=[optimizer.kind(spec) for spec in specs],
            lr=stacked("lr"),
            eps=stacked("eps"),
            weight_decay=stacked("weight_decay"),
            settings={
                name: self._there([row[name] for row in settings], torch.float64)
                for name in settings[0]
            },
        )

    def _way(self) -> list[str]:
        """Ways of getting gradients, the fastest first, that are not known to fail."""
        plain = ["mapped", "looped"] if len(self.slots) > 1 else ["alone"]
        ways = [f"compiled {plain[0]}", *plain] if self.compiled else plain
        return [way for way in ways if way not in self.program.refused]

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Losses and gradients, by the fastest way that this module can go."""
        failed = dict[str, Exception]()
        for way in (ways := self._way()):
            kept = {name: self.buffers[name].clone() for name in self._own_state}
            try:
                tensors = (self.params, self.buffers, x, y)
                found = self.program.gradients(way, *tensors, self._random_seeds)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if way == ways[-1]:  # then it is no fault of the others
                    raise
                failed[way] = error.with_traceback(None)
                for name, value in kept.items():  # in place: the module may be bound to them
                    self.buffers[name].copy_(value)
                continue
            for refused, reason in failed.items():
                self._refuse(refused, reason)
            return found
        raise AssertionError("there is always a way")

    def _random_seeds(self) -> list[int]:
        """Seeds of what is random in every slice at this step."""
        drawn = {seed: random_seed(seed, self.step_index) for seed in self.seeds}
        return [drawn[trial.seed] for trial in self._trials()]

    def _refuse(self, way: str, error: Exception) -> None:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        self.program.refused[way] = reason[0]
        if way == "mapped":
            consequence = "its trials are trained one after the other"
        else:
            self.compiled, consequence = False, "it is trained without compiling it"
        self.notices.append(f"the model cannot be {way} ({reason[0][:200]}): {consequence}")

    @contextmanager
    def precision(self) -> Iterator[None]:
        """What the precision and the device ask of torch while the pack computes."""
        with ExitStack() as stack:
            if self.prepared.train.precision == "tf32":
                stack.enter_context(_tf32())
            if self.device.type == "cuda":  # under a compiled map cuDNN's attention fails
                from torch.nn.attention import SDPBackend, sdpa_kernel

                kernels = [
                    SDPBackend.FLASH_ATTENTION,
                    SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH,
                ]
                stack.enter_context(sdpa_kernel(kernels))
            yield

    def step(self) -> Tensor:
        """One optimizer step of every trial; losses [K] before it, left on the device."""
        x, y = self.feed.batch(self.step_index)
        with self.precision():
            losses, grads = self._gradients(x[self.rows], y[self.rows])
        with torch.no_grad():
            if self.prepared.train.clip is not None:
                clip(grads, self.prepared.train.clip)
            now = StepInfo(
                step=torch.full((), self.step_index + 1.0, dtype=self.dtype, device=self.device),
                schedule=self._schedule(),
            )
            self._update(grads, now)
        self.step_index += 1
        return losses

    def _update(self, grads: list[Tensor], now: StepInfo) -> None:
        """The optimizer's step, compiled where gradients are and as long as that succeeds."""
        arguments = (list(self.params.values()), grads, self.state, self.update_hps, now)
        way = "compiled update"
        if self.compiled and self.device.type != "cpu" and way not in self.program.refused:
            try:
                self.program.update(True)(*arguments)
                return
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.program.refused[way] = str(error)
        self.program.update(False)(*arguments)

    def _schedule(self) -> Tensor:
        """The schedule's value [K] at this step, from a block that is sent ahead."""
        if not self._first <= self.step_index < self._first + len(self._schedules):
            train, self._first = self.prepared.train, self.step_index
            steps = range(self._first, self._first + AHEAD)
            settings = [train.with_hps(trial.hps) for trial in self._trials()]
            table = {one: [one.schedule(step) for step in steps] for one in set(settings)}
            self._schedules = self._there(
                [table[one] for one in settings], self.dtype
            ).T.contiguous()
        return self._schedules[self.step_index - self._first]

    def keep(self, slices: Sequence[int]) -> None:
        """Drop all slices but these."""
        at = self._there(list(slices))

        def kept(values: Sequence[Tensor]) -> list[Tensor]:
            return [value.index_select(0, at) for value in values]

        self.slots = [self.slots[index] for index in slices]
        with torch.no_grad():
            names = list(self.params)
            params = kept([value.detach() for value in self.params.values()])
            self.params = {
                name: value.requires_grad_() for name, value in zip(names, params, strict=True)
            }
            self.buffers = {name: kept([value])[0] for name, value in self.buffers.items()}
            self.state = {name: kept(values) for name, values in self.state.items()}
            hps = self.update_hps
            self.update_hps = replace(
                hps,
                lr=kept(hps.lr),
                eps=kept(hps.eps),
                weight_decay=kept(hps.weight_decay),
                settings={name: kept([value])[0] for name, value in hps.settings.items()},
            )
            self.rows = self.rows[at]
        self._schedules = torch.empty(0)

    def tensors(self) -> Stacked:
        """All that training has changed, by name; restored by `load`."""
        found = {f"param/{name}": value.detach() for name, value in self.params.items()}
        found |= {f"buffer/{name}": self.buffers[name] for name in self._own_state}
        for name, values in self.state.items():
            found |= {f"state/{name}/{index}": value for index, value in enumerate(values)}
        return found

    @torch.no_grad()
    def load(self, tensors: Stacked, slots: Sequence[int], step: int) -> None:
        """Go on where `tensors` were taken; KeyError or RuntimeError when they do not fit."""
        self.keep([0 if slot == BALLAST else self.slots.index(slot) for slot in slots])
        self.slots = list(slots)
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
        if self.compiled:
            self.program.sizes.add(len(slots))
        self.step_index = step

    def heldout(self) -> Tensor:
        """Mean loss [K] on held-out samples, the same for every trial."""
        train, losses = self.prepared.train, []
        size = (train.batch_size, train.seq_len, train.heldout_batches)
        for batch in self.pack.corpus.heldout(*size):
            x, y = (
                part.expand(len(self.slots), *part.shape[1:]) for part in self.feed.sent([batch])
            )
            with self.precision():
                losses.append(self.program.evaluate(self.params, self.buffers, x, y))
        return torch.stack(losses).mean(0)


def clip(grads: list[Tensor], most: float) -> None:
    """Scale each trial's gradients [K, ...] in place so that their joint norm is at most `most`.

    As `torch.nn.utils.clip_grad_norm_`, a trial at a time.
    """
    squares = [grad.double().flatten(1).square().sum(1) for grad in grads]
    factor = (most / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(unsqueeze_like(factor.to(grad.dtype), grad))


@contextmanager
def _tf32() -> Iterator[None]:
    """Matrix products of float32 on a GPU's tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
