import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.config.compose import compose_tree
from sweeper.config.settings import Settings, resolve
from sweeper.engine.prepare import PreparedSpec, prepare
from sweeper.errors import BadInput, ConfigError
from sweeper.launch.code import user_modules
from sweeper.records import to_json
from sweeper.stats.ladder import DEFAULT_WIDTHS, Size
from sweeper.study.study import read_root
from sweeper.trial import PluginSpec, TrialSpec, numerics_beside
from tests.golden import Golden
from tests.refusals import raises_config_error

SMALL = ["model.width=16", "model.head_size=8", "model.depth=1", "transfer.widths=[16,32]"]
BASE = compose_tree(["search=lr", "runner.device=cpu", *SMALL])


class Bare:
    """A plugin of no kind at all."""


class Raises:
    log = plan = print

    def __init__(self) -> None:
        raise RuntimeError("boom")


class NoModel:
    def __init__(self, width: int, depth: int) -> None:
        self.sizes = width, depth


def settings(*words: str) -> Settings:
    return resolve(compose_tree([*words, "runner.device=cpu"]))


def changed(key: str, value: Any) -> dict[str, Any]:
    tree: Any = copy.deepcopy(BASE)
    *path, last = key.split(".")
    node = tree
    for part in path:
        node = node[part]
    node[last] = value
    return dict(tree)


def test_resolves_the_defaults() -> None:
    found = resolve(BASE)
    assert found.name == "umup-lr-w16-d1" and found.base == Size(width=16, depth=1)
    assert found.root == Path("runs") and found.folder == Path("runs/umup-lr-w16-d1")
    assert next(iter(found.space)) == "eta"


def test_what_determines_a_trial() -> None:
    found = resolve(BASE)
    spec = found.spec({"digest": "x"}, "bfloat16", Size(width=32, depth=3))
    assert spec.train.precision == "bfloat16"
    assert (spec.width, spec.depth, spec.base_width, spec.base_depth) == (32, 3, 16, 1)
    assert spec.parameterization == PluginSpec(name="umup", arguments={"scaled_embedding_lr": True})
    assert not {"width", "depth"} & spec.model.arguments.keys()
    changed_default = resolve(changed("train.warmup", 0.2))
    assert changed_default.spec({}, "float32", found.base) != found.spec({}, "float32", found.base)


def test_a_ladder_size_sets_batch_and_steps_and_the_base_s_trials_are_the_search_s() -> None:
    found = resolve(BASE)
    plain = found.spec({}, "float32", found.base)
    assert found.spec({}, "float32", found.ladder_base) == plain
    other = found.spec({}, "float32", replace(found.ladder_base, batch_size=3, steps=7))
    assert other == replace(plain, train=replace(plain.train, batch_size=3, steps=7)) != plain


def test_fp8_is_part_of_what_determines_a_trial_once_it_casts() -> None:
    size = Size(width=16, depth=1)
    plain = resolve(BASE).spec({}, "float32", size)
    assert plain.fp8 is None and "fp8" not in to_json(plain)
    fp8 = compose_tree(["fp8=printed"])["fp8"]
    arguments = {key: value for key, value in fp8.items() if key != "_target_"}
    spec = resolve(BASE | {"fp8": fp8}).spec({}, "float32", size)
    assert spec == replace(plain, fp8=PluginSpec(name="fp8", arguments=arguments))


@pytest.mark.parametrize("key", list(BASE))
def test_no_part_may_be_missing_and_a_section_is_a_mapping(key: str) -> None:
    with raises_config_error(key, None):
        resolve({name: value for name, value in BASE.items() if name != key})
    for value in (None, 3, [], "text") if key != "root" else ():
        with raises_config_error(key):
            resolve(changed(key, value))


def test_an_empty_group_has_no_class() -> None:
    for group in ("parameterization", "model"):
        with pytest.raises(ConfigError, match=rf"^{group}\."):
            resolve(changed(group, {}))


HERE = f"{__name__}."


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("foo", 1),
        ("model.width", True),
        ("model.width", 0),
        ("model.width", 17),
        ("model.depth", 10**6),
        ("model.ffn_ratio", 1e300),
        ("model.classes", 3),
        *((group, {"_target_": f"{HERE}Bare"}) for group in ("search", "logger")),
        ("model", {"_target_": f"{HERE}NoModel", "width": 8, "depth": 1}),
        ("logger", {"_target_": f"{HERE}Raises"}),
        ("parameterization.space", None),
        ("parameterization.space.eta", 3),
        ("parameterization.space.eta", {"low": 3, "high": 1}),
        ("parameterization.space.etaa", {"low": 1, "high": 2}),
        ("search.seeds", 10**12),
        ("transfer.widths", []),
        ("transfer.widths", [16, 20]),
        ("transfer.depths", [10**6]),
        ("transfer.seeds", 10**12),
        ("runner.device", "tpu"),
        ("study.storage", "u:s3cret@host"),
        ("root", None),
        ("root", ""),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_allowed(
    key: str, value: Any, golden: Golden
) -> None:
    with pytest.raises(BadInput) as error:
        resolve(changed(key, value))
    assert len(str(error.value).splitlines()) == 1
    golden.says(error)


def test_the_root_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with raises_config_error("root", str(path)):
            read_root(str(path))
    assert read_root(str(tmp_path / "new" / "runs")) == tmp_path / "new" / "runs"
    assert read_root("~/runs") == Path.home() / "runs"
    with raises_config_error("root") as caught:
        read_root(str(tmp_path / os.fsdecode(b"by\xfftes")))
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("typed", "widths"), [([], {32}), (["transfer.widths=[32,64,96]"], {32, 64, 96})]
)
def test_a_ladder_that_nobody_typed_is_built_and_not_classified(
    typed: list[str], widths: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    classified = set()

    def noted(spec: TrialSpec) -> PreparedSpec:
        classified.add(spec.width)
        return prepare(spec)

    monkeypatch.setattr("sweeper.config.settings.prepare", noted)
    settings("model.width=32", "model.depth=1", *typed)
    assert classified == widths


def test_a_ladder_that_nobody_typed_ends_at_the_target() -> None:
    default = settings("model.width=32", "model.depth=1", "search=lr")
    assert default.notes == ()
    seeds = ["transfer.seeds=2"]
    assert default.up_to(64, seeds).transfer.widths == (32, 64)
    assert default.up_to(4096, seeds).transfer.widths == DEFAULT_WIDTHS
    # A target that has no size between it and the base keeps what there is to judge it by.
    assert default.up_to(32, seeds).transfer.widths == DEFAULT_WIDTHS
    typed = resolve(BASE)
    assert typed.up_to(16).transfer.widths == (16, 32)


@pytest.mark.parametrize(
    ("width", "target", "widths"),
    [
        (32, 256, (32, 64, 128)),
        (32, 512, (32, 64, 128, 256)),
        (16, 32, (16, 32)),
        (16, 48, (16, 32)),
        (96, 192, (32, 64, 128)),
        (96, 256, (32, 64, 128, 256)),  # four times the base would cost far more
    ],
)
def test_a_ladder_of_which_nobody_said_anything_is_cheap(
    width: int, target: int, widths: tuple[int, ...]
) -> None:
    default = settings(f"model.width={width}", "model.depth=1", "search=lr")
    rule = default.up_to(target).transfer
    assert (rule.widths, rule.seeds, rule.step) == (widths, 3, 1.0)
    own = settings(f"model.width={width}", "model.depth=1", "search=lr", "transfer.seeds=5")
    for each in (own.up_to(target), default.up_to(target, ["transfer.depths=[2]"])):
        assert each.transfer.step == 0.5


def test_the_content_of_a_module_of_the_user_s_own_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_plugin_of_a_user.py"
    tree = compose_tree(["parameterization=mup", "search=lr", *SMALL, "runner.device=cpu"])
    builtin = resolve(tree).identity
    tree["parameterization"]["_target_"] = "own_plugin_of_a_user.Mine"

    def identity(code: str) -> Any:
        path.write_text("from sweeper.scaling.relative import MuP as Mine\n" + code)
        user_modules.cache_clear()
        return resolve(tree).identity

    first = identity("")
    assert list(first["modules"]) == ["own_plugin_of_a_user"]
    assert identity("# edited\n") != first and identity("") == first
    assert "modules" not in builtin


@pytest.mark.parametrize("name", ["umup", "mup"])
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("clip", [1.0, None])
def test_only_clipped_gains_of_umup_have_new_keys(
    name: str, gain: bool, clip: float | None
) -> None:
    tree = {"model": {"norm_gain": gain}, "train": {"clip": clip}}
    found = numerics_beside({"name": "engine"}, [name, "llama", "adamw"], tree)
    assert ("norm_gains" in found) == (name == "umup" and gain and clip is not None)


@pytest.mark.parametrize(
    ("width", "head_size", "widths"), [(256, 64, (64, 128, 256)), (96, 48, (96, 192, 384))]
)
def test_of_the_default_s_widths_those_that_the_model_can_have_are_the_ladder(
    width: int, head_size: int, widths: tuple[int, ...]
) -> None:
    words = [f"model.width={width}", "model.depth=1", f"model.head_size={head_size}", "search=lr"]
    settings = resolve(compose_tree(words))
    assert settings.transfer.widths == widths
    assert any("transfer.widths" in note for note in settings.notes)
    with raises_config_error("transfer.widths", 31):
        resolve(compose_tree([*words, f"transfer.widths=[{2 * width},31]"]))
