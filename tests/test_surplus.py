"""The figures of bargaining episodes, on a game whose limits are 100 and 60 and whose ranges are 40-80 and 80-120."""

from dataclasses import dataclass

import pytest

from helpers.games.bargaining import BUYER, SELLER, Action, Bargaining, State
from helpers.games.scenarios import Scenario
from helpers.players import Scripted
from helpers.rollout import play
from helpers.surplus import GIVEN_A_DEAL, bargains, honesty, intervals, price_path

LAMP = Scenario("desk lamp", "A jointed lamp.", "You read a lot.", "You have two.", (40.0, 80.0), (80.0, 120.0))


@dataclass(frozen=True)
class Fixed(Bargaining):
    """Bargaining in which every episode has the same limits and the buyer opens."""

    def deal(self, seed):
        return State(LAMP, (100.0, 60.0), 0)


GAME = Fixed()


def at(price, accepted=True, message=""):
    """Two episodes in which the buyer offers that price and the seller takes it or walks away."""
    opening = Scripted("offers", lambda view, rng: Action("OFFER", price, message))
    answer = Scripted("answers", lambda view, rng: Action("DEAL" if accepted else "NO_DEAL"))
    return play(GAME, [0, 1], {BUYER: opening, SELLER: answer})


def figures(*episodes):
    return bargains(GAME, [e for pair in episodes for e in pair]).drop(columns="seed").mean().to_dict()


def test_a_deal_at_70_gives_the_buyer_three_quarters_and_lies_a_quarter_from_the_nash_price():
    found = figures(at(70.0))
    assert {name: found[name] for name in ("deal rate", "buyer share", "seller share", "efficiency")} == {
        "deal rate": 1, "buyer share": 0.75, "seller share": 0.25, "efficiency": 1,
    }  # fmt: skip
    assert (found["distance to Nash price"], found["distance to expected Nash price"]) == (10 / 40, 10 / 40)  # both are 80
    assert (found["rounds used"], found["outside the zone"], found["invalid replies"]) == (1, 0, 0)


@pytest.mark.parametrize(("price", "side"), [(120.0, "buyer"), (50.0, "seller")])
def test_a_deal_beyond_a_limit_is_laid_to_the_side_that_signed_it(price, side):
    found = figures(at(price))
    assert found[f"{side} beyond its limit"] == found["outside the zone"] == 1
    assert found[f"{side} share"] < 0 and found["efficiency"] == 1


def test_without_a_deal_shares_are_zero_and_what_needs_a_deal_is_missing_not_zero():
    assert bargains(GAME, at(70.0, accepted=False))[list(GIVEN_A_DEAL)].isna().all(axis=None)
    found = figures(at(70.0), at(70.0, accepted=False))
    assert (found["deal rate"], found["buyer share"], found["buyer share of deals"]) == (0.5, 0.375, 0.75)


def test_intervals_count_the_seeds_in_which_a_figure_exists():
    frame = bargains(GAME, [*at(70.0), *at(70.0, accepted=False)[:1]])  # seed 0 deals and fails, seed 1 deals
    found = intervals(frame)
    assert (found["deal rate"].value, found["deal rate"].n) == (0.75, 2)
    assert (found["buyer share of deals"].value, found["buyer share of deals"].n) == (0.75, 2)
    one = intervals(bargains(GAME, [at(70.0)[0], at(70.0, accepted=False)[1]]))
    assert "buyer share of deals" not in one and one["buyer share"].value == 0.375


def test_honesty_is_measured_claim_by_claim_and_silence_gives_no_row():
    assert honesty(GAME, at(70.0)).empty and intervals(honesty(GAME, at(70.0))) == {}
    assert intervals(honesty(GAME, at(70.0, message="My limit is 80.")))["bluff size"].value == 0.5  # 20 of 40
    true = honesty(GAME, at(70.0, message="My limit is 100."))
    assert list(true["false claims"]) == [0, 0] and true["bluff size"].isna().all()


def test_a_price_path_holds_offers_limits_and_the_end_and_a_deal_that_names_its_price_is_no_offer():
    buyer = Scripted("offers", lambda view, rng: Action("OFFER", 70.0))
    seller = Scripted("answers", lambda view, rng: Action("DEAL", 70.0) if view.round == 2 else Action("OFFER", 95.0))
    path = price_path(GAME, play(GAME, [4], {BUYER: buyer, SELLER: seller})[0])
    assert path.moves == ((BUYER, 70.0), (SELLER, 95.0), (BUYER, 70.0), (SELLER, None))
    assert (path.seed, path.limits, path.nash, path.price) == (4, {BUYER: 100.0, SELLER: 60.0}, 80.0, 70.0)
    assert (path.players, path.standing, path.left) == ({BUYER: "offers", SELLER: "answers"}, True, None)
    walked = price_path(GAME, at(70.0, accepted=False)[0])
    assert (walked.price, walked.left) == (None, SELLER)


def test_the_price_path_of_a_simultaneous_game_has_the_midpoint_as_its_price_and_no_standing_offer():
    game = Fixed(protocol="simultaneous")
    same = Scripted("same", lambda view, rng: Action("OFFER", 90.0 if view.seat == BUYER else 70.0))
    path = price_path(game, play(game, [0], {BUYER: same, SELLER: same})[0])
    assert (path.moves, path.price, path.standing) == (((BUYER, 90.0), (SELLER, 70.0)), 80.0, False)
    stubborn = Scripted("stubborn", lambda view, rng: Action("OFFER", 61.0 if view.seat == BUYER else 99.0))
    assert price_path(game, play(game, [0], {BUYER: stubborn, SELLER: stubborn})[0]).left is None
