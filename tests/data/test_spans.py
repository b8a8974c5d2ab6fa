"""Span corruption: nothing is lost, rates are exact, and draws follow from seed and step alone."""

import pickle
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweeper.data.spans import Corruption, SpanCorpus, Spans
from sweeper.data.text import Stdlib, Text
from sweeper.data.tokens import Tokens
from tests.data.conftest import Refused
from tests.engine.tiny_trials import corpus

Ids = NDArray[np.int64]
VOCABULARY = 50

corruptions = st.builds(
    Corruption,
    rate=st.floats(0.05, 0.9),
    mean_span=st.floats(1, 8),
    target=st.sampled_from(["whole", "spans"]),
    sentinels=st.just(100),
    lengths=st.sampled_from(["uniform", "poisson"]),
)


def made(how: Corruption, seq_len: int, batch: int, seed: int) -> tuple[Ids, Ids, Ids]:
    generator = np.random.default_rng(seed)
    windows = generator.integers(VOCABULARY, size=(batch, seq_len))
    draws = generator.integers(2**63, size=(batch, 2 * (seq_len + 1))).astype(np.uint64)
    return windows, *how.corrupted(windows, how.runs(draws, seq_len), VOCABULARY)


def restored(inputs: list[int], targets: list[int]) -> list[int]:
    """The window: every sentinel replaced by what follows it in the targets."""
    spans: dict[int, list[int]] = {}
    for token in targets:
        if token >= VOCABULARY:
            spans[token] = here = []
        else:
            here.append(token)
    return [t for token in inputs for t in (spans[token] if token >= VOCABULARY else [token])]


@given(how=corruptions, seq_len=st.integers(12, 64), seed=st.integers(0, 99))
def test_nothing_is_lost_and_rates_are_exact(how: Corruption, seq_len: int, seed: int) -> None:
    windows, inputs, targets = made(how, seq_len, 5, seed)
    cut, spans = how.counts(seq_len)
    assert cut == max(1, round(how.rate * seq_len))
    assert spans == max(1, min(round(cut / how.mean_span), seq_len - cut + 1))
    assert (inputs.shape[1], targets.shape[1]) == how.sizes(seq_len)
    marks = inputs >= VOCABULARY
    assert (marks.sum(1) == spans).all() and (~marks).sum(1).tolist() == [seq_len - cut] * 5
    assert not (marks[:, 1:] & marks[:, :-1]).any()  # spans do not touch
    if how.target == "whole":
        assert np.array_equal(targets, windows) and set(inputs[marks]) == {VOCABULARY}
        return
    for window, x, y in zip(windows.tolist(), inputs.tolist(), targets.tolist(), strict=True):
        assert restored(x, y) == window
        sentinels = [t for t in y if t >= VOCABULARY]
        assert sentinels == list(range(VOCABULARY, VOCABULARY + spans + 1)) and y[-1] == max(y)


def test_by_hand() -> None:
    how = Corruption(rate=3 / 8, mean_span=1.5, target="whole", sentinels=9)
    pair = how.corrupted(np.arange(8)[None], np.array([[1, 2, 2, 1, 2]]), 50)
    assert [x.tolist() for x in pair] == [[[0, 50, 3, 4, 50, 6, 7]], [[*range(8)]]]


def test_every_corruption_is_as_likely_as_another() -> None:
    """2 of 5 tokens in one span can begin at 4 places; in two spans lie at 6 pairs of places."""
    draws = np.random.default_rng(0).integers(2**63, size=(6000, 12)).astype(np.uint64)
    for mean, places in ((2.0, 4), (1.0, 6)):
        how = Corruption(rate=0.4, mean_span=mean, target="whole", sentinels=2)
        _, counts = np.unique(how.runs(draws, 5), axis=0, return_counts=True)
        assert len(counts) == places
        assert np.abs(counts - 6000 / places).max() < 5 * (6000 / places) ** 0.5


def test_a_span_of_no_token_is_a_mark_between_two() -> None:
    how = Corruption(rate=0.5, mean_span=2, target="spans", sentinels=9, lengths="poisson")
    pair = how.corrupted(np.arange(4)[None], np.array([[1, 0, 1, 2, 0]]), 50)
    assert [x.tolist() for x in pair] == [[[0, 50, 1, 51]], [[50, 51, 2, 3, 52]]]


def test_poisson_lengths_have_its_mean_variance_and_share_of_nothing() -> None:
    """Given their sum: the variance of one of S numbers is (1 - 1/S) times Poisson's."""
    seq_len, rate = 512, 0.3
    how = Corruption(rate=rate, mean_span=3, target="whole", sentinels=2, lengths="poisson")
    cut, spans = how.counts(seq_len)
    draws = np.random.default_rng(0).integers(2**63, size=(400, 2 * (seq_len + 1)))
    lengths = how.runs(draws.astype(np.uint64), seq_len)[:, 1::2]
    assert (lengths.sum(1) == cut).all() and lengths.shape[1] == spans == 51
    assert lengths.mean() == pytest.approx(3, rel=0.01)
    assert lengths.var() == pytest.approx(cut / spans * (1 - 1 / spans), rel=0.03)
    drawn = np.random.default_rng(1).poisson(3, size=lengths.size)
    for size in range(8):
        assert (lengths == size).mean() == pytest.approx((drawn == size).mean(), abs=0.01)


def test_drawn_spans_are_poissons_until_enough_is_gone() -> None:
    """All lengths but the last, which ends them where as much is gone as was asked for."""
    seq_len = 512
    how = Corruption(rate=0.3, mean_span=3, target="whole", sentinels=2, lengths="drawn")
    lost = 154 - 51
    generator = np.random.default_rng(0)
    draws = 2 * generator.integers(2**63, size=(4000, 2 * (seq_len + 1)), dtype=np.uint64)
    cuts, inner = [], []
    for _, runs in how.groups(draws, seq_len):
        spans = runs.shape[1] // 2
        assert (runs.sum(1) == seq_len).all() and (runs[:, 2:-1:2] >= 1).all() and runs.min() >= 0
        assert (runs[:, 1::2].sum(1) - spans == lost).all()
        cuts += (runs[:, 1::2].sum(1) / seq_len).tolist()
        inner += runs[:, 1:-2:2].ravel().tolist()
    assert np.mean(cuts) == pytest.approx(0.3, abs=0.004) and 0.008 < np.std(cuts) < 0.016
    assert np.mean(inner) == pytest.approx(3, rel=0.02)
    assert np.var(inner) == pytest.approx(3, rel=0.05)


@given(st.floats(0.05, 0.9), st.floats(1.2, 8), st.integers(12, 64), st.integers(0, 99))
def test_drawn_spans_keep_one_length_and_lose_nothing(
    rate: float, mean: float, seq_len: int, seed: int
) -> None:
    how = Corruption(rate=rate, mean_span=mean, target="whole", sentinels=2, lengths="drawn")
    generator = np.random.default_rng(seed)
    windows = generator.integers(VOCABULARY, size=(7, seq_len))
    draws = generator.integers(2**63, size=(7, 2 * (seq_len + 1))).astype(np.uint64)
    seen = []
    for rows, runs in how.groups(draws, seq_len):
        inputs, targets = how.corrupted(windows[rows], runs, VOCABULARY)
        assert inputs.shape[1] == how.sizes(seq_len)[0] and np.array_equal(targets, windows[rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(7))


def test_sentences_come_in_random_order_and_whole() -> None:
    """Ends are 9; of two in a row the second ends the sentence."""
    how = Corruption(rate=0.3, mean_span=3, target="whole", sentinels=2, sentence_ends=(9,))
    window = np.array([1, 2, 9, 3, 9, 9, 4, 5])
    sentences = {(1, 2, 9), (3, 9, 9), (4, 5)}
    draws = np.random.default_rng(0).integers(2**63, size=(3000, 8)).astype(np.uint64)
    permuted = how.permuted(np.tile(window, (3000, 1)), draws)
    orders, counts = np.unique(permuted, axis=0, return_counts=True)
    expected = {sum(order, ()) for order in permutations(sentences)}
    assert set(map(tuple, orders.tolist())) == expected
    assert np.abs(counts - 500).max() < 5 * 500**0.5


def test_what_is_written_is_the_text_in_its_order(tmp_path: Path) -> None:
    made, plain = (spanned(tmp_path, sentence_ends=ends) for ends in ((3, 4), ()))
    inputs, targets = made.batch(0, 0, 4, 40)
    assert np.array_equal(targets, made.tokens.batch(0, 0, 4, 40)[0])
    assert not np.array_equal(inputs, plain.batch(0, 0, 4, 40)[0])
    kept, before = (np.sort(x[x < 32]) for x in (inputs, targets))
    assert len(kept) == 4 * 28 and set(kept) <= set(before)


def spanned(folder: Path, **changed: Any) -> SpanCorpus:
    values: dict[str, Any] = {"rate": 0.3, "mean_span": 3.0, "target": "whole", "sentinels": 100}
    return SpanCorpus(tokens=corpus(folder), corruption=Corruption(**(values | changed)))


@pytest.mark.parametrize(
    ("target", "lengths"), [("whole", "uniform"), ("spans", "uniform"), ("whole", "drawn")]
)
def test_batches_follow_from_seed_and_step_and_begin_with_smaller_ones(
    target: str, lengths: str, tmp_path: Path
) -> None:
    made = pickle.loads(pickle.dumps(spanned(tmp_path, target=target, lengths=lengths)))
    inputs, targets = made.batch(3, 7, 8, 40)
    for size in (8, 3):
        for x, again in zip((inputs, targets), made.batch(3, 7, size, 40), strict=True):
            assert np.array_equal(x[:size], again)
    assert not np.array_equal(inputs, made.batch(3, 8, 8, 40)[0])
    assert not np.array_equal(inputs, made.batch(4, 7, 8, 40)[0])
    heldout = [list(made.heldout(4, 40, 2)) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(*[h[1] for h in heldout], strict=True))
    assert inputs.max() < made.classes - 1 and targets.max() < made.classes - 1  # the start token


def test_the_identity_tells_corruptions_apart_and_sources_alike(tmp_path: Path) -> None:
    identity = spanned(tmp_path).identity()
    assert identity == spanned(tmp_path, sentinels=7).identity()  # a mask is all it has
    others = [{"rate": 0.15}, {"mean_span": 2.0}, {"target": "spans"}]
    others += [{"lengths": "poisson"}, {"lengths": "drawn"}, {"sentence_ends": (3,)}]
    assert {"lengths", "sentence_ends"}.isdisjoint(identity["spans"])  # old trials keep their keys
    assert all(identity != spanned(tmp_path, **changed).identity() for changed in others)
    assert identity["classes"] == 32 + 1 + 1
    assert spanned(tmp_path, target="spans").classes == 32 + 100 + 1


@pytest.mark.parametrize(
    ("path", "source"), [(None, Stdlib), ("a.txt", Text), ("a.bin", Tokens), ("a.npy", Tokens)]
)
def test_any_text_or_tokens(path: str | None, source: type) -> None:
    assert isinstance(Spans(path=path).source(), source)


def test_windows_that_cannot_be_corrupted_are_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        spanned(tmp_path, rate=0.9).check(2, 4)
    with refused():
        spanned(tmp_path, target="spans", sentinels=4).check(2, 40)
    spanned(tmp_path, target="spans", sentinels=5).check(2, 40)
