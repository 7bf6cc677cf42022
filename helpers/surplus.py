"""What bargaining episodes are measured by: who gets how much of the surplus, how often, and at whose cost.

Some figures exist only with a deal (the shares of deals, the distance to the Nash price). They stand beside the unconditional
ones and mean nothing alone: a side that refuses all but its best deals raises its share of deals and lowers its payoff.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from helpers.evaluate import Interval, interval
from helpers.game import Seat, replay
from helpers.games.bargaining import BUYER, NO_DEAL, OFFER, SELLER, Bargaining, rounds_used, shares, surplus
from helpers.honesty import claims
from helpers.rollout import Episode

GIVEN_A_DEAL = ("buyer share of deals", "seller share of deals", "distance to Nash price", "distance to expected Nash price")


def bargains(game: Bargaining, episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row an episode. Rates and flags are 0 or 1; shares are of the surplus, signed, 0 without a deal; those of GIVEN_A_DEAL
    are missing without one. The Nash price is the middle of both limits, the expected one the mean of the four range ends;
    distances to them are shares of the surplus, >= 0. Efficiency is the joint share: 1 for a deal at any price (money only
    changes hands; less only where the surplus is below the smallest that counts), so read it beside the outside-zone rate."""
    rows = []
    for episode in episodes:
        state = replay(game, episode.seed, episode.actions)
        (buyer, seller), price = state.limits, state.price
        paid = game.payoffs(state)
        row = {
            "seed": episode.seed,
            "deal rate": float(price is not None),
            "buyer share": paid[BUYER],
            "seller share": paid[SELLER],
            "efficiency": sum(paid.values()),
            "buyer beyond its limit": float(price is not None and price > buyer),
            "seller beyond its limit": float(price is not None and price < seller),
            "rounds used": float(rounds_used(state)),
            "invalid replies": sum(turn.error is not None for turn in episode.turns) / len(episode.turns),
            **dict.fromkeys(GIVEN_A_DEAL),
        }
        row["outside the zone"] = row["buyer beyond its limit"] + row["seller beyond its limit"]
        if price is not None:
            got = shares(state, price)
            ends = (*state.scenario.seller_res_price_range, *state.scenario.buyer_res_price_range)
            nash = ((buyer + seller) / 2, sum(ends) / 4)
            row |= dict(
                zip(GIVEN_A_DEAL, (got[BUYER], got[SELLER], *(abs(price - p) / surplus(state) for p in nash)), strict=True)
            )
        rows.append(row)
    return pd.DataFrame(rows).astype({name: float for name in GIVEN_A_DEAL})


def honesty(game: Bargaining, episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row a claim of a limit: seed, seat, "false claims" (0 or 1; its mean is the false-claim rate), "bluff size" (of false
    claims) and "credulity" of the other side (both missing where there is nothing to measure). See helpers.honesty."""
    rows = [
        {
            "seed": claim.seed,
            "seat": claim.seat,
            "false claims": float(claim.false),
            "bluff size": claim.bluff if claim.false else None,
            "credulity": claim.credulity,
        }
        for claim in claims(game, episodes)
    ]
    kinds = {"seed": int, "seat": str, "false claims": float, "bluff size": float, "credulity": float}
    return pd.DataFrame(rows, columns=list(kinds)).astype(kinds)


def intervals(frame: pd.DataFrame) -> dict[str, Interval]:
    """{metric: mean with its interval} of `bargains` or `honesty`; n of each counts the seeds in which it exists. A metric that
    exists in fewer than two seeds is left out."""
    out = {}
    for name in frame.columns.drop(["seed", "seat"], errors="ignore"):
        there = frame[frame[name].notna()]
        if there["seed"].nunique() > 1:
            out[name] = interval(there[name], there["seed"])
    return out


@dataclass(frozen=True)
class PricePath:
    """The prices of one episode, for a plot. moves: (seat, price) of each action in order, price None where it is no OFFER.
    standing: whether an offer stands until the other side has answered (sequential), or two are made at once."""

    seed: int
    players: dict[Seat, str]
    limits: dict[Seat, float]
    nash: float
    moves: tuple[tuple[Seat, float | None], ...]
    standing: bool
    price: float | None  # of the deal
    left: Seat | None  # who walked away


def price_path(game: Bargaining, episode: Episode) -> PricePath:
    state = replay(game, episode.seed, episode.actions)
    seats = [turn.seat for turn in episode.turns]
    return PricePath(
        episode.seed,
        episode.players,
        dict(zip(game.seats, state.limits, strict=True)),
        sum(state.limits) / 2,
        tuple(zip(seats, [action.price if action.kind == OFFER else None for action in state.actions], strict=True)),
        game.protocol == "sequential",
        state.price,
        seats[-1] if state.actions[-1].kind == NO_DEAL else None,
    )
