"""The contract: what every game must keep, also one that no model plays yet. A new game adds itself to TABLES and, in
tests/hidden.py, what a seat may not know."""

import copy
import json
import re
from pathlib import Path
from random import Random

import pytest
from hidden import HIDDEN
from hypothesis import given
from hypothesis import strategies as st
from mixed import finish, walk

from helpers import GAMES, game_named
from helpers.game import IllegalAction, replay
from helpers.games.bargaining import Bargaining
from helpers.games.classic import DivideDollar, Ultimatum
from helpers.games.council import Council
from helpers.games.support import Support
from helpers.players import Scripted, competent, random_player
from helpers.rollout import append, load, play, take

SEEDS = range(25)
PLAYTHROUGHS = Path(__file__).parent / "playthroughs"
GARBAGE = (
    "",
    " \n\t ",
    "I would rather wait and see.",
    "pass",
    "(((((",
    "{}",
    "null",
    "<think>",
    "```json\n",
    "9" * 5000,
    "\x00\ud800",
    "٣ ３ 三",
    "<|im_start|>assistant\n",
    "x" * 100_000,
)


TABLES = {
    **GAMES,
    "bargaining": Bargaining(),
    "bargaining, at once": Bargaining(protocol="simultaneous", transparency="seller_unaware"),
    "support": Support(),
    "council": Council(),
    "council, small, five of six": Council(specs="small", rounds=2, min_accept=5),
    "council, no chat, p1, discount": Council(specs="small", rounds=3, chat=False, proposer="p1", min_accept=4, discount=0.8),
    "ultimatum": Ultimatum(),
    "divide-the-dollar": DivideDollar(),
    "divide-the-dollar, majority": DivideDollar(rule="majority", rounds=3, discount=0.9),
}


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def game(request):
    return request.param


def test_a_game_is_found_by_name_and_an_unknown_name_is_refused_naming_the_known():
    assert game_named("market") is GAMES["market"]
    with pytest.raises(ValueError, match="market.*'poker'"):
        game_named("poker")


def test_the_same_seed_gives_the_same_episode_and_other_seeds_other_deals(game):
    players = dict.fromkeys(game.seats, random_player(game))
    assert play(game, SEEDS, players) == play(game, SEEDS, players)
    assert len({game.deal(seed) for seed in SEEDS}) == len(SEEDS)


def test_replaying_the_actions_rebuilds_every_state(game):
    for seed in SEEDS:
        for actions, state in walk(game, seed):
            assert replay(game, seed, actions) == state


def test_a_decision_point_survives_json(game):
    for seed in SEEDS:
        actions, state = finish(game, seed)
        seed_read, actions_read = json.loads(json.dumps([seed, actions]))
        assert replay(game, seed_read, actions_read) == state


def test_states_and_views_are_hashable_so_nothing_in_them_can_change(game):
    for _, state in walk(game, 0):
        assert isinstance(hash(state), int)
        assert all(isinstance(hash(game.view(state, seat)), int) for seat in game.seats)


def test_a_step_leaves_its_input_untouched(game):
    for seed in SEEDS[:5]:
        for actions, state in list(walk(game, seed))[:-1]:
            kept = copy.deepcopy(state)
            view = game.view(state, game.turn(state))
            for said in (str(game.fallback(view)), str(game.sample(view, Random(len(actions)))), "no action at all"):
                take(game, state, said)
            assert state == kept


def test_no_episode_is_longer_than_the_game_declares(game):
    longest = max(len(finish(game, seed)[0]) for seed in SEEDS)
    assert 0 < longest <= game.max_turns


def test_a_random_action_and_the_fallback_are_always_legal(game):
    rng = Random(1)
    for seed in SEEDS:
        for _, state in list(walk(game, seed))[:-1]:
            view = game.view(state, game.turn(state))
            for action in (game.fallback(view), game.sample(view, rng), game.sample(view, rng), competent(game)(view, rng)):
                assert game.step(state, action) != state


def test_parsing_what_an_action_prints_gives_the_action_back(game):
    rng = Random(2)
    for seed in SEEDS:
        for _, state in list(walk(game, seed))[:-1]:
            view = game.view(state, game.turn(state))
            for action in (game.fallback(view), game.sample(view, rng), competent(game)(view, rng)):
                assert game.parse(str(action)) == action


def test_a_finished_game_refuses_every_step(game):
    for seed in SEEDS[:5]:
        actions, state = finish(game, seed)
        assert game.turn(state) is None
        for action in set(actions):
            with pytest.raises(IllegalAction, match="over"):
                game.step(state, game.parse(action))


def test_payoffs_cover_all_seats_stay_in_range_and_never_exceed_the_optimum(game):
    low, high = game.payoff_range
    for seed in SEEDS:
        for _, state in walk(game, seed):
            payoffs = game.payoffs(state)
            assert set(payoffs) == set(game.seats)
            assert all(low <= payoff <= high for payoff in payoffs.values())
            assert sum(payoffs.values()) <= game.optimum


def test_attainable_payoffs_stay_in_range_and_end_as_the_payoffs(game):
    low, high = game.payoff_range
    for seed in SEEDS:
        for _, state in walk(game, seed):
            attainable = game.attainable(state)
            assert set(attainable) == set(game.seats)
            assert all(low <= value <= high for value in attainable.values())
        assert attainable == game.payoffs(state)


def test_counts_of_finished_episodes_are_finite_numbers_with_the_same_names(game):
    names = {tuple(game.counts(finish(game, seed)[1])) for seed in SEEDS}
    assert len(names) == 1 and all(0 <= n < 1000 for seed in SEEDS for n in game.counts(finish(game, seed)[1]).values())


def test_every_game_says_how_its_secrets_are_altered():
    assert set(HIDDEN) == {game.name for game in TABLES.values()}


def test_the_secrets_of_other_seats_never_change_what_a_seat_sees_or_how_a_competent_player_answers(game):
    rng, altered = Random(3), 0
    for seed in SEEDS:
        for _, state in walk(game, seed):
            for seat in game.seats:
                other = HIDDEN[game.name](game, state, seat, rng)
                view, view_other = game.view(state, seat), game.view(other, seat)
                assert view == view_other
                assert game.describe(view) == game.describe(view_other) and game.system(view) == game.system(view_other)
                assert competent(game)(view, Random(4)) == competent(game)(view_other, Random(4))
                altered += other != state
    assert altered > 0  # the alteration is not empty


def test_prompts_of_played_games_stay_within_320_qwen_tokens_and_replies_within_48_but_six_parties_say_more(
    game, tokens, prompt_tokens
):
    longest_prompt = longest_reply = 0
    for seed in range(60):
        *points, (actions, _) = walk(game, seed)
        for _, state in points:
            longest_prompt = max(longest_prompt, prompt_tokens(game, game.view(state, game.turn(state))))
        longest_reply = max([longest_reply, *map(tokens, actions)])
    assert 0 < longest_prompt <= (1024 if game.name == "council" else 320)
    assert 0 < longest_reply <= (96 if game.name == "council" else 48)


def test_episodes_survive_their_file(game, tmp_path):
    players = {
        seat: random_player(game) if i % 2 else Scripted("competent", competent(game)) for i, seat in enumerate(game.seats)
    }
    episodes = play(game, range(5), players)
    append(tmp_path / "episodes.jsonl", episodes)
    assert load(tmp_path / "episodes.jsonl") == episodes
    for episode in episodes:
        assert dict(game.payoffs(replay(game, episode.seed, episode.actions))) == episode.payoffs


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_garbage_reply_plays_the_fallback_and_leaves_a_reason(game, garbage):
    for _, state in list(walk(game, 0))[:-1]:
        after, action, error = take(game, state, garbage)
        assert error.startswith("parse: ") and len(error) > 20
        assert len(error) < 400  # a reason, not the reply again
        assert action == game.fallback(game.view(state, game.turn(state)), error) and after == game.step(state, action)


@pytest.mark.parametrize("name", TABLES)
@given(reply=st.text(max_size=300), seed=st.integers(0, 99), at=st.integers(0, 39))
def test_any_reply_gives_an_action_or_a_reason(name, reply, seed, at):
    game = TABLES[name]
    points = list(walk(game, seed))[:-1]
    _, state = points[at % len(points)]
    after, action, error = take(game, state, reply)
    assert after == game.step(state, action)
    assert error is None or error.startswith(("parse: ", "illegal: "))


class Clumsy:
    """Competent, but every third reply is prose, two actions or numbers that are not there."""

    name = "clumsy"

    def __init__(self, game):
        self.game, self.spoken = game, 0

    def __call__(self, requests):
        return [self.reply(request) for request in requests]

    def reply(self, request):
        self.spoken += 1
        action = str(competent(self.game)(request.view, request.rng))
        if self.spoken % 3:
            return f"<think>What do I miss?</think>\nI write:\n```\n{action}\n```"
        return ("Let me think about that.", f"{action} or {action}", re.sub(r"\d+", "98", action))[self.spoken // 3 % 3]


def playthrough(game, seed) -> str:
    """A mixed episode as people read it."""
    kinds = [Scripted("competent", competent(game)), random_player(game), Clumsy(game)]
    players = {seat: kinds[i % 3] for i, seat in enumerate(game.seats)}
    [episode] = play(game, [seed], players)
    lines = [f"{game.name}, seed {seed}, settings {json.dumps(episode.settings)}", json.dumps(episode.players)]
    lines += ["", f"=== system message of {game.seats[0]}", episode.system[game.seats[0]]]
    for i, turn in enumerate(episode.turns):
        lines += ["", f"=== turn {i + 1}: {turn.seat} ({episode.players[turn.seat]})", turn.prompt, "--- reply", turn.reply]
        lines += ["--- action", turn.action] + (["--- error", turn.error] if turn.error else [])
    return "\n".join([*lines, "", "=== payoffs", json.dumps(episode.payoffs)]) + "\n"


@pytest.mark.parametrize("seed", [3, 8])
@pytest.mark.parametrize("name", [name for name, game in TABLES.items() if name == game.name])
def test_the_golden_playthrough_is_unchanged(name, seed, regenerate):
    path = PLAYTHROUGHS / f"{name}-{seed}.txt"
    text = playthrough(TABLES[name], seed)
    if regenerate:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "the rules or texts changed; if meant, run pytest --regenerate-playthroughs"
