"""Guard rails on hand-made logs: what they warn of, with which numbers, and what they let pass."""

import pytest

from helpers.games.bargaining import BUYER, SELLER, Bargaining
from helpers.guards import GUARDS

guard = GUARDS[Bargaining().name]


def log(*spans):
    """A log from spans (steps, deal rate, buyer's payoff, seller's payoff, outside the zone), with other entries in between."""
    out = []
    for steps, deals, buyer, seller, outside in spans:
        for _ in range(steps):
            out += [
                {"step": len(out), "deals": deals, "payoff buyer": buyer, "payoff seller": seller, "outside the zone": outside}
            ]
    return [{"eval_loss": 1.0}, *out, {"train_runtime": 1.0}]


def test_deals_traded_for_share_are_told_with_the_numbers_of_the_first_and_last_ten_steps():
    found = guard(log((10, 0.95, 0.4, 0.55, 0), (5, 0, 0, 0, 0), (10, 0.85, 0.45, 0.4, 0)), [BUYER])
    assert list(found) == ["fewer deals"]
    assert "fell from 0.950 to 0.850" in found["fewer deals"]
    assert "the buyer's share rose from 0.400 to 0.450" in found["fewer deals"] and "seller" not in found["fewer deals"]


def test_only_a_trained_seats_share_counts():
    history = log((10, 0.95, 0.4, 0.55, 0), (10, 0.85, 0.45, 0.4, 0))
    assert guard(history, [SELLER]) == {}
    both = guard(history, [BUYER, SELLER])["fewer deals"]
    assert "the buyer's share rose" in both and "the seller's" not in both


@pytest.mark.parametrize(
    ("after", "warned"),
    [((0.9, 0.5), False), ((0.874, 0.5), False), ((0.866, 0.5), True), ((0.7, 0.4), False), ((1.0, 0.5), False)],
    ids=["no fall", "a small fall", "a fall just too large", "share no higher", "more deals"],
)
def test_a_fall_of_more_than_three_points_while_the_share_rises_is_warned_of_and_nothing_else(after, warned):
    deals, share = after
    assert bool(guard(log((10, 0.9, 0.4, 0.5, 0), (10, deals, share, 0.3, 0)), [BUYER])) == warned


def test_nothing_is_said_before_there_are_twenty_logged_steps():
    assert guard(log((10, 0.9, 0.4, 0.5, 0.5), (9, 0.5, 0.5, 0, 0.5)), [BUYER]) == {}
    assert set(guard(log((10, 0.9, 0.4, 0.5, 0.5), (10, 0.5, 0.5, 0, 0.5)), [BUYER])) == {"fewer deals", "outside the zone"}
    assert guard([], [BUYER]) == {}


@pytest.mark.parametrize(("outside", "warned"), [(0.0095, False), (0.0105, True)], ids=["1.9 %", "2.1 %"])
def test_deals_outside_the_zone_are_counted_among_deals_not_among_episodes(outside, warned):
    found = guard(log((10, 0.5, 0.2, 0.3, 0.01), (10, 0.5, 0.2, 0.3, outside)), [BUYER])
    assert set(found) == ({"outside the zone"} if warned else set())
    assert not warned or ("2.1% of the deals of the last" in found["outside the zone"] and "2.0% in" in found["outside the zone"])


def test_what_lay_outside_at_first_is_no_reason_to_warn_later_and_without_deals_none_lies_outside():
    assert guard(log((10, 0.5, 0.2, 0.3, 0.2), (10, 0.5, 0.2, 0.3, 0)), [BUYER]) == {}
    assert guard(log((20, 0, 0, 0, 0)), [BUYER]) == {}
    assert "0.0% in" in guard(log((10, 0, 0, 0, 0), (10, 0.5, 0, 0, 0.1)), [])["outside the zone"]


def test_the_keys_are_those_that_self_play_logs():
    game = Bargaining()
    assert {"deals", "outside the zone"} <= game.counts(game.deal(0)).keys() and game.payoffs(game.deal(0)).keys() == {
        BUYER,
        SELLER,
    }
