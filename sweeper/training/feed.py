"""Batches on the device: samples are gathered where the model is, their positions drawn ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sweeper.data.arrays import ArrayCorpus
from sweeper.data.corpus import Batch, Corpus, TokenCorpus
from sweeper.train_settings import TrainSettings

AHEAD = 64
"""Positions are drawn for so many steps at once, and sent to the device in one copy."""
SHARE = 0.25
"""A corpus moves to the device when it takes at most this share of its free memory."""

Gather = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets [..., ...] at positions [...]."""


class Feed:
    """One batch for every seed, the same values as `Corpus.batch` gives, on `device`.

    The device is never waited for. A corpus of another kind than ours, or too large for the
    device, is read on the host a step at a time.
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
        self._resident = self._moved() if device.type != "cpu" else None
        self._first, self._ahead = 0, torch.empty(0)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets [seeds, batch, ...] of `step`."""
        size = (self.train.batch_size, self.train.seq_len)
        if self._resident is None:
            return self.sent([self.corpus.batch(seed, step, *size) for seed in self.seeds])
        corpus, gather = self._resident
        if not self._first <= step < self._first + len(self._ahead):
            steps = range(step, step + AHEAD)
            rows = [[corpus.positions(seed, s, *size) for seed in self.seeds] for s in steps]
            self._first, self._ahead = step, self._send(torch.from_numpy(np.array(rows)))
        return gather(self._ahead[step - self._first])

    def sent(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Batches of the host, stacked on the device."""
        xs, ys = zip(*batches, strict=True)
        x, y = (torch.from_numpy(np.stack(part)).to(self.device) for part in (xs, ys))
        return (x.to(self.dtype) if x.is_floating_point() else x), y

    def _send(self, values: Tensor) -> Tensor:
        """To the device without waiting for what it is doing."""
        if self.device.type != "cuda":
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def _moved(self) -> tuple[TokenCorpus | ArrayCorpus, Gather] | None:
        """The corpus and how to gather from it on the device; None where it does not go there."""
        match self.corpus:
            case TokenCorpus() as corpus if self._fits(4 * len(corpus.tokens)):
                return corpus, self._windows(corpus)
            case ArrayCorpus() as corpus if self._fits(corpus.inputs.nbytes):
                return corpus, self._samples(corpus)
        return None

    def _fits(self, size: int) -> bool:
        if self.device.type != "cuda":
            return True
        return size <= SHARE * torch.cuda.mem_get_info(self.device)[0]

    def _windows(self, corpus: TokenCorpus) -> Gather:
        tokens = torch.from_numpy(corpus.tokens.astype(np.int32)).to(self.device)
        offsets = torch.arange(self.train.seq_len + 1, device=self.device)

        def gather(positions: Tensor) -> tuple[Tensor, Tensor]:
            windows = tokens[positions[..., None] + offsets].long()
            return windows[..., :-1], windows[..., 1:]

        return gather

    def _samples(self, corpus: ArrayCorpus) -> Gather:
        inputs = torch.from_numpy(np.array(corpus.inputs)).to(self.device)
        labels = torch.from_numpy(corpus.labels.astype(np.int64)).to(self.device)

        def gather(positions: Tensor) -> tuple[Tensor, Tensor]:
            # As the corpus has it: float32 throughout, whatever the model is trained in.
            x = (inputs[positions].float() - float(np.float32(corpus.mean))) / float(
                np.float32(corpus.std)
            )
            return x.to(self.dtype), labels[positions]

        return gather
