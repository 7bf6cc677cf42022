"""A tournament of Bargaining: who plays whom, what each side's row says, and what is averaged over. The limits are 100 and 60."""

from collections import Counter

import pytest
from test_surplus import GAME

from helpers.evaluate import compare, interval, table
from helpers.games.bargaining import BUYER, SELLER, UNAWARE, Action, Bargaining
from helpers.players import Scripted, scripted
from helpers.rollout import TEST, append, load, play
from helpers.surplus import bargains
from helpers.tournament import METRICS, results, summary, tournament

PRICE = {BUYER: 70.0, SELLER: 90.0}  # a quarter of the way from the own side's best: three quarters for whoever asks
REAL, SEEDS = Bargaining(), TEST[:6]


def said(view, rng):
    return Action("OFFER", PRICE[view.seat], "My limit is 80.")


ASKS = Scripted("asks", said)  # the buyer says 80 of 100, the seller 80 of 60: both a false claim, half the surplus off
TAKES = Scripted("takes", lambda view, rng: Action("NO_DEAL") if view.standing is None else Action("DEAL"))
MUTE = Scripted("mute", lambda view, rng: "no action")


@pytest.fixture(scope="module")
def played():
    """Three scripted players against each other and themselves in all cells."""
    linear, hard, split = (scripted(REAL, name) for name in ("linear", "hardball", "always-split"))
    pairs = [(linear, hard), (linear, split), (hard, split), (linear, linear)]
    return tournament(REAL, pairs, SEEDS)


def test_every_pair_meets_on_every_seed_in_every_cell_and_both_roles_and_a_player_meets_itself_once(played):
    met = Counter((e.settings["transparency"], e.players[BUYER], e.players[SELLER]) for e in played)
    names = ("linear", "hardball", "always-split")
    ordered = [(a, b) for a in names for b in names if a != b] + [("linear", "linear")]
    assert met == {(cell, *pair): len(SEEDS) for cell in UNAWARE for pair in ordered}
    assert {e.seed for e in played} == set(SEEDS)


def test_a_pair_is_one_call_of_play_a_cell_for_both_roles(monkeypatch):
    calls, told = [], []

    def counted(game, seeds, tables):
        calls.append((game.transparency, len(seeds)))
        return play(game, seeds, tables)

    monkeypatch.setattr("helpers.tournament.play", counted)
    tournament(GAME, [(ASKS, TAKES), (ASKS, ASKS)], range(5), ("full", "both_unaware"), lambda *done: told.append(done))
    assert calls == [("full", 10), ("full", 5), ("both_unaware", 10), ("both_unaware", 5)]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_each_side_of_an_episode_has_a_row_with_its_own_share_and_the_shares_add_up_to_the_efficiency(played):
    frame = results(REAL, played)
    assert len(frame) == 2 * len(played)
    assert list(frame.columns[:5]) == ["seed", "cell", "role", "player", "opponent"]
    assert not [name for name in frame if name.startswith((BUYER, SELLER))]  # the other side's figures are in its own row
    bought, sold = (frame[frame["role"] == role].set_index(["seed", "cell"]) for role in (BUYER, SELLER))
    both = bought.merge(sold, left_on=["seed", "cell", "player", "opponent"], right_on=["seed", "cell", "opponent", "player"])
    assert len(both) == len(played)
    assert (both["own share_x"] + both["own share_y"] == both["efficiency_x"]).all()
    assert (both["deal rate_x"] == both["deal rate_y"]).all() and 0 < both["deal rate_x"].mean() < 1
    assert frame["own share"].mean() == pytest.approx(bargains(REAL, played)["efficiency"].mean() / 2)


def test_a_row_is_told_from_its_sides_point_of_view():
    frame = results(GAME, tournament(GAME, [(ASKS, TAKES)], [0, 1], cells=["full"]))
    asked = frame[(frame["player"] == "asks") & (frame["role"] == BUYER)].iloc[0]
    took = frame[(frame["player"] == "takes") & (frame["role"] == SELLER)].iloc[0]
    assert (asked["opponent"], took["opponent"]) == ("takes", "asks")
    assert (asked["own share"], took["own share"]) == (0.75, 0.25) == (asked["own share of deals"], took["own share of deals"])
    assert (asked["false claims"], asked["bluff size"]) == (1, 0.5)
    assert took[["false claims", "bluff size", "credulity"]].isna().all()
    # As the seller `asks` is not even heard: the buyer, who opens, walks away.
    refused = frame[(frame["player"] == "asks") & (frame["role"] == SELLER)].iloc[0]
    assert (refused["own share"], refused["deal rate"]) == (0, 0) and refused[["own share of deals", "false claims"]].isna().all()


def test_only_the_side_that_signs_beyond_its_limit_is_said_to_and_only_its_own_invalid_replies_count():
    dear = Scripted("dear", lambda view, rng: Action("OFFER", 110.0))
    frame = results(GAME, tournament(GAME, [(dear, TAKES), (MUTE, TAKES)], [0, 1], cells=["full"]))
    by = frame.set_index(["player", "opponent", "role"]).loc
    assert by["dear", "takes", BUYER][["beyond own limit", "outside the zone"]].eq(1).all(axis=None)
    assert by["takes", "dear", SELLER]["beyond own limit"].eq(0).all() and by["takes", "dear", SELLER]["own share"].gt(1).all()
    assert (
        by["mute", "takes", BUYER]["invalid replies"].eq(1).all() and by["takes", "mute", SELLER]["invalid replies"].eq(0).all()
    )


def test_saved_episodes_give_the_same_results(played, tmp_path):
    append(tmp_path / "episodes.jsonl", played[:40])
    assert results(REAL, load(tmp_path / "episodes.jsonl")).equals(results(REAL, played[:40]))


def test_results_do_not_depend_on_the_transparency_of_the_game_they_are_given(played):
    assert results(Bargaining(transparency="full"), played).equals(results(REAL, played))


def test_a_summary_resamples_scenarios_and_averages_over_all_that_is_not_kept_apart(played):
    frame = results(REAL, played)
    found = summary(frame, ["cell", "role"])
    assert set(found) == {(cell, role) for cell in UNAWARE for role in (BUYER, SELLER)}
    rows = frame[(frame["cell"] == "full") & (frame["role"] == BUYER)]
    expected = interval(rows["own share"], rows["seed"])
    assert found["full", BUYER]["own share"] == vars(expected) and expected.n == len(SEEDS)
    assert set(found["full", BUYER]) == set(METRICS)
    one = summary(frame, metrics=["own share"])
    assert list(one) == ["linear", "hardball", "always-split"] and set(one["linear"]) == {"own share"}
    assert table(one).loc["linear", "n"] == str(len(SEEDS))


def test_two_players_are_compared_on_the_same_scenarios(played):
    frame = results(REAL, played)
    against = frame[(frame["opponent"] == "always-split")]
    linear, hard = (against[against["player"] == name] for name in ("linear", "hardball"))
    found = compare(linear, hard, "deal rate").difference
    assert found.n == len(SEEDS)
    assert found.value == pytest.approx(linear["deal rate"].mean() - hard["deal rate"].mean())


def test_two_players_of_one_name_are_refused():
    twin = Scripted("asks", TAKES.choose)
    with pytest.raises(ValueError, match="expected a name for each player, got 'asks' twice; rename one"):
        tournament(GAME, [(ASKS, TAKES), (twin, TAKES)], [0])
