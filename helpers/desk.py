"""What episodes of the support desk are measured by: ratios of sums over episodes, with intervals over whole seeds."""

from collections.abc import Sequence

from helpers.evaluate import Interval, ratio
from helpers.rollout import Episode
from helpers.signals import tallies


def metrics(episodes: Sequence[Episode]) -> dict[str, Interval]:
    """{metric: ratio with its interval} over whole seeds; one whose denominator is 0 is left out."""
    rows, seeds = [tallies(episode) for episode in episodes], [episode.seed for episode in episodes]
    pairs = {name: tuple(zip(*(row[name] for row in rows), strict=True)) for name in rows[0]}
    return {name: ratio(over, under, seeds) for name, (over, under) in pairs.items() if sum(under)}
