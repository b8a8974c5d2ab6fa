"""What this version no longer has, and what to do instead: one message for each, for one version.

The command line looks here for an unknown verb or flag, Python for an unknown keyword, and Hydra's
room for an unknown key or config; nothing else names what went.
"""

from __future__ import annotations

from collections.abc import Mapping

GONE: Mapping[str, str] = {
    "transfer predict": "train the ladder with `transfer --horizons`, then read it with "
    "`sweeper predict --study NAME --to-width N`",
    "law.from": "`sweeper judge RUNS --to-params N --to-tokens D` tells the rate of other runs; "
    "a plan takes exponents by law=joint law.batch=B law.tokens=T",
}
"""A verb (`diagnose`), a verb's keyword (`judge save`), a setting's key (`law.known`), a config
(`search=grid2d`) or an exporter (`export to=olmo-core`): what takes its place."""


def gone(name: str) -> str:
    """The closing clause of a message that refuses `name`; empty for what never was."""
    remedy = GONE.get(name)
    return f"; `{name}` went: {remedy}" if remedy else ""
