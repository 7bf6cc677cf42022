"""The reward lab: its figures are the rubric's, its controls react. A person's seat: its buttons do what they say. The viewer
shows what has happened so far. What people and models write is escaped."""

import builtins
import re
from random import Random

import pytest

from helpers import GAMES, widgets
from helpers.card import transcript
from helpers.gallery import GALLERY, score
from helpers.game import replay
from helpers.games.bargaining import Bargaining, hardball
from helpers.players import Model, Scripted, competent
from helpers.rewards import RUBRICS, TERMS, Rubric, judge, rubric
from helpers.rollout import VALID, append, load, play

GAME = GAMES["market"]
# The position of notebook 03: D misses Stone and can spare Wood (so t1 helps it), it needs Grain and no Iron (so t2 hurts it).
SEED, ACTIONS = VALID[29], ("propose_trade(D, {Stone: 1}, {Wood: 1})", "propose_trade(D, {Iron: 1}, {Grain: 1})", "pass()")
TURN = 9  # where the lab opens, in mixed play
DEFAULT = RUBRICS["default"].weights


@pytest.fixture
def lab(monkeypatch):
    """The lab with its controls, as in a notebook."""
    monkeypatch.setattr(widgets, "headless", lambda: False)
    return widgets.reward_lab(GAME, RUBRICS["default"], SEED, TURN)


def reward(weights, reply, seed=SEED, turn=TURN):
    """What a rubric pays in mixed play, without the lab."""
    actions = widgets.mixed_play(GAME, seed)[: turn - 1]
    return Rubric("any", weights).reward(judge(GAME, seed, actions, [reply])[0])


@pytest.mark.parametrize("name", RUBRICS)
@pytest.mark.parametrize(
    "reply", ["accept_trade(t1)", "accept_trade(t2)", "pass()", "accept_trade(abc123)", "pass() build_project()"]
)
def test_the_total_is_the_rubrics_reward_and_the_sum_of_the_weighted_terms(name, reply):
    data = widgets.lab_data(GAME, RUBRICS[name], SEED, ACTIONS, reply)
    assert data["total"] == RUBRICS[name].reward(judge(GAME, SEED, ACTIONS, [reply])[0])
    assert data["total"] == pytest.approx(sum(weighted for _, _, weighted in data["terms"].values()))
    assert list(data["terms"]) == list(TERMS)


def test_the_default_rubric_tells_the_offer_that_helps_from_the_one_that_hurts_and_the_card_does_not():
    total = {
        (name, reply): widgets.lab_data(GAME, RUBRICS[name], SEED, ACTIONS, reply)["total"]
        for name in RUBRICS
        for reply in ("accept_trade(t1)", "accept_trade(t2)")
    }
    assert total["default", "accept_trade(t1)"] > 0 > total["default", "accept_trade(t2)"]
    assert total["card", "accept_trade(t1)"] == total["card", "accept_trade(t2)"] == 0.5 + 0.3 + 0.2  # form, activity, a trade


def test_an_unusable_reply_is_shown_with_its_reason_and_what_was_played_instead():
    data = widgets.lab_data(GAME, RUBRICS["default"], SEED, ACTIONS, "accept_trade(t99)")
    assert data["error"] == "illegal: no offer t99 is pending for you (pending: t1, t2)"
    assert data["action"] == "pass()"
    assert data["error"] in widgets.lab_html(data)


def test_the_ranking_holds_every_strategy_of_the_gallery_best_first_with_the_gallerys_own_score():
    ranking = widgets.lab_data(GAME, RUBRICS["card"], SEED, ACTIONS, "pass()")["ranking"]
    assert sorted(strategy.name for strategy, _ in ranking) == sorted(GALLERY["market"])
    rewards = [x for _, x in ranking]
    assert rewards == sorted(rewards, reverse=True)
    best, x = ranking[0]
    assert x == pytest.approx(score(GAME, best, RUBRICS["card"], widgets.GALLERY_SEEDS))


def test_moving_a_weight_changes_total_ranking_bars_and_export(lab):
    before, ranking = lab.controls["page"].value, lab.data["ranking"]
    lab.controls["own"].value = -2.0
    assert lab.data["total"] == reward(DEFAULT | {"own": -2.0}, lab.data["reply"])
    assert lab.data["ranking"] != ranking
    assert lab.controls["page"].value == lab.page != before
    assert f"{lab.data['total']:+.3f}" in lab.controls["page"].value
    assert "&quot;own&quot;: -2.0" in lab.controls["page"].value


def test_every_term_has_a_slider_that_can_reach_its_weight_in_every_rubric(lab):
    for name in TERMS:
        slider = lab.controls[name]
        assert all(slider.min <= item.weights.get(name, 0) <= slider.max for item in RUBRICS.values())


def test_a_weight_beyond_the_usual_range_widens_its_slider(monkeypatch):
    monkeypatch.setattr(widgets, "headless", lambda: False)
    lab = widgets.reward_lab(GAME, Rubric("steep", {"own": 50.0}), SEED, TURN)
    assert lab.controls["own"].value == 50.0


def test_writing_a_reply_judges_it(lab):
    lab.controls["reply"].value = "I pass."
    assert lab.data["total"] == reward(DEFAULT, "I pass.") == -DEFAULT["form"]  # no action: the penalty for form
    assert "<code>I pass.</code>" in lab.controls["page"].value


def test_picking_a_position_shows_its_prompt_and_judges_there(lab):
    lab.controls["seed"].value = VALID[5]
    lab.controls["turn"].value = 3
    state = replay(GAME, VALID[5], widgets.mixed_play(GAME, VALID[5])[:2])
    assert lab.data["prompt"] == GAME.describe(GAME.view(state, GAME.turn(state)))
    assert lab.data["total"] == reward(DEFAULT, lab.data["reply"], VALID[5], 3)


def test_a_turn_after_the_end_of_a_short_episode_is_its_last():
    game = Bargaining()
    lab = widgets.reward_lab(game, RUBRICS["default"], SEED, 30)
    assert lab.data["turn"] == len(widgets.mixed_play(game, SEED)) < 30 and lab.data["error"] is None


def test_every_turn_that_can_be_picked_is_a_decision_point(lab):
    for seed in VALID[:8]:
        lab.controls["seed"].value = seed
        lab.controls["turn"].value = lab.controls["turn"].max
        assert lab.data["turn"] == len(widgets.mixed_play(GAME, seed))


def test_starting_from_another_rubric_moves_all_sliders_to_it(lab):
    lab.controls["start"].value = "card"
    assert lab.rubric.weights == RUBRICS["card"].weights
    assert {name: lab.controls[name].value for name in TERMS} == {name: RUBRICS["card"].weights.get(name, 0.0) for name in TERMS}


def test_the_exported_json_is_read_back_as_the_same_rubric(lab):
    lab.controls["card_strategic"].value = 0.25
    assert rubric(lab.data["rubric"]) == lab.rubric
    assert lab.rubric.weights == DEFAULT | {"card_strategic": 0.25}


def test_a_weight_that_a_front_end_returns_a_rounding_error_off_is_exported_as_it_is_shown(lab):
    lab.controls["own"].value = 1.5
    lab.controls["form"].value = 0.2999999999999998
    assert rubric(lab.data["rubric"]) == Rubric("mine", DEFAULT | {"form": 0.3, "own": 1.5})


def test_with_every_weight_at_zero_all_rewards_are_zero_and_the_export_can_still_be_read(lab):
    for name in TERMS:
        lab.controls[name].value = 0.0
    assert lab.data["total"] == 0 and {x for _, x in lab.data["ranking"]} == {0.0}
    assert rubric(lab.data["rubric"]) == lab.rubric


def test_markup_in_a_reply_or_a_rubrics_name_is_escaped():
    evil = "<script>alert('x')</script><img src=x onerror=alert(1)>"
    page = widgets.lab_html(widgets.lab_data(GAME, Rubric(evil, {"own": 1.0}), SEED, ACTIONS, evil))
    assert "<script" not in page and "<img" not in page
    assert page.count("&lt;script&gt;") >= 3  # the reply, the reason that quotes it, the rubric's name


def test_a_bar_is_as_long_as_its_value_and_stands_on_its_side_of_zero():
    svg = widgets.bars({"up": 3.0, "down": -1.0}, {"up": "blue", "down": "red"})
    # 200 pixels from x = 130 span -1..3, so a unit is 50 pixels, and zero is at 130 + 50 = 180.
    assert '<rect x="180.0" y="3" width="150.0" height="16" fill="blue"/>' in svg
    assert '<rect x="130.0" y="25" width="50.0" height="16" fill="red"/>' in svg


def test_headless_the_lab_is_a_static_page_with_the_same_content(lab, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("PARLEY_HEADLESS", "1")
    static = widgets.reward_lab(GAME, RUBRICS["default"], SEED, TURN)
    assert static.box is None and static.controls == {}
    assert static.page == lab.controls["page"].value


def test_without_ipywidgets_or_outside_a_notebook_the_lab_is_headless(monkeypatch):
    monkeypatch.delenv("PARLEY_HEADLESS", raising=False)
    assert widgets.headless()  # pytest is no notebook kernel
    monkeypatch.setattr("IPython.get_ipython", lambda: type("Shell", (), {"kernel": None})())
    assert not widgets.headless()
    real = builtins.__import__

    def without_ipywidgets(name, *rest):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_ipywidgets)
    assert widgets.headless()


def test_the_last_line_of_a_cell_shows_the_widgets_or_the_static_page(lab, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    lab._ipython_display_()
    assert shown == [lab.box]
    lab.box = None
    lab._ipython_display_()
    assert shown[1].data == lab.page


# --- a person's seat


@pytest.fixture
def sit(monkeypatch):
    """sit(game, seat, **players): the board with its controls, as in a notebook; competent players hold the other seats."""
    monkeypatch.setattr(widgets, "headless", lambda: False)

    def board(game, seat, **players):
        trader = Scripted("competent", competent(game))
        others = {other: trader for other in game.seats if other != seat}
        return widgets.play_seat(game, VALID[0], seat, others | players)

    return board


@pytest.mark.parametrize("game, seat", [(GAME, "C"), (Bargaining(), "buyer"), (Bargaining(), "seller")])
def test_a_person_reads_the_prompt_of_a_model_writes_replies_and_ends_with_an_episode_that_can_be_kept(sit, game, seat, tmp_path):
    board = sit(game, seat)
    page, reply, send, rng = *(board.controls[name] for name in ("page", "reply", "send")), Random(0)
    while board.table.request:
        assert all(widgets.pre(message["content"]) in page.value for message in board.table.request.messages)
        reply.value = str(competent(game)(board.table.request.view, rng))
        send.click()
        assert reply.value == ""
    assert "The episode is over" in page.value and "payoffs at the end" in page.value
    assert all(board.controls[name].disabled for name in ("send", "fallback", "again"))
    append(tmp_path / "mine.jsonl", [board.episode])
    assert load(tmp_path / "mine.jsonl") == [board.episode]
    assert {turn.seat for turn in board.episode.turns} == set(game.seats)


def test_an_unusable_reply_stays_in_its_box_with_the_reason_above_the_same_prompt(sit):
    board = sit(GAME, "A")
    before = board.controls["page"].value
    for text, reason in (("", "no action found"), ("accept_trade(t9)", "no offer t9"), ("pass() pass()", "ambiguous: found 2")):
        board.controls["reply"].value = text
        board.controls["send"].click()
        page = board.controls["page"].value
        assert board.controls["reply"].value == text and f"Not usable: {reason}" in page
        assert all(widgets.pre(message["content"]) in page for message in board.table.request.messages)
        assert not board.controls["send"].disabled and board.controls["again"].disabled
    board.controls["reply"].value = "pass()"
    board.controls["send"].click()
    assert "Not usable" not in board.controls["page"].value != before


def test_the_fallback_is_written_into_the_box_and_played_only_when_it_is_sent(sit):
    board = sit(Bargaining(), "buyer")
    said = len(board.table.said)
    board.controls["fallback"].click()
    assert board.controls["reply"].value == '{"message": "", "action": "NO_DEAL"}' and len(board.table.said) == said
    board.controls["send"].click()
    assert board.episode.actions[-1] == '{"message": "", "action": "NO_DEAL"}'


def test_a_player_that_fails_is_told_of_and_asked_again_by_a_button_without_losing_the_reply(sit):
    failures = iter([True, True])

    def failing(chats):
        if next(failures, False):
            raise ConnectionError("no <server>")
        return ["pass()"] * len(chats)

    board = sit(GAME, "A", B=Model("far away", failing))
    board.controls["reply"].value = "pass()"
    for button in ("send", "again"):
        board.controls[button].click()
        assert "Another player failed (ConnectionError): no &lt;server&gt;" in board.controls["page"].value
        assert board.controls["send"].disabled and board.controls["reply"].value == ""
    board.controls["again"].click()
    assert [text for text, _ in board.table.said][:2] == ["pass()", "pass()"] and board.table.request
    assert "failed" not in board.controls["page"].value and board.controls["again"].disabled


def test_what_another_player_writes_is_escaped(sit):
    board = sit(GAME, "A", B=Model("evil", lambda chats: ["<script>alert(1)</script> <img src=x>"] * len(chats)))
    while board.table.request:
        board.controls["fallback"].click()
        board.controls["send"].click()
    page = board.controls["page"].value
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page  # quoted in the transcript


def test_headless_the_seat_is_one_line_and_nobody_is_asked(monkeypatch, capsys):
    monkeypatch.setenv("PARLEY_HEADLESS", "1")
    board = widgets.play_seat(GAME, VALID[0], "C", dict.fromkeys("ABD", Model("unasked", None)))
    board._ipython_display_()
    assert capsys.readouterr().out.startswith("seat C waits for a person: ") and board.episode is None


# --- episodes, turn by turn


@pytest.fixture(scope="module")
def talks():
    """Bargaining, and two episodes that take all their turns; the second one's buyer thinks aloud, in markup, before it acts."""
    game, evil = Bargaining(), "<script>alert(1)</script> "
    bluff = Scripted("<b>bluff</b>", lambda view, rng: evil + str(hardball(view, rng)))
    plain = Scripted("hardball", hardball)
    return game, [play(game, [VALID[0]], {"buyer": buyer, "seller": plain})[0] for buyer in (plain, bluff)]


def test_the_viewer_shows_turn_by_turn_what_was_said_and_the_picture_so_far(monkeypatch, talks):
    monkeypatch.setattr(widgets, "headless", lambda: False)
    game, episodes = talks
    viewer = widgets.watch(game, episodes)
    page, turn, number = (viewer.controls[name] for name in ("page", "turn", "episode"))
    assert turn.value == turn.max == len(episodes[0].turns) == 8
    pictures = set()
    for turns in range(1, 9):
        turn.value = turns
        assert page.value == viewer.page == widgets.viewer_html(game, episodes[0], turns)
        assert widgets.pre(transcript(episodes[0], stop=turns)) in page.value and f">Turn {turns}, " in page.value
        pictures.add(re.search(r'alt="([^"]*)" src="data:image/png;base64,([^"]*)"', page.value).groups())
    assert len({image for _, image in pictures}) == 8 and f"Episode of seed {VALID[0]}: 3 of 8 turns" in {
        name for name, _ in pictures
    }
    number.value = 2
    assert page.value == widgets.viewer_html(game, episodes[1], 8)


def test_the_viewer_shows_the_whole_reply_of_its_turn_and_escapes_it(talks):
    game, [_, episode] = talks
    pages = [widgets.viewer_html(game, episode, turns) for turns in (1, 2)]
    assert sorted("&lt;script&gt;alert(1)" in page for page in pages) == [False, True]  # the buyer's turn
    assert not any("<script" in page or "<b>bluff" in page for page in pages)


def test_headless_and_in_a_game_without_a_picture_the_viewer_is_the_whole_first_episode(monkeypatch):
    monkeypatch.setenv("PARLEY_HEADLESS", "1")
    episodes = play(GAME, VALID[:2], dict.fromkeys(GAME.seats, Scripted("competent", competent(GAME))))
    viewer, shown = widgets.watch(GAME, episodes), []
    assert viewer.box is None and widgets.pre(transcript(episodes[0])) in viewer.page and "<img" not in viewer.page
    monkeypatch.setattr("IPython.display.display", shown.append)
    viewer._ipython_display_()
    assert shown[0].data == viewer.page
