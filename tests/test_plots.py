from dataclasses import replace

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402  (after the backend is chosen)

from helpers import GAMES, plots  # noqa: E402
from helpers.evaluate import figures, outcomes  # noqa: E402
from helpers.game import replay  # noqa: E402
from helpers.games.bargaining import Bargaining  # noqa: E402
from helpers.games.council import Council  # noqa: E402
from helpers.games.council_specs import SEATS  # noqa: E402
from helpers.players import Scripted, random_player, scripted  # noqa: E402
from helpers.rollout import TEST, VALID, play  # noqa: E402
from helpers.surplus import PricePath  # noqa: E402
from helpers.welfare import offer_path  # noqa: E402

MARKET = GAMES["market"]


@pytest.fixture(autouse=True)
def figures_are_closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def episodes():
    players = {"greedy": scripted(MARKET, "greedy"), "random": random_player(MARKET)}
    return {name: play(MARKET, TEST[:5], {seat: player for seat in MARKET.seats}) for name, player in players.items()}


@pytest.fixture(scope="module")
def rows(episodes):
    return {name: outcomes(MARKET, played) for name, played in episodes.items()}


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def players(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


HISTORY = [
    {"step": i, "reward": float(i), "rewards/own/mean": 1.0, "rewards/form/mean": -1.0, "frac_reward_zero_std": 0.5}
    for i in range(1, 21)
] + [{"step": 20, "train_runtime": 1.0}]


def test_learning_curves_show_each_term_raw_and_smoothed_and_the_tied_groups():
    ax = plots.learning_curves(HISTORY, ["own", "form"])
    assert legend(ax) == ["reward", "own", "form", "tied groups (share)"]
    lines = {line.get_label(): line for line in ax.lines}
    assert len(ax.lines) == 2 * 3 + 2  # reward and two terms twice, ties, the zero line
    assert list(lines["reward"].get_xdata()) == list(range(1, 21))  # the closing entry without a reward is left out
    assert lines["reward"].get_ydata()[-1] == np.mean(range(11, 21))  # the mean of the last ten
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "mean reward of a reply")


def test_payoff_distributions_show_every_episode_and_the_mean_of_each_player(rows):
    ax = plots.payoff_distributions(rows)
    assert players(ax) == ["random", "greedy"]  # the order of tables, first on top
    dots = [c for c in ax.collections if len(c.get_offsets()) == 5]
    assert sorted(dots[0].get_offsets()[:, 0]) == sorted(rows["random"]["table payoff"])
    means = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert means == [rows["random"]["table payoff"].mean(), rows["greedy"]["table payoff"].mean()]


def test_a_comparison_shows_values_intervals_and_the_optimum(rows):
    ax = plots.comparison(figures(rows), "table payoff", MARKET.optimum)
    found = figures(rows)["random"]["table payoff"]
    assert texts(ax)[0] == f"{found['value']:.2f}"
    dot, caps, _ = ax.containers[0].lines
    assert dot.get_xdata()[0] == found["value"]
    assert [cap.get_xdata()[0] for cap in caps] == pytest.approx([found["low"], found["high"]])
    assert legend(ax) == ["optimum 24"]
    assert "5 seeds" in ax.get_title()


def test_a_comparison_of_invalid_replies_is_in_percent():
    ax = plots.comparison({"trained": {"invalid replies": {"value": 0.25, "low": 0.2, "high": 0.3, "n": 4}}}, "invalid replies")
    assert texts(ax) == ["25.00"]
    assert "%" in ax.get_xlabel()


def test_the_trade_network_sums_to_the_mean_number_of_trades(episodes, rows):
    ax = plots.trade_network(MARKET, episodes["greedy"])
    numbers = [float(text) for text in texts(ax) if text not in MARKET.seats]
    assert sum(numbers) == pytest.approx(rows["greedy"]["trades"].mean(), abs=0.005 * len(numbers))
    assert [text for text in texts(ax) if text in MARKET.seats] == list(MARKET.seats)


def test_a_trade_is_as_wide_in_every_network(episodes, rows):
    width = {name: sum(x.get_linewidth() for x in plots.trade_network(MARKET, games).lines) for name, games in episodes.items()}
    trades = {name: rows[name]["trades"].mean() for name in rows}
    assert width["greedy"] / width["random"] == pytest.approx(trades["greedy"] / trades["random"])


def test_a_network_without_trades_shows_the_seats_alone(episodes):
    passing = play(MARKET, TEST[:2], {seat: scripted(MARKET, "pass") for seat in MARKET.seats})
    assert texts(plots.trade_network(MARKET, passing)) == list(MARKET.seats)


def test_a_timeline_shows_every_turn_once_each_trade_and_each_build(episodes, rows):
    episode = episodes["greedy"][0]
    ax = plots.timeline(MARKET, episode)
    places = np.concatenate([c.get_offsets() for c in ax.collections])
    assert sorted(map(tuple, places)) == [(i + 1, "ABCD".index(turn.seat)) for i, turn in enumerate(episode.turns)]
    assert texts(ax).count("builds") == rows["greedy"]["projects built"][0]
    assert len(ax.lines) == rows["greedy"]["trades"][0]
    assert players(ax)[0] == f"A (greedy)\npayoff {episode.payoffs['A']:g}"


def test_a_timeline_marks_an_invalid_reply_instead_of_the_fallback(episodes):
    episode = play(MARKET, TEST[:1], {seat: scripted(MARKET, "pass") for seat in MARKET.seats})[0]
    assert legend(plots.timeline(MARKET, episode)) == ["pass"]
    bad = replace(episode, turns=(replace(episode.turns[0], error="parse: no action found"), *episode.turns[1:]))
    assert legend(plots.timeline(MARKET, bad)) == ["pass", "invalid reply"]


def test_kinds_of_action_add_up_to_all_turns(episodes):
    ax = plots.kinds_of_action(MARKET, episodes)
    widths = {bar.get_label(): [patch.get_width() for patch in bar] for bar in ax.containers}
    assert np.sum(list(widths.values()), axis=0) == pytest.approx([100, 100])
    kinds = [turn.kind for episode in episodes["random"] for turn in episode.turns]
    assert widths["pass"][0] == pytest.approx(100 * kinds.count("pass") / len(kinds))
    assert players(ax) == ["random", "greedy"]


def figure(value, reach=0.1, n=9):
    return {"value": value, "low": value - reach, "high": value + reach, "n": n}


CELLS = {
    ("full", "buyer"): {"own share": figure(0.4)},
    ("full", "seller"): {"own share": figure(-0.2)},
    ("unaware", "seller"): {"own share": figure(0.6)},
}
POINTS = {
    "always-split": {"own share": figure(0.5), "deal rate": figure(0.8, 0.05, n=7)},
    "random": {"own share": figure(0.1, 0.2), "deal rate": figure(0.6)},
    "mute": {"own share": figure(0.3)},
}
PATH = PricePath(
    3,
    {"buyer": "linear", "seller": "hardball"},
    {"buyer": 100.0, "seller": 60.0},
    80.0,
    (("seller", 95.0), ("buyer", 65.0), ("seller", 90.0), ("buyer", None)),
    True,
    90.0,
    None,
)


def test_a_split_has_a_bar_for_each_part_of_each_group_at_its_value_with_its_interval():
    ax = plots.split(CELLS, "own share")
    bars = {b.get_label(): b.patches for b in ax.containers if hasattr(b, "patches") and b.patches}
    assert {part: [bar.get_height() for bar in found] for part, found in bars.items()} == {"buyer": [0.4], "seller": [-0.2, 0.6]}
    places = {part: [bar.get_x() + bar.get_width() / 2 for bar in found] for part, found in bars.items()}
    assert places == {"buyer": [pytest.approx(-0.2)], "seller": [pytest.approx(0.2), pytest.approx(1.2)]}
    whiskers = [segment[:, 1].tolist() for lines in ax.collections for segment in lines.get_segments()]
    assert whiskers == [pytest.approx([0.3, 0.5]), pytest.approx([-0.3, -0.1]), pytest.approx([0.5, 0.7])]
    assert texts(ax) == ["0.40", "-0.20", "0.60"] and legend(ax) == ["buyer", "seller"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["full", "unaware"]
    assert "9 seeds" in ax.get_title() and "95 %" in ax.get_title()


def test_a_trade_off_has_intervals_on_both_axes_and_names_who_cannot_be_shown():
    ax = plots.trade_off(POINTS, "own share", "deal rate")
    found = {c.get_label(): c.lines for c in ax.containers}
    assert list(found) == ["random", "always-split"] == legend(ax)
    dot, _, bars = found["always-split"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (0.5, 0.8)
    across, up = (line.get_segments()[0] for line in bars)
    assert across[:, 0].tolist() == pytest.approx([0.4, 0.6]) and up[:, 1].tolist() == pytest.approx([0.75, 0.85])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("mean own share", "mean deal rate")
    assert "7 to 9 seeds" in ax.get_title() and ax.get_title().endswith("nothing to measure: mute")


def test_a_trade_off_of_nobody_says_so_and_draws_nothing():
    ax = plots.trade_off({"mute": POINTS["mute"]}, "own share", "deal rate")
    assert not ax.containers and ax.get_title().endswith("nothing to measure: mute")


def test_players_without_a_colour_of_their_own_get_none_that_is_taken():
    found = dict.fromkeys(("random", "linear", "a", "b", "c", "d"), POINTS["random"])
    ax = plots.trade_off(found, "own share", "deal rate")
    colours = {container.get_label(): container.lines[0].get_color() for container in ax.containers}
    assert colours["random"] == plots.GREY and colours["linear"] == plots.GREEN
    assert len(set(colours.values())) == len(found)


def test_shares_of_deals_are_counted_and_what_lies_far_out_stands_at_the_ends():
    game = Bargaining()
    episodes = play(game, TEST[:60], dict.fromkeys(game.seats, random_player(game)))
    ax = plots.DEALINGS["bargaining"](game, episodes)
    paid = [e.payoffs["buyer"] for e in episodes if game.counts(replay(game, e.seed, e.actions))["deals"]]
    heights = [bar.get_height() for bar in ax.patches if bar.get_label() != "zone of agreement"]
    assert sum(heights) == len(paid) < 60 and min(paid) < -1
    assert heights[0] == sum(share < -0.9 for share in paid)
    assert f"{len(paid)} deals in 60 episodes" in legend(ax)


def test_every_game_that_a_model_plays_has_its_picture_of_dealings():
    assert plots.DEALINGS.keys() >= GAMES.keys()


def test_a_price_path_shows_limits_nash_price_offers_and_how_long_they_stand():
    ax = plots.price_path(PATH)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["seller offers (hardball)"].get_xydata().tolist() == [[1, 95], [3, 90]]
    assert lines["buyer offers (linear)"].get_xydata().tolist() == [[2, 65]]
    assert lines["deal at 90.00"].get_xydata().tolist() == [[4, 90]]
    for label, price in (("buyer's limit 100.00", 100), ("seller's limit 60.00", 60), ("Nash price 80.00", 80)):
        assert list(lines[label].get_ydata()) == [price, price]
    standing = sorted(line.get_xydata().tolist() for line in ax.lines if line.get_label().startswith("_"))
    assert standing == [[[1, 95], [2, 95]], [[2, 65], [3, 65]], [[3, 90], [4, 90]]]
    assert "seed 3: deal at 90.00" in ax.get_title() and ax.get_xlabel() == "turn"


def test_a_price_path_says_who_walked_away_or_that_time_ran_out():
    ax = plots.price_path(replace(PATH, price=None, left="buyer"))
    assert "the buyer walks away" in ax.get_title() and "the buyer walks away" in legend(ax)
    assert "without a deal" in plots.price_path(replace(PATH, price=None)).get_title()


def test_offers_made_at_once_share_a_round_and_none_stands():
    ax = plots.price_path(replace(PATH, standing=False))
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["seller offers (hardball)"].get_xydata().tolist() == [[1, 95], [2, 90]]
    assert lines["buyer offers (linear)"].get_xydata().tolist() == [[1, 65]]
    assert ax.get_xlabel() == "round" and not [label for label in lines if label.startswith("_")]


def test_a_side_that_never_offers_leaves_the_plot_whole():
    ax = plots.price_path(replace(PATH, moves=(("seller", None),), price=None, left="seller"))
    assert {"buyer offers (linear)", "seller offers (hardball)"} <= set(legend(ax))


def test_an_unfinished_price_path_shows_what_has_happened_on_the_axes_of_the_whole_episode():
    whole, ax = plots.price_path(PATH), plots.price_path(PATH, turns=2)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["seller offers (hardball)"].get_xydata().tolist() == [[1, 95]]
    assert lines["buyer offers (linear)"].get_xydata().tolist() == [[2, 65]]
    assert "seed 3: 2 of 4 turns" in ax.get_title() and not [label for label in lines if label.startswith("deal")]
    assert (ax.get_xlim(), ax.get_ylim()) == (whole.get_xlim(), whole.get_ylim())
    assert "deal at 90.00" in plots.price_path(PATH, turns=4).get_title()


@pytest.fixture(scope="module")
def path():
    council = Council(specs="small", min_accept=5)
    return offer_path(council, play(council, [0], dict.fromkeys(SEATS, scripted(council, "linear")))[0])


LADDER = {
    "lam0": {0: {"NNW": figure(0.4)}, 5: {"NNW": figure(0.5)}, 10: {"deal rate": figure(1.0)}, 24: {"NNW": figure(0.45, 0.2)}},
    "lam1": {0: {"NNW": figure(0.4)}, 24: {"NNW": figure(0.6, n=12)}},
}


def test_the_frontier_shows_every_deal_and_joins_those_that_no_other_beats_in_both_numbers(path):
    ax = plots.frontier(path)
    surplus, rational = path.solution.surplus, path.solution.rational
    both = np.column_stack([surplus.mean(1), surplus.min(1)])
    dots = {c.get_label(): c.get_offsets() for c in ax.collections}
    assert sorted(map(tuple, dots["rational deal"])) == sorted(map(tuple, both[rational]))
    assert sorted(map(tuple, dots["deal below a threshold"])) == sorted(map(tuple, both[~rational]))
    line = {line.get_label(): line for line in ax.lines}["frontier"].get_xydata()
    both = both.round(12)  # equal deals may differ in the last digit
    best = [p for p in both if not any((q >= p).all() and (q > p).any() for q in both)]
    assert line[:, 0].tolist() == sorted(line[:, 0]) and line[:, 1].tolist() == sorted(line[:, 1], reverse=True)
    assert {tuple(p.round(9)) for p in line} == {tuple(p.round(9)) for p in best}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("mean surplus of the parties", "smallest surplus")


def test_the_frontier_shows_the_offers_in_their_order_the_deal_and_the_solutions(path):
    ax = plots.frontier(path)
    surplus = path.solution.surplus
    lines = {line.get_label(): line for line in ax.lines}

    def place(row):
        return [surplus[row].mean(), surplus[row].min()]

    assert len(path.offers) > 2 and path.deal is not None
    assert lines["offers in order"].get_xydata().tolist() == [place(row) for _, row in path.offers]
    assert texts(ax) == [f"{number} {seat}" for number, (seat, _) in enumerate(path.offers, 1)]
    assert lines["deal"].get_xydata().tolist() == [place(path.deal)] and ax.get_title().endswith("rational: a deal")
    for row in set(path.solution.points.values()):
        label = ", ".join(name for name, other in path.solution.points.items() if other == row)
        assert lines[label].get_xydata().tolist() == [place(row)]
        assert ax.get_xlim()[0] < place(row)[0] < ax.get_xlim()[1] and ax.get_ylim()[0] < place(row)[1] < ax.get_ylim()[1]


def test_an_episode_without_offers_or_rational_deals_has_a_frontier_too(path):
    nothing = replace(path.solution, rational=np.zeros_like(path.solution.rational), points={})
    ax = plots.frontier(replace(path, solution=nothing, offers=(), deal=None))
    assert "deal" not in legend(ax) and "frontier" in legend(ax) and ax.get_title().endswith("0 of them rational: no deal")


def test_offers_of_the_same_deal_have_their_numbers_one_above_the_other(path):
    ax = plots.frontier(replace(path, offers=(("S1", 3), ("S2", 5), ("S4", 3)), deal=3))
    assert texts(ax) == ["1 S1", "2 S2", "3 S4"] and [text.xyann[1] for text in ax.texts] == [4, 4, 13]


def test_the_offers_on_the_table_show_what_each_pays_whom_and_who_is_for_it():
    council = Council(specs="small", min_accept=5)
    for seed, names in ((0, ["linear"]), (VALID[6], ["linear", "boulware", "conceder"])):
        players = {seat: scripted(council, names[i % len(names)]) for i, seat in enumerate(SEATS)}
        [episode] = play(council, [seed], players)
        for turns in (1, 4, len(episode.turns)):
            ax, state = plots.offers_on_the_table(council, episode, turns=turns), replay(council, seed, episode.actions[:turns])
            cells = {(*text.get_position(),): text.get_text() for text in ax.texts}
            rows = [offer for offer in state.offers if offer.deal == state.deal]
            rows += [offer for offer in state.offers if offer.deal != state.deal]
            assert rows and len(cells) == len(rows) * len(SEATS)
            for (x, y), text in cells.items():
                z = state.spec.surplus(x, rows[y].deal, min(turns // len(SEATS), council.rounds) + 1)
                assert text.split("\n") == [f"{z:+.2f}", "for it"][: 1 + (x in rows[y].supporters)]
            whole = f"{rows[0].id} is the deal" if state.deal else "no deal"
            assert ax.get_title().endswith(whole if turns == len(episode.turns) else f"{turns} of {len(episode.turns)} turns")
            plt.close(ax.figure)
        assert bool(state.deal) == (seed == 0)  # both endings were seen


def test_a_table_without_live_offers_shows_who_walked_away():
    council = Council(specs="small")
    walk = Scripted("walk", lambda view, rng: '{"action": "walk"}')
    ax = plots.offers_on_the_table(council, play(council, [0], dict.fromkeys(SEATS, walk))[0])
    assert not ax.texts and ax.get_title().endswith("no deal")
    assert any("walked away" in label.get_text() for label in ax.get_xticklabels())


def test_a_ladder_shows_every_checkpoint_of_every_run_side_by_side_with_its_interval():
    ax = plots.ladder(LADDER, "NNW")
    found = {c.get_label(): c.lines for c in ax.containers}
    assert list(found) == ["lam0", "lam1"] == legend(ax)
    line, _, (bars,) = found["lam0"]
    assert line.get_xdata() == pytest.approx([0, 5, 10, 24], abs=0.2) and line.get_xdata()[0] < 0
    assert line.get_ydata() == pytest.approx([0.4, 0.5, np.nan, 0.45], nan_ok=True)  # no NNW at step 10: the line is broken
    assert bars.get_segments()[-1][:, 1].tolist() == pytest.approx([0.25, 0.65])
    assert found["lam1"][0].get_xdata() == pytest.approx([0, 24], abs=0.2) and found["lam1"][0].get_xdata()[0] > 0
    assert list(ax.get_xticks()) == [0, 5, 10, 24] and ax.get_title() == "NNW over the checkpoints with 95 % intervals (12 seeds)"
    assert plots.ladder(LADDER, "deal rate").get_title().startswith("Deal rate over")


def test_a_ladder_of_one_run_stands_on_its_steps():
    lines = plots.ladder({"lam1": LADDER["lam1"]}, "NNW").containers[0].lines
    assert lines[0].get_xydata().tolist() == [[0, 0.4], [24, 0.6]]


def test_reward_bars_end_with_the_total():
    ax = plots.reward_bars({"form": -0.25, "own": 1.0}, "A reply")
    assert [bar.get_width() for bar in ax.patches] == [-0.25, 1.0, 0.75]
    assert players(ax) == ["form", "own", "total"]
    assert texts(ax) == ["-0.25", "+1", "+0.75"]
    assert ax.get_title() == "A reply"


def test_every_plot_draws_on_the_axes_it_is_given_and_returns_them(episodes, rows, path):
    bargaining = Bargaining()
    calls = {
        plots.learning_curves: (HISTORY, ["own"]),
        plots.payoff_distributions: (rows,),
        plots.comparison: (figures(rows), "trades"),
        plots.trade_network: (MARKET, episodes["greedy"]),
        plots.deal_shares: (bargaining, play(bargaining, TEST[:3], dict.fromkeys(bargaining.seats, random_player(bargaining)))),
        plots.timeline: (MARKET, episodes["greedy"][0]),
        plots.kinds_of_action: (MARKET, episodes),
        plots.split: (CELLS, "own share"),
        plots.trade_off: (POINTS, "own share", "deal rate"),
        plots.price_path: (PATH,),
        plots.frontier: (path,),
        plots.offers_on_the_table: (Council(), play(Council(), [0], dict.fromkeys(SEATS, scripted(Council(), "linear")))[0]),
        plots.ladder: (LADDER, "NNW"),
        plots.reward_bars: ({"own": 1.0},),
    }
    for plot, arguments in calls.items():
        given = plt.figure().add_subplot()
        assert plot(*arguments, ax=given) is given
        assert given.get_title()


def test_a_saved_plot_is_a_png_at_its_place_and_nothing_else(tmp_path):
    plots.save(plots.reward_bars({"own": 1.0}), tmp_path / "plots" / "bars.png")
    assert (tmp_path / "plots" / "bars.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["bars.png"]
