"""The figures: every script has its config, at every size, and what they share is right."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sweeper.catalog import groups
from sweeper.config import compose_tree
from sweeper.settings import resolve
from sweeper.transfer.estimate import Estimate

FOLDER = Path(__file__).parents[1] / "scripts/figures"
SHARED = ("lab", "claims")
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def load(name: str) -> ModuleType:
    """A script of the folder as a module; it finds `lab` as it does when it is run."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


lab = load("lab")
claims = load("claims")


def number(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_a_script_and_an_experiment_at_every_size(name: str) -> None:
    assert callable(load(name).main) and name in claims.ORDER
    for size in (None, *groups()["size"]):
        words = [f"experiment={name}", *([f"size={size}"] if size else [])]
        settings = resolve(compose_tree(words))
        assert settings.search.plan(settings.space)


def test_all_figures_are_in_the_document_s_order() -> None:
    assert set(NAMES) <= set(claims.ORDER)


def test_a_number_below_another_is_told_by_intervals_alone() -> None:
    low, high = Estimate(value=1, low=0, high=2), Estimate(value=4, low=3, high=5)
    wide = Estimate(value=2, low=-9, high=9)
    assert lab.below(low, high) == "borne out" and lab.below(high, low) == "not borne out"
    assert lab.below(low, wide) == lab.below(wide, low) == "cannot say"
    assert lab.estimate(number(1, 0, "inf")).high == float("inf")
    assert lab.within(low) == "+1.00 [+0.00, +2.00]"


def test_the_farthest_of_a_ladder_is_so_in_factors() -> None:
    sizes = [{"size": {"width": w}, "is_base": w == 32} for w in (4, 32, 64, 128)]
    assert lab.farthest({"axis": "width", "sizes": sizes})["size"]["width"] == 4


def test_a_diverged_seed_makes_its_point_infinite() -> None:
    assert lab.mean([1.0, 2.0]) == 1.5 and lab.mean([1.0, "inf"]) == float("inf")


def test_a_size_has_a_folder_of_its_own() -> None:
    folders = {lab.Lab(name="x", words=words).folder for words in ([], ["size=paper"])}
    assert len(folders) == 2


def test_claims_are_kept_with_figure_command_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one = lab.Lab(name="x", words=["size=middle"])
    study = one.folder / "umup"
    study.mkdir(parents=True)
    config = {"model": {"width": 8, "depth": 1}, "data": {"_target_": "sweeper.data.stdlib.Stdlib"}}
    config["train"] = {"steps": 3, "batch_size": 2, "seq_len": 4}
    (study / "config.yaml").write_text(json.dumps(config))
    one.claim("paper, Fig. 1", "it | stays", "+0.1", "cannot say")
    figure, _ = lab.panels(1, 1)
    one.finish(figure)
    assert "cannot say" in capsys.readouterr().out
    record = json.loads((one.folder / "claims.json").read_text())
    assert record["command"] == "python scripts/figures/x.py size=middle"
    assert record["size"] == "width 8, depth 1, 3 steps of 2 x 4"
    assert (one.folder / "x.png").exists() and (one.folder / "x.svg").exists()
    assert "| it \\| stays | paper, Fig. 1 | +0.1 | **cannot say** |" in claims.section(record)
    assert "| [`x`](#x) |  |  | 1 |" in claims.tally([record])
