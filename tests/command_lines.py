"""Whether a command line is one: its verb, its flags, and its settings, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from sweeper.check.judge import CheckRule
from sweeper.cli.app import app
from sweeper.config.command_line import FROM, with_user_command
from sweeper.config.compose import compose_tree
from sweeper.config.settings import StudySettings, checked_plugin
from sweeper.data.corpus import Source
from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.errors import key_prefix
from sweeper.export.exporter import build_exporter
from sweeper.launch.executor import Launcher, RunnerSettings
from sweeper.laws.law import Law
from sweeper.models.fp8 import Fp8
from sweeper.records import call_checked
from sweeper.search.strategy import Strategy
from sweeper.stats.ladder import LadderRule
from sweeper.study.logs.log import Logger
from sweeper.trial import TrainSettings

USAGE_ERROR: Any = typer.BadParameter.__base__
VERBS: Any = typer.main.get_command(app)
PLUGINS: dict[str, Any] = {
    "optimizer": Optimizer,
    "search": Strategy,
    "runner": RunnerSettings,
    "launcher": Launcher,
    "data": Source,
    "logger": Logger,
    "fp8": Fp8,
    "law": Law,
}
SECTIONS: dict[str, Any] = {
    "study": StudySettings,
    "train": TrainSettings,
    "transfer": LadderRule,
    "check": CheckRule,
}


def parse(words: Sequence[str]) -> dict[str, Any]:
    """A verb's options and arguments, checked; typer's error or BadInput for what is refused."""
    verb, *rest = with_user_command(words)
    assert verb in VERBS.commands, f"there is no verb {verb}"
    values = VERBS.get_command(None, verb).make_context(verb, list(rest)).params
    if verb == "export":
        options = dict(word.split("=", 1) for word in values["options"] or [])
        build_exporter(values["to"], {key: yaml_value(text) for key, text in options.items()})
    elif "overrides" in values and not values.get("config_dir"):  # the reader's own groups
        # What a search begins at is another study, and no setting; a ladder that is left out stands
        # beside others, which its study may know.
        settings = (
            word
            for word in values["overrides"] or ()
            if not ((verb == "search" and FROM in word) or word.endswith("=[]"))
        )
        compose(tuple(settings))
    return dict(values)


def yaml_value(text: str) -> object:
    """An option's value as `export` reads it."""
    return {"true": True, "false": False}.get(text, text)


@cache
def compose(words: tuple[str, ...]) -> None:
    """Compose settings, and check their values; BadInput for what is refused.

    The model alone is not built: that takes a second, and every search's own test does it.
    """
    tree = compose_tree(words)
    for group, kind in PLUGINS.items():
        if not str(tree[group]["_target_"]).startswith("my_laws."):
            with key_prefix(group):
                checked_plugin(tree[group], kind)
    if tree["train"]["precision"] == "auto":  # the runner decides what it is
        tree["train"]["precision"] = "float32"
    for section, kind in SECTIONS.items():
        with key_prefix(section):
            call_checked(kind, tree[section], {})
