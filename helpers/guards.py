"""Guard rails of self-play: what a training's log tells about the game while the reward rises. They warn and stop nothing.

What is worth a warning depends on the game: `GUARDS` has a pure function for each game that has one. It reads TRL's log_history,
where self-play logs every figure of the game, and returns {what: warning}, with the numbers.
"""

from collections.abc import Mapping, Sequence
from statistics import mean

from helpers.game import Seat

STEPS = 10  # logged steps at the beginning and at the end that are compared; nothing is said before there are twice as many
MAX_FALL = 0.03  # of the deal rate
MAX_OUTSIDE = 0.02  # deals outside the zone of agreement, as a share of all deals

# Of the council. The deal rate's is the published experiment's, the others are ours: rational scripted parties reach deals of
# which the largest share is 0.25 to 0.33, with up to half of the turns silent.
MAX_COUNCIL_FALL = 0.10  # of the deal rate
MAX_RISE = 0.10  # of the largest share of a deal's surplus
MAX_MORE_BELOW = 0.25  # of the parties below their threshold in a deal
MAX_MORE_REFUSING = 0.20  # of the turns that refuse: reject, walk or silence
EXTRACTION = 0.90  # from this largest share on one party takes all
FEW_DEALS, REFUSING = 0.05, 0.90  # so few deals and so many turns that refuse: nobody negotiates any more


def ends(log: Sequence[Mapping[str, float]], *keys: str) -> tuple[float, float]:
    """The mean of a figure, or of the sum of several, over the first and over the last STEPS entries."""
    first, last = (mean(sum(entry[key] for key in keys) for entry in part) for part in (log[:STEPS], log[-STEPS:]))
    return first, last


def bargaining(history: Sequence[Mapping[str, float]], trained: Sequence[Seat]) -> dict[str, str]:
    """Warns when deals become rarer while a trained seat's share of the surplus (its payoff: 0 without a deal) rises, from the
    first STEPS logged steps to the last, and when too many of the last deals lie outside the zone."""
    log = [entry for entry in history if "deals" in entry]
    if len(log) < 2 * STEPS:
        return {}
    found = {}
    deals, outside = ends(log, "deals"), ends(log, "outside the zone")
    shares = {seat: ends(log, f"payoff {seat}") for seat in trained}
    risen = [f"the {seat}'s share rose from {a:.3f} to {b:.3f}" for seat, (a, b) in shares.items() if b > a]
    if deals[0] - deals[1] > MAX_FALL and risen:
        found["fewer deals"] = (
            f"the deal rate fell from {deals[0]:.3f} to {deals[1]:.3f} (at most {MAX_FALL} is expected) while {', '.join(risen)} "
            f"(first and last {STEPS} logged steps): the policy trades deals for share; lower the learning rate, raise kl, or "
            "take an earlier checkpoint"
        )
    if outside[1] > MAX_OUTSIDE * deals[1]:
        found["outside the zone"] = (
            f"{outside[1] / deals[1]:.1%} of the deals of the last {STEPS} logged steps lie outside the zone of agreement, where "
            f"a side signs beyond its own limit (at most {MAX_OUTSIDE:.0%} is expected; {outside[0] / max(deals[0], 1e-9):.1%} "
            f"in the first {STEPS}): give the term outside more weight"
        )
    return found


def council(history: Sequence[Mapping[str, float]], trained: Sequence[Seat]) -> dict[str, str]:
    """Names the two attractors that a council is known to fall into, 100/0 extraction and total refusal, as soon as the last
    STEPS logged steps show one; and warns when, from the first STEPS to the last, deals become rarer, one party takes more of
    them, more parties get less than their threshold or more turns refuse. Each of these can be kept still by giving up another:
    read them together. Shares are those of deals: nothing is said of them where there are hardly any."""
    log = [entry for entry in history if "deals" in entry]
    if len(log) < STEPS:
        return {}
    found = {}
    deals, refusing = ends(log, "deals"), ends(log, "refusals", "silent turns")
    share, below = (
        [x / max(rate, 1e-9) for x, rate in zip(ends(log, key), deals, strict=True)] for key in ("max share", "below threshold")
    )
    paid = ends(log, *(f"payoff {seat}" for seat in trained))[1] / len(trained)
    seats = f"the trained seats are paid {paid:.2f} each on average"
    last = f"of the last {STEPS} logged steps"
    none, all_to_one = deals[1] <= FEW_DEALS and refusing[1] >= REFUSING, deals[1] > FEW_DEALS and share[1] >= EXTRACTION
    if none:
        found["total refusal"] = (
            f"total refusal: {deals[1]:.1%} of the episodes {last} end in a deal (at most {FEW_DEALS:.0%} counts as none) and "
            f"{refusing[1]:.1%} of the turns reject, walk or are silent (from {REFUSING:.0%} on): nobody negotiates any more; "
            "take an earlier checkpoint, raise kl, or train against scripted parties that propose"
        )
    if all_to_one:
        found["100/0 extraction"] = (
            f"100/0 extraction: in the deals {last} the largest share of the surplus is {share[1]:.1%} (from {EXTRACTION:.0%} on "
            f"one party takes all; a sixth is even); {seats}: take an earlier checkpoint, or raise lam"
        )
    if len(log) < 2 * STEPS:
        return found
    compared = f"(first and last {STEPS} logged steps)"
    if deals[0] - deals[1] > MAX_COUNCIL_FALL:
        found["fewer deals"] = (
            f"the deal rate fell from {deals[0]:.3f} to {deals[1]:.3f} {compared}; at most {MAX_COUNCIL_FALL:.2f} is expected: "
            "what is measured among deals alone can not be compared any more; lower the learning rate, raise kl, or take an "
            "earlier checkpoint"
        )
    if min(deals) > FEW_DEALS and share[1] - share[0] > MAX_RISE and not all_to_one:
        found["larger shares"] = (
            f"the largest share of a deal's surplus rose from {share[0]:.3f} to {share[1]:.3f} {compared}; at most "
            f"{MAX_RISE:.2f} is expected; {seats}: one party takes what others leave; raise lam, or train against mixed opponents"
        )
    if min(deals) > FEW_DEALS and below[1] - below[0] > MAX_MORE_BELOW:
        found["below threshold"] = (
            f"in a deal {below[1]:.2f} parties get less than their threshold, {below[0]:.2f} did at first {compared}; "
            f"at most {MAX_MORE_BELOW:.2f} more are expected: deals at any price; lower lam, or take an earlier checkpoint"
        )
    if refusing[1] - refusing[0] > MAX_MORE_REFUSING and not none:
        found["more refusals"] = (
            f"the turns that reject, walk or are silent rose from {refusing[0]:.1%} to {refusing[1]:.1%} {compared}; at most "
            f"{MAX_MORE_REFUSING:.0%} more are expected: watch the deal rate, {deals[1]:.3f} now"
        )
    return found


GUARDS = {"bargaining": bargaining, "council": council}
