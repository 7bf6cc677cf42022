"""The one interface that every game offers, and how a state is rebuilt from a seed and actions.

A game is a frozen dataclass of settings with pure methods. All randomness is in `deal`, so a *decision point* is just
`(seed, actions)`: `replay` turns it back into a state, in training, evaluation and tests alike.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Literal, Protocol, TypeVar

Seat = str
S = TypeVar("S")
V = TypeVar("V")
A = TypeVar("A")


class ParseError(ValueError):
    """A reply does not hold exactly one well-formed action; the message says what was found."""


class IllegalAction(ValueError):
    """A well-formed action that the rules forbid here; the message says why."""


class Game(Protocol[S, V, A]):
    """Rules of a game. S, V and A (state, view, action) are frozen dataclasses with tuples inside.

    `str(action)` is exactly what a model should write, and `parse(str(action)) == action`.
    """

    name: str
    seats: tuple[Seat, ...]
    memory: Literal["none", "chat"]  # is each prompt complete on its own, or the next message of a chat (views have `events`)?
    verbs: tuple[str, ...]  # names of the actions, written as calls `verb(...)`; () when an action is one JSON object
    max_turns: int  # no episode is longer
    payoff_range: tuple[float, float]  # lowest and highest payoff of one seat
    optimum: float  # highest possible sum of payoffs over the seats, whatever the deal

    def deal(self, seed: int) -> S:
        """The start of the episode with this seed: the only randomness."""

    def turn(self, state: S) -> Seat | None:
        """Whose move it is; None when the game is over."""

    def step(self, state: S, action: A) -> S:
        """The state after the seat to move plays `action`. Raises IllegalAction and changes nothing in `state`."""

    def payoffs(self, state: S) -> Mapping[Seat, float]:
        """What the rules pay each seat if the game stopped here."""

    def attainable(self, state: S) -> Mapping[Seat, float]:
        """An estimate of what each seat can still reach from here; equal to `payoffs` once the game is over."""

    def counts(self, state: S) -> Mapping[str, float]:
        """Game-specific figures of a finished episode, for the evaluation tables."""

    def view(self, state: S, seat: Seat) -> V:
        """All that `seat` may know, as data."""

    def system(self, view: V) -> str:
        """The standing instructions."""

    def describe(self, view: V, since: int = 0) -> str:
        """What a seat sees, as text (in chat games: the events from number `since` on)."""

    def parse(self, text: str) -> A:
        """The action that `text` is, and nothing but that action. Raises ParseError."""

    def fallback(self, view: V, error: str | None = None) -> A:
        """A legal action; played, and recorded, when a reply is unusable. `error` says why ("parse: ..." or "illegal: ...");
        None: the seat idles, whatever it wrote."""

    def sample(self, view: V, rng: Random) -> A:
        """A random legal action: the random player."""


def replay(game: Game, seed: int, actions: Iterable[str]):
    """The state after `actions` (as text, in order) from the deal of `seed`."""
    state = game.deal(seed)
    for action in actions:
        state = game.step(state, game.parse(action))
    return state
