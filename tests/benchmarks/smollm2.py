"""What a warm start and 30 steps of GRPO make of SmolLM2-135M-Instruct, on a CPU: `python tests/benchmarks/smollm2.py RUN`.

Five stages, one after another or by name: train (warm start, then GRPO), base, warm and grpo (each plays the same held-out
deals), report (RUN/smollm2.json, and with --readme the section of README.md). What is done already is left out and what was
killed goes on, so the same command may be given again. Without a network: HF_HUB_OFFLINE=1, with requirements-test.txt installed.

While settings are chosen, --seeds VALID; the seeds TEST are for settings that are fixed.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

import torch  # noqa: E402

from helpers import GAMES, grpo, models, rollout  # noqa: E402
from helpers.card import between, filled  # noqa: E402
from helpers.evaluate import commit, compare, hardware, interval, outcomes, write_json  # noqa: E402
from helpers.players import Model  # noqa: E402
from helpers.presets import named  # noqa: E402
from helpers.rewards import rubric  # noqa: E402

GAME = GAMES["market"]
ADAPTERS = {"base": None, "warm": "warmup/adapter", "grpo": "adapter"}
STAGES = ("train", *ADAPTERS, "report")
BATCH = 64  # replies sampled at once in evaluation


def train(run: Path, preset, rewards, seed: int) -> None:
    if (run / "history.json").exists():
        return
    resume, start = (run / "training.json").exists(), time.monotonic()

    def progress(history):
        done, reward = history[-1]["step"], history[-1]["reward"]
        print(f"step {done} of {preset.steps}, mean reward {reward:+.3f}, {time.monotonic() - start:.0f} s", flush=True)

    grpo.train(GAME, preset, rewards, run, seed, resume=resume, save_steps=5, progress=progress)


def policy(run: Path, preset, name: str):
    """(model, tokenizer). An adapter is merged in float32 before the weights are rounded to the preset's dtype, as in
    helpers.saving.merge: beside weights of 16 bits it would cost more time than they do."""
    adapter = ADAPTERS[name]
    if adapter is None:
        return models.load(preset)
    model, tokenizer = models.load(replace(preset, dtype="float32"), run / adapter)
    return model.merge_and_unload().to(getattr(torch, preset.dtype)), tokenizer


def play(run: Path, preset, seed: int, name: str, deals) -> None:
    path = run / "episodes" / f"{name}.jsonl"
    if path.exists() and len(rollout.load(path)) == len(deals):
        return
    path.unlink(missing_ok=True)
    player = Model(name, models.generator(*policy(run, preset, name), replace(preset, batch=BATCH), seed))
    start, turns = time.monotonic(), 0

    def progress(over):
        nonlocal turns
        turns += 1
        print(f"{name}: turn {turns}, {over} of {len(deals)} games over, {time.monotonic() - start:.0f} s", flush=True)

    rollout.append(path, rollout.play(GAME, deals, dict.fromkeys(GAME.seats, player), progress))


def report(run: Path, preset, seed: int, command: str) -> dict:
    """Shares of legal actions and table payoffs by policy, differences deal by deal, and how long the steps took."""
    frames = {name: outcomes(GAME, rollout.load(run / "episodes" / f"{name}.jsonl")) for name in ADAPTERS}
    for frame in frames.values():
        frame["legal actions"] = 1 - frame["invalid replies"]
    warm, history = (json.loads((run / path).read_text()) for path in ("warmup/history.json", "history.json"))
    measures = ("legal actions", "table payoff")
    return {
        "command": command,
        "commit": commit(),
        "hardware": f"{hardware()}, {torch.get_num_threads()} threads",
        "preset": asdict(preset),
        "training seed": seed,
        "deals": [int(frames["base"]["seed"].min()), int(frames["base"]["seed"].max())],
        **{m: {name: asdict(interval(frame[m], frame["seed"])) for name, frame in frames.items()} for m in measures},
        "grpo - warm": {m: asdict(compare(frames["grpo"], frames["warm"], m).difference) for m in measures},
        "seconds": {
            "warm start": warm[-1]["train_runtime"],
            "a step of the warm start": warm[-1]["train_runtime"] / preset.warmup_steps,
            "a step of GRPO": median(entry["step_time"] for entry in history if "step_time" in entry),
        },
    }


def section(found: dict) -> str:
    """A report in words, for README.md."""
    legal, payoff, more, seconds = (found[name] for name in ("legal actions", "table payoff", "grpo - warm", "seconds"))
    preset, (first, last) = found["preset"], found["deals"]
    names = {"base": "base", "warm": "after the warm start", "grpo": "after GRPO"}
    rows = "\n".join(f"| {names[name]} | {percent(legal[name])} | {between(payoff[name])} |" for name in ADAPTERS)
    return f"""| | legal actions | table payoff |
| --- | --- | --- |
{rows}

{payoff["base"]["n"]} held-out deals ({first} to {last}); mean of an episode with its 95 % interval over deals.
GRPO minus warm start, deal by deal: {between(more["table payoff"])} in table payoff,
{percent(more["legal actions"])} in legal actions.
Warm start: {preset["warmup_steps"]} steps, {seconds["a step of the warm start"]:.0f} s each. GRPO: {preset["steps"]} steps of
{preset["prompts"]} prompts x {preset["generations"]} replies, {seconds["a step of GRPO"]:.0f} s each.
In {preset["dtype"]} on {found["hardware"]}. Training seed {found["training seed"]}, commit `{found["commit"]}`:
`{found["command"]}`"""


def percent(x: dict) -> str:
    return f"{100 * x['value']:.1f} % [{100 * x['low']:.1f}, {100 * x['high']:.1f}]"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("stages", nargs="*", help=f"{', '.join(STAGES)}; default: all")
    parser.add_argument("--seeds", choices=("VALID", "TEST"), default="VALID")
    parser.add_argument("--games", type=int, default=50)
    parser.add_argument("--skip", type=int, default=0, help="that many deals, on which other settings were tried")
    parser.add_argument("--seed", type=int, default=0, help="of training and sampling")
    parser.add_argument("--overrides", default="", help='of the preset, as in "steps=10"')
    parser.add_argument("--rubric", default="default", help="of GRPO: a name, or JSON as the reward lab writes it")
    parser.add_argument("--readme", action="store_true", help="write the report into README.md")
    given = parser.parse_args(argv)
    preset, deals = named("smollm2", given.overrides), getattr(rollout, given.seeds)[given.skip :][: given.games]
    for stage in given.stages or STAGES:
        if stage == "train":
            train(given.run, preset, rubric(given.rubric), given.seed)
        elif stage == "report":
            found = report(given.run, preset, given.seed, shlex.join(["python", "tests/benchmarks/smollm2.py", *argv]))
            write_json(given.run / "smollm2.json", found)
            print(section(found))
            if given.readme:
                (TOP / "README.md").write_text(filled((TOP / "README.md").read_text(), "smollm2", section(found)))
        else:
            play(given.run, preset, given.seed, stage, deals)


if __name__ == "__main__":
    main(sys.argv[1:])
