"""The figures of council episodes, on the table of tests/test_council.py with thresholds of 30, S6's 20. A1 B1 is
rational and gives S1, S3, S5 30/70, S2, S4 10/70 and S6 20/80; so is A2 B3, which gives them 10/70, 30/70 and 40/80."""

import time
from dataclasses import dataclass, replace

import pandas as pd
import pytest
from test_council import NONE, SPEC, WALK, no, offer, yes

from helpers.evaluate import compare
from helpers.games.council import Council, State
from helpers.games.council_specs import NAMES, Spec
from helpers.players import Scripted
from helpers.rollout import play
from helpers.surplus import intervals
from helpers.welfare import MIN_CLUSTERS, OF_RATIONAL, compare_rational, councils, fabricated, gini, offer_path

MILD = replace(SPEC, thresholds=(30, 30, 30, 30, 30, 20))
CLOSE = [yes("P1")] * 5
BEST = (1 / 18) ** (1 / 6)  # A1 B1: of their largest IR surplus S1, S3, S5 get all, S2 and S4 a third, S6 half
SECOND = (1 / 27) ** (1 / 6)  # A2 B3: S1, S3, S5 a third, the others all


@dataclass(frozen=True)
class Fixed(Council):
    """A council in which every episode has the same table and S1 opens."""

    spec: Spec = MILD

    def deal(self, seed):
        return State(self.spec, 0)


GAME = Fixed()
FIVE = Fixed(spec=replace(MILD, min_accept=5))


def episode(*replies, seed=0, game=GAME):
    """One in which the seats reply with these in turn, and are silent afterwards."""
    said = iter(replies)
    table = Scripted("table", lambda view, rng: next(said, NONE))
    return play(game, [seed], dict.fromkeys(game.seats, table))[0]


def figures(*replies, game=GAME):
    return councils(game, [episode(*replies, game=game)]).iloc[0].to_dict()


def test_a_rational_deal_has_its_welfare_regret_and_spread_and_the_best_one_no_regret():
    best = figures(offer(1, 1), *CLOSE)
    assert best["NNW"] == pytest.approx(BEST) and best["regret"] == 0
    assert (best["deal rate"], best["rational deals"], best["below-threshold agreements"]) == (1, 1, 0)
    gains = (30 / 70, 10 / 70, 30 / 70, 10 / 70, 30 / 70, 20 / 80)
    assert best["max share"] == pytest.approx(30 / 70 / sum(gains)) and best["Gini"] == pytest.approx(gini(gains))
    second = figures(offer(2, 3), *CLOSE)
    assert second["NNW"] == pytest.approx(SECOND) and second["regret"] == pytest.approx(BEST - SECOND)
    for found in (best, second):
        assert [found[f"{name} of rational deals"] for name in ("NNW", "Gini", "max share")] == [
            found[name] for name in ("NNW", "Gini", "max share")
        ]


def test_without_a_deal_welfare_and_spread_are_0_the_regret_is_all_and_what_needs_a_rational_deal_is_missing():
    found = figures(offer(1, 1))
    assert [
        found[name] for name in ("NNW", "deal rate", "rational deals", "below-threshold agreements", "Gini", "max share")
    ] == [0] * 6
    assert found["regret"] == pytest.approx(BEST)
    assert all(pd.isna(found[name]) for name in OF_RATIONAL) and len(OF_RATIONAL) == 3


def test_a_deal_below_a_threshold_is_no_rational_one_and_losses_are_no_gains():
    found = figures(offer(1, 2), *CLOSE)  # S1, S3, S5 40/70, S2 and S4 -20/70, S6 -10/80
    assert (found["NNW"], found["deal rate"], found["rational deals"], found["below-threshold agreements"]) == (0, 1, 0, 1)
    assert found["max share"] == pytest.approx(1 / 3) and found["Gini"] == pytest.approx(0.5)  # three of six share alike
    assert found["regret"] == pytest.approx(BEST) and pd.isna(found["NNW of rational deals"])


def test_who_has_walked_away_gains_nothing_from_what_the_others_close():
    found = figures(offer(1, 1), yes("P1"), WALK, *[yes("P1")] * 3, game=FIVE)
    assert (found["NNW"], found["deal rate"], found["rational deals"]) == (0, 1, 1)  # paid 0: not below its threshold
    assert found["regret"] == pytest.approx(BEST)


def test_a_late_deal_of_a_discounted_game_is_worth_less():
    game = Fixed(spec=replace(MILD, discount=0.9))
    late = figures(*[NONE] * 6, offer(1, 1), *CLOSE, game=game)  # 54, 36 and 36 in place of 60, 40 and 40
    assert late["NNW"] == pytest.approx(((24 / 30) ** 3 * (6 / 30) ** 2 * (16 / 40)) ** (1 / 6)) and late["rational deals"] == 1
    assert figures(offer(1, 1), *CLOSE, game=game)["NNW"] == pytest.approx(BEST)


@pytest.mark.parametrize(
    ("paid", "expected"),
    [((1, 1, 1, 1), 0), ((1, 0, 0, 0, 0, 0), 5 / 6), ((1, -9, -9), 2 / 3), ((1, 3), 0.25), ((3, 1), 0.25), ((0, -1), 0)],
)
def test_gini_is_0_when_all_gain_alike_and_close_to_1_when_one_takes_all(paid, expected):
    assert gini(paid) == pytest.approx(expected)


def test_gini_is_half_the_mean_difference_of_all_pairs_over_the_mean():
    paid = (0.3, 0.1, 0.9, 0.2, 0.0, 0.4)
    pairs = [abs(x - y) for x in paid for y in paid]
    assert gini(paid) == pytest.approx(sum(pairs) / len(pairs) / 2 / (sum(paid) / len(paid)))


def test_turns_of_each_kind_are_shares_of_all_replies():
    found = figures(
        *(offer(1, 1), offer(1, 1), no("P1"), "no action", NONE, "no action", '# S3: accept P1\n{"action": "none"}', yes("P9")),
        *(offer(2, 2), offer(1, 1), WALK),  # the end: under unanimity no deal can close any more
    )
    # S2 and, in round 2, S3 propose again what is live; S3 rejects and S4 walks; S4, S5 and S6 are silent, the first two in their
    # second try, S6 because P9 is no offer.
    assert found["turns"] == 11
    expected = {
        "duplicate proposals": 2, "refusals": 2, "silent turns": 3, "fabricated turns": 1, "invalid replies": 3,
    }  # fmt: skip
    assert {name: found[name] * 11 for name in expected} == pytest.approx(expected)


def test_a_proposal_is_a_duplicate_only_while_the_deal_is_live():
    assert figures(offer(1, 1), offer(2, 2), offer(1, 3), offer(1, 1), WALK)["duplicate proposals"] == pytest.approx(1 / 5)
    again = figures(offer(1, 1), *[NONE] * 10, no("P1"), offer(1, 1), game=Fixed(spec=replace(MILD, rounds=3)))
    assert again["duplicate proposals"] == 0 and again["deal rate"] == 0


def test_the_frame_has_a_row_an_episode_and_intervals_over_whole_seeds():
    played = [episode(offer(1, 1), *CLOSE, seed=0), episode(seed=0), episode(offer(2, 3), *CLOSE, seed=1)]
    frame = councils(GAME, played)
    assert list(frame["seed"]) == [0, 0, 1] and list(frame["rational deals"]) == [1, 0, 1]
    found = intervals(frame)
    assert (found["NNW"].value, found["NNW"].n) == (pytest.approx((BEST / 2 + SECOND) / 2), 2)
    assert found["NNW of rational deals"].value == pytest.approx((BEST + SECOND) / 2) and found["deal rate"].value == 0.75
    assert "NNW of rational deals" not in intervals(councils(GAME, [played[1], episode(seed=1)]))
    difference = compare(councils(GAME, played[1:]), councils(GAME, played[::2]), "NNW").difference
    assert (difference.value, difference.n) == (pytest.approx(-BEST / 2), 2)


# --- replies that write other parties' turns

MADE_UP = (
    "# S3: accept P1",
    'I wait.\n{"action": "none"}\n# S1: propose P2 A1 B1 "Deal?"',
    'S4: {"message": "Yes.", "action": "accept", "offer_id": "P1"}',
    "**S5 (Port)**: walk",
    'Round 2/4, S3:\n{"action": "none"}',
    "> East: reject P2",
    "s6: None\n",
    'Hill:\n "I agree."',
)
HONEST = (
    "S3: wants A1\nS4: none of B",
    'S3 said: "accept P1"',
    "Perhaps S3: accept P1",
    '# S2: accept P1\nSouth: {"action": "none"}',  # its own
    '<think>\n# S3: accept P1\n</think>{"action": "none"}',
    '{"message": "S3: accept P1", "action": "none"}',
    "S31: accept P1",
    "Easter: walk",
    "S3: propose A1",
    "",
)


@pytest.mark.parametrize("reply", MADE_UP)
def test_a_reply_that_writes_another_partys_turn_is_fabricated(reply):
    assert fabricated(reply, "S2", NAMES)


@pytest.mark.parametrize("reply", HONEST)
def test_notes_of_others_thinking_and_the_own_turn_are_not_fabricated(reply):
    assert not fabricated(reply, "S2", NAMES)


def test_names_are_text_and_the_own_one_is_left_out():
    names = ("a.b", "(c)", "d", "e", "f", "g+")
    assert fabricated("a.b: walk", "S2", names) and fabricated("g+: walk", "S2", names) and fabricated("(c): walk", "S1", names)
    assert not fabricated("axb: walk", "S2", names) and not fabricated("(c): walk", "S2", names)


@pytest.mark.parametrize("piece", [" ", "\t*", "# ", "\n", "S3", "S3 ", "S3:", "S3: ", "S3 (", "Round 1", "Round 1/", "1", "\n#"])
def test_no_long_reply_takes_long(piece):
    start = time.process_time()
    for text in ("S3" + piece * 20_000, "S3:" + piece * 20_000, piece * 20_000, "Round 1" + piece * 20_000):
        fabricated(text, "S2", NAMES)
    assert time.process_time() - start < 0.5


# --- comparisons among rational deals


def frame(**columns) -> pd.DataFrame:
    """Twenty seeds, two episodes each, all with a rational deal of NNW 0.5 unless told otherwise."""
    base = {"seed": sorted([*range(20)] * 2), "NNW of rational deals": 0.5, "deal rate": 1.0, "rational deals": 1.0}
    out = pd.DataFrame(base | {name.replace("_", " "): values for name, values in columns.items()})
    return out.assign(**{"NNW of rational deals": out["NNW of rational deals"].where(out["rational deals"] == 1)})


def rates(failures, every=40) -> list[float]:
    """That many zeros among `every` ones."""
    return [0.0] * failures + [1.0] * (every - failures)


def test_a_comparison_among_rational_deals_pairs_the_seeds_in_which_both_have_one():
    nnw = [0.7, 0.9] * 20
    fewer = frame(NNW_of_rational_deals=nnw, rational_deals=rates(3), deal_rate=rates(3))  # seed 0 none, seed 1 one of 0.9
    found = compare_rational(fewer, frame(), "NNW of rational deals")
    assert found.void == "" and found.comparison.difference.n == 19
    assert found.comparison.difference.value == pytest.approx((18 * 0.3 + 0.4) / 19)


@pytest.mark.parametrize(("failures", "void"), [(4, False), (5, True)])
def test_deal_rates_more_than_a_tenth_apart_either_way_make_it_void_and_say_by_how_much(failures, void):
    other = frame(rational_deals=rates(failures), deal_rate=rates(failures))
    for sides, sign in (((other, frame()), "-"), ((frame(), other), "+")):
        found = compare_rational(*sides, "NNW of rational deals")
        assert (found.comparison is None) == void == bool(found.void)
        assert not void or f"deal rate differs by {sign}0.12, at most 0.10 is comparable" in found.void


def test_equal_deal_rates_of_which_fewer_deals_are_rational_on_one_side_are_void_too():
    found = compare_rational(frame(rational_deals=rates(5)), frame(), "NNW of rational deals")
    assert found.void == "rational deals differs by -0.12, at most 0.10 is comparable"


def test_fewer_than_twelve_seeds_with_a_rational_deal_on_both_sides_are_void():
    assert MIN_CLUSTERS == 12
    half = [*[1.0] * 22, *[0.0] * 18], [*[0.0] * 18, *[1.0] * 22]  # seeds 0-10; seeds 9-19
    a, b = (frame(rational_deals=rates, deal_rate=rates) for rates in half)
    assert compare_rational(a, b, "NNW of rational deals").void == (
        "2 seeds have a rational deal on both sides, at least 12 are needed"
    )
    few, enough = (frame(rational_deals=(rate := [*[1.0] * n, *[0.0] * (40 - n)]), deal_rate=rate) for n in (22, 24))
    assert "11 seeds" in compare_rational(few, few, "NNW of rational deals").void
    assert compare_rational(enough, enough, "NNW of rational deals").comparison.difference.n == 12


def test_other_seeds_are_refused():
    with pytest.raises(ValueError, match="expected the same seeds on both sides"):
        compare_rational(frame(), frame(seed=sorted([*range(1, 21)] * 2)), "NNW of rational deals")


# --- the path of offers


def test_an_offer_path_holds_every_offer_once_in_order_and_the_deal():
    path = offer_path(GAME, episode(offer(1, 1), offer(1, 1), offer(2, 3), *CLOSE[:3], yes("P1"), yes("P1"), yes("P1"), seed=3))
    row = path.solution.row
    assert path.offers == (("S1", row((0, 0))), ("S3", row((1, 2)))) and path.seed == 3 and path.players["S4"] == "table"
    assert path.deal == row((0, 0)) and offer_path(GAME, episode(offer(2, 2))).deal is None
    assert offer_path(GAME, episode()).offers == ()
