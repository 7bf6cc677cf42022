"""Council: several parties settle several issues at once. Each has private scores for the options and a threshold, what it gets
by walking away. A deal is one option for every issue, and closes when all required parties support the same live offer.

After LLM-Deliberation (MIT) and the card of Fairness-GRPO. A party's payoff is its *normalised surplus* z = (discount^(round
- 1) x score - threshold) / (best score - threshold): 1 is its best deal, 0 what no deal pays. A threshold is at most
MAX_THRESHOLD of the best score, so no payoff is below -9. A deal below a threshold is allowed, counted and paid for.

*Ours*, where the rules are open: the seed draws who opens the first round, and the next seat opens each later one; a seat has
at most one live offer of its own (a new one replaces it, rejecting it withdraws it, walking away too); accepting again or
rejecting what one never supported is legal; who has walked away supports nothing, is paid 0 whatever closes, and the game is
over when no deal can close any more. After the last round the next opener puts one live offer to the vote by accepting it,
and votes count anew: the others accept or reject that id and nothing else. An unusable reply is a silent turn, in the vote a
rejection (the opener's puts nothing to it). One that is no well-formed action may be written again once: the rules then play
`retry: REASON`, an action that is no JSON and so can never be read out of a reply.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from helpers.game import IllegalAction, ParseError, Seat
from helpers.games import council_specs
from helpers.games.council_specs import SEATS, Deal, Spec
from helpers.games.json_replies import json_object, shown
from helpers.games.scenarios import clean

PROPOSE, ACCEPT, REJECT, WALK, NONE, RETRY = "propose", "accept", "reject", "walk", "none", "retry"
KINDS = (PROPOSE, ACCEPT, REJECT, WALK, NONE)
KEYS = ("message", "action", "deal", "offer_id")
MAX_MESSAGE, MAX_REASON = 120, 200  # characters: of a message, of a retry's reason


@dataclass(frozen=True)
class Action:
    """kind: one of KINDS, or RETRY. deal: of a proposal, (issue, option) pairs in the order of issues, options from 1. offer: the
    id that accept or reject names. message: cleaned; of a RETRY the reason."""

    kind: str
    deal: tuple[tuple[str, int], ...] = ()
    offer: str = ""
    message: str = ""

    def __str__(self):
        if self.kind == RETRY:
            return f"{RETRY}: {self.message}"
        data = {"message": self.message, "action": self.kind}
        if self.kind == PROPOSE:
            data["deal"] = dict(self.deal)
        if self.offer:
            data["offer_id"] = self.offer
        return json.dumps(data, ensure_ascii=False)


@dataclass(frozen=True)
class Offer:
    """deal: of every issue the option, from 0. supporters: seats by number, the author's among them."""

    id: str
    author: int
    deal: Deal
    supporters: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """What a seat did. An offer's id and deal stand with what is proposed, accepted and rejected."""

    seat: Seat
    action: Action
    offer: str = ""
    deal: Deal = ()


@dataclass(frozen=True)
class State:
    spec: Spec
    opener: int  # of the first round
    at: int = 0  # place in the rotation; parties x rounds: the vote begins
    events: tuple[Event, ...] = ()
    offers: tuple[Offer, ...] = ()  # live ones, in the order of their ids
    made: int = 0  # offers so far
    walked: tuple[int, ...] = ()
    vote: str = ""  # id of the offer that is voted on
    noes: tuple[int, ...] = ()  # who rejected it
    retry: bool = False  # the seat to move writes again
    over: bool = False
    deal: Deal = ()  # that closed
    round: int = 0  # in which it closed; 0 without a deal


@dataclass(frozen=True)
class Party:
    """What a seat knows of another. scores and threshold: None under private info."""

    seat: Seat
    name: str
    veto: bool
    walked: bool
    scores: tuple[tuple[int, ...], ...] | None
    threshold: int | None


@dataclass(frozen=True)
class View:
    seat: Seat
    name: str
    veto: bool
    issues: tuple[str, ...]
    scores: tuple[tuple[int, ...], ...]  # own: of each issue, of each option
    threshold: int
    parties: tuple[Party, ...]  # the others
    needed: int  # supporters that close a deal, those with a veto among them
    round: int  # 1..rounds; rounds + 1 in the vote
    rounds: int
    discount: float
    chat: bool
    offers: tuple[Offer, ...]
    voting: bool
    vote: str
    retry: bool
    events: tuple[Event, ...]  # all but the others' retries

    @property
    def me(self) -> int:
        return SEATS.index(self.seat)

    def score(self, deal: Deal) -> int:
        """Own score of a deal, undiscounted."""
        return sum(row[option] for row, option in zip(self.scores, deal, strict=True))


@dataclass(frozen=True)
class Council:
    """Settings of the game. `specs`: "six" (4 or 5 issues) or "small" (3 issues), both drawn by the seed, or a file for
    `council_specs.load`, whose games the seed picks from. The other fields are those of `Spec`, for every spec."""

    specs: str = "six"
    rounds: int = 4
    min_accept: int | None = None
    info: str = "private"
    chat: bool = True
    proposer: str = "rotating"
    discount: float = 1.0
    name: str = field(default="council", init=False)
    seats: tuple[Seat, ...] = field(default=SEATS, init=False)
    memory: str = field(default="chat", init=False)
    verbs: tuple[str, ...] = field(default=(), init=False)
    optimum: float = field(default=float(len(SEATS)), init=False)  # all get their best: an upper bound
    payoff_range: tuple[float, float] = field(default=(-council_specs.WORST, 1.0), init=False)

    def __post_init__(self):
        self.deal(0)  # what does not fit is refused here

    @property
    def max_turns(self) -> int:
        """Every turn may be written twice."""
        return 2 * len(self.seats) * (self.rounds + 1)

    def deal(self, seed: int) -> State:
        """Scores depend on the seed and `specs` alone, so that settings can be compared on equal deals."""
        settings = {name: getattr(self, name) for name in ("rounds", "min_accept", "info", "chat", "proposer", "discount")}
        spec = replace(council_specs.drawn(self.specs, seed), **settings)
        opener = spec.p1 if spec.proposer == "p1" else Random(f"{self.name}/opener/{seed}").randrange(len(self.seats))
        return State(spec, opener)

    def turn(self, state: State) -> Seat | None:
        return None if state.over else self.seats[mover(state, state.at)]

    def step(self, state: State, action: Action) -> State:
        if state.over:
            raise IllegalAction("the game is over")
        me = mover(state, state.at)
        if action.kind == RETRY:
            if state.retry:
                raise IllegalAction("a turn is written again only once")
            return replace(state, events=(*state.events, Event(self.seats[me], action)), retry=True)
        if state.at >= discussion(state.spec):
            after, event = vote(state, me, action)
        else:
            after, event = discuss(state, me, action)
        said = action if state.spec.chat else replace(action, message="")
        after = replace(after, events=(*state.events, replace(event, seat=self.seats[me], action=said)), retry=False)
        return after if after.over else advance(settle(after))

    def payoffs(self, state: State) -> Mapping[Seat, float]:
        """Normalised surplus of each seat, signed; 0 without a deal and for who has walked away."""
        return self._paid(state, state.deal, state.round)

    def _paid(self, state: State, deal: Deal, round: int) -> dict[Seat, float]:
        if not deal:
            return dict.fromkeys(self.seats, 0.0)
        found = [0.0 if i in state.walked else state.spec.surplus(i, deal, round) for i in range(len(self.seats))]
        return dict(zip(self.seats, found, strict=True))

    def attainable(self, state: State) -> Mapping[Seat, float]:
        """An estimate (ours): what the live offer with most support pays, times the share of the needed support it has."""
        if state.over:
            return self.payoffs(state)
        best = max(state.offers, key=lambda offer: len(offer.supporters), default=None)
        if best is None:
            return dict.fromkeys(self.seats, 0.0)
        share = min(len(best.supporters) / state.spec.needed, 1.0)
        return {seat: share * x for seat, x in self._paid(state, best.deal, round_of(state)).items()}

    def counts(self, state: State) -> Mapping[str, float]:
        """Numbers of parties and rounds, and shares: the largest one of the surplus; of the turns, second tries among them, those
        that reject or walk and those that are silent."""
        paid, kinds = self.payoffs(state), [event.action.kind for event in state.events]
        turns = max(len(kinds), 1)
        return {
            "deals": float(bool(state.deal)),
            "below threshold": float(sum(x < 0 for x in paid.values())),
            "walked away": float(len(state.walked)),
            "rounds used": float(round_of(state)),
            "max share": max_share(paid.values()),
            "refusals": (kinds.count(REJECT) + kinds.count(WALK)) / turns,
            "silent turns": kinds.count(NONE) / turns,
        }

    def view(self, state: State, seat: Seat) -> View:
        spec, me = state.spec, self.seats.index(seat)
        known = spec.info == "full"
        parties = tuple(
            Party(
                other,
                spec.names[i],
                i in spec.vetoes,
                i in state.walked,
                spec.scores[i] if known else None,
                spec.thresholds[i] if known else None,
            )
            for i, other in enumerate(self.seats)
            if i != me
        )
        return View(
            seat,
            spec.names[me],
            me in spec.vetoes,
            spec.issues,
            spec.scores[me],
            spec.thresholds[me],
            parties,
            spec.needed,
            round_of(state),
            spec.rounds,
            spec.discount,
            spec.chat,
            state.offers,
            state.at >= discussion(spec),
            state.vote,
            state.retry and self.turn(state) == seat,
            tuple(event for event in state.events if event.action.kind != RETRY or event.seat == seat),
        )

    def system(self, view: View) -> str:
        n = len(view.parties) + 1
        needed = "all" if view.needed == n else f"{view.needed} of the {n}, those with a veto among them,"
        fade = f" Scores shrink by the factor {view.discount:g} each round." if view.discount < 1 else ""
        message = '"message": "what all may read", ' if view.chat else ""
        deal = ", ".join(f'"{issue}": OPTION' for issue in view.issues)
        return (
            f"You are {view.seat} ({view.name}) in a council of {n} parties. A deal sets one option for every issue. It closes "
            f"when {needed} support the same offer. Your score of a deal is the sum over the issues. Without a deal you get your "
            f"threshold; a deal below it is worse than none.{fade}\n"
            "Think first if you like; only the JSON is seen by others. "
            f"After {view.rounds} rounds one offer is put to a last vote.\n"
            f"Reply with one JSON object:\n"
            f'{{{message}"action": "propose", "deal": {{{deal}}}}} (you support it; it replaces your own last offer)\n'
            f'{{{message}"action": "accept" or "reject", "offer_id": "P1"}}\n'
            f'{{{message}"action": "none"}} or "walk" (you leave for good)'
        )

    def describe(self, view: View, since: int = 0) -> str:
        """Scores, and all events; with `since`, only the events from that number on and what is live now."""
        lines = [] if since else about(view)
        lines += [told(view, event) for event in view.events[since:]]
        for offer in view.offers:
            by = " ".join(SEATS[i] for i in offer.supporters)
            lines.append(f"{offer.id} {written(view.issues, offer.deal)}: {view.score(offer.deal)} for you; support: {by}")
        if view.vote:
            lines.append(f"Last vote on {view.vote}, accept or reject it:")
        elif view.voting:
            choice = "Last vote: accept the offer that all shall vote on, or none:"
            lines.append(choice if view.offers else "Nothing to vote on, none or walk:")
        else:
            lines.append(f"Round {view.round}/{view.rounds}, {view.seat}:")
        return "\n".join(lines)

    def parse(self, text: str) -> Action:
        if text.startswith(f"{RETRY}: "):
            return Action(RETRY, message=clean(text.removeprefix(f"{RETRY}: "), MAX_REASON))
        data = json_object(text, KEYS, whole)
        message, kind, deal, offer = (data.get(key) for key in KEYS)
        if not isinstance(kind, str) or kind.strip().lower() not in KINDS:
            raise ParseError(f"expected action to be one of {', '.join(KINDS)}, got {shown(kind)}")
        kind = kind.strip().lower()
        if not isinstance(message, str | None):
            raise ParseError(f"expected message to be text in quotes, got {shown(message)}")
        if deal and kind != PROPOSE or offer and kind not in (ACCEPT, REJECT):
            raise ParseError(f"ambiguous: {kind} with {'a deal' if deal and kind != PROPOSE else 'an offer_id'}; leave that out")
        pairs, number = (), ""
        if kind == PROPOSE:
            pairs = deal_pairs(deal)
        elif kind in (ACCEPT, REJECT):
            number = offer_id(offer)
        return Action(kind, pairs, number, clean(message or "", MAX_MESSAGE))

    def fallback(self, view: View, error: str | None = None) -> Action:
        if error and error.startswith("parse") and not view.retry:
            return Action(RETRY, message=clean(error.removeprefix("parse: "), MAX_REASON))
        return Action(REJECT, offer=view.vote) if view.vote else Action(NONE)

    def sample(self, view: View, rng: Random) -> Action:
        """Half proposals of any deal, the rest accepts, rejects, silence, and one walk in a hundred (ours)."""
        luck, kind = rng.random(), int(rng.random() * len(PHRASES))
        message = PHRASES[kind] if view.chat else ""
        if view.vote:
            return Action(ACCEPT if luck < 0.5 else REJECT, offer=view.vote, message=message)
        live = view.offers[int(rng.random() * len(view.offers))].id if view.offers else ""
        if view.voting:
            return Action(ACCEPT, offer=live, message=message) if live else Action(NONE)
        if luck < 0.5:
            options = tuple((issue, 1 + rng.randrange(len(row))) for issue, row in zip(view.issues, view.scores, strict=True))
            return Action(PROPOSE, options, message=message)
        if luck < 0.9 and live:
            return Action(ACCEPT if luck < 0.8 else REJECT, offer=live, message=message)
        return Action(WALK if luck > 0.99 else NONE, message=message)


PHRASES = ("", "", "This is fair to all.", "I can not go lower.", "Who can support this?")  # what the random player says


def max_share(paid: Iterable[float]) -> float:
    """The largest gain as a share of the gains of all who gain: 1/6..1; 0 where nobody gains."""
    gains = [max(x, 0.0) for x in paid]
    return max(gains) / sum(gains) if any(gains) else 0.0


# --- the rules of one step


def discussion(spec: Spec) -> int:
    """Places in the rotation before the vote."""
    return len(spec.names) * spec.rounds


def mover(state: State, at: int) -> int:
    n = len(state.spec.names)
    shift = 0 if state.spec.proposer == "p1" else at // n
    return (state.opener + shift + at) % n


def round_of(state: State) -> int:
    """The round that is played or in which the deal closed, from 1; rounds + 1 in the vote."""
    return state.round or min(state.at // len(state.spec.names), state.spec.rounds) + 1


def discuss(state: State, me: int, action: Action) -> tuple[State, Event]:
    event = Event("", action)
    if action.kind == PROPOSE:
        deal = checked(state.spec, action.deal)
        same = next((offer for offer in state.offers if offer.deal == deal), None)
        if same:
            return supported(state, same, me), replace(event, offer=same.id, deal=deal)
        offer = Offer(f"P{state.made + 1}", me, deal, (me,))
        others = tuple(old for old in state.offers if old.author != me)
        return replace(state, offers=(*others, offer), made=state.made + 1), replace(event, offer=offer.id, deal=deal)
    if action.kind in (ACCEPT, REJECT):
        offer = live(state, action.offer)
        after = supported(state, offer, me) if action.kind == ACCEPT else rejected(state, offer, me)
        return after, replace(event, offer=offer.id, deal=offer.deal)
    return (walked(state, me) if action.kind == WALK else state), event


def vote(state: State, me: int, action: Action) -> tuple[State, Event]:
    """The last vote. Its opener accepts what is to be voted on; `walk` and `none` put nothing to it."""
    event = Event("", action)
    if not state.vote:
        if action.kind in (NONE, WALK):
            return replace(walked(state, me) if action.kind == WALK else state, over=True), event
        if action.kind != ACCEPT:
            raise IllegalAction(f"accept the live offer that is to be voted on, or none; got {action.kind}")
        offer = live(state, action.offer)
        put = replace(offer, supporters=(me,))
        return replace(state, offers=(put,), vote=offer.id), replace(event, offer=offer.id, deal=offer.deal)
    if action.kind not in (ACCEPT, REJECT) or action.offer != state.vote:
        got = f"{action.kind} {action.offer}".strip()
        raise IllegalAction(f"expected accept or reject of {state.vote}, the offer that is voted on, got {got}")
    [offer] = state.offers
    after = supported(state, offer, me) if action.kind == ACCEPT else replace(state, noes=(*state.noes, me))
    return after, replace(event, offer=offer.id, deal=offer.deal)


def checked(spec: Spec, pairs: tuple[tuple[str, int], ...]) -> Deal:
    """The options of a proposal, from 0. Raises IllegalAction for an unknown or missing issue and an unknown option."""
    found = dict(pairs)
    if unknown := [issue for issue in found if issue not in spec.issues]:
        raise IllegalAction(f"expected the issues {', '.join(spec.issues)}, got {unknown[0]!r}")
    for issue, options in zip(spec.issues, spec.options, strict=True):
        if issue not in found:
            raise IllegalAction(f"a deal needs an option for every issue; {issue} is missing")
        if not 1 <= found[issue] <= options:
            raise IllegalAction(f"expected an option from 1 to {options} for {issue}, got {found[issue]}")
    return tuple(found[issue] - 1 for issue in spec.issues)


def live(state: State, number: str) -> Offer:
    known = {offer.id: offer for offer in state.offers}
    if number not in known:
        raise IllegalAction(f"{number} is no live offer (live: {', '.join(known) or 'none'})")
    return known[number]


def supported(state: State, offer: Offer, me: int) -> State:
    return with_support(state, offer, {*offer.supporters, me})


def rejected(state: State, offer: Offer, me: int) -> State:
    if offer.author == me:
        return replace(state, offers=tuple(o for o in state.offers if o != offer))
    return with_support(state, offer, set(offer.supporters) - {me})


def with_support(state: State, offer: Offer, supporters: set[int]) -> State:
    new = replace(offer, supporters=tuple(sorted(supporters)))
    return replace(state, offers=tuple(new if o == offer else o for o in state.offers))


def walked(state: State, me: int) -> State:
    kept = tuple(o for o in state.offers if o.author != me)
    kept = tuple(replace(o, supporters=tuple(i for i in o.supporters if i != me)) for o in kept)
    return replace(state, offers=kept, walked=(*state.walked, me))


def settle(state: State) -> State:
    """Closes an offer that has all the support it needs; ends the game when no deal can close any more."""
    spec = state.spec
    for offer in state.offers:
        if len(offer.supporters) >= spec.needed and set(spec.vetoes) <= set(offer.supporters):
            return replace(state, over=True, deal=offer.deal, round=round_of(state))
    lost = {*state.walked, *state.noes}
    possible = len(spec.names) - len(lost) >= spec.needed and not lost & set(spec.vetoes)
    return state if possible else replace(state, over=True)


def advance(state: State) -> State:
    """The next seat that has not walked away is to move; after the vote the game is over."""
    if state.over:
        return state
    at, end = state.at + 1, discussion(state.spec) + len(state.spec.names)
    while at < end and mover(state, at) in state.walked:
        at += 1
    return replace(state, at=at, over=at == end)


# --- text


def about(view: View) -> list[str]:
    """What a seat is told once: its own scores, the other parties and, under full info, theirs."""
    lines = [f"Your scores, option by option: {table(view.issues, view.scores)}. Threshold: {view.threshold}."]
    lines += ["You have a veto."] if view.veto else []
    for party in view.parties:
        known = "" if party.scores is None else f": {table(view.issues, party.scores)}, threshold {party.threshold}"
        lines.append(f"{party.seat} {party.name}{' (veto)' if party.veto else ''}{known}")
    return lines


def table(issues: tuple[str, ...], scores: tuple[tuple[int, ...], ...]) -> str:
    return " ".join(f"{issue} {'/'.join(map(str, row))}" for issue, row in zip(issues, scores, strict=True))


def written(issues: tuple[str, ...], deal: Deal) -> str:
    return " ".join(f"{issue}{option + 1}" for issue, option in zip(issues, deal, strict=True))


def told(view: View, event: Event) -> str:
    """One line. A message is cleaned of quotes and #, so it can neither close its quotation nor begin an event."""
    action = event.action
    if action.kind == RETRY:
        return f"That was no action: {action.message}. Once more:"
    what = f"{action.kind} {event.offer}".strip() + (f" {written(view.issues, event.deal)}" if action.kind == PROPOSE else "")
    said = f' "{action.message}"' if action.message else ""
    return f"# {'You' if event.seat == view.seat else event.seat}: {what}{said}"


def whole(text: str) -> int:
    """An integer of a JSON object. Raises ParseError for any other number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise ParseError(f"expected options as whole numbers from 1 on, got {text[:30]}")
    return int(text)


def deal_pairs(deal) -> tuple[tuple[str, int], ...]:
    """(issue, option) pairs of a deal. Raises ParseError unless it is an object of issues with options from 1 on."""
    if not isinstance(deal, dict) or not deal:
        raise ParseError(f'expected deal to be an object such as {{"A": 1}}, got {shown(deal)}')
    for issue, option in deal.items():
        if not (len(issue) == 1 and "A" <= issue <= "Z"):
            raise ParseError(f"expected issues as single capital letters, got {issue[:30]!r}")
        if type(option) is not int or option < 1:
            raise ParseError(f"expected the option of {issue} as a whole number from 1 on, got {shown(option)}")
    return tuple(sorted(deal.items()))


def offer_id(offer) -> str:
    """An id such as P2. Raises ParseError for anything else."""
    number = offer.strip().upper() if isinstance(offer, str) else ""
    digits = number.removeprefix("P")
    if number == digits or not (digits.isascii() and digits.isdigit() and len(digits) <= 3):
        raise ParseError(f'expected offer_id such as "P2", got {shown(offer)}')
    return number
