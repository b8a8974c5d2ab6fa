"""Options of the sources that are refused by their key, before any file is read."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from sweeper.data.arrays import Augmentation, Digits, Idx
from sweeper.data.spans import Spans
from sweeper.data.text import Text
from sweeper.data.tokens import Tokens
from sweeper.records import call_checked
from tests.refusals import raises_config_error

NAN = float("nan")
BPE = {"tokenizer": "bpe"}
REFUSED: dict[type, dict[str, list[Any]]] = {
    Augmentation: {"shift": [-1], "erase": [1.5]},
    Digits: {"heldout": [1.0]},
    Idx: {"path": [""]},
    Spans: {"rate": [0.0, 1.0], "mean_span": [0.5], "target": ["both"], "lengths": ["normal"]}
    | {"sentinels": [1], "heldout": [0.0], "path": [""], "vocab_size": [300]},
    Text: {"path": ["", 3], "heldout": [0.0, 1, NAN, "half"], "tokenizer": ["words"]}
    | {"vocab_size": [255]},
    Tokens: {"path": [None], "vocab_size": [0, True, "50k", 2**31 + 1]},
}
ALONE = [(s, k, {k: v}) for s, keys in REFUSED.items() for k, vs in keys.items() for v in vs]
TOGETHER: list[tuple[type, str, dict[str, Any]]] = [
    (Spans, "lengths", {"lengths": "drawn", "target": "spans"}),
    (Spans, "lengths", {"lengths": "drawn", "mean_span": 1.0}),
    (Spans, "sentence_ends", {"sentence_ends": (46,), "target": "spans"}),
    (Spans, "sentence_ends[0]", {"sentence_ends": (-1,)}),
    (Spans, "tokenizer", {"path": "a.bin", "tokenizer": "bpe"}),
    (Text, "vocab_size", BPE),
    *[(Text, "vocab_size", BPE | {"vocab_size": size}) for size in (300.0, 2**20 + 1)],
]


@pytest.mark.parametrize(("source", "key", "options"), ALONE + TOGETHER)
def test_options_that_are_refused(source: type, key: str, options: dict[str, Any]) -> None:
    path = {"path": "a.txt"} if source in (Text, Tokens) else {}
    with raises_config_error(key):
        call_checked(source, path | options, {})


CONF = Path(__file__).parents[2] / "conf" / "data"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_group_file_holds_the_source_with_its_defaults(path: Path) -> None:
    config = OmegaConf.load(path)
    mandatory = {"path": "a.npy"} if OmegaConf.is_missing(config, "path") else {}
    source = instantiate(config, **mandatory)
    name = "user" if path.stem == "own" else path.stem
    assert type(source).__name__.lower() in (name, f"{name}data")
    assert {field.name for field in fields(source)} == set(config) - {"_target_"}
    assert source == type(source)(**mandatory)
