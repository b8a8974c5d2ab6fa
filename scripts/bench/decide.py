"""How often `sweeper compare --by` says the wrong variant, and how often its intervals hold.

Tables that others published, and made-up ones whose truth is known: variants are told from small
sizes and checked at a larger one that was kept aside. `--data` is a folder with decisions/, curves/
and cases/tables/; without it the made-up tables alone are tried.

    python scripts/bench/decide.py --data DIR
    python scripts/bench/decide.py --tables 100 --only made
    python scripts/bench/decide.py --data DIR --tables 6 --only constants   # what is in proportion
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]

from sweeper.evidence.compare import differences
from sweeper.evidence.compare.deciding import Deciding
from sweeper.evidence.compare.decision import VariantAnswer, Winner, decide
from sweeper.evidence.compare.differences import VariantLosses, VariantQuestion, carry
from sweeper.evidence.compare.reading import variant_runs
from sweeper.evidence.runs.read import read

SIZES = np.array([(27.2, 31.3), (28.2, 32.5), (29.2, 33.3), (30.2, 34.4)])
"""log2 of parameters and tokens of made-up tables: 130M to 1.2B; the target is a size beyond."""
TARGET = np.array([32.2, 36.2])
NOISE = 0.002


def winner(frame: Any, by: str, baseline: str, columns: str = "", **question: Any) -> Winner:
    """What compare says of a table."""
    runs = variant_runs(read(frame, columns=columns), by, baseline)
    return decide(runs, VariantQuestion(**question), briefly=True)


@dataclass
class Tally:
    """Pairs: how many were called at 95 %, how many of them wrongly, how many intervals held."""

    pairs: int = 0
    called: int = 0
    wrong: int = 0
    held: int = 0
    held_by_runs: int = 0
    answered: int = 0
    misanswered: int = 0
    score: float = 0.0

    def add(self, each: VariantAnswer, truth: float, noise: float = 0.0) -> None:
        """A variant with its difference at the target, measured by a run of each with `noise`."""
        d = each.loss_difference
        self.pairs += 1
        self.held += d.low <= truth <= d.high
        low, high = (
            d.value
            + math.copysign(math.hypot(end - d.value, 2 * math.sqrt(2) * noise), end - d.value)
            for end in (d.low, d.high)
        )
        self.held_by_runs += low <= truth <= high
        # The interval score of 95 %: its length, and 40 times how far off it is.
        self.score += high - low + 40 * max(low - truth, truth - high, 0.0)
        if not 0.05 < each.chance < 0.95:
            self.called += 1
            self.wrong += (each.chance > 0.5) != (truth < 0) or not truth
        if each.answer in ("better", "worse"):
            self.answered += 1
            self.misanswered += (each.answer == "better") != (truth < 0) or not truth

    def row(self, name: str, more: str | None = None) -> str:
        """A row of a table."""
        held, by_runs = (f"{n / max(1, self.pairs):.0%}" for n in (self.held, self.held_by_runs))
        return (
            f"| {name} | {self.pairs} | {self.called} | {self.wrong} | {self.answered} | "
            f"{self.misanswered} | {held} | {by_runs if more is None else more} |"
        )


HEAD = (
    "| told from -> checked at | pairs | called at 95 % | wrong | answered | wrong | held | "
    "with the noise of runs |\n"
    "|---|---|---|---|---|---|---|---|"
)


# Published tables.


def recipes(data: Path) -> Iterator[tuple[str, Tally]]:
    """Recipes at 130M to 520M, checked at 1.2B: all in one table, and in tables of two."""
    t = pandas.read_csv(data / "decisions/speedruns.csv")
    size = t["path"].str.extract(r"/(130m|300m|520m|1_2b|1\.2b)$")[0].str.replace(".", "_")
    t = t.assign(size=size)[~t["path"].str.contains("old_scaling") & size.notna()]
    t = t[t["recipe"].map(t.groupby("recipe")["size"].nunique()) == 4]
    names, columns = sorted(set(t["recipe"])), "loss=c4_en_bpb"
    target = t[(t["recipe"] == "adamw_llama_scaling") & (t["size"] == "1_2b")].iloc[0]
    counts = {"params": float(target["params"]), "tokens": float(target["tokens"])}
    for small, name in (
        (("130m", "300m", "520m"), "130M to 520M"),
        (("130m", "300m"), "130M and 300M"),
    ):
        near = t[t["size"].isin(small)]
        whole, pairs = Tally(), Tally()
        for baseline in names:
            true = {
                each.name: each.sizes[-1].difference.value
                for each in winner(t, "recipe", baseline, columns, counts=counts).variants
            }
            found = winner(near, "recipe", baseline, columns, counts=counts)
            for each in found.variants:
                if each.name > baseline:
                    whole.add(each, true[each.name], found.noise)
            for other in (n for n in names if n > baseline):
                two = near[near["recipe"].isin([baseline, other])]
                found = winner(two, "recipe", baseline, columns, counts=counts)
                pairs.add(found.variants[0], true[other], found.noise)
        yield f"{len(names)} recipes in one table, {name} -> 1.2B", whole
        yield f"the same in tables of two, {name} -> 1.2B", pairs


def gates(data: Path) -> Iterator[tuple[str, Tally]]:
    """Changes of a MoE at widths, checked at the next one."""
    t = pandas.read_csv(data / "decisions/gates.csv")
    columns, tally = "flops=budget_flops,loss=macro_loss,throughput=", Tally()
    for _, table in t.groupby("baseline"):
        for small, large in (((512, 768), 1024), ((512, 768, 1024), 1280)):
            far = table[table["dim"] == large].set_index("change")["macro_loss"]
            near = table[table["dim"].isin(small)]
            if not (far.index != "baseline").any():
                continue
            found = winner(near, "change", "baseline", columns, counts={"width": large})
            for each in found.variants:
                if each.name in far.index:
                    tally.add(each, float(far[each.name] - far["baseline"]), found.noise)
    yield "changes of a MoE, widths up to 768 -> 1024, up to 1024 -> 1280", tally


def data_sets(data: Path) -> Iterator[tuple[str, Tally]]:
    """Differences of half a nat: data sets at 10M and 80M parameters, checked at 150M and 400M."""
    t = pandas.read_csv(data / "cases/tables/compare_large_differences.csv")
    ratio, params = (t["tokens"] / t["params"]).round(), sorted(t["params"].unique())
    ladders, grid = Tally(), Tally()
    for large, (kinds, tally) in itertools.product(
        params[2:], (([(r,) for r in sorted(ratio.unique())], ladders), ([(5, 10, 20)], grid))
    ):
        for ratios in kinds:
            near = t[t["params"].isin(params[:2]) & ratio.isin(ratios)]
            far = t[(t["params"] == large) & (ratio == ratios[-1])].set_index("data")["loss"]
            counts = {"params": large, "tokens": large * ratios[-1]}
            for baseline in "ab":
                found = winner(near, "data", baseline, counts=counts)
                for each in found.variants:
                    if each.name > baseline:
                        tally.add(each, float(far[each.name] - far[baseline]), found.noise)
    yield "data sets, a ladder of two sizes", ladders
    yield "data sets, two sizes with three horizons", grid


def published(data: Path) -> Iterator[str]:
    """All of them, and the speed-ups in wall clock that are stated, with the law pinned."""
    yield HEAD
    total = Tally()
    for name, tally in itertools.chain(recipes(data), gates(data)):
        yield tally.row(name)
        for count in vars(total):
            setattr(total, count, getattr(total, count) + getattr(tally, count))
    yield total.row("all")
    for name, tally in data_sets(data):
        yield tally.row(name)
    yield ""
    t = pandas.read_csv(data / "decisions/gates.csv")
    t = t[t["baseline"] == "v16"]
    columns = "flops=budget_flops,loss=macro_loss"
    found = winner(t, "change", "baseline", columns, floor=1.6, exponent=0.0941)
    said = t[t["speedup_said"].notna() & (t["change"] != "baseline")]
    said = said.set_index(["change", "dim"])["speedup_said"]
    off, inside = [], 0
    for each in found.variants:
        for at in each.sizes:
            key = (each.name, round(at.place.counts["width"]))
            if key in said.index:
                off.append(abs(at.wall_clock.value - float(said[key])))
                inside += at.wall_clock.low <= float(said[key]) <= at.wall_clock.high
    near = sum(each <= 0.012 for each in off)
    yield (
        f"Stated speed-ups: {near} of {len(off)} within 0.012 (furthest {max(off):.3f}), "
        f"{inside} within the interval."
    )


def seeds(data: Path, tables: int) -> Iterator[str]:
    """Recipes with seeds at one size, n drawn of each; and halves of one recipe."""
    t = pandas.read_csv(data / "curves/runs.csv")
    groups = {name: g["val_loss"].to_numpy() for name, g in t.groupby("group")}
    generator = np.random.default_rng(0)

    def answer(a: Any, b: Any) -> str:
        frame = pandas.DataFrame({"of": ["a"] * len(a) + ["b"] * len(b), "loss": [*a, *b]})
        return winner(frame, "of", "a").variants[0].answer

    yield "| seeds of each | pairs | told apart | wrong | halves of one recipe | told apart |"
    yield "|---|---|---|---|---|---|"
    for n in (3, 5, 8):
        told = wrong = halves = apart = 0
        pairs = [*itertools.combinations(groups, 2)]
        for k in range(len(pairs) if tables < 100 else 2 * len(pairs)):
            one, other = pairs[k % len(pairs)]
            x, y = (generator.choice(groups[g], n, replace=False) for g in (one, other))
            said, true = answer(x, y), groups[other].mean() - groups[one].mean()
            told += said != "cannot say"
            wrong += said != "cannot say" and (said == "better") != (true < 0)
        enough = [g for g in groups.values() if len(g) >= 2 * n]
        for k in range(4 * tables):
            drawn = generator.permutation(enough[k % len(enough)])
            halves += 1
            apart += answer(drawn[:n], drawn[n : 2 * n]) != "cannot say"
        count = len(pairs) if tables < 100 else 2 * len(pairs)
        yield f"| {n} | {count} | {told} | {wrong} | {halves} | {apart} |"


# Made-up tables.


@dataclass(frozen=True)
class Made:
    """A kind of table: differences of variants at sizes and target, and how they were run."""

    effect: Callable[[np.random.Generator, int], Any]  # -> [variants, sizes + 1]
    variants: int = 6
    seeds: int = 1
    noise: float = NOISE
    missing: float = 0.0
    diverge: float = 0.0
    untuned: bool = False
    one_off: float = 0.0


def octaves() -> Any:
    """Compute of sizes and target, in octaves from the largest size."""
    u = np.array([*SIZES.sum(axis=1), TARGET.sum()])
    return u - SIZES.sum(axis=1).max()


def fading(beta: float, spread: float = 0.03, scale: float = 0.012) -> Callable[..., Any]:
    """Effects that shrink by 2^-beta an octave, each by its own, with a drift."""

    def effect(generator: np.random.Generator, variants: int) -> Any:
        u = octaves()
        betas = generator.normal(beta, spread, (variants, 1))
        size = generator.normal(0, scale, (variants, 1))
        steps = np.sqrt(np.diff(u, prepend=u[0]))
        drift = np.cumsum(generator.normal(size=(variants, len(u))) * 0.0007 * steps, axis=1)
        return size * 2.0 ** (-betas * u) + drift

    return effect


def crossing(generator: np.random.Generator, variants: int) -> Any:
    """Effects that change their sign within the ladder or beyond it."""
    u = octaves()
    return generator.normal(0, 0.0012, (variants, 1)) * (
        u - generator.uniform(-5, 3, (variants, 1))
    )


def nothing(generator: np.random.Generator, variants: int) -> Any:
    """No effect of any variant."""
    return np.zeros((variants, len(SIZES) + 1))


def few(generator: np.random.Generator, variants: int) -> Any:
    """No effect of most variants, and one of three of them."""
    found = fading(0.1)(generator, variants)
    found[3:] = 0
    return found


KINDS = {
    "fading": Made(fading(0.12)),
    "fading fast": Made(fading(0.25)),
    "staying": Made(fading(0.0)),
    "growing": Made(fading(-0.08, 0.02, 0.006)),
    "crossing": Made(crossing),
    "one size off": Made(fading(0.12), one_off=0.012),
    "sizes missing": Made(fading(0.12), missing=0.3),
    "three seeds, some diverge": Made(fading(0.12), seeds=3, noise=0.001, diverge=0.03),
    "untuned variants": Made(fading(0.12), untuned=True),
    "noise of 0.006": Made(fading(0.12), noise=0.006),
    "twenty without effect": Made(nothing, variants=20),
    "twenty, three with effect": Made(few, variants=20),
}


def table(made: Made, generator: np.random.Generator) -> tuple[Any, Any, Any]:
    """A table; differences to the baseline at the target, and what a run of each shows there."""
    effects = made.effect(generator, made.variants)
    effects = np.concatenate([np.zeros((1, effects.shape[1])), effects])
    base = 1.7 + 2.0 ** (3.1 - 0.05 * np.array([*SIZES.sum(axis=1)]))
    off = np.zeros(effects.shape)
    if made.one_off:
        off[np.arange(1, len(off)), generator.integers(0, len(SIZES), len(off) - 1)] = (
            generator.normal(0, made.one_off, len(off) - 1)
        )
    rows = []
    for variant, size in itertools.product(range(len(effects)), range(len(SIZES))):
        if variant and generator.random() < made.missing:
            continue
        worse = made.untuned and variant % 2
        for seed in range(made.seeds):
            loss = base[size] + effects[variant, size] + off[variant, size]
            loss += made.noise * generator.normal()
            row = {
                "variant": f"v{variant}",
                "params": 2.0 ** SIZES[size, 0],
                "tokens": 2.0 ** SIZES[size, 1],
                "seed": seed,
                "loss": math.inf if variant and generator.random() < made.diverge else loss,
            }
            # A third of the rates of an untuned variant: its best lies at the end, and too high.
            rates = ((-1, 0, 1) if not worse else (-3, -2, -1)) if made.untuned else (0,)
            for rate in rates:
                cost = 0.01 * rate**2 if made.untuned else 0.0
                rows.append({**row, "lr": 0.001 * 2.0**rate, "loss": row["loss"] + cost})
    shown = effects[:, -1] + made.noise * generator.normal(size=len(effects))
    return pandas.DataFrame(rows), effects[1:, -1], shown[1:] - shown[0]


def made_up(tables: int) -> Iterator[str]:
    """All kinds."""
    yield HEAD.replace("with the noise of runs", "tables with any without effect better", 1)
    for name, tally, lucky in kinds(tables):
        yield tally.row(name, lucky)


def kinds(tables: int) -> Iterator[tuple[str, Tally, str]]:
    """Each kind, and in how many tables one without effect is called better, where some are."""
    counts = dict(zip(("params", "tokens"), 2.0**TARGET, strict=True))
    for name, made in KINDS.items():
        generator, tally, lucky = np.random.default_rng(7), Tally(), 0
        for _ in range(tables if made.variants > 6 else max(1, tables // 2)):
            frame, truth, _ = table(made, generator)
            found = winner(frame, "variant", "v0", counts=counts)
            any_lucky = False
            for each in found.variants:
                index = int(each.name[1:]) - 1
                # What was not tuned is a bound: its interval is of what was run.
                if made.untuned and index % 2 == 0:
                    tally.misanswered += each.answer == "worse"
                    continue
                tally.add(each, float(truth[index]))
                if made.effect is nothing or (made.effect is few and index >= 3):
                    any_lucky |= each.answer == "better"
            lucky += any_lucky
        without = made.effect in (nothing, few)
        count = tables if made.variants > 6 else max(1, tables // 2)
        yield name, tally, f"{lucky} of {count}" * without


# Studies that are trained until it is decided.


def settled(count: int) -> Iterator[str]:
    """Two studies at one width: a seed does 0.1 to both, and 0.01 to each by itself."""
    yield "| distance, in deviations | settled | better or worse | wrong | runs | median |"
    yield "|---|---|---|---|---|---|"
    size = {"width": 64.0, "steps": 1000.0}
    for distance, noise in itertools.product((0.0, 0.5, 1.0, 2.0), ("normal", "t(3)")):
        generator, told, wrong, runs = np.random.default_rng(11), 0, 0, []
        for _ in range(count):
            of_seed = generator.normal(0, 0.1, 200)
            drawn = generator.normal(size=(2, 200))
            if noise == "t(3)":
                drawn = generator.standard_t(3, (2, 200)) / math.sqrt(3)
            losses = 3 + of_seed + 0.01 * drawn
            losses[1] += distance * 0.01 * math.sqrt(2)

            def loss(name: str, size: int, seed: int, losses: Any = losses) -> float:
                return float(losses["ab".index(name), seed])

            deciding = Deciding("ab", [size], [1e12], VariantQuestion(), loss, begun=1)
            deciding.missing()
            assert deciding.winner is not None
            answer = deciding.winner.variants[0].answer
            told += answer != "cannot say"
            wrong += answer == "better" or (answer == "worse" and not distance)
            runs.append(deciding.runs)
        yield (
            f"| {distance:g}, {noise} | {count} | {told} | {wrong} | {np.mean(runs):.0f} | "
            f"{np.median(runs):.0f} |"
        )


# Constants.


def constants(data: Path, tables: int) -> Iterator[str]:
    """Of each table its row with that share in proportion which does best on all others.

    Best is the least interval score, of each table as a share of what the present one has.
    """
    now = differences.IN_PROPORTION
    grid = (now, 0.0, 0.01, 0.02, 0.03, 0.04, 0.06)
    found: list[dict[str, Tally]] = []
    for differences.IN_PROPORTION in grid:
        every = [*recipes(data), *gates(data), *data_sets(data)]
        found.append(dict(every) | {name: tally for name, tally, _ in kinds(tables)})
    differences.IN_PROPORTION = now
    yield HEAD.replace("| pairs", "| in proportion | pairs", 1) + "---|"
    for name in found[0]:
        # Tables of the same runs are left out together.
        kin = next((k for k in ("1.2B", "data sets") if k in name), name)
        others = [e for e in found[0] if kin not in e]
        scores = [sum(tallies[e].score / found[0][e].score for e in others) for tallies in found]
        best = int(np.argmin(scores))
        yield found[best][name].row(f"{name} | {grid[best]:g}")


# Sessions of an agent.


def sessions(error: float, count: int = 2_000_000) -> Iterator[str]:
    """Tries of pure noise, and of a gain of 0.003, of at most twelve runs beside twelve others.

    Whether a try is kept follows from the mean and the spread of its runs: the least mean that is
    kept is found for some spreads, and the tries are drawn.
    """
    sigma, looks, of_baseline = 0.0011, (3, 6, 12), 12
    spreads = sigma * np.geomspace(0.4, 2.2, 9)
    least = {n: [_least(n, of_baseline, s, error) for s in spreads] for n in looks}
    generator = np.random.default_rng(3)
    for gain in (0.0, 0.003):
        kept, runs = np.zeros(count, bool), np.zeros(count)
        base = generator.normal(0, sigma, (count // 100, of_baseline))
        base = np.repeat(base, 100, axis=0)
        tried = generator.normal(-gain, sigma, (count, looks[-1]))
        for n in looks:
            part = tried[:, :n]
            squares = part.var(axis=1) * n + base.var(axis=1) * of_baseline
            spread = np.sqrt(squares / (n + of_baseline - 2))
            better = base.mean(axis=1) - part.mean(axis=1)
            runs += np.where(kept, 0, n - runs)
            kept |= better > np.interp(spread, spreads, least[n])
        of_session = kept.reshape(-1, 100).any(axis=1).mean()
        yield (
            f"Gain {gain:g}: {kept.mean():.4%} of tries kept, {runs.mean():.1f} runs a try; "
            f"{of_session:.2%} of sessions of a hundred keep one."
        )


def _least(n: int, of_baseline: int, spread: float, error: float) -> float:
    """The gain above which a try with `n` runs is kept."""
    low, high = 0.0, 20 * spread
    freedom = n + of_baseline - 2
    for _ in range(18):
        gain = (low + high) / 2
        means, counts = np.array([[3.28], [3.28 - gain]]), np.array([[of_baseline], [n]])
        losses = VariantLosses(
            ["a", "b"], np.zeros((1, 2)), means, counts, spread**2 * freedom, freedom
        )
        better = carry(losses, np.zeros((1, 2))).chance(1) >= 1 - error
        low, high = (low, gain) if better else (gain, high)
    return high


PARTS = ("published", "seeds", "made", "settled", "sessions", "constants")


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder with decisions/ and curves/")
    parser.add_argument("--tables", type=int, default=40, help="made-up tables of each kind")
    parser.add_argument("--error", type=float, default=1e-3, help="of a try of an agent")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args(words)

    def wanted(part: str) -> bool:
        needs_data = part in ("published", "seeds", "constants")
        asked = options.only == part or (options.only is None and part != "constants")
        return asked and (options.data is not None or not needs_data)

    lines: list[Iterator[str]] = []
    if wanted("published"):
        lines += [published(options.data)]
    if wanted("seeds"):
        lines += [iter([""]), seeds(options.data, options.tables)]
    if wanted("made"):
        lines += [iter([""]), made_up(options.tables)]
    if wanted("settled"):
        lines += [iter([""]), settled(5 * options.tables)]
    if wanted("sessions"):
        lines += [iter([""]), sessions(options.error)]
    if wanted("constants"):
        lines += [constants(options.data, options.tables)]
    for line in itertools.chain(*lines):
        print(line, flush=True)


if __name__ == "__main__":
    main()
