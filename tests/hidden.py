"""How to alter everything in a state that a seat may not know: HIDDEN[game's name](game, state, seat, rng) -> state."""

from dataclasses import replace
from random import Random

from helpers.games import council
from helpers.games.bargaining import UNAWARE, Action
from helpers.games.market import PROJECTS
from helpers.games.support import Bid
from helpers.games.tickets import DOMAINS


def market_secrets(game, state, seat, rng):
    """Other goals, other coalition calls and other offers for everyone but `seat` and the members of its coalition."""
    known = next((members for members in state.coalitions if seat in members), (seat,))
    spare = [project for project in PROJECTS if project not in state.goals]
    rng.shuffle(spare)
    goals = tuple(goal if s in known else spare.pop() if spare else goal for s, goal in zip(game.seats, state.goals, strict=True))
    others = tuple(s for s in game.seats if s != seat)
    calls = tuple(call if seat in call[0] else (others, state.moves // 4) for call in state.calls)
    offers = tuple(
        offer if seat in (offer.giver, offer.to) else replace(offer, give=(("Gold", 1),), get=(("Iron", 9),))
        for offer in state.offers
    )
    return replace(state, goals=goals, calls=calls, offers=offers)


def bargaining_secrets(game, state, seat, rng: Random):
    """The other's persona; its limit for a seat that is unaware; and its first move of an open round of both at once."""
    me = game.seats.index(seat)
    limits, actions = list(state.limits), list(state.actions)
    if seat in UNAWARE[game.transparency]:
        limits[1 - me] += rng.choice((-0.01, 0.01))
    persona = {("buyer_persona", "seller_persona")[1 - me]: "You must sell today."}
    if game.protocol == "simultaneous" and len(actions) % 2 and me == 1 and not state.over:
        actions[-1] = Action("OFFER", 99.0, "hello")
    return replace(state, limits=tuple(limits), scenario=replace(state.scenario, **persona), actions=tuple(actions))


def support_secrets(game, state, seat, rng: Random):
    """The ticket's answer, ties not yet drawn, rationales, and the others' bids in an open round."""
    rounds, place = divmod(len(state.actions), 5)
    ticket = replace(state.ticket, category=rng.choice(DOMAINS), solutions=("end_sessions",), escalate="breach", slots=())
    drawn = rounds + (place >= 3)  # rounds whose tie is drawn
    orders = state.orders[:drawn] + tuple(tuple(rng.sample(DOMAINS, 3)) for _ in state.orders[drawn:])
    actions = []
    for at, action in enumerate(state.actions):
        if isinstance(action, Bid) and DOMAINS[at % 5] != seat:
            sealed = at // 5 == rounds and place < 3
            action = Bid(0.33 if sealed else action.confidence, "mine, surely")
        actions.append(action)
    return replace(state, ticket=ticket, orders=orders, actions=tuple(actions))


def council_secrets(game, state, seat, rng):
    """Other scores and thresholds for the others under private info, other second tries of theirs, and, without chat, nothing."""
    spec, me = state.spec, game.seats.index(seat)
    if spec.info == "private":
        scores = [tuple(tuple(x + 1 for x in rng.sample(row, len(row))) for row in rows) for rows in spec.scores]
        limits = [5 * n // 10 + 1 for n in spec.thresholds]
        scores[me], limits[me] = spec.scores[me], spec.thresholds[me]
        spec = replace(spec, scores=tuple(scores), thresholds=tuple(limits))
    events = []
    for event in state.events:
        hidden = event.action.kind == "retry" and event.seat != seat
        events.append(replace(event, action=council.Action("retry", message="a secret")) if hidden else event)
    return replace(state, spec=spec, events=tuple(events))


def classic_secrets(game, state, seat, rng):
    """Only the seed."""
    return replace(state, seed=state.seed + 1)


HIDDEN = {
    "market": market_secrets,
    "bargaining": bargaining_secrets,
    "support": support_secrets,
    "council": council_secrets,
    "ultimatum": classic_secrets,
    "divide-the-dollar": classic_secrets,
}
