"""The memory table: by hand, against published sizes, and against the real tensors of the embedded model."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers import models
from helpers.memory import BYTES, PLAYED, memory, parameters, shape_of, table
from helpers.presets import BY_GPU, PRESETS, Gpu, choose

TINY, T4 = PRESETS["tiny"], PRESETS["t4"]


@pytest.fixture(scope="module")
def tiny():
    """The embedded model with a fresh adapter."""
    return models.add_adapter(models.load(TINY)[0], TINY, seed=0)


@pytest.mark.parametrize(
    ("model", "count"),  # as published with the models
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen3-8B", 8_190_735_360),
    ],
)
def test_the_sizes_of_a_model_give_its_published_number_of_parameters(model, count):
    assert sum(parameters(shape_of(model))) == count


def test_memory_of_t4_is_what_the_formulas_give_by_hand():
    # A layer's linear modules: query and output 1536 x 1536, key and value 1536 x 256, gate, up and down 1536 x 8960.
    linear = 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960)
    assert linear == 1_310_195_712
    other = 1_543_714_304 - linear
    adapter = 28 * 16 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    assert adapter == 18_464_768
    by_hand = {
        "weights": 1_310_195_712 * 4.126953125 / 8 + 2 * other,
        "LoRA": 8 * adapter,
        "optimizer": 8 * adapter,
        "logits": 4 * 49 * 151_936 * (2 + 16),
        "KV cache": 200 * 368 * 28_672,  # 2 x 28 layers x 2 heads x 128 x 2 bytes
        "prefill": 200 * (320 * (3 * 8960 + 4 * 1536) * 2 + 151_936 * 10),
        "activations": 4 * 368 * (4 * (8 * 1536 + 5 * 1536 + 4 * 8960 + 7 * 16) + 28 * 1536 * 2),
        "context": 2**30,
    }
    assert memory(T4) == pytest.approx(by_hand, rel=1e-12)


def test_t4_fits_into_15_gib_with_a_third_to_spare_and_every_preset_is_in_the_table():
    found = table()
    assert list(found.index) == list(PRESETS)
    assert found.loc["t4", "total"] <= 10 and found.loc["t4-fallback", "total"] <= 10
    assert found.loc["t4", "total"] == pytest.approx(sum(memory(T4).values()) / 2**30)


def test_a_model_of_unknown_sizes_is_refused():
    with pytest.raises(ValueError, match="expected a model whose sizes are known .*got 'someone/model': add it to SHAPES"):
        memory(replace(T4, model="someone/model"))


def test_weights_adapter_and_optimizer_of_tiny_are_as_large_as_its_tensors(tiny):
    trained = [p for p in tiny.parameters() if p.requires_grad]
    expected = memory(TINY)
    assert expected["weights"] == sum(p.nbytes for p in tiny.parameters() if not p.requires_grad)
    optimizer = torch.optim.AdamW(trained)
    for p in trained:
        p.grad = torch.zeros_like(p)
    assert expected["LoRA"] == sum(p.nbytes + p.grad.nbytes for p in trained)
    optimizer.step()
    assert expected["optimizer"] == sum(s[m].nbytes for s in optimizer.state.values() for m in ("exp_avg", "exp_avg_sq"))
    optimizer.zero_grad()


def test_logits_and_cache_of_tiny_are_as_large_as_its_tensors(tiny):
    small = replace(TINY, prompts=1, generations=3, max_prompt_tokens=20, max_new_tokens=6)
    with torch.inference_mode():
        out = tiny(torch.ones(3, 26, dtype=torch.long), use_cache=True, logits_to_keep=6 + 1)
    expected = memory(small)
    assert expected["logits"] == out.logits.nbytes / BYTES["float32"] * (4 + 16)
    cached = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
    assert expected["KV cache"] == cached / 3 * PLAYED


@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize(("backend", "shape"), [("unsloth", (3, 120)), ("transformers", (1, 160))], ids=["own", "shared prompt"])
def test_activations_of_tiny_bound_what_autograd_keeps_and_not_by_much(rank, backend, shape):
    figures = {"prompts": 2, "accumulate": 2, "generations": 3, "max_prompt_tokens": 100, "max_new_tokens": 20}
    preset = replace(TINY, **figures, lora_rank=rank)
    model = models.add_adapter(models.load(preset)[0], preset, seed=0).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}  # by storage: holding the tensors keeps their addresses apart

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(3, 400, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(shape[1], shape[1], dtype=torch.bool).tril().expand(shape[0], 1, -1, -1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model.model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    real = sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in weights)
    assert real <= memory(replace(preset, backend=backend))["activations"] <= 1.5 * real


@pytest.mark.parametrize(("name", "capability", "memory_gib"), BY_GPU)
def test_auto_never_picks_a_preset_that_needs_more_memory_than_it_asks_of_the_gpu(name, capability, memory_gib):
    assert sum(memory(PRESETS[name]).values()) / 2**30 <= memory_gib
    assert choose(Gpu("just enough", capability, memory_gib))[0] == name


def test_the_readme_tells_the_memory_of_every_preset():
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| [^|]+ \| `([\w-]+)` \| .* \| ([0-9.]+)(?: of [0-9.]+)? \|$", readme, re.MULTILINE))
    assert told == {name: f"{total:.1f}" for name, total in table()["total"].items()}
