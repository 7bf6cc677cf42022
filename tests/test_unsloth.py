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

from helpers import models
from helpers.presets import PRESETS

TOP = Path(__file__).parent.parent
ON_A_CPU = "model=tiny, device=cpu, dtype=float32, four_bit=false, max_new_tokens=24"
# In an interpreter of its own, because Unsloth must be imported first.
CODE = """
import json, sys
from pathlib import Path
from helpers import presets

preset = presets.preset("t4", sys.argv[2])
import torch
from helpers import grpo, models
from helpers.games.market import Market
from helpers.rewards import RUBRICS

grpo.preflight = lambda *args: None  # its verdict on so few replies would be a matter of luck
trained = grpo.train(Market(rounds=3), preset, RUBRICS["default"], Path(sys.argv[1]), steps=3)
again, _ = models.load(preset, trained.run / "adapter")
with torch.inference_mode():
    logits = [model(torch.tensor([list(range(3, 40))])).logits[0, -1].tolist() for model in (trained.model, again)]
steps = [entry["step"] for entry in trained.history if "reward" in entry]
print(json.dumps({"backend": preset.backend, "steps": steps, "logits": logits}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("unsloth"), reason="needs pip install --no-deps -r requirements-test.txt")
def test_three_steps_with_unsloth_move_the_adapter_which_unsloth_and_peft_alone_load_to_the_same_logits(tmp_path):
    environment = {
        "UNSLOTH_SKIP_TORCHVISION_CHECK": "1",
        "UNSLOTH_COMPILE_LOCATION": str(tmp_path / "compiled"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TOP)!r})\n{CODE}", str(tmp_path / "run"), ON_A_CPU]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["backend"], said["steps"]) == ("unsloth", [1, 2, 3])
    adapter = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    up = [tensor for name, tensor in adapter.items() if "lora_B" in name]  # 0 in a fresh adapter
    assert len(up) == 4 * len(models.LAYERS) and all(tensor.any() for tensor in up)
    model, _ = models.load(PRESETS["tiny"], tmp_path / "run" / "adapter")
    with torch.inference_mode():
        logits = model(torch.tensor([list(range(3, 40))])).logits[0, -1]
    for with_unsloth in said["logits"]:  # as trained, and loaded again
        torch.testing.assert_close(torch.tensor(with_unsloth), logits, rtol=0, atol=1e-3)
