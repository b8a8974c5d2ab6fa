"""`python -m tests.launch.local_driver FOLDER`: a driver to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from sweeper.launch.local import Local
from tests.launch.counting import CountSweep, counted
from tests.launch.trouble import trouble

STEPS = 400
"""So many slow ones that no machine comes to the end before the driver is killed."""


def main() -> None:
    folder = Path(sys.argv[1])
    sweep = CountSweep(
        trials=[counted(seed=seed, steps=STEPS) for seed in range(2)],
        trouble=trouble(folder, "slow"),
        folder=folder,
    )
    sweep.run(Local(workers=2))


if __name__ == "__main__":
    main()
