"""Players: anything that answers for a seat. A player takes a batch of requests and returns one reply (raw text) each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helpers.game import Game
from helpers.games import classic, delegates
from helpers.games.bargaining import Concession, always_split, hardball, stand_by, tit_for_tat
from helpers.games.market import AcceptTrade, Greedy, Pass, RejectTrade
from helpers.games.support import APPROVE, ESCALATE, Keyword, honest, sure
from helpers.rollout import Request


@dataclass(frozen=True)
class Scripted:
    """A player from a function (view, rng) -> action."""

    name: str
    choose: Callable

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        return [str(self.choose(request.view, request.rng)) for request in requests]


@dataclass(frozen=True)
class Model:
    """A player from a function that answers a batch of chats (see helpers.models.generator)."""

    name: str
    generate: Callable[[list[tuple[dict[str, str], ...]]], list[str]]

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        return self.generate([request.messages for request in requests])


def random_player(game: Game) -> Scripted:
    return Scripted("random", game.sample)


def always_accept(view, rng):
    return AcceptTrade(view.pending[0].id) if view.pending else Pass()


def always_reject(view, rng):
    return RejectTrade(view.pending[0].id) if view.pending else Pass()


def always_pass(view, rng):
    return Pass()


# The scripted players of each game; the first is the competent one, which partners and bases learn from.
SCRIPTED = {
    "market": {"greedy": Greedy(), "always-accept": always_accept, "always-reject": always_reject, "pass": always_pass},
    "bargaining": {
        "linear": Concession(1.0),
        "boulware": Concession(0.3),
        "conceder": Concession(3.0),
        "tit-for-tat": tit_for_tat,
        "hardball": hardball,
        "always-split": always_split,
    },
    "support": {
        "keyword": Keyword(),
        "honest-uncertain": Keyword(honest),
        "always-confident": Keyword(sure),
        "approve-all": Keyword(decision=APPROVE),
        "escalate-all": Keyword(decision=ESCALATE),
    },
    "council": {**delegates.RATIONAL, **delegates.CONTROLS},
    "ultimatum": classic.PLAYERS,
    "divide-the-dollar": classic.PLAYERS,
}


# One scripted player of each game that earns, among its like, what idling earns: the floor of the tables of results.
FLOORS = {"market": "always-accept", "bargaining": "hardball"}


def competent(game: Game) -> Callable:
    return next(iter(SCRIPTED[game.name].values()))


# How partners answer when a reply is judged: one of these, drawn for each decision point. They open nothing new themselves. Only
# one in three takes up offers: were they always taken up, making them would pay as much as accepting, and nobody would accept.
# In bargaining what differs is how early they give way.
ANSWERING = {
    "market": (Greedy(offers=False), *[Greedy(offers=False, accepts=False)] * 2),
    "bargaining": (Concession(0.3), Concession(1.0), Concession(3.0)),
    "council": tuple(delegates.Concession(beta) for beta in (0.3, 1.0, 3.0)),
}


# How the judged seat goes on after its reply: it adds nothing, so that what follows is the reply's doing. Where idling ends the
# game, that would be giving up; there it stands by its offer. (Going on as the competent player would wash the reply out: at
# the opening of bargaining every price that is not taken at once would earn the same.)
WAITING = {"market": always_pass, "bargaining": stand_by, "council": delegates.Insist(None)}


def scripted(game: Game, name: str) -> Scripted:
    """The named scripted player of a game. Raises ValueError for an unknown name."""
    if name not in SCRIPTED[game.name]:
        raise ValueError(f"expected a scripted player of {game.name} ({', '.join(SCRIPTED[game.name])}), got {name!r}")
    return Scripted(name, SCRIPTED[game.name][name])


def competent_player(game: Game) -> Scripted:
    """The competent player under its own name."""
    return scripted(game, next(iter(SCRIPTED[game.name])))


def floor_player(game: Game) -> Scripted:
    return scripted(game, FLOORS[game.name])


def mixed_player(game: Game) -> Scripted:
    """Tosses a coin before each move: competent or random."""
    expert = competent(game)
    return Scripted("mixed", lambda view, rng: expert(view, rng) if rng.random() < 0.5 else game.sample(view, rng))
