"""The check for a GPU: its plan for every kind of GPU, and a whole run without one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from helpers import gpu_check
from helpers.memory import Shape
from helpers.presets import PRESETS

TOP = Path(__file__).parent.parent


def with_installed(monkeypatch, *modules):
    monkeypatch.setattr(gpu_check, "installed", lambda name: name in modules)


def test_a_t4_checks_every_way_that_is_installed_in_float16_only(monkeypatch):
    with_installed(monkeypatch, "unsloth", "bitsandbytes")
    paths = gpu_check.plan("t4", (7, 5), "random")
    found = [path["path"] for path in paths]
    assert found == ["transformers float16", "transformers 4-bit float16", "unsloth 4-bit float16", "real model"]
    assert replace(PRESETS["t4"], **paths[0]["overrides"]).own_sampling  # its 4-D mask must do in float16 too


def test_a_newer_gpu_checks_bfloat16_too(monkeypatch):
    with_installed(monkeypatch, "unsloth")
    found = [path["path"] for path in gpu_check.plan("l4", (8, 9), "random")]
    assert found == ["transformers float16", "transformers bfloat16", "unsloth bfloat16", "real model"]


@pytest.mark.parametrize("modules", [(), ("unsloth",), ("bitsandbytes",), ("unsloth", "bitsandbytes")])
@pytest.mark.parametrize(("chosen", "capability"), [("tiny", None), ("t4", (7, 5)), ("a100", (8, 0)), ("h200", (9, 0))])
def test_every_path_of_a_plan_is_a_preset_that_exists_and_asks_only_for_what_is_installed(
    chosen, capability, modules, monkeypatch
):
    with_installed(monkeypatch, *modules)
    paths = gpu_check.plan(chosen, capability, "random")
    for path in paths:
        preset = replace(PRESETS[path["preset"]], **path["overrides"])
        assert preset.backend == "transformers" or "unsloth" in modules
        assert not preset.four_bit or "bitsandbytes" in modules
        assert (preset.model == "random") is (path["path"] != "real model")
    assert len({path["path"] for path in paths}) == len(paths) >= 2


def test_the_random_model_has_the_large_models_sizes_and_the_tiny_tokenizer(tmp_path, monkeypatch):
    shape = Shape(600, 32, 64, 2, 4, 2, 8, tied=True)
    monkeypatch.setattr(gpu_check, "SHAPES", {gpu_check.QWEN: shape})
    gpu_check.random_model(tmp_path, full_size=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    config = model.config
    assert model.dtype == torch.float16 and config.model_type == "qwen2"
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers)
    assert (*sizes, config.num_attention_heads, config.num_key_value_heads) == (600, 32, 64, 2, 4, 2)
    tiny = PreTrainedTokenizerFast.from_pretrained(TOP / "helpers" / "tiny" / "market")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path).get_vocab() == tiny.get_vocab()


def test_health_reports_the_rounding_of_both_half_precisions():
    found = gpu_check.health("cpu")
    # float16 has 11 significant bits, bfloat16 8: rounding the factors alone costs about 2^-12.5 and 2^-9.5.
    assert 1e-5 < found["float16"]["relative_error"] < 2e-3 < found["bfloat16"]["relative_error"] < 2e-2


def test_a_path_that_fails_is_reported_with_its_reason_and_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bad = {"path": "bad", "preset": "t4-fallback", "overrides": {}}
    result = gpu_check.in_a_process(bad, tmp_path, 120)
    assert result["ok"] is False
    assert gpu_check.line({**bad, **result}).startswith("bad: FAILED: RuntimeError: expected a CUDA GPU for preset t4-fallback")


def test_a_path_that_takes_too_long_is_ended_and_reported(tmp_path):
    result = gpu_check.in_a_process({"path": "slow", "preset": "tiny", "overrides": {}}, tmp_path, 0.01)
    assert result == {"ok": False, "error": "not done within 0 s"}


@pytest.mark.slow
def test_one_command_checks_this_machine_and_writes_json(tmp_path):
    out = tmp_path / "check.json"
    command = [sys.executable, "-m", "helpers.gpu_check", "--out", str(out), "--budget", "300"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert (found["preset"], found["gpu"]) == ("tiny", None) and found["versions"]["torch"] and 0 < found["seconds"] < 300
    assert [path["path"] for path in found["paths"]] == ["transformers float32", "real model"]
    for path in found["paths"]:
        assert path["ok"] and path["adapter_moved"] and len(path["grad_norms"]) == gpu_check.STEPS
        for figure in ("step_s", "rollout_tokens_per_s", "training_tokens_per_s", "peak_gib", "on_paper_gib", "load_s"):
            assert path[figure] > 0
        assert f"{path['path']}: ok, " in done.stdout
