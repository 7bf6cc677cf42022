import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest

from helpers import GAMES
from helpers.evaluate import (
    ORDER,
    Interval,
    compare,
    figures,
    interval,
    outcomes,
    ratio,
    results_table,
    share_of_attainable,
    summary,
    table,
    write_json,
)
from helpers.players import Scripted, competent_player, floor_player, random_player, scripted
from helpers.rollout import TEST, Turn, play

MARKET = GAMES["market"]
SEEDS = TEST[:12]


def everywhere(player):
    return {seat: player for seat in MARKET.seats}


def frame(payoffs, seeds=None):
    return pd.DataFrame({"seed": seeds or range(len(payoffs)), "table payoff": payoffs})


@pytest.fixture(scope="module")
def rows():
    random = outcomes(MARKET, play(MARKET, SEEDS, everywhere(random_player(MARKET))))
    greedy = outcomes(MARKET, play(MARKET, SEEDS, everywhere(scripted(MARKET, "greedy"))))
    return {"greedy": greedy, "trained": greedy, "untrained base": random, "random": random}


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_turn_is_of_its_verbs_kind_unless_its_reply_was_invalid():
    assert Turn("A", "", "", "accept_trade(t1)").kind == "accept_trade"
    assert Turn("A", "", "pas", "pass()", "parse: no action found").kind == "invalid reply"


def test_outcomes_hold_payoffs_counts_and_the_share_of_invalid_replies():
    players = {**everywhere(scripted(MARKET, "pass")), "B": Scripted("broken", lambda view, rng: "nonsense")}
    (episode,) = play(MARKET, [TEST[0]], players)
    (row,) = outcomes(MARKET, [episode]).to_dict("records")
    assert row["seed"] == TEST[0]
    assert row["turns"] == 40  # 10 rounds of 4 seats, nobody builds
    assert row["invalid replies"] == 0.25  # one seat of four
    assert [row["projects built"], row["trades"], row["in a coalition"]] == [0, 0, 0]
    assert row["table payoff"] == sum(row[f"payoff {seat}"] for seat in "ABCD") == sum(episode.payoffs.values())


def test_outcomes_of_one_seat_judge_only_that_seat():
    players = {**everywhere(scripted(MARKET, "pass")), "B": Scripted("broken", lambda view, rng: "nonsense")}
    episodes = play(MARKET, [TEST[0]], players)
    assert outcomes(MARKET, episodes, "B")["invalid replies"][0] == 1
    assert outcomes(MARKET, episodes, "A")["invalid replies"][0] == 0
    assert outcomes(MARKET, episodes, "B")["own payoff"][0] == episodes[0].payoffs["B"]


def test_a_greedy_table_builds_and_trades_and_stays_within_the_optimum(rows):
    greedy, random = rows["greedy"], rows["random"]
    assert greedy["projects built"].mean() > 3 > 1 > random["projects built"].mean()
    assert greedy["table payoff"].max() <= MARKET.optimum
    assert greedy["trades"].min() > 0


def test_values_of_one_seed_are_averaged_before_seeds_are_resampled():
    # Two seeds with means 0 and 4: the mean of two draws with replacement is 0, 2, 2 or 4, so the interval is [0, 4].
    assert interval([0, 0, 0, 4], [1, 1, 1, 2]) == Interval(2.0, 0.0, 4.0, 2)


def test_an_interval_is_that_of_the_normal_approximation_for_many_seeds():
    values = np.arange(400) % 20
    reach = 1.96 * values.std() / math.sqrt(400)  # the bootstrap's standard error is the plug-in one
    found = interval(values)
    assert (found.value, found.n) == (9.5, 400)
    assert found.low == pytest.approx(9.5 - reach, abs=0.05)
    assert found.high == pytest.approx(9.5 + reach, abs=0.05)


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    draws = np.random.default_rng(5).exponential(size=(200, 40))  # mean 1
    hits = sum(found.low <= 1 <= found.high for found in map(interval, draws))
    assert 0.86 <= hits / 200 <= 0.99  # nominal 0.95; percentile intervals are a little short on skewed samples


def test_a_ratio_divides_sums_and_resamples_whole_clusters_with_both_sums_together():
    over, under, clusters = [1, 0, 2, 3], [1, 1, 2, 4], [7, 7, 8, 9]  # by cluster 1 / 2, 2 / 2, 3 / 4
    found = ratio(over, under, clusters)
    assert (found.value, found.n) == (6 / 8, 3)
    assert (found.low, found.high) == (1 / 2, 1.0)  # all draws one cluster: chance 1/27 each, more than 2.5 %
    assert ratio([2, 4, 6], [4, 8, 12], [0, 1, 2]) == Interval(0.5, 0.5, 0.5, 3)


def test_a_ratio_over_ones_has_the_interval_of_the_mean():
    values = np.arange(400) % 20
    found, mean = ratio(values, np.ones(400), range(400)), interval(values)
    assert found.value == mean.value
    assert (found.low, found.high) == (pytest.approx(mean.low, abs=0.05), pytest.approx(mean.high, abs=0.05))


def test_a_ratio_leaves_out_resamples_with_nothing_below_and_is_refused_without_anything_below():
    assert ratio([0, 1], [0, 1], [0, 1]) == Interval(1.0, 1.0, 1.0, 2)
    for under, clusters in (([0, 0], [0, 1]), ([1, 1], [3, 3])):
        with pytest.raises(ValueError, match="at least 2 clusters and something to divide by"):
            ratio([1, 1], under, clusters)


def test_equal_values_have_an_interval_of_no_width_and_no_warning():
    assert interval([24.0] * 5) == Interval(24.0, 24.0, 24.0, 5)


def test_one_seed_is_refused():
    with pytest.raises(ValueError, match="at least 2 seeds to resample, got 1"):
        interval([1.0, 2.0], [7, 7])


def test_the_same_data_give_the_same_interval():
    values = np.random.default_rng(1).normal(size=30)
    assert interval(values) == interval(values)


def test_a_comparison_is_paired_by_seed_whatever_the_order_of_rows():
    a, b = frame([3, 5, 7], [0, 1, 2]), frame([6, 2, 4], [2, 0, 1])  # every seed: a is 1 more
    found = compare(a, b, "table payoff")
    assert found.difference == Interval(1, 1, 1, 3)
    assert found.percent.value == pytest.approx(25)  # mean 5 against mean 4
    # Resampled means of b lie between 2 and 6, so the percentage lies between 1/6 and 1/2.
    assert 100 / 6 - 1e-9 <= found.percent.low < 25 < found.percent.high <= 50 + 1e-9


def test_percent_is_recomputed_in_every_resample_of_seeds():
    # a = 2b in every seed: whatever the resample, a's mean is 100 % above b's, though the difference varies.
    b = [1.0, 2.0, 5.0, 9.0]
    found = compare(frame([2 * x for x in b]), frame(b), "table payoff")
    assert found.percent.low == pytest.approx(100) and found.percent.high == pytest.approx(100)
    assert found.difference.low < found.difference.high


def test_there_is_no_percentage_of_nothing():
    assert compare(frame([1, 2, 3]), frame([0, 0, 0]), "table payoff").percent is None
    assert compare(frame([1, 2, 3]), frame([-1, 0, 1]), "table payoff").percent is None
    assert compare(frame([0, 0, 0]), frame([0, 0, 0]), "table payoff").percent is None


def test_different_seeds_are_refused_and_named():
    with pytest.raises(ValueError, match=r"same seeds on both sides, got 3 and 2; only one side has \[2\]"):
        compare(frame([1, 2, 3]), frame([1, 2]), "table payoff")
    with pytest.raises(ValueError, match="same seeds"):
        share_of_attainable(frame([1, 2, 3]), frame([1, 2, 3], [5, 6, 7]), 24)


def test_the_share_of_the_attainable_is_0_for_random_1_at_the_optimum_and_half_between():
    random = frame([2, 4, 6])
    assert share_of_attainable(random, random, 24) == Interval(0, 0, 0, 3)
    at_optimum = share_of_attainable(frame([24, 24, 24]), random, 24)
    assert (at_optimum.low, at_optimum.high) == pytest.approx((1, 1))
    half = share_of_attainable(frame([13, 14, 15]), random, 24)  # halfway in every seed: (14 - 4) / (24 - 4)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))


def test_the_share_of_the_attainable_leaves_out_resamples_in_which_random_play_reaches_the_optimum():
    random, policy = frame([1.0, 1.0, 0.0, 1.0]), frame([1.0, 1.0, 1.0, 0.5])
    found = share_of_attainable(policy, random, 1.0)
    assert found.value == pytest.approx(0.5)  # gained 1 of the 1 that was left, and lost 0.5
    assert math.isfinite(found.low) and found.low < found.value < found.high <= 1.0


def test_floors_stand_before_the_models_and_competent_players_after_them_in_every_game():
    assert ORDER[0] == "random" and len(set(ORDER)) == len(ORDER)
    for game in GAMES.values():
        assert ORDER.index(floor_player(game).name) < ORDER.index("untrained base")
        assert ORDER.index(competent_player(game).name) > ORDER.index("trained")


def test_the_results_table_has_the_fixed_order_and_the_optimum_without_interval(rows):
    found = results_table(rows, MARKET)
    assert list(found.index) == ["random", "untrained base", "trained", "greedy", "optimum"]
    assert list(found.columns) == ["table payoff", "projects built", "trades", "in a coalition", "invalid replies", "n"]
    assert found.loc["optimum", "table payoff"] == "24.00"
    assert found.loc["random", "n"] == "12"
    assert found.loc["random", "invalid replies"] == "0.0 % [0.0, 0.0]"
    assert found.loc["random", "table payoff"].startswith(f"{rows['random']['table payoff'].mean():.2f} [")


def test_shares_of_invalid_replies_are_shown_in_percent():
    figure = {"value": 0.125, "low": 0.1, "high": 0.2, "n": 3}
    assert table({"x": {"invalid replies": figure}}).loc["x", "invalid replies"] == "12.5 % [10.0, 20.0]"


def test_the_summary_holds_what_readers_of_summary_json_rely_on(rows, tmp_path):
    alone = {"greedy": outcomes(MARKET, play(MARKET, SEEDS, everywhere(scripted(MARKET, "greedy"))), "A")}
    found = summary(MARKET, "tiny", 3, rows, 12.34, alone)
    write_json(tmp_path / "run" / "summary.json", found)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == found
    assert not list(tmp_path.rglob("*.part"))
    assert [found[key] for key in ("game", "preset", "seed", "seconds", "optimum")] == ["market", "tiny", 3, 12.3, 24]
    assert found["seeds"] == [SEEDS[0], SEEDS[-1]]
    assert set(found["rows"]) == set(rows)
    assert set(found["rows"]["trained"]["table payoff"]) == {"value", "low", "high", "n"}
    trained, random = rows["trained"]["table payoff"].mean(), rows["random"]["table payoff"].mean()
    versus = found["comparisons"]["trained_vs_random"]
    assert set(versus) == {"value", "low", "high", "percent"}
    assert versus["value"] == pytest.approx(trained - random)
    assert versus["percent"]["value"] == pytest.approx(100 * (trained - random) / random)
    assert versus == found["comparisons"]["trained_vs_base"]  # the fixture's base is the random player
    assert found["share_of_attainable"]["value"] == pytest.approx((trained - random) / (24 - random))
    assert found["invalid_reply_rate"] == 0
    assert found["one_seat"]["greedy"]["own payoff"]["n"] == 12
    assert "one_seat" not in summary(MARKET, "tiny", 3, rows, 12.34)


def test_a_warm_start_stands_between_the_base_and_the_trained_model_which_is_compared_with_it(rows):
    assert "trained_vs_warm" not in summary(MARKET, "tiny", 3, rows, 12.34)["comparisons"]
    found = summary(MARKET, "tiny", 3, {**rows, "warm start": rows["random"]}, 12.34)
    assert list(found["rows"]) == ["random", "untrained base", "warm start", "trained", "greedy"]
    assert found["comparisons"]["trained_vs_warm"] == found["comparisons"]["trained_vs_random"]


def test_the_summary_has_no_paths_of_this_machine(rows):
    found = summary(MARKET, "tiny", 0, rows, 1.0)
    assert "/" not in found["hardware"] + found["commit"]
    assert found["commit"] == "unknown" or len(found["commit"]) == 40


def test_figures_of_an_infinite_value_are_not_written(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"value": math.inf})
    assert not (tmp_path / "x.json").exists()


def test_figures_keep_unknown_players_after_the_known_ones(rows):
    assert list(figures({"stranger": rows["random"], "trained": rows["greedy"]})) == ["trained", "stranger"]
