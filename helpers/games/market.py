"""Coalition Market: four traders, ten rounds, one action a turn. Inventories are public, goals are private.

The pool of goods is exactly the union of the four projects' needs, so every deal can end with all four built: the best
table payoff is known (24: four builds at 5, four coalition bonuses at 1). Rules marked *ours* fill what the published
card leaves open: the deal, the order of play, consent in coalitions, at most two goods on each side of a trade (so that
the longest prompt stays within 320 Qwen tokens), and the payoff.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from helpers.game import IllegalAction, ParseError, Seat

GOODS = ("Iron", "Coal", "Stone", "Wood", "Grain", "Gold")
PROJECTS = {  # units needed, in the order of GOODS; six each
    "Steel Mill": (3, 2, 1, 0, 0, 0),
    "Bridge": (2, 0, 3, 1, 0, 0),
    "Shipyard": (2, 0, 0, 3, 0, 1),
    "Granary": (0, 0, 1, 2, 3, 0),
    "Bakery": (0, 2, 0, 1, 3, 0),
    "Mint": (1, 2, 0, 0, 0, 3),
    "Cathedral": (0, 0, 3, 0, 1, 2),
    "Railway": (2, 3, 0, 1, 0, 0),
}
UNITS = 6  # units a project needs, and units dealt to each seat
MAX_KINDS = 2  # goods named on one side of a trade (ours)
BUILD, BONUS, USEFUL = 5.0, 1.0, 0.25  # payoff of a build, of a completed coalition, of one useful unit at the end
READY = 4.0  # what a complete but unbuilt project is worth in `attainable`
DESCRIPTION = "share goods"
MAX_DESCRIPTION = 32  # characters; the longest form_coalition then stays within 48 Qwen tokens
EVERYONE = ("A", "B", "C", "D")

Bundle = tuple[tuple[str, int], ...]  # ((good, quantity), ...) in the order of GOODS
Counts = tuple[int, ...]  # units of each good, in the order of GOODS
INDEX = {good: i for i, good in enumerate(GOODS)}
NAMES = {good.lower(): good for good in GOODS}


@dataclass(frozen=True)
class ProposeTrade:
    to: Seat
    give: Bundle
    get: Bundle

    def __str__(self):
        return f"propose_trade({self.to}, {{{bundle_text(self.give, ': ')}}}, {{{bundle_text(self.get, ': ')}}})"


@dataclass(frozen=True)
class AcceptTrade:
    id: str

    def __str__(self):
        return f"accept_trade({self.id})"


@dataclass(frozen=True)
class RejectTrade:
    id: str

    def __str__(self):
        return f"reject_trade({self.id})"


@dataclass(frozen=True)
class FormCoalition:
    agents: tuple[Seat, ...]  # in seat order
    description: str = DESCRIPTION  # at most MAX_DESCRIPTION characters; never shown to other seats

    def __str__(self):
        return f"form_coalition([{', '.join(self.agents)}], {self.description})"


@dataclass(frozen=True)
class BuildProject:
    def __str__(self):
        return "build_project()"


@dataclass(frozen=True)
class Pass:
    def __str__(self):
        return "pass()"


Action = ProposeTrade | AcceptTrade | RejectTrade | FormCoalition | BuildProject | Pass


@dataclass(frozen=True)
class Offer:
    id: str
    giver: Seat
    to: Seat
    give: Bundle  # what the giver hands over
    get: Bundle  # what the giver receives


@dataclass(frozen=True)
class State:
    goals: tuple[str, ...]  # project of each seat
    holdings: tuple[Counts, ...]
    built: tuple[bool, ...]
    offers: tuple[Offer, ...] = ()
    calls: tuple[tuple[tuple[Seat, ...], int], ...] = (((), -9),) * 4  # last coalition each seat named, and in which round
    coalitions: tuple[tuple[Seat, ...], ...] = ()
    moves: int = 0
    proposed: int = 0  # trades proposed so far; numbers the ids
    trades: tuple[tuple[Seat, Seat, Bundle, Bundle], ...] = ()  # giver, taker, give, get of every trade made


@dataclass(frozen=True)
class View:
    seat: Seat
    round: int  # 1..rounds
    rounds: int
    goal: str
    built: tuple[bool, ...]  # every seat's, public
    holdings: tuple[Counts, ...]  # every seat's, public
    pending: tuple[Offer, ...]  # offers to this seat
    open: tuple[Offer, ...]  # this seat's own open offers
    coalition: tuple[Seat, ...]  # this seat's active coalition, or ()
    member_goals: tuple[tuple[Seat, str], ...]  # the other members' goals
    taken: tuple[Seat, ...]  # seats that are in an active coalition
    calls: tuple[tuple[Seat, tuple[Seat, ...]], ...]  # coalitions named within the last two rounds that include this seat


def bundle_text(bundle: Bundle, colon: str = ":") -> str:
    return ", ".join([f"{good}{colon}{n}" for good, n in bundle])


def counts_text(counts) -> str:
    return ", ".join([f"{good}:{n}" for good, n in zip(GOODS, counts, strict=True) if n > 0]) or "none"


def bundle(counts) -> Bundle:
    return tuple([(good, n) for good, n in zip(GOODS, counts, strict=True) if n > 0])


def holds(counts: Counts, goods: Bundle) -> bool:
    return all([counts[INDEX[good]] >= n for good, n in goods])


def moved(counts: Counts, out: Bundle, into: Bundle) -> Counts:
    after = list(counts)
    for good, n in out:
        after[INDEX[good]] -= n
    for good, n in into:
        after[INDEX[good]] += n
    return tuple(after)


def useful(counts: Counts, goal: str) -> int:
    """Units in `counts` that `goal` needs, 0..6."""
    return sum([min(n, need) for n, need in zip(counts, PROJECTS[goal], strict=True)])


REQUIRES = {project: counts_text(need) for project, need in PROJECTS.items()}
CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
TRADE = re.compile(r"([^,]*),\s*\{([^{}]*)\}\s*,\s*\{([^{}]*)\}\s*")
COALITION = re.compile(r"\s*\[([^\[\]]*)\]\s*(?:,(.*))?", re.DOTALL)
ID = re.compile(r"#?\s*([A-Za-z][A-Za-z0-9]{0,11})", re.ASCII)
QUANTITY = re.compile(r"[1-9][0-9]?", re.ASCII)


@dataclass(frozen=True)
class Market:
    """Settings of the game. `rounds`: 1..99, one move a seat and round."""

    rounds: int = 10
    name: str = field(default="market", init=False)
    seats: tuple[Seat, ...] = field(default=EVERYONE, init=False)
    memory: str = field(default="none", init=False)
    verbs: tuple[str, ...] = field(
        default=("propose_trade", "accept_trade", "reject_trade", "form_coalition", "build_project", "pass"), init=False
    )
    payoff_range: tuple[float, float] = field(default=(0.0, BUILD + BONUS), init=False)
    optimum: float = field(default=4 * (BUILD + BONUS), init=False)

    @property
    def max_turns(self) -> int:
        return self.rounds * len(self.seats)

    def deal(self, seed: int) -> State:
        rng = Random(f"{self.name}/{seed}")
        goals = tuple(rng.sample(list(PROJECTS), len(self.seats)))
        pool = [i for goal in goals for i, need in enumerate(PROJECTS[goal]) for _ in range(need)]
        while True:
            rng.shuffle(pool)
            hands = [pool[k * UNITS : (k + 1) * UNITS] for k in range(len(self.seats))]
            holdings = tuple(tuple(hand.count(i) for i in range(len(GOODS))) for hand in hands)
            if all(useful(held, goal) <= UNITS - 2 for held, goal in zip(holdings, goals, strict=True)):
                return State(goals, holdings, (False,) * len(self.seats))

    def turn(self, state: State) -> Seat | None:
        if state.moves >= self.max_turns or all(state.built):
            return None
        return self.seats[(state.moves // 4 + state.moves) % 4]  # round-robin, the opening seat rotates every round

    def step(self, state: State, action: Action) -> State:
        seat = self.turn(state)
        if seat is None:
            raise IllegalAction("the game is over")
        me = self.seats.index(seat)
        holdings, built, offers, calls = state.holdings, state.built, state.offers, state.calls
        coalitions, proposed, trades = state.coalitions, state.proposed, state.trades
        if isinstance(action, ProposeTrade):
            self._check_trade(state, seat, action)
            proposed += 1
            offers = [o for o in offers if not (o.giver == seat and o.to == action.to)]
            offers.append(Offer(f"t{proposed}", seat, action.to, action.give, action.get))
        elif isinstance(action, AcceptTrade):
            offer = self._pending(state, seat, action.id)
            you, give, get = self.seats.index(offer.giver), offer.give, offer.get
            if not holds(holdings[you], give):
                raise IllegalAction(f"{offer.giver} no longer holds {bundle_text(give)}; the offer is dropped")
            if not holds(holdings[me], get):
                raise IllegalAction(f"you do not hold {bundle_text(get)}; the offer is dropped")
            after = list(holdings)
            after[you], after[me] = moved(holdings[you], give, get), moved(holdings[me], get, give)
            holdings, trades = tuple(after), (*trades, (offer.giver, seat, give, get))
        elif isinstance(action, RejectTrade):
            self._pending(state, seat, action.id)
        elif isinstance(action, FormCoalition):
            calls, coalitions = self._call(state, seat, action)
        elif isinstance(action, BuildProject):
            goal = PROJECTS[state.goals[me]]
            if built[me]:
                raise IllegalAction("your project is already built")
            left = tuple([n - need for n, need in zip(holdings[me], goal, strict=True)])
            if min(left) < 0:
                raise IllegalAction(f"you still miss {counts_text([-n for n in left])}")
            holdings = (*holdings[:me], left, *holdings[me + 1 :])
            built = (*built[:me], True, *built[me + 1 :])
        # An offer lives until its recipient has moved once.
        offers = tuple([o for o in offers if o.to != seat])
        return State(state.goals, holdings, built, offers, calls, coalitions, state.moves + 1, proposed, trades)

    def _check_trade(self, state: State, seat: Seat, action: ProposeTrade) -> None:
        if action.to == seat:
            raise IllegalAction("you cannot trade with yourself")
        if {good for good, _ in action.give} & {good for good, _ in action.get}:
            raise IllegalAction("the same good stands on both sides of the trade")
        if not holds(state.holdings[self.seats.index(seat)], action.give):
            raise IllegalAction(f"you do not hold {bundle_text(action.give)}")

    def _pending(self, state: State, seat: Seat, id: str) -> Offer:
        for offer in state.offers:
            if offer.id == id and offer.to == seat:
                return offer
        ids = ", ".join(o.id for o in state.offers if o.to == seat) or "none"
        raise IllegalAction(f"no offer {id} is pending for you (pending: {ids})")

    def _call(self, state: State, seat: Seat, action: FormCoalition):
        """Consent (ours): a coalition is active once every member has named the same set within the last two rounds."""
        taken = {s for members in state.coalitions for s in members}
        if seat not in action.agents or len(action.agents) < 2:
            raise IllegalAction("a coalition names yourself and at least one other seat")
        if clash := [s for s in action.agents if s in taken]:
            raise IllegalAction(f"already in a coalition: {', '.join(clash)}")
        now, calls = state.moves // 4, list(state.calls)
        calls[self.seats.index(seat)] = (action.agents, now)
        named = [calls[self.seats.index(s)] for s in action.agents]
        agreed = all(members == action.agents and now - when <= 1 for members, when in named)
        return tuple(calls), (*state.coalitions, action.agents) if agreed else state.coalitions

    def payoffs(self, state: State) -> Mapping[Seat, float]:
        out = {}
        for seat, goal, held, built in zip(self.seats, state.goals, state.holdings, state.built, strict=True):
            out[seat] = BUILD if built else USEFUL * useful(held, goal)
        for members in state.coalitions:
            if all(state.built[self.seats.index(s)] for s in members):
                for s in members:
                    out[s] += BONUS
        return out

    def attainable(self, state: State) -> Mapping[Seat, float]:
        """Payoff plus hope (ours): an unbuilt project is worth 4 x the share of its units already held, while the seat can
        still move; an active coalition adds its bonus x the smallest such share (1 for built) among its members."""
        if self.turn(state) is None:
            return self.payoffs(state)
        left = {self.seats[(k // 4 + k) % 4] for k in range(state.moves, self.max_turns)}
        out, share = {}, {}
        for seat, goal, held, built in zip(self.seats, state.goals, state.holdings, state.built, strict=True):
            share[seat] = 1.0 if built else useful(held, goal) / UNITS * (seat in left)
            out[seat] = BUILD if built else max(READY * share[seat], USEFUL * useful(held, goal))
        for members in state.coalitions:
            for s in members:
                out[s] += BONUS * min(share[m] for m in members)
        return out

    def counts(self, state: State) -> Mapping[str, float]:
        return {
            "projects built": float(sum(state.built)),
            "trades": float(len(state.trades)),
            "in a coalition": sum(len(members) for members in state.coalitions) / len(self.seats),
        }

    def view(self, state: State, seat: Seat) -> View:
        coalition = next((members for members in state.coalitions if seat in members), ())
        now = state.moves // 4
        return View(
            seat,
            min(now + 1, self.rounds),
            self.rounds,
            state.goals[self.seats.index(seat)],
            state.built,
            state.holdings,
            tuple([o for o in state.offers if o.to == seat]),
            tuple([o for o in state.offers if o.giver == seat]),
            coalition,
            tuple([(s, state.goals[self.seats.index(s)]) for s in coalition if s != seat]),
            tuple([s for members in state.coalitions for s in members]),
            tuple(
                [(s, m) for s, (m, when) in zip(self.seats, state.calls, strict=True) if seat in m and now - when <= 1]
                if not coalition
                else ()
            ),
        )

    def system(self, view: View) -> str:
        return (
            "Coalition Market: trade goods to build your project.\n"
            "Reply with ONE action:\n"
            "propose_trade(TO, {GOOD: QTY}, {GOOD: QTY})\n"
            "accept_trade(ID)\nreject_trade(ID)\nform_coalition([AGENTS], DESCRIPTION)\nbuild_project()\npass()"
        )

    def describe(self, view: View, since: int = 0) -> str:
        me = self.seats.index(view.seat)
        held, need, built = view.holdings[me], PROJECTS[view.goal], view.built[me]
        missing = "nothing" if built else counts_text([n - h for n, h in zip(need, held, strict=True)])
        lines = [
            f"Round {view.round}/{view.rounds} | Agent {view.seat}",
            f"Goal: {view.goal} | " + ("BUILT" if built else f"Requires: {REQUIRES[view.goal]}"),
            f"Inventory: {counts_text(held)}",
            f"Missing: {missing if missing != 'none' else 'nothing'}",
        ]
        if view.coalition:
            lines.append("Coalition: " + ", ".join([view.seat] + [f"{s} {goal}" for s, goal in view.member_goals]))
        else:
            calls = ", ".join([f"{s} for {''.join(m)}" for s, m in view.calls])
            lines += [f"Calls: {calls}"] if calls else []
        lines.append("Others:")
        for i, s in enumerate(self.seats):
            if i != me:
                lines.append(f" {s}: {counts_text(view.holdings[i])}" + (" (built)" if view.built[i] else ""))
        if view.pending:
            lines.append("Pending trades for you:")
            for o in view.pending:
                lines.append(f" #{o.id}: {o.giver} offers {bundle_text(o.give)} for {bundle_text(o.get)}")
        lines.append("Action:")
        return "\n".join(lines)

    def parse(self, text: str) -> Action:
        match = CALL.fullmatch(text)
        verb, args = (match[1].lower(), match[2]) if match else ("", "")
        if verb not in self.verbs:
            raise ParseError(f"expected one of {', '.join(self.verbs)} with parentheses, got {text[:60]!r}")
        if verb == "propose_trade":
            if not (match := TRADE.fullmatch(args)):
                raise ParseError(f"expected propose_trade(TO, {{GOOD: QTY}}, {{GOOD: QTY}}), got {text[:60]!r}")
            return ProposeTrade(self._seat(match[1]), parse_bundle(match[2]), parse_bundle(match[3]))
        if verb in ("accept_trade", "reject_trade"):
            if not (match := ID.fullmatch(args.strip())):
                raise ParseError(f"expected {verb}(ID) with an id such as t7, got {text[:60]!r}")
            return (AcceptTrade if verb == "accept_trade" else RejectTrade)(match[1].lower())
        if verb == "form_coalition":
            if not (match := COALITION.fullmatch(args)):
                raise ParseError(f"expected form_coalition([AGENTS], DESCRIPTION), got {text[:60]!r}")
            agents = {self._seat(name) for name in match[1].split(",")}
            return FormCoalition(tuple(s for s in self.seats if s in agents), clean(match[2] or ""))
        if args.strip():
            raise ParseError(f"{verb}() takes no arguments, got {args[:60]!r}")
        return BuildProject() if verb == "build_project" else Pass()

    def _seat(self, text: str) -> Seat:
        name = text.strip(" \t\r\n\"'").upper()
        if name not in self.seats:
            raise ParseError(f"expected a seat ({', '.join(self.seats)}), got {text[:20]!r}")
        return name

    def fallback(self, view: View, error: str | None = None) -> Action:
        return Pass()

    def sample(self, view: View, rng: Random) -> Action:
        """One of the kinds of action that are legal here, uniformly; then one of that kind at random."""
        me = self.seats.index(view.seat)
        held = view.holdings[me]
        mine = [i for i, n in enumerate(held) if n]
        kinds = ["pass"]
        if mine:
            kinds.append("propose")
        acceptable = [o for o in view.pending if holds(held, o.get) and holds(view.holdings[self.seats.index(o.giver)], o.give)]
        if acceptable:
            kinds.append("accept")
        if view.pending:
            kinds.append("reject")
        free = [s for s in self.seats if s != view.seat and s not in view.taken]
        if free and not view.coalition:
            kinds.append("coalition")
        if not view.built[me] and useful(held, view.goal) == UNITS:
            kinds.append("build")
        kind = kinds[int(rng.random() * len(kinds))]
        if kind == "propose":
            return self._sample_trade(view, mine, held, rng)
        if kind == "accept":
            return AcceptTrade(acceptable[int(rng.random() * len(acceptable))].id)
        if kind == "reject":
            return RejectTrade(view.pending[int(rng.random() * len(view.pending))].id)
        if kind == "coalition":
            others = rng.sample(free, 1 + int(rng.random() * len(free)))
            return FormCoalition(tuple(s for s in self.seats if s == view.seat or s in others))
        return BuildProject() if kind == "build" else Pass()

    def _sample_trade(self, view: View, mine: list[int], held: Counts, rng: Random) -> ProposeTrade:
        random = rng.random
        others = [i for i in range(4) if self.seats[i] != view.seat]
        you = others[int(random() * 3)]
        give = {mine[int(random() * len(mine))] for _ in range(1 + (random() < 0.3))}
        theirs = [i for i, n in enumerate(view.holdings[you]) if n and i not in give]
        if not theirs:
            theirs = [i for i in range(len(GOODS)) if i not in give]
        get = {theirs[int(random() * len(theirs))] for _ in range(1 + (random() < 0.3))}
        return ProposeTrade(
            self.seats[you],
            tuple([(GOODS[i], 1 + int(random() * min(held[i], 3))) for i in sorted(give)]),
            tuple([(GOODS[i], 1 + int(random() * min(max(view.holdings[you][i], 1), 3))) for i in sorted(get)]),
        )


def parse_bundle(text: str) -> Bundle:
    """{good: quantity} in the order of GOODS from `Iron: 3, Coal: 2`. Raises ParseError."""
    found = {}
    for item in text.split(","):
        name, colon, number = item.partition(":")
        good = NAMES.get(name.strip(" \t\r\n\"'").lower())
        if not colon or good is None:
            raise ParseError(f"expected GOOD: QTY with a good among {', '.join(GOODS)}, got {item.strip()[:30]!r}")
        if not QUANTITY.fullmatch(number.strip()):
            raise ParseError(f"expected an integer quantity from 1 to 99, got {number.strip()[:20]!r}")
        if good in found:
            raise ParseError(f"{good} is named twice on one side")
        found[good] = int(number)
    if len(found) > MAX_KINDS:
        raise ParseError(f"at most {MAX_KINDS} goods on one side of a trade, got {len(found)}")
    return tuple((good, found[good]) for good in GOODS if good in found)


def clean(text: str) -> str:
    """A description as it is kept: printable ASCII without brackets or quotes, one line, at most MAX_DESCRIPTION characters."""
    kept = re.sub(r"[^A-Za-z0-9 ,.;:!?'_+-]+", " ", text[:200])
    return " ".join(kept.split())[:MAX_DESCRIPTION].strip(" '\"") or DESCRIPTION


@dataclass(frozen=True)
class Greedy:
    """The greedy trader: uses only its view. It builds when it can, accepts trades that bring it useful units (or cost it
    nothing), names the coalition of all at the start, and otherwise offers what it does not need for what it misses.

    offers: whether it makes offers of its own. accepts: whether it takes up those of others.
    """

    offers: bool = True
    accepts: bool = True

    def __call__(self, view: View, rng: Random) -> Action:
        me = "ABCD".index(view.seat)
        held, need = view.holdings[me], PROJECTS[view.goal]
        if not view.built[me] and useful(held, view.goal) == UNITS:
            return BuildProject()
        goal = (0,) * len(GOODS) if view.built[me] else need
        best, gain = None, -1
        for offer in view.pending:
            you = "ABCD".index(offer.giver)
            if holds(held, offer.get) and holds(view.holdings[you], offer.give):
                change = worth(moved(held, offer.get, offer.give), goal) - worth(held, goal)
                if change > gain:
                    best, gain = offer, change
        if gain < 1 and self._calls(view):
            return FormCoalition(EVERYONE)
        if best and self.accepts:
            return AcceptTrade(best.id)
        offers = self._offers(view, me, held, goal) if self.offers else []
        return rng.choice(offers) if offers else Pass()

    def _calls(self, view) -> bool:
        """Is it time to name the coalition of all: in the first round, or in the second when another seat has called?"""
        if view.taken or any(s == view.seat for s, _ in view.calls):
            return False
        return view.round == 1 or (view.round == 2 and any(members == EVERYONE for _, members in view.calls))

    def _offers(self, view, me, held, need):
        spare = [h - n for h, n in zip(held, need, strict=True)]
        out = []
        asked = {o.to: o for o in view.open}
        for you in range(4):
            to = "ABCD"[you]
            if you == me or to in asked:
                continue
            for want, (h, n) in enumerate(zip(held, need, strict=True)):
                if h >= n or not view.holdings[you][want]:
                    continue
                amount = min(n - h, view.holdings[you][want])
                for good in range(len(GOODS)):
                    if spare[good] > 0 and good != want:
                        out.append(
                            ProposeTrade(
                                to, ((GOODS[good], min(spare[good], amount)),), ((GOODS[want], min(spare[good], amount)),)
                            )
                        )
        return out


def worth(counts, need) -> int:
    return sum([min(n, m) for n, m in zip(counts, need, strict=True)])
