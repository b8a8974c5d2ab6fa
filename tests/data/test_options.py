"""Options of the sources that are refused by their key, before any file is read."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.data.arrays import Augmentation, Digits, Idx
from sweeper.data.spans import Spans
from sweeper.data.text import Text
from sweeper.data.tokens import Tokens
from tests.refusals import raises_config_error

REFUSED: dict[type, list[tuple[str, dict[str, Any]]]] = {
    Augmentation: [("shift", {"shift": -1}), ("erase", {"erase": 1.5})],
    Digits: [("heldout", {"heldout": 1.0})],
    Idx: [("path", {"path": ""})],
    Spans: [
        ("rate", {"rate": 0.0}),
        ("rate", {"rate": 1.0}),
        ("mean_span", {"mean_span": 0.5}),
        ("target", {"target": "both"}),
        ("lengths", {"lengths": "normal"}),
        ("lengths", {"lengths": "drawn", "target": "spans"}),
        ("lengths", {"lengths": "drawn", "mean_span": 1.0}),
        ("sentence_ends", {"sentence_ends": (46,), "target": "spans"}),
        ("sentence_ends[0]", {"sentence_ends": (-1,)}),
        ("sentinels", {"sentinels": 1}),
        ("heldout", {"heldout": 0.0}),
        ("path", {"path": ""}),
        ("vocab_size", {"vocab_size": 300}),
        ("tokenizer", {"path": "a.bin", "tokenizer": "bpe"}),
    ],
    Text: [
        ("path", {"path": ""}),
        ("path", {"path": 3}),
        ("heldout", {"heldout": 0.0}),
        ("heldout", {"heldout": 1}),
        ("heldout", {"heldout": float("nan")}),
        ("heldout", {"heldout": "half"}),
        ("tokenizer", {"tokenizer": "words"}),
        ("vocab_size", {"vocab_size": 255}),
        ("vocab_size", {"tokenizer": "bpe"}),
        ("vocab_size", {"tokenizer": "bpe", "vocab_size": 300.0}),
        ("vocab_size", {"tokenizer": "bpe", "vocab_size": 2**20 + 1}),
    ],
    Tokens: [
        ("path", {"path": None}),
        ("vocab_size", {"vocab_size": 0}),
        ("vocab_size", {"vocab_size": True}),
        ("vocab_size", {"vocab_size": "50k"}),
        ("vocab_size", {"vocab_size": 2**31 + 1}),
        ("heldout", {"heldout": 1.0}),
    ],
}


@pytest.mark.parametrize(
    ("source", "key", "options"),
    [(source, *row) for source, rows in REFUSED.items() for row in rows],
)
def test_options_that_are_refused(source: type, key: str, options: dict[str, Any]) -> None:
    path = {"path": "a.txt"} if source in (Text, Tokens) else {}
    with raises_config_error(key):
        source(**(path | options))
