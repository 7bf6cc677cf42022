"""Training from a command line: the same code as the notebooks', whose results do not depend on the number of processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launched import BOTH, note_steps
from toy import Chatter

from helpers import GAMES, grpo, selfplay, train, trainers
from helpers.games.bargaining import Bargaining
from helpers.players import SCRIPTED
from helpers.presets import PRESETS, named
from helpers.rewards import RUBRICS
from helpers.selfplay import ARMS
from helpers.trainers import once

TOP = Path(__file__).parent.parent
REGISTERED = tuple(GAMES)
MODEL = "model=tiny/market"  # speaks none of the games below but can be trained
SMALL = f"{MODEL}, prompts=8, generations=4, max_new_tokens=16"


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The games and the arm that these tests train; the environment that main() changes is put back."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for table, name, value in (
        (GAMES, "bargaining", Bargaining()),
        (GAMES, "chatter", Chatter()),
        (ARMS, "both", BOTH),
        (SCRIPTED, "chatter", {}),
    ):
        monkeypatch.setitem(table, name, value)


@pytest.fixture
def asked(monkeypatch):
    """What main() asks helpers.grpo.train or helpers.selfplay.train for, instead of training."""
    asked = []
    for module in (grpo, selfplay):

        def note(*given, module=module, **options):
            asked.append((module, given, options))
            options["progress"]([{"step": 3, "reward": 0.25, "frac_reward_zero_std": 0.5}])
            return SimpleNamespace(stopped=None)

        monkeypatch.setattr(module, "train", note)
    return asked


# several processes


@pytest.mark.slow
def test_two_processes_play_and_judge_what_one_does_and_write_files_once(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(selfplay.EpisodeTrainer, "_generate_and_score_completions", note_steps(steps))
    alone = selfplay.train(GAMES["chatter"], named("tiny", SMALL), ARMS["both"], tmp_path / "alone", seed=3, steps=1)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0", str(TOP / "tests" / "launched.py"), str(tmp_path)]
    given = ["--game", "chatter", "--arm", "both", "--preset", "tiny", "--overrides", SMALL, "--seed", "3", "--steps", "1"]
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [*launch, *given, "--run", str(tmp_path / "two")]
    done = subprocess.run(command, cwd=TOP, env={**os.environ, **quiet}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    notes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]

    [[one], [first], [second]] = steps, *(note["steps"] for note in notes)
    assert len(first["rows"]) == len(second["rows"]) == 16 and first["rows"] + second["rows"] == one["rows"]
    advantages = torch.tensor(first["advantages"] + second["advantages"])
    torch.testing.assert_close(advantages, torch.tensor(one["advantages"]))
    assert advantages.any()
    [logged, _], [expected, _] = json.loads((tmp_path / "two" / "both" / "history.json").read_text()), alone.history
    for name in ("reward", "payoff A", "grad_norm", "kl"):
        assert logged[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)

    paths = [{path for path in note["written"] if path.startswith(str(tmp_path / "two"))} for note in notes]
    assert {Path(path).name for path in paths[0]} >= {"training.json.part", "adapter_config.json", "history.json.part"}
    assert not paths[1]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"training arm both of chatter with preset tiny in {tmp_path}/two, 1 steps",
        "step 1 of 1",
        f"finished; the adapter lies in {tmp_path}/two/adapters/both",
    ]


def test_another_than_the_main_process_calls_nothing_and_learns_what_came_of_it(monkeypatch):
    assert once(max, 2, 3) == 3
    monkeypatch.setattr(trainers, "PartialState", lambda: SimpleNamespace(is_main_process=False))
    monkeypatch.setattr(trainers, "broadcast_object_list", lambda values: ["said by the main process"] if values == [None] else 0)
    assert once(pytest.fail, "called") == "said by the main process"


def test_single_turns_are_trained_in_one_process_only(monkeypatch, tmp_path):
    monkeypatch.setattr(grpo, "PartialState", lambda: SimpleNamespace(num_processes=2))
    with pytest.raises(ValueError, match="expected one process .*, got 2"):
        grpo.train(GAMES["market"], PRESETS["tiny"], RUBRICS["default"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_launcher_that_starts_one_process_where_several_were_asked_for_is_not_silent(monkeypatch, asked, capsys):
    given = ["--game", "bargaining", "--arm", "joint-grpo", "--preset", "tiny", "--overrides", MODEL]
    for name in ("RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    train.main(given)
    assert "launch" not in capsys.readouterr().out
    monkeypatch.setenv("MASTER_PORT", "29500")  # all that `accelerate launch --cpu --num_processes 2` does
    train.main(given)
    assert "accelerate launch started one process, not several" in capsys.readouterr().out


# arguments


def test_an_arm_or_single_turns_are_trained_with_what_was_asked_for(asked, tmp_path, capsys):
    run = str(tmp_path)
    common = ["--preset", "tiny", "--overrides", f"{MODEL}, prompts=8", "--run", run]
    train.main(["--game", "bargaining", "--arm", "joint-grpo", *common, "--seed", "2", "--steps", "9", "--minutes", "3"])
    train.main(["--game", "market", *common, "--resume"])
    preset = named("tiny", "prompts=8")
    [(first, what, options), (second, plain, defaults)] = asked
    assert (first, what) == (selfplay, (Bargaining(), preset, ARMS["joint-grpo"], tmp_path))
    assert (second, plain) == (grpo, (GAMES["market"], preset, RUBRICS["default"], tmp_path))
    del options["progress"], defaults["progress"]
    assert options == {"seed": 2, "steps": 9, "resume": False, "budget_s": 180.0}
    assert defaults == {"seed": 0, "steps": 200, "resume": True, "budget_s": None}
    said = capsys.readouterr().out
    assert "step 3 of 9: reward +0.250, 50% of groups tie" in said and f"the adapter lies in {run}/adapters/joint-grpo" in said


def test_options_come_from_a_yaml_file_too_and_the_command_line_goes_first(asked, tmp_path):
    (tmp_path / "arm.yaml").write_text(
        f"game: chatter\narm: both\npreset: tiny\noverrides: {MODEL}\nseed: 7\nsteps: 5\nrun: {tmp_path}\n"
    )
    train.main(["--config", str(tmp_path / "arm.yaml"), "--seed", "8"])
    [(module, given, options)] = asked
    assert (module, given[2:], options["seed"], options["steps"]) == (selfplay, (BOTH, tmp_path), 8, 5)


def test_a_run_without_a_folder_lies_in_one_named_after_its_game(asked):
    train.main(["--game", "chatter", "--arm", "both", "--preset", "tiny", "--overrides", MODEL])
    assert asked[0][1][-1] == Path("runs/chatter")


def test_a_preset_for_a_gpu_goes_without_unsloth_which_would_have_to_be_imported_before_the_parser(asked, monkeypatch, capsys):
    monkeypatch.setattr(train, "first_gpu", lambda: object())
    monkeypatch.setattr(train, "PartialState", lambda cpu: SimpleNamespace(num_processes=1))
    train.main(["--game", "chatter", "--arm", "both", "--preset", "t4"])
    assert asked[0][1][1] == PRESETS["t4-fallback"] and "ACCELERATE_USE_CPU" not in os.environ
    assert capsys.readouterr().out.startswith("preset t4-fallback: Unsloth would have to be imported")


MISTAKES = {
    "expected GAME to be one of .*, got 'poker'": ["--game", "poker"],
    "expected arm to be one of .*, got 'all'": ["--arm", "all"],
    "expected PRESET to be one of .*, got 'small'": ["--preset", "small"],
    "expected steps to be valid .*, got '0'": ["--overrides", "steps=0"],
    "expected steps and minutes of 0 or more, got -1 and 0": ["--steps", "-1"],
    "expected only what --help lists, got '--stepz 4'": ["--stepz", "4"],
    "expected a CUDA GPU for preset t4, found none: --preset auto": ["--preset", "t4"],
    "No such file or directory: 'no.yaml'": ["--config", "no.yaml"],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_answered_with_what_was_expected_before_anything_is_written(message, asked, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "first_gpu", lambda: None)
    with pytest.raises((ValueError, OSError), match=message):
        given = ["--game", "chatter", "--arm", "both", "--preset", "tiny", "--overrides", MODEL, "--run", str(tmp_path)]
        train.main([*given, *MISTAKES[message]])
    assert not asked and not list(tmp_path.iterdir())


def test_a_person_sees_one_line_and_no_traceback():
    done = subprocess.run([sys.executable, "-m", "helpers.train", "--game", "poker"], cwd=TOP, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"parley: expected GAME to be one of {', '.join(REGISTERED)}, got 'poker'\n"
