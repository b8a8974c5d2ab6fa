"""What went is told with its remedy, by whichever mouth it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import sweeper
from sweeper.errors import ConfigError
from sweeper.export.exporter import build_exporter
from tests.cli.driver import call
from tests.golden import Golden

WENT = {
    "divine": "`sweeper check`",
    "judge oracle": "leave it out",
    "law.oracle": "law.batch",
    "model.oracle": "model.width",
    "oracle": "law",
    "search=oracle": "search=lr",
    "export to=oracle": "to=pytorch",
}


@pytest.fixture(autouse=True)
def _went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sweeper.gone.GONE", WENT)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "name", "typed"),
    [
        ("divine --over=depth", "divine", "divine"),
        ("judge runs.csv --oracle=3", "judge oracle", "judge --oracle"),
        ("search search=oracle", "search=oracle", "search=oracle"),
        ("search model.oracle=1", "model.oracle", "model.oracle"),
        ("search +model.oracle=1", "model.oracle", "model.oracle"),
        ("search oracle=1", "oracle", "oracle"),
    ],
)
def test_the_command_line_tells_what_to_do_instead(
    line: str, name: str, typed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = call(capsys, *line.split())
    assert answer.code == 2
    assert f"; `{typed}` was removed: {WENT[name]}" in answer.err
    assert answer.err.count("Error") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "line",
    [
        *("search -m train.steps=1,2", "transfer --multirun", "--cfg job", "search --cfg=job"),
        *("--info", "search launcher=submitit_slurm", "search hydra/launcher=submitit_local"),
    ],
)
def test_what_is_hydra_s_is_answered_with_what_to_type(
    line: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    answer = call(capsys, *line.split())
    assert answer.code == 2
    golden.says(answer.err)


def test_python_tells_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no keyword has this name; `judge oracle` was removed: leave it"
    ):
        sweeper.judge("runs.csv", oracle=3)
    with pytest.raises(ConfigError, match="`search=oracle` was removed: search=lr"):
        sweeper.search(search="oracle")
    with pytest.raises(AttributeError, match="`divine` was removed: `sweeper check`"):
        _ = sweeper.divine
    with pytest.raises(ConfigError, match="`export to=oracle` was removed: to=pytorch"):
        build_exporter("oracle", {})
    with pytest.raises(ConfigError, match="`divine` was removed: `sweeper check`"):
        sweeper.search(search={"name": "sweeper.search.old.divine"})
    with pytest.raises(ConfigError, match=r"did you mean sweeper\.search\.line_search\.Learn"):
        sweeper.search(search={"name": "sweeper.search.old.LearningRateLine"})
    assert not [*tmp_path.iterdir()]
