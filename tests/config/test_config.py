import subprocess
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pytest

from sweeper.config.compose import compose_tree, read_tree, suggest_key, to_yaml
from sweeper.errors import BadInput
from sweeper.registry import OVERLAYS, conf_folder, groups
from tests.golden import Golden
from tests.refusals import raises_config_error, refused

Write = Callable[..., Path]
FIGURES = Path(__file__).parents[2] / "scripts" / "figures"
REFUSED = [
    *("parameterization=foo", "model=null", "parametrization=mup", "search.line.points=1"),
    *("+model=llama", "data=text", "hydra.run.dir=/tmp", "model.width", "model@here=llama"),
    *("model.width=1,2", "study=ünï", "root=${oc.env:NOPE_NOPE}"),
]
PLUGINS = {group: options for group, options in groups().items() if group not in OVERLAYS}


@pytest.fixture
def my(tmp_path: Path) -> Write:
    """Writes files of a user's folder of configs, whose name is hard on Hydra's grammar."""

    def write(**files: str) -> Path:
        folder = tmp_path / "my conf, [x] 'q' $(a)=b"
        for name, text in files.items():
            path = folder / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


class TestCompose:
    def test_the_defaults(self) -> None:
        tree = compose_tree([])
        assert tree["parameterization"]["_target_"] == "sweeper.scaling.umup.UMuP"
        assert tree["root"] == "runs" and tree["study"] == {"name": None, "storage": None}
        assert not tree.keys() & OVERLAYS and "hydra" not in tree

    def test_every_option_is_composed_by_hydra_alone(self) -> None:
        columns = [[f"{g}={o}" for o in options] for g, options in groups().items()]
        code = "import sys; from hydra import *; from omegaconf import OmegaConf\n"
        code += f"with initialize_config_dir({str(conf_folder())!r}, version_base='1.3'):\n"
        code += f"  for row in {[[*filter(None, row)] for row in zip_longest(*columns)]!r}:\n"
        code += "    OmegaConf.to_container(compose('config', row), resolve=True)\n"
        code += "print('sweeper' in sys.modules)"
        words = [sys.executable, "-W", "error", "-c", code]
        assert subprocess.check_output(words, text=True).strip() == "False"

    @pytest.mark.parametrize(
        "word",
        [
            # Figures resolve theirs.
            pytest.param(
                f"{g}={o}", marks=pytest.mark.long if (FIGURES / f"{o}.py").exists() else ()
            )
            for g in OVERLAYS
            for o in groups()[g]
        ],
    )
    def test_every_overlay_composes(self, word: str) -> None:
        assert not compose_tree([word]).keys() & OVERLAYS

    @pytest.mark.parametrize("at", range(max(map(len, PLUGINS.values()))))
    def test_every_option_composes(self, at: int) -> None:
        """One of each group at once, which takes Hydra no longer."""
        chosen = {group: options[at % len(options)] for group, options in PLUGINS.items()}
        path = ["data.path=x"] * (chosen["data"] in ("text", "tokens", "idx"))
        tree = compose_tree([*map("=".join, chosen.items()), *path, "model.width=64"])
        for group, option in chosen.items():
            assert tree[group]["_target_"].startswith("sweeper."), (group, option)

    @pytest.mark.parametrize(
        "words",
        [
            ["search=lr", "model.width=32", "search.line={points: 3}", "model.width=48"],
            ["++search.sampler.seed=3", "search=tpe", "parameterization=mup"],
            ["experiment=first", "train.steps=7", "transfer.widths=[16,32]"],
            ["model.roles=['*.bias=vector']", "root='a b'", "study.name=null"],
            ["~model.ffn_ratio", "model.width=32"],
            ["experiment=first", "launcher=local", "launcher.workers=1"],
            ["+model.new={a: 1}", "study={name: x}"],
        ],
    )
    def test_values_are_set_as_hydra_sets_them(self, words: list[str], tmp_path: Path) -> None:
        # With a folder of the user's, Hydra composes everything anew.
        assert compose_tree(words) == compose_tree(words, tmp_path)

    @pytest.mark.parametrize(
        "word", [*REFUSED, "", "data.path=\udcff", f"train.steps={'9' * 5000}"]
    )
    def test_refusals(self, word: str, golden: Golden) -> None:
        with pytest.raises(BadInput) as error:
            compose_tree([word])
        golden.says(error)
        assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 700 + len(word)


class TestUsersFolder:
    def test_adds_options_and_experiments(self, my: Write) -> None:
        folder = my(
            search__mine="defaults: [lr, _self_]\nseeds: 7\n",
            experiment__all="# @package _global_\ndefaults:\n  - override /search: mine\n"
            "train: {steps: 3}\nstudy: {name: all}\n",
        )
        assert compose_tree(["search=mine"], folder)["search"]["seeds"] == 7
        tree = compose_tree(["experiment=all"], folder)
        assert (tree["search"]["seeds"], tree["train"]["steps"]) == (7, 3)
        assert tree["study"]["name"] == "all"

    def test_a_relative_folder(self, my: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(my(search__mine="_target_: a.B\n").parent)
        folder = my(search__mine="_target_: a.B\n").relative_to(Path.cwd())
        assert compose_tree(["search=mine"], folder)["search"] == {"_target_": "a.B"}

    @pytest.mark.parametrize(
        ("files", "word"),
        [
            ({"search__mine": "{{{"}, "search=mine"),
            ({"search__mine": "3"}, "search=mine"),
            ({"search__mine": "defaults: [nope]"}, "search=mine"),
            ({"search__mine": "x: ${nope}"}, "search=mine"),
            ({"experiment__mine": "train: {steps: 3}"}, "experiment=mine"),
            ({"search__lr": "seeds: 3"}, "search=tpe"),
            ({"other__a": "x: 1"}, "other=a"),
        ],
    )
    def test_refusals(self, my: Write, files: dict[str, str], word: str, golden: Golden) -> None:
        with pytest.raises(BadInput) as error:
            compose_tree([word], my(**files))
        golden.says(error)
        assert len(str(error.value).splitlines()) == 1

    def test_a_copy_of_ours_is_no_harm(self, my: Write) -> None:
        folder = my(search__lr=(conf_folder() / "search/lr.yaml").read_text())
        assert compose_tree(["search=lr"], folder) == compose_tree(["search=lr"])


class TestStudysConfig:
    @pytest.fixture
    def kept(self, tmp_path: Path) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(to_yaml(compose_tree(["search=lr", "model.width=16"])))
        return path

    def test_is_read_as_it_was_written(self, kept: Path) -> None:
        assert read_tree(kept, []) == compose_tree(["search=lr", "model.width=16"])

    def test_overrides(self, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DEVICE", "cpu")
        words = ["transfer.widths=[16]", "runner.device=${oc.env:DEVICE}", "+a.b=1"]
        tree = read_tree(kept, [*words, "search.line={points: 3}"])
        assert tree["transfer"]["widths"] == [16] and tree["runner"]["device"] == "cpu"
        assert tree["search"]["line"] == {"step": 1.0, "points": 3, "reach": 2, "extend": 4}
        assert tree["a"] == {"b": 1} and tree["model"]["width"] == 16

    def test_a_group_is_exchanged_with_its_keys(self, kept: Path, my: Write) -> None:
        tree = read_tree(kept, ["data=text", "data.path=x.txt", "data.heldout=0.1"])
        assert tree["data"]["path"] == "x.txt" and tree["data"]["heldout"] == 0.1
        folder = my(logger__mine="_target_: a.B\n")
        assert read_tree(kept, ["logger=mine"], folder)["logger"] == {"_target_": "a.B"}

    @pytest.mark.parametrize("word", ["train.stepz=1", "~transfer.widths"])
    def test_refusals(self, kept: Path, word: str, golden: Golden) -> None:
        with refused(golden):
            read_tree(kept, [word])

    @pytest.mark.parametrize("text", [b"", b"{{{", b"3", b"a: ${nope}", b"\xff\xfe", None])
    def test_a_damaged_file(self, kept: Path, text: bytes | None) -> None:
        kept.unlink() if text is None else kept.write_bytes(text)
        with pytest.raises(BadInput) as error:
            read_tree(kept, [])
        assert len(str(error.value).splitlines()) == 1


TREE = {
    "model": {"_target_": "x", "width": 1, "depth": 2},
    "transfer": {"seeds": 2, "step": 0.5, "widths": []},
    "check": {"seed": 0},
    "train": {"steps": 1},
    "runner": {"device": "cpu"},
    "root": "runs",
}


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("model.widht", "did you mean model.width?"),
        ("model.zzzzzzzzzzzzzzzz", "known: model.depth, model.width"),
        ("rot", "did you mean root?"),
        ("qqq", "known: check, model, root, runner, train, transfer"),
        # A letter too few is met in the same group first.
        ("transfer.seed", "did you mean transfer.seeds?"),
        ("train.step", "did you mean train.steps?"),
        ("transfer.width", "did you mean transfer.widths?"),
        ("train.width", "did you mean model.width?"),
        ("seeds", "did you mean transfer.seeds?"),
        ("sedes", "did you mean transfer.seeds?"),
        # A key that belongs to another group is pointed there.
        ("check.device", "did you mean runner.device?"),
        ("check.zzzzzzzzzzzz", "known: check.seed"),
    ],
)
def test_what_an_unknown_key_may_have_meant(key: str, advice: str) -> None:
    assert suggest_key(key, TREE) == advice


@pytest.mark.parametrize(
    ("word", "key", "allowed"),
    [
        ("train.stepz=6", "train.stepz", "train.steps"),
        ("model.n_head=4", "model.n_head", "added: +"),
    ],
)
def test_beside_an_own_model_the_unknown_key_is_named(word: str, key: str, allowed: str) -> None:
    with raises_config_error(key) as caught:
        compose_tree(["model._target_=tests.toy_models.PlainDecoder", "model.frozen=[rows*]", word])
    assert allowed in str(caught.value)


def own_net(width: int, depth: int = 1) -> None:
    """Its depth is its own where nobody asks for another."""


def test_a_model_of_one_s_own_is_as_deep_as_it_says() -> None:
    own = f"model._target_={__name__}.own_net"
    assert compose_tree([own])["model"]["depth"] == 1
    assert compose_tree([own, "model.depth=3"])["model"]["depth"] == 3


def test_a_source_of_one_s_own_keeps_its_own_defaults() -> None:
    """What the source in conf/ takes, or holds out, is nothing to a class of the user's."""
    own = ["data._target_=mydata.Npz", "++data.path=mine.npz", "++data.augment.shift=1"]
    data = {"_target_": "mydata.Npz", "path": "mine.npz", "augment": {"shift": 1}}
    assert compose_tree(own)["data"] == data
    shipped = compose_tree(["data._target_=sweeper.data.text.Text", "++data.path=a.txt"])["data"]
    assert {"heldout", "tokenizer"} < shipped.keys()
