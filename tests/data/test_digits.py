from __future__ import annotations

import builtins
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data.arrays import Digits
from sweeper.errors import BadInput, ConfigError
from tests.golden import Golden


def test_the_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    corpus = Digits().prepare(tmp_path)
    assert corpus.classes == 10 and corpus.input_shape == (8, 8) == Digits.input_shape
    assert corpus.train_size == 1797 - 359
    x, y = corpus.batch(0, 0, 64, 1)
    assert x.shape == (64, 8, 8) and x.dtype == np.float32 and y.dtype == np.int64
    assert set(y) == set(range(10))
    assert Digits().prepare(tmp_path) == corpus != Digits(heldout=0.5).prepare(tmp_path)
    held = np.concatenate([labels for _, labels in corpus.heldout(50, 1, 8)])
    assert np.bincount(held).min() > 20  # shuffled: every class is held out


def test_inputs_are_standardized_by_the_train_split(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    corpus = Digits().prepare(tmp_path)
    x, _ = corpus._samples(np.arange(corpus.train_size))
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std()) == pytest.approx(1, rel=1e-5)


def test_without_scikit_learn_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(BadInput) as caught:
        Digits().prepare(tmp_path)
    golden.says(caught)


def test_a_fraction_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        Digits(heldout=1.0)


def test_a_corpus_is_pickled_without_its_samples(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    corpus = Digits().prepare(tmp_path)
    before, _ = corpus.batch(1, 2, 3, 1)
    blob = pickle.dumps(corpus)
    assert len(blob) < 1000
    assert np.array_equal(pickle.loads(blob).batch(1, 2, 3, 1)[0], before)


def test_all_held_out_images_are_seen_once(tmp_path: Path) -> None:
    corpus = Digits().prepare(tmp_path)
    batches = list(corpus.heldout(32, 1, None))
    assert [len(y) for _, y in batches] == [32] * 11 + [7]  # 359
    seen = np.concatenate([y for _, y in batches])
    assert np.array_equal(seen, corpus.labels[corpus.train_size :])
