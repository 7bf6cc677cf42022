"""Presets: a model and the settings of its training, as frozen dataclasses. Nothing heavy is imported before it is needed:
`preset` comes first in a notebook, so that Unsloth can be the first ML import.

Only `tiny` has been trained and tuned here. The figures of `t4` are those of the published Coalition Market card, those of the
larger GPUs are starting points; helpers/memory.py says what each needs.
"""

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

Count = Annotated[int, Field(ge=1)]
CPUINFO = Path("/proc/cpuinfo")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Preset:
    """Everything that depends on the model and the hardware. Counts are at least 1, other numbers above 0 where nothing
    else is said.

    name: of the preset.
    model: a Hub id, or a folder inside helpers/.
    steps: optimizer steps of GRPO; in each, `generations` replies to each of `prompts` prompts are sampled and learned from.
    prompts, generations: see steps; the replies to one prompt are a group, in which rewards are compared.
    learning_rate: its peak in GRPO; it falls to 0 along a cosine.
    warmup_steps: supervised steps on scripted play before GRPO, for a model that hardly ever writes a legal action
        (helpers/warmup.py); 0 or more.
    lora_rank, lora_alpha: of the adapter on every linear layer.
    refresh: every so many steps the coming rows are replaced by ones from the policy's own games.
    max_prompt_tokens, max_new_tokens: longest prompt and reply.
    batch: replies sampled at once; more are not faster once their keys and values outgrow the processor's caches.
    temperature: of sampling, in training and evaluation alike (top-p and top-k are off).
    backend: what loads and trains the model; "unsloth" must be imported before transformers (`preset` does).
    device: "cuda" needs a GPU (the first that is visible); "cpu" needs none, though TRL's trainer takes one where it sees one.
    dtype: of weights and arithmetic; the adapter itself is always float32. float16 and bfloat16 train with automatic mixed
        precision; bfloat16 needs a GPU of compute capability 8.0 (Ampere) or a CPU, float16 any GPU.
    four_bit: keep the frozen weights in 4 bits (NF4); needs bitsandbytes.
    accumulate: the replies of a step are learned from in so many equal parts; more parts need less memory.
    checkpointing: compute activations twice instead of keeping them.
    vllm: sample with vLLM; needs bfloat16, and vLLM installed. Off in every preset, and not tried yet.

    Raises ValueError for a value out of range and for fields that do not go together.
    """

    name: str
    model: str
    steps: Count
    prompts: Count
    generations: Annotated[int, Field(ge=2)]
    learning_rate: Positive
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    lora_rank: Count = 16
    lora_alpha: Count = 16
    refresh: Count = 20
    max_prompt_tokens: Count = 320
    max_new_tokens: Count = 48
    batch: Count = 32
    temperature: Positive = 1.0
    backend: Literal["transformers", "unsloth"] = "transformers"
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    four_bit: bool = False
    accumulate: Count = 1
    checkpointing: bool = False
    vllm: bool = False

    def __post_init__(self):
        if self.prompts % self.accumulate:
            raise ValueError(
                f"expected accumulate to divide prompts ({self.prompts}), or Unsloth changes the batch, got {self.accumulate}"
            )
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError("expected dtype float32 or bfloat16 on a CPU, got 'float16': float16 trains on a GPU only")
        if self.vllm and (self.device, self.dtype) != ("cuda", "bfloat16"):
            raise ValueError(
                f"expected device cuda and dtype bfloat16 with vllm (it needs an Ampere GPU or newer), "
                f"got {self.device} and {self.dtype}: set vllm to false"
            )

    @property
    def embedded(self) -> Path | None:
        """The folder of the model, if it is one of the repository's own."""
        return Path(__file__).parent / self.model if self.model.startswith("tiny/") else None

    @property
    def base(self) -> str:
        """The model as cards and saved adapters name it: a Hub id, or a folder of the repository."""
        return f"helpers/{self.model}" if self.embedded else self.model

    @property
    def sampling(self) -> dict[str, float]:
        """How replies are sampled, in the words of transformers' generate: in training, evaluation and the card's example.
        Nothing is left to a model's own settings; Qwen's would penalise what stands in the prompt, and so all copying."""
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "repetition_penalty": 1.0,
            "max_new_tokens": self.max_new_tokens,
        }

    @property
    def micro_batch(self) -> int:
        """Replies that are learned from at once."""
        return self.prompts * self.generations // self.accumulate

    @property
    def own_sampling(self) -> bool:
        """Whether replies are sampled, and learned from, the way this project does it (helpers.grpo: those of a group share one
        reading of their prompt); Unsloth and vLLM have their own."""
        return self.backend == "transformers" and not self.vllm

    @property
    def max_tokens(self) -> int:
        """Prompt and reply together."""
        return self.max_prompt_tokens + self.max_new_tokens


def cpu_dtype() -> str:
    """bfloat16 where this processor multiplies in it (AMX or AVX-512 BF16, as Linux names them), else float32."""
    flags = CPUINFO.read_text().split() if CPUINFO.exists() else []
    return "bfloat16" if {"amx_bf16", "avx512_bf16"} & set(flags) else "float32"


def without_unsloth(preset: Preset) -> Preset:
    """The same settings on transformers, PEFT and (for 4 bits) bitsandbytes."""
    return replace(preset, name=f"{preset.name}-fallback", backend="transformers")


QWEN = "Qwen/Qwen2.5-1.5B-Instruct"
GPU = {"backend": "unsloth", "device": "cuda", "checkpointing": True}
# The card's figures: batch 4 x 2, 4 generations, hence 2 prompts a step.
T4 = Preset(
    "t4", QWEN, steps=600, prompts=2, generations=4, learning_rate=5e-5, accumulate=2, dtype="float16", four_bit=True, **GPU
)
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
SHORT = {"warmup_steps": 300, "steps": 30, "prompts": 16, "generations": 8, "refresh": 10, "accumulate": 2}
BF16 = {"dtype": "bfloat16", **GPU}
RANK_32 = {"lora_rank": 32, "lora_alpha": 64}

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", "tiny/market", steps=200, prompts=24, generations=8, learning_rate=2e-3, refresh=40, temperature=0.7),
        Preset("smollm2", SMOLLM2, learning_rate=2e-4, temperature=0.7, dtype=cpu_dtype(), **SHORT),
        T4,
        without_unsloth(T4),
        Preset("l4", QWEN, steps=400, prompts=4, generations=8, learning_rate=5e-5, **BF16),
        Preset("a100", QWEN, steps=300, prompts=8, generations=8, learning_rate=5e-5, **BF16),
        Preset(
            "h200", "Qwen/Qwen3-8B", steps=300, prompts=16, generations=16, learning_rate=2e-5, accumulate=4, **RANK_32, **BF16
        ),
    )
}
# The first line whose compute capability and memory (GiB) the GPU has; a T4 has 7.5 and 14.6.
BY_GPU = (("h200", (9, 0), 100), ("a100", (8, 0), 38), ("l4", (8, 0), 21), ("t4", (7, 0), 11))


@dataclass(frozen=True)
class Gpu:
    """A GPU's name, CUDA compute capability and memory in GiB."""

    name: str
    capability: tuple[int, int]
    memory_gib: float


def first_gpu() -> Gpu | None:
    """The first visible CUDA GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(found.name, (found.major, found.minor), found.total_memory / 2**30)


def choose(gpu: Gpu | None) -> tuple[str, str]:
    """(name of the preset for this hardware, why)."""
    if gpu is None:
        return "tiny", "no CUDA GPU was found"
    found = f"{gpu.name} has {gpu.memory_gib:.1f} GiB and compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    for name, capability, memory in BY_GPU:
        if gpu.capability >= capability and gpu.memory_gib >= memory:
            return name, f"{found} ({name} needs {memory} GiB and {capability[0]}.{capability[1]})"
    name, capability, memory = BY_GPU[-1]
    return "tiny", f"{found}, less than the {memory} GiB and {capability[0]}.{capability[1]} that {name} needs"


def override(preset: Preset, text: str) -> Preset:
    """`preset` with the fields in a text such as "steps=20, learning_rate=1e-4" changed; all but its name can be.

    Raises ValueError for an unknown field, a value of the wrong type or range, and fields that do not go together.
    """
    known, changes = [field.name for field in fields(Preset)[1:]], {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in known or not value:
            raise ValueError(f'expected OVERRIDES as "field=value, field=value" with fields {", ".join(known)}, got {part!r}')
        changes[name] = value
    try:
        return replace(preset, **changes)
    except ValidationError as error:
        found = error.errors()[0]
        if not found["loc"]:  # raised by Preset itself
            raise found["ctx"]["error"] from None
        raise ValueError(f"expected {found['loc'][0]} to be valid ({found['msg']}), got {found['input']!r}") from None


def named(name: str, overrides: str = "", game: str = "market") -> Preset:
    """The preset of that name with some fields changed (see `override`); "auto" picks by the hardware and prints what and why.
    With an embedded model it is the one that speaks `game`.

    Imports no ML library but torch, and that for "auto" only. Raises ValueError for an unknown name, a bad override and a game
    that no embedded model speaks.
    """
    if name == "auto":
        name, why = choose(first_gpu())
        print(f"PRESET auto: {name}, because {why}")
    if name not in PRESETS:
        raise ValueError(f"expected PRESET to be one of {', '.join(PRESETS)} or auto, got {name!r}")
    preset = PRESETS[name]
    if preset.embedded:
        preset = replace(preset, model=f"tiny/{game}")
    preset = override(preset, overrides)
    if preset.embedded and not preset.embedded.is_dir():
        known = ", ".join(sorted(path.parent.name for path in preset.embedded.parent.glob("*/config.json")))
        raise ValueError(
            f"expected a game that an embedded model speaks ({known}), got {preset.embedded.name!r}: take another PRESET, or "
            f"build one with `python -m helpers.tiny.build {preset.embedded.name}`"
        )
    return preset


def preset(name: str, overrides: str = "", game: str = "market") -> Preset:
    """The preset of that name (see `named`), ready to be used (see `with_backend`)."""
    return with_backend(named(name, overrides, game))


def with_backend(preset: Preset) -> Preset:
    """`preset`, ready to be used: when it asks for Unsloth, Unsloth is imported, and when that fails one line says so and its
    fallback is returned. To be called before anything imports transformers, trl or peft.

    Raises RuntimeError when it is too late to import Unsloth.
    """
    if preset.backend != "unsloth" or "unsloth" in sys.modules:
        return preset
    if early := [library for library in ("transformers", "trl", "peft") if library in sys.modules]:
        raise RuntimeError(
            f"expected preset {preset.name} before any import of {', '.join(early)}, which Unsloth must precede: "
            "restart the kernel and run the notebook from the top"
        )
    try:
        import unsloth  # noqa: F401
    except Exception as error:  # it raises many kinds: no GPU, no driver, versions that clash
        fallback = without_unsloth(preset)
        reason = " ".join(str(error).split())[:200]
        print(f"Unsloth does not import ({type(error).__name__}: {reason}); going on with {fallback.name}, without it")
        return fallback
    return preset
