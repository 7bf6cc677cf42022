"""Claims of a limit, read from hand-written messages; then false claims, bluffs and credulity counted in made-up episodes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.games.bargaining import BUYER, SELLER, Action, Bargaining, surplus
from helpers.honesty import amount, claimed_limit, claims
from helpers.players import Scripted
from helpers.rollout import play

BUYERS = {  # what a buyer writes -> the limit that it claims
    "My limit is 40.": 40,
    "My limit is 40.00 and I like the lamp.": 40,
    "Sorry, my absolute maximum is $40!": 40,
    "My budget is 40 dollars.": 40,
    "my budget: \u20ac40": 40,
    "Our budget for this is about \u00a340": 40,
    "I can't go above 40.": 40,
    "I can\u2019t go above \u00a31,250.50.": 1250.5,
    "I cannot pay more than 1.250,50 \u20ac.": 1250.5,
    "I won't pay a cent over 12,50 euros": 12.5,
    "I could never pay more than USD 1.2k for it.": 1200,
    "I am unable to spend more than 2 thousand dollars.": 2000,
    "I will not go any higher than 40 bucks.": 40,
    "The most I can pay is 40.": 40,
    "The highest I could go is around 40": 40,
    "The most I'd pay for it is 40.": 40,
    "40 is my limit.": 40,
    "$40 is really my ceiling, friend.": 40,
    "40 is the most I can pay.": 40,
    "40 is as high as I can go.": 40,
    "I can pay at most 40.": 40,
    "I could stretch up to 40 for a quick deal": 40,
    "I pay no more than 40.": 40,
    "I can give you 40 tops.": 40,
    "I could do 40 max": 40,
    "I pay 40 and not a cent more.": 40,
    "I have a maximum of 40": 40,
    "I can't do 50, my limit is 40.": 40,
    "50 is too much for me; I can't go over 45.": 45,
    "My limit is 40. All right, I can go up to 45.": 45,
    "My budget is 40-50 dollars.": 50,
    "My budget is between 40 and 50.": 50,
    "Your floor is 30, my limit is 40.": 40,
    "If you insist, my limit is 40.": 40,
    "My limit is 99 cents.": 0.99,
}
SELLERS = {  # the same of a seller
    "My limit is 40.": 40,
    "My minimum is 40.": 40,
    "My bottom line is $40.": 40,
    "I can't go below 40.": 40,
    "I can't sell it for less than \u20ac40.": 40,
    "I won't accept anything under 40 pounds.": 40,
    "I cannot let it go for less than 1,200": 1200,
    "The lowest I can go is 40": 40,
    "The least I would take is 40.": 40,
    "40 is my floor.": 40,
    "40 is as low as I can go.": 40,
    "I need at least 40.": 40,
    "I take no less than 40": 40,
    "For me it is 40 minimum.": 40,
    "My floor is 40 to 45.": 40,
    "I ask for 60, but I can't do less than 50.": 50,
    "I sell for 40 and not a penny less.": 40,
}
NOTHING = {  # what claims no limit -> who wrote it
    "": BUYER,
    "I can do 40.": BUYER,
    "I can't do $500": BUYER,
    "I can't pay 40.": BUYER,
    "How about 40?": BUYER,
    "I offer 40, you asked 50.": BUYER,
    "My final offer is 40.": BUYER,
    "Is 40 your limit?": BUYER,
    "Would you say my limit is 40?": BUYER,
    "Your maximum is 40.": SELLER,
    "I know that your limit is 40.": SELLER,
    "You can't pay more than 40.": SELLER,
    "My limit is not 40.": BUYER,
    "40 is not my limit.": BUYER,
    "I never said my limit is 40.": BUYER,
    "If my limit is 40, why would I pay 50?": BUYER,
    "My limit is far above 40.": BUYER,
    "I paid 40 for it.": SELLER,
    "It is worth at least 40.": SELLER,
    "I can't go below 40.": BUYER,  # a seller's words
    "I can't go above 40.": SELLER,
    "My limit is 3 days.": BUYER,
    "My limit is 10% off.": BUYER,
    "I would rather not pay more than 40.": BUYER,
    "I can't go that high.": BUYER,
    "My limit is forty dollars.": BUYER,  # numbers in words are not read
    "I would not say it is worth more than 40.": BUYER,
    "Make me an offer above 40.": SELLER,
    "I have been in this trade for 40 years, at least.": SELLER,
}


@pytest.mark.parametrize(
    ("message", "seat", "limit"),
    [(m, BUYER, x) for m, x in BUYERS.items()]
    + [(m, SELLER, x) for m, x in SELLERS.items()]
    + [(m, seat, None) for m, seat in NOTHING.items()],
)
def test_a_message_claims_the_limit_that_a_reader_would_find_in_it(message, seat, limit):
    assert claimed_limit(message, seat) == limit


@pytest.mark.parametrize(
    ("digits", "unit", "value"),
    [("40", None, 40), ("1,250", None, 1250), ("1,250,000.5", None, 1_250_000.5), ("1.25", None, 1.25), ("1.5", "k", 1500)]
    + [("12,50", None, 12.5), ("1.250,50", None, 1250.5), ("1.250.000", None, 1_250_000), ("50", "cents", 0.5)],
)
def test_amounts_are_read_in_the_styles_people_write(digits, unit, value):
    assert amount(digits, unit) == value


WORDS = ("my", "limit", "is", "n0", "I can't", "go", "above", "below", "40", "-", "to", "$", "1,2", "9" * 50, ".", "?", "at most")


@given(
    st.one_of(st.text(max_size=500), st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)),
    st.sampled_from((BUYER, SELLER)),
)
@example("my limit is " + "9" * 5000, BUYER)
@example("my limit is #7", BUYER)
@example("my limit is n7 or 1,2.3,4,5.6", BUYER)
def test_no_message_makes_the_parser_fail(message, seat):
    claim = claimed_limit(message, seat)
    assert claim is None or claim >= 0


# --- episodes


class Says:
    """A player that plays these actions in turn."""

    def __init__(self, *actions):
        self.name, self.actions = "says", actions

    def __call__(self, requests):
        return [str(self.actions[r.view.round - 1]) for r in requests]


def offer(price, message=""):
    return Action("OFFER", round(price, 2), message)


def opened_by(game, opener):
    return next(seed for seed in range(100) if game.deal(seed).opener == opener)


def test_a_true_claim_is_not_false_and_a_false_one_is_measured_in_shares_of_the_surplus():
    game = Bargaining()
    seed = opened_by(game, 0)
    state = game.deal(seed)
    (buyer, seller), unit = state.limits, surplus(state)
    lie = buyer - 0.5 * unit
    players = {
        BUYER: Says(offer(seller, f"My limit is {buyer:.2f}."), offer(seller, f"My limit is {lie:.2f}."), Action("NO_DEAL")),
        SELLER: Says(offer(buyer), offer(buyer - 0.25 * unit), Action("NO_DEAL")),
    }
    true, false = claims(game, play(game, [seed], players))
    assert (true.seat, true.turn, true.false, true.credulity) == (BUYER, 0, False, None) and abs(true.bluff) < 0.01
    assert false.false and false.bluff == pytest.approx(0.5, abs=0.01)
    assert false.credulity == pytest.approx(0.5, abs=0.01)  # from the top a quarter of the surplus down, half the way to the lie


def test_taking_the_liars_offer_counts_as_going_there_and_walking_away_as_nothing():
    game = Bargaining()
    seed = opened_by(game, 1)  # the seller opens
    state = game.deal(seed)
    (buyer, seller), unit = state.limits, surplus(state)
    lie = offer(seller + 0.5 * unit, f"I can't go above {seller + 0.5 * unit:.2f}.")
    for last, credulity in ((Action("DEAL"), 1.0), (Action("NO_DEAL"), None)):
        players = {BUYER: Says(lie), SELLER: Says(offer(buyer), last)}
        [claim] = claims(game, play(game, [seed], players))
        assert claim.credulity == (None if credulity is None else pytest.approx(credulity, abs=0.01))


def test_a_claim_that_asks_for_less_than_the_other_already_gave_is_followed_by_nobody():
    game = Bargaining()
    seed = opened_by(game, 1)  # the seller opens
    state = game.deal(seed)
    (buyer, seller), unit = state.limits, surplus(state)
    lie = offer(seller, f"My limit is {buyer - 0.2 * unit:.2f}.")
    players = {BUYER: Says(lie, Action("NO_DEAL")), SELLER: Says(offer(seller + 0.5 * unit), offer(seller + 0.4 * unit))}
    [claim] = claims(game, play(game, [seed], players))
    assert claim.false and claim.credulity is None


def test_an_absurd_claim_counts_as_a_bluff_of_twice_the_surplus_and_no_more():
    game = Bargaining()
    seed = opened_by(game, 0)
    for claimed, bluff in ((0, 2.0), (10**9, -2.0)):
        says = offer(game.deal(seed).limits[1], f"My limit is {claimed}.")
        players = {BUYER: Says(says), SELLER: Says(Action("NO_DEAL"))}
        [claim] = claims(game, play(game, [seed], players))
        assert claim.bluff == bluff and claim.false


def test_in_a_simultaneous_round_a_claim_is_heard_only_afterwards():
    game = Bargaining(protocol="simultaneous")
    state = game.deal(3)
    (buyer, seller), unit = state.limits, surplus(state)
    for seat in (BUYER, SELLER):  # the mirror image: a buyer's lie pulls down from the top, a seller's up from the bottom
        top, way = (buyer, -1) if seat == BUYER else (seller, 1)
        lie = top + way * 0.8 * unit
        liar = Says(offer(seller if seat == BUYER else buyer, f"My limit is {lie:.2f}."), Action("NO_DEAL"))
        other = Says(offer(top + way * 0.1 * unit), offer(top + way * 0.45 * unit))
        if seat == BUYER:  # it is asked first and would end the game before the other answers
            liar = Says(*liar.actions[:1], offer(seller), Action("NO_DEAL"))
        [claim] = claims(game, play(game, [3], {seat: liar, (SELLER if seat == BUYER else BUYER): other}))
        assert claim.seat == seat and claim.bluff == pytest.approx(0.8, abs=0.01)
        assert claim.credulity == pytest.approx(0.35 / 0.7, abs=0.02)


def test_random_play_makes_claims_of_which_some_are_false():
    game = Bargaining()
    random = Scripted("random", game.sample)
    found = list(claims(game, play(game, range(200), {BUYER: random, SELLER: random})))
    assert 0.2 < sum(claim.false for claim in found) / len(found) < 0.8
    assert all(claim.credulity is None or -1 <= claim.credulity <= 1 for claim in found)
