"""Weights & Biases: a run a trial, a mirror of the study's record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeper.errors import ConfigError
from sweeper.files import read_json
from sweeper.records import to_json
from sweeper.study.folder import TargetFolder
from sweeper.study.logs.log import (
    Ledger,
    Ledgers,
    axis_verdicts,
    log_folder,
    loss_curve,
    plan_line,
    result_line,
)
from sweeper.trial import Result, digest

if TYPE_CHECKING:
    import wandb

FAILURES = 3
"""So many failures one after the other, and W&B is not asked again: each may take a timeout."""
Fill = Callable[["wandb.Run"], None]
"""Writes what there is to say into a run."""

# The run is a record of training that is over: what this process does meanwhile is no part of it.
QUIET: dict[str, Any] = {
    "console": "off",
    "disable_git": True,
    "finish_timeout_raises": True,
    "save_code": False,
    "silent": True,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


@dataclass(kw_only=True)
class _Session:
    ledgers: Ledgers = field(default_factory=Ledgers)
    unreachable: bool = False
    failed: list[Exception] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class WandB:
    """A run for every trial in `project`, grouped by study, its job type the search's phase.

    `mode` offline writes to `wandb/` in the study's folder, for `wandb sync`; online sends, and
    goes on offline after the first time that nothing could be sent; disabled does nothing.
    `entity` is the user or team (None: the key's own), `timeout` how many seconds W&B may take
    to begin and to end a run. A run's id follows from the study's name and the trial's key, and
    `wandb/logged` in the study's folder says what was logged where: nothing is logged twice.
    """

    project: str = "sweeper"
    entity: str | None = None
    mode: Literal["offline", "online", "disabled"] = "offline"
    timeout: float = 60.0
    _session: _Session = field(default_factory=_Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise ConfigError("timeout", self.timeout, "a number of seconds above 0")
        if not self.project or any(mark in "/\\#?%:" for mark in self.project):
            raise ConfigError("project", self.project, "a name without any of / \\ # ? % :")

    def log(self, folder: Path, result: Result) -> str | None:
        """A run with the trial's curve over steps, its configuration, and the outcome."""

        def fill(run: wandb.Run) -> None:
            for step, loss in loss_curve(result):
                run.log({"loss": loss}, step=step)
            names = ("objective", "heldout", "status", "seconds", "steps", "error", "device")
            run.summary.update({name: getattr(result, name) for name in names})
            if result.accuracy is not None:
                run.summary.update({"accuracy": result.accuracy})

        trial = result.trial
        config = {
            "hps": dict(trial.values),
            "log2_hps": dict(trial.log2_hps),
            "seed": trial.seed,
            "width": trial.width,
            "depth": trial.depth,
            "key": trial.key,
            "spec": to_json(trial.spec),
        }
        kind, name = trial.phase or "trial", f"w{trial.width}-d{trial.depth}-{trial.key[:8]}"
        about = {"name": name, "job_type": kind, "config": config}
        return self._once(folder, trial.key, result_line(result), about, fill)

    def plan(self, folder: Path, target: Path) -> str | None:
        """A run with the plan as an artifact, and the verdict when there is one."""
        if self.mode == "disabled":
            return None
        import wandb

        plan_document = read_json(TargetFolder(target).plan)
        verdict = axis_verdicts(target)
        name = f"{folder.absolute().name}-{target.name}"

        def fill(run: wandb.Run) -> None:
            artifact = wandb.Artifact(name, "transfer-plan", metadata={"verdict": verdict})
            for path in sorted(target.glob("*.*")):
                # As it lies in the study: a copy of it would go to the user's home.
                artifact.add_file(str(path), skip_cache=True, policy="immutable")
            run.log_artifact(artifact)
            run.summary.update({f"transfer over {axis}": code for axis, code in verdict.items()})

        config = {"hps": plan_document.get("hps") or {}}
        about = {"name": target.name, "job_type": "plan", "config": config}
        return self._once(folder, f"plan {target.name}", plan_line(target), about, fill)

    def _once(
        self, folder: Path, what: str, line: str, about: Mapping[str, Any], fill: Fill
    ) -> str | None:
        """Make the run of `what` unless the ledger has its `line`; say it when W&B is not there."""
        if self.mode == "disabled":
            return None
        # The same trial gets the same id in every process: W&B then goes on with it, not beside it.
        run_id = digest([folder.absolute().name, what])[:32]
        about = {**about, "id": run_id, "group": folder.absolute().name}
        ledger, sentence = self._session.ledgers.at(log_folder(folder, "wandb") / "logged"), None
        if self._entry(line) in ledger:
            return None
        if not self._offline():
            sentence = self._online(folder, about, fill)
        if self._offline():  # from the beginning, or since the attempt just made
            self._written(folder, ledger, line, about, fill)
        else:
            ledger.add(self._entry(line))
        return sentence

    def _offline(self) -> bool:
        return self.mode == "offline" or self._session.unreachable

    def _entry(self, line: str) -> str:
        """A line of the ledger: where it went, and what; another place wants its own copy."""
        place = ["offline"] if self._offline() else ["online", self.entity or ""]
        return f"{json.dumps([*place, self.project])} {line}"

    def _online(self, folder: Path, about: Mapping[str, Any], fill: Fill) -> str | None:
        """Send a run; when that fails, nothing is sent any more, and this says why."""
        try:
            self._run("online", folder, about, fill)
        except Exception as error:
            # For all of this process: each further attempt could take a timeout.
            self._session.unreachable = True
            _remove(folder, f"run-*-{about['id']}")
            first = next(iter(str(error).splitlines()), type(error).__name__)
            return (
                f"W&B cannot be reached ({first}): logging offline from here on; `wandb sync` "
                "sends what is in the study's wandb/, and so does the same command when W&B is back"
            )
        return None

    def _written(
        self, folder: Path, ledger: Ledger, line: str, about: Mapping[str, Any], fill: Fill
    ) -> None:
        """Write a run to the disk, in place of any older or unfinished one of the same id."""
        if self._entry(line) in ledger:
            return
        failed = self._session.failed
        if len(failed) >= FAILURES:
            raise failed[-1]
        _remove(folder, f"*run-*-{about['id']}")
        try:
            self._run("offline", folder, about, fill)
        except Exception as error:
            failed.append(error)
            raise
        failed.clear()
        ledger.add(self._entry(line))

    def _run(
        self, mode: Literal["offline", "online"], folder: Path, about: Mapping[str, Any], fill: Fill
    ) -> None:
        """One run from its beginning to its end; whatever W&B raises, its service is ended then."""
        import wandb

        times: dict[str, Any] = {"init_timeout": self.timeout, "finish_timeout": self.timeout}
        times |= {"login_timeout": self.timeout, "x_service_wait": self.timeout}
        try:
            # "allow" goes on with an id that is there, of which a kill left a part; "create_new"
            # leaves alone whatever run the calling program has open.
            with wandb.init(
                **about,
                mode=mode,
                project=self.project,
                entity=self.entity,
                dir=str(folder.absolute()),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(**QUIET, **times),
            ) as run:
                # W&B may go on offline, or disabled, by itself where it has no key.
                if run.disabled or run.offline != (mode == "offline"):
                    raise ConnectionError("nobody logged in")
                fill(run)
        except Exception:
            with suppress(Exception):
                wandb.teardown()  # or the next run would get the same service
            raise


def _remove(folder: Path, runs: str) -> None:
    for old in (folder / "wandb").glob(runs):
        shutil.rmtree(old, ignore_errors=True)
