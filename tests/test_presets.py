"""Presets: their figures, overrides and the choice by hardware; and Unsloth first, or its fallback."""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from trl import GRPOConfig

from helpers import grpo, models, presets
from helpers.games.market import Market
from helpers.presets import PRESETS, Gpu, Preset, named, override
from helpers.rewards import RUBRICS

TOP = Path(__file__).parent.parent
TINY, T4 = PRESETS["tiny"], PRESETS["t4"]


def keywords(preset: Preset) -> dict:
    return grpo.settings(Market(), preset, RUBRICS["default"], Path("run"), seed=1, steps=5, save_steps=2)


# figures


def test_every_field_of_a_preset_is_documented():
    text = " ".join(Preset.__doc__.split())
    for field in fields(Preset):
        assert f"{field.name}:" in text or f"{field.name}, " in text, field.name


def test_t4_has_the_figures_of_the_published_card():
    given = keywords(T4)
    expected = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,  # effective batch 8
        "num_generations": 4,
        "learning_rate": 5e-5,
        "lr_scheduler_type": "cosine",
        "max_completion_length": 48,
        "fp16": True,
        "bf16": False,
    }
    assert {name: given[name] for name in expected} == expected
    assert (T4.model, T4.steps, T4.max_prompt_tokens) == ("Qwen/Qwen2.5-1.5B-Instruct", 600, 320)
    assert (T4.lora_rank, T4.lora_alpha, len(models.LAYERS), T4.backend, T4.four_bit) == (16, 16, 7, "unsloth", True)


def test_the_fallback_differs_from_t4_in_name_and_backend_only():
    assert replace(PRESETS["t4-fallback"], name="t4", backend="unsloth") == T4


def test_larger_gpus_train_in_bfloat16_and_the_h200_a_larger_model():
    for name in ("l4", "a100", "h200"):
        assert (keywords(PRESETS[name])["bf16"], keywords(PRESETS[name])["fp16"]) == (True, False)
    h200 = PRESETS["h200"]
    assert (h200.model, h200.lora_rank, h200.lora_alpha) == ("Qwen/Qwen3-8B", 32, 64)


def test_the_embedded_model_is_the_one_that_speaks_the_game_unless_another_is_asked_for():
    assert named("tiny", "steps=9", "market").model == named("tiny").model == "tiny/market"
    assert named("tiny", "model=tiny/market", "demand").model == "tiny/market"
    assert named("t4", "", "demand") == T4 and T4.embedded is None
    expected = "an embedded model speaks .*market.*, got 'demand': .*helpers.tiny.build demand"
    with pytest.raises(ValueError, match=expected):
        named("tiny", "", "demand")


def test_tiny_trains_in_float32_with_one_whole_batch_a_step():
    given = keywords(TINY)
    expected = {
        "per_device_train_batch_size": 24 * 8,
        "gradient_accumulation_steps": 1,
        "fp16": False,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    assert {name: given[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx512f avx512_bf16", "bfloat16"),
        ("amx_bf16 amx_tile", "bfloat16"),
        ("fpu avx512f avx_vnni", "float32"),
        (None, "float32"),
    ],
)
def test_a_cpu_computes_in_bfloat16_only_where_it_says_that_it_can(flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "CPUINFO", tmp_path / "cpuinfo")
    if flags:
        (tmp_path / "cpuinfo").write_text(f"model name\t: a processor\nflags\t\t: {flags}\n")
    assert presets.cpu_dtype() == expected


def test_the_language_model_for_a_cpu_is_warmed_up_and_no_other_preset_is():
    assert [name for name, preset in PRESETS.items() if preset.warmup_steps] == ["smollm2"]


# keywords of GRPOConfig


@pytest.mark.parametrize("name", PRESETS)
def test_every_keyword_of_a_preset_is_one_of_the_installed_grpoconfig(name):
    assert keywords(PRESETS[name]).keys() <= {field.name for field in fields(GRPOConfig)}


def test_an_unknown_keyword_is_refused_by_name():
    with pytest.raises(ValueError, match="GRPOConfig, got max_prompt_length: install"):
        grpo.config({**keywords(TINY), "max_prompt_length": 320})  # gone from trl since 1.0; Unsloth's config would only warn


@pytest.mark.parametrize("preset", [TINY, PRESETS["smollm2"], replace(TINY, accumulate=4), replace(TINY, dtype="bfloat16")])
def test_a_step_samples_prompts_x_generations_replies_and_learns_from_all_of_them(preset, tmp_path):
    args = grpo.config({**keywords(preset), "output_dir": str(tmp_path)})
    assert args.generation_batch_size == preset.prompts * preset.generations
    assert args.steps_per_generation == args.gradient_accumulation_steps == preset.accumulate


# overrides


def test_fields_are_overridden_from_text():
    changed = named("t4", "steps=20, learning_rate=1e-3,four_bit=False")
    assert changed == replace(T4, steps=20, learning_rate=1e-3, four_bit=False)
    assert type(changed.steps) is int and type(changed.four_bit) is bool
    assert PRESETS["t4"] is T4 and named("t4") == T4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step=20", r"expected OVERRIDES as .* with fields model, steps, .*got 'step=20'"),
        ("steps", "expected OVERRIDES as .*got 'steps'"),
        ("name=mine", "expected OVERRIDES as .*got 'name=mine'"),
        ("steps = 20", "expected OVERRIDES as .*got 'steps'"),
        ("steps=many", "expected steps to be valid .*integer.*got 'many'"),
        ("steps=0", "expected steps to be valid .*greater than or equal to 1.*got '0'"),
        ("learning_rate=-1", "expected learning_rate .*greater than 0.*got '-1'"),
        ("temperature=nan", "expected temperature .*finite.*got 'nan'"),
        ("dtype=half", "expected dtype .*'float32', 'float16' or 'bfloat16'.*got 'half'"),
        ("warmup_steps=-1", "expected warmup_steps .*greater than or equal to 0.*got '-1'"),
        ("generations=1", "expected generations .*greater than or equal to 2.*got '1'"),
        ("accumulate=5", r"expected accumulate to divide prompts \(24\).*got 5"),
        ("dtype=float16", "float32 or bfloat16 on a CPU, got 'float16'"),
        ("vllm=true", "device cuda and dtype bfloat16 with vllm .*got cpu and float32"),
    ],
)
def test_a_bad_override_is_refused_with_what_is_expected_and_what_came(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        override(TINY, text)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)


def test_an_unknown_preset_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="expected PRESET to be one of tiny, smollm2, t4, .* or auto, got 'T4'"):
        named("T4")


# the choice by hardware


@pytest.mark.parametrize(
    ("gpu", "expected", "reason"),
    [
        (None, "tiny", "no CUDA GPU was found"),
        (Gpu("Tesla P100", (6, 0), 15.9), "tiny", "Tesla P100 has 15.9 GiB and compute capability 6.0, less than"),
        (Gpu("RTX 3050", (8, 6), 7.8), "tiny", "less than the 11 GiB"),
        (Gpu("Tesla T4", (7, 5), 14.6), "t4", "Tesla T4 has 14.6 GiB and compute capability 7.5"),
        (Gpu("RTX 3060", (8, 6), 11.8), "t4", "RTX 3060"),
        (Gpu("RTX 8000", (7, 5), 47.5), "t4", "7.5"),  # large, but without bfloat16
        (Gpu("NVIDIA L4", (8, 9), 22.0), "l4", "NVIDIA L4"),
        (Gpu("A100", (8, 0), 39.4), "a100", "A100"),
        (Gpu("H100", (9, 0), 79.1), "a100", "H100"),
        (Gpu("H200", (9, 0), 139.8), "h200", "H200"),
        (Gpu("B200", (10, 0), 178.0), "h200", "B200"),
    ],
)
def test_auto_picks_by_compute_capability_and_memory_and_says_why(gpu, expected, reason, monkeypatch, capsys):
    monkeypatch.setattr(presets, "first_gpu", lambda: gpu)
    assert named("auto", "steps=7") == replace(PRESETS[expected], steps=7)
    said = capsys.readouterr().out
    assert said.startswith(f"PRESET auto: {expected}, because ") and reason in said


# Unsloth first


def in_python(code: str, *folders: Path) -> subprocess.CompletedProcess:
    """A fresh interpreter, because which module came first is decided once in a process."""
    lines = [f"import sys; sys.path[:0] = {[str(TOP), *map(str, folders)]}", code]
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=TOP)


def fake_module(folder: Path, name: str, text: str) -> Path:
    (folder / f"{name}.py").write_text(text)
    return folder


def test_presets_bring_in_no_ml_library_before_one_is_asked_for():
    done = in_python(
        "from helpers.presets import named, preset; named('t4'); preset('tiny')\n"
        "print({'torch', 'transformers', 'trl', 'peft', 'unsloth'} & set(sys.modules))"
    )
    assert done.stdout == "set()\n", done.stderr


def test_a_preset_that_asks_for_unsloth_imports_it_and_nothing_before_it(tmp_path):
    fake_module(tmp_path, "unsloth", "import sys; print({'torch', 'transformers', 'trl', 'peft'} & set(sys.modules))")
    done = in_python("from helpers.presets import PRESETS, preset; print(preset('t4') == PRESETS['t4'])", tmp_path)
    assert done.stdout == "set()\nTrue\n", done.stderr


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise NotImplementedError('no GPU\\nhere')", "NotImplementedError: no GPU here"),
    ],
)
def test_when_unsloth_does_not_import_one_line_says_so_and_the_fallback_is_given(failure, reason, tmp_path):
    fake_module(tmp_path, "unsloth", failure)
    done = in_python(
        "from helpers.presets import PRESETS, preset; found = preset('t4', 'steps=9')\n"
        "from dataclasses import replace; print(found == replace(PRESETS['t4-fallback'], steps=9))",
        tmp_path,
    )
    assert done.stdout == f"Unsloth does not import ({reason}); going on with t4-fallback, without it\nTrue\n", done.stderr


@pytest.mark.parametrize("library", ["transformers", "trl", "peft"])
def test_unsloth_after_a_library_that_it_must_precede_is_refused(library, tmp_path):
    fake_module(tmp_path, "unsloth", "")
    fake_module(tmp_path, library, "")
    done = in_python(f"import {library}\nfrom helpers.presets import preset; preset('t4')", tmp_path)
    assert done.returncode == 1
    assert f"RuntimeError: expected preset t4 before any import of {library}" in done.stderr and "restart" in done.stderr
