"""What test_train.py starts, alone or under a launcher: helpers.train with the toy game and an arm for it. Every process notes
what it plays, how it judges that, and which files of the run it opens to write."""

import json
import os
import runpy
import sys
from pathlib import Path

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from toy import Chatter  # noqa: E402

from helpers import GAMES  # noqa: E402
from helpers.players import SCRIPTED  # noqa: E402
from helpers.selfplay import ARMS, Arm, EpisodeTrainer  # noqa: E402

BOTH = Arm("both", {"A": {"policy": 1.0}, "B": {"policy": 1.0, "base": 1.0}})


def note_steps(steps: list):
    """A method for EpisodeTrainer that adds to `steps` what this process had in each: rows, what was said, and advantages."""
    original = EpisodeTrainer._generate_and_score_completions

    def noted(self, inputs):
        output = original(self, inputs)
        rows = [[row["seed"], row["seat"], [turn.reply for turn in row["episode"].turns]] for row in inputs]
        steps.append({"rows": rows, "advantages": output["advantages"].tolist()})
        return output

    return noted


if __name__ == "__main__":
    notes, steps, written = Path(sys.argv.pop(1)), [], []
    sys.addaudithook(lambda event, given: event == "open" and "w" in str(given[1]) and written.append(str(given[0])))
    GAMES["chatter"], ARMS["both"], SCRIPTED["chatter"] = Chatter(), BOTH, {}
    EpisodeTrainer._generate_and_score_completions = note_steps(steps)
    runpy.run_module("helpers.train", run_name="__main__")
    (notes / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps({"steps": steps, "written": written}))
