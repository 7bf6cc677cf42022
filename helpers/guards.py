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


def bargaining(history: Sequence[Mapping[str, float]], trained: Sequence[Seat]) -> dict[str, str]:
    """Warns when deals become rarer while a trained seat's share of the surplus (its payoff: 0 without a deal) rises, from the
    first STEPS logged steps to the last, and when too many of the last deals lie outside the zone."""
    log = [entry for entry in history if "deals" in entry]
    if len(log) < 2 * STEPS:
        return {}

    def ends(key: str) -> tuple[float, float]:
        return mean(entry[key] for entry in log[:STEPS]), mean(entry[key] for entry in log[-STEPS:])

    found = {}
    deals, outside = ends("deals"), ends("outside the zone")
    shares = {seat: ends(f"payoff {seat}") for seat in trained}
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


GUARDS = {"bargaining": bargaining}
