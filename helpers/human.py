"""A seat that a person plays: the logic, without any front end (`helpers.widgets.play_seat` is one).

`rollout.play` goes on to the end of an episode, and a person takes minutes. So the episode is played again from its start after
each reply: what was said before is said again, with the same luck, and only what is new is asked for. What a person is shown
and what is kept is therefore what it would be with a model in that seat.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.game import Game, Seat
from helpers.replies import read
from helpers.rollout import Episode, Player, Request, play, take


class Waiting(Exception):
    """A person is to move; the only argument is what was asked."""


@dataclass(frozen=True)
class Chair:
    """A player from a function that answers one request."""

    name: str
    answer: Callable[[Request], str]

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        return [self.answer(request) for request in requests]


@dataclass
class HumanSeat:
    """Seat `seat` of the episode of `seed`, played by a person; `players` hold the others. Begin with `go_on`.

    request: what the person is asked; None while it is not their turn. episode: the whole episode, once it is over.
    """

    game: Game
    seed: int
    seat: Seat
    players: Mapping[Seat, Player]
    request: Request | None = None
    episode: Episode | None = None
    said: list[tuple[str, Any]] = field(default_factory=list)  # the reply of each turn, and its seat's luck after it

    @property
    def fallback(self) -> str:
        """What the rules would play for the person, as a reply."""
        return str(self.game.fallback(self.request.view))

    def answer(self, reply: str) -> None:
        """The person's reply, after which the others play. Raises ParseError or IllegalAction, and changes nothing, when it is
        not usable; whatever a player raises, in which case `go_on` asks that player again."""
        state = self.game.deal(self.seed)
        for earlier, _ in self.said:
            state, _, _ = take(self.game, state, earlier)
        self.game.step(state, read(self.game, reply))
        self.said.append((reply, self.request.rng.getstate()))
        self.go_on()

    def go_on(self) -> None:
        """Lets the others play until the person is to move or the episode is over."""
        self.request, again = None, iter(list(self.said))

        def reply(request: Request) -> str:
            text, luck = next(again, None) or self._new(request)
            request.rng.setstate(luck)
            return text

        names = {seat: player.name for seat, player in self.players.items()} | {self.seat: "human"}
        try:
            [self.episode] = play(self.game, [self.seed], {seat: Chair(name, reply) for seat, name in names.items()})
        except Waiting as stop:
            [self.request] = stop.args

    def _new(self, request: Request) -> tuple[str, Any]:
        if request.seat == self.seat:
            raise Waiting(request)
        [text] = self.players[request.seat]([request])
        self.said.append((text, request.rng.getstate()))
        return self.said[-1]
