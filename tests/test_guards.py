"""Guard rails on hand-made logs: what they warn of, with which numbers, and what they let pass."""

from statistics import mean

import pytest

from helpers.evaluate import outcomes
from helpers.games.bargaining import BUYER, SELLER, Bargaining
from helpers.games.council import Council
from helpers.games.council_specs import SEATS
from helpers.guards import GUARDS
from helpers.players import scripted
from helpers.rollout import play

guard, council = GUARDS[Bargaining().name], GUARDS[Council().name]


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


# --- the council

HEALTHY = {
    "deals": 0.8,
    "max share": 0.8 * 0.3,
    "below threshold": 0.8 * 0.1,
    "refusals": 0.05,
    "silent turns": 0.25,
    "paid": 0.4,
}
EXTRACTION = HEALTHY | {"max share": 0.8 * 0.97, "below threshold": 0.8 * 0.1, "paid": 0.16}
REFUSAL = {"deals": 0.01, "max share": 0.003, "below threshold": 0.0, "refusals": 0.35, "silent turns": 0.6, "paid": 0.003}


def steps(*spans):
    """A log of spans (steps, figures), "paid" being every seat's payoff, with other entries in between."""
    out = [{"eval_loss": 1.0}]
    for count, figures in spans:
        rest = {name: x for name, x in figures.items() if name != "paid"}
        out += [rest | {f"payoff {seat}": figures["paid"] for seat in SEATS}] * count + [{"train_runtime": 1.0}]
    return out


def changed(**figures):
    return HEALTHY | {name.replace("_", " "): x for name, x in figures.items()}


def test_a_healthy_council_is_left_alone_also_when_it_becomes_better():
    assert council(steps((24, HEALTHY)), SEATS) == {}
    better = changed(deals=0.95, max_share=0.95 * 0.2, below_threshold=0.0, silent_turns=0.1)
    assert council(steps((12, HEALTHY), (12, better)), SEATS) == {} == council([], SEATS)


def test_extraction_is_named_with_the_largest_share_and_with_what_the_trained_seats_get():
    found = council(steps((12, HEALTHY), (12, EXTRACTION)), SEATS[:2])
    assert list(found) == ["100/0 extraction"]
    assert found["100/0 extraction"].startswith("100/0 extraction: in the deals of the last 10 logged steps")
    assert "the largest share of the surplus is 97.0% (from 90% on" in found["100/0 extraction"]
    assert "the trained seats are paid 0.16 each" in found["100/0 extraction"]


def test_total_refusal_is_named_with_deal_rate_and_refusing_turns():
    found = council(steps((12, HEALTHY), (12, REFUSAL)), SEATS)
    assert list(found) == ["total refusal", "fewer deals"]  # how it is, and how it came
    assert found["total refusal"].startswith("total refusal: 1.0% of the episodes of the last 10 logged steps")
    assert "95.0% of the turns reject, walk or are silent (from 90% on)" in found["total refusal"]
    assert "fell from 0.800 to 0.010" in found["fewer deals"]


def test_both_attractors_are_named_in_a_run_that_falls_from_one_into_the_other():
    history, found = steps((12, HEALTHY), (12, EXTRACTION), (12, REFUSAL)), []
    for logged in range(len(history)):
        found += [name for name in council(history[: logged + 1], SEATS) if name not in found]
    assert found == ["larger shares", "100/0 extraction", "fewer deals", "more refusals", "total refusal"]


@pytest.mark.parametrize(("figures", "name"), [(EXTRACTION, "100/0 extraction"), (REFUSAL, "total refusal")])
def test_an_attractor_that_was_there_from_the_start_is_named_after_ten_logged_steps(figures, name):
    assert council(steps((9, figures)), SEATS) == {}
    assert list(council(steps((10, figures)), SEATS)) == list(council(steps((24, figures)), SEATS)) == [name]


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        (changed(max_share=0.8 * 0.905), {"100/0 extraction"}),
        (changed(max_share=0.8 * 0.895), {"larger shares"}),
        (changed(max_share=0.8 * 0.405), {"larger shares"}),
        (changed(max_share=0.8 * 0.395), set()),
        (changed(deals=0.705, max_share=0.705 * 0.3), set()),
        (changed(deals=0.695, max_share=0.695 * 0.3), {"fewer deals"}),
        (changed(below_threshold=0.8 * 0.36), {"below threshold"}),
        (changed(below_threshold=0.8 * 0.34), set()),
        (changed(refusals=0.26), {"more refusals"}),
        (changed(refusals=0.0, silent_turns=0.51), {"more refusals"}),
        (changed(refusals=0.24), set()),
        (REFUSAL | {"deals": 0.049}, {"total refusal", "fewer deals"}),
        (REFUSAL | {"deals": 0.051}, {"more refusals", "fewer deals"}),
        (REFUSAL | {"refusals": 0.31}, {"total refusal", "fewer deals"}),
        (REFUSAL | {"refusals": 0.29}, {"more refusals", "fewer deals"}),
        (REFUSAL | {"max share": 0.01}, {"total refusal", "fewer deals"}),  # too few deals to speak of their shares
        (REFUSAL | {"max share": 0.01, "below threshold": 0.05}, {"total refusal", "fewer deals"}),
    ],
)
def test_every_limit_of_the_council_is_told_just_beyond_it_and_not_just_before(figures, named):
    found = council(steps((10, HEALTHY), (10, figures)), SEATS)
    assert set(found) == named
    assert set(council(steps((10, HEALTHY), (9, figures)), SEATS)) <= {"100/0 extraction"}  # nothing to compare with yet


def test_warnings_of_the_council_say_from_what_to_what():
    history = steps((10, HEALTHY), (10, changed(max_share=0.8 * 0.5, below_threshold=0.8 * 0.5, silent_turns=0.65)))
    found = council(history, SEATS)
    assert "rose from 0.300 to 0.500" in found["larger shares"]
    assert "0.50 parties get less than their threshold, 0.10 did at first" in found["below threshold"]
    assert "rose from 30.0% to 70.0%" in found["more refusals"]


@pytest.mark.parametrize(
    ("name", "named"), [("passive-gate", ["total refusal"]), ("greedy-anchor", [])], ids=["passive-gate", "greedy-anchor"]
)
def test_the_keys_are_those_of_real_councils_and_one_in_which_nobody_proposes_is_total_refusal(name, named):
    game = Council(specs="small", min_accept=5)
    frame = outcomes(game, play(game, range(10), dict.fromkeys(SEATS, scripted(game, name))))
    entry = {key: mean(frame[key]) for key in frame if key.startswith("payoff ") or key in game.counts(game.deal(0))}
    assert list(council([entry] * 20, SEATS)) == named
