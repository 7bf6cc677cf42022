"""Support desk: three specialists bid on a ticket, the highest bid solves it, a manager approves, escalates or asks for a rebid.
All four seats are paid alike: 1 if the solution is right and the decision is, else 0.

The bids of a round are sealed: nobody sees another's before all three are in. *Ours*, where the card leaves the rules open: a
round is five turns, an episode at most two rounds, a second rebid is the time-out; ties go by an order that the seed draws for
each round; bids count in hundredths; a rationale is never shown to another seat, the reason of a decision is; success takes a
right solution and, by the ticket, approve or escalate; an unusable reply bids 0, leaves the ticket unsolved or asks for a rebid.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random

from helpers.game import IllegalAction, ParseError, Seat
from helpers.games.json_replies import json_object, shown
from helpers.games.scenarios import clean, split_of
from helpers.games.tickets import BANK, DOMAINS, Ticket, load_tickets, solutions_of, split

MANAGER = "manager"
APPROVE, ESCALATE, REBID = "approve", "escalate", "rebid"
DECISIONS = (APPROVE, ESCALATE, REBID)
NONE = "none"  # category and solution of a ticket that its winner leaves unsolved
ROUNDS, TURNS = 2, 5  # rounds of an episode; turns of a round: three bids, execute, evaluate
MAX_WORDS = 50  # characters of a rationale or a reason
MAX_NUMBER = 999.0  # a confidence farther from 0 counts as this: out of range either way


@dataclass(frozen=True)
class Bid:
    """confidence: in whole hundredths; legal from 0 to 1. rationale: cleaned."""

    confidence: float
    rationale: str = ""

    def __str__(self):
        return f'{{"action_type": "bid", "confidence": {self.confidence:.2f}, "rationale": "{self.rationale}"}}'


@dataclass(frozen=True)
class Execute:
    """category: one of DOMAINS or NONE. solution: one of the closed list or NONE."""

    category: str = NONE
    solution: str = NONE

    def __str__(self):
        return f'{{"action_type": "execute", "category": "{self.category}", "solution": "{self.solution}"}}'


@dataclass(frozen=True)
class Evaluate:
    """decision: one of DECISIONS. reason: cleaned."""

    decision: str
    reason: str = ""

    def __str__(self):
        return f'{{"action_type": "evaluate", "decision": "{self.decision}", "reason": "{self.reason}"}}'


Action = Bid | Execute | Evaluate
KINDS = {"bid": Bid, "execute": Execute, "evaluate": Evaluate}
KEYS = {"bid": ("confidence", "rationale"), "execute": ("category", "solution"), "evaluate": ("decision", "reason")}


@dataclass(frozen=True)
class Award:
    """Who won a round's bidding. bids: confidences of the specialists, in the order of DOMAINS. tied: was it decided by lot?"""

    bids: tuple[float, ...]
    winner: Seat
    tied: bool


@dataclass(frozen=True)
class State:
    ticket: Ticket
    text: str  # the ticket, filled
    orders: tuple[tuple[Seat, ...], ...]  # of each round: the first in it wins a tie
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Event:
    seat: Seat  # who acted, or won
    what: Action | Award


@dataclass(frozen=True)
class View:
    seat: Seat
    round: int  # 1..ROUNDS
    asked: str  # "bid", "execute" or "evaluate" if it is this seat's turn, else ""
    text: str  # the ticket, as the customer wrote it
    solutions: tuple[str, ...]  # the closed list
    events: tuple[Event, ...]  # what this seat knows, in order: of each round its own bid, the award, the work, the decision


@dataclass(frozen=True)
class Support:
    """Settings of the game. `tickets`: a file for `load_tickets`; "": the project's own."""

    tickets: str = ""
    name: str = field(default="support", init=False)
    seats: tuple[Seat, ...] = field(default=(*DOMAINS, MANAGER), init=False)
    memory: str = field(default="chat", init=False)
    verbs: tuple[str, ...] = field(default=(), init=False)
    max_turns: int = field(default=ROUNDS * TURNS, init=False)
    payoff_range: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    optimum: float = field(default=4.0, init=False)

    @property
    def solutions(self) -> tuple[str, ...]:
        """The closed list of the ticket file."""
        return solutions_of(load_tickets(self.tickets or BANK))

    def deal(self, seed: int) -> State:
        rng = Random(f"{self.name}/{seed}")
        ticket = rng.choice(split(self.tickets)[split_of(seed)])
        text = ticket.filled(rng)
        return State(ticket, text, tuple(tuple(rng.sample(DOMAINS, len(DOMAINS))) for _ in range(ROUNDS)))

    def turn(self, state: State) -> Seat | None:
        done = len(state.actions)
        if done == self.max_turns or decision(state) in (APPROVE, ESCALATE):
            return None
        at = done % TURNS
        if at < len(DOMAINS):
            return DOMAINS[at]
        return MANAGER if at == TURNS - 1 else award(state, done // TURNS).winner

    def step(self, state: State, action: Action) -> State:
        if self.turn(state) is None:
            raise IllegalAction("the game is over")
        due = asked(state)
        if type(action) is not KINDS[due]:
            raise IllegalAction(f"expected action_type {due} in this phase, got {str(action)[:60]}")
        if isinstance(action, Bid) and not 0 <= action.confidence <= 1:
            raise IllegalAction(f"expected a confidence from 0 to 1, got {action.confidence:.2f}")
        return State(state.ticket, state.text, state.orders, (*state.actions, action))

    def payoffs(self, state: State) -> Mapping[Seat, float]:
        return dict.fromkeys(self.seats, float(success(state)))

    def attainable(self, state: State) -> Mapping[Seat, float]:
        """An estimate (ours): 1 for success, halved for each of award, solution and decision that is not yet right in this round;
        0 once the last round's solution is wrong."""
        if self.turn(state) is None:
            return self.payoffs(state)
        rounds, at = divmod(len(state.actions), TURNS)
        hope = 0.125
        if at == TURNS - 1:
            hope = 0.5 if solved(state, rounds) else 0.125 if rounds + 1 < ROUNDS else 0.0
        elif at == len(DOMAINS) and award(state, rounds).winner == state.ticket.category:
            hope = 0.25
        return dict.fromkeys(self.seats, hope)

    def counts(self, state: State) -> Mapping[str, float]:
        awards = awards_of(state)
        return {
            "team success": float(success(state)),
            "specialist routed": float(bool(awards) and awards[-1].winner == state.ticket.category),
            "escalated": float(decision(state) == ESCALATE),
            "awards by lot": float(sum(each.tied for each in awards)),
            "rounds used": float(math.ceil(len(state.actions) / TURNS)),
            "time-outs": float(timed_out(state)),
        }

    def view(self, state: State, seat: Seat) -> View:
        events = []
        for at, action in enumerate(state.actions):
            rounds, place = divmod(at, TURNS)
            if place < len(DOMAINS):
                if DOMAINS[place] == seat:
                    events.append(Event(seat, action))
                if place == len(DOMAINS) - 1:
                    won = award(state, rounds)
                    events.append(Event(won.winner, won))
            else:
                events.append(Event(MANAGER if place == TURNS - 1 else award(state, rounds).winner, action))
        return View(
            seat,
            min(len(state.actions) // TURNS + 1, ROUNDS),
            asked(state) if self.turn(state) == seat else "",
            state.text,
            self.solutions,
            tuple(events),
        )

    def system(self, view: View) -> str:
        if view.seat == MANAGER:
            return (
                "Support desk: you are the manager. Judge the solution of the ticket.\n"
                "approve what is right; rebid what is wrong; escalate a right solution too if there is a legal threat, a breach "
                "of others' data, a third complaint, or a sum of 1000 or more.\n"
                "Reply with ONE JSON object:\n"
                '{"action_type": "evaluate", "decision": "approve", "reason": "why"}\n'
                f"decision: {', '.join(DECISIONS)}"
            )
        return (
            f"Support desk: you are the {view.seat} specialist. The highest bid solves the ticket.\n"
            "Reply with ONE JSON object. Bid how sure you are, 0 to 1:\n"
            '{"action_type": "bid", "confidence": 0.50, "rationale": "why"}\n'
            "If you won:\n"
            '{"action_type": "execute", "category": "...", "solution": "..."}\n'
            f"category: {', '.join(DOMAINS)}\nsolution: {', '.join(view.solutions)}"
        )

    def describe(self, view: View, since: int = 0) -> str:
        """The ticket and all events; with `since`, only the events from that number on."""
        lines = [] if since else [f"Ticket: {view.text}"]
        lines += [f"# {told(event, view.seat)}" for event in view.events[since:]]
        lines.append(f"Round {view.round}/{ROUNDS}, your {view.asked}:" if view.asked else f"Round {view.round}/{ROUNDS}")
        return "\n".join(lines)

    def parse(self, text: str) -> Action:
        data = json_object(text, ("action_type", *(key for keys in KEYS.values() for key in keys)), number)
        kind = one_of(data, "action_type", tuple(KINDS))
        if unknown := [key for key in data if key not in ("action_type", *KEYS[kind])]:
            raise ParseError(f"expected only the keys action_type, {', '.join(KEYS[kind])}, got {unknown[0][:40]!r}")
        if kind == "bid":
            confidence = data.get("confidence")
            if type(confidence) is not float:
                raise ParseError(f"expected confidence to be a number without quotes, got {shown(confidence)}")
            return Bid(confidence, words(data, "rationale"))
        if kind == "execute":
            solution = one_of(data, "solution", (*self.solutions, NONE))
            return Execute(one_of(data, "category", (*DOMAINS, NONE)), solution)
        return Evaluate(one_of(data, "decision", DECISIONS), words(data, "reason"))

    def fallback(self, view: View, error: str | None = None) -> Action:
        return {"bid": Bid(0.0), "execute": Execute(), "evaluate": Evaluate(REBID)}[view.asked]

    def sample(self, view: View, rng: Random) -> Action:
        """Any bid, any category with any solution, any decision: each uniformly."""
        if view.asked == "bid":
            return Bid(round(rng.random(), 2))
        if view.asked == "execute":
            return Execute(rng.choice(DOMAINS), rng.choice(view.solutions))
        return Evaluate(rng.choice(DECISIONS))


# --- what happened, by round (from 0)


def asked(state: State) -> str:
    """The kind of action that is due, were the game not over."""
    at = len(state.actions) % TURNS
    return "bid" if at < len(DOMAINS) else "execute" if at < TURNS - 1 else "evaluate"


def award(state: State, rounds: int) -> Award:
    """The award of a round whose bids are all in: the highest bid wins, a tie the first in the round's order."""
    bids = tuple(action.confidence for action in state.actions[rounds * TURNS : rounds * TURNS + len(DOMAINS)])
    best = [seat for seat, bid in zip(DOMAINS, bids, strict=True) if bid == max(bids)]
    return Award(bids, min(best, key=state.orders[rounds].index), len(best) > 1)


def awards_of(state: State) -> list[Award]:
    """The awards of all rounds whose bids are all in."""
    return [award(state, at) for at in range(ROUNDS) if len(state.actions) >= at * TURNS + len(DOMAINS)]


def solved(state: State, rounds: int) -> bool:
    """Is what was executed in a round right: the category and a solution of the ticket?"""
    work = state.actions[rounds * TURNS + len(DOMAINS)]
    return work.category == state.ticket.category and work.solution in state.ticket.solutions


def decision(state: State) -> str:
    """The manager's last word; "" before any, or while a round after a rebid is open."""
    last = state.actions[-1] if state.actions else None
    return last.decision if isinstance(last, Evaluate) else ""


def right_decision(state: State, rounds: int) -> str:
    """What the manager should say to a round's solution (ours): by the ticket if it is right; else rebid or, in the last round,
    escalate."""
    if solved(state, rounds):
        return ESCALATE if state.ticket.escalate else APPROVE
    return REBID if rounds + 1 < ROUNDS else ESCALATE


def success(state: State) -> bool:
    """A right solution, approved or escalated as the ticket asks for."""
    said, rounds = decision(state), (len(state.actions) - 1) // TURNS
    return said in (APPROVE, ESCALATE) and solved(state, rounds) and said == right_decision(state, rounds)


def timed_out(state: State) -> bool:
    return len(state.actions) == ROUNDS * TURNS and decision(state) == REBID


# --- text


def told(event: Event, seat: Seat) -> str:
    """An event in words, as `seat` is told it."""
    who, what = "You" if event.seat == seat else event.seat, event.what
    if isinstance(what, Award):
        bids = " ".join(f"{name} {bid:.2f}" for name, bid in zip(DOMAINS, what.bids, strict=True))
        return f"Bids: {bids}. {who} won{' by lot' if what.tied else ''}."
    if isinstance(what, Bid):
        return f"{who}: bid {what.confidence:.2f}"
    if isinstance(what, Execute):
        return f"{who}: {what.category}, {what.solution}"
    return f"{who}: {what.decision}" + (f' "{what.reason}"' if what.reason else "")


def number(text: str) -> float:
    """A confidence from a JSON number, in whole hundredths, in range or not. Raises ParseError for NaN."""
    value = float(text)
    if math.isnan(value):
        raise ParseError(f"expected a confidence from 0 to 1, got {text[:30]}")
    return round(max(-MAX_NUMBER, min(MAX_NUMBER, value)), 2) + 0.0  # no -0.0


def one_of(data: dict, key: str, known: tuple[str, ...]) -> str:
    """The text at `key`, in lower case. Raises ParseError if it is none of `known`."""
    value = data.get(key)
    name = value.strip().lower() if isinstance(value, str) else None
    if name not in known:
        raise ParseError(f"expected {key} to be one of {', '.join(known)[:200]}, got {shown(value)}")
    return name


def words(data: dict, key: str) -> str:
    """The cleaned text at `key`, "" without one. Raises ParseError."""
    value = data.get(key)
    if not isinstance(value, str | None):
        raise ParseError(f"expected {key} to be text in quotes, got {shown(value)}")
    return clean(value or "", MAX_WORDS)


# --- scripted players: (view, rng) -> action, for any seat

STEMS = {  # of each category and solution of the project's own tickets: beginnings of words that speak for it
    "technical": {
        "update_app": ("crash", "freez", "quit", "close", "version", "build"),
        "restart_service": ("server", "down", "unavailable", "timeout", "outage", "500", "502", "503"),
        "raise_rate_limit": ("429", "rate", "throttl", "quota", "limit"),
        "renew_api_key": ("key", "token", "401", "unauthorized"),
        "resync_data": ("sync", "merge", "missing", "devices", "laptop", "notes", "changes"),
    },
    "billing": {
        "issue_refund": ("refund", "back", "return"),
        "reverse_duplicate": ("twice", "double", "two", "duplicate", "both"),
        "cancel_subscription": ("cancel", "end", "stop", "subscription", "renew"),
        "change_plan": ("plan", "cheaper", "yearly", "monthly", "seat", "switch"),
        "update_payment": ("card", "expired", "declined", "payment", "bank"),
    },
    "account": {
        "reset_2fa": ("code", "two-factor", "2fa", "authenticator", "backup", "phone"),
        "reset_password": ("password", "forgot", "forgotten", "reset"),
        "unlock_account": ("lock", "unlock", "blocked", "attempts", "suspended"),
        "change_email": ("e-mail", "email", "address", "mail"),
        "end_sessions": ("signed", "session", "stolen", "lost", "someone", "stranger", "library"),
    },
}
ALARMS = ("lawyer", "court", "legal", "sue", "attorney", "third", "three times", "three messages", "other customers", "strangers")


def hits(view: View) -> dict[tuple[str, str], int]:
    """{(category, solution): words of the ticket that speak for it}, for the solutions of STEMS that are on the closed list."""
    text = [word.strip(".,;:!?()'") for word in view.text.lower().split()]
    return {
        (category, solution): sum(word.startswith(stems) for word in text)
        for category, known in STEMS.items()
        for solution, stems in known.items()
        if solution in view.solutions
    }


def guess(view: View) -> tuple[str, str]:
    """Category and solution that most words speak for; (NONE, NONE) if none does."""
    found = hits(view)
    best = max(found, key=found.get, default=(NONE, NONE))
    return best if found.get(best) else (NONE, NONE)


def share(view: View) -> float:
    """The share of the counted words that speak for this seat's category, 0..1; a third if no word counts."""
    found = hits(view)
    mine = sum(n for (category, _), n in found.items() if category == view.seat)
    return mine / sum(found.values()) if any(found.values()) else 1 / len(DOMAINS)


def alarming(text: str) -> bool:
    """Is there a word of a reason to escalate, or a sum with a thousands separator?"""
    return any(word in text.lower() for word in ALARMS) or any(
        a.isdigit() and b == "," and c.isdigit() for a, b, c in zip(text, text[1:], text[2:], strict=False)
    )


def judged(view: View) -> str:
    """Escalates by words; asks once for a rebid where words speak for another category than the one worked on."""
    category, works = guess(view)[0], [event.what.category for event in view.events if isinstance(event.what, Execute)]
    if view.round < ROUNDS and works and works[-1] != category and category != NONE:
        return REBID
    return ESCALATE if alarming(view.text) else APPROVE


@dataclass(frozen=True)
class Keyword:
    """Counts words. confidence: what a specialist bids, from its view (default: the share of the words that are its own).
    decision: what the manager always says; "": as the words say."""

    confidence: Callable[[View], float] = share
    decision: str = ""

    def __call__(self, view: View, rng: Random) -> Action:
        if view.seat == MANAGER:
            return Evaluate(self.decision or judged(view))
        return Execute(*guess(view)) if view.asked == "execute" else Bid(round(self.confidence(view), 2))


def sure(view: View) -> float:
    """Always confident: 1 on every ticket."""
    return 1.0


@cache
def calibration() -> dict[float, float]:
    """{share of the words that are a specialist's own, in fifths: how often the ticket is its own}, over the train templates."""
    found: dict[float, list[bool]] = {}
    for each in split()["train"]:
        for seat in DOMAINS:
            view = View(seat, 1, "bid", each.filled(Random(each.id)), solutions_of(load_tickets(BANK)), ())
            found.setdefault(round(share(view) * 5) / 5, []).append(seat == each.category)
    return {level: sum(own) / len(own) for level, own in found.items()}


def honest(view: View) -> float:
    """Honest and uncertain: how often a ticket with such words is this specialist's; a share never seen counts as it is."""
    level = round(share(view) * 5) / 5
    return calibration().get(level, level)
