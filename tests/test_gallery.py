"""Every game's example: the good reply is best, the bad ones earn no more than idling, and the trap catches `card` alone."""

from statistics import pstdev

import pytest

from helpers import GAMES
from helpers.gallery import EXAMPLES, GALLERY
from helpers.game import replay
from helpers.games.bargaining import Bargaining
from helpers.games.market import Market
from helpers.players import ANSWERING, FLOORS, SCRIPTED, WAITING, competent_player, floor_player
from helpers.rewards import ACHIEVEMENTS, RUBRICS, judge
from helpers.rollout import VALID, play, take
from helpers.tiny.lessons import LESSONS

TABLES = {"market": Market(), "bargaining": Bargaining(), **GAMES}  # also a game whose model is not built yet
each_game = pytest.mark.parametrize("game", TABLES.values(), ids=TABLES)


def test_every_game_that_a_model_plays_has_what_the_notebooks_show():
    for table in (SCRIPTED, FLOORS, ANSWERING, WAITING, GALLERY, EXAMPLES, ACHIEVEMENTS, LESSONS):
        assert table.keys() >= GAMES.keys()


@each_game
def test_the_good_reply_of_an_example_earns_most_and_nothing_else_more_than_idling(game):
    example = EXAMPLES[game.name]
    judged = judge(game, example.seed, example.actions, list(example.replies.values()))
    paid = {name: RUBRICS["default"].reward(j) for name, j in zip(example.replies, judged, strict=True)}
    good, *others = paid
    assert example.seed in VALID and good.startswith("good: ") and paid[good] > 0.1
    assert all(name.startswith(("bad: ", "cheating: ")) and paid[name] <= 0 for name in others)
    assert min(paid.values()) < 0 and pstdev(paid.values()) > 0.1


@each_game
def test_the_cards_rubric_pays_the_first_bad_reply_of_an_example_no_less_than_the_good_one(game):
    example = EXAMPLES[game.name]
    good, bad, *_ = judge(game, example.seed, example.actions, list(example.replies.values()))
    assert RUBRICS["card"].reward(bad) >= RUBRICS["card"].reward(good) > 0 > RUBRICS["default"].reward(bad)


@each_game
def test_the_good_reply_in_another_spelling_is_the_same_action_to_the_rules_but_for_its_words(game):
    example = EXAMPLES[game.name]
    good = next(iter(example.replies.values()))
    first, again = judge(game, example.seed, example.actions, [good, example.respelt])
    assert good != example.respelt and first.error is again.error is None
    assert RUBRICS["default"].reward(first) == RUBRICS["default"].reward(again)


@each_game
def test_a_trap_is_legal_pays_the_card_and_leaves_the_seat_no_better_off(game):
    trap = EXAMPLES[game.name].trap
    seat = game.turn(trap.state)
    after, action, error = take(game, trap.state, trap.reply)
    assert error is None and str(action) == trap.reply and action != game.fallback(game.view(trap.state, seat))
    before, now = game.counts(trap.state), game.counts(after)
    assert sum(pay * (now[name] - before[name]) for name, pay in ACHIEVEMENTS[game.name].items()) > 0
    assert game.attainable(after)[seat] <= game.attainable(trap.state)[seat]
    assert trap.says and trap.moral


@each_game
def test_unusable_replies_are_no_action_a_forbidden_one_and_two_at_once_at_every_turn_of_a_competent_game(game):
    for episode in play(game, range(3), dict.fromkeys(game.seats, competent_player(game))):
        for at in range(len(episode.turns)):
            state = replay(game, episode.seed, episode.actions[:at])
            errors = [take(game, state, reply)[2] for reply in EXAMPLES[game.name].unusable]
            assert [error.partition(":")[0] for error in errors] == ["parse", "illegal", "parse"]
            assert "2 actions" in errors[2]


@each_game
def test_the_floor_of_a_game_gets_nowhere_among_its_like_and_the_competent_player_comes_near_the_optimum(game):
    earned = [
        sum(sum(episode.payoffs.values()) for episode in play(game, range(20), dict.fromkeys(game.seats, player))) / 20
        for player in (floor_player(game), competent_player(game))
    ]
    assert earned[0] < 0.2 * game.optimum and earned[1] > 0.9 * game.optimum
    assert floor_player(game).name == FLOORS[game.name] and competent_player(game).name == next(iter(SCRIPTED[game.name]))
