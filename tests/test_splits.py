"""The figures of Ultimatum and divide-the-dollar on episodes whose every action is written down."""

from itertools import cycle

import pytest

from helpers.games.classic import PROPOSER, RESPONDER, Action, DivideDollar, Ultimatum
from helpers.players import Scripted, random_player, scripted
from helpers.rollout import append, load, play
from helpers.splits import splits
from helpers.surplus import intervals

ULTIMATUM, ALL, MOST = Ultimatum(), DivideDollar(), DivideDollar(rule="majority")
COLUMNS = ["seed", "proposer's share", "acceptance", "deal rate", "largest share", "rounds used", "invalid replies"]
SEED = next(seed for seed in range(99) if ALL.deal(seed).opener == 0)  # S1 opens
YES, NO = Action("accept"), Action("reject")


def give(*units) -> Action:
    seats = (PROPOSER, RESPONDER) if len(units) == 2 else ("S1", "S2", "S3")
    return Action("propose", tuple(zip(seats, units, strict=True)))


def figures(game, *said, seat=None, seed=SEED) -> dict:
    """Of one episode in which the seats say this in turn."""
    words = cycle(map(str, said))
    episodes = play(game, [seed], dict.fromkeys(game.seats, Scripted("words", lambda view, rng: next(words))))
    assert len(episodes[0].turns) == len(said)
    [row] = splits(game, episodes, seat).to_dict("records")
    return row


def missing(row) -> set[str]:
    return {name for name, value in row.items() if value != value}


def test_an_accepted_ultimatum_has_the_proposers_share_as_its_largest_and_a_rejected_one_has_none():
    assert figures(ULTIMATUM, give(7, 3), YES, seed=4) == dict(zip(COLUMNS, [4, 0.7, 1, 1, 0.7, 1, 0], strict=True))
    row = figures(ULTIMATUM, give(9, 1), NO)
    assert missing(row) == {"largest share"}
    assert (row["proposer's share"], row["acceptance"], row["deal rate"]) == (0.9, 0, 0)
    generous = figures(ULTIMATUM, give(2, 8), YES)
    assert (generous["proposer's share"], generous["largest share"]) == (0.2, 0.8)


def test_without_a_proposal_there_is_no_share_and_no_acceptance_and_the_reply_counts_as_invalid():
    row = figures(ULTIMATUM, "What?")
    assert missing(row) == {"proposer's share", "acceptance", "largest share"}
    assert (row["deal rate"], row["rounds used"], row["invalid replies"]) == (0, 1, 1)
    assert figures(ULTIMATUM, give(5, 5), "What?")["invalid replies"] == 0.5


def test_in_divide_the_dollar_shares_are_averaged_over_the_splits_proposed_and_not_discounted():
    row = figures(ALL, give(12, 0, 0), NO, "What?", give(3, 3, 6), YES, YES)
    assert row["proposer's share"] == (1 + 0.5) / 2 and row["acceptance"] == 0.5 and row["largest share"] == 0.5
    assert (row["deal rate"], row["rounds used"], row["invalid replies"]) == (1, 3, 1 / 6)


def test_with_a_seat_only_its_own_splits_and_replies_count():
    said = [give(12, 0, 0), NO, "What?", give(3, 3, 6), YES, YES]  # S1, S2, S2, S3, S1, S2
    first, second, third = (figures(ALL, *said, seat=seat) for seat in ALL.seats)
    assert (first["proposer's share"], first["acceptance"], first["invalid replies"]) == (1, 0, 0)
    assert missing(second) == {"proposer's share", "acceptance"} and second["invalid replies"] == 1 / 3
    assert (third["proposer's share"], third["acceptance"], third["invalid replies"]) == (0.5, 1, 0)
    assert first["largest share"] == second["largest share"] == third["largest share"] == 0.5
    unasked = figures(MOST, give(11, 1, 0), YES, seat="S3")
    assert missing(unasked) == {"proposer's share", "acceptance", "invalid replies"} and unasked["deal rate"] == 1


def test_a_frame_has_one_row_an_episode_in_every_column_also_from_saved_episodes(tmp_path):
    for game in (ULTIMATUM, ALL, MOST):
        episodes = play(game, range(20), dict.fromkeys(game.seats, random_player(game)))
        frame = splits(game, episodes)
        assert list(frame) == COLUMNS and list(frame["seed"]) == list(range(20))
        assert frame.drop(columns=["seed", "rounds used"]).stack().dropna().between(0, 1).all()
        append(tmp_path / f"{game.name}-{game.needed}.jsonl", episodes)
        assert splits(game, load(tmp_path / f"{game.name}-{game.needed}.jsonl")).equals(frame)


@pytest.mark.parametrize(("proposer", "share", "accepted"), [("equal", 0.5, 1), ("minimal", 0.9, 0)])
def test_intervals_of_scripted_tables_have_no_width_for_there_is_no_luck(proposer, share, accepted):
    players = {PROPOSER: scripted(ULTIMATUM, proposer), RESPONDER: scripted(ULTIMATUM, "fair-minded")}
    found = intervals(splits(ULTIMATUM, play(ULTIMATUM, range(5), players)))
    assert vars(found["proposer's share"]) == {"value": share, "low": share, "high": share, "n": 5}
    assert found["acceptance"].value == found["deal rate"].value == accepted
    assert ("largest share" in found) == bool(accepted)
