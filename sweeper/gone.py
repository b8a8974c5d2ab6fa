"""What this version no longer has, and what to do instead: one message for each, for one version.

The command line looks here for an unknown verb or flag, Python for an unknown keyword, and Hydra's
room for an unknown key or config; nothing else names what went.
"""

from __future__ import annotations

from collections.abc import Mapping

YOUR_GROUPS = "write your trainer's groups from plan.json (docs/export.md)"

GONE: Mapping[str, str] = {
    "check rules": "the measured table is in docs/parameterizations.md",
    "search=grid2d": "search=pairs 'search.pairs=[[eta,weight_decay]]' lays a grid over the two",
    "explain published": "`sweeper explain --to-width N` shows what a model of ours is prescribed",
    "export to=automodel": YOUR_GROUPS,
    "export to=llm-foundry": YOUR_GROUPS,
    "export to=nanogpt-mup": YOUR_GROUPS,
    "export to=olmo-core": YOUR_GROUPS,
    "diagnose": "`sweeper check` names the modules whose rule is wrong, a failed verdict what else "
    "to look at",
    "judge grid_step": "it was of optima alone; judge takes runs with their losses, a row a run",
    "columns optimum": "judge takes runs with their losses, a row a run",
    "judge save": "judge, predict and compare take the table itself, as often as you like",
    "saved": "a table that `judge` saved is no study any more; judge, predict and compare take the "
    "table itself",
    "predict form": "there is one law of size and tokens, E + A/N^alpha + B/D^beta",
    "predict huber": "runs that the others say to be far off count less by themselves, and are "
    "named",
    "predict draws": "the law has as many draws as its interval needs",
    "predict flops_per_second": "hours are told by the table's column `seconds`; or divide the "
    "FLOPs by your speed",
    "report picture": "a page saves each of its drawings, as SVG or PNG",
    "transfer predict": "train the ladder with `transfer --horizons`, then read it with "
    "`sweeper predict --study NAME --to-width N`",
    "law.from": "`sweeper judge RUNS --to-params N --to-tokens D` tells the rate of other runs; "
    "a plan takes exponents by law=joint law.batch=B law.tokens=T",
    "follow spike_steps": "a spike that returns raises no alarm, and needs no length",
    "follow measured": "hold a held-out loss against the interval in prediction.json",
    "follow ledger": "the answer, its page and --json have the end beside what was predicted",
    "study.plot_history": "the study's page draws it, by Optuna",
    "study.plot_lines": "the study's page draws slices, by Optuna; `plot_ladder` draws a ladder",
    "study.plot_pairs": "a search's table has the transfer error of every pair, its page contours",
    "study.plot_loss_curves": "logger=tensorboard or logger=wandb shows losses over the steps",
    "sweeper.Compared": "compare answers as every verb does: `.document['variants']`",
    "sweeper.samplers": "sweeper.search.optuna.enqueue has enqueue(study, strategy, space), which "
    "asks any strategy in any study of Optuna's",
}
"""A verb (`diagnose`), a verb's keyword (`judge save`), a setting's key (`law.known`), a config
(`search=grid2d`) or an exporter (`export to=olmo-core`): what takes its place."""


def gone(name: str, typed: str = "") -> str:
    """The closing clause of a message that refuses `name`, `typed` so; empty for what never was."""
    remedy = GONE.get(name)
    return f"; `{typed or name}` was removed: {remedy}" if remedy else ""
