import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.config.compose import compose_tree
from sweeper.config.settings import MAX_SIZE, Settings, check_model_size, default_name, resolve
from sweeper.errors import BadInput, ConfigError
from sweeper.launch.code import user_modules
from sweeper.records import to_json
from sweeper.study.study import read_root
from sweeper.trial import PluginSpec
from sweeper.verdict.ladder import Size

BASE = compose_tree(
    [
        "search=lr",
        "model.width=16",
        "model.head_size=8",
        "model.depth=1",
        "runner.device=cpu",
        "transfer.widths=[16,32]",
    ]
)

Broken = Callable[..., Any]


class Bare:
    """A plugin of no kind at all."""


class Raises:
    """A logger whose own code is broken."""

    log = plan = print

    def __init__(self) -> None:
        raise RuntimeError("boom")


class NoModel:
    """Takes a model's sizes, and is none."""

    def __init__(self, width: int, depth: int) -> None:
        self.sizes = width, depth


def settings(*words: str) -> Settings:
    return resolve(compose_tree([*words, "runner.device=cpu"]))


def changed(key: str, value: Any) -> dict[str, Any]:
    """The base tree with one dotted key set."""
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
    assert found.cache == Path("runs/.cache") and next(iter(found.space)) == "eta"


@pytest.mark.parametrize("parameterization", ["mup", "standard", "umup"])
@pytest.mark.parametrize("search", ["lr", "random", "tpe", "independent"])
def test_every_parameterization_goes_with_every_search(parameterization: str, search: str) -> None:
    few = ["search.runs=5"] * (search in ("random", "tpe"))
    found = settings(f"parameterization={parameterization}", f"search={search}", *few)
    assert found.name == f"{parameterization}-{search}-w64-d2"


def test_the_name_is_of_the_classes_modules() -> None:
    assert default_name(BASE) == "umup-lr-w16-d1"


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
    """Without casts it is left out, so that no trial's key changes by its being there."""
    size = Size(width=16, depth=1)
    plain = resolve(BASE).spec({}, "float32", size)
    assert plain.fp8 is None and "fp8" not in to_json(plain)
    for name in ("printed", "later"):
        fp8 = compose_tree([f"fp8={name}"])["fp8"]
        del fp8["_target_"]
        spec = resolve(BASE | {"fp8": compose_tree([f"fp8={name}"])["fp8"]}).spec(
            {}, "float32", size
        )
        assert spec == replace(plain, fp8=PluginSpec(name="fp8", arguments=fp8))


@pytest.mark.parametrize("section", [key for key in BASE if key != "root"])
@pytest.mark.parametrize("value", [None, 3, [], "text"])
def test_a_section_must_be_a_mapping(section: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{section}=.* is refused: a mapping"):
        resolve(changed(section, value))


@pytest.mark.parametrize("key", list(BASE))
def test_no_part_may_be_missing(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}=None is refused"):
        resolve({name: value for name, value in BASE.items() if name != key})


@pytest.mark.parametrize("group", ["parameterization", "model", "optimizer", "search", "launcher"])
def test_an_empty_group_has_no_class(group: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{group}\."):
        resolve(changed(group, {}))


HERE = f"{__name__}."


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("foo", 1, "foo=1 is refused: there is no such key"),
        ("new", {"key": 1}, "there is no such key; known: check, data"),
        ("model.width", None, "model.width=None is refused: a whole number from 1 to"),
        ("model.width", True, "model.width=True"),
        ("model.width", 0, "model.width=0"),
        ("model.width", -8, "model.width=-8"),
        ("model.width", 16.0, "model.width=16.0"),
        ("model.width", "16", "model.width='16'"),
        ("model.width", [16], r"model.width=\[16\]"),
        ("model.width", 17, "model.width=17 is refused: a multiple of head_size, which is 8"),
        ("model.width", 8 * 10**18, "model.width=8000000000000000000 is refused: .*to 1048576"),
        ("model.depth", 10**6, "model.depth=1000000 is refused: a whole number from 1 to 4096"),
        ("model.head_size", 0, "model.head_size=0"),
        ("model.head_size", True, "model.head_size=True"),
        ("model.ffn_ratio", 1e300, "the model cannot be built at width=16, depth=1"),
        ("model.norm_gain", 1, "model.norm_gain=1 is refused: true or false"),
        ("model.classes", 3, "model.classes=3 .*follows from other settings"),
        ("model.unit", True, "model.unit=True .*follows from other settings"),
        ("model.foo", 1, "model.foo=1 is refused: there is no such key"),
        ("model._target_", f"{HERE}NoModel", "model.head_size=8 is refused"),
        ("model", {"_target_": f"{HERE}NoModel", "width": 8, "depth": 1}, "an nn.Module"),
        ("train.steps", 0, "train.steps=0 is refused: at least 1"),
        ("train.steps", None, "train.steps=None"),
        ("train.steps", 4.5, "train.steps=4.5"),
        ("train.steps", 10**400, "train.steps=10+ is refused"),
        ("train.warmup", float("nan"), "train.warmup=nan is refused: a finite number"),
        ("train.precision", "float16", "train.precision='float16' is refused: float32"),
        ("optimizer.eps", float("inf"), "optimizer.eps=inf is refused: a finite number"),
        ("optimizer.eps", -1, "optimizer.eps=-1.0 is refused: a positive number"),
        ("optimizer._target_", f"{HERE}Bare", "this has no eps"),
        (
            "optimizer",
            {"_target_": f"{HERE}Bare"},
            "a class with eps, hyperparameters, init, kind, settings, update, weight_decay",
        ),
        ("search", {"_target_": f"{HERE}Bare"}, "this has no conclude, no plan, no propose"),
        ("launcher", {"_target_": f"{HERE}Bare"}, "this has no device"),
        ("data", {"_target_": f"{HERE}Bare"}, "this has no prepare"),
        ("logger", {"_target_": f"{HERE}Bare"}, "a class with log, plan; this has no log, no plan"),
        ("logger", {"_target_": f"{HERE}Raises"}, "logger._target_=.*RuntimeError: boom, at"),
        ("logger", {"_target_": "nope.Nope"}, "logger._target_=.*PYTHONPATH"),
        ("parameterization._target_", f"{HERE}Raises", "parameterization"),
        ("parameterization.space", None, "parameterization.space=None is refused"),
        ("parameterization.space", {}, "parameterization.space.eta=None is refused: a mapping"),
        ("parameterization.space.eta", None, "parameterization.space.eta=None"),
        ("parameterization.space.eta", 3, "parameterization.space.eta=3 is refused: a mapping"),
        ("parameterization.space.eta", {"low": 3, "high": 1}, r"space\.eta\.low=3.0 .*at most"),
        ("parameterization.space.eta", {"low": 3}, r"space\.eta\.high: it needs a value"),
        ("parameterization.space.eta.low", float("nan"), r"space\.eta\.low=nan"),
        ("parameterization.space.eta.low", -99, r"space\.eta\.low=-99"),
        ("parameterization.space.etaa", {"low": 1, "high": 2}, "did you mean eta"),
        ("search.line", None, "search.line=None is refused: a mapping with step"),
        (
            "search.line.points",
            10**12,
            "line.points=1000000000000 is refused: from 1 to 10000",
        ),
        ("search.seeds", 10**12, "search=.* is refused: at most 1000000"),
        ("search.seeds", 0, "search.seeds=0"),
        ("transfer.widths", [], r"transfer.widths=\[\] is refused: at least one width"),
        ("transfer.widths", 16, "transfer.widths=16 is refused: a list"),
        ("transfer.widths", ["a"], r"transfer.widths\[0\]='a'"),
        ("transfer.widths", [16, 20], "transfer.widths=20 is refused: sizes that the model can"),
        ("transfer.widths", [8 * 10**7], "transfer.widths=80000000 is refused"),
        ("transfer.depths", [10**6], "transfer.depths=1000000 is refused"),
        ("transfer.depths", [0], "transfer.depths=0 is refused"),
        ("transfer.batches", [0], "transfer.batches=0 is refused"),
        ("transfer.steps", [1.5], r"transfer.steps\[0\]=1.5 is refused"),
        ("transfer.correct", 1, "transfer.correct=1 is refused"),
        ("transfer.seeds", 10**12, "transfer=.* trials a size' is refused"),
        ("transfer.span", 1e9, "transfer=.* trials a size' is refused"),
        ("transfer.max_loss_gap", -1, "transfer.max_loss_gap=-1"),
        ("runner.batched_trials", 0, "runner.batched_trials=0"),
        ("runner.device", "tpu", "runner.device='tpu' is refused"),
        ("runner.compile", True, "runner.compile=True"),
        ("study.name", "../x", r"study.name='\.\./x' is refused"),
        ("study.name", 3, "study.name=3 is refused"),
        ("study.nam", "x", "study.nam='x' is refused: there is no such key; did you mean name"),
        ("study.storage", "garbage", "study.storage='garbage' is refused: null, or a URL"),
        ("root", None, "root=None is refused: the path of a folder"),
        ("root", "", "root=''"),
        ("root", ["a"], "root="),
        ("data.heldout", 1, "data.heldout=1.0 is refused"),
        ("data.tokenizer", "words", "data.tokenizer='words' is refused"),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_allowed(
    key: str, value: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message) as error:
        resolve(changed(key, value))
    assert "\n" not in str(error.value)


def test_a_storages_password_is_not_told() -> None:
    with pytest.raises(ConfigError) as error:
        resolve(changed("study.storage", "u:s3cret@host"))
    assert "s3cret" not in str(error.value)


def test_the_root_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(ConfigError, match=rf"root=.* and {tmp_path / 'file'} is none"):
            read_root(str(path))
    assert read_root(str(tmp_path / "new" / "runs")) == tmp_path / "new" / "runs"
    assert read_root("~/runs") == Path.home() / "runs"


def test_a_targets_size() -> None:
    found = resolve(BASE)
    check_model_size(found, Size(width=64, depth=3))
    with pytest.raises(ConfigError, match=r"model.width=100 is refused: a multiple of head_size"):
        check_model_size(found, Size(width=100, depth=1))
    with pytest.raises(ConfigError, match=r"model.depth=4097 is refused: at most 4096"):
        check_model_size(found, Size(width=16, depth=MAX_SIZE.depth + 1))


def test_the_content_of_a_module_of_the_user_s_own_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_plugin_of_a_user.py"
    tree = compose_tree(["parameterization=mup", "model.width=16", "runner.device=cpu"])
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


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["model.norm_gain=true", "train.clip=1.0"], True),
        (["model.norm_gain=true"], False),
        (["train.clip=1.0"], False),
        (["parameterization=mup", "model.norm_gain=true", "train.clip=1.0"], False),
    ],
)
def test_only_clipped_gains_of_umup_have_new_keys(words: list[str], changed: bool) -> None:
    found = resolve(compose_tree(["model.width=16", "runner.device=cpu", *words]))
    assert ("norm_gains" in found.identity) == changed
