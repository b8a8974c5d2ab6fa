from __future__ import annotations

import builtins
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeper.data.arrays import Digits
from tests.data.conftest import Refused


@pytest.fixture
def digits(tmp_path: Path) -> Any:
    pytest.importorskip("sklearn")
    return Digits().prepare(tmp_path)


def test_the_digits(digits: Any, tmp_path: Path) -> None:
    assert digits.classes == 10 and digits.input_shape == (8, 8) == Digits.input_shape
    assert digits.train_size == 1797 - 359
    x, y = digits.batch(0, 0, 64, 1)
    assert x.shape == (64, 8, 8) and x.dtype == np.float32 and y.dtype == np.int64
    assert set(y) == set(range(10))
    assert Digits().prepare(tmp_path) == digits != Digits(heldout=0.5).prepare(tmp_path)
    inputs, _ = digits._samples(np.arange(digits.train_size))
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(inputs.std()) == pytest.approx(1, rel=1e-5)
    blob = pickle.dumps(digits)
    assert len(blob) < 1000
    assert np.array_equal(pickle.loads(blob).batch(0, 0, 64, 1)[0], x)


def test_all_held_out_images_are_seen_once(digits: Any) -> None:
    labels = [y for _, y in digits.heldout(32, 1, None)]
    assert [len(y) for y in labels] == [32] * 11 + [7]  # 359
    assert np.array_equal(np.concatenate(labels), digits.labels[digits.train_size :])
    assert np.bincount(np.concatenate(labels)).min() > 20  # shuffled: every class is held out


def test_without_scikit_learn_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with refused():
        Digits().prepare(tmp_path)
