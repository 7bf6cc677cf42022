"""What episodes of Ultimatum and divide-the-dollar are measured by: how much proposers ask for themselves, and who lets them.

Every seed of these games is the same position (see helpers.games.classic), so an interval over seeds covers the luck of the
players alone, and is empty where they have none.
"""

from collections.abc import Sequence
from statistics import mean

import pandas as pd

from helpers.game import Seat, replay
from helpers.games.classic import DivideDollar, Ultimatum, accepted, closed_split
from helpers.rollout import Episode

GIVEN_A_PROPOSAL, GIVEN_A_DEAL = ("proposer's share", "acceptance"), ("largest share",)


def splits(game: Ultimatum | DivideDollar, episodes: Sequence[Episode], seat: Seat | None = None) -> pd.DataFrame:
    """One row an episode; all shares and rates are 0..1, shares are of the units and not discounted. "proposer's share": what
    proposers asked for themselves, on average over the splits proposed; "acceptance": how many of those closed; "largest share":
    the largest of the split that closed (1 / number of seats is even); "deal rate": 0 or 1; "rounds used"; "invalid replies":
    share of turns. What GIVEN_A_PROPOSAL and GIVEN_A_DEAL name is missing where there was none: read it beside the deal rate.

    With `seat`, only the splits and replies of that seat count for the share, the acceptance and invalid replies, which are
    missing too where it was never asked. `surplus.intervals` gives the means with their intervals."""
    rows = []
    for episode in episodes:
        state = replay(game, episode.seed, episode.actions)
        made = [played for played in state.rounds if played.units and seat in (None, game.seats[played.proposer])]
        judged = [turn for turn in episode.turns if seat in (None, turn.seat)]
        units = closed_split(game, state)
        rows.append(
            {
                "seed": episode.seed,
                "proposer's share": mean(played.units[played.proposer] / game.units for played in made) if made else None,
                "acceptance": mean(accepted(game, played) for played in made) if made else None,
                "deal rate": float(bool(units)),
                "largest share": max(units) / game.units if units else None,
                "rounds used": float(len(state.rounds)),
                "invalid replies": mean(turn.error is not None for turn in judged) if judged else None,
            }
        )
    return pd.DataFrame(rows).astype({name: float for name in (*GIVEN_A_PROPOSAL, *GIVEN_A_DEAL, "invalid replies")})
