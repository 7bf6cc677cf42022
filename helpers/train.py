"""Training from a command line: the code that the notebooks call, with their parameters.

    python -m helpers.train --game bargaining --arm joint-grpo --preset tiny
    accelerate launch --multi_gpu --num_processes 2 -m helpers.train --game bargaining --arm joint-grpo --preset tiny

Several processes share out every step of self-play and play what one would play. --multi_gpu is how accelerate starts them
without MPI, whether there are GPUs or not; with --cpu in its place it starts only one.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from accelerate import PartialState
from trl import TrlParser

from helpers import game_named, machine
from helpers.presets import first_gpu, named, without_unsloth


def option(default, says: str):
    return field(default=default, metadata={"help": says})


@dataclass
class Arguments:
    game: str = field(metadata={"help": "its name"})
    arm: str | None = option(
        None, "of self-play (helpers.selfplay.ARMS): who plays, and the loss; without one, single turns are trained"
    )
    preset: str = option("auto", "model and settings; auto picks by the hardware")
    overrides: str = option("", 'fields of the preset to change, such as "prompts=8, learning_rate=1e-4"')
    seed: int = option(0, "of training")
    steps: int = option(0, "0: the preset's")
    run: str | None = option(None, "the folder to write; without one, runs/GAME")
    resume: bool = option(False, "leave a finished run as it is; one that was stopped is gone on with in any case")
    minutes: int = option(0, "save and stop within so many; 0: no limit or, on Kaggle and Colab, the session's")


def arguments(argv: Sequence[str]) -> Arguments:
    """From the command line, on top of a YAML file named by --config. Raises ValueError or OSError for what cannot be taken."""
    parser = TrlParser(Arguments, prog="python -m helpers.train", description=__doc__.splitlines()[0])
    given, unknown = parser.parse_args_and_config(argv, return_remaining_strings=True)
    if unknown:
        raise ValueError(f"expected only what --help lists, got {' '.join(unknown)!r}")
    if min(given.steps, given.minutes) < 0:
        raise ValueError(f"expected steps and minutes of 0 or more, got {given.steps} and {given.minutes}")
    return given


def main(argv: Sequence[str]) -> None:
    """Trains. Raises ValueError or OSError, whose text is all that a person needs to see, for arguments that do not fit."""
    given = arguments(argv)
    game, preset = game_named(given.game), named(given.preset, given.overrides, given.game)
    if preset.device == "cuda" and first_gpu() is None:
        raise ValueError(f"expected a CUDA GPU for preset {preset.name}, found none: --preset auto picks what runs here")
    if preset.backend == "unsloth":
        preset = without_unsloth(preset)
        print(f"preset {preset.name}: Unsloth would have to be imported before TRL's parser")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    if preset.device == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"  # without it, processes on a CPU do not find each other
    alone = PartialState(cpu=preset.device == "cpu").num_processes == 1
    if alone and "MASTER_PORT" in os.environ and "RANK" not in os.environ:
        print("accelerate launch started one process, not several: on a CPU, too, give it --multi_gpu in place of --cpu")
    run, budget_s = machine.run_folder(given.run or f"runs/{game.name}"), machine.budget_s(given.minutes)
    steps = given.steps or preset.steps

    from helpers import grpo, selfplay  # not before the arguments are known to fit: it takes seconds
    from helpers.rewards import RUBRICS

    if not given.arm:
        what, adapter, train = "single turns", run / "adapter", partial(grpo.train, game, preset, RUBRICS["default"])
    elif given.arm in selfplay.ARMS:
        what, adapter = f"arm {given.arm}", run / "adapters" / given.arm
        train = partial(selfplay.train, game, preset, selfplay.ARMS[given.arm])
    else:
        raise ValueError(f"expected arm to be one of {', '.join(selfplay.ARMS)}, got {given.arm!r}")

    def progress(history: list[dict]) -> None:
        tied = history[-1]["frac_reward_zero_std"]
        print(f"step {history[-1]['step']} of {steps}: reward {history[-1]['reward']:+.3f}, {tied:.0%} of groups tie", flush=True)

    print(f"training {what} of {game.name} with preset {preset.name} in {run}, {steps} steps", flush=True)
    trained = train(run, seed=given.seed, steps=steps, resume=given.resume, budget_s=budget_s, progress=progress)
    print(f"{trained.stopped or 'finished'}; the adapter lies in {adapter}")


if __name__ == "__main__":
    if os.environ.get("RANK", "0") != "0":  # only the main process reports
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(f"parley: {error}")
    except KeyboardInterrupt:
        sys.exit("parley: stopped; the same command goes on with the last checkpoint")
