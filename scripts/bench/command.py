"""What sweeper adds to a command: trials of it against the same command run by itself.

    python scripts/bench/command.py --repeats 30

Both sides run the same program, in turn; the difference is folders, files, the log and its reading.
A shell (`sh`) ends in a millisecond, so that what is left is the overhead alone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeper.command.command_runner import Command
from sweeper.data.corpus import UserData
from sweeper.launch.inline import Inline
from sweeper.launch.job import UNCONTROLLED
from sweeper.trial import Log2Hps, PluginSpec, TrainSettings, Trial, TrialSpec

SCRIPT = "echo step 0: loss 2.0 {eta}; echo step 1: loss 1.0"


def trial(settings: Command, number: int) -> Trial:
    """One trial of two steps."""
    spec = TrialSpec(
        runner=settings.identity(),
        parameterization=PluginSpec(name="own"),
        model=PluginSpec(name="own"),
        width=64,
        depth=1,
        base_width=64,
        base_depth=1,
        optimizer=PluginSpec(name="adamw"),
        data={"own": ""},
        train=TrainSettings(steps=2, batch_size=1, seq_len=1),
    )
    return Trial(spec=spec, log2_hps=Log2Hps({"eta": -8.0}), seed=number)


def main() -> None:
    """Print the medians, their difference and the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    settings = Command(
        command=("sh", "-c", SCRIPT), metric=r"step (?P<step>\d+): loss (?P<loss>\S+)"
    )
    alone, ours = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        runner = settings.open(UserData(), Inline(), Path(folder), lambda sentence: None)
        for number in range(repeats):
            one = trial(settings, number)
            start = time.perf_counter()
            argv = settings.argv(one, Path(folder))
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            alone.append(time.perf_counter() - start)
            start = time.perf_counter()
            outcome = runner.job((one,), None).task.run(UNCONTROLLED)
            ours.append(time.perf_counter() - start)
            assert outcome.results[0].status == "complete", outcome
    command, trials = (1000 * statistics.median(times) for times in (alone, ours))
    print(
        f"the command alone {command:.1f} ms, as a trial {trials:.1f} ms: "
        f"{trials - command:.1f} ms more"
    )
    if trials - command > 15:
        print("more than the 15 ms that a trial may cost", file=sys.stderr)


if __name__ == "__main__":
    main()
