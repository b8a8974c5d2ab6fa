"""A study from elsewhere: what its records name is neither imported nor run unasked."""

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.config.settings import GROUPS
from sweeper.errors import ConfigError
from sweeper.files import read_json
from sweeper.registry import build_plugin, import_plugin, name_classes, only_named
from sweeper.search.strategy import Strategy
from tests.cli.driver import Run

VERBS = {
    "status": ["status", "a"],
    "report": ["report", "a"],
    "compare": ["compare", "a", "b"],
    "export": ["export", "--to", "pytorch", "--study", "a"],
    "transfer": ["transfer", "--study", "a", "--to-width", "64"],
    "validate": ["transfer", "--study", "a", "--to-width", "64", "--validate"],
    "explain": ["explain", "--study", "a", "--to-width", "64"],
    "check": ["check", "--study", "a"],
}
BUILDING = ("transfer", "validate", "explain", "check")


@pytest.fixture
def trap(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a module of somebody else's writes when it is imported, and its class built."""
    sprung = workplace / "sprung"
    spring = (
        f"(here := Path({str(sprung)!r})).open('a').close(); here.write_text(here.read_text() +"
    )
    text = f"from pathlib import Path\n{spring} 'imported ')\n"
    text += f"class Net:\n    def __init__(self, **_):\n        {spring} 'built ')\n"
    (workplace / "trap_of_others.py").write_text(text)
    monkeypatch.syspath_prepend(str(workplace))
    yield sprung
    sys.modules.pop("trap_of_others", None)


def change(folder: Path, /, **groups: Any) -> None:
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    tree |= {group: {**tree[group], **values} for group, values in groups.items()}
    path.write_text(yaml.safe_dump(tree))


@pytest.fixture
def planned(ladder_study: Path) -> Path:
    """A study with a plan, so that every verb has something to work with, and a twin."""
    shutil.copytree(ladder_study, ladder_study.with_name("b"))
    return ladder_study


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_a_class_that_a_study_its_results_or_plans_name(
    verb: str, planned: Path, sweeper: Run, trap: Path
) -> None:
    study = planned
    kept = (study / "config.yaml").read_text()
    targets = [("trap_of_others.Net", {}), ("os.system", {"command": f"touch {trap}"})]
    # One verb meets them in each group, the rest in all groups at once.
    places = [[group] for group in GROUPS] if verb == "explain" else [[*GROUPS]]
    for groups, (target, extra) in product(places, targets):
        tree = yaml.safe_load(kept)
        for name in groups:
            kept_too = tree[name] if name in ("model", "parameterization") else {}
            tree[name] = {**kept_too, "_target_": target, **extra}
        (study / "config.yaml").write_text(yaml.safe_dump(tree))
        run = sweeper(*VERBS[verb])
        assert not trap.exists() and not run.crashed, (groups, target)
        if verb in BUILDING:
            assert run.code == 2 and "--trust" in run.err and target in run.err
    (study / "config.yaml").write_text(kept)
    for path in study.glob("results/*.jsonl"):
        lines = []
        for record in map(json.loads, path.read_text().splitlines()):
            record.pop("sum", None)
            for group in ("model", "optimizer", "parameterization"):
                record["trial"]["spec"][group]["name"] = "trap_of_others.Net"
            lines.append(json.dumps(record))
        path.write_text("\n".join(lines) + "\n")
    for path in study.glob("transfer/*/plan.json"):
        record = read_json(path)
        record["optimizer"]["name"] = "trap_of_others.Net"
        path.write_text(json.dumps(record))
    run = sweeper(*VERBS[verb])
    assert not trap.exists() and not run.crashed


def test_a_command_of_somebody_elses_is_not_run(study: Path, sweeper: Run, trap: Path) -> None:
    change(study, runner={"_target_": "command", "command": ["touch", str(trap)]})
    for verb in BUILDING:
        run = sweeper(*VERBS[verb])
        assert run.code == 2 and not trap.exists()
        assert "--trust" in run.err and f"touch {trap}" in run.err
    assert sweeper("search", "--study", "a", "--dry-run").code in (0, 2) and not trap.exists()


def test_an_environment_stays_where_it_is(
    study: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    change(study, model={"width": "${oc.env:A_SECRET}"})
    run = sweeper(*VERBS["explain"])
    assert run.code == 2 and "hunter2" not in run.err + run.out


class TestWhoMayNameIt:
    TARGET = "trap_of_others.Net"

    def test_nobody_but_the_command(self, trap: Path) -> None:
        with only_named():
            with pytest.raises(ConfigError) as caught:
                import_plugin(self.TARGET)
            assert caught.value.key == "_target_" and not trap.exists()
            assert "its config_dir names: what a study alone" in caught.value.allowed
            name_classes([self.TARGET])
            import_plugin(self.TARGET)
        assert trap.read_text() == "imported "

    def test_a_class_without_the_methods_is_never_called(self, trap: Path) -> None:
        for target in (self.TARGET, "os.system"):
            with pytest.raises(ConfigError) as caught:
                build_plugin({"_target_": target, "command": f"touch {trap}"}, protocol=Strategy)
            assert caught.value.key == "_target_"
        assert trap.read_text() == "imported "

    def test_this_command_line(self, study: Path, sweeper: Run, trap: Path) -> None:
        change(study, law={"_target_": self.TARGET})
        run = sweeper(*VERBS["explain"], f"law._target_={self.TARGET}")
        assert "has no" in run.err and trap.read_text() == "imported "
        assert sweeper(*VERBS["explain"], "law=none").code == 0

    def test_its_config_dir(self, study: Path, sweeper: Run, trap: Path, workplace: Path) -> None:
        change(study, law={"_target_": self.TARGET})
        (workplace / "mine/law").mkdir(parents=True)
        (workplace / "mine/law/my.yaml").write_text(f"_target_: {self.TARGET}\n")
        assert "has no" in sweeper(*VERBS["explain"], "--config-dir", "mine").err

    def test_trust_is_remembered_for_the_same_words_in_the_same_place(
        self, study: Path, sweeper: Run, trap: Path
    ) -> None:
        change(study, law={"_target_": self.TARGET})
        assert "--trust" in sweeper(*VERBS["explain"]).err and not trap.exists()
        assert "has no" in sweeper(*VERBS["explain"], "--trust").err
        assert "has no" in sweeper(*VERBS["explain"]).err
        change(study, law={"_target_": self.TARGET, "more": 1})
        assert "--trust" in sweeper(*VERBS["explain"]).err
        change(study, law={"_target_": self.TARGET})
        shutil.copytree(study, study.with_name("c"))
        assert "--trust" in sweeper("explain", "--study", "c", "--to-width", "64").err

    @pytest.mark.parametrize("target", ["t.py", "/tmp/t.py", "folder/t.py"])
    def test_a_script_is_no_class(self, target: str, workplace: Path, sweeper: Run) -> None:
        (workplace / "t.py").write_text("open('ran', 'w')\n")
        run = sweeper("explain", f"model._target_={target}", "--to-width", "64")
        assert run.code == 2 and "t.Net" in run.err and not (workplace / "ran").exists()


@pytest.mark.parametrize(
    "groups",
    [
        {"study": {"storage": "sqlite:///elsewhere.db"}},
        {"logger": {"_target_": "wandb", "project": "theirs", "mode": "online"}},
    ],
)
def test_nothing_is_sent_to_where_a_study_alone_names(
    groups: dict[str, Any], study: Path, workplace: Path, sweeper: Run
) -> None:
    change(study, **groups)
    for verb in BUILDING:
        run = sweeper(*VERBS[verb])
        assert run.code == 2 and "--trust" in run.err and "send every trial to" in run.err
    assert not (workplace / "elsewhere.db").exists()
    mine = ["logger=none"] if "logger" in groups else ["study.storage=null"]
    assert "--trust" not in sweeper(*VERBS["explain"], *mine).err
