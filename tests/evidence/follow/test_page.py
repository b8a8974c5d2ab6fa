"""The page of a run that is followed: its drawing, on the band, off it, and before anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sweeper.evidence.follow.decision import Watch
from sweeper.evidence.follow.page import code_of, follow_figure, hint_lines, said_of, shown
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.report.answer import tone_of
from tests.evidence.made import prediction, run


@pytest.mark.parametrize(
    ("seen", "change", "tone", "said"),
    [
        (0, 0.0, "open", "Not enough yet"),
        pytest.param(700, 0.0, "good", "On the band", marks=pytest.mark.long),
        (700, 0.08, "bad", "Above the band since about step 300"),
    ],
)
def test_the_page_draws_what_is_seen(
    seen: int, change: float, tone: str, said: str, tmp_path: Path
) -> None:
    watch = Watch(prediction())
    losses = run(7) * np.exp(change * (np.arange(1000) >= 300))
    for step, loss in enumerate(losses[:seen].tolist()):
        watch.update(step, loss)
    answer = said_of(watch.look())
    assert answer.startswith(said)
    assert tone_of(code_of(watch.seen)) == tone
    assert bool(hint_lines(watch.seen)) == (tone == "bad")
    told = FollowAnswer(watch=watch, seen=watch.seen, folder=tmp_path, reads_rate=True)
    places = shown(told).places
    page = Path(str(places["page"])).read_text()
    assert said in page and "<svg" in page
    assert Path(str(places["figure"])).stat().st_size > 10_000


@pytest.mark.parametrize("missing", [range(0), range(400, 600)])
def test_the_line_of_a_rare_log_is_joined_and_breaks_at_a_gap(missing: range) -> None:
    watch, losses = Watch(prediction()), run(7)
    for step in range(0, 1000, 50):
        if step not in missing:
            watch.update(step, float(losses[step]))
    top = follow_figure(watch).axes[0]
    (line,) = [line for line in top.get_lines() if line.get_label() == "the run"]
    broken = int(np.isnan(line.get_ydata()).sum())
    assert broken == bool(missing)
    points = len(line.get_ydata()) - broken
    assert points == 20 - len(missing) // 50
    assert len(line.get_markevery()) == points


def test_a_dense_line_has_no_dots_but_where_a_reading_is_alone() -> None:
    watch, losses = Watch(prediction()), run(7)
    for step in (*range(400), 500, *range(600, 1000)):
        watch.update(step, float(losses[step]))
    top = follow_figure(watch).axes[0]
    (line,) = [line for line in top.get_lines() if line.get_label() == "the run"]
    (alone,) = line.get_markevery()
    assert line.get_xdata()[alone] == pytest.approx(500.5)
