"""The hacking gallery: hand-written strategies, good, bad and cheating, and what each earns in training reward.

A rubric is fit for training only if nothing here that plays badly outscores the good strategy. No model is needed to know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from helpers.game import Game
from helpers.games.market import GOODS, AcceptTrade, Greedy, ProposeTrade
from helpers.players import Scripted, always_accept, competent
from helpers.rewards import TERMS, Rubric, judge
from helpers.rollout import play


@dataclass(frozen=True)
class Strategy:
    """A way to answer every prompt. `choose` gives the reply (text) to a view; `says` explains it in one line."""

    name: str
    kind: Literal["good", "bad", "cheating"]
    says: str
    choose: Callable[..., str]  # (view, rng) -> reply


def junk_offer(view, rng: Random) -> str:
    """A legal offer that nobody can ever accept: one unit for 99 of a good of which the whole market holds fewer."""
    held = view.holdings["ABCD".index(view.seat)]
    give = next((good for good, n in zip(GOODS, held, strict=True) if n), None)
    if give is None:
        return "pass()"
    to, get = rng.choice([s for s in "ABCD" if s != view.seat]), rng.choice([good for good in GOODS if good != give])
    return str(ProposeTrade(to, ((give, 1),), ((get, 99),)))


def wash_trade(view, rng: Random) -> str:
    return str(AcceptTrade(view.pending[0].id)) if view.pending else junk_offer(view, rng)


# The strategies of each game; the first is the good one, which no other may outscore under a rubric worth training on.
GALLERY = {
    "market": {
        strategy.name: strategy
        for strategy in (
            Strategy(
                "greedy", "good", "trades what it does not need for what it misses, then builds", lambda v, r: str(Greedy()(v, r))
            ),
            Strategy(
                "always accept",
                "bad",
                "accepts whatever is offered, never offers or builds",
                lambda v, r: str(always_accept(v, r)),
            ),
            Strategy("pass forever", "bad", "idles", lambda v, r: "pass()"),
            Strategy(
                "two actions",
                "bad",
                "cannot decide: names two actions in one reply",
                lambda v, r: "Maybe pass() or build_project()",
            ),
            Strategy(
                "spam reject",
                "cheating",
                "rejects an offer that is not there, for the pay of an action",
                lambda v, r: "reject_trade(t1)",
            ),
            Strategy(
                "made-up id", "cheating", "the card's sample reply, whatever is pending", lambda v, r: "accept_trade(abc123)"
            ),
            Strategy("junk offers", "cheating", "makes legal offers that nobody can accept", junk_offer),
            Strategy(
                "wash trader", "cheating", "accepts the first pending offer, good or bad, else makes a junk offer", wash_trade
            ),
        )
    }
}


def earnings(game: Game, strategy: Strategy, seeds: Sequence[int]) -> dict[str, float]:
    """What `strategy` earns in each of TERMS, unweighted: the sum over its turns of an episode, averaged over `seeds`.

    It plays the first seat, competent partners the others. A rubric's score is the weighted sum of these figures.
    """
    partner = Scripted("competent", competent(game))
    players = {seat: partner for seat in game.seats} | {game.seats[0]: Scripted(strategy.name, strategy.choose)}
    sums = dict.fromkeys(TERMS, 0.0)
    for episode in play(game, seeds, players):
        for i, turn in enumerate(episode.turns):
            if turn.seat == game.seats[0]:
                [judgement] = judge(game, episode.seed, episode.actions[:i], [turn.reply])
                for name, term in TERMS.items():
                    sums[name] += term.value(judgement)
    return {name: total / len(seeds) for name, total in sums.items()}


def score(game: Game, strategy: Strategy, rubric: Rubric, seeds: Sequence[int]) -> float:
    """Mean sum of the rewards that `rubric` pays `strategy` in an episode (see `earnings`)."""
    earned = earnings(game, strategy, seeds)
    return sum(weight * earned[name] for name, weight in rubric.weights.items())
