import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

import sweeper as package
from sweeper.errors import BadInput, ConfigError
from sweeper.evidence.runs.curves import earlier_runs
from sweeper.evidence.runs.read import read
from sweeper.evidence.runs.series import Objective, choose, named_values
from tests.evidence.runs.grids import runs
from tests.refusals import raises_config_error

SMALL = runs(widths=(128, 256, 512), optima=(-7.0,) * 3, etas=np.arange(-9.0, -4.9), seeds=2)
"""A table of thirty runs, whose verdict every place must give."""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lr=0.01_w=128", {"lr": 0.01, "width": 128}),
        ("lr=0.01,model.width=64", {"lr": 0.01, "model.width": 64}),
        ("mup_width=128", {"width": 128}),
        ("base_width=64_width=128", {"base_width": 64, "width": 128}),
        ("gpt2-w1024-lr3e-4-s1", {"width": 1024, "lr": 3e-4, "seed": 1}),
        ("log2lr=-7_w=64", {"log2_lr": -7, "width": 64}),
        ("n_embd: 128", {"n_embd": 128}),
        ("2026-01-02_run", {}),
    ],
)
def test_a_runs_name_says_its_hyperparameters(name: str, values: Mapping[str, Any]) -> None:
    assert named_values(name) == values


@pytest.mark.parametrize(
    ("names", "asked", "series"),
    [
        (("odd",), "", "odd"),
        (("a", "b"), "b", "b"),
        (("lr", "loss", "val/loss"), "", "val/loss"),
        (("lr", "Loss"), "", "Loss"),
    ],
)
def test_the_loss_is_the_asked_series_the_only_one_or_the_usual_one(
    names: tuple[str, ...], asked: str, series: str
) -> None:
    assert choose(names, asked, "here") == series


def optima(judged: Any) -> list[float]:
    return [size.optimum_log2.value for size in judged.judged.verdict.sizes]


def losses_of(row: Any) -> Iterator[tuple[int, float]]:
    """A run of 20 steps whose last tenth has the row's loss as its mean."""
    for step in range(20):
        yield step, float(row.val_loss) + (0.25 if step == 18 else -0.25 if step == 19 else 1.0)


def written(folder: Path, row: Any) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, loss in losses_of(row):
            writer.add_scalar("val/loss", loss, step)
            writer.add_scalar("lr", 0.1, step)


def test_a_folder_of_tensorboard_runs_by_their_names(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small = SMALL[SMALL.seed == 0]
    for row in small.itertuples():
        written(tmp_path / f"w={row.n_embd}_lr={row.lr!r}_seed={row.seed}", row)
    judged, table = package.judge(tmp_path, noise=0.003), package.judge(small, noise=0.003)
    assert judged.answer == table.answer == "holds"
    assert optima(judged) == pytest.approx(optima(table), abs=1e-4)
    assert "mean of its series 'val/loss' over the last 10%" in str(judged)
    last = read(tmp_path, objective=Objective(series="val/loss", window=0))
    assert [*last.frame["loss"]] == pytest.approx([*read(tmp_path).frame["loss"] - 0.25], abs=1e-5)
    with raises_config_error("series", "valid/loss"):
        package.judge(tmp_path, series="valid/loss")


def test_hyperparameters_of_tensorboard_s_plugin_and_of_files_beside_a_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    row = next(SMALL.itertuples())
    written(tmp_path / "a", row)
    with SummaryWriter(str(tmp_path / "a")) as writer:
        writer.add_hparams({"lr": 0.25, "n_embd": 64, "optimizer": "adam"}, {"hparam/x": 1.0})
    written(tmp_path / "b", row)
    (tmp_path / "b" / ".hydra").mkdir()
    (tmp_path / "b" / ".hydra" / "config.yaml").write_text("model: {n_embd: 128}\nlr: 1e-3\n")
    written(tmp_path / "c" / "version_0", row)
    (tmp_path / "c" / "args.json").write_text(json.dumps({"n_embd": 256, "lr": "3e-4"}))
    frame = read(tmp_path).frame.set_index("run")
    assert frame.loc["a", "n_embd"] == 64 and frame.loc["a", "optimizer"] == "adam"
    assert frame.loc["b", "model.n_embd"] == 128 and frame.loc["b", "lr"] == 0.001
    assert frame.loc["c/version_0", "n_embd"] == 256 and frame.loc["c/version_0", "lr"] == 3e-4


def test_a_folder_of_offline_runs_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from tests.study.wandb_files import read_whole

    monkeypatch.setenv("WANDB_SILENT", "true")
    for index, row in enumerate(SMALL.iloc[:2].itertuples()):
        config = {"model": {"n_embd": int(row.n_embd)}, "lr": float(row.lr), "seed": int(row.seed)}
        with wandb.init(mode="offline", dir=tmp_path, project="p", config=config) as run:
            for step, loss in losses_of(row):
                run.log({"val_loss": loss}, step=step)
            if index:
                run.config.update({"lr": 0.5}, allow_val_change=True)
    for path in tmp_path.glob("**/*.wandb"):
        read_whole(path)  # W&B's own process writes it a moment later
    frame = read(tmp_path).frame.sort_values("lr")
    assert [*frame["model.n_embd"]] == [128, 128] and [*frame["state"]] == ["finished"] * 2
    assert frame["lr"].iloc[1] == 0.5
    assert frame["loss"].iloc[0] == pytest.approx(SMALL.val_loss.iloc[0])


class StubbedRun:
    def __init__(self, row: Any, state: str = "finished") -> None:
        self.name, self.state = f"run-{row.Index}", state
        self.config = {"model": {"n_embd": row.n_embd}, "lr": row.lr, "seed": row.seed}
        self.config["_wandb"] = {}
        self._rows = [{"_step": step, "val/loss": loss} for step, loss in losses_of(row)]
        self.summary = {"val/loss": self._rows[-1]["val/loss"], "_step": 19, "_runtime": 3.0}

    def scan_history(self, keys: list[str]) -> list[dict[str, float]]:
        return [{key: row[key] for key in keys} for row in self._rows]


def test_a_project_of_wandb_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    stubs = [StubbedRun(row) for row in SMALL.itertuples()]
    stubs[-1].state = "crashed"
    asked = []

    class Api:
        def runs(self, path: str) -> list[StubbedRun]:
            asked.append(path)
            if path == "team/absent":
                raise ValueError("Could not find project absent")
            return stubs if path == "team/grid" else []

    monkeypatch.setattr(wandb, "Api", Api)
    judged = package.judge("wandb:team/grid")
    assert asked == ["team/grid"] and judged.judged.source == "wandb:team/grid"
    assert judged.answer == "holds" and judged.judged.runs == len(SMALL) - 1
    assert "1 run did not end (crashed)" in str(judged)
    assert optima(judged) == pytest.approx(optima(package.judge(SMALL.iloc[:-1])), abs=1e-9)
    last = read("wandb:team/grid", objective=Objective(window=0)).frame
    assert last["loss"].iloc[0] == pytest.approx(SMALL.val_loss.iloc[0] - 0.25)
    for path in ("wandb:team/absent", "wandb:team/empty"):
        with pytest.raises(BadInput, match=path.removeprefix("wandb:")):
            read(path)
    with raises_config_error("series", "nothing"):
        read("wandb:team/grid", objective=Objective(series="nothing"))


def test_a_folder_of_runs_with_a_file_each(tmp_path: Path) -> None:
    for row in SMALL.itertuples():
        folder = tmp_path / f"w{row.n_embd}_lr{row.lr!r}_s{row.seed}" / "logs"
        folder.mkdir(parents=True)
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in losses_of(row)]
        (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    judged = package.judge(tmp_path, series="jsonl:logs/log.jsonl:loss")
    assert judged.answer == "holds"
    assert optima(judged) == pytest.approx(optima(package.judge(SMALL)), abs=1e-9)
    with pytest.raises(BadInput):
        package.judge(tmp_path)


def test_studies_of_optuna_by_the_url_of_their_storage(tmp_path: Path) -> None:
    import optuna

    url = f"sqlite:///{tmp_path / 'studies.db'}"
    storage = optuna.storages.RDBStorage(url)
    spread = {"lr": optuna.distributions.FloatDistribution(1e-5, 1.0, log=True)}
    for width, part in SMALL.groupby("n_embd"):
        study = optuna.create_study(storage=storage, study_name=f"mup-w{width}")
        for row in part.itertuples():
            asked: Any = {"params": {"lr": row.lr}, "user_attrs": {"seed": int(row.seed)}}
            trial = optuna.create_trial(value=row.val_loss, distributions=spread, **asked)
            study.add_trial(trial)
    optuna.create_study(storage=storage, study_name="best-accuracy", direction="maximize")
    optuna.create_study(storage=storage, study_name="empty")
    judged = package.judge(url, study="mup-*")
    assert judged.answer == "holds"
    assert optima(judged) == pytest.approx(optima(package.judge(SMALL)), abs=1e-9)
    assert "nothing transfers" in str(package.judge(url, study="mup-w128"))
    for asked in ("", "sp-*"):
        with raises_config_error("study", asked):
            package.judge(url, study=asked)
    before = sorted(tmp_path.iterdir())
    for place, study in (
        (url, "best-accuracy"),
        (url, "empty"),
        (f"sqlite:///{tmp_path}/absent.db", ""),
        ("nothing://x", ""),
    ):
        with pytest.raises(BadInput):
            package.judge(place, study=study)
    (tmp_path / "text.db").write_text("no database")
    with pytest.raises(BadInput):
        package.judge(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(BadInput) as caught:
        package.judge("postgresql://me:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(caught.value)
    assert (tmp_path / "text.db").read_text() == "no database"
    assert {*before, tmp_path / "text.db"} == {*tmp_path.iterdir()}


def test_configurations_in_one_column_are_unpacked() -> None:
    rows = [
        {
            "summary": {"val_loss": row.val_loss, "_runtime": 3},
            "config": {"model": {"n_embd": row.n_embd}, "lr": row.lr, "seed": row.seed},
            "name": f"run-{row.Index}",
        }
        for row in SMALL.itertuples()
    ]
    judged = package.judge(pandas.DataFrame(rows))
    assert judged.judged.columns["width"] == "model.n_embd"
    assert optima(judged) == optima(package.judge(SMALL))


@pytest.mark.parametrize("named", [True, False])
def test_of_a_table_with_a_row_a_step_the_end_of_each_run_counts(named: bool) -> None:
    rows = [
        {"n_embd": row.n_embd, "lr": row.lr, "seed": row.seed, "step": step, "val_loss": loss}
        | ({"run": f"run-{row.Index}"} if named else {})
        for row in SMALL.itertuples()
        for step, loss in losses_of(row)
    ]
    frame = pandas.DataFrame(rows).sample(frac=1.0, random_state=0)
    judged = package.judge(frame)
    assert "a row a step" in str(judged) and judged.judged.runs == len(SMALL)
    assert optima(judged) == pytest.approx(optima(package.judge(SMALL)), abs=1e-9)
    # A run that stopped half-way is not the equal of those of its size.
    cut = frame[(frame.step < 10) | (frame.lr != 2.0**-7) | (frame.seed != 0)]
    assert "left out: 3 runs that ended before 90%" in str(package.judge(cut))
    if named:
        with pytest.raises(BadInput, match="lr changes within its runs"):
            package.judge(frame.assign(lr=frame.lr / (frame.step + 1)))


def test_curves_of_runs_are_read_from_a_tracker_and_errors_speak_of_the_metric(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for seed in range(3):
        with SummaryWriter(str(tmp_path / f"seed={seed}")) as writer:
            for step in range(30):
                writer.add_scalar("val/loss", 3 + seed / 10 + 1 / (1 + step), step)
    for metric in ("tensorboard:val/loss", ""):
        runs = earlier_runs(tmp_path, metric)
        assert [(run.name, run.length) for run in runs] == [(f"seed={k}", 30) for k in range(3)]
    assert len(earlier_runs(tmp_path, "", where="seed < 2")) == 2
    with pytest.raises(ConfigError, match="metric='tensorboard:nope' is refused"):
        earlier_runs(tmp_path, "tensorboard:nope")
    with pytest.raises(BadInput, match="metric='jsonl:FILE:KEY'"):
        earlier_runs(tmp_path, "wandb:loss")
    with pytest.raises(ConfigError, match="given with a table"):
        earlier_runs(tmp_path, "tensorboard:val/loss", columns="run=run")
    with pytest.raises(ConfigError, match="wandb:KEY with the runs of"):
        earlier_runs("wandb:a/b", r"loss (?P<loss>\S+)")
