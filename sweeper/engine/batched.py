"""Batched trials: they share architecture, data and length, and train as one model.

The weights, moments and scale buffers of K trials are stacked along a leading dimension, and
the loss of a plain module is mapped over it with `torch.func.vmap`. Nothing is ever reduced over
trials, so a diverging neighbour changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sweeper.data.arrays import ArrayCorpus
from sweeper.data.corpus import Batch, Corpus, TokenCorpus
from sweeper.engine import graph
from sweeper.engine.architecture import initial_values
from sweeper.engine.graph import GRAPH, GRAPHED_UPDATE, RECORDERS, WARM_UP, CudaGraph, watching
from sweeper.engine.optimizers.optimizer import (
    StepInfo,
    UpdateHps,
    bias,
    clip_gradients,
    unsqueeze_like,
)
from sweeper.engine.prepare import PreparedSpec, prepare
from sweeper.engine.program import (
    COMPILED_UPDATE,
    GradientMode,
    LossScale,
    Stacked,
    computing,
    is_out_of_memory,
    program,
    raise_if_out_of_memory,
    random_seed,
    weights_dtype,
)
from sweeper.errors import ConfigError, first_line
from sweeper.launch.machine import collect_as_usual
from sweeper.models.initial_values import norm_like, normal
from sweeper.models.loss import take_refusal
from sweeper.scaling.prescription import AbsorbedParam
from sweeper.scaling.spec import ParamSpec
from sweeper.trial import TrainSettings, Trial

Compile = Literal["auto", "on", "off"]
UPDATED_WITH = ("lr", "eps", "weight_decay", "settings")
"""The tensors of `UpdateHps`."""
PADDING = -1
"""The slot of a slice without a trial: such slices fill a batch up to a size that is compiled."""


@dataclass(frozen=True, kw_only=True)
class BatchedTrials:
    """Trials of one specification, and the corpus that its data names."""

    trials: tuple[Trial, ...]
    corpus: Corpus


class UpdateBrokenError(RuntimeError):
    """A compiled update failed, and may have changed weights: the batch begins anew without it."""


class BatchedRun:
    """Batched trials in the middle of their training.

    `slots` holds for every slice the index of its trial in the batch, or PADDING. Slices can be
    dropped at any step (`select`): the others train on as if those had never been there. On the
    device are `count`, the steps that are done; `clipped`, in how many of them the clip of a
    trial's gradients was active; `losses` [steps, K]; `broken`, the step of each slice whose loss
    was the first not to be finite, or -1. `notices` are sentences for the user.

    A step (`_backward`, `_finish`) reads and writes the same tensors of the device each time
    (`_fixed`), so that it can be replayed as one graph, in the next batch of this shape as well
    (`keep`). What the host has for it is sent there before (`_send`).
    """

    def __init__(
        self, batched: BatchedTrials, device: str = "cpu", *, compile: Compile = "off"
    ) -> None:
        """Draw and stack the weights; "auto" compiles where a fitting size is compiled already."""
        collect_as_usual()
        self.batched, self.device = batched, torch.device(device)
        self.prepared: PreparedSpec = prepare(batched.trials[0].spec)
        self.dtype = weights_dtype(self.prepared)
        self.program = program(self.prepared, self.device)
        # The batch before may still be bound to it: free its weights before new ones are drawn.
        self.program.release()
        self.notices: list[str] = []
        self.slots, self.compiled = self._choose_slots(compile)
        self.seeds = sorted({trial.seed for trial in batched.trials})
        self.feed = Feed(batched.corpus, self.prepared.train, self.seeds, self.device, self.dtype)
        self.step_index, self._part = 0, 0
        self.count = torch.zeros(1, dtype=torch.long, device=self.device)
        trials = self._trials()
        start = InitialTensors(self.prepared, trials, self.seeds, self.device)
        self.seed_rows, self.params = start.seed_rows, start.params()
        # A parameterization's scales are constant in training. Running statistics and the like are
        # not: they are part of a checkpoint, and are restored after a failed attempt at a step.
        scales, state = start.scales(), self.program.module_state()
        self._module_state = [name for name in state if name not in scales]
        statistics = {name: torch.stack([state[name]] * len(trials)) for name in self._module_state}
        self.buffers = scales | statistics | start.frozen()
        zeros = torch.zeros(len(trials), dtype=torch.long, device=self.device)
        self.buffers |= {name: zeros.clone() for name in self.program.seeds}
        self.update_hps = start.update_hps()
        self.state = self.prepared.optimizer.init(list(self.params.values()), self.update_hps.kinds)
        self.loss_scale = None
        if self.prepared.train.precision == "float16":
            if not getattr(self.prepared.optimizer, "step_by_trial", False):
                allowed = "another precision: this optimizer counts one step for all trials, and a "
                allowed += "step that overflows is skipped by its trial alone"
                raise ConfigError("train.precision", "float16", allowed)
            self.loss_scale = LossScale.of(len(trials), self.device)
        # By trial, and one place more, the last, for PADDING: what is dropped keeps its count.
        self.clipped = torch.zeros(len(batched.trials) + 1, dtype=torch.long, device=self.device)
        self._lay_out()

    def _lay_out(self) -> None:
        count, train, at = len(self.slots), self.prepared.train, self.device
        self._block = -1  # of steps; the first of each is a multiple of its length
        self._schedule = torch.zeros(BLOCK_STEPS, count, dtype=self.dtype, device=at)
        shape = (BLOCK_STEPS, train.accumulate, count)
        self._seeds = torch.zeros(shape, dtype=torch.long, device=at)
        self.losses = torch.zeros(train.steps, count, dtype=torch.float64, device=at)
        self.broken = torch.full((count,), -1, device=at)
        self._counted = self.slots, torch.tensor(self.slots, device=at)
        self._forget_graph()

    def _forget_graph(self) -> None:
        """What is recorded is of other tensors, or of other operations."""
        self._recorded: graph.Recording | None = None
        self._recording: CudaGraph | None = None
        self._grads, self._takes, self._warm = list[Tensor](), cast(Tensor | None, None), 0

    def keep(self) -> None:
        """Leave what is recorded, and the tensors there, to a next run: for the end of this one."""
        if self._recorded is not None:
            self._recorded.keep(self.device)
            # What a run that drops slices goes on with.
            self.count, self.clipped = self.count.clone(), self.clipped.clone()
            self.feed.sent = tuple(part.clone() for part in self.feed.sent)

    @torch.no_grad()
    def _take(self) -> None:
        """Go on where a run of this shape left what it recorded, if one did."""
        kept = graph.KEPT.pop(self._key(), None)
        # A graph knows nothing of a tensor that a module has put in another's place since.
        if kept is None or graph.changes(kept.attributes, self._attributes()):
            return
        self.program.release()  # its module may be bound to what is left behind
        for there, mine in zip(kept.tensors, self._fixed(), strict=True):
            there.copy_(mine)
            mine.data = there
        self._recorded = kept

    def _fixed(self) -> list[Tensor]:
        """All tensors that steps read and write, but for a corpus."""
        own = [self.params, self.buffers, self.state, self._schedule, self._seeds, self.seed_rows]
        own += [getattr(self.update_hps, name) for name in UPDATED_WITH]
        own += [self.loss_scale.tensors()] if self.loss_scale else []
        own += [self.clipped] if self.prepared.train.clip else []  # its size is the batch's
        own += [self.losses, self.broken, self.count, self._counted[1], self.feed.sent]
        return tree_leaves(own)

    def _key(self) -> Hashable:
        """What a step's operations follow from."""
        shapes = tuple((value.shape, value.stride(), value.dtype) for value in self._fixed())
        modes = (self.compiled, *sorted(self.program.unsupported))
        places = tuple((name, value.data_ptr()) for name, value in self._unsaved().items())
        return self.program, modes, self.feed.resident, shapes, places

    def _unsaved(self) -> Stacked:
        """The module's buffers that all trials share: tables, and factors that are 1 for all."""
        named = self.program.model.named_buffers()
        return {name: value.data for name, value in named if name not in self.buffers}

    def _attributes(self) -> dict[tuple[int, str], Any]:
        return graph.attributes_of([*self.program.model.modules(), self.prepared.optimizer])

    def _choose_slots(self, compile: Compile) -> tuple[list[int], bool]:
        slots = list(range(len(self.batched.trials)))
        if compile == "off" or _compiled_mode(len(slots)) in self.program.unsupported:
            return slots, False
        sizes = self.program.compiled_sizes
        # Compiling takes tens of seconds. Padding up to twice the size costs less than that; on a
        # CPU it would cost what compiling gains.
        pads = compile == "on" or self.device.type != "cpu"
        most = 2 * len(slots) if pads else len(slots)
        fitting = [size for size in sizes if len(slots) <= size <= most]
        if compile == "auto" and not fitting:
            return slots, False
        size = min(fitting, default=len(slots))
        sizes.add(size)
        return slots + [PADDING] * (size - len(slots)), True

    def compile(self, *, pays: bool) -> None:
        """Go on compiled where this size is compiled already, or where compiling it `pays`."""
        sizes, size = self.program.compiled_sizes, len(self.slots)
        if _compiled_mode(size) in self.program.unsupported:
            return
        if pays or size in sizes:
            self.compiled = True
            self._forget_graph()
            sizes.add(size)

    def uncompile(self) -> None:
        """Go on eagerly: for this program compiling does not pay."""
        self.compiled = False
        self._forget_graph()
        self.program.compiled_sizes.clear()

    def step(self) -> Tensor:
        """One optimizer step of every trial, a graph where there are such; losses [K] before it."""
        self._send()
        recorder = RECORDERS.get(self.device.type)
        if recorder is None or GRAPH in self.program.unsupported or self.program.recomputing:
            self._backward()
            self._finish()
        else:
            if self._warm == 0:
                self._take()
            if self._recorded is None and self._warm == WARM_UP:
                self._record(recorder)
            if (recorded := self._recorded) is not None:
                parts = range(self.prepared.train.accumulate) if recorded.graph.seeds else ()
                recorded.graph.replay([seed for part in parts for seed in self._seeds_of(part)])
                if recorded.grads:
                    self._grads, self._takes = recorded.grads, recorded.takes
                    self._finish()
            else:
                with recorder.warm_up(self.device):
                    self._step_watched()
            self._warm += 1
        self.step_index += 1
        return self.losses[(self.step_index - 1) % len(self.losses)]

    def _step_watched(self) -> None:
        """A step as it is; the second is watched, as a first sets up what lasts."""
        # The compiler does not work under a watch.
        if self._warm != 1 or self.program.draws is not None or self.compiled:
            self._backward()
            self._finish()
            return
        with watching(
            self.device,
            self.program.model.modules(),
            lambda: self.tensors() | self._unsaved(),
        ) as watch:
            self._backward()
        with watching(self.device, [self.prepared.optimizer], self.tensors) as update:
            self._finish()
        self.program.draws = watch.draws
        self._refuse(GRAPH, watch.refusal)
        self._refuse(GRAPHED_UPDATE, update.refusal or "it draws random numbers" * update.draws)

    def _record(self, recorder: type[CudaGraph]) -> None:
        # What has not been watched counts as random; a map refuses what is.
        mapped = self._gradient_modes()[0] in ("mapped", "compiled mapped")
        draws = not mapped and self.program.draws is not False

        def step() -> None:
            self._backward()
            if GRAPHED_UPDATE not in self.program.unsupported:
                self._finish()

        try:
            seeds = len(self.slots) * self.prepared.train.accumulate * draws
            self._recording = recorder(self.device, seeds)
            self._recording.record(step)
            self._recorded = graph.Recording(
                graph=self._recording,
                key=self._key(),
                tensors=[value.detach() for value in self._fixed()],
                attributes=self._attributes(),
                grads=self._grads,
                takes=self._takes,
            )
        except Exception as error:
            self._refuse(GRAPH, first_line(error))
            if is_out_of_memory(error):  # which says nothing of smaller batches
                del self.program.unsupported[GRAPH]
        finally:
            self._recording, self._grads, self._takes = None, [], None

    def _refuse(self, name: str, reason: str) -> None:
        if reason:
            self.program.unsupported[name] = reason
            what = "a step" if name == GRAPH else "the optimizer's update"
            text = f"{what} cannot be one graph of the GPU ({reason[:200]})"
            text += ": its operations are launched one by one, and take longer"
            self.program.notices.append(text)

    def _send(self) -> None:
        """Bring to the device what the next step reads of the host, mostly for a block of steps."""
        step = self.step_index
        if self.feed.send(step):
            self._forget_graph()
        if self._block != (block := step // BLOCK_STEPS):
            self._block, steps = block, range(block * BLOCK_STEPS, (block + 1) * BLOCK_STEPS)
            # Most often all trials have one schedule, which is worked out once.
            settings = [trial.train for trial in self._trials()]
            factors = {s.span: s.lr_factors(steps) for s in {s.span: s for s in settings}.values()}
            rows = torch.tensor([factors[s.span] for s in settings], dtype=self.dtype)
            send(rows.T.contiguous(), self._schedule)  # [steps, K]
            if self.program.seeds:
                parts = range(self._seeds.shape[1])
                seeds = [[self._seeds_of(part, each) for part in parts] for each in steps]
                send(torch.tensor(seeds), self._seeds)
        # By identity: sync points make a new list.
        if self._counted[0] is not self.slots:
            send(torch.tensor(self.slots), self._counted[1])
            self._counted = self.slots, self._counted[1]

    def _backward(self) -> None:
        x, y = (part[self.seed_rows] for part in self.feed.read(self.count % BLOCK_STEPS))
        with self.precision():
            losses, grads = self._accumulated(x, y)
        with torch.no_grad():
            row, losses = self.count % len(self.losses), losses.to(self.losses.dtype)
            self.losses.index_copy_(0, row, losses[None])
            breaks = (self.broken < 0) & ~losses.isfinite()
            self.broken.copy_(torch.where(breaks, self.count, self.broken))
            self._takes = self.loss_scale.unscale(grads) if self.loss_scale else None
            if (clip := self.prepared.train.clip) is not None:
                self.clipped[self._counted[1]] += clip_gradients(grads, clip)
        self._grads = grads

    @torch.no_grad()
    def _finish(self) -> None:
        scale, grads, takes = self.loss_scale, self._grads, self._takes
        # A tensor: a number would be a constant of the compiled update, which would be compiled
        # anew at every step.
        step = (self.count + 1).to(self.dtype)[0] if scale is None else scale.taken + 1.0
        schedule = self._schedule.index_select(0, self.count % BLOCK_STEPS)[0]
        now = StepInfo(step=step, schedule=schedule)
        if scale and takes is not None:
            self._update_where(takes, grads, now)
            scale.update(takes)
        else:
            self._update(grads, now)
        self.count.add_(1)
        self._grads, self._takes = [], None

    def _accumulated(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mean losses and gradients of a batch's `train.accumulate` parts, one after the other."""
        parts = self.prepared.train.accumulate
        # Seeds are of a part: each has a dropout of its own.
        self._part = 0
        losses, grads = self._gradients(*(t.chunk(parts, 1)[0] for t in (x, y)))
        for self._part in range(1, parts):
            more, more_grads = self._gradients(*(t.chunk(parts, 1)[self._part] for t in (x, y)))
            losses = losses + more
            grads = [total + grad for total, grad in zip(grads, more_grads, strict=True)]
        if parts > 1:
            losses, grads = losses / parts, [grad / parts for grad in grads]
        return losses, grads

    def _trials(self) -> list[Trial]:
        """The trial of every slice; padding repeats the first."""
        return [self.batched.trials[max(slot, 0)] for slot in self.slots]

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Losses and gradients, in the fastest mode that this module supports.

        Modes are tried, as nothing tells beforehand what a user's module does: whether vmap has a
        rule for all its operations, or the compiler a kernel, shows when it runs.
        """
        if self.program.seeds:
            seeds = self._seeds.index_select(0, self.count % BLOCK_STEPS)[0, self._part]
            for name in self.program.seeds:
                self.buffers[name].copy_(seeds)  # in place: the module may be bound to it
        failures = dict[GradientMode, Exception]()
        for mode in (modes := self._gradient_modes()):
            before = {name: self.buffers[name].clone() for name in self._module_state}
            try:
                tensors = (self.params, self.buffers, x, y)
                scale = self.loss_scale.scale if self.loss_scale else None
                gradients = self.program.gradients(mode, *tensors, self._seed, scale)
            except Exception as error:
                # Says nothing of the mode: a smaller batch may well fit in it.
                raise_if_out_of_memory(error)
                # The module itself fails, or the recording: no other mode is to blame.
                if mode == modes[-1] or self._recording:
                    raise
                failures[mode] = error.with_traceback(None)  # which would keep tensors alive
                # An attempt may have updated the state before it failed. In place, because the
                # module may be bound to these very tensors.
                for name, value in before.items():
                    self.buffers[name].copy_(value)
                continue
            # A mode that failed where a slower one succeeded is never tried again.
            for failed, cause in failures.items():
                reason = self.program.unsupported[failed] = first_line(cause)
                if failed == "mapped":
                    consequence = "its trials are trained one after the other"
                else:
                    self.compiled, consequence = False, "it is trained without compiling it"
                notice = f"the model cannot be {failed} ({reason[:200]}): {consequence}"
                self.notices.append(notice)
            return gradients
        raise AssertionError("there is always a mode")

    def _gradient_modes(self) -> list[GradientMode]:
        size = len(self.slots)
        modes: list[GradientMode] = ["mapped", "looped"] if size > 1 else ["alone"]
        if self.compiled:
            modes.insert(0, _compiled_mode(size))
        return [mode for mode in modes if mode not in self.program.unsupported]

    def take_notices(self) -> list[str]:
        """What the user has not been told yet."""
        notices = [*self.notices, *self.program.notices]
        self.notices, self.program.notices = [], []
        if reason := take_refusal():
            text = "the loss of large vocabularies cannot be compiled"
            notices.append(f"{text} ({reason[:200]}): it moves more memory")
        return notices

    def _seeds_of(self, part: int, step: int | None = None) -> list[int]:
        """Seeds of what is random in a part of a step, the next one's if None, by slice."""
        step = self.step_index if step is None else step
        by_seed = {seed: random_seed(seed, step, part) for seed in self.seeds}
        return [by_seed[trial.seed] for trial in self._trials()]

    def _seed(self, index: int) -> None:
        """Seed torch's generator for a slice, in a recording from the seeds of each replay."""
        if self._recording is None:
            self.program.seed(self._seeds_of(self._part)[index])
        elif self._recording.seeds:
            self._recording.seed(self._part * len(self.slots) + index)

    def precision(self) -> AbstractContextManager[None]:
        """What the precision and the device ask of torch while the batch computes."""
        return computing(self.prepared, self.device)

    def _update(self, grads: list[Tensor], now: StepInfo) -> None:
        """The optimizer's step, compiled where gradients are and as long as that succeeds."""
        arguments = (list(self.params.values()), grads, self.state, self.update_hps)
        unsupported = self.program.unsupported
        if self.compiled and self.device.type != "cpu" and COMPILED_UPDATE not in unsupported:
            # Not in the update: compiled, it would compute these anew for every weight.
            settings = self.update_hps.settings.items()
            biases = {name: bias(value, now.step) for name, value in settings}
            try:
                self.program.update(compiled=True)(*arguments, replace(now, biases=biases))
                return
            except Exception as error:
                raise_if_out_of_memory(error)
                if self._recording:
                    raise
                reason = unsupported[COMPILED_UPDATE] = first_line(error)
                if not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                    raise UpdateBrokenError(reason) from error
                self.notices.append(
                    f"the optimizer's update cannot be compiled ({reason[:200]}): it runs as it is"
                )
        self.program.update(compiled=False)(*arguments, now)

    def _update_where(self, takes: Tensor, grads: list[Tensor], now: StepInfo) -> None:
        """The optimizer's step of the trials [K] that take it; the others stay as they are."""
        trained = [*self.params.values(), *chain(*self.state.values())]
        before = [value.clone() for value in trained]
        self._update(grads, now)
        for value, old in zip(trained, before, strict=True):
            value.copy_(torch.where(unsqueeze_like(takes, value), value, old))

    @torch.no_grad()
    def select(self, slices: Sequence[int]) -> None:
        """Drop all slices but these."""
        self.keep()
        index = torch.tensor(list(slices), device=self.device)

        def kept(values: Any) -> Any:
            return tree_map(lambda value: value.index_select(0, index), values)

        self.slots = [self.slots[i] for i in slices]
        # A new dictionary: by that the program knows that it must bind its module anew.
        self.params = {k: v.detach().requires_grad_() for k, v in kept(self.params).items()}
        self.buffers, self.state = kept(self.buffers), kept(self.state)
        if self.loss_scale:
            self.loss_scale = LossScale(**kept(self.loss_scale.tensors()))
        hps = {name: kept(getattr(self.update_hps, name)) for name in UPDATED_WITH}
        self.update_hps = replace(self.update_hps, **hps)
        self.seed_rows, broken = self.seed_rows[index], self.broken[index]
        self._lay_out()
        self.broken.copy_(broken)

    def tensors(self) -> Stacked:
        """All that training has changed, by name; restored by `load`."""
        tensors = {f"param/{name}": value.detach() for name, value in self.params.items()}
        tensors |= {f"buffer/{name}": self.buffers[name] for name in self._module_state}
        for name, values in self.state.items():
            tensors |= {f"state/{name}/{index}": value for index, value in enumerate(values)}
        if self.loss_scale:
            tensors |= {f"scale/{name}": value for name, value in self.loss_scale.tensors().items()}
        return tensors

    @torch.no_grad()
    def load(self, tensors: Stacked, slots: Sequence[int], step: int) -> None:
        """Go on where `tensors` were taken; KeyError or RuntimeError when they do not fit."""
        # The slices that were left when it was saved: every tensor then has the checkpoint's shape,
        # and its values are replaced below. For padding any slice does.
        self.select([0 if slot == PADDING else self.slots.index(slot) for slot in slots])
        self.slots = list(slots)
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
        if self.compiled:
            self.program.compiled_sizes.add(len(slots))
        self.step_index = step
        self.count.fill_(step)

    def heldout(self) -> tuple[Tensor, Tensor | None]:
        """Mean loss [K] on held-out samples, the same for every trial, and the top-1 accuracy.

        That is of classifiers of arrays, whose forward returns logits where no targets are given;
        of other models there is none.
        """
        if self._recorded is not None and not graph.fits(self._recorded.size, self.device):
            self._forget_graph()  # its memory is needed
        train, losses, hits, sizes = self.prepared.train, [], [], []
        size = (train.batch_size, train.seq_len, train.heldout_batches)
        classifies = "input_shape" in self.prepared.spec.data
        for batch in self.batched.corpus.heldout(*size):
            # [1, batch, ...], seen as [K, batch, ...] without a copy: all trials read the same.
            x, y = (
                part.expand(len(self.slots), *part.shape[1:])
                for part in self.feed.to_device([batch])
            )
            sizes.append(x.shape[1])
            with self.precision():
                losses.append(self.program.evaluate(self.params, self.buffers, x, y))
                if classifies:
                    try:
                        hits.append(self.program.hits(self.params, self.buffers, x, y))
                    except Exception as error:
                        raise_if_out_of_memory(error)
                        classifies = False

        def mean(parts: list[Tensor]) -> Tensor:
            values = torch.stack(parts)
            if len(set(sizes)) == 1:
                return values.mean(0)
            shares = values.new_tensor([size / sum(sizes) for size in sizes])
            return (values * shares[:, None]).sum(0)

        return mean(losses), mean(hits) if classifies else None


def _compiled_mode(size: int) -> GradientMode:
    return "compiled mapped" if size > 1 else "compiled alone"


class InitialTensors:
    """What a run starts from: drawn weights, scale buffers, and what the optimizer's update reads.

    Slice i of every tensor [K, ...] is that of `trials[i]`; `seeds` are those of all trials.
    """

    def __init__(
        self,
        prepared: PreparedSpec,
        trials: Sequence[Trial],
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.prepared, self.trials, self.seeds, self.device = prepared, trials, seeds, device
        self.dtype = weights_dtype(prepared)
        self._trained_with = [prepared.trained_with(trial.hps) for trial in trials]
        # Parameters that start as the model's own code sets them, [seeds, ...] by name.
        self._own_values = dict[str, Tensor]()
        if kept := [spec.name for spec in prepared.specs if spec.init == "kept"]:
            unit = prepared.parameterization.unit_scaled
            by_seed = [initial_values(prepared.spec, unit, seed) for seed in seeds]
            self._own_values = {
                name: torch.stack([values[name] for values in by_seed]) for name in kept
            }
        # Trials of one seed see the same batches, so that a batch is sent once for a seed; this
        # is the row that each slice reads.
        self.seed_rows = torch.tensor([seeds.index(t.seed) for t in trials], device=device)

    def _tensor(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def params(self) -> Stacked:
        """Initial weights, by (seed, name) alone: the other trials of the batch change nothing."""
        return {
            spec.name: self._param(spec, [by_name[spec.name] for by_name in self._trained_with])
            for spec in self.prepared.trained_specs
        }

    def _param(self, spec: ParamSpec, trained_with: Sequence[AbsorbedParam]) -> Tensor:
        if spec.init == "kept":
            return self._own_value(spec.name).requires_grad_()
        if spec.init == "norm" and spec.norm_of:
            weight = next(s for s in self.prepared.specs if s.name == spec.norm_of.name)
            drawn = self._param(weight, [of[weight.name] for of in self._trained_with]).detach()
            norms = torch.stack([norm_like(each, spec.shape) for each in drawn.double()])
            return norms.to(self.dtype).requires_grad_()
        # In float64 up to the last line: the same draw is rounded once, whatever the batch's
        # precision.
        moments = [(settings.init_mean, settings.init_std) for settings in trained_with]
        means, stds = self._tensor(moments, torch.float64).unbind(1)
        # Trials of one seed share the draw: each weight is drawn once a seed, not once a trial.
        draws = torch.stack([normal(spec.name, spec.shape, seed) for seed in self.seeds])
        values = draws.to(self.device)[self.seed_rows]
        values.mul_(unsqueeze_like(stds, values)).add_(unsqueeze_like(means, values))
        if (row := self.prepared.architecture.padding.get(spec.name)) is not None:
            values[:, row] = 0
        return values.to(self.dtype).requires_grad_()

    def _own_value(self, name: str) -> Tensor:
        values = self._own_values[name].to(self.device)[self.seed_rows]
        return values.to(self.dtype) if values.is_floating_point() else values

    def frozen(self) -> Stacked:
        """Parameters [K, ...] that are not trained."""
        return {
            spec.name: self._own_value(spec.name) for spec in self.prepared.specs if spec.frozen
        }

    def scales(self) -> Stacked:
        """The parameterization's scale buffers [K]."""
        values = {trial.key: self.prepared.buffers(trial.hps) for trial in self.trials}
        rows = [values[trial.key] for trial in self.trials]
        return {
            name: self._tensor([row.get(name, 1.0) for row in rows], self.dtype)
            for name in sorted(set().union(*rows))
        }

    def update_hps(self) -> UpdateHps:
        """What parameters are trained with as tensors [K, ...], and the optimizer's settings."""
        optimizer, specs = self.prepared.optimizer, self.prepared.trained_specs

        def stacked(field: str) -> list[Tensor]:
            rows = [[getattr(p[spec.name], field) for p in self._trained_with] for spec in specs]
            return [
                self._tensor(row, self.dtype).view(-1, *[1] * len(spec.shape))
                for row, spec in zip(rows, specs, strict=True)
            ]

        settings = [optimizer.settings(trial.hps) for trial in self.trials]
        return UpdateHps(
            kinds=[optimizer.kind(spec) for spec in specs],
            lr=stacked("lr"),
            eps=stacked("eps"),
            weight_decay=stacked("weight_decay"),
            parts=[self.prepared.architecture.parts.get(spec.name, 1) for spec in specs],
            matrices=[spec.matrix for spec in specs],
            settings={
                name: self._tensor([row[name] for row in settings], torch.float64)
                for name in settings[0]
            },
        )


BLOCK_STEPS = 64
"""What steps need of the host is worked out for so many at once, and sent in one copy."""

Gather = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets [..., ...] at positions [...]."""


def send(values: Tensor, to: Tensor) -> None:
    """Copy to a tensor of the device without waiting for what that is doing."""
    # Only a copy from pinned memory does not wait.
    pins = to.is_cuda and not values.is_cuda
    to.copy_(values.pin_memory() if pins else values, non_blocking=pins)


class Feed:
    """One batch for every seed, the same values as `Corpus.batch` gives, on `device`.

    The host never waits for the device. A corpus of a kind that is not known here, or too large
    for the device, is read on the host a step at a time.
    """

    def __init__(
        self,
        corpus: Corpus,
        train: TrainSettings,
        seeds: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is what floating-point inputs are given as."""
        self.corpus, self.train, self.seeds = corpus, train, list(seeds)
        self.device, self.dtype = device, dtype
        # With the corpus on the device a step needs from the host only where to read,
        # [steps, seeds, batch] for a block of steps; without, its batch.
        self.resident = None
        if device.type != "cpu" and isinstance(corpus, TokenCorpus | ArrayCorpus):
            self.resident = resident(corpus, train.seq_len, device, dtype)
        self.sent, self._block = tuple[Tensor, ...](), -1

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets [seeds, batch, ...] of `step`."""
        self.send(step)
        x, y = self.read(torch.tensor([step % BLOCK_STEPS], device=self.device))
        return x.clone(), y.clone()

    def send(self, step: int) -> bool:
        """Bring what `read` takes for `step`; whether it lies in another place than before."""
        size = (self.train.batch_size, self.train.seq_len)
        if self.resident is None:
            batches = [self.corpus.batch(seed, step, *size) for seed in self.seeds]
            return self._keep(*self.to_device(batches))
        if self._block == (block := step // BLOCK_STEPS):
            return False
        self._block, steps = block, range(block * BLOCK_STEPS, (block + 1) * BLOCK_STEPS)
        positions = self.resident[0].positions
        rows = [[positions(seed, s, *size) for seed in self.seeds] for s in steps]
        return self._keep(torch.from_numpy(np.array(rows)))

    def read(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [seeds, batch, ...] of the step with the row [1] in its block."""
        if self.resident is None:
            x, y = self.sent
            return x, y
        [positions] = self.sent
        return self.resident[1](positions.index_select(0, row)[0])

    def _keep(self, *values: Tensor) -> bool:
        if [value.shape for value in values] != [sent.shape for sent in self.sent]:
            self.sent = tuple(value.to(self.device) for value in values)
            return True
        for value, sent in zip(values, self.sent, strict=True):
            send(value, sent)
        return False

    def to_device(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Batches of the host, stacked on the device."""
        xs, ys = zip(*batches, strict=True)
        x, y = (torch.from_numpy(np.stack(part)).to(self.device) for part in (xs, ys))
        return (x.to(self.dtype) if x.is_floating_point() else x), y


@lru_cache(maxsize=1)
def resident(
    corpus: TokenCorpus | ArrayCorpus, seq_len: int, device: torch.device, dtype: torch.dtype
) -> tuple[TokenCorpus | ArrayCorpus, Gather] | None:
    """A corpus and how to gather from it on the device; None where it stays on the host."""
    graph.KEPT.clear()  # what reads the corpus before this one would keep it there for nothing
    if isinstance(corpus, TokenCorpus):
        if not graph.fits(4 * len(corpus.tokens), device):  # as int32
            return None
        tokens = torch.from_numpy(corpus.tokens.astype(np.int32)).to(device)
        offsets = torch.arange(seq_len + 1, device=device)

        def gather(positions: Tensor) -> tuple[Tensor, Tensor]:
            windows = tokens[positions[..., None] + offsets].long()
            return windows[..., :-1], windows[..., 1:]

        return corpus, gather
    # What is drawn for an image is drawn on the host, and images with it.
    if not corpus.augment.is_none or not graph.fits(corpus.inputs.nbytes, device):
        return None
    inputs = torch.from_numpy(np.array(corpus.inputs)).to(device)
    labels = torch.from_numpy(corpus.labels.astype(np.int64)).to(device)
    mean, std = float(np.float32(corpus.mean)), float(np.float32(corpus.std))

    def normalized(positions: Tensor) -> tuple[Tensor, Tensor]:
        # As the corpus has it: float32 throughout, whatever the model is trained in.
        return ((inputs[positions].float() - mean) / std).to(dtype), labels[positions]

    return corpus, normalized


def forget_kept() -> bool:
    """Free what lies on a device for batches to come; whether that was more than a corpus."""
    kept = bool(graph.KEPT)
    graph.KEPT.clear()
    resident.cache_clear()
    return kept
