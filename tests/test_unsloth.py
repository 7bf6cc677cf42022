"""The very path of preset t4, but with the embedded model and on Unsloth's CPU back end. `make test` installs Unsloth."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import models, warmup
from helpers.games.market import Market
from helpers.presets import PRESETS, override, without_unsloth

TOP = Path(__file__).parent.parent
ON_A_CPU = "model=tiny/market, device=cpu, dtype=float32, four_bit=false, max_new_tokens=24"
WARM = f"{ON_A_CPU}, warmup_steps=2, learning_rate=1e-12"  # so small that GRPO moves nothing
# Each in an interpreter of its own, because Unsloth must be imported first.
BEGIN = """
import json, sys
from pathlib import Path
from helpers import presets

run, preset = Path(sys.argv[1]), presets.preset("t4", sys.argv[2])
import torch
from transformers import GenerationMixin
from helpers import grpo, models, warmup
from helpers.games.market import Market
from helpers.rewards import RUBRICS

grpo.preflight = lambda *args: None  # its verdict on so few replies would be a matter of luck

def train(steps):
    return grpo.train(Market(rounds=3), preset, RUBRICS["default"], run, steps=steps)
"""
THREE_STEPS = """
DECIDES = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")
sampled = {"evaluation": [], "training": []}
heard, sample, learn = "evaluation", GenerationMixin._sample, grpo.learn

def hear(self, ids, logits_processor, stopping_criteria, generation_config, **given):
    settings = {name: getattr(generation_config, name) for name in DECIDES}
    processors = [type(each).__name__ for each in logits_processor]
    sampled[heard].append((ids.tolist(), [settings, processors]))
    return sample(self, ids, logits_processor, stopping_criteria, generation_config, **given)

def learning(*args):
    global heard
    heard = "training"
    learn(*args)
    heard = "evaluation"

GenerationMixin._sample, grpo.learn = hear, learning
trained = train(3)
again, tokenizer = models.load(preset, run / "adapter")
with torch.inference_mode():
    logits = [model(torch.tensor([list(range(3, 40))])).logits[0, -1].tolist() for model in (trained.model, again)]
prompts = {tokenizer.decode([i for i in ids if i != tokenizer.pad_token_id]) for batch, _ in sampled["training"] for ids in batch}
rows = [json.loads(line)["prompt"] for line in (run / "rows.jsonl").read_text().splitlines()][: 3 * preset.prompts]
asked = {tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=True) for row in rows}
settings = {name: [each for _, each in found] for name, found in sampled.items()}
steps = [entry["step"] for entry in trained.history if "reward" in entry]
found = {"backend": preset.backend, "steps": steps, "logits": logits, "settings": settings}
print(json.dumps(found | {"prompts": sorted(prompts), "asked": sorted(asked)}))
"""
WARM_START = """
train(1)
first = (run / "adapter" / "adapter_model.safetensors").read_bytes()
(run / "adapter" / "adapter_model.safetensors").unlink()
warmup.SFTTrainer = None  # the second time the finished warm start is taken up
train(1)
print(json.dumps(first == (run / "adapter" / "adapter_model.safetensors").read_bytes()))
"""
needs_unsloth = pytest.mark.skipif(
    not importlib.util.find_spec("unsloth"), reason="needs pip install --no-deps -r requirements-test.txt"
)


def with_unsloth(folder: Path, code: str, overrides: str):
    """What the code prints last, as JSON; its run lies in folder/run."""
    environment = {
        "UNSLOTH_SKIP_TORCHVISION_CHECK": "1",
        "UNSLOTH_COMPILE_LOCATION": str(folder / "compiled"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    code = f"import sys; sys.path.insert(0, {str(TOP)!r})\n{BEGIN}{code}"
    command = [sys.executable, "-c", code, str(folder / "run"), overrides]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """The folder of a run of three steps, and what was said and done in it."""
    folder = tmp_path_factory.mktemp("three-steps")
    return folder / "run", with_unsloth(folder, THREE_STEPS, ON_A_CPU)


@pytest.mark.slow
@needs_unsloth
def test_three_steps_with_unsloth_move_the_adapter_which_unsloth_and_peft_alone_load_to_the_same_logits(three_steps):
    run, said = three_steps
    assert (said["backend"], said["steps"]) == ("unsloth", [1, 2, 3])
    adapter = load_file(run / "adapter" / "adapter_model.safetensors")
    up = [tensor for name, tensor in adapter.items() if "lora_B" in name]  # 0 in a fresh adapter
    assert len(up) == 4 * len(models.LAYERS) and all(tensor.any() for tensor in up)
    model, _ = models.load(PRESETS["tiny"], run / "adapter")
    with torch.inference_mode():
        logits = model(torch.tensor([list(range(3, 40))])).logits[0, -1]
    for with_unsloth in said["logits"]:  # as trained, and loaded again
        torch.testing.assert_close(torch.tensor(with_unsloth), logits, rtol=0, atol=1e-3)


@pytest.mark.slow
@needs_unsloth
def test_training_with_unsloth_asks_and_samples_as_evaluation_does(three_steps):
    _, said = three_steps
    assert said["prompts"] == said["asked"] and len(said["asked"]) > 1
    training, evaluation = said["settings"]["training"], said["settings"]["evaluation"]
    assert training and evaluation and all(each == evaluation[0] for each in training + evaluation)
    assert evaluation[0][0]["temperature"] == PRESETS["t4"].temperature and evaluation[0][0]["max_new_tokens"] == 24


@pytest.mark.slow
@needs_unsloth
def test_a_warm_start_with_unsloth_learns_what_one_without_it_does_and_grpo_goes_on_from_it_now_and_when_it_is_taken_up_again(
    tmp_path,
):
    assert with_unsloth(tmp_path, WARM_START, WARM) is True
    run = tmp_path / "run"
    warm, after = (load_file(run / name / "adapter_model.safetensors") for name in ("warmup/adapter", "adapter"))
    assert all(tensor.any() for name, tensor in warm.items() if "lora_B" in name)
    assert warm.keys() == after.keys()
    for name, tensor in warm.items():
        torch.testing.assert_close(tensor, after[name], rtol=0, atol=1e-9)
    plain = without_unsloth(override(PRESETS["t4"], WARM))
    base, tokenizer = models.load(plain)
    warmup.warm_up(Market(rounds=3), plain, models.add_adapter(base, plain, 0), tokenizer, tmp_path / "plain")
    losses = [
        [entry["loss"] for entry in json.loads((folder / "warmup" / "history.json").read_text()) if "loss" in entry]
        for folder in (run, tmp_path / "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3) and len(losses[0]) == 2
