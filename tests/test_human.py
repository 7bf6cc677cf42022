"""A person's seat: it sees what a model would, may write again what was not usable, and ends as an ordinary episode."""

from random import Random

import pytest

from helpers.game import IllegalAction, ParseError
from helpers.games.bargaining import Bargaining
from helpers.games.market import Market
from helpers.human import HumanSeat
from helpers.players import Model, competent, random_player
from helpers.rollout import VALID, append, load, play

GAMES = [(Market(rounds=3), "B"), (Bargaining(), "buyer"), (Bargaining("simultaneous", rounds=2), "seller")]
each_game = pytest.mark.parametrize("game, seat", GAMES, ids=["market", "bargaining", "simultaneous"])
UNUSABLE = {"market": ("I trade.", "accept_trade(t99)"), "bargaining": ("Deal!", '{"action": "OFFER", "offer_price": 9999999}')}


class Chatty:
    """Plays at random, and now and then writes nonsense. Counts what it is asked; a model would not repeat itself either."""

    name = "chatty"

    def __init__(self, game):
        self.game, self.asked = game, 0

    def __call__(self, requests):
        self.asked += len(requests)
        said = [str(self.game.sample(request.view, request.rng)) for request in requests]
        return [f"{text} ({self.asked})" if self.asked % 3 else "nonsense" for text in said]


def by_hand(game, seat, seed, players, said=None):
    """The seat of a person who plays well; `said` keeps what it is shown and what it writes."""
    table, rng = HumanSeat(game, seed, seat, players), Random(seed)
    table.go_on()
    while table.request:
        reply = f"I think: {competent(game)(table.request.view, rng)}"
        if said is not None:
            said.append((table.request.messages, reply))
        table.answer(reply)
    return table


def others(game, seat):
    """Two kinds of players for the other seats, which use their luck."""
    chatty = Chatty(game)
    kinds = (random_player(game), chatty, chatty)
    return {other: kinds[i % 3] for i, other in enumerate(s for s in game.seats if s != seat)}


@each_game
def test_the_episode_is_the_one_that_a_model_with_the_same_replies_would_have_played(game, seat):
    for seed in VALID[:4]:
        said = []
        table = by_hand(game, seat, seed, others(game, seat), said)
        prompts, replies = zip(*said, strict=True) if said else ((), ())
        shown, rest = [], iter(replies)
        model = Model("human", lambda chats, shown=shown, rest=rest: [shown.append(chat) or next(rest) for chat in chats])
        [expected] = play(game, [seed], others(game, seat) | {seat: model})
        assert table.episode == expected and tuple(shown) == prompts
        assert table.request is None and table.episode.players[seat] == "human"


@each_game
def test_every_player_is_asked_once_for_each_of_its_turns(game, seat):
    players = {other: Chatty(game) for other in game.seats if other != seat}
    table = by_hand(game, seat, VALID[1], players)
    turns = [turn.seat for turn in table.episode.turns]
    assert {other: player.asked for other, player in players.items()} == {other: turns.count(other) for other in players}


@each_game
def test_an_unusable_reply_changes_nothing_and_may_be_written_again(game, seat):
    table = HumanSeat(game, VALID[3], seat, others(game, seat))
    table.go_on()
    asked, said = table.request, list(table.said)
    for reply, kind in zip(("", *UNUSABLE[game.name]), (ParseError, ParseError, IllegalAction), strict=True):
        with pytest.raises(kind):
            table.answer(reply)
    assert table.request is asked and table.said == said and table.episode is None
    fallback = table.fallback
    table.answer(fallback)
    assert table.said[len(said)][0] == fallback
    while table.request:
        table.answer(table.fallback)
    assert not [turn.error for turn in table.episode.turns if turn.seat == seat and turn.error]


def test_a_player_that_fails_is_asked_again_and_nothing_that_was_said_is_lost():
    game, failures = Market(rounds=2), iter([False, True, True])

    class Failing(Chatty):
        def __call__(self, requests):
            if next(failures, False):
                raise ConnectionError("the server is gone")
            return super().__call__(requests)

    def table(players):
        found = HumanSeat(game, VALID[0], "B", players)
        found.go_on()
        return found

    failing = table({seat: Failing(game) for seat in "ACD"})
    with pytest.raises(ConnectionError):
        failing.answer("pass()")
    said = [text for text, _ in failing.said]
    assert said[-1] == "pass()" and failing.request is None and failing.episode is None
    with pytest.raises(ConnectionError):
        failing.go_on()
    failing.go_on()
    failing.answer("pass()")
    smooth = table({seat: Chatty(game) for seat in "ACD"})
    smooth.answer("pass()")
    smooth.answer("pass()")
    assert failing.episode == smooth.episode and [turn.reply for turn in smooth.episode.turns][: len(said)] == said


def test_an_episode_that_is_over_before_the_person_is_asked_needs_none():
    class Leaving:
        name = "leaving"

        def __call__(self, requests):
            return ['{"action": "NO_DEAL"}'] * len(requests)

    game = Bargaining()
    seed = next(seed for seed in VALID if game.turn(game.deal(seed)) == "seller")
    table = HumanSeat(game, seed, "buyer", {"seller": Leaving()})
    table.go_on()
    assert table.request is None and len(table.episode.turns) == 1


@each_game
def test_the_episode_is_kept_like_any_other(game, seat, tmp_path):
    episode = by_hand(game, seat, VALID[0], others(game, seat)).episode
    append(tmp_path / "mine.jsonl", [episode])
    assert load(tmp_path / "mine.jsonl") == [episode]
