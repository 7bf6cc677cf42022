"""Scripted parties of the Council: functions (view, rng) -> action of what their own seat may know. None of the rational ones
ever proposes, accepts or votes for a deal below its own threshold.

*Ours*: how one party's bargaining strategies from the literature are carried to six. Among offers that are good enough a
party takes the one with most support; of deals that pay what it asks for it proposes the one nearest to what the others have
on the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

from helpers.games.council import ACCEPT, NONE, PROPOSE, REJECT, Action, Offer, View
from helpers.games.council_specs import Deal

HELD_OUT = 0.9  # share of its largest surplus below which a holdout supports nothing


@cache
def ranked(scores: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, Deal], ...]:
    """(own score, deal) of every deal, best first."""
    deals = product(*(range(len(row)) for row in scores))
    return tuple(sorted(((sum(r[o] for r, o in zip(scores, d, strict=True)), d) for d in deals), key=lambda x: (-x[0], x[1])))


def worth(view: View, deal: Deal) -> float:
    """Own score of a deal, if it closed now."""
    return view.discount ** (view.round - 1) * view.score(deal)


def highest(view: View) -> float:
    """Own score of the best deal, if it closed now."""
    return worth(view, ranked(view.scores)[0][1])


def propose(view: View, deal: Deal, message: str = "") -> Action:
    return Action(PROPOSE, tuple((issue, o + 1) for issue, o in zip(view.issues, deal, strict=True)), message=message)


def good_offers(view: View, wanted: float) -> list[Offer]:
    """Live offers worth at least `wanted` and the own threshold, the most supported first."""
    found = [offer for offer in view.offers if worth(view, offer.deal) >= max(wanted, view.threshold)]
    return sorted(found, key=lambda offer: (-len(offer.supporters), -view.score(offer.deal), offer.id))


def respond(view: View, wanted: float, message: str = "") -> Action | None:
    """The answer to what is on the table: in the vote always one, else a new support, or None."""
    good = good_offers(view, wanted)
    if view.vote:
        return Action(ACCEPT if good else REJECT, offer=view.vote, message=message)
    if view.voting:
        return Action(ACCEPT, offer=good[0].id, message=message) if good else Action(NONE, message=message)
    new = [offer for offer in good if view.me not in offer.supporters]
    return Action(ACCEPT, offer=new[0].id, message=message) if new else None


def settle(view: View, wanted: float) -> Action:
    """A new support if something is worth `wanted`; else a proposal that is; silence if that one is on the table already."""
    if action := respond(view, view.threshold if view.voting else wanted):
        return action
    theirs = [offer.deal for offer in view.offers if offer.author != view.me]
    enough = [deal for _, deal in ranked(view.scores) if worth(view, deal) >= max(wanted, view.threshold)]
    if not enough:
        return Action(NONE)
    best = min(enough, key=lambda deal: sum(x != y for other in theirs for x, y in zip(deal, other, strict=True)))
    return Action(NONE) if best in [offer.deal for offer in view.offers] else propose(view, best)


@dataclass(frozen=True)
class Concession:
    """Asks for best - (best - threshold) x time^(1 / beta), time from 0 to 1 over the rounds (Faratin, Sierra and Jennings 1998).
    beta < 1: boulware, gives way late; > 1: conceder, early."""

    beta: float

    def __call__(self, view: View, rng: Random) -> Action:
        time = min((view.round - 1) / max(view.rounds - 1, 1), 1.0)
        best = highest(view)
        return settle(view, best - (best - view.threshold) * time ** (1 / self.beta))


def micro(view: View, rng: Random) -> Action:
    """MiCRO (de Jonge 2022): goes down its list of deals one by one, and only while it has shown no more of them than
    the party that has shown fewest. *Ours*: supporting another's deal shows it, too."""
    shown: dict[str, set[Deal]] = {party.seat: set() for party in view.parties if not party.walked} | {view.seat: set()}
    for event in view.events:
        if event.action.kind in (PROPOSE, ACCEPT) and event.seat in shown:
            shown[event.seat].add(event.deal)
    mine = shown.pop(view.seat)
    fresh = next((deal for _, deal in ranked(view.scores) if deal not in mine and worth(view, deal) >= view.threshold), None)
    lowest = min((worth(view, deal) for deal in mine), default=highest(view))
    concedes = fresh is not None and len(mine) <= min(map(len, shown.values()), default=0)
    wanted = min(worth(view, fresh), lowest) if concedes else lowest
    if action := respond(view, view.threshold if view.voting else wanted):
        return action
    return propose(view, fresh) if concedes else Action(NONE)


def tit_for_tat(view: View, rng: Random) -> Action:
    """Naive: lowers what it asks for by as much as the others have given it, on average from their first deals to their last."""
    first, last = {}, {}
    for event in view.events:
        if event.action.kind == PROPOSE and event.seat != view.seat:
            last[event.seat] = view.score(event.deal)
            first.setdefault(event.seat, last[event.seat])
    given = sum(max(last[seat] - first[seat], 0) for seat in first) / max(len(first), 1)
    return settle(view, highest(view) - given)


# --- trivial controls: what a figure of a trained seat must beat


def passive_gate(view: View, rng: Random) -> Action:
    """Never proposes; supports whatever is at or above its threshold."""
    return respond(view, view.threshold) or Action(NONE)


def greedy_anchor(view: View, rng: Random) -> Action:
    """Opens with its best deal, then supports whatever is at or above its threshold."""
    first = not any(event.seat == view.seat for event in view.events)
    return propose(view, ranked(view.scores)[0][1]) if first and not view.voting else passive_gate(view, rng)


def greedy_holdout(view: View, rng: Random, message: str = "") -> Action:
    """Proposes its best deal and supports nothing below HELD_OUT of its largest surplus, not even in the vote."""
    best, deal = ranked(view.scores)[0]
    action = respond(view, view.threshold + HELD_OUT * (best - view.threshold), message)
    return action or (Action(NONE, message=message) if any(o.deal == deal for o in view.offers) else propose(view, deal, message))


def declared_holdout(view: View, rng: Random) -> Action:
    """A holdout that says so."""
    return greedy_holdout(view, rng, "I support my own offer and no other.")


def declared_demand(view: View, rng: Random) -> Action:
    """Says which option it must have on the issue that matters most to it, and supports deals with it from its threshold on."""
    issue = max(range(len(view.issues)), key=lambda i: max(view.scores[i]) - min(view.scores[i]))
    option = max(range(len(view.scores[issue])), key=view.scores[issue].__getitem__)
    message = f"I must have {view.issues[issue]}{option + 1}."
    good = [offer for offer in good_offers(view, view.threshold) if offer.deal[issue] == option]
    if view.vote:
        return Action(ACCEPT if good else REJECT, offer=view.vote, message=message)
    if new := [offer for offer in good if view.voting or view.me not in offer.supporters]:
        return Action(ACCEPT, offer=new[0].id, message=message)
    best = ranked(view.scores)[0][1]
    known = view.voting or any(offer.deal == best for offer in view.offers)
    return Action(NONE, message=message) if known else propose(view, best, message)


@dataclass(frozen=True)
class Insist:
    """Proposes one deal and supports no other: with helpers.solver's Nash deal the fairness oracle, an upper bound that knows all
    scores. None: it stays silent and rejects."""

    deal: Deal | None

    def __call__(self, view: View, rng: Random) -> Action:
        mine = next((offer for offer in view.offers if offer.deal == self.deal), None)
        if view.vote:
            return Action(ACCEPT if mine else REJECT, offer=view.vote)
        if mine and (view.voting or view.me not in mine.supporters):
            return Action(ACCEPT, offer=mine.id)
        return Action(NONE) if mine or view.voting or self.deal is None else propose(view, self.deal)


RATIONAL: dict[str, Callable] = {
    "linear": Concession(1.0),
    "boulware": Concession(0.3),
    "conceder": Concession(3.0),
    "micro": micro,
    "tit-for-tat": tit_for_tat,
}
CONTROLS: dict[str, Callable] = {
    "passive-gate": passive_gate,
    "greedy-anchor": greedy_anchor,
    "greedy-holdout": greedy_holdout,
    "declared-holdout": declared_holdout,
    "declared-demand": declared_demand,
}
