"""What is not here: gone for a version, or Hydra's alone; and what to type instead, a line each.

The command line looks here for an unknown verb or flag, Python for an unknown keyword, and Hydra's
room for an unknown key or config; nothing else names what went.
"""

from __future__ import annotations

from collections.abc import Mapping

GONE: Mapping[str, str] = {
    "check rules": "the measured table is in docs/parameterizations.md",
    **dict.fromkeys(
        ("search=grid2d", "Grid2D"),
        "search=pairs 'search.pairs=[[eta,weight_decay]]' lays a grid over the two",
    ),
    "explain published": "`sweeper explain --to-width N` shows what a model of ours is prescribed",
    **dict.fromkeys(
        (f"export to={name}" for name in ("automodel", "llm-foundry", "nanogpt-mup", "olmo-core")),
        "write your trainer's groups from plan.json (docs/export.md)",
    ),
    "diagnose": "`sweeper check` names the modules whose rule is wrong, a failed verdict what else "
    "to look at",
    "judge grid_step": "it was of optima alone; judge takes runs with their losses, a row a run",
    "columns optimum": "judge takes runs with their losses, a row a run",
    "judge save": "judge, predict and compare take the table itself, as often as you like",
    "saved": "a table that `judge` saved is no study any more; judge, predict and compare take the "
    "table itself",
    "predict form": "there is one law of size and tokens, E + A/N^alpha + B/D^beta",
    "predict huber": "runs that lie far off the others count less by themselves, and are named",
    "predict draws": "the law has as many draws as its interval needs",
    "predict flops_per_second": "a column `seconds` tells hours; or divide FLOPs by your speed",
    "report picture": "a page saves each of its drawings, as SVG or PNG",
    **dict.fromkeys(("transfer hours", "compare hours"), "`--budget 8h`"),
    **dict.fromkeys(("export to_width", "export to_depth"), "`--plan FILE` chooses a plan"),
    **dict.fromkeys(("judge max_shift", "judge max_loss_gap"), "--json has both of each size"),
    **dict.fromkeys(
        ("judge out", "predict out", "compare out", "follow out"),
        "it writes below `--root`, or beside what it is of; in Python by `.save` and `.write`",
    ),
    "transfer to_steps": "`--to-tokens`: steps times batch times the length of a sequence",
    "check folder": "it writes into the study, whose place `--root` and `study=NAME` choose",
    "doctor storage": "a search says before it writes anything that its storage cannot be used",
    "compare at_width": "`--to-width` is trained itself where the ladders reach it",
    "compare anyway": "`--ignore` names the settings that may differ",
    "compare floor": "`--fixed E=1.6`",
    "compare exponent": "`--fixed gamma=0.09`",
    "predict floor": "`--fixed E=1.69`",
    "predict exponent": "`--fixed alpha=0.34,beta=0.28`",
    "predict seed": "the law's draws are the same in every call",
    "predict config_dir": "a study keeps its configuration",
    "judge base": "`--where 'width >= 64'` leaves smaller sizes out",
    "follow band": "`--prediction` takes earlier runs, too",
    "follow every": "it looks again by itself, less often where nothing is new",
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
    "Compared": "compare answers as every verb does: `.document['variants']`",
    "samplers": "sweeper.search.optuna.enqueue has enqueue(study, strategy, space), which "
    "asks any strategy in any study of Optuna's",
}
"""A verb (`diagnose`), a verb's keyword (`judge save`), a setting's key (`law.from`), a config
(`search=grid2d`), its class or an exporter (`export to=olmo-core`): what takes its place."""


HYDRA: Mapping[str, str] = {
    **dict.fromkeys(
        ("-m", "--multirun"),
        "`sweeper search search=lr` trains many runs by itself, "
        "`sweeper transfer --to-width N --validate 'transfer.widths=[32,64]'` several sizes",
    ),
    **dict.fromkeys(("-c", "--cfg"), "`sweeper search --dry-run`, and config.yaml of a study"),
    **dict.fromkeys(
        ("-i", "--info", "--hydra-help"),
        "`sweeper doctor` says what is installed, `sweeper search --help` which groups there are",
    ),
    "launcher=submitit_slurm": "`launcher=slurm launcher.partition=NAME`",
    "launcher=submitit_local": "`launcher=local`",
}
"""An option of Hydra's own command line, or a plugin of Hydra's."""


def gone(name: str, typed: str = "") -> str:
    """The closing clause of a message that refuses `name`, `typed` so; empty for what never was."""
    if instead := HYDRA.get(name):
        return f"; in place of Hydra's: {instead}"
    remedy = GONE.get(name)
    return f"; `{typed or name}` was removed: {remedy}" if remedy else ""
