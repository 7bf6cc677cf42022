"""What a preset needs of a GPU's (or CPU's) memory, on paper: `python -m helpers.memory` prints the table in GiB.

The parts do not all live at the same time (the cache only while replies are sampled), so the total is an upper bound.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from helpers.presets import PRESETS, QWEN, SMOLLM2, Preset

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FOUR_BIT = (4 + 8 / 64 + 32 / (64 * 256)) / 8  # bytes a weight
PLAYED = 200  # episodes in lockstep, in evaluation: sequences in the cache
CONTEXT = 2**30  # CUDA's context, kernels' workspace, fragmentation: 1 GiB is a generous guess


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-like decoder (`head`: width of one attention head), as in its published config.json.
    biases: query, key and value have one. head_norms: query and key are normalised head by head."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    tied: bool
    biases: bool = False
    head_norms: bool = False

    @property
    def linear(self) -> list[tuple[int, int]]:
        """(in, out) of the seven linear modules of a layer: query, key, value, output, gate, up, down."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        wide = (self.hidden, self.inner)
        return [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden), wide, wide, wide[::-1]]


SHAPES = {
    SMOLLM2: Shape(49152, 576, 1536, 30, 9, 3, 64, tied=True),
    QWEN: Shape(151936, 1536, 8960, 28, 12, 2, 128, tied=True, biases=True),
    "Qwen/Qwen3-8B": Shape(151936, 4096, 12288, 36, 32, 8, 128, tied=False, head_norms=True),
}


def shape_of(model: str) -> Shape:
    """Of a model in SHAPES or of an embedded (Qwen2) one. Raises ValueError for another."""
    config = Path(__file__).parent / model / "config.json"
    if config.exists():
        c = json.loads(config.read_text())
        heads = c["num_attention_heads"]
        sizes = c["vocab_size"], c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], heads, c["num_key_value_heads"]
        return Shape(*sizes, c["hidden_size"] // heads, tied=c["tie_word_embeddings"], biases=True)
    if model not in SHAPES:
        raise ValueError(f"expected a model whose sizes are known ({', '.join(SHAPES)}), got {model!r}: add it to SHAPES")
    return SHAPES[model]


def parameters(shape: Shape) -> tuple[int, int]:
    """How many: (in the layers' linear modules, elsewhere: embeddings, norms, biases)."""
    query, key = shape.heads * shape.head, shape.kv_heads * shape.head
    in_layer = 2 * shape.hidden + shape.biases * (query + 2 * key) + shape.head_norms * 2 * shape.head
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return shape.layers * sum(i * o for i, o in shape.linear), embeddings + shape.layers * in_layer + shape.hidden


def memory(preset: Preset) -> dict[str, float]:
    """Bytes by part.

    With b = bytes of the preset's dtype, R = replies learned from at once, T = tokens of a prompt and a reply:

    - weights: b a parameter; with four_bit, the linear ones 4 + 8/64 + 32/(64 x 256) bits (NF4 in blocks of 64 with doubly
      quantised scales: Dettmers and others 2023, arXiv:2305.14314, section 3).
    - LoRA: rank x (in + out) parameters for each linear module (Hu and others 2021, arXiv:2106.09685, section 4.1), float32,
      with their gradients: 8 bytes each.
    - optimizer: AdamW's two moments, float32: 8 bytes for each LoRA parameter (Kingma and Ba 2014, arXiv:1412.6980).
    - logits: R x (reply + 1) x vocabulary, because TRL asks for the reply's only (`logits_to_keep`); as b bytes from the model
      and four float32 copies: accelerate's, divided by temperature, log-probabilities, gradient (read from TRL 1.14).
    - KV cache: 2 x layers x kv_heads x head x b x T for each sequence (Pope and others 2022, arXiv:2211.05102, section 2.1); as
      many as a step samples, or as evaluation plays at once, whichever is more.
    - prefill: reading the prompts of those sequences at once, what one layer holds at its widest, (3 x inner + 4 x hidden) x b a
      token, and the next token's logits with two float32 copies (read from transformers 5.17).
    - activations: what autograd keeps of a layer, counted in float32 although some is narrower: for each token 8 x hidden (the
      norms and the modules' inputs), 5 x query width (attention, whose scores fused kernels do not keep), 4 x inner (the gated
      MLP) and 7 x rank. Kept for every layer; or, with checkpointing, for one layer, and b x hidden a token for each of the
      others (Korthikanti and others 2022, arXiv:2205.05198, section 5). The tokens are R x T, or, where a group shares one
      reading of its prompt, the prompts' and the replies'. Measured against autograd in tests/test_memory.py.
    - context: on a GPU, 1 GiB.
    """
    shape, b = shape_of(preset.model), BYTES[preset.dtype]
    linear, other = parameters(shape)
    lora = shape.layers * sum(preset.lora_rank * (i + o) for i, o in shape.linear)
    prompts = preset.prompts // preset.accumulate if preset.own_sampling else preset.micro_batch
    learned = prompts * preset.max_prompt_tokens + preset.micro_batch * preset.max_new_tokens
    layer = 4 * (8 * shape.hidden + 5 * shape.heads * shape.head + 4 * shape.inner + 7 * preset.lora_rank)
    kept = layer + shape.layers * shape.hidden * b if preset.checkpointing else shape.layers * layer
    sequences = max(preset.prompts * preset.generations, PLAYED)
    return {
        "weights": linear * (FOUR_BIT if preset.four_bit else b) + other * b,
        "LoRA": 8 * lora,
        "optimizer": 8 * lora,
        "logits": preset.micro_batch * (preset.max_new_tokens + 1) * shape.vocab * (b + 16),
        "KV cache": sequences * preset.max_tokens * 2 * shape.layers * shape.kv_heads * shape.head * b,
        "prefill": sequences * (preset.max_prompt_tokens * (3 * shape.inner + 4 * shape.hidden) * b + shape.vocab * (b + 8)),
        "activations": learned * kept,
        "context": CONTEXT if preset.device == "cuda" else 0,
    }


def table() -> pd.DataFrame:
    """GiB by preset (rows) and part (columns), with their total."""
    found = pd.DataFrame({name: memory(preset) for name, preset in PRESETS.items()}).T / 2**30
    return found.assign(total=found.sum(axis=1))


if __name__ == "__main__":
    print(table().round(2).to_string())
