"""Presets: a model and the settings of its training, as frozen dataclasses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """Everything that depends on the model and the hardware.

    model: a Hub id, or a folder inside helpers/.
    steps: optimizer steps; in each, `generations` replies to each of `prompts` prompts are sampled and learned from.
    learning_rate: its peak; it falls to 0 along a cosine. lora_rank, lora_alpha: of the adapter on every linear layer.
    refresh: every so many steps the coming rows are replaced by ones from the policy's own games.
    max_prompt_tokens, max_new_tokens: longest prompt and reply.
    batch: replies sampled at once; more are not faster once their keys and values outgrow the processor's caches.
    temperature: of sampling, in training and evaluation alike (top-p and top-k are off).
    """

    name: str
    model: str
    steps: int
    prompts: int
    generations: int
    learning_rate: float
    lora_rank: int = 16
    lora_alpha: int = 16
    refresh: int = 20
    max_prompt_tokens: int = 320
    max_new_tokens: int = 48
    batch: int = 32
    temperature: float = 1.0


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", model="tiny", steps=200, prompts=16, generations=8, learning_rate=2e-3, refresh=40, temperature=0.7),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name. Raises ValueError for an unknown one."""
    if name not in PRESETS:
        raise ValueError(f"expected PRESET to be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
