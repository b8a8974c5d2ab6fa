import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper import registry
from sweeper.config.compose import compose_tree
from sweeper.errors import BadInput
from sweeper.records import to_json
from tests.golden import Golden
from tests.refusals import raises_config_error

ROOT = Path(__file__).parents[1]


def test_lists_every_option_of_every_group() -> None:
    listed = registry.groups()
    assert {"mup", "standard", "umup"} <= set(listed["parameterization"])
    assert listed.keys() == {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}


def test_adds_the_users_options_to_the_groups(tmp_path: Path) -> None:
    names = ("search/mine.yaml", "other/thing.yaml", ".git/x.yaml", "search/.x.yaml", "top.yaml")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    listed = registry.groups(tmp_path)
    assert listed["search"] == sorted([*registry.groups()["search"], "mine"])
    assert listed.keys() == registry.groups().keys()


def test_refuses_a_folder_that_is_none(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nope"):
        with pytest.raises(BadInput) as caught:
            registry.groups(path)
        golden.says(caught)


def test_says_where_configs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "sweeper" / "catalog.py"))
    with pytest.raises(BadInput) as caught:
        registry.conf_folder()
    golden.says(caught)


NAMES = {
    "data": ["digits", "idx", "own", "spans", "stdlib", "text", "tokens"],
    "fp8": ["fp8"],
    "launcher": ["inline", "local", "slurm"],
    "law": ["batch", "decay", "fit", "horizon", "hyperball", "joint", "none", "timescale"],
    "logger": ["jsonl", "none", "tensorboard", "wandb"],
    "model": ["encoder_decoder", "hf", "llama", "mlp", "moe", "own", "vit"],
    "optimizer": ["adafactor", "adamh", "adamw", "lion", "muon", "muonh", "sgd", "shampoo", "soap"],
    "parameterization": [
        *("effective_theory", "mean_field", "mup", "ntk", "own", "spectral", "spectral_mup"),
        *("standard", "standard_embedding", "umup"),
    ],
    "runner": ["command", "engine"],
    "search": ["independent", "lr", "optuna", "pairs", "random", "tpe"],
}


def test_stable_names_stay() -> None:
    """A name that is gone, or that another config of the class takes, orphans every record."""
    plugins = registry.plugins()
    for group, names in NAMES.items():
        classes = set(plugins[group].values())
        assert sorted(registry.plugin_name(group, target) for target in classes) == names
    assert plugins.keys() == NAMES.keys()


def test_presets_of_one_class_share_the_name_of_their_group() -> None:
    target = registry.plugin_target("fp8", "printed")
    assert target == registry.plugin_target("fp8", "none") == registry.plugin_target("fp8", "fp8")
    assert registry.plugin_name("fp8", target) == "fp8"


def test_a_strategy_has_the_same_defaults_in_python_as_on_the_command_line() -> None:
    for name, target in registry.plugins()["search"].items():
        tree = compose_tree([f"search={name}"])["search"]
        made, by_class = registry.build_plugin(tree), registry.import_plugin(target, name)()
        assert to_json(made) == to_json(by_class), name


def test_a_user_s_class_keeps_its_dotted_path() -> None:
    assert registry.plugin_name("model", "mine.models.Net") == "mine.models.Net"
    assert registry.plugin_target("model", "mine.models.Net") == "mine.models.Net"


def test_a_name_that_nobody_has_is_refused(golden: Golden) -> None:
    with raises_config_error("_target_", "lama", golden):
        registry.plugin_target("model", "lama")


def test_plugins_within_plugins_are_renamed_too() -> None:
    mup, umup = (registry.plugin_target("parameterization", n) for n in ("mup", "umup"))

    def config(outer: str, inner: str) -> dict[str, Any]:
        plugin = {"_target_": inner}
        return {"_target_": outer, "parameterization": plugin, "list": [plugin, 1]}

    named = registry.with_names("parameterization", config(umup, mup))
    assert named == config("umup", "mup")
    assert registry.with_targets("parameterization", named) == config(umup, mup)


def test_the_registry_needs_neither_hydra_nor_torch() -> None:
    code = (
        "import sys; from sweeper.registry import plugins; plugins();"
        "print([name for name in ('torch', 'hydra', 'omegaconf', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
