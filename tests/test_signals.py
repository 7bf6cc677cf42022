"""The support desk's signals and measures, on episodes written by hand: the seed is the first whose ticket is billing's and is
not to be escalated."""

from dataclasses import replace

import pytest

from helpers.desk import metrics
from helpers.evaluate import Interval
from helpers.games.support import MANAGER, Bid, Evaluate, Execute, Support
from helpers.games.tickets import DOMAINS
from helpers.players import random_player
from helpers.rewards import DESK, EPISODE_TERMS, SIGNALS
from helpers.rollout import play
from helpers.signals import WEIGHTS, replayed, reward, tallies

GAME = Support()
SEED = next(seed for seed in range(99) if (t := GAME.deal(seed).ticket).category == "billing" and not t.escalate)
RIGHT = Execute("billing", GAME.deal(SEED).ticket.solutions[0])
APPROVE, REBID = Evaluate("approve"), Evaluate("rebid")
PERFECT = (Bid(0.0), Bid(1.0), Bid(0.0), RIGHT, APPROVE)


class Says:
    name = "says"

    def __init__(self, replies):
        self.replies = list(map(str, replies))

    def __call__(self, requests):
        return [self.replies.pop(0) for _ in requests]


def episode(*replies):
    """The episode in which the seats reply this in turn."""
    [found] = play(GAME, [SEED], dict.fromkeys(GAME.seats, Says(replies)))
    return found


def changed(at, reply):
    """PERFECT with one reply changed."""
    return (*PERFECT[:at], reply, *PERFECT[at + 1 :])


def test_a_perfect_winners_episode_earns_exactly_1_and_the_others_their_share():
    assert reward(episode(*PERFECT), "billing") == pytest.approx(1.0, abs=1e-12)
    assert reward(episode(*PERFECT), "technical") == pytest.approx(0.15 + 0.20)
    assert reward(episode(*PERFECT), MANAGER) == pytest.approx(0.20)


TWICE = (*PERFECT[:4], REBID)
# signal: (seat, replies, the same with only one reply of that seat changed, value before, value after)
FLIPS = {
    "correct_specialist_bid": ("billing", changed(0, Bid(0.5)), (Bid(0.5), Bid(0.4), *PERFECT[2:]), 1, 0),
    "correct_solution": ("billing", PERFECT, changed(3, Execute("billing", "none")), 1, 0),
    "appropriate_confidence": ("technical", PERFECT, changed(0, Bid(0.5)), 1, 0.75),
    "solution_format": ("billing", PERFECT, changed(3, "refund it"), 1, 0),
    "team_success_bonus": (MANAGER, PERFECT, changed(4, Evaluate("escalate")), 1, 0),
    "wrong_specialist": ("account", changed(1, Bid(0.5)), (Bid(0), Bid(0.5), Bid(0.6), *PERFECT[3:]), 0, -1),
    "wrong_solution": ("billing", PERFECT, changed(3, Execute("account", RIGHT.solution)), 0, -1),
    "overconfident": ("account", changed(2, Bid(0.8)), changed(2, Bid(0.81)), 0, -1),
    "team_failure_penalty": (MANAGER, PERFECT, changed(4, Evaluate("escalate")), 0, -1),
    "invalid_bid": ("technical", PERFECT, changed(0, Bid(-0.5)), 0, -1),
    "timeout": (MANAGER, (*TWICE, *PERFECT), (*TWICE, *TWICE), 0, -1),
}


def test_there_are_the_cards_eleven_signals_with_its_weights():
    assert set(SIGNALS) == set(FLIPS)
    weights = [weight for weight, _ in WEIGHTS.values()]
    assert weights == [0.30, 0.30, 0.15, 0.05, 0.20, 0.20, 0.20, 0.10, 0.10, 0.05, 0.15]


@pytest.mark.parametrize("name", FLIPS)
def test_a_signal_flips_when_only_the_reply_it_judges_changes(name):
    seat, before, after, value, other = FLIPS[name]
    assert SIGNALS[name].value(episode(*before), seat) == value
    assert SIGNALS[name].value(episode(*after), seat) == other


def test_an_unusable_bid_of_0_earns_no_confidence_and_a_wrong_first_round_is_not_forgotten():
    assert SIGNALS["appropriate_confidence"].value(episode(*changed(0, "no")), "technical") == 0
    first = (Bid(1.0), Bid(0), Bid(0), Execute(), REBID)
    mended = episode(*first, *PERFECT)
    for name in ("wrong_specialist", "wrong_solution", "overconfident"):
        assert SIGNALS[name].value(mended, "technical") == -1
    assert SIGNALS["team_success_bonus"].value(mended, "technical") == 1


def test_the_signals_of_random_play_stay_in_their_bounds_and_none_is_constant_but_the_flag_for_invalid_bids():
    episodes = play(GAME, range(60), dict.fromkeys(GAME.seats, random_player(GAME)))
    for name, term in SIGNALS.items():
        values = {term.value(each, seat) for each in episodes for seat in GAME.seats}
        assert all(term.low <= value <= term.high for value in values), name
        assert len(values) > 1 or name == "invalid_bid"
    assert all(-0.8 <= reward(each, seat) <= 1 for each in episodes for seat in GAME.seats)


def test_the_measures_are_ratios_of_sums_over_episodes():
    good, bad = episode(*PERFECT), replace(episode(*changed(4, Evaluate("escalate"))), seed=SEED)
    assert tallies(good)["team success"] == (True, 1) and tallies(good)["success billing"] == (True, True)
    assert tallies(good)["Brier score"] == (0, 3) and tallies(good)["manager right"] == (1, 1)
    assert tallies(bad)["escalation precision"] == (False, True) and tallies(bad)["manager right"] == (0, 1)
    assert tallies(episode(*changed(0, Bid(0.5))))["Brier score"] == (0.25, 3)
    assert tallies(episode(*TWICE, *TWICE))["time-outs"] == (True, 1)


def test_measures_of_random_play_have_an_interval_each_around_what_chance_gives():
    found = metrics(play(GAME, range(200), dict.fromkeys(GAME.seats, random_player(GAME))))
    assert all(isinstance(each, Interval) and each.low <= each.value <= each.high for each in found.values())
    assert {f"success {domain}" for domain in DOMAINS} <= set(found)
    assert found["routed right"].low < 1 / 3 < found["routed right"].high
    assert found["Brier score"].low < 1 / 3 < found["Brier score"].high  # a uniform bid: 1/3 whatever the truth


def test_as_a_rubric_of_self_play_the_signals_add_up_to_the_reward_and_share_one_replay_of_an_episode():
    played = episode(*PERFECT)
    replayed.cache_clear()
    for seat in GAME.seats:
        terms = [weight * EPISODE_TERMS[name].value(played, seat) for name, weight in DESK.weights.items()]
        assert len(terms) == 11 and sum(terms) == pytest.approx(reward(played, seat))
    assert replayed.cache_info().misses == 1
