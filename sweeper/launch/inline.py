"""Train in this process, one pack after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeper.data.corpus import Corpus
from sweeper.errors import ConfigError
from sweeper.launch.launcher import Work
from sweeper.launch.packs import PackQueue, estimate, resolve_device, run_pack
from sweeper.training import checkpoint
from sweeper.training.pack import Compile
from sweeper.training.train import Execution, Reporter
from sweeper.trial import Result, Trial


@dataclass(frozen=True, kw_only=True)
class Inline:
    """The simplest launcher: no other process, one device.

    `pack` is the number of trials trained as one model, "auto" to measure it. `compile` is
    "auto" (on a GPU, where a pack is long enough to earn the compile time back), "on" or "off".
    A pack saves itself every `save_every` seconds.
    """

    device: str = "auto"
    pack: int | Literal["auto"] = "auto"
    compile: Compile = "auto"
    save_every: float = 300.0

    def __post_init__(self) -> None:
        """Refuse an impossible pack size or time."""
        if self.pack != "auto" and self.pack < 1:
            raise ConfigError("pack", self.pack, "auto, or at least 1")
        if not self.save_every > 0:
            raise ConfigError("save_every", self.save_every, "a positive number of seconds")

    def precision(self) -> str:
        """Bfloat16 autocast on a GPU, float32 elsewhere."""
        return "bfloat16" if self._device().startswith("cuda") else "float32"

    def estimate(self, trials: Sequence[Trial], corpus: Corpus) -> tuple[int, float]:
        """Pack size and seconds of a trial's step; see `Launcher`."""
        return estimate(tuple(trials), corpus, self._device(), self.pack)

    def run(self, work: Work) -> Iterator[list[Result]]:
        """One pack after the other, those first that were begun before; see `Launcher`."""
        folder = work.folder / "checkpoints"
        execution = Execution(
            device=self._device(),
            compile=self.compile,
            checkpoints=folder,
            save_every=self.save_every,
        )
        queue = PackQueue(work, self._device(), self.pack)
        while pack := queue.next():
            count, told = len(pack.trials), [0.0]

            def progress(share: float, count: int = count, told: list[float] = told) -> None:
                work.watch((share - told[0]) * count)
                told[0] = share

            reporter = Reporter(progress=progress, tell=work.tell)
            results, back = run_pack(pack, execution, reporter, work.pruner(pack.trials[0]))
            if back:
                work.watch(-told[0] * count)
            else:
                progress(1.0)
            queue.put_back(back)
            yield results
            checkpoint.forget(folder, pack.trials)  # of no use either where they go on in parts

    def _device(self) -> str:
        return resolve_device(self.device)
