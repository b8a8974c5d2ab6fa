"""What this version no longer has, and what to do instead: one message for each, for one version.

The command line looks here for an unknown verb or flag, Python for an unknown keyword, and Hydra's
room for an unknown key or config; nothing else names what went.
"""

from __future__ import annotations

from collections.abc import Mapping

GONE: Mapping[str, str] = {
    "sweeper.samplers": "sweeper.search.optuna.enqueue has enqueue(study, strategy, space), which "
    "asks any strategy in any study of Optuna's",
}
"""A verb (`diagnose`), a verb's keyword (`judge save`), a setting's key (`law.known`), a config
(`search=grid2d`) or an exporter (`export to=olmo-core`): what takes its place."""


def gone(name: str) -> str:
    """The closing clause of a message that refuses `name`; empty for what never was."""
    remedy = GONE.get(name)
    return f"; `{name}` went: {remedy}" if remedy else ""
