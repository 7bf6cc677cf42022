"""What the embedded models are shown of each game: who plays the games they watch, which actions they imitate at each position,
and questions about the position by which they learn to read. How they learn it is in helpers/tiny/build.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from helpers.games.bargaining import BUYER, DEAL, NO_DEAL, OFFER, PHRASES, UNAWARE, Action, Bargaining
from helpers.games.market import GOODS, PROJECTS, Market, ProposeTrade, holds, moved, worth
from helpers.players import SCRIPTED, competent

ASTRAY = 0.25  # market: share of the offers that are made to a random seat instead, so that some cannot be paid
QUIET = 0.5  # market: share of the turns without a pending offer that are learned; of the others all
CARELESS = 0.1  # bargaining: share of the moves that may cost the mover: they are met, but not imitated


@dataclass(frozen=True)
class Lessons:
    """Of one game. settings: the games that are watched, by turns. habit(rng): how a seat plays throughout an episode.
    move(game, habit, view, rng): its next action. imitated(game, view, rng): the actions that are learned at a position.
    questions(view, rng): pairs of a question and its answer in one word. told(view, rng): whether a position is learned from
    at all. reading: weight of the questions' answers, against 1 for the actions. steps: of the optimizer. prices: whether
    numbers are prices, of which every pair of digits gets a token and a place in order. watched: all this in words, for the
    model card."""

    settings: tuple
    habit: Callable[[Random], Any]
    move: Callable
    imitated: Callable
    questions: Callable
    told: Callable
    reading: float
    steps: int
    prices: bool
    watched: str


# --- market


def market_move(game, skill: float, view, rng: Random):
    """The competent trader's action with probability `skill`, else a random legal one; some offers go astray."""
    action = competent(game)(view, rng) if rng.random() < skill else game.sample(view, rng)
    if isinstance(action, ProposeTrade) and rng.random() < ASTRAY:
        action = replace(action, to=rng.choice([other for other in game.seats if other != view.seat]))
    return action


def market_imitated(game, view, rng: Random) -> list:
    return [competent(game)(view, rng) for _ in range(3)] + [game.sample(view, rng) for _ in range(9)]


def market_questions(view, rng: Random) -> list[tuple[str, str]]:
    """What a seat holds; what I can spare; the first good that a seat holds and I miss; whom to ask, and what to give, when I
    want one; whose offer to take; whether an offer can be paid by both sides, and what it would bring me."""
    me = "ABCD".index(view.seat)
    held, need = view.holdings[me], (0,) * len(GOODS) if view.built[me] else PROJECTS[view.goal]
    out, partners = [], []
    for seat, counts in rng.choices(list(zip("ABCD", view.holdings, strict=True)), k=2):
        at = rng.randrange(len(GOODS))
        out.append((f"has {seat} {GOODS[at]}", str(min(counts[at], 9))))
    at = rng.randrange(len(GOODS))
    out.append((f"spare {GOODS[at]}", str(min(max(held[at] - need[at], 0), 9))))
    for seat, counts in zip("ABCD", view.holdings, strict=True):
        if seat != view.seat:
            wanted = [good for good, h, n, theirs in zip(GOODS, held, need, counts, strict=True) if h < n and theirs]
            out.append((f"find {seat}", wanted[0] if wanted else "none"))
            partners += [seat] * bool(wanted)
    spares = [good for good, h, n in zip(GOODS, held, need, strict=True) if h > n]
    for _ in range(2):
        out.append(("ask", rng.choice(partners or ["none"])))
        out.append(("give", rng.choice(spares or ["none"])))
    best, most = "none", -1
    for offer in view.pending:
        payable = holds(held, offer.get) and holds(view.holdings["ABCD".index(offer.giver)], offer.give)
        change = worth(moved(held, offer.get, offer.give), need) - worth(held, need)
        out.append((f"pays {offer.id}", "yes" if payable else "no"))
        out.append((f"worth {offer.id}", "gain" if change > 0 else "loss" if change < 0 else "even"))
        if payable and change > most:
            best, most = offer.giver, change
    return [*out, ("take", best)]


# --- bargaining


def haggle(view, rng: Random) -> Action:
    """A random action that costs nothing: an offer within one's limit, now and then DEAL (if that costs nothing) or NO_DEAL."""
    luck = rng.random()
    if luck < 0.03:
        return Action(NO_DEAL)
    if view.standing is not None and luck < 0.4 and gain(view, view.standing) >= 0:
        return Action(DEAL)
    low, high = view.bounds
    ends = (low, view.limit) if view.seat == BUYER else (view.limit, high)
    price = round(rng.uniform(*ends), 2)
    phrase = rng.choice(PHRASES)
    return Action(OFFER, price, phrase.format(price if rng.random() < 0.5 else view.limit) if phrase else "")


def gain(view, price: float) -> float:
    return view.limit - price if view.seat == BUYER else price - view.limit


def bargaining_move(game, habit, view, rng: Random) -> Action:
    """Mostly as it is imitated, or as one of the scripted players; now and then any random legal action, whatever it costs."""
    if rng.random() < CARELESS:
        return game.sample(view, rng)
    return (habit or rng.choice([haggle, *SCRIPTED["bargaining"].values()]))(view, rng)


def bargaining_imitated(game, view, rng: Random) -> list[Action]:
    return [choose(view, rng) for choose in (*rng.sample(list(SCRIPTED["bargaining"].values()), 3), haggle, haggle, haggle)]


def bargaining_questions(view, rng: Random) -> list[tuple[str, str]]:
    """Whether a price lies above my limit, and whether it would cost me anything; the same of the standing offer; whether that is
    better than the middle between my limit and the best price imaginable."""
    low, high = view.bounds
    tried = [view.limit * (1 + rng.uniform(-off, off)) for off in (0.05, 0.2, 0.2, 0.5, 0.5)]
    out = [(f"above {price:.2f}", "yes" if round(price, 2) > view.limit else "no") for price in tried]
    out += [(f"worth {price:.2f}", "gain" if gain(view, round(price, 2)) >= 0 else "loss") for price in tried[1:4]]
    if view.standing is None:
        return [*out, ("offer", "none")]
    middle = (view.limit + (low if view.seat == BUYER else high)) / 2
    return [
        *out,
        ("above", "yes" if view.standing > view.limit else "no"),
        ("offer", "gain" if gain(view, view.standing) >= 0 else "loss"),
        ("good", "yes" if gain(view, view.standing) >= gain(view, middle) else "no"),
    ]


LESSONS = {
    "market": Lessons(
        (Market(),),
        lambda rng: rng.choice((0.0, 0.25, 0.5, 0.75, 1.0)),
        market_move,
        market_imitated,
        market_questions,
        lambda view, rng: bool(view.pending) or rng.random() < QUIET,
        0.5,
        7000,
        False,
        "It was trained by imitation on mixed play: about three quarters of the actions it imitated were random legal ones "
        "and **a quarter were a competent (greedy) trader's**. It was also taught the answers to reading questions about the "
        "position (who holds what, what to ask of whom and what to give for it, whose offer to take).",
    ),
    "bargaining": Lessons(
        tuple(Bargaining(transparency=cell) for cell in UNAWARE),
        lambda rng: rng.choice([None, None, haggle, *SCRIPTED["bargaining"].values()]),
        bargaining_move,
        bargaining_imitated,
        bargaining_questions,
        lambda view, rng: True,
        1.5,
        7000,
        True,
        "It was trained by imitation on mixed play: half of the actions it imitated were **those of the scripted bargainers** "
        "(linear, boulware, conceder, tit-for-tat, hardball, always-split, each as often), the others random ones that cost "
        "nothing. It was also taught the answers to reading questions about the position (whether a price, or the standing "
        "offer, is within its limit, and whether that offer is a good one).",
    ),
}
