"""What became of a prediction: the miss in nats, in per cent of the reducible loss, in compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.follow.decision import Seen, worth
from sweeper.evidence.predict.decision import PREDICTED, Prediction
from sweeper.evidence.predict.forecast import share_above
from sweeper.files import append, make_folder, private_folder, write_json
from sweeper.stats.estimate import Estimate

HEAD = (
    "| date | prediction | parameters | tokens | predicted (95 %) | measured | "
    "nats | of the reducible loss | compute | |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The end of a run beside its prediction, whose digest is `prediction`.

    `nats` is measured less predicted, `reducible` that as a share of what lay above the floor
    (None where nothing did),
    `compute` the share of the run's compute that would have given what was measured, by the law.
    `z` is in standard deviations of the prediction.
    """

    prediction: str
    predicted: Estimate
    measured: float
    nats: float
    reducible: float | None
    compute: float
    z: float
    hit: bool
    state: str
    since: int | None
    steps: int
    time: str


def outcome_of(
    prediction: Prediction, sha256: str, seen: Seen, measured: float | None
) -> RunOutcome:
    """Of a run that has ended, by its training loss or `measured`; BadInput where it needs that."""
    band = prediction.band
    assert band is not None
    if measured is None and band.gap_deviation > 0:
        raise BadInput(
            "the prediction is of a held-out loss, which the training losses do not tell: give "
            "what was measured with ",
            Keyword("measured", ...),
        )
    real = seen.end if measured is None else measured
    if real is None or not math.isfinite(real) or real <= 0:
        raise ConfigError(Keyword("measured"), real, "the loss at the end of the run, above 0")
    predicted = seen.predicted
    # In logs, as the law's draws are; the interval is nearly even there.
    deviation = (math.log(predicted.high) - math.log(predicted.low)) / (2 * 1.96)
    # E of all forms, as the loss is; older documents have that of one law alone.
    floor = (prediction.floor or prediction.law.E).value
    return RunOutcome(
        prediction=sha256,
        predicted=predicted,
        measured=real,
        nats=real - predicted.value,
        reducible=share_above(real - predicted.value, predicted.value, floor),
        compute=worth(prediction, real),
        z=(math.log(real) - math.log(predicted.value)) / max(deviation, 1e-12),
        hit=predicted.low <= real <= predicted.high,
        state=seen.state,
        since=seen.since,
        steps=seen.steps,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def ledger_line(prediction: Prediction, outcome: RunOutcome) -> str:
    """A row of the ledger."""
    aim = prediction.target
    predicted = outcome.predicted
    # What could not be said is neither met nor missed.
    verdict = ("miss", "hit") if prediction.answer == PREDICTED else ("outside", "inside")
    cells = [
        outcome.time[:10],
        outcome.prediction[:12],
        f"{aim.params:.3g}" if aim else "-",
        _horizon(prediction, aim.tokens) if aim else "-",
        f"{predicted.value:.4f} ({predicted.low:.4f} to {predicted.high:.4f})",
        f"{outcome.measured:.4f}",
        f"{outcome.nats:+.4f}",
        "-" if outcome.reducible is None else f"{100 * outcome.reducible:+.1f} %",
        f"{outcome.compute:.2f}",
        verdict[outcome.hit],
    ]
    return f"| {' | '.join(cells)} |"


def _horizon(prediction: Prediction, tokens: float) -> str:
    """Tokens as a cell under `tokens`, which names what else they are."""
    unit = prediction.inputs.unit
    return f"{tokens:.3g}" + f" {unit}" * (unit != "tokens")


def write_outcome(
    prediction: Prediction, outcome: RunOutcome, folder: Path, ledger: Path
) -> dict[str, Path]:
    """Write `outcome.json` into `folder`, and the ledger's line, unless it has one of this run."""
    private_folder(folder)
    write_json(folder / "outcome.json", outcome)
    line = ledger_line(prediction, outcome)
    # As bytes: what stands in a ledger beside our lines is its owner's.
    written = ledger.read_bytes() if ledger.exists() else b""
    # The date aside: to look at the end of a run twice makes no second outcome.
    if line.split("|", 2)[2].encode() not in written:
        make_folder(ledger.parent)
        append(ledger, f"{'' if written else HEAD}{line}\n".encode())
    return {"outcome": folder / "outcome.json", "ledger": ledger}
