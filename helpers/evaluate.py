"""Evaluation: from saved episodes to figures with intervals, tables and `summary.json`.

Every interval is a 95 % percentile bootstrap that resamples whole seeds (the clusters): n counts seeds, not turns or games.
Players are compared on the same seeds, so that the luck of the deal cancels. Nothing here is random from run to run.
"""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from helpers.game import Game, Seat, replay
from helpers.players import FLOORS, SCRIPTED
from helpers.rollout import Episode

# Of rows in every table, whatever the game: floors before the models, competent players after them; the optimum comes last.
COMPETENT = tuple(dict.fromkeys(next(iter(players)) for players in SCRIPTED.values()))
ORDER = ("random", *FLOORS.values(), "untrained base", "warm start", "trained", *COMPETENT)

BOOTSTRAPS = 9999  # resamples of a ratio, as many as scipy draws


@dataclass(frozen=True)
class Interval:
    """A value and the two ends of its 95 % interval, from n seeds."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """a minus b on the same seeds, and the same as percent of b's mean: None where that mean's interval reaches down to 0."""

    difference: Interval
    percent: Interval | None


def outcomes(game: Game, episodes: Sequence[Episode], seat: Seat | None = None) -> pd.DataFrame:
    """One row an episode: seed, table payoff (sum over seats), payoff of each seat, the figures of `game.counts`, invalid
    replies (share of turns, 0..1) and turns. With `seat`, its payoff comes as "own payoff" and only its replies are judged."""
    rows = []
    for episode in episodes:
        judged = [turn for turn in episode.turns if seat in (None, turn.seat)]
        rows.append(
            {
                "seed": episode.seed,
                **({"own payoff": episode.payoffs[seat]} if seat else {}),
                "table payoff": sum(episode.payoffs.values()),
                **{f"payoff {name}": payoff for name, payoff in episode.payoffs.items()},
                **game.counts(replay(game, episode.seed, episode.actions)),
                "invalid replies": sum(turn.error is not None for turn in judged) / max(len(judged), 1),
                "turns": len(episode.turns),
            }
        )
    return pd.DataFrame(rows)


def metrics(frame: pd.DataFrame) -> list[str]:
    """The columns of `outcomes` that tables show."""
    return [name for name in frame if name not in ("seed", "turns") and not name.startswith("payoff ")]


def interval(values: Sequence[float], seeds: Sequence[int] | None = None) -> Interval:
    """The mean of `values` with its interval. `seeds` names the seed of each value (default: all different); values of one
    seed are averaged first. Raises ValueError with fewer than two seeds."""
    values = pd.Series(np.asarray(values, dtype=float))
    return _bootstrap(np.mean, values if seeds is None else values.groupby(np.asarray(seeds)).mean())


def ratio(over: Sequence[float], under: Sequence[float], clusters: Sequence[int]) -> Interval:
    """Sum of `over` / sum of `under` (at least 0) with its interval: values of one cluster are summed, and whole clusters
    resampled, both sums together. Resamples without any `under` are left out. Raises ValueError with fewer than two clusters,
    or if all of `under` is 0."""
    keys = np.asarray(clusters)
    over, under = (pd.Series(np.asarray(values, dtype=float)).groupby(keys).sum() for values in (over, under))
    if len(over) < 2 or not under.sum():
        raise ValueError(f"expected at least 2 clusters and something to divide by, got {len(over)} and {under.sum():g}")
    draws = np.random.default_rng(0).integers(len(over), size=(BOOTSTRAPS, len(over)))
    tops, bottoms = (values.to_numpy()[draws].sum(axis=1) for values in (over, under))
    low, high = np.percentile(tops[bottoms > 0] / bottoms[bottoms > 0], [2.5, 97.5])
    return Interval(float(over.sum() / under.sum()), float(low), float(high), len(over))


def compare(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> Comparison:
    """a's mean of `metric` minus b's, from `outcomes` on the same seeds. Raises ValueError when the seeds differ."""
    a, b = _paired(a, b, metric)
    percent = _bootstrap(lambda a, b, axis: 100 * (np.mean(a, axis) - np.mean(b, axis)) / np.mean(b, axis), a, b)
    divisible = _bootstrap(np.mean, b).low > 0 and np.isfinite([percent.low, percent.high]).all()
    return Comparison(_bootstrap(np.mean, a - b), percent if divisible else None)


def share_of_attainable(policy: pd.DataFrame, random: pd.DataFrame, optimum: float) -> Interval:
    """(policy - random) / (optimum - random) in mean table payoff, from `outcomes` on the same seeds: 0 is random play, 1 the
    optimum. Raises ValueError when the seeds differ, or random play reaches the optimum on all of them."""
    policy, random = _paired(policy, random, "table payoff")
    if (random == optimum).any():  # as in bargaining: then it is so in all of some resamples, which cannot be divided by
        return ratio(policy - random, optimum - random, policy.index)
    return _bootstrap(lambda p, r, axis: (np.mean(p, axis) - np.mean(r, axis)) / (optimum - np.mean(r, axis)), policy, random)


def _paired(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> tuple[pd.Series, pd.Series]:
    """Both sides' mean of `metric` for each seed, in the order of the seeds."""
    a, b = (frame.groupby("seed")[metric].mean() for frame in (a, b))
    if not a.index.equals(b.index):
        odd = sorted(map(int, a.index.symmetric_difference(b.index)))
        raise ValueError(f"expected the same seeds on both sides, got {len(a)} and {len(b)}; only one side has {odd[:5]}")
    return a, b


def _bootstrap(statistic: Callable, *samples: pd.Series) -> Interval:
    """The statistic of samples that hold one value a seed, in the same order of seeds; seeds are resampled jointly."""
    samples = [sample.to_numpy(dtype=float) for sample in samples]
    n = len(samples[0])
    if n < 2:
        raise ValueError(f"expected at least 2 seeds to resample, got {n}; play more episodes")
    with np.errstate(divide="ignore", invalid="ignore"):  # a ratio may divide by 0; `compare` looks at what came out
        value = float(statistic(*samples, axis=-1))
        if all(np.ptp(sample) == 0 for sample in samples):
            return Interval(value, value, value, n)
        found = bootstrap(samples, statistic, paired=True, vectorized=True, method="percentile", rng=np.random.default_rng(0))
    return Interval(value, float(found.confidence_interval.low), float(found.confidence_interval.high), n)


def figures(rows: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, dict[str, float]]]:
    """{player: {metric: {value, low, high, n}}} from each player's `outcomes`, in the fixed order of tables."""
    names = sorted(rows, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return {
        name: {metric: asdict(interval(rows[name][metric], rows[name]["seed"])) for metric in metrics(rows[name])}
        for name in names
    }


def table(figures: Mapping[str, Mapping[str, Mapping[str, float]]], optimum: float | None = None) -> pd.DataFrame:
    """Figures as text, "value [low, high]", a row for each player; the optimum, a constant of the game, has no interval."""
    out = {}
    for name, found in figures.items():
        out[name] = {metric: _text(metric, x) for metric, x in found.items()}
        out[name]["n"] = str(next(iter(found.values()))["n"])
    if optimum is not None:
        out["optimum"] = {"table payoff": f"{optimum:.2f}"}
    return pd.DataFrame.from_dict(out, orient="index").fillna("")


def _text(metric: str, x: Mapping[str, float]) -> str:
    if metric == "invalid replies":
        return f"{100 * x['value']:.1f} % [{100 * x['low']:.1f}, {100 * x['high']:.1f}]"
    return f"{x['value']:z.2f} [{x['low']:z.2f}, {x['high']:z.2f}]"


def results_table(rows: Mapping[str, pd.DataFrame], game: Game) -> pd.DataFrame:
    """`table` of each player's `outcomes`, with the optimum."""
    return table(figures(rows), game.optimum)


def summary(
    game: Game,
    preset: str,
    seed: int,
    rows: Mapping[str, pd.DataFrame],
    seconds: float,
    one_seat: Mapping[str, pd.DataFrame] | None = None,
) -> dict:
    """What summary.json holds: plain data that README, model card and regression tests read.

    `rows` are `outcomes` of players that play all seats, among them random, untrained base and trained, and warm start where
    there was one; `one_seat` of players in one seat among competent partners. `seed` is the training run's, `seconds` its wall
    clock. Raises ValueError when the players were not given the same seeds.
    """
    trained, random = rows["trained"], rows["random"]
    others = {"random": "random", "base": "untrained base", "warm": "warm start"}
    found = figures(rows)
    share = asdict(share_of_attainable(trained, random, game.optimum))
    return {
        "game": game.name,
        "preset": preset,
        "seed": seed,
        "commit": commit(),
        "hardware": hardware(),
        "seconds": round(seconds, 1),
        "seeds": [int(trained["seed"].min()), int(trained["seed"].max())],
        "optimum": game.optimum,
        "rows": found,
        "comparisons": {
            f"trained_vs_{short}": _plain(compare(trained, rows[name], "table payoff"))
            for short, name in others.items()
            if name in rows
        },
        "share_of_attainable": {end: share[end] for end in ("value", "low", "high")},
        "invalid_reply_rate": found["trained"]["invalid replies"]["value"],
        **({"one_seat": figures(one_seat)} if one_seat else {}),
    }


def _plain(comparison: Comparison) -> dict:
    ends = ("value", "low", "high")
    percent = comparison.percent
    return {
        **{end: getattr(comparison.difference, end) for end in ends},
        "percent": {end: getattr(percent, end) for end in ends} if percent else None,
    }


def commit() -> str:
    """The commit of the code that runs, or "unknown" outside a git checkout."""
    packed = Path(__file__).with_name("commit.txt")  # beside helpers/ that a notebook carries with it
    if packed.exists():
        return packed.read_text().strip()
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def hardware() -> str:
    """System, processor architecture and number of CPU cores."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"


def steps_done(run: Path) -> int:
    """The step at which the training in `run` last came to its end or was stopped; 0 when it has never done so."""
    log = run / "history.json"
    return json.loads(log.read_text(encoding="utf-8"))[-1]["step"] if log.exists() else 0


def write_json(path: Path, data) -> None:
    """Writes JSON beside `path` and renames, so that a reader never sees half a file. Raises ValueError for NaN or infinity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)
