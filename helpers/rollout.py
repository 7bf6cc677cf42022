"""Plays many episodes at once and keeps them: `play` advances all of them in lockstep, so that a model answers dozens of
seats in one batch. An `Episode` is plain data and goes to and from JSONL."""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Protocol

from helpers.game import Game, IllegalAction, ParseError, Seat
from helpers.replies import read

SCHEMA = 1
# Seeds; never overlap. 2,000,000 to 6,999,999 are spent: settings changed after they had been measured on.
TRAIN, VALID, TEST = range(0, 1_000_000), range(1_000_000, 2_000_000), range(7_000_000, 8_000_000)


@dataclass(frozen=True)
class Request:
    """What a player is asked: its seat's view, the same as chat messages, and its own stream of luck. `episode` is the episode's
    place among those played at once."""

    seat: Seat
    view: Any
    messages: tuple[dict[str, str], ...]
    rng: Random
    episode: int


class Player(Protocol):
    """Anything that answers for a seat: one reply (raw text) for each request of a batch."""

    name: str

    def __call__(self, requests: Sequence[Request]) -> list[str]: ...


def kind(action: str, error: str | None) -> str:
    """The kind of a reply: its action's verb (in JSON, what "action" says or, on the support desk, "action_type"), or
    "invalid reply" when the fallback was played."""
    if error:
        return "invalid reply"
    if not action.startswith("{"):
        return action.partition("(")[0]
    data = json.loads(action)
    return data["action"] if "action" in data else data["action_type"]


@dataclass(frozen=True)
class Turn:
    seat: Seat
    prompt: str
    reply: str  # what the player wrote
    action: str  # what was played: the reply's action, or the fallback
    error: str | None = None  # "parse: ..." or "illegal: ..." when the fallback was played

    @property
    def kind(self) -> str:
        return kind(self.action, self.error)


@dataclass(frozen=True)
class Episode:
    game: str
    settings: dict[str, Any]
    seed: int
    players: dict[Seat, str]
    system: dict[Seat, str]  # each seat's standing instructions
    turns: tuple[Turn, ...]
    payoffs: dict[Seat, float]

    @property
    def actions(self) -> list[str]:
        return [turn.action for turn in self.turns]


def settings_of(game: Game) -> dict[str, Any]:
    return {f.name: getattr(game, f.name) for f in fields(game) if f.init}


def messages_of(game: Game, view, chat: Sequence[dict[str, str]] = (), since: int = 0) -> tuple[dict[str, str], ...]:
    """What a seat is shown: a complete prompt or, after `chat` (its messages so far, its own last reply included), one message
    more with the events from number `since` on."""
    if chat:
        return (*chat, {"role": "user", "content": game.describe(view, since)})
    return ({"role": "system", "content": game.system(view)}, {"role": "user", "content": game.describe(view)})


def take(game: Game, state, reply: str):
    """(state, action, error) after the seat to move replies: its action, or the fallback with the reason."""
    try:
        action = read(game, reply)
        return game.step(state, action), action, None
    except ParseError as reason:
        error = f"parse: {reason}"
    except IllegalAction as reason:
        error = f"illegal: {reason}"
    action = game.fallback(game.view(state, game.turn(state)), error)
    return game.step(state, action), action, error


def play(
    game: Game,
    seeds: Sequence[int],
    players: Mapping[Seat, Player] | Sequence[Mapping[Seat, Player]],
    progress: Callable[[int], None] | None = None,
) -> list[Episode]:
    """One episode for each seed, in lockstep. `players`: the same for all episodes, or one mapping for each. `progress` is told
    after every tick how many episodes are over.

    In games with chat memory a seat's prompt grows: every message tells what happened since its last one. Its own action stands
    there already, in its own words, unless the fallback was played in place of an unusable reply: that it is told.
    """
    tables = [players] * len(seeds) if isinstance(players, Mapping) else players
    states = [game.deal(seed) for seed in seeds]
    rngs = [{seat: Random(f"{game.name}/{seed}/{seat}") for seat in game.seats} for seed in seeds]
    turns: list[list[Turn]] = [[] for _ in seeds]
    chats: list[dict[Seat, tuple]] = [{} for _ in seeds]  # of each seat: (messages so far, number of events it knows)
    while True:
        asked: dict[int, tuple[Player, list[Request]]] = {}
        for i, state in enumerate(states):
            if seat := game.turn(state):
                view = game.view(state, seat)
                request = Request(seat, view, messages_of(game, view, *chats[i].get(seat, ())), rngs[i][seat], i)
                player = tables[i][seat]
                asked.setdefault(id(player), (player, []))[1].append(request)
        if not asked:
            break
        for player, requests in asked.values():
            for request, reply in zip(requests, player(requests), strict=True):
                i = request.episode
                states[i], action, error = take(game, states[i], reply)
                if game.memory == "chat":
                    chat = (*request.messages, {"role": "assistant", "content": reply})
                    chats[i][request.seat] = (chat, len(request.view.events) + (error is None))
                turns[i].append(Turn(request.seat, request.messages[-1]["content"], reply, str(action), error))
        if progress:
            progress(sum(game.turn(state) is None for state in states))
    return [
        Episode(
            game.name,
            settings_of(game),
            seed,
            {seat: table[seat].name for seat in game.seats},
            {seat: game.system(game.view(state, seat)) for seat in game.seats},
            tuple(said),
            dict(game.payoffs(state)),
        )
        for seed, table, state, said in zip(seeds, tables, states, turns, strict=True)
    ]


def prompts_of(game: Game, episode: Episode) -> list[tuple[dict[str, str], ...]]:
    """The messages that each turn of an episode replied to, as its player was shown them."""
    prompts, begun = [], {seat: ({"role": "system", "content": text},) for seat, text in episode.system.items()}
    for turn in episode.turns:
        messages = (*begun[turn.seat], {"role": "user", "content": turn.prompt})
        prompts.append(messages)
        if game.memory == "chat":
            begun[turn.seat] = (*messages, {"role": "assistant", "content": turn.reply})
    return prompts


def append(path: Path, episodes: Sequence[Episode]) -> None:
    """Adds episodes to a JSONL file, one whole line each; a torn last line of a killed writer is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            if whole != file.seek(0, os.SEEK_END):
                warnings.warn(f"{path}: the last line was torn and is dropped", stacklevel=2)
                file.truncate(whole)
        for episode in episodes:
            file.write((json.dumps({"schema": SCHEMA, **asdict(episode)}) + "\n").encode())
            file.flush()


def load(path: Path) -> list[Episode]:
    """The episodes of a JSONL file. A torn last line is skipped with a warning; any other bad line is a ValueError."""
    episodes = []
    lines = Path(path).read_bytes().split(b"\n")
    if lines[-1]:
        warnings.warn(f"{path}: line {len(lines)} is torn (its writer was killed?) and is skipped", stacklevel=2)
    for number, line in enumerate(lines[:-1], 1):
        try:
            data = json.loads(line)
            schema = data.pop("schema")
            if schema != SCHEMA:
                raise ValueError(f"expected schema {SCHEMA}, got {schema!r}")
            episodes.append(Episode(**{**data, "turns": tuple(Turn(**turn) for turn in data["turns"])}))
        except (ValueError, KeyError, TypeError, AttributeError) as reason:
            raise ValueError(f"{path}, line {number} is not an episode: {reason}; mend or delete that line") from reason
    return episodes
