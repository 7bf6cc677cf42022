"""A game with chat memory for the tests, in words that the embedded model uses: two seats act in turn, anything goes, and passing
pays."""

from dataclasses import dataclass, field
from random import Random

from helpers.game import IllegalAction


@dataclass(frozen=True)
class Say:
    text: str

    def __str__(self):
        return self.text


@dataclass(frozen=True)
class State:
    opener: int
    said: tuple[Say, ...] = ()


@dataclass(frozen=True)
class View:
    seat: str
    events: tuple[tuple[str, Say], ...]  # (seat, what it said)


@dataclass(frozen=True)
class Chatter:
    rounds: int = 2
    name: str = field(default="chatter", init=False)
    seats: tuple[str, ...] = field(default=("A", "B"), init=False)
    memory: str = field(default="chat", init=False)
    verbs: tuple[str, ...] = field(default=("pass", "accept_trade", "propose_trade", "form_coalition", "quit"), init=False)

    def deal(self, seed):
        return State(Random(f"{self.name}/{seed}").randrange(2))

    def turn(self, state):
        over = len(state.said) == 2 * self.rounds or Say("quit()") in state.said
        return None if over else self.seats[(len(state.said) + state.opener) % 2]

    def step(self, state, action):
        if action.text.startswith("accept_trade"):
            raise IllegalAction("there is nothing to accept")
        return State(state.opener, (*state.said, action))

    def payoffs(self, state):
        said = self.view(state, "A").events
        return {seat: sum(who == seat and what.text == "pass()" for who, what in said) / self.rounds for seat in self.seats}

    def counts(self, state):
        return {"quits": float(Say("quit()") in state.said)}

    def view(self, state, seat):
        return View(seat, tuple((self.seats[(at + state.opener) % 2], what) for at, what in enumerate(state.said)))

    def system(self, view):
        return "Coalition Market: say something."

    def describe(self, view, since=0):
        told = "".join(f"{'You' if who == view.seat else who}: {what}\n" for who, what in view.events[since:])
        return ("" if since else f"Round 1/10 | Agent {view.seat}\n") + told + "Action:"

    def parse(self, text):
        return Say(text)

    def fallback(self, view, error=None):
        return Say("form_coalition()")
