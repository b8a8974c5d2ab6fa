"""Commands for tests: trials of a script, without a study."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.command.command_runner import Command, CommandRunner
from sweeper.data.corpus import UserData
from sweeper.launch.inline import Inline
from sweeper.launch.job import UNCONTROLLED, Control, JobOutcome
from sweeper.search.prune import Pruner
from sweeper.trial import Log2Hps, PluginSpec, Trial
from tests.specs import spec_of

SCRIPT = Path(__file__).parent / "script.py"
METRIC = r"step (?P<step>\d+): loss (?P<loss>\S+)"


def command(how: str = "", **more: Any) -> Command:
    argv = (sys.executable, str(SCRIPT), "--lr={eta}", "--width={width}", "--steps={steps}")
    argv += ("--seed={seed}", "--dir={dir}", f"--how={how}")
    options = {"metric": METRIC, "grace": 0.5, "code": None} | more
    return Command(command=(*argv, *options.pop("words", ())), **options)


def trial(settings: Command, *, eta: float = -7, width: int = 16, steps: int = 20) -> Trial:
    sizes = {"model": {"width": width, "depth": 1}, "base": {"width": 16, "depth": 1}}
    spec = spec_of({**sizes, "train": {"steps": steps, "batch_size": 8, "seq_len": 16}})
    own = PluginSpec(name="own")
    spec = replace(spec, runner=settings.identity(), parameterization=own, model=own)
    return Trial(spec=spec, log2_hps=Log2Hps({"eta": float(eta)}))


def runner(settings: Command, folder: Path) -> CommandRunner:
    return settings.open(UserData(), Inline(), folder, lambda sentence: None)


def run(
    settings: Command,
    folder: Path,
    *,
    control: Control = UNCONTROLLED,
    pruner: Pruner | None = None,
    **more: Any,
) -> tuple[JobOutcome, Path]:
    asked = trial(settings, **more)
    job = runner(settings, folder).job((asked,), pruner)
    return job.task.run(control), folder / "trials" / asked.key
