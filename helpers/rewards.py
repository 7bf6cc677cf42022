"""Training rewards: a rubric is a weighted sum of named, bounded terms. Each of TERMS judges one reply at one decision point;
each of EPISODE_TERMS, for self-play, a seat's part in a whole episode.

A reply is replayed in the exact state of the prompt and *played on*: for LOOK_AHEAD turns competent partners answer (in the
market they build and join, but open nothing new) while the judged seat adds nothing (it idles; in bargaining it stands by its
offer). Whether partners take up the offers that suit them, or how early they give way, is drawn for each decision point, for
all partners alike: among the replies to one prompt no luck decides whose offer was a good one. The same is done with the seat
idling at once (in bargaining that is walking away). All replies to one prompt share the same luck, so a difference between
two rewards comes from the replies alone.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from random import Random
from statistics import fmean
from typing import Any

from helpers.game import Game, Seat, replay
from helpers.games.council_specs import WORST
from helpers.players import ANSWERING, WAITING
from helpers.rollout import Episode, take
from helpers.signals import INCOMES, WEIGHTS, part

LOOK_AHEAD = 7  # turns played on: every other seat moves at least once
NEAR = 0.01  # normalised surplus from which downwards its logarithm goes on as a straight line
FLOOR = -8.0  # of the floored terms


@dataclass(frozen=True)
class Judgement:
    """A reply, the state it was given in, and what became of it; the values are computed when a term asks for them."""

    game: Game
    seat: Seat
    luck: str  # names the stream that every reply to this prompt shares
    before: Any  # state in which the reply was given
    reply: str
    action: Any  # the reply's action, or the fallback
    error: str | None  # why the fallback was played
    after: Any  # state after the action
    idle: dict[Seat, float]  # attainable payoffs had the seat idled

    @cached_property
    def played(self) -> dict[Seat, float]:
        """Each seat's attainable payoff after playing on."""
        return attainable_after(self.game, self.after, self.seat, self.luck)

    @property
    def change(self) -> dict[Seat, float]:
        """The same, minus what it is had this seat idled."""
        return {seat: self.played[seat] - self.idle[seat] for seat in self.game.seats}


def attainable_after(game: Game, state, seat: Seat, luck: str) -> dict[Seat, float]:
    """Attainable payoffs after LOOK_AHEAD turns in which partners answer and `seat` adds nothing; `luck` draws their kind and
    moves."""
    partner, waiting = Random(f"{luck}/partners").choice(ANSWERING[game.name]), WAITING[game.name]
    rngs = {other: Random(f"{luck}/{other}") for other in game.seats}
    for _ in range(LOOK_AHEAD):
        mover = game.turn(state)
        if mover is None:
            break
        choose = waiting if mover == seat else partner
        state = game.step(state, choose(game.view(state, mover), rngs[mover]))
    return dict(game.attainable(state))


def judge(game: Game, seed: int, actions: Sequence[str], replies: Sequence[str]) -> list[Judgement]:
    """One judgement for each reply to the prompt at decision point (seed, actions)."""
    before = replay(game, seed, actions)
    seat = game.turn(before)
    luck = f"{game.name}/{seed}/{len(actions)}"
    idled = game.step(before, game.fallback(game.view(before, seat)))
    idle = attainable_after(game, idled, seat, luck)
    out = []
    for reply in replies:
        after, action, error = take(game, before, reply)
        out.append(Judgement(game, seat, luck, before, reply, action, error, after, idle))
    return out


@dataclass(frozen=True)
class Term:
    """One named part of a reward. `low` and `high` bound it; `says` is its meaning in one line; `value` takes a Judgement or, in
    EPISODE_TERMS, an Episode and a seat."""

    name: str
    low: float
    high: float
    says: str
    value: Callable[..., float]


def clip(x: float, low: float = -1.0, high: float = 1.0) -> float:
    return max(low, min(high, x))


def form(j: Judgement) -> float:
    return -1.0 if j.error else 0.0


def own(j: Judgement) -> float:
    """A payoff below 0 (in the market there is none) is no price to be weighed against what the others gain by it."""
    return -1.0 if j.played[j.seat] < 0 else clip(j.change[j.seat] / 2)


def table(j: Judgement) -> float:
    return clip(sum(x for seat, x in j.change.items() if seat != j.seat) / 2)


def card_format(j: Judgement) -> float:
    return -0.3 if j.error and j.error.startswith("parse") else 0.5


def card_strategic(j: Judgement) -> float:
    """The card pays for any well-formed action but pass() (in other games: what idles), whether or not the rules allow it."""
    idle = j.game.fallback(j.game.view(j.before, j.seat))
    well_formed = j.error is None or j.error.startswith("illegal")
    return 0.3 if well_formed and (j.error or j.action != idle) else 0.0


# What the card's environment reward pays for each unit by which a figure of `counts` rises. The card says "successful trades and
# goal completions", without figures; the rest is ours.
ACHIEVEMENTS = {"market": {"trades": 0.2, "projects built": 1.0}, "bargaining": {"deals": 1.0}}


def card_environment(j: Judgement) -> float:
    before, after = j.game.counts(j.before), j.game.counts(j.after)
    return sum(pay * (after[name] - before[name]) for name, pay in ACHIEVEMENTS[j.game.name].items())


TERMS = {
    term.name: term
    for term in (
        Term("form", -1, 0, "-1 for a reply that is no legal action, else 0: a penalty, never an income", form),
        Term(
            "own",
            -1,
            1,
            "half the change in the seat's own attainable payoff after playing on, against idling; -1 if it ends below 0",
            own,
        ),
        Term("table", -1, 1, "half the change in the other seats' summed attainable payoff after playing on", table),
        Term("card_format", -0.3, 0.5, "the card's format reward: +0.5 well-formed, -0.3 not", card_format),
        Term(
            "card_strategic",
            0,
            0.3,
            "the card's strategic reward: +0.3 for any action but pass(), in bargaining but NO_DEAL",
            card_strategic,
        ),
        Term(
            "card_environment",
            0,
            1,
            "the card's environment reward: +0.2 a trade made, +1 a build (figures ours); in bargaining +1 a deal at any price",
            card_environment,
        ),
    )
}


def share(episode: Episode, seat: Seat) -> float:
    return clip(episode.payoffs[seat])


def unusable(episode: Episode, seat: Seat) -> float:
    return -1.0 if any(turn.error for turn in episode.turns if turn.seat == seat) else 0.0


def outside(episode: Episode, seat: Seat) -> float:
    return -1.0 if min(episode.payoffs.values()) < 0 else 0.0


def log_surplus(z: float) -> float:
    """g(z) of a normalised surplus: log z, from NEAR downwards its tangent there, so that value and slope go on without a jump.
    0 for the best deal; log .01 - 1 = -5.605 for z = 0, which is what no deal pays (the card of Fairness-GRPO)."""
    return log(z) if z >= NEAR else log(NEAR) + (z - NEAR) / NEAR


def surplus_terms(floor: float | None = None) -> tuple[Term, Term]:
    """The two terms of the council's reward R = (1 - lambda) g(own z) + lambda (mean of g over all seats), see `council`. A floor
    takes the place of every g below it. Raises ValueError for one at or above g(0): a deal below a threshold would then cost no
    more than none."""
    if floor is not None and not floor < log_surplus(0):
        raise ValueError(f"expected a floor below {log_surplus(0):.3f}, what no deal gives, got {floor!r}")

    def g(z: float) -> float:
        return log_surplus(z) if floor is None else max(log_surplus(z), floor)

    end, least = ("", "") if floor is None else ("_floored", f", at least {floor:g}")
    return (
        Term(
            f"log_surplus{end}",
            g(-WORST),
            0,
            f"the logarithm of the seat's own payoff, a normalised surplus, below {NEAR} its tangent{least}; no deal: -5.605",
            lambda episode, seat: g(episode.payoffs[seat]),
        ),
        Term(
            f"mean_log_surplus{end}",
            g(-WORST),
            0,
            f"the mean of log_surplus{end} over all seats: the same for each of them",
            lambda episode, seat: fmean(map(g, episode.payoffs.values())),
        ),
    )


# The support desk's: see helpers.signals.
SIGNALS = {
    each.__name__: Term(
        each.__name__,
        *((0, 1) if each in INCOMES else (-1, 0)),
        says,
        lambda episode, seat, each=each: each(part(episode, seat)),
    )
    for each, (_, says) in WEIGHTS.items()
}


EPISODE_TERMS = {
    term.name: term
    for term in (
        Term("share", -1, 1, "the seat's own payoff, clipped: in bargaining its signed share of the surplus", share),
        Term("unusable", -1, 0, "-1 if any reply of the seat was no legal action, else 0: never an income", unusable),
        Term(
            "outside", -1, 0, "-1 if some seat is paid less than 0: in bargaining a deal outside the zone of agreement", outside
        ),
        *surplus_terms(),
        *surplus_terms(FLOOR),
        *SIGNALS.values(),
    )
}


@dataclass(frozen=True)
class Rubric:
    """Terms with weights, all of TERMS or all of EPISODE_TERMS. Its reward of a reply is the weighted sum."""

    name: str
    weights: dict[str, float]

    def __post_init__(self):
        known = EPISODE_TERMS if EPISODE_TERMS.keys() & self.weights.keys() else TERMS
        unknown = [name for name in self.weights if name not in known]
        if unknown or not self.weights:
            raise ValueError(f"expected weights for some of {', '.join(known)}, got {unknown or 'none'}")
        for name, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) <= 100:
                raise ValueError(f"expected a weight from -100 to 100 for {name}, got {weight!r}")

    def terms(self, judgement: Judgement) -> dict[str, float]:
        return {name: TERMS[name].value(judgement) for name in self.weights}

    def reward(self, judgement: Judgement) -> float:
        return sum(self.weights[name] * value for name, value in self.terms(judgement).items())

    def to_json(self) -> str:
        return json.dumps({"name": self.name, "weights": self.weights})


RUBRICS = {
    rubric.name: rubric
    for rubric in (
        Rubric("default", {"form": 0.5, "own": 1.0, "table": 0.5}),
        Rubric("card", {"card_format": 1.0, "card_strategic": 1.0, "card_environment": 1.0}),
    )
}

SELF_PLAY = Rubric("self-play", {"share": 1.0, "unusable": 0.5, "outside": 1.0})
# The support desk's, with the card's weights (games.md, section 3).
DESK = Rubric("desk", {each.__name__: weight for each, (weight, _) in WEIGHTS.items()})


def council(lam: float, floored: bool = False) -> Rubric:
    """The reward of a council episode, R = (1 - lam) g(own z) + lam (mean of g over all seats), lam from 0 (own) to 1 (shared).
    `floored`: with FLOOR. The mean of R over the seats does not depend on lam, so where one policy plays all seats lam changes
    little: train against mixed opponents. Both terms are always there, a weight of 0 too, so that both are logged. Raises
    ValueError for a lam outside 0..1."""
    if not 0 <= lam <= 1:
        raise ValueError(f"expected lam from 0 (own surplus) to 1 (mean over the seats), got {lam!r}")
    own, shared = surplus_terms(FLOOR if floored else None)
    return Rubric(f"lam{lam:g}{'-floored' if floored else ''}", {own.name: 1 - lam, shared.name: lam})


def rubric(text: str) -> Rubric:
    """A rubric from its name or its JSON (`Rubric.to_json`, the widget's export). Raises ValueError."""
    if text in RUBRICS:
        return RUBRICS[text]
    try:
        data = json.loads(text)
        return Rubric(str(data["name"]), dict(data["weights"]))
    except (json.JSONDecodeError, KeyError, TypeError) as reason:
        names = ", ".join(RUBRICS)
        raise ValueError(f"expected a rubric's name ({names}) or its JSON with name and weights, got {text[:80]!r}") from reason
