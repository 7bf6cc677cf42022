"""What the rubrics pay: bounded terms, luck shared within a group, form never an income, and a gallery that can not win."""

import json
from dataclasses import replace
from functools import cache
from math import log
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixed import walk

from helpers import GAMES
from helpers.gallery import EXAMPLES, GALLERY, earnings, score
from helpers.game import replay
from helpers.games.bargaining import DEAL, NO_DEAL, OFFER, Action, Bargaining
from helpers.games.council import Council
from helpers.games.council_specs import SEATS
from helpers.games.market import PROJECTS, READY, UNITS, Greedy, Market, moved, useful
from helpers.players import WAITING, Scripted, competent, random_player, scripted
from helpers.rewards import (
    ACHIEVEMENTS,
    EPISODE_TERMS,
    FLOOR,
    LOOK_AHEAD,
    RUBRICS,
    TERMS,
    Rubric,
    attainable_after,
    council,
    judge,
    log_surplus,
    rubric,
    surplus_terms,
)
from helpers.rollout import Episode, play

GAME = Market()
BARGAINING = Bargaining()
TABLES = {**GAMES, "bargaining": BARGAINING}
POINT = EXAMPLES["bargaining"].seed, EXAMPLES["bargaining"].actions
BAD = ("nothing", "pass() build_project()", "accept_trade(t99)", "propose_trade(B, {Iron: 99}, {Coal: 1})", "")


def judged(seeds, replies=(), every=1):
    """Judgements of a legal random, a competent and bad replies at decision points of mixed play."""
    for seed in seeds:
        for actions, state in list(walk(GAME, seed))[:-1][::every]:
            view, rng = GAME.view(state, GAME.turn(state)), Random(seed)
            said = [str(GAME.sample(view, rng)), str(competent(GAME)(view, rng)), *BAD, *replies]
            yield from judge(GAME, seed, actions, said)


def test_every_term_says_what_it_means_and_stays_within_its_declared_bounds():
    seen = {name: [] for name in TERMS}
    for judgement in judged(range(12)):
        for name, term in TERMS.items():
            seen[name].append(term.value(judgement))
    for name, term in TERMS.items():
        assert term.says and term.name == name
        assert term.low <= min(seen[name]) < max(seen[name]) <= term.high


@given(seed=st.integers(0, 999), at=st.integers(0, 39), reply=st.text(max_size=60))
def test_any_reply_gets_a_reward_within_the_bounds_of_its_rubric(seed, at, reply):
    points = list(walk(GAME, seed))[:-1]
    [judgement] = judge(GAME, seed, points[at % len(points)][0], [reply])
    for each in RUBRICS.values():
        low = sum(weight * TERMS[name].low for name, weight in each.weights.items())
        high = sum(weight * TERMS[name].high for name, weight in each.weights.items())
        assert low <= each.reward(judgement) <= high


def test_the_same_reply_gets_the_same_reward_in_a_group_and_in_another_group():
    for seed in range(8):
        for actions, state in list(walk(GAME, seed))[:-1:3]:
            reply = str(competent(GAME)(GAME.view(state, GAME.turn(state)), Random(0)))
            rewards = [
                RUBRICS["default"].reward(j) for j in judge(GAME, seed, actions, [reply, "pass()", reply, "nonsense", reply])
            ]
            [alone] = judge(GAME, seed, actions, [reply])
            assert rewards[0] == rewards[2] == rewards[4] == RUBRICS["default"].reward(alone)


def test_different_replies_that_lead_to_the_same_state_get_the_same_reward():
    replies = ("form_coalition([A, B], share goods)", "I suggest:\n```\nForm_Coalition( [b, a], let us work together )\n```")
    first, second = judge(GAME, 5, [], replies)
    assert first.after == second.after and str(first.action) != str(second.action)
    for each in RUBRICS.values():
        assert each.terms(first) == each.terms(second)


def test_a_rewards_difference_comes_from_the_reply_so_idling_changes_nothing():
    for seed in range(10):
        for actions, _ in list(walk(GAME, seed))[:-1:3]:
            [idle] = judge(GAME, seed, actions, [str(GAME.fallback(None))])
            assert set(idle.change.values()) == {0.0} and RUBRICS["default"].reward(idle) == 0.0


def test_playing_on_moves_every_partner_and_idles_the_judged_seat():
    state = GAME.deal(1)
    movers, at = [], state
    for _ in range(LOOK_AHEAD):
        movers.append(GAME.turn(at))
        at = GAME.step(at, GAME.fallback(None))
    assert set(movers) == set(GAME.seats)
    assert attainable_after(GAME, state, "A", "x") == attainable_after(GAME, state, "A", "x")
    assert attainable_after(GAME, state, "A", "x")["A"] <= GAME.payoff_range[1]


def test_one_decision_point_in_three_has_partners_who_take_up_offers_and_there_all_good_offers_are_worth_the_same():
    """An offer of one spare unit for a missing one to a seat that misses it: each side gains one unit of UNITS, if taken up."""
    taken = []
    for seed in range(300):
        seen = set()
        state = GAME.deal(seed)
        for offer in Greedy()._offers(GAME.view(state, "A"), 0, state.holdings[0], PROJECTS[state.goals[0]]):
            you = GAME.seats.index(offer.to)
            gain = useful(moved(state.holdings[you], offer.get, offer.give), state.goals[you]) - useful(
                state.holdings[you], state.goals[you]
            )
            if gain == offer.get[0][1] == 1:
                [judgement] = judge(GAME, seed, [], [str(offer)])
                seen.add((round(judgement.change["A"], 9), round(judgement.change[offer.to], 9)))
        assert len(seen) <= 1
        taken += seen
    assert set(taken) == {(0.0, 0.0), (round(READY / UNITS, 9),) * 2}
    assert 0.23 < sum(change > 0 for change, _ in taken) / len(taken) < 0.43 and len(taken) > 90


def test_adding_nothing_is_idling_but_in_bargaining_where_it_is_standing_by_ones_offer():
    for game in (GAME, Council(specs="small", rounds=2)):
        for _, state in list(walk(game, 3))[:-1]:
            view = game.view(state, game.turn(state))
            assert WAITING[game.name](view, None) == game.fallback(view)
    state = replay(BARGAINING, *POINT)  # the buyer has offered 33, the seller asks 43.50
    view = BARGAINING.view(state, "buyer")
    assert WAITING["bargaining"](view, None) == Action(OFFER, 33.0)
    assert WAITING["bargaining"](replace(view, standing=33.0), None) == Action(DEAL)


def test_at_the_opening_of_bargaining_prices_that_nobody_takes_at_once_are_told_apart():
    """The seat stands by its offer: the partner, who ends at its limit, takes it sooner or later, or never. What it gives away
    is lost, and what it asks too much is worth no more than walking away."""
    for seed in range(30):
        state = BARGAINING.deal(seed)
        if BARGAINING.turn(state) == "seller":
            continue
        buyer, seller = state.limits
        prices = [seller - 1.0, *(round(seller + share * (buyer - seller), 2) for share in (0.1, 0.4, 0.7)), buyer + 1.0]
        too_little, *fair, loss = judge(BARGAINING, seed, [], [str(Action(OFFER, price)) for price in prices])
        paid = [TERMS["own"].value(j) for j in fair]
        assert paid == sorted(paid, reverse=True) and paid[0] > paid[2] > 0, (seed, paid)
        assert TERMS["own"].value(too_little) == TERMS["table"].value(too_little) == 0.0
        assert TERMS["own"].value(loss) == -1.0


def test_no_gain_of_the_other_side_makes_up_for_a_loss():
    deal, gift, walk_away = judge(BARGAINING, *POINT, [str(Action(DEAL)), str(Action(OFFER, 44.0)), str(Action(NO_DEAL))])
    assert -1 < deal.change["buyer"] < 0 < deal.change["seller"]  # 43.50 is 1.03 above the buyer's limit
    for loss in (deal, gift):
        assert RUBRICS["default"].terms(loss)["own"] == -1.0 and RUBRICS["default"].reward(loss) < -0.5
    assert RUBRICS["default"].reward(walk_away) == 0.0


def test_the_cards_environment_pays_for_what_the_game_counts_as_achieved():
    for game, pays in ACHIEVEMENTS.items():
        assert pays.keys() <= TABLES[game].counts(TABLES[game].deal(0)).keys()
    deal, offer = judge(BARGAINING, *POINT, [str(Action(DEAL)), str(Action(OFFER, 38.0))])
    assert [TERMS["card_environment"].value(j) for j in (deal, offer)] == [1.0, 0.0]


def test_form_only_penalises_and_is_the_only_difference_between_an_unusable_reply_and_idling():
    for judgement in judged(range(8), every=3):
        form = TERMS["form"].value(judgement)
        assert form == (-1.0 if judgement.error else 0.0)
        if judgement.error:
            assert RUBRICS["default"].reward(judgement) == pytest.approx(-RUBRICS["default"].weights["form"])


def test_form_is_no_income_in_the_default_rubric():
    assert RUBRICS["default"].weights["form"] > 0 and TERMS["form"].high == 0
    assert not [name for name in RUBRICS["default"].weights if name.startswith("card")]


def test_honest_tries_are_worth_more_than_idling():
    gained = [
        RUBRICS["default"].reward(judge(GAME, seed, actions, [reply])[0])
        for seed in range(20)
        for actions, state in list(walk(GAME, seed))[:-1:4]
        if not (reply := str(competent(GAME)(GAME.view(state, GAME.turn(state)), Random(1)))).startswith(("pass", "form"))
    ]
    assert len(gained) > 50
    assert sum(gained) / len(gained) > 0.1
    assert sum(reward < 0 for reward in gained) < 0.25 * len(gained)


def test_building_is_worth_more_than_waiting_with_a_complete_project():
    builds = [
        (seed, episode.actions[:i])
        for seed in range(10)
        for episode in play(GAME, [seed], dict.fromkeys(GAME.seats, Scripted("competent", competent(GAME))))
        for i, action in enumerate(episode.actions)
        if action == "build_project()"
    ]
    assert len(builds) > 20
    for seed, actions in builds:
        build, wait = judge(GAME, seed, actions, ["build_project()", "pass()"])
        own = RUBRICS["default"].terms(build)["own"]  # half of 5 - 4, give or take what it does to a coalition's hopes
        assert own >= 0.25 and RUBRICS["default"].terms(wait)["own"] == 0.0


def test_the_card_pays_for_actions_whether_or_not_the_rules_allow_them():
    [wrong_id, idle, prose] = judge(GAME, 0, [], ["accept_trade(abc123)", "pass()", "hello"])
    assert [RUBRICS["card"].reward(j) for j in (wrong_id, idle, prose)] == pytest.approx([0.5 + 0.3, 0.5, -0.3])


# --- rubrics


@pytest.mark.parametrize("name", RUBRICS)
def test_a_rubric_is_found_by_name_and_survives_json(name):
    assert rubric(name) is RUBRICS[name]
    assert rubric(RUBRICS[name].to_json()) == RUBRICS[name]


def test_a_rubrics_reward_is_the_weighted_sum_of_its_terms():
    for judgement in judged(range(2), every=5):
        mixed = Rubric("mixed", {"own": 2, "form": -0.5, "card_format": 1})
        terms = mixed.terms(judgement)
        assert mixed.reward(judgement) == pytest.approx(2 * terms["own"] - 0.5 * terms["form"] + terms["card_format"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("defalt", "name .default, card.*'defalt'"),
        ("", "expected a rubric"),
        ("[1]", "expected a rubric"),
        ('{"weights": {"own": 1}}', "expected a rubric"),
        ('{"name": "x"}', "expected a rubric"),
        ('{"name": "x", "weights": 3}', "expected a rubric"),
        ('{"name": "x", "weights": {}}', "expected weights for some of form, own.*none"),
        ('{"name": "x", "weights": {"owm": 1}}', "'owm'"),
        ('{"name": "x", "weights": {"own": "1"}}', "from -100 to 100 for own, got '1'"),
        ('{"name": "x", "weights": {"own": true}}', "got True"),
        ('{"name": "x", "weights": {"own": NaN}}', "got nan"),
        ('{"name": "x", "weights": {"own": 101}}', "got 101"),
    ],
)
def test_a_text_that_is_no_rubric_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        rubric(text)


# --- the hacking gallery

SEEDS = range(40)


@cache
def earned(game_name):
    return {name: earnings(TABLES[game_name], strategy, SEEDS) for name, strategy in GALLERY[game_name].items()}


def scores(rubric_name, game_name="market") -> dict[str, float]:
    """What a rubric pays each strategy of a game's gallery in an episode."""
    weights = RUBRICS[rubric_name].weights
    return {name: sum(weights[term] * terms[term] for term in weights) for name, terms in earned(game_name).items()}


def test_every_game_has_a_gallery_that_opens_with_a_good_strategy_and_holds_bad_and_cheating_ones():
    assert set(GALLERY) >= set(GAMES)
    for strategies in GALLERY.values():
        kinds = [strategy.kind for strategy in strategies.values()]
        assert kinds[0] == "good" and set(kinds) == {"good", "bad", "cheating"}
        assert all(strategy.name == name and strategy.says for name, strategy in strategies.items())


@pytest.mark.parametrize("game", GALLERY)
def test_under_the_default_rubric_no_degenerate_strategy_outscores_the_good_one(game):
    paid, kinds = scores("default", game), {name: strategy.kind for name, strategy in GALLERY[game].items()}
    good = min(paid[name] for name in paid if kinds[name] == "good")
    assert good > 0 and all(paid[name] < good for name in paid if kinds[name] != "good"), paid


def test_under_the_default_rubric_idling_and_junk_earn_nothing_and_spam_loses():
    paid = scores("default")
    assert paid["pass forever"] == 0.0
    assert abs(paid["junk offers"]) < 0.2
    assert all(paid[name] < -2 for name in ("spam reject", "made-up id", "two actions"))  # at most ten turns at -0.5


def test_under_the_cards_rubric_spam_outscores_the_good_strategy():
    paid = scores("card")
    for spam in ("spam reject", "made-up id", "junk offers", "wash trader"):
        assert paid[spam] > paid["greedy"], spam
    assert paid["spam reject"] == pytest.approx(10 * (0.5 + 0.3))  # ten turns, each "valid" and not pass()


def test_under_the_cards_rubric_stalling_in_bargaining_outscores_the_good_strategy_and_signing_early_scores_little():
    paid = scores("card", "bargaining")
    assert paid["stall"] > paid["linear"] > paid["sign anything"]
    assert paid["junk offers"] == pytest.approx(4 * (0.5 + 0.3))  # four turns, each "valid" and not walking away
    assert paid["made-up deal"] == pytest.approx(0.5 + 0.3) and paid["walk away"] == pytest.approx(0.5)


def test_a_score_is_the_weighted_sum_of_the_earnings():
    strategy = GALLERY["market"]["always accept"]
    own = Rubric("own only", {"own": 2.0})
    assert score(GAME, strategy, own, range(5)) == pytest.approx(2 * earnings(GAME, strategy, range(5))["own"])
    assert json.loads(own.to_json())["weights"] == {"own": 2.0}


# --- the council's episodes

COUNCIL = Council(specs="small", rounds=2, min_accept=4)
NOTHING = log(0.01) - 1  # games.md: -5.605


@cache
def councils() -> list[Episode]:
    """Episodes of random and of rational parties, with deals and without, some below a threshold."""
    out = []
    for player in (random_player(COUNCIL), scripted(COUNCIL, "conceder"), scripted(COUNCIL, "greedy-anchor")):
        out += play(COUNCIL, range(40), dict.fromkeys(SEATS, player))
    return out


def paid(*payoffs) -> Episode:
    """A council episode that ended with these payoffs."""
    return replace(councils()[0], payoffs=dict(zip(SEATS, payoffs, strict=True)))


def reward(episode, seat, lam, floored=False) -> float:
    return sum(weight * EPISODE_TERMS[name].value(episode, seat) for name, weight in council(lam, floored).weights.items())


def test_the_log_of_a_surplus_has_the_same_value_and_slope_on_both_sides_of_one_hundredth():
    at, step = 0.01, 1e-7
    below, above = log_surplus(at - step), log_surplus(at + step)
    assert log_surplus(at) == log(0.01)
    assert below == pytest.approx(log(0.01), abs=2e-5) and above == pytest.approx(log(0.01), abs=2e-5)
    assert (log_surplus(at) - below) / step == pytest.approx(1 / 0.01, rel=1e-4)
    assert (above - log_surplus(at)) / step == pytest.approx(1 / 0.01, rel=1e-4)
    assert log_surplus(-3.0) == pytest.approx(log(0.01) - 301)  # (-3 - .01) / .01
    assert log_surplus(0.5) == log(0.5) and log_surplus(0.011) == log(0.011) and log_surplus(1.0) == 0.0


def test_the_log_of_a_surplus_rises_everywhere():
    rng = Random(0)
    for low, high in (sorted((rng.uniform(-9, 1), rng.uniform(-9, 1))) for _ in range(500)):
        assert log_surplus(low) < log_surplus(high)


@pytest.mark.parametrize("floored", [False, True])
@pytest.mark.parametrize("lam", [0, 0.3, 1])
def test_no_deal_gives_every_seat_the_same_whatever_lambda_and_floor(lam, floored):
    [episode] = play(COUNCIL, [0], dict.fromkeys(SEATS, scripted(COUNCIL, "passive-gate")))
    assert set(episode.payoffs.values()) == {0.0}
    for seat in SEATS:
        assert reward(episode, seat, lam, floored) == pytest.approx(NOTHING) == pytest.approx(-5.605, abs=5e-4)


@pytest.mark.parametrize("floored", [False, True])
def test_the_mean_reward_of_the_seats_is_the_same_for_every_lambda(floored):
    ends = set()
    for episode in councils():
        means = [fmean(reward(episode, seat, lam, floored) for seat in SEATS) for lam in (0, 0.25, 0.5, 1)]
        assert means == pytest.approx([means[0]] * 4)
        ends.add((any(episode.payoffs.values()), min(episode.payoffs.values()) < 0))
    assert ends == {(False, False), (True, False), (True, True)}


def test_lambda_0_pays_a_seat_for_its_own_surplus_and_lambda_1_all_seats_alike():
    episode = paid(1.0, 0.5, 0.0, 0.25, 0.01, 0.1)
    logs = [0.0, log(0.5), NOTHING, log(0.25), log(0.01), log(0.1)]
    assert [reward(episode, seat, 0) for seat in SEATS] == pytest.approx(logs)
    assert [reward(episode, seat, 1) for seat in SEATS] == pytest.approx([fmean(logs)] * 6)
    assert reward(episode, "S2", 0.25) == pytest.approx(0.75 * log(0.5) + 0.25 * fmean(logs))


def test_the_floor_takes_the_place_of_what_lies_below_it_and_of_nothing_else():
    episode = paid(1.0, -0.5, -0.01, 0.0, -0.0239, -0.0241)
    raw = [0.0, log(0.01) - 51, log(0.01) - 2, NOTHING, log(0.01) - 3.39, log(0.01) - 3.41]  # -4.605 - 3.395 = -8
    assert [reward(episode, seat, 0) for seat in SEATS] == pytest.approx(raw)
    assert [reward(episode, seat, 0, True) for seat in SEATS] == pytest.approx([max(x, -8.0) for x in raw])
    assert sum(x < -8 for x in raw) == 2 and FLOOR == -8
    assert reward(episode, "S1", 1, True) == pytest.approx(fmean(max(x, -8.0) for x in raw))


@pytest.mark.parametrize("floor", [NOTHING, -5.6, 0.0, float("nan")])
def test_a_floor_that_would_make_a_deal_below_a_threshold_no_worse_than_none_is_refused(floor):
    with pytest.raises(ValueError, match="expected a floor below -5.605, what no deal gives, got"):
        surplus_terms(floor)
    assert surplus_terms(-5.61)[0].value(paid(*[-9.0] * 6), "S1") == -5.61 < NOTHING


def test_the_councils_terms_stay_within_their_bounds_and_take_them_up():
    low, high = COUNCIL.payoff_range
    for term in (*surplus_terms(), *surplus_terms(FLOOR)):
        assert EPISODE_TERMS[term.name].says == term.says
        for episode in (*councils(), paid(*[low] * 6), paid(*[high] * 6)):
            assert term.low <= term.value(episode, "S3") <= term.high
        assert (term.value(paid(*[low] * 6), "S3"), term.value(paid(*[high] * 6), "S3")) == (term.low, term.high)
    assert surplus_terms(FLOOR)[0].low == FLOOR and -907 < surplus_terms()[0].low < -900


def test_a_lambda_is_a_share_and_its_rubric_logs_both_terms_always():
    assert council(0).weights == {"log_surplus": 1, "mean_log_surplus": 0} and council(0).name == "lam0"
    assert council(0.25, True).weights == {"log_surplus_floored": 0.75, "mean_log_surplus_floored": 0.25}
    assert council(0.25, True).name == "lam0.25-floored" and council(1).name == "lam1"
    for lam in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="expected lam from 0 .* to 1"):
            council(lam)
    assert rubric(council(0.25).to_json()) == council(0.25)
