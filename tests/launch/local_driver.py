"""`python -m tests.launch.local_driver FOLDER STEPS`: a driver to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sweeper.launch.local.executor import Local
from tests.launch.faulty_corpus import deadly
from tests.launch.trial_sweep import TrialSweep
from tests.training.tiny_trials import trial

STEPS = 60


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    sweep = TrialSweep(
        trials=[trial(seed=seed, train={"steps": STEPS}) for seed in range(2)],
        corpus=deadly(folder, "slow"),
        folder=folder,
    )
    sweep.run(Local(workers=2), pack=1)


if __name__ == "__main__":
    main()
