"""Loads a preset's model and answers batches of chats with it. The only global thing touched, torch's generator, is put
back after every batch."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from helpers.machine import fetch_weights
from helpers.presets import Preset

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(preset: Preset, adapter: Path | None = None):
    """(model, tokenizer) of a preset, ready to answer; with `adapter`, a saved LoRA adapter on top of it.

    Raises FileNotFoundError when the embedded model's weights were left behind and are nowhere to be had."""
    inside = Path(__file__).parent / preset.model
    if inside.is_dir():
        fetch_weights(inside)
    source = inside if inside.is_dir() else preset.model
    # AutoTokenizer would give the embedded model Qwen's own splitting of words, whatever its files say.
    tokenizers = PreTrainedTokenizerFast if inside.is_dir() else AutoTokenizer
    tokenizer = tokenizers.from_pretrained(source, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    return model.eval(), tokenizer


def add_adapter(model, preset: Preset, seed: int):
    """`model` with a fresh LoRA adapter, drawn from `seed`."""
    config = LoraConfig(r=preset.lora_rank, lora_alpha=preset.lora_alpha, target_modules=LAYERS, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def generator(model, tokenizer, preset: Preset, seed: int = 0, adapter: bool = True) -> Callable[[Sequence], list[str]]:
    """A function that answers any number of chats with sampled replies, `preset.batch` at once and the short ones first,
    reproducibly from `seed` and the order of the calls. With adapter=False the frozen base answers."""
    calls = 0

    @torch.inference_mode()
    def generate(chats: Sequence) -> list[str]:
        nonlocal calls
        calls += 1
        texts = tokenizer.apply_chat_template([list(chat) for chat in chats], tokenize=False, add_generation_prompt=True)
        prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        replies = [""] * len(prompts)
        was_training = model.training
        model.eval()
        with torch.random.fork_rng(), nullcontext() if adapter else model.disable_adapter():
            torch.manual_seed(seed * 1_000_003 + calls)
            for start in range(0, len(order), preset.batch):
                rows = order[start : start + preset.batch]
                inputs = tokenizer.pad({"input_ids": [prompts[i] for i in rows]}, return_tensors="pt").to(model.device)
                out = model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=preset.temperature,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=preset.max_new_tokens,
                    pad_token_id=tokenizer.pad_token_id,
                )
                texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
                for i, text in zip(rows, texts, strict=True):
                    replies[i] = text
        model.train(was_training)
        return replies

    return generate
