"""Bargaining: a buyer and a seller, one item, each with a private limit (reservation price). A deal at price p shares out the
surplus between the two limits; without a deal both get 0.

After arXiv 2605.31445. *Ours*, where it leaves the rules open: a round is one action of each side; in `sequential` the seed
draws who opens, and DEAL names no price or exactly the standing one; `simultaneous` knows no DEAL; an unusable reply walks
away (it can neither stall, nor accept, nor repeat an offer for free); and no surplus counts as smaller than a tenth of the
width of the scenario.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from helpers.game import IllegalAction, ParseError, Seat
from helpers.games.json_replies import json_object, shown
from helpers.games.scenarios import MAX_PRICE, Range, Scenario, all_scenarios, clean, split, split_of

BUYER, SELLER = "buyer", "seller"
OFFER, DEAL, NO_DEAL = "OFFER", "DEAL", "NO_DEAL"
PROTOCOLS = ("simultaneous", "sequential")
UNAWARE = {  # who knows the other's limit only as uniform over its range
    "full": (),
    "buyer_unaware": (BUYER,),
    "seller_unaware": (SELLER,),
    "both_unaware": (BUYER, SELLER),
}
MAX_MESSAGE = 100  # characters
MIN_SURPLUS = 0.1  # smallest surplus that payoffs divide by, as a share of the scenario's width
GRAIN = 2**20  # payoffs are multiples of 1 / GRAIN, so that both sides' sum to the surplus exactly
KEYS = ("message", "action", "offer_price")


@dataclass(frozen=True)
class Action:
    """kind: OFFER, DEAL or NO_DEAL. price: of an OFFER, in whole cents; with DEAL None or the price meant. message: cleaned."""

    kind: str
    price: float | None = None
    message: str = ""

    def __str__(self):
        price = "" if self.price is None else f', "offer_price": {self.price:.2f}'
        return f'{{"message": {json.dumps(self.message, ensure_ascii=False)}, "action": "{self.kind}"{price}}}'


@dataclass(frozen=True)
class State:
    scenario: Scenario
    limits: tuple[float, float]  # of buyer and seller
    opener: int  # 0: the buyer moves first, 1: the seller
    actions: tuple[Action, ...] = ()
    over: bool = False  # before the last round is
    price: float | None = None  # of the deal


@dataclass(frozen=True)
class Event:
    mine: bool
    action: Action


@dataclass(frozen=True)
class View:
    seat: Seat
    round: int  # 1..rounds
    rounds: int
    product: str
    description: str
    persona: str
    limit: float  # this seat's own
    own_range: Range  # what an unaware other side believes of it
    other_range: Range
    other_limit: float | None  # None: this seat is unaware
    other_aware: bool | None  # None: this seat is unaware
    bounds: Range  # offers between these are legal whatever the limits
    protocol: str
    events: tuple[Event, ...]  # what this seat knows, in order; of a simultaneous round its own action first
    standing: float | None  # the other side's offer that DEAL takes


@dataclass(frozen=True)
class Bargaining:
    """Settings of the game. `rounds`: 4 and 6 are the paper's. `offer_sanity_mult` m: an offer outside [seller's limit / m,
    m x buyer's limit] is illegal; None: any. `scenarios`: a file for `load_scenarios`; "": the project's own."""

    protocol: str = "sequential"
    transparency: str = "both_unaware"
    rounds: int = 4
    offer_sanity_mult: float | None = 5.0
    scenarios: str = ""
    name: str = field(default="bargaining", init=False)
    seats: tuple[Seat, ...] = field(default=(BUYER, SELLER), init=False)
    memory: str = field(default="chat", init=False)
    verbs: tuple[str, ...] = field(default=(), init=False)
    optimum: float = field(default=1.0, init=False)

    def __post_init__(self):
        for name, known in (("protocol", PROTOCOLS), ("transparency", tuple(UNAWARE))):
            if getattr(self, name) not in known:
                raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {getattr(self, name)!r}")

    @property
    def max_turns(self) -> int:
        return 2 * self.rounds

    @property
    def payoff_range(self) -> tuple[float, float]:
        """What signing at the most absurd legal price may cost or bring: payoffs are signed."""
        worst = 0.0
        for scenario in all_scenarios(self.scenarios):
            low, high = scenario.seller_res_price_range[0], scenario.buyer_res_price_range[1]
            price = min(MAX_PRICE, high * self.offer_sanity_mult) if self.offer_sanity_mult else MAX_PRICE
            worst = max(worst, price / (MIN_SURPLUS * (high - low)))
        return -worst - 1, worst + 1

    def deal(self, seed: int) -> State:
        """The prices and the item depend on the seed and the file alone, so that settings can be compared on equal deals."""
        rng = Random(f"{self.name}/{seed}")
        scenario = rng.choice(split(self.scenarios)[split_of(seed)])
        low, high = scenario.seller_res_price_range, scenario.buyer_res_price_range
        limits = (round(rng.uniform(*high), 2), round(rng.uniform(*low), 2))
        return State(scenario, limits, rng.randrange(2) if self.protocol == "sequential" else 0)

    def turn(self, state: State) -> Seat | None:
        if state.over or len(state.actions) >= self.max_turns:
            return None
        return self.seats[(len(state.actions) + state.opener) % 2]

    def step(self, state: State, action: Action) -> State:
        if self.turn(state) is None:
            raise IllegalAction("the game is over")
        over, price = False, None
        if action.kind == NO_DEAL:
            over = True
        elif action.kind == DEAL:
            standing = self.standing(state)
            if standing is None:
                raise IllegalAction("no offer is standing that DEAL could take; make an OFFER")
            if action.price not in (None, standing):
                raise IllegalAction(f"{action.price:.2f} is no standing offer (standing: {standing:.2f}); DEAL takes that one")
            over, price = True, standing
        else:
            self._check(state, action.price)
            if self.protocol == "simultaneous" and len(state.actions) % 2:
                bid, ask = state.actions[-1].price, action.price
                if bid >= ask:
                    over, price = True, (bid + ask) / 2
        return State(state.scenario, state.limits, state.opener, (*state.actions, action), over, price)

    def standing(self, state: State) -> float | None:
        """The offer that DEAL would take: the other side's, made just now. Any reply but DEAL rejects it for good."""
        return state.actions[-1].price if state.actions and self.protocol == "sequential" and not state.over else None

    def _check(self, state: State, price: float) -> None:
        if m := self.offer_sanity_mult:
            buyer, seller = state.limits
            if not round(seller / m, 2) <= price <= round(buyer * m, 2):
                raise IllegalAction(f"an offer of {price:.2f} is absurd for this item (more than {m:g} times beyond a limit)")

    def payoffs(self, state: State) -> Mapping[Seat, float]:
        """Own gain / (buyer's limit - seller's limit), signed; 0 without a deal."""
        return dict.fromkeys(self.seats, 0.0) if state.price is None else shares(state, state.price)

    def attainable(self, state: State) -> Mapping[Seat, float]:
        """An estimate (ours): even shares, the smaller the fewer turns are left; but what a standing offer pays, if the side
        to move would gain no less by taking it."""
        seat = self.turn(state)
        if seat is None:
            return self.payoffs(state)
        hope = 0.5 * (self.max_turns - len(state.actions)) / self.max_turns
        standing = self.standing(state)
        if standing is not None and (paid := shares(state, standing))[seat] >= hope:
            return paid
        return dict.fromkeys(self.seats, hope)

    def counts(self, state: State) -> Mapping[str, float]:
        buyer, seller = state.limits
        return {
            "deals": float(state.price is not None),
            "outside the zone": float(state.price is not None and not seller <= state.price <= buyer),
            "rounds used": float(rounds_used(state)),
        }

    def view(self, state: State, seat: Seat) -> View:
        me = self.seats.index(seat)
        scenario, actions = state.scenario, state.actions
        ranges = scenario.buyer_res_price_range, scenario.seller_res_price_range
        unaware = UNAWARE[self.transparency]
        events = []
        for at, action in enumerate(actions):
            events.append(Event((at + state.opener) % 2 == me, action))
        if self.protocol == "simultaneous":
            events = hidden(events, me, state.over)
        m = self.offer_sanity_mult
        low, high = ranges[1][0], ranges[0][1]
        return View(
            seat,
            min(len(actions) // 2 + 1, self.rounds),
            self.rounds,
            scenario.product_name,
            scenario.product_description,
            scenario.buyer_persona if seat == BUYER else scenario.seller_persona,
            state.limits[me],
            ranges[me],
            ranges[1 - me],
            None if seat in unaware else state.limits[1 - me],
            None if seat in unaware else self.seats[1 - me] not in unaware,
            (max(low, ranges[1][1] / m), min(high, ranges[0][0] * m)) if m else (low, high),
            self.protocol,
            tuple(events),
            self.standing(state) if self.turn(state) == seat else None,
        )

    def system(self, view: View) -> str:
        if self.protocol == "sequential":
            rules = "OFFER a price, DEAL (take the other's last offer) or NO_DEAL (walk away)."
        else:
            rules = "OFFER a price or NO_DEAL (walk away). Both offer at once; if the buyer's is no lower, they deal midway."
        return (
            "Bargaining: your gain is how far the price is from your limit; without a deal 0.\n"
            "Think briefly if you like (unseen), then ONE JSON object:\n"
            '{"message": "to the other side", "action": "OFFER", "offer_price": 12.50}\n'
            f"action: {rules}"
        )

    def describe(self, view: View, since: int = 0) -> str:
        """The position and all events; with `since`, only the events from that number on. In a chat, where the seat's own reply
        stands already, the next message is `describe(view, since=len(earlier_view.events) + 1)`."""
        other = "Seller" if view.seat == BUYER else "Buyer"
        lines = []
        if not since:
            lines.append(f"You {'buy' if view.seat == BUYER else 'sell'}: {view.product}. {view.description} {view.persona}")
            side = "pay no more" if view.seat == BUYER else "take no less"
            lines.append(f"Your limit: {view.limit:.2f} ({side}).")
            if view.other_limit is None:
                lines.append(f"{other}'s limit: {between(view.other_range)}, all equally likely.")
            else:
                knows = "yours" if view.other_aware else f"only that yours is {between(view.own_range)}"
                lines.append(f"{other}'s limit: {view.other_limit:.2f}. The {other.lower()} knows {knows}.")
        for event in view.events[since:]:
            action = event.action
            price = f" {action.price:.2f}" if action.kind == OFFER else ""
            said = f' "{action.message}"' if action.message else ""
            lines.append(f"# {'You' if event.mine else other}: {action.kind}{price}{said}")
        if view.standing is not None:
            gain = (view.limit - view.standing) * (1 if view.seat == BUYER else -1)
            lines.append(f"DEAL {'gains' if gain >= 0 else 'costs'} {abs(gain):.2f}.")
        lines.append(f"Round {view.round}/{view.rounds}, {'last' if view.round == view.rounds else 'your'} reply:")
        return "\n".join(lines)

    def parse(self, text: str) -> Action:
        data = json_object(text, KEYS, money)
        kind, message, number = (data.get(key) for key in ("action", "message", "offer_price"))
        if not isinstance(kind, str) or kind.strip().upper() not in (OFFER, DEAL, NO_DEAL):
            raise ParseError(f"expected action to be {OFFER}, {DEAL} or {NO_DEAL}, got {shown(kind)}")
        kind = kind.strip().upper()
        if not isinstance(message, str | None):
            raise ParseError(f"expected message to be text in quotes, got {shown(message)}")
        if type(number) is not float and (kind == OFFER or number is not None):
            raise ParseError(f"expected offer_price to be a number without quotes, got {shown(number)}")
        return Action(kind, None if kind == NO_DEAL else number, clean(message or "", MAX_MESSAGE))

    def fallback(self, view: View, error: str | None = None) -> Action:
        return Action(NO_DEAL)

    def sample(self, view: View, rng: Random) -> Action:
        """Mostly offers anywhere between the ranges' ends, now and then DEAL or NO_DEAL, whatever they pay (ours: 7 : 2 : 1)."""
        luck = rng.random()
        if luck < 0.1:
            return Action(NO_DEAL)
        if luck < 0.3 and view.standing is not None:
            return Action(DEAL)
        low, high = view.bounds
        offer = round(low + rng.random() * (high - low), 2)
        message = PHRASES[int(rng.random() * len(PHRASES))]
        return Action(OFFER, offer, message.format(offer if rng.random() < 0.5 else view.limit) if message else "")


PHRASES = ("", "", "My limit is {:.2f}.", "That is not enough.", "This is fair.")  # what the random player says


def hidden(events: list[Event], me: int, over: bool) -> list[Event]:
    """The events of a simultaneous game as a seat sees them: a round of two, own action first; an open round only its own."""
    out = []
    for at in range(0, len(events), 2):
        pair = events[at : at + 2]
        if len(pair) == 2 or over:
            out += sorted(pair, key=lambda event: not event.mine)
        else:
            out += [event for event in pair if event.mine]
    return out


def between(ends: Range) -> str:
    return f"from {ends[0]:.2f} to {ends[1]:.2f}"


def surplus(state: State) -> float:
    """What payoffs are divided by: buyer's limit - seller's limit, or the smallest that counts."""
    width = state.scenario.buyer_res_price_range[1] - state.scenario.seller_res_price_range[0]
    return max(state.limits[0] - state.limits[1], MIN_SURPLUS * width)


def shares(state: State, price: float) -> dict[Seat, float]:
    """Each side's share of the surplus at a price: negative for a side beyond its own limit."""
    buyer, seller = state.limits
    divisor = surplus(state)
    first, total = (round(x / divisor * GRAIN) / GRAIN for x in (buyer - price, buyer - seller))
    return {BUYER: first, SELLER: total - first}


def rounds_used(state: State) -> int:
    return math.ceil(len(state.actions) / 2)


# --- text


def money(text: str) -> float:
    """A price from a JSON number, in whole cents. Raises ParseError for NaN, infinities, negative and absurd numbers."""
    number = float(text) if len(text) <= 24 else math.inf
    if not 0 <= number <= MAX_PRICE:
        raise ParseError(f"expected a price from 0 to {MAX_PRICE:,}, got {text[:30]}")
    return abs(round(number, 2))


# --- scripted players: (view, rng) -> action. None ever offers or takes a price beyond its own limit.


def priced(view: View, share: float) -> float:
    """The price at which `share` of the way from the best price imaginable (the other's limit, or the better end of its range)
    to one's own limit is given away."""
    best = view.other_range[0 if view.seat == BUYER else 1] if view.other_limit is None else view.other_limit
    return within(view, best + share * (view.limit - best))


def within(view: View, wanted: float) -> float:
    """The nearest price in whole cents that is surely legal and not beyond one's own limit."""
    low, high = view.bounds
    wanted = round(max(low, min(high, wanted)), 2)
    return min(wanted, view.limit) if view.seat == BUYER else max(wanted, view.limit)


def settle(view: View, wanted: float) -> Action:
    """DEAL if the standing offer is at least as good as the price one would ask for now, else that OFFER."""
    if view.standing is not None and (view.standing <= wanted if view.seat == BUYER else view.standing >= wanted):
        return Action(DEAL)
    return Action(OFFER, wanted)


@dataclass(frozen=True)
class Concession:
    """Time-dependent tactic: in round t + 1 of T + 1 it has given away k + (1 - k)(t/T)^(1/beta) of its room (Faratin, Sierra
    and Jennings 1998, "Negotiation decision functions for autonomous agents"). beta < 1: boulware, late; > 1: conceder, early."""

    beta: float
    k: float = 0.1

    def __call__(self, view: View, rng: Random) -> Action:
        time = 1.0 if view.round == view.rounds else (view.round - 1) / (view.rounds - 1)
        return settle(view, priced(view, self.k + (1 - self.k) * time ** (1 / self.beta)))


def tit_for_tat(view: View, rng: Random) -> Action:
    """Gives way by as much as the other side did last."""
    mine, theirs = ([e.action.price for e in view.events if e.mine == own and e.action.kind == OFFER] for own in (True, False))
    if not mine:
        return settle(view, priced(view, 0.1))
    given = theirs[-2] - theirs[-1] if len(theirs) > 1 else 0.0
    return settle(view, within(view, mine[-1] + (max(given, 0.0) if view.seat == BUYER else min(given, 0.0))))


def hardball(view: View, rng: Random) -> Action:
    """Never moves from its opening price."""
    return settle(view, priced(view, 0.1))


def stand_by(view: View, rng: Random) -> Action:
    """Adds nothing to the offer it has made: repeats it, or takes the other side's if that is as good."""
    return settle(view, [event.action.price for event in view.events if event.mine and event.action.kind == OFFER][-1])


def always_split(view: View, rng: Random) -> Action:
    """Asks for the middle between its own limit and the other's, or the mean of the other's range."""
    other = sum(view.other_range) / 2 if view.other_limit is None else view.other_limit
    return settle(view, within(view, (view.limit + other) / 2))
