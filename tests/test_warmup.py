"""The warm start, with the embedded model: what it reads, what it learns, and that GRPO goes on from there."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import checkpoints, grpo, warmup
from helpers.games.market import Market
from helpers.models import add_adapter, load
from helpers.presets import PRESETS
from helpers.rewards import RUBRICS
from helpers.rollout import TRAIN
from helpers.saving import is_run
from helpers.warmup import examples, warm_up

GAME = Market(rounds=3)
PRESET = replace(PRESETS["tiny"], prompts=2, generations=4, refresh=1, max_new_tokens=24, warmup_steps=2)
SIX = replace(PRESET, warmup_steps=6)  # it saves after every step


class Stop(Exception):
    """Carries what a trainer was about to learn from."""


def fresh():
    """The embedded model with a fresh adapter, and its tokenizer."""
    base, tokenizer = load(PRESET)
    return add_adapter(base, PRESET, seed=0), tokenizer


def weights(folder: Path) -> dict[str, torch.Tensor]:
    stored = load_file(folder / "adapter_model.safetensors")  # looks into the open file, which may be written anew
    return {name: tensor.clone() for name, tensor in stored.items()}


def assert_same(first: dict, second: dict, atol: float = 0):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=atol)


def loss(model, tokenizer, rows: list[dict]) -> float:
    """Mean over `rows` of what a completion and its stop token cost after their prompt, in nats."""
    total = 0.0
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]
        reply = tokenizer.encode(row["completion"][0]["content"]) + [tokenizer.eos_token_id]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(reply), reduction="sum").item()
    return total / len(rows)


# what it reads


def test_three_of_four_examples_show_the_competent_players_action_and_the_others_a_random_one(monkeypatch):
    monkeypatch.setattr(warmup, "competent", lambda game: lambda view, rng: "competent")
    found = examples(GAME, 2000, seed=0)
    said = Counter(row["completion"][0]["content"] == "competent" for row in found)
    assert len(found) == 2000 and 0.72 < said[True] / 2000 < 0.78  # 0.75 and three standard errors
    assert all(row["completion"][0]["role"] == "assistant" for row in found)
    for row in found:
        if (text := row["completion"][0]["content"]) != "competent":
            assert str(GAME.parse(text)) == text


def test_examples_are_the_prompts_of_evaluation_in_games_on_train_seeds_and_no_others(monkeypatch):
    played, prompts = [], []

    def watch(game, seeds, players):
        episodes = play(game, seeds, players)
        played.extend(seeds)
        prompts.extend((e.system[turn.seat], turn.prompt) for e in episodes for turn in e.turns)
        return episodes

    play = warmup.play
    monkeypatch.setattr(warmup, "play", watch)
    found = [tuple(message["content"] for message in row["prompt"]) for row in examples(GAME, 200, seed=0)]
    assert Counter(found) <= Counter(prompts) and len(set(found)) > 150
    assert set(played) <= set(TRAIN) and len(set(played)) == len(played)
    assert examples(GAME, 20, seed=0) == examples(GAME, 20, seed=0) != examples(GAME, 20, seed=1)


def test_half_of_the_examples_are_as_they_come_and_in_the_other_half_rare_kinds_of_action_stand_beside_common_ones():
    found = examples(Market(), 600, seed=0)
    said = Counter(row["completion"][0]["content"].partition("(")[0] for row in found)
    assert len(found) == 600 and 40 < said["build_project"] < 80 < said["accept_trade"] < said["propose_trade"]


# what it learns


def test_only_the_reply_and_its_stop_token_are_learned_though_other_ids_pad_the_batch(tmp_path, monkeypatch):
    def batches(trainer, **resume):
        raise Stop(list(trainer.get_train_dataloader()))

    monkeypatch.setattr(warmup.SFTTrainer, "train", batches)
    with pytest.raises(Stop) as caught:
        warm_up(GAME, PRESET, *fresh(), tmp_path)
    tokenizer, found, padded = load(PRESET)[1], Counter(), 0
    for batch in caught.value.args[0]:
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            learned = labels != -100
            assert torch.equal(ids[learned], labels[learned]) and not (learned & ~mask.bool()).any()
            found[tokenizer.decode(ids[mask.bool()]), tokenizer.decode(labels[learned])] += 1
            padded += int((mask == 0).sum())
    rows = examples(GAME, 2 * warmup.EXAMPLES, seed=0)
    expected = Counter()
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        reply = row["completion"][0]["content"] + "<|im_end|>\n"  # the line break belongs to the chat's frame
        expected[prompt + reply, reply] += 1
    assert found == expected and padded > 0


def test_a_warm_start_moves_the_adapter_alone_and_makes_scripted_play_likelier(tmp_path):
    model, tokenizer = fresh()
    preset = replace(PRESET, warmup_steps=8)
    rows = examples(GAME, 8 * warmup.EXAMPLES, seed=0)
    base = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    before = loss(model, tokenizer, rows)
    path = model.peft_config["default"].base_model_name_or_path
    warm_up(GAME, preset, model, tokenizer, tmp_path)
    assert model.peft_config["default"].base_model_name_or_path == path  # where a trainer's checkpoints look for the base
    assert loss(model, tokenizer, rows) < 0.99 * before  # not more: the embedded model has seen such play
    assert not model.training
    assert all(torch.equal(p, base[name]) for name, p in model.named_parameters() if name in base)
    again = load(preset, tmp_path / "warmup" / "adapter")
    assert loss(*again, rows[:4]) == pytest.approx(loss(model, tokenizer, rows[:4]), rel=1e-5)
    history = json.loads((tmp_path / "warmup" / "history.json").read_text())
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_finished_warm_start_is_taken_as_it_is_unless_nobody_knows_what_made_it(tmp_path, monkeypatch):
    folder = tmp_path / "warmup" / "adapter"
    took = warm_up(GAME, PRESET, *fresh(), tmp_path)
    first = weights(folder)
    (tmp_path / "warmup" / warmup.NOTE).unlink()
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    warm_up(GAME, PRESET, *fresh(), tmp_path)
    assert_same(weights(folder), first)
    monkeypatch.setattr(warmup, "SFTTrainer", None)
    model, tokenizer = fresh()
    assert warm_up(GAME, replace(PRESET, learning_rate=1, accumulate=2), model, tokenizer, tmp_path) < took / 2  # GRPO's
    trained = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    assert_same(first, trained)
    with pytest.raises(ValueError, match="holds a warm start with other settings"):
        warm_up(GAME, replace(PRESET, warmup_steps=3), *fresh(), tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.test_warmup import GAME, PRESET, SIX, fresh, warmup
steps = warmup.SFTTrainer.training_step
def step(trainer, *given):
    if trainer.state.global_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return steps(trainer, *given)
warmup.SFTTrainer.training_step = step
warmup.warm_up(GAME, SIX, *fresh(), Path(sys.argv[1]))
"""


def test_a_warm_start_killed_within_a_step_goes_on_from_its_last_checkpoint_here_and_in_a_later_session(
    tmp_path, monkeypatch, capsys
):
    killed, later, undisturbed = (tmp_path / name for name in ("killed", "later", "undisturbed"))
    code = subprocess.run([sys.executable, "-c", KILLED, killed], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert code.returncode == -signal.SIGKILL, code.stderr
    monkeypatch.setattr(checkpoints, "INPUTS", tmp_path / "input")
    shutil.copytree(killed, checkpoints.INPUTS / "an" / "input")
    for run in (killed, later, undisturbed):
        if run == undisturbed:
            shutil.rmtree(checkpoints.INPUTS)
        warm_up(GAME, SIX, *fresh(), run)
        said = capsys.readouterr().out
        assert (f"going on with the warm start in {run / 'warmup'} from step 3 of 6" in said) == (run != undisturbed)
        assert ("the warm start of an earlier session" in said) == (run == later)
    ends = [weights(run / "warmup" / "adapter") for run in (killed, later, undisturbed)]
    assert_same(ends[0], ends[1])
    assert_same(ends[0], ends[2], atol=1e-6)


def test_a_warm_start_is_not_taken_for_a_trained_run(tmp_path):
    warm_up(GAME, PRESET, *fresh(), tmp_path)
    assert not any(is_run(folder) for folder in (tmp_path, *tmp_path.rglob("*")) if folder.is_dir())


def test_compiled_layers_learn_what_plain_ones_do_and_are_plain_again_afterwards(tmp_path, monkeypatch):
    losses = []
    for compiler in ("g++", None):
        monkeypatch.setattr(warmup.shutil, "which", lambda name, found=compiler: found)
        model, tokenizer = fresh()
        warm_up(GAME, PRESET, model, tokenizer, tmp_path / str(compiler))
        assert not any("forward" in vars(module) for module in model.base_model.model.model.layers)
        history = json.loads((tmp_path / str(compiler) / "warmup" / "history.json").read_text())
        losses.append([entry["loss"] for entry in history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == PRESET.warmup_steps


# GRPO goes on


def trained(run: Path, preset=PRESET, **settings):
    """Two steps of GRPO without preflight, whose verdict on so few replies would be a matter of luck."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "preflight", lambda *args: None)
        return grpo.train(GAME, preset, RUBRICS["default"], run, steps=2, save_steps=1, **settings)


def test_grpo_begins_with_the_adapter_of_the_warm_start(tmp_path):
    trained(tmp_path, replace(PRESET, learning_rate=1e-12))  # so small that GRPO moves nothing
    warm = weights(tmp_path / "warmup" / "adapter")
    assert all(tensor.any() for name, tensor in warm.items() if "lora_B" in name)  # 0 in a fresh adapter
    assert_same(weights(tmp_path / "adapter"), warm, atol=1e-9)


@pytest.mark.slow
def test_a_run_out_of_time_in_its_warm_start_and_after_it_resumes_to_the_end_of_an_undisturbed_one(tmp_path, monkeypatch):
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    trained(undisturbed)
    with pytest.raises(TimeoutError, match=r"needs more than its time budget of 0 s: stopped at step 1, run again"):
        trained(stopped, budget_s=0)
    warm_up(GAME, PRESET, *fresh(), stopped)
    monkeypatch.setattr(warmup, "SFTTrainer", None)  # nothing is warmed up again
    assert "stopped at step 1" in trained(stopped, budget_s=0).stopped
    assert trained(stopped, resume=True).stopped is None
    assert_same(weights(stopped / "warmup" / "adapter"), weights(undisturbed / "warmup" / "adapter"))
    assert_same(weights(stopped / "adapter"), weights(undisturbed / "adapter"), atol=1e-6)
    ends = [weights(stopped / name) for name in ("warmup/adapter", "adapter")]
    assert any(not torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
