"""What a study's own records would run or send, and whether this user has let them.

A folder of studies may come from anywhere, and its config.yaml names classes and a command. What a
user's own command line put there is remembered outside of the folder, by the folder and by all that
it names, as direnv remembers what it may load: who changes a word of it, or moves it, is asked
again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeper.files import private_folder, write_json
from sweeper.registry import classes_in, is_shipped
from sweeper.search.optuna.url import redact
from sweeper.trial import digest

_SHELL = ("setup", "python", "sbatch", "submitit")
"""Settings of a launcher that are run as they are, in a shell here or on a cluster."""
_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "auto_map")
"""Fields of a transformers configuration that may name code on a hub."""


def code_of(tree: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration would run that is not sweeper's own, or send: what sets it, and what."""
    runs = {
        f"{group} {target}": f"run the class {target} ({group})"
        for group, settings in tree.items()
        for target in classes_in(settings)
        if not is_shipped(target)
    }
    runner, launcher, model = (_group(tree, name) for name in ("runner", "launcher", "model"))
    if command := runner.get("command"):
        # config.yaml may come from anywhere, and nothing has checked its types yet.
        parts = list(map(str, command)) if isinstance(command, list | tuple) else [str(command)]
        runs["runner.command"] = (
            f"run the command `{shlex.join(parts)}` in {runner.get('cwd') or '.'}"
        )
    for key in _SHELL:
        if value := launcher.get(key):
            runs[f"launcher.{key}"] = f"run {value!r} with its jobs (launcher.{key})"
    for key in _KERNELS:
        if value := _group(model, "config").get(key):
            runs[f"model.config.{key}"] = f"run {value!r} (model.config.{key})"
    logger, storage = _group(tree, "logger"), _group(tree, "study").get("storage")
    # To send is no less than to run: a run's configuration and losses leave this machine.
    if logger.get("mode") == "online":
        names = (str(logger[key]) for key in ("entity", "project") if logger.get(key))
        runs["logger.mode"] = f"send every trial to Weights & Biases, {'/'.join(names)} (logger)"
    if storage:
        runs["study.storage"] = f"send every trial to {redact(str(storage))} (study.storage)"
    return runs


def remember(folder: Path, tree: Mapping[str, Any]) -> None:
    """Let later commands run what the kept configuration `tree` of the study in `folder` names.

    Where nothing can be kept, they ask.
    """
    if not (code := code_of(tree)):
        return
    with suppress(OSError):
        place = _places()
        private_folder(place)
        write_json(place / _entry(folder, tree), {"study": str(folder.resolve()), "runs": code})


def remembered(folder: Path, tree: Mapping[str, Any]) -> bool:
    """Whether this user let the study in `folder` run exactly what its configuration names."""
    # The file's name is the digest of what was allowed; its content is for people.
    return (_places() / _entry(folder, tree)).is_file()


def _places() -> Path:
    """Where trust is kept: outside of every study, in this user's own state."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "sweeper" / "trusted"


def _entry(folder: Path, tree: Mapping[str, Any]) -> str:
    """The folder, what it would run, and all that is passed to that."""
    groups = {key.partition(" ")[0].partition(".")[0] for key in code_of(tree)}
    # Whole groups, not names alone: another argument may have the same class do something else.
    passed = {group: tree[group] for group in sorted(groups)}
    return digest([str(folder.resolve()), passed])


def _group(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = tree.get(name)
    return group if isinstance(group, Mapping) else {}
