"""A tournament of Bargaining: pairs of players on the same scenarios, in every transparency cell and both roles.

What is measured comes from the episodes alone, which can be saved and loaded in between. A player is known by its name: so
must it be there.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import pandas as pd

from helpers.evaluate import outcomes
from helpers.games.bargaining import BUYER, SELLER, UNAWARE, Bargaining
from helpers.rollout import Episode, Player, play
from helpers.surplus import bargains, honesty, intervals

ROLES = {BUYER: SELLER, SELLER: BUYER}  # a role: the other one
CELLS = tuple(UNAWARE)
METRICS = ("own share", "deal rate", "outside the zone", "rounds used", "invalid replies")


def tournament(
    game: Bargaining,
    pairs: Sequence[tuple[Player, Player]],
    seeds: Sequence[int],
    cells: Sequence[str] = CELLS,
    progress: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Each pair on every seed in every cell, in both roles; a player meets itself once. One call of `play` for a cell and a pair.
    `cells`: values of `game.transparency`, which they replace. `progress` is told after each call how many of how many are done.
    Raises ValueError when two players have one name: their results would be mixed up."""
    names: dict[str, Player] = {}
    for player in (player for pair in pairs for player in pair):
        if names.setdefault(player.name, player) is not player:
            raise ValueError(f"expected a name for each player, got {player.name!r} twice; rename one")
    episodes: list[Episode] = []
    for done, (cell, (one, other)) in enumerate([(cell, pair) for cell in cells for pair in pairs], 1):
        tables = [{BUYER: one, SELLER: other}, {BUYER: other, SELLER: one}][: 1 if one is other else 2]
        episodes += play(
            replace(game, transparency=cell),
            [seed for _ in tables for seed in seeds],
            [table for table in tables for _ in seeds],
        )
        if progress:
            progress(done, len(cells) * len(pairs))
    return episodes


def results(game: Bargaining, episodes: Sequence[Episode]) -> pd.DataFrame:
    """Two rows an episode, one from each side: seed, cell, role, player, opponent; the figures of `surplus.bargains`, where those
    of the row's side are called "own share", "own share of deals" and "beyond own limit" and those of the other are left out;
    "invalid replies" among its own; and of its claims in the episode the mean "false claims", "bluff size" and "credulity" (of
    the opponent) of `surplus.honesty`, missing where it claimed nothing. `game`: with any transparency; the rest must be as
    it was played."""
    groups: dict[tuple[str, ...], list[Episode]] = {}
    for episode in episodes:
        key = episode.settings["transparency"], episode.players[BUYER], episode.players[SELLER]
        groups.setdefault(key, []).append(episode)
    sides = []
    for (cell, *names), played in groups.items():
        measured, claimed = bargains(game, played), honesty(game, played)
        who = dict(zip((BUYER, SELLER), names, strict=True))
        for role, other in ROLES.items():
            about_me = {
                f"{role} share": "own share",
                f"{role} share of deals": "own share of deals",
                f"{role} beyond its limit": "beyond own limit",
            }
            side = measured.drop(columns=[name.replace(role, other) for name in about_me]).rename(columns=about_me)
            for at, (name, value) in enumerate(
                {"cell": cell, "role": role, "player": who[role], "opponent": who[other]}.items(), 1
            ):
                side.insert(at, name, value)
            side["invalid replies"] = outcomes(game, played, role)["invalid replies"]
            told = claimed[claimed["seat"] == role].drop(columns="seat").groupby("seed").mean()
            sides.append(side.join(told, on="seed"))
    return pd.concat(sides, ignore_index=True)


def summary(
    frame: pd.DataFrame, by: Sequence[str] = ("player",), metrics: Sequence[str] = METRICS
) -> dict[str | tuple[str, ...], dict[str, dict[str, float]]]:
    """{who or what: {metric: {value, low, high, n}}} of `results`, as `evaluate.table` and the plots take it. `by`: columns that
    say what is kept apart, such as ("cell", "role"): all others are averaged over; the keys are tuples of their values, or plain
    values of one. Scenarios are resampled; a metric is left out where it exists in fewer than two."""
    found = {}
    for key, rows in frame.groupby(list(by), sort=False):
        found[key if len(by) > 1 else key[0]] = {
            name: asdict(interval) for name, interval in intervals(rows[["seed", *metrics]]).items()
        }
    return found
