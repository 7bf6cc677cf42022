"""What self-play makes of the embedded model in Bargaining: `python tests/benchmarks/bargaining.py RUN --arms buyer-grpo`.

Every arm is trained with every training seed; then the trained model plays the seats it was trained for, the untrained base the
others, on the same held-out scenarios as base against base. What is done already is left out and what was killed goes on, so the
same command may be given again. Writes RUN/bargaining.json.

While settings are chosen, --deals VALID; the scenarios of TEST are for settings that are fixed.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

from helpers import models, rollout, selfplay  # noqa: E402
from helpers.card import between  # noqa: E402
from helpers.evaluate import commit, compare, hardware, interval, ratio, write_json  # noqa: E402
from helpers.games.bargaining import Bargaining  # noqa: E402
from helpers.players import Model  # noqa: E402
from helpers.presets import named  # noqa: E402
from helpers.surplus import bargains  # noqa: E402

GAME = Bargaining()
MEASURES = ("deal rate", "buyer share", "seller share", "outside the zone", "invalid replies", "rounds used")


def train(run: Path, preset, arm, seed: int) -> float:
    """Seconds that the steps took."""
    folder = run / arm.name

    def progress(history):
        last = history[-1]
        if last["step"] % 10 == 0:
            print(f"{arm.name}, seed {seed}: step {last['step']} of {preset.steps}, reward {last['reward']:+.3f}", flush=True)

    if not (folder / "history.json").exists():
        selfplay.train(GAME, preset, arm, run, seed=seed, progress=progress)
    return sum(entry.get("step_time", 0.0) for entry in json.loads((folder / "history.json").read_text()))


def play(path: Path, preset, deals, adapter: Path | None = None, seats=()) -> list[rollout.Episode]:
    """Episodes of the base, or of a trained adapter in `seats` and the base in the others."""
    if path.exists() and len(episodes := rollout.load(path)) == len(deals):
        return episodes
    path.unlink(missing_ok=True)
    players = dict.fromkeys(GAME.seats, Model("base", models.generator(*models.load(preset), preset)))
    if adapter:
        players |= dict.fromkeys(seats, Model("trained", models.generator(*models.load(preset, adapter), preset)))
    episodes = rollout.play(GAME, deals, players)
    rollout.append(path, episodes)
    return episodes


def figures(frame) -> dict:
    """Means with intervals over scenarios; and of the deals the share that lies outside the zone of agreement."""
    found = {name: asdict(interval(frame[name], frame["seed"])) for name in MEASURES}
    return found | {"deals outside the zone": asdict(ratio(frame["outside the zone"], frame["deal rate"], frame["seed"]))}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--arms", nargs="+", choices=list(selfplay.ARMS), default=list(selfplay.ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of training")
    parser.add_argument("--deals", choices=("VALID", "TEST"), default="VALID")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--overrides", default="", help='of the preset, as in "steps=10"')
    given = parser.parse_args(argv)
    preset, deals = named("tiny", given.overrides, GAME.name), getattr(rollout, given.deals)[: given.games]
    base = bargains(GAME, play(given.run / f"base-{given.deals}.jsonl", preset, deals))
    found = {
        "command": shlex.join(["python", "tests/benchmarks/bargaining.py", *argv]),
        "commit": commit(),
        "hardware": hardware(),
        "preset": asdict(preset),
        "base": figures(base),
        "arms": {},
    }
    for name in given.arms:
        for seed in given.seeds:
            arm, run = selfplay.ARMS[name], given.run / f"seed-{seed}"
            seconds = train(run, preset, arm, seed)
            episodes = play(run / f"{name}-{given.deals}.jsonl", preset, deals, run / "adapters" / name, arm.trained)
            frame = bargains(GAME, episodes)
            change = {measure: asdict(compare(frame, base, measure).difference) for measure in MEASURES}
            found["arms"].setdefault(name, {})[seed] = {**figures(frame), "minus base": change, "seconds": seconds}
            print(f"{name}, seed {seed}, trained in {seconds:.0f} s, minus base on {len(deals)} scenarios:", flush=True)
            print("; ".join(f"{measure} {between(x)}" for measure, x in change.items()), flush=True)
    write_json(given.run / "bargaining.json", found)


if __name__ == "__main__":
    main(sys.argv[1:])
