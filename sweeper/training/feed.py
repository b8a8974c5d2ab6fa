"""Batches on the device: samples are gathered where the model is, their positions drawn ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sweeper.data.arrays import ArrayCorpus
from sweeper.data.corpus import Batch, Corpus, TokenCorpus
from sweeper.train_settings import TrainSettings

BLOCK_STEPS = 64
"""Positions are drawn for so many steps at once, and sent to the device in one copy."""
MAX_MEMORY_FRACTION = 0.25
"""A corpus is copied to the device when it takes at most this fraction of its free memory."""

Gather = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets [..., ...] at positions [...]."""


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
        self._resident = self._load_corpus() if device.type != "cpu" else None
        self._position_block, self._block_start = torch.empty(0), 0

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets [seeds, batch, ...] of `step`."""
        return self.samples(self.source(step))

    def source(self, step: int) -> tuple[Tensor, ...]:
        """What `samples` makes the batch of `step` from: positions, or the batch itself."""
        size = (self.train.batch_size, self.train.seq_len)
        if self._resident is None:
            return self.to_device([self.corpus.batch(seed, step, *size) for seed in self.seeds])
        corpus, _ = self._resident
        if not 0 <= step - self._block_start < len(self._position_block):
            steps = range(step, step + BLOCK_STEPS)
            rows = [[corpus.positions(seed, s, *size) for seed in self.seeds] for s in steps]
            block = torch.from_numpy(np.array(rows))
            if self.device.type == "cuda":
                # Only a copy from pinned memory does not wait for what the GPU is doing.
                block = block.pin_memory()
            self._position_block = block.to(self.device, non_blocking=self.device.type == "cuda")
            self._block_start = step
        return (self._position_block[step - self._block_start],)

    def samples(self, source: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Inputs and targets [seeds, batch, ...]; on a device that holds the corpus, no copy."""
        if self._resident is None:
            x, y = source
            return x, y
        _, gather = self._resident
        return gather(*source)

    def to_device(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Batches of the host, stacked on the device."""
        xs, ys = zip(*batches, strict=True)
        x, y = (torch.from_numpy(np.stack(part)).to(self.device) for part in (xs, ys))
        return (x.to(self.dtype) if x.is_floating_point() else x), y

    def _load_corpus(self) -> tuple[TokenCorpus | ArrayCorpus, Gather] | None:
        """The corpus and how to gather from it on the device; None where it stays on the host."""
        match self.corpus:
            case TokenCorpus() as corpus if self._fits(4 * len(corpus.tokens)):
                return corpus, self._windows(corpus)
            case ArrayCorpus() as corpus if self._fits(corpus.inputs.nbytes):
                return corpus, self._samples(corpus)
        return None

    def _fits(self, size: int) -> bool:
        if self.device.type != "cuda":
            return True
        return size <= MAX_MEMORY_FRACTION * torch.cuda.mem_get_info(self.device)[0]

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
        dtype = self.dtype  # a gather that knew the feed would keep both, and the corpus, alive

        def gather(positions: Tensor) -> tuple[Tensor, Tensor]:
            # As the corpus has it: float32 throughout, whatever the model is trained in.
            x = (inputs[positions].float() - float(np.float32(corpus.mean))) / float(
                np.float32(corpus.std)
            )
            return x.to(dtype), labels[positions]

        return gather
