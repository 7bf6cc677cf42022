"""What council episodes are measured by: how good for all what they agree on is, how evenly it is spread, and how they talk.

*Normalised Nash welfare* (NNW, `Solution.welfare`) is 1 only where every party gets the most that an individually rational (IR)
deal gives it, and 0 where some party gains nothing. It is no reward: that is a sum of logarithms, on another scale.

Figures among IR deals alone (OF_RATIONAL) mean nothing alone: a policy that closes only the easy deals looks better there. So
they stand beside the unconditional ones, and `compare_rational` calls a comparison VOID where the two sides do not condition on
much the same. `surplus.intervals` gives intervals of the frame, `evaluate.compare` differences of unconditional figures.

*Ours*, where the rules are open. All figures are of what was paid: a discount lowers them, and who has walked away gains nothing
from what the others close. Gini and largest share are of gains, a loss counting as no gain; where nobody gains, without a deal
too, both are 0. Shares of turns count second tries as turns. VOID: the deal rates, or the rates of IR deals, differ by more than
MAX_APART either way, or fewer than MIN_CLUSTERS seeds have an IR deal on both sides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from helpers.evaluate import Comparison, compare
from helpers.game import Seat, replay
from helpers.games.council import ACCEPT, NONE, PROPOSE, REJECT, WALK, Council, Event
from helpers.games.council_specs import SEATS
from helpers.replies import MAX_LENGTH, without_thinking
from helpers.rollout import Episode
from helpers.solver import Solution, solve

OF_RATIONAL = ("NNW of rational deals", "Gini of rational deals", "max share of rational deals")
MAX_APART = 0.10  # between the rates of two sides that are compared among IR deals
MIN_CLUSTERS = 12  # seeds: a quarter of those of the published experiment


def councils(game: Council, episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row an episode. NNW, regret (the best IR deal's NNW minus its own), Gini (0 even, 5/6 one takes all) and max share (of
    all gains) are 0..1, and but for regret 0 without a deal. "deal rate", "below-threshold agreements" (a deal that pays some
    party less than its threshold) and "rational deals" (that pays none less) are 0 or 1; figures of OF_RATIONAL are missing where
    the last is 0. "turns" counts replies; silent turns, duplicate proposals (of a live deal), refusals (reject and walk),
    fabricated turns (see `fabricated`) and invalid replies are shares of them; the silence or rejection that is played in place
    of an invalid reply counts as one."""
    solutions = cache(solve)
    rows = []
    for episode in episodes:
        state = replay(game, episode.seed, episode.actions)
        solution, counts, paid = solutions(state.spec), game.counts(state), list(game.payoffs(state).values())
        turns, nnw = len(episode.turns), float(solution.welfare(np.array(paid)))
        below = float(bool(state.deal) and min(paid) < 0)
        row = {
            "seed": episode.seed,
            "NNW": nnw,
            "regret": solution.best - nnw,
            "deal rate": counts["deals"],
            "rational deals": counts["deals"] - below,
            "below-threshold agreements": below,
            "Gini": gini(paid),
            "max share": counts["max share"],
            "turns": turns,
            "silent turns": counts["silent turns"],
            "duplicate proposals": duplicates(state.events) / turns,
            "refusals": counts["refusals"],
            "fabricated turns": sum(fabricated(t.reply, t.seat, state.spec.names) for t in episode.turns) / turns,
            "invalid replies": sum(turn.error is not None for turn in episode.turns) / turns,
        }
        for name in OF_RATIONAL:
            row[name] = row[name.removesuffix(" of rational deals")] if row["rational deals"] else None
        rows.append(row)
    return pd.DataFrame(rows).astype({name: float for name in OF_RATIONAL})


def gini(paid: Iterable[float]) -> float:
    """The Gini coefficient of gains, losses counting as none: half the mean difference of all pairs over the mean; 0 where nobody
    gains. 0..1 - 1/n."""
    gains = sorted(max(x, 0.0) for x in paid)
    n, total = len(gains), sum(gains)
    return sum((2 * place - n - 1) * x for place, x in enumerate(gains, 1)) / (n * total) if total else 0.0


def duplicates(events: Iterable[Event]) -> int:
    """Proposals of a deal that was live: they count as support and got no new id."""
    ids = [event.offer for event in events if event.action.kind == PROPOSE]
    return len(ids) - len(set(ids))


@cache
def others_turn(seat: Seat, names: tuple[str, ...]) -> re.Pattern:
    """Possessive quantifiers, so that no text takes long."""
    others = "|".join(re.escape(who) for pair in zip(SEATS, names, strict=True) if pair[0] != seat for who in pair)
    who = rf"[ \t#>*_-]*+(?:Round \d++/\d++, )?(?:{others})[ \t*_]*+(?:\([^()\n]{{0,40}}+\)[ \t*_]*+)?"
    done = rf"(?:{PROPOSE}|{ACCEPT}|{REJECT})[ \t]++P\d|(?:{NONE}|{WALK})[ \t]*+(?:\"|$)"
    return re.compile(rf"^{who}:[ \t*_]*+(?:\n[ \t]*+)?(?:\{{\s?\"|[\"\u201c]|{done})", re.MULTILINE | re.IGNORECASE)


def fabricated(reply: str, seat: Seat, names: Sequence[str]) -> bool:
    """Whether a reply, thinking aside, writes another party's turn: a line opens with that party's seat or name and a colon, and
    an action as the council tells it (accept P1), a JSON object or quoted speech follows. What a seat notes of others without
    any of these ("S3: wants A1") does not count; a copy of what really was said does. `names`: of all parties, in
    the order of seats."""
    return bool(others_turn(seat, tuple(names)).search(without_thinking(reply[:MAX_LENGTH])))


# --- comparisons among IR deals


@dataclass(frozen=True)
class Conditional:
    """A comparison among IR deals, or why there is none. void: "" where there is one."""

    comparison: Comparison | None
    void: str


def compare_rational(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> Conditional:
    """a's mean of a figure of OF_RATIONAL minus b's, over the seeds in which both have an IR deal, from `councils` on the same
    seeds; void: see the module. Raises ValueError when the seeds differ, or are fewer than two."""
    apart = {rate: compare(a, b, rate).difference.value for rate in ("deal rate", "rational deals")}
    reasons = [
        f"{rate} differs by {value:+.2f}, at most {MAX_APART:.2f} is comparable"
        for rate, value in apart.items()
        if round(abs(value), 9) > MAX_APART
    ]
    a, b = (frame[frame["rational deals"] == 1] for frame in (a, b))
    both = set(a["seed"]) & set(b["seed"])
    if len(both) < MIN_CLUSTERS:
        reasons.append(f"{len(both)} seeds have a rational deal on both sides, at least {MIN_CLUSTERS} are needed")
    if reasons:
        return Conditional(None, "; ".join(reasons))
    return Conditional(compare(*(frame[frame["seed"].isin(both)] for frame in (a, b)), metric), "")


# --- for a plot


@dataclass(frozen=True)
class OfferPath:
    """The offers of one episode among all deals of its council. offers: (seat, row in solution) in the order in which they were
    made; deal: the row of the one that closed."""

    seed: int
    players: dict[Seat, str]
    solution: Solution
    offers: tuple[tuple[Seat, int], ...]
    deal: int | None


def offer_path(game: Council, episode: Episode) -> OfferPath:
    state = replay(game, episode.seed, episode.actions)
    solution, offers = solve(state.spec), {}
    for event in state.events:
        if event.action.kind == PROPOSE:
            offers.setdefault(event.offer, (event.seat, solution.row(event.deal)))
    deal = solution.row(state.deal) if state.deal else None
    return OfferPath(episode.seed, episode.players, solution, tuple(offers.values()), deal)
