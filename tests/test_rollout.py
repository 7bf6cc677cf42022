"""Play in lockstep, and episode files that lose at most the line that was being written."""

import json
import signal
import subprocess
import sys
import time
import warnings
from itertools import combinations
from pathlib import Path

import pytest
from toy import Chatter

from helpers.games.bargaining import Bargaining
from helpers.games.market import Market
from helpers.players import Model, Scripted, random_player, scripted
from helpers.rollout import TEST, TRAIN, VALID, append, load, messages_of, play, prompts_of, take

GAME = Market(rounds=3)
PLAYERS = {
    "A": random_player(GAME),
    "B": scripted(GAME, "greedy"),
    "C": random_player(GAME),
    "D": scripted(GAME, "always-accept"),
}


class Counting:
    """Plays at random and keeps the size of every batch it is given."""

    name = "counting"

    def __init__(self):
        self.batches = []

    def __call__(self, requests):
        self.batches.append(len(requests))
        return random_player(GAME)(requests)


def test_lockstep_gives_the_same_episodes_as_one_after_another():
    together = play(GAME, range(8), PLAYERS)
    assert together == [play(GAME, [seed], PLAYERS)[0] for seed in range(8)]
    assert play(GAME, [5, 2], PLAYERS) == [together[5], together[2]]


def test_a_player_gets_one_batch_a_tick_with_a_request_from_every_episode():
    everywhere, one_seat = Counting(), Counting()
    play(GAME, range(16), dict.fromkeys("ABCD", everywhere))
    assert everywhere.batches == [16] * 12  # 3 rounds x 4 seats; one player for all seats
    play(GAME, range(16), PLAYERS | {"C": one_seat})
    assert one_seat.batches == [16] * 3  # its own moves only


def test_seats_have_their_own_luck_so_another_player_elsewhere_does_not_change_it():
    drawn = {}
    for name in ("greedy", "pass"):

        def note(view, rng, name=name):
            drawn.setdefault(name, []).append(rng.random())
            return "pass()"

        play(GAME, [1], dict.fromkeys("BCD", scripted(GAME, name)) | {"A": Scripted("note", note)})
    assert drawn["greedy"] == drawn["pass"] and len(set(drawn["pass"])) == 3


def test_progress_is_told_after_every_tick_how_many_episodes_are_over():
    told = []
    play(GAME, range(4), PLAYERS, progress=told.append)
    assert told == [0] * 11 + [4]


def test_a_turn_keeps_prompt_reply_action_and_error():
    said = {"A": "pass()", "B": "I say nothing.", "C": "accept_trade(t9)", "D": "`Propose_Trade(a,{gold:77},{iron:1})`"}
    [episode] = play(
        Market(rounds=1), [0], {seat: Scripted(seat, lambda view, rng, text=text: text) for seat, text in said.items()}
    )
    assert [turn.reply for turn in episode.turns] == list(said.values())
    assert [turn.action for turn in episode.turns] == ["pass()"] * 4
    errors = [turn.error for turn in episode.turns]
    assert errors[0] is None and errors[1].startswith("parse: no action found") and errors[2].startswith("illegal: no offer t9")
    assert errors[3].startswith("illegal: you do not hold Gold:77")
    assert episode.turns[0].prompt.startswith("Round 1/1 | Agent A") and "propose_trade" in episode.system["A"]
    assert (episode.game, episode.settings, episode.players) == ("market", {"rounds": 1}, {s: s for s in "ABCD"})


def test_a_model_player_is_given_the_chats_and_nothing_else():
    asked = []
    model = Model("fake", lambda chats: asked.extend(chats) or ["pass()"] * len(chats))
    play(GAME, [3], PLAYERS | {"A": model})
    view = GAME.view(GAME.deal(3), "A")
    assert asked[0] == messages_of(GAME, view) and [m["role"] for m in asked[0]] == ["system", "user"]


def test_a_player_that_returns_too_few_replies_is_a_bug_and_raises():
    with pytest.raises(ValueError):
        play(GAME, range(2), PLAYERS | {"A": Model("short", lambda chats: ["pass()"])})


def test_a_bug_in_the_rules_is_not_taken_for_a_bad_reply(monkeypatch):
    monkeypatch.setattr(Market, "_call", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        take(GAME, GAME.deal(0), "form_coalition([A, B])")
    monkeypatch.setattr(Market, "parse", lambda *_: [][0])
    with pytest.raises(IndexError):
        take(GAME, GAME.deal(0), "pass()")


# --- chat memory


def said_in_turn(game, replies, player="said"):
    """The requests of one episode whose turns are answered with `replies`, and the episode."""
    asked = []

    def answer(requests):
        asked.extend(requests)
        return [replies[len(asked) - 1]]

    answer.name = player
    [episode] = play(game, [3], dict.fromkeys(game.seats, answer))
    return asked, episode


def test_in_a_game_without_memory_every_prompt_is_complete_and_in_a_chat_game_it_grows_by_reply_and_news():
    offers = [f'thinking... {{"message": "", "action": "OFFER", "offer_price": {price}}}' for price in (100, 90, 80, 70)]
    game = Bargaining(rounds=2, offer_sanity_mult=None)
    asked, _ = said_in_turn(game, offers)
    first, second = asked[0], asked[2]
    assert first.seat == second.seat and first.messages == messages_of(game, first.view)
    assert second.messages == (
        *first.messages,
        {"role": "assistant", "content": offers[0]},  # word for word: its own action is not told again
        {"role": "user", "content": game.describe(second.view, since=1)},
    )
    assert "OFFER 90.00" in second.messages[-1]["content"] and "100" not in second.messages[-1]["content"]
    assert "OFFER 100.00" in asked[1].messages[-1]["content"] and "thinking" not in str(asked[1].messages)
    for request in said_in_turn(GAME, ["pass()"] * 12)[0]:
        assert request.messages == messages_of(GAME, request.view)


@pytest.mark.parametrize("reply", ["pass()", "nonsense", "accept_trade(t1)"])
def test_a_seat_is_told_its_own_action_only_when_the_fallback_was_played_in_its_place(reply):
    asked, episode = said_in_turn(Chatter(rounds=3), ["pass()", "pass()", reply, "pass()", "pass()", "pass()"])
    told = "" if reply == "pass()" else "You: form_coalition()\n"
    assert [message["content"] for message in asked[4].messages[4:]] == [reply, f"{told}{asked[1].seat}: pass()\nAction:"]
    assert episode.turns[4].prompt == asked[4].messages[-1]["content"]


def test_a_transcript_holds_every_message_and_reply_of_both_chats_once():
    asked, episode = said_in_turn(Chatter(rounds=3), ["pass()", "nonsense", "propose_trade(x)"] * 2)
    for seat in "AB":
        *_, last = [request for request in asked if request.seat == seat]
        turns = [text for turn in episode.turns if turn.seat == seat for text in (turn.prompt, turn.reply)]
        assert [message["content"] for message in last.messages] == [episode.system[seat], *turns[:-1]]


@pytest.mark.parametrize(
    "game, replies",
    [
        (GAME, ["pass()", "nonsense", "form_coalition([A, B])"] * 4),
        (Chatter(rounds=3), ["pass()", "nonsense", "propose_trade(x)"] * 2),
        (Bargaining(offer_sanity_mult=None), ['hm {"message": "hm", "action": "OFFER", "offer_price": 1}'] * 3 + ["nonsense"]),
    ],
)
def test_the_prompts_of_an_episode_are_those_that_its_players_were_shown(game, replies):
    asked, episode = said_in_turn(game, replies)
    assert prompts_of(game, episode) == [request.messages for request in asked] and len(asked) > 1


@pytest.mark.parametrize("protocol", ["sequential", "simultaneous"])
def test_in_bargaining_a_chat_tells_every_action_of_the_other_side_once_and_none_of_its_own(protocol):
    game, asked = Bargaining(protocol=protocol), {}

    def note(requests):
        asked.update({(request.episode, request.seat): request for request in requests})
        return random_player(game)(requests)

    note.name = "random"
    play(game, range(80), dict.fromkeys(game.seats, note))
    long = 0
    for request in asked.values():
        told = [line for message in request.messages[1::2] for line in message["content"].split("\n") if line[0] == "#"]
        known = [line for line in game.describe(request.view).split("\n") if line[0] == "#"]
        assert told == [line for line in known if not line.startswith("# You")]
        long += len(told) > 1
    assert long > 20


def test_every_episode_can_have_players_of_its_own():
    tables = [PLAYERS, PLAYERS | {"A": scripted(GAME, "pass")}, PLAYERS]
    episodes = play(GAME, [4, 4, 5], tables)
    assert episodes[0::2] == play(GAME, [4, 5], PLAYERS)
    assert episodes[1] == play(GAME, [4], tables[1])[0] and episodes[1].players["A"] == "pass"


# --- files


@pytest.fixture
def episodes():
    return play(GAME, range(3), PLAYERS)


def test_episodes_survive_their_file_and_appending_keeps_the_order(tmp_path, episodes):
    path = tmp_path / "new" / "e.jsonl"
    append(path, episodes[:1])
    append(path, episodes[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(path) == episodes
    assert [json.loads(line)["schema"] for line in path.read_text().splitlines()] == [1, 1, 1]


def test_any_text_of_a_model_stays_on_its_own_line(tmp_path):
    said = Scripted("odd", lambda view, rng: 'two\nlines \u2028 "quoted" \x00 \ud800')
    odd = play(GAME, [0], dict.fromkeys("ABCD", said))
    append(tmp_path / "e.jsonl", odd)
    assert load(tmp_path / "e.jsonl") == odd
    assert (tmp_path / "e.jsonl").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("cut", [1, 2, 500])
def test_a_torn_last_line_is_skipped_with_a_warning_and_appending_keeps_all_whole_lines(tmp_path, episodes, cut):
    path = tmp_path / "e.jsonl"
    append(path, episodes[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(UserWarning, match="line 2 is torn"):
        assert load(path) == episodes[:1]
    with pytest.warns(UserWarning, match="torn"):
        append(path, episodes[2:])
    assert load(path) == [episodes[0], episodes[2]]


def test_an_empty_file_holds_no_episodes(tmp_path, episodes):
    path = tmp_path / "e.jsonl"
    path.touch()
    assert load(path) == []
    append(path, episodes)
    assert load(path) == episodes


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "Expecting"),
        ("", "Expecting"),
        ("[]", "str"),  # json gives a list, which has no "schema"
        ('{"schema": 1}', "turns"),
        ('{"seed": 1}', "schema"),
        ('{"schema": 2, "turns": []}', "expected schema 1, got 2"),
        ('{"schema": 1, "turns": [{"seat": "A"}]}', "prompt"),
        ("\udcff", "utf-8"),
    ],
)
def test_a_bad_line_is_an_error_that_names_the_line(tmp_path, episodes, line, reason):
    path = tmp_path / "e.jsonl"
    append(path, episodes)
    lines = path.read_bytes().split(b"\n")
    lines[1] = line.encode(errors="surrogateescape")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=f"line 2 is not an episode: .*{reason}"):
        load(path)


WRITER = """
import sys
from pathlib import Path
from helpers.games.market import Market
from helpers.players import random_player
from helpers.rollout import append, play
game = Market(rounds=3)
episodes = play(game, range(50), dict.fromkeys(game.seats, random_player(game)))
while True:
    append(Path(sys.argv[1]), episodes)
"""


def test_a_killed_writer_loses_at_most_its_last_line(tmp_path):
    path = tmp_path / "e.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=Path(__file__).parent.parent)
    started = time.monotonic()
    while not (path.exists() and path.stat().st_size > 100_000):
        assert writer.poll() is None and time.monotonic() - started < 30
        time.sleep(0.002)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    whole = path.read_bytes().count(b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = load(path)
    expected = play(GAME, range(50), dict.fromkeys("ABCD", random_player(GAME)))
    assert len(kept) == whole >= 10
    assert all(episode == expected[i % 50] for i, episode in enumerate(kept))


def test_training_validation_and_test_seeds_never_overlap_nor_meet_the_seeds_the_base_was_built_on():
    from helpers.tiny.build import SEEDS

    ranges = (TRAIN, VALID, TEST, SEEDS)
    assert all(len(seeds) >= 100_000 for seeds in ranges)
    assert all(a.stop <= b.start or b.stop <= a.start for a, b in combinations(ranges, 2))
