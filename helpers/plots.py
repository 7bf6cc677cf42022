"""Plots: every function is `(data, ax=None) -> ax`, draws on the given axes or on new ones of 700 x 400 pixels, and shows only
what the data holds. Colours are Okabe and Ito's (2008), which colour-blind readers can tell apart."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from helpers import solver
from helpers.evaluate import COMPETENT, ORDER, interval
from helpers.game import Game, replay
from helpers.games.council import Council, round_of
from helpers.players import FLOORS
from helpers.rollout import Episode
from helpers.surplus import PricePath, bargains
from helpers.surplus import price_path as path_of
from helpers.welfare import OfferPath

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY, YELLOW)  # for kinds of action and terms; vermilion means invalid
ROWS = {  # a player has the same colour in every plot
    **{"random": GREY, "untrained base": ORANGE, "warm start": YELLOW, "trained": BLUE},
    **dict.fromkeys(FLOORS.values(), SKY),
    **dict.fromkeys(COMPETENT, GREEN),
}
MARKERS = "o^sD*.vP"
INVALID = "invalid reply"
POINTS_A_TRADE = 6  # width of a line between two seats


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(figsize=(7, 4), dpi=100, layout="constrained")[1] if ax is None else ax


def _ordered(names) -> list[str]:
    """In the order of tables."""
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def _players(ax: Axes, names: Sequence[str]) -> None:
    """One line a player, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)


def _legend_below(ax: Axes, **more) -> None:
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, **more)


def save(ax: Axes, path: Path) -> None:
    """Writes the figure of `ax` as PNG beside `path` and renames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    ax.figure.savefig(part, format="png", bbox_inches="tight")
    os.replace(part, path)


def learning_curves(history: Sequence[Mapping[str, float]], terms: Sequence[str], ax: Axes | None = None) -> Axes:
    """The reward and each of its terms (before weights) at each training step, raw (light) and as the mean of ten log
    entries, and the share of groups whose rewards all tie. `history` is TRL's log_history."""
    ax = _axes(ax)
    log = pd.DataFrame([entry for entry in history if "reward" in entry]).set_index("step")
    lines = {"reward": "reward", **{term: f"rewards/{term}/mean" for term in terms}}
    for (name, key), colour in zip(lines.items(), ("black", *COLOURS), strict=False):
        ax.plot(log[key], color=colour, alpha=0.25, linewidth=1)
        smooth = log[key].rolling(10, min_periods=1).mean()
        ax.plot(smooth, color=colour, linewidth=2.5 if name == "reward" else 1.5, label=name)
    ties = log["frac_reward_zero_std"].rolling(10, min_periods=1).mean()
    ax.plot(ties, color=GREY, linestyle=":", label="tied groups (share)")
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set(title="Learning curves", xlabel="training step", ylabel="mean reward of a reply")
    _legend_below(ax, ncols=5)
    return ax


def payoff_distributions(rows: Mapping[str, pd.DataFrame], ax: Axes | None = None) -> Axes:
    """Table payoff of every episode (dots), quartiles (box) and the mean with its 95 % interval, for each player's `outcomes`."""
    ax = _axes(ax)
    names = _ordered(rows)
    jitter = np.random.default_rng(0)
    for y, name in enumerate(names):
        values = rows[name]["table payoff"].to_numpy()
        ax.scatter(
            values, y + jitter.uniform(-0.32, 0.32, len(values)), s=9, alpha=0.35, color=ROWS.get(name, PURPLE), linewidth=0
        )
        box = {"whis": 0, "showfliers": False, "showcaps": False, "manage_ticks": False, "medianprops": {"color": "black"}}
        ax.boxplot(values, positions=[y], widths=0.6, orientation="horizontal", **box)
        mean = interval(values, rows[name]["seed"])
        label = "mean and 95 % interval (box: median and quartiles)" if y == 0 else None
        ax.errorbar(
            mean.value,
            y,
            xerr=_reach(mean.value, mean.low, mean.high),
            fmt="D",
            ms=6,
            capsize=6,
            lw=2,
            color="black",
            label=label,
        )
    _players(ax, names)
    episodes = max(len(frame) for frame in rows.values())
    ax.set(title=f"Table payoff of {episodes} episodes a player", xlabel="table payoff (sum over seats)")
    _legend_below(ax)
    return ax


def comparison(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], metric: str, optimum: float | None = None, ax: Axes | None = None
) -> Axes:
    """A metric of each player with its 95 % interval. `rows` as in summary.json; `optimum` is drawn as a line."""
    ax = _axes(ax)
    names = _ordered(rows)
    scale, unit = (100, " (% of turns)") if metric == "invalid replies" else (1, "")
    for y, name in enumerate(names):
        value, low, high = (scale * rows[name][metric][end] for end in ("value", "low", "high"))
        colour = ROWS.get(name, PURPLE)
        ax.errorbar(value, y, xerr=_reach(value, low, high), fmt="o", ms=8, capsize=5, color=colour, clip_on=False)
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.annotate(f"{value:.2f}", (value, y), xytext=(0, 9), textcoords="offset points", ha="center", bbox=white)
    if optimum is not None:
        ax.axvline(optimum, color="black", linestyle="--", label=f"optimum {optimum:g}")
        _legend_below(ax)
    _players(ax, names)
    seeds = next(iter(rows.values()))[metric]["n"]
    ax.set(title=f"{metric.capitalize()} with 95 % intervals ({seeds} seeds)", xlabel=f"mean {metric} of an episode{unit}")
    if min(found[metric]["low"] for found in rows.values()) >= 0:
        ax.set_xlim(left=-0.05 * ax.get_xlim()[1])  # from 0, with room for a dot there
    ax.grid(axis="x", alpha=0.3)
    return ax


def _reach(value: float, low: float, high: float) -> list[list[float]]:
    """What errorbar wants: how far the ends lie from the value. The value of a skewed sample may lie outside by rounding."""
    return [[max(value - low, 0)], [max(high - value, 0)]]


def trade_network(game: Game, episodes: Sequence[Episode], ax: Axes | None = None) -> Axes:
    """Who trades with whom: the mean number of trades an episode between each two seats, as line width and number. A trade has
    the same width in every picture, so that players can be compared."""
    ax = _axes(ax)
    made = {}
    for episode in episodes:
        for giver, taker, *_ in replay(game, episode.seed, episode.actions).trades:
            pair = tuple(sorted((giver, taker)))
            made[pair] = made.get(pair, 0) + 1 / len(episodes)
    angles = np.pi / 4 + 2 * np.pi * np.arange(len(game.seats)) / len(game.seats)
    place = {seat: (-np.cos(angle), np.sin(angle)) for seat, angle in zip(game.seats, angles, strict=True)}
    for (a, b), mean in sorted(made.items()):
        (xa, ya), (xb, yb) = place[a], place[b]
        ax.plot([xa, xb], [ya, yb], color=BLUE, linewidth=POINTS_A_TRADE * mean, alpha=0.6, zorder=1, solid_capstyle="round")
        # Off the middle, where the two diagonals cross.
        x, y = 0.62 * xa + 0.38 * xb, 0.62 * ya + 0.38 * yb
        ax.text(
            x, y, f"{mean:.2f}", ha="center", va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}, zorder=2
        )
    for seat, (x, y) in place.items():
        ax.scatter(x, y, s=900, color="white", edgecolor="black", zorder=3)
        ax.text(x, y, seat, ha="center", va="center", fontsize=14, fontweight="bold", zorder=4)
    ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    ax.set_axis_off()
    ax.set_title(f"Who trades with whom\nmean trades an episode, of {len(episodes)} episodes")
    return ax


def deal_shares(game: Game, episodes: Sequence[Episode], ax: Axes | None = None) -> Axes:
    """Who gets how much: a histogram of the buyer's share of the surplus, over the deals of bargaining episodes. Below 0 and
    above 1 one side has signed beyond its limit; shares further out than -1 and 2 are counted there."""
    ax = _axes(ax)
    shares = bargains(game, episodes)["buyer share of deals"].dropna()
    ax.axvspan(0, 1, color=GREEN, alpha=0.1, label="zone of agreement")
    label = f"{len(shares)} deals in {len(episodes)} episodes"
    ax.hist(shares.clip(-1, 2), bins=np.linspace(-1, 2, 31), color=BLUE, alpha=0.8, label=label)
    ax.set(title="Who gets how much", xlabel="buyer's share of the surplus (the rest is the seller's)", ylabel="deals")
    _legend_below(ax, ncols=2)
    return ax


# What came of the deals in many episodes, in the picture that suits the game: (game, episodes, ax) -> ax.
DEALINGS = {"market": trade_network, "bargaining": deal_shares}


def timeline(game: Game, episode: Episode, ax: Axes | None = None) -> Axes:
    """One episode, turn by turn: a marker for each kind of action, a cross for an invalid reply, a line between the two seats
    of a trade (in games that have trades), and the word where a seat builds."""
    ax = _axes(ax)
    y = {seat: i for i, seat in enumerate(game.seats)}
    kinds = [turn.kind for turn in episode.turns]
    look = _look(game, kinds)
    for name in look:
        turns = [i for i, found in enumerate(kinds) if found == name]
        colour, marker = look[name]
        seats = [y[episode.turns[i].seat] for i in turns]
        ax.scatter([i + 1 for i in turns], seats, s=70, color=colour, marker=marker, label=name, zorder=3)
    state = game.deal(episode.seed)
    for i, turn in enumerate(episode.turns):
        before, state = state, game.step(state, game.parse(turn.action))
        for giver, taker, *_ in getattr(state, "trades", ())[len(getattr(before, "trades", ())) :]:
            ax.plot([i + 1, i + 1], [y[giver], y[taker]], color="black", linewidth=1, zorder=2)
        if turn.action.startswith("build"):
            ax.annotate("builds", (i + 1, y[turn.seat]), xytext=(0, 9), textcoords="offset points", ha="center")
    _players(ax, [f"{seat} ({episode.players[seat]})\npayoff {episode.payoffs[seat]:g}" for seat in game.seats])
    lines = " (a line joins the two seats of a trade)" if hasattr(state, "trades") else ""
    ax.set(xlim=(0, len(kinds) + 2), xlabel=f"turn{lines}", ylabel="seat")
    ax.set_title(f"Episode of seed {episode.seed}: table payoff {sum(episode.payoffs.values()):g}")
    ax.grid(axis="y", alpha=0.3)
    _legend_below(ax, ncols=4)
    return ax


def _look(game: Game, kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of the kinds of action that occur, the same in every plot of a game; invalid replies come last."""
    names = game.verbs or sorted(set(kinds) - {INVALID})
    look = {**dict(zip(names, zip(COLOURS, MARKERS, strict=False), strict=False)), INVALID: (VERMILION, "X")}
    return {name: style for name, style in look.items() if name in kinds}


def kinds_of_action(game: Game, rows: Mapping[str, Sequence[Episode]], ax: Axes | None = None) -> Axes:
    """What each player does: the share of every kind of action among its turns."""
    ax = _axes(ax)
    names = _ordered(rows)
    kinds = {name: [turn.kind for episode in rows[name] for turn in episode.turns] for name in names}
    left = np.zeros(len(names))
    for action, (colour, _) in _look(game, [found for name in names for found in kinds[name]]).items():
        share = np.array([100 * kinds[name].count(action) / len(kinds[name]) for name in names])
        ax.barh(range(len(names)), share, left=left, color=colour, edgecolor="white", label=action)
        for y, (start, width) in enumerate(zip(left, share, strict=True)):
            if width >= 6:  # a narrower bar has no room for its number
                ax.text(start + width / 2, y, f"{width:.0f}", ha="center", va="center")
        left += share
    _players(ax, names)
    ax.set(title="Kinds of action", xlabel="share of turns (%)", xlim=(0, 100))
    _legend_below(ax, ncols=4)
    return ax


def split(rows: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]], metric: str, ax: Axes | None = None) -> Axes:
    """A metric in groups of bars with 95 % intervals. `rows`: {(group, part): figures}, as `tournament.summary` gives them by two
    columns: for how the surplus is split in each cell, by ("cell", "role") and "own share"."""
    ax = _axes(ax)
    groups, parts = ([*dict.fromkeys(key[i] for key in rows)] for i in (0, 1))
    width = 0.8 / len(parts)
    for number, (part, colour) in enumerate(zip(parts, COLOURS, strict=False)):
        there = [at for at, group in enumerate(groups) if (group, part) in rows]
        found = [rows[groups[at], part][metric] for at in there]
        values, places = [x["value"] for x in found], [at + (number + 0.5) * width - 0.4 for at in there]
        reach = np.hstack([_reach(x["value"], x["low"], x["high"]) for x in found])
        ax.bar(places, values, 0.94 * width, color=colour, alpha=0.8, label=part)
        ax.errorbar(places, values, yerr=reach, fmt="none", ecolor="black", capsize=4)
        for place, x in zip(places, found, strict=True):  # beyond the whisker, away from 0
            up = x["value"] >= 0
            ax.annotate(
                f"{x['value']:z.2f}",
                (place, x["high"] if up else x["low"]),
                xytext=(0, 3 if up else -3),
                textcoords="offset points",
                ha="center",
                va="bottom" if up else "top",
                fontsize=9,
            )
    ax.axhline(0, color="black", linewidth=0.8)
    ax.margins(y=0.12)
    ax.set_xticks(range(len(groups)), groups)
    n = max(found[metric]["n"] for found in rows.values())
    ax.set(title=f"{metric.capitalize()} with 95 % intervals ({n} seeds)", ylabel=f"mean {metric}")
    ax.grid(axis="y", alpha=0.3)
    ax.set_axisbelow(True)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False, ncols=len(parts))
    return ax


def trade_off(rows: Mapping[str, Mapping[str, Mapping[str, float]]], x: str, y: str, ax: Axes | None = None) -> Axes:
    """Two metrics of each player against each other, with 95 % intervals on both axes. `rows`: {player: figures}; players for
    which one of the two does not exist are named below the title instead."""
    ax = _axes(ax)
    shown = [name for name in _ordered(rows) if {x, y} <= rows[name].keys()]
    used = {ROWS[name] for name in shown if name in ROWS}
    free = [colour for colour in (PURPLE, VERMILION, ORANGE, GREEN, SKY, YELLOW) if colour not in used]
    colours = dict(zip([name for name in shown if name not in ROWS], free, strict=False))
    for name, marker in zip(shown, MARKERS * len(shown), strict=False):
        across, up = rows[name][x], rows[name][y]
        ax.errorbar(
            across["value"],
            up["value"],
            xerr=_reach(across["value"], across["low"], across["high"]),
            yerr=_reach(up["value"], up["low"], up["high"]),
            fmt=marker,
            ms=8,
            capsize=4,
            color={**colours, **ROWS}.get(name, "black"),
            label=name,
        )
    counts = sorted({rows[name][metric]["n"] for name in shown for metric in (x, y)}) or [0]
    n = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    missing = [name for name in _ordered(rows) if name not in shown]
    absent = f"\nnothing to measure: {', '.join(missing)}" if missing else ""
    ax.set(title=f"{y.capitalize()} against {x}, 95 % intervals ({n} seeds){absent}", xlabel=f"mean {x}", ylabel=f"mean {y}")
    ax.grid(alpha=0.3)
    if shown:
        _legend_below(ax, ncols=4)
    return ax


def price_path(path: PricePath, ax: Axes | None = None, turns: int | None = None) -> Axes:
    """The offers of one episode, both limits with the zone of agreement between them, the Nash price and how it ended. A line to
    the right of an offer: it stands until the other side has answered. `turns`: only so many of them, at least 1, on the axes of
    the whole episode."""
    ax = _axes(ax)
    low, high = sorted(path.limits.values())
    when = [turn if path.standing else (turn + 1) // 2 for turn in range(1, len(path.moves) + 1)]
    moves = list(zip(when, path.moves, strict=True))[:turns]
    now, over = moves[-1][0], len(moves) == len(when)
    ax.axhspan(low, high, color=GREEN, alpha=0.1, label="zone of agreement")
    ax.axhline(path.nash, color="black", linestyle=":", linewidth=1.5, label=f"Nash price {path.nash:.2f}")
    for (seat, limit), colour, marker in zip(path.limits.items(), COLOURS, MARKERS, strict=False):
        ax.axhline(limit, color=colour, linestyle="--", linewidth=1.5, label=f"{seat}'s limit {limit:.2f}")
        offers = [(at, price) for at, (who, price) in moves if who == seat and price is not None]
        label = f"{seat} offers ({path.players[seat]})"
        ax.plot(*zip(*offers, strict=True) if offers else ([], []), marker, color=colour, ms=9, label=label, zorder=3)
        for at, price in offers if path.standing else ():
            ax.plot([at, min(at + 1, now + 0.6)], [price] * 2, color=colour, linewidth=2, alpha=0.6)
    if not over:
        ending = f"{len(moves)} of {len(when)} turns"
    elif path.price is not None:
        ending = f"deal at {path.price:.2f}"
        ax.plot(now, path.price, "*", color="black", ms=15, label=ending, zorder=4)
    else:
        ending = f"the {path.left} walks away" if path.left else "time runs out without a deal"
        ax.axvline(now, color=VERMILION, linewidth=1.5, label=ending)
    ax.set(
        title=f"Episode of seed {path.seed}: {ending}",
        xlabel="turn" if path.standing else "round",
        ylabel="price",
        xlim=(0.4, when[-1] + 0.6),
    )
    ax.update_datalim([(1, price) for _, price in path.moves if price is not None])
    ax.margins(y=0.08)
    ax.set_xticks(range(1, when[-1] + 1))
    ax.grid(axis="y", alpha=0.3)
    _legend_below(ax, ncols=3)
    return ax


def offers_on_the_table(game: Council, episode: Episode, ax: Axes | None = None, turns: int | None = None) -> Axes:
    """The live offers of a council: what each pays each party (normalised surplus: 1 is its best deal, below 0 it does worse than
    without one) and who supports it. At the end the deal, if there is one, stands first. `turns`: after only so many of them, at
    least 1."""
    ax = _axes(ax)
    state = replay(game, episode.seed, episode.actions[:turns])
    offers = sorted(state.offers, key=lambda offer: offer.deal != state.deal)
    surplus = np.array([[state.spec.surplus(i, offer.deal, round_of(state)) for i in range(len(game.seats))] for offer in offers])
    if offers:
        ax.imshow(surplus, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    for y, offer in enumerate(offers):
        for x, z in enumerate(surplus[y]):
            vote = "\nfor it" if x in offer.supporters else ""
            ax.text(x, y, f"{z:+.2f}{vote}", ha="center", va="center", color="white" if abs(z) > 0.6 else "black")
    ax.set_yticks(range(len(offers)), [f"{offer.id} of {game.seats[offer.author]}" for offer in offers])
    walked = ["\nwalked away" if i in state.walked else "" for i in range(len(game.seats))]
    names = [f"{seat}\n{name}{gone}" for seat, name, gone in zip(game.seats, state.spec.names, walked, strict=True)]
    ax.set_xticks(range(len(names)), names)
    done = len(episode.turns[:turns])
    if done < len(episode.turns):
        ending = f"{done} of {len(episode.turns)} turns"
    else:
        ending = f"{offers[0].id} is the deal" if state.deal else "no deal"
    ax.set(title=f"Offers of seed {episode.seed} and the surplus they pay: {ending}", ylabel="live offer")
    return ax


# An episode as it stands after some turns, for the games that have such a picture: (game, episode, turns) -> ax.
UNFOLDING = {
    "bargaining": lambda game, episode, turns: price_path(path_of(game, episode), turns=turns),
    "council": lambda game, episode, turns: offers_on_the_table(game, episode, turns=turns),
}


def frontier(path: OfferPath, ax: Axes | None = None) -> Axes:
    """All deals of one council, seen in two numbers: what a party gains on average and what the one that gains least gains. The
    line joins the deals that no other beats in both, all of them efficient. With it what the textbooks would choose, and the
    offers of the episode in their order, up to the deal. Deals below a threshold that lie far off are outside the axes."""
    ax = _axes(ax)
    surplus, rational = path.solution.surplus, path.solution.rational
    x, y = surplus.mean(1), surplus.min(1)
    ax.scatter(x[~rational], y[~rational], s=9, color=GREY, alpha=0.4, linewidth=0, label="deal below a threshold")
    ax.scatter(x[rational], y[rational], s=20, color=SKY, linewidth=0, label="rational deal")
    edge = np.flatnonzero(solver.frontier(np.column_stack([x, y]).round(12)))
    edge = edge[np.argsort(x[edge])]
    ax.plot(x[edge], y[edge], color="black", linewidth=1, label="frontier")
    chosen: dict[int, list[str]] = {}
    for name, row in path.solution.points.items():
        chosen.setdefault(row, []).append(name)
    looks = dict(zip(path.solution.points, zip((GREEN, PURPLE, ORANGE, BLUE), "os^D", strict=True), strict=False))
    for row, names in chosen.items():
        colour, marker = looks[names[0]]
        ax.plot(x[row], y[row], marker, color=colour, ms=11, mfc="none", mew=2, linestyle="none", label=", ".join(names))
    rows = [row for _, row in path.offers]
    ax.plot(x[rows], y[rows], ".--", color=VERMILION, linewidth=1, label="offers in order")
    for number, (seat, row) in enumerate(path.offers, 1):
        ax.annotate(
            f"{number} {seat}",
            (x[row], y[row]),
            xytext=(4, 4 + 9 * rows[: number - 1].count(row)),
            fontsize=8,
            textcoords="offset points",
            color=VERMILION,
        )
    if path.deal is not None:
        ax.plot(x[path.deal], y[path.deal], "*", color="black", ms=13, label="deal", zorder=4)
    shown = [*np.flatnonzero(rational), *rows, *chosen]
    if shown:
        for limits, values in ((ax.set_xlim, x[shown]), (ax.set_ylim, y[shown])):
            room = 0.1 * max(np.ptp(values), 0.5)
            limits(values.min() - room, values.max() + room)
    ax.axhline(0, color="black", linewidth=0.5)
    ending = "no deal" if path.deal is None else "a deal"
    ax.set(
        title=f"Offers of seed {path.seed} among {len(x)} deals, {rational.sum()} of them rational: {ending}",
        xlabel="mean surplus of the parties",
        ylabel="smallest surplus",
    )
    ax.grid(alpha=0.3)
    _legend_below(ax, ncols=3)
    return ax


def ladder(rows: Mapping[str, Mapping[int, Mapping[str, Mapping[str, float]]]], metric: str, ax: Axes | None = None) -> Axes:
    """A metric at each checkpoint of one or more runs, with 95 % intervals. `rows`: {run: {training step: figures}}, step 0 being
    the untrained base; a checkpoint where the metric does not exist is left out, and the line broken there."""
    ax = _axes(ax)
    steps = sorted({step for found in rows.values() for step in found})
    apart = 0.012 * (steps[-1] - steps[0])  # side by side, so that no interval hides another
    for number, ((name, found), colour, marker) in enumerate(zip(rows.items(), COLOURS, MARKERS, strict=False)):
        shift = apart * (number - (len(rows) - 1) / 2)
        missing = {"value": np.nan, "low": np.nan, "high": np.nan}
        there = [found[step].get(metric, missing) for step in sorted(found)]
        ax.errorbar(
            [step + shift for step in sorted(found)],
            [x["value"] for x in there],
            yerr=np.hstack([_reach(x["value"], x["low"], x["high"]) for x in there]),
            fmt=f"{marker}-",
            ms=7,
            capsize=4,
            color=colour,
            label=name,
        )
    n = max(figures[metric]["n"] for found in rows.values() for figures in found.values() if metric in figures)
    ax.set_xticks(steps)
    ax.set(
        title=f"{metric[0].upper()}{metric[1:]} over the checkpoints with 95 % intervals ({n} seeds)",
        xlabel="training step",
        ylabel=f"mean {metric}",
    )
    ax.grid(axis="y", alpha=0.3)
    _legend_below(ax, ncols=4)
    return ax


def reward_bars(terms: Mapping[str, float], title: str = "Reward of a reply", ax: Axes | None = None) -> Axes:
    """What each term adds to a reward (weight x value), and the total."""
    ax = _axes(ax)
    bars = {**terms, "total": sum(terms.values())}
    colours = [GREEN if value >= 0 else VERMILION for value in terms.values()]
    drawn = ax.barh(list(bars), list(bars.values()), color=[*colours, BLUE])
    ax.bar_label(drawn, fmt="%+.3g", padding=4)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.margins(x=0.2)
    ax.invert_yaxis()
    ax.set(title=title, xlabel="reward (weight x value)")
    return ax
