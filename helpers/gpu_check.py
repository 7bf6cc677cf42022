"""Settles in minutes what only a GPU can show: `python -m helpers.gpu_check` at the top of the repository.

Every way of training that is installed here (transformers in float16 and bfloat16, 4 bits, Unsloth) does three GRPO steps on a
randomly initialised Qwen2 model of the 1.5B's size, and the preset for this hardware on its real model when that can be had.
Each runs in a process of its own, because Unsloth must be imported first and a failure must not end the check. The results go
to gpu_check.json. Without a GPU the same is done with the tiny model's sizes, which shows only that the check works.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from helpers.evaluate import commit, write_json
from helpers.memory import SHAPES, memory
from helpers.presets import PRESETS, QWEN, choose, first_gpu, with_backend

BUDGET_S = 450  # for everything; what is not reached by then is reported as skipped
STEPS = 3  # the first is left out of the timings: kernels are compiled in it
# Without a GPU. At temperature 1, or a confident model would say the same thing every time.
SMALL = {"prompts": 2, "generations": 4, "accumulate": 2, "max_new_tokens": 8, "temperature": 1.0}
VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "unsloth", "unsloth_zoo", "xformers", "vllm")


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def versions() -> dict[str, str | None]:
    return {name: importlib.metadata.version(name) if installed(name) else None for name in VERSIONS}


def health(device: str) -> dict[str, dict]:
    """For float16 and bfloat16: whether this device computes in it, and the relative error of a 512 x 512 product."""
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    found = {}
    for name in ("float16", "bfloat16"):
        dtype = getattr(torch, name)
        product = (a.to(device, dtype) @ b.to(device, dtype)).float().cpu()
        native = name == "float16" or device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
        found[name] = {"native": native, "relative_error": ((product - a @ b).norm() / (a @ b).norm()).item()}
    return found


def random_model(folder: Path, full_size: bool) -> None:
    """Writes a randomly initialised Qwen2 model and the tiny model's tokenizer into `folder`; its sizes are those of the tiny
    model or, full_size, of Qwen2.5-1.5B."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    tiny = Path(__file__).parent / "tiny" / "market"
    config = AutoConfig.from_pretrained(tiny)
    if full_size:
        s = SHAPES[QWEN]
        config = type(config)(
            vocab_size=s.vocab,
            hidden_size=s.hidden,
            intermediate_size=s.inner,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            tie_word_embeddings=s.tied,
            **{name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
        )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float16 if full_size else torch.float32)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(tiny).save_pretrained(folder)


def real_model_at_hand(model: str) -> bool:
    """Whether a preset's model is embedded, cached or on a Hub that can be reached."""
    from huggingface_hub import hf_hub_download

    if (Path(__file__).parent / model).is_dir():
        return True
    try:
        hf_hub_download(model, "config.json")
    except OSError:
        return False
    return True


def plan(chosen: str, capability: tuple[int, int] | None, random: str) -> list[dict]:
    """The paths to check, most important first: name, preset and its overrides. `random`: the random model's folder."""
    if capability is None:
        small = {"model": random, **SMALL}
        return [
            {"path": "transformers float32", "preset": "tiny", "overrides": small},
            {"path": "real model", "preset": "tiny", "overrides": SMALL},
        ]
    dtypes = ["float16"] + ["bfloat16"] * (capability >= (8, 0))
    best = dtypes[-1]
    plain = {"model": random, "backend": "transformers", "four_bit": False}
    paths = [{"path": f"transformers {dtype}", "preset": "t4", "overrides": {**plain, "dtype": dtype}} for dtype in dtypes]
    if installed("bitsandbytes"):
        fallback = {"model": random, "dtype": best}
        paths.append({"path": f"transformers 4-bit {best}", "preset": "t4-fallback", "overrides": fallback})
    if installed("unsloth"):
        four_bit = installed("bitsandbytes")
        unsloth = {"model": random, "dtype": best, "four_bit": four_bit}
        paths.append({"path": f"unsloth {'4-bit ' * four_bit}{best}", "preset": "t4", "overrides": unsloth})
    settings = {} if installed("unsloth") else {"backend": "transformers"}
    if not installed("bitsandbytes"):
        settings["four_bit"] = False
    return [*paths, {"path": "real model", "preset": chosen, "overrides": settings}]


def measure(name: str, overrides: Mapping, work: Path) -> dict:
    """Three GRPO steps of a preset, as training does them but for the reward: the share of odd ids in a reply, which differs
    between the replies of any model. Raises RuntimeError when Unsloth was asked for and does not import."""
    start = time.monotonic()
    wanted = replace(PRESETS[name], **overrides)
    settings = with_backend(wanted)
    if settings != wanted:
        raise RuntimeError("expected Unsloth, which does not import: see above")

    import torch  # everything below comes after Unsloth
    from datasets import Dataset
    from transformers import TrainerCallback

    from helpers import GAMES, grpo, models
    from helpers.rewards import RUBRICS
    from helpers.rollout import TRAIN, messages_of

    marks: dict[str, list[float]] = {"begin": [], "sampled": [], "end": []}

    def mark(what: str) -> None:
        if settings.device == "cuda":
            torch.cuda.synchronize()
        marks[what].append(time.monotonic())

    def seconds(start: str, end: str) -> float:
        """Between two marks of a step, over all steps but the first."""
        return sum(b - a for a, b in zip(marks[start][1:], marks[end][1:], strict=True))

    def odd_ids(completion_ids, **kwargs) -> list[float]:
        mark("sampled")
        return [sum(i % 2 for i in ids) / len(ids) for ids in completion_ids]

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            mark("begin")

        def on_step_end(self, *args, **kwargs):
            mark("end")

    base, tokenizer = models.load(settings)
    model = models.add_adapter(base, settings, seed=0)
    before, loaded = grpo.fingerprint(model), time.monotonic()
    game = GAMES["market"]
    deals = [game.deal(seed) for seed in TRAIN[: STEPS * settings.prompts]]
    prompts = [list(messages_of(game, game.view(state, game.turn(state)))) for state in deals]
    keywords = grpo.settings(game, settings, RUBRICS["default"], work, seed=0, steps=STEPS, save_steps=1000)
    keywords["reward_weights"] = [1.0]
    rows = Dataset.from_dict({"prompt": prompts})
    trainer = grpo.make_trainer(model, tokenizer, settings, grpo.config(keywords), [odd_ids], rows, [Clock()])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    rollout_s, training_s = seconds("begin", "sampled"), seconds("sampled", "end")
    replies = settings.prompts * settings.generations
    finite = all(math.isfinite(entry[key]) for entry in logs for key in ("loss", "reward"))
    moved = grpo.fingerprint(model) != before
    on_gpu = settings.device == "cuda"
    peak = torch.cuda.max_memory_reserved() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "ok": finite and moved,
        "finite": finite,
        "adapter_moved": moved,
        # Text, for JSON has no word for infinity, which in float16 means only that the scaler left a step out.
        "grad_norms": [str(entry["grad_norm"]) for entry in logs],
        "rewards": [str(entry["reward"]) for entry in logs],
        "load_s": loaded - start,
        "step_s": (rollout_s + training_s) / (STEPS - 1),
        "rollout_tokens_per_s": sum(replies * entry["completions/mean_length"] for entry in logs[1:]) / rollout_s,
        "training_tokens_per_s": (logs[-1]["num_tokens"] - logs[0]["num_tokens"]) / training_s,
        "peak_gib": peak / 2**30,
        "on_paper_gib": sum(memory(settings).values()) / 2**30,
        "settings": asdict(settings),
    }


def in_a_process(path: Mapping, work: Path, timeout_s: float) -> dict:
    """What `measure` returns for a path, from another process; or why it failed."""
    top, result = Path(__file__).parent.parent, work / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "helpers.gpu_check", "--measure", json.dumps(path), str(work)]
    environment = {"CUDA_VISIBLE_DEVICES": "0", "UNSLOTH_COMPILE_LOCATION": str(work / "compiled"), **os.environ}
    try:
        done = subprocess.run(
            command, cwd=top, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"not done within {timeout_s:.0f} s"}
    if done.returncode or not result.exists():
        return {"ok": False, "error": f"exit {done.returncode}: {done.stdout.strip()[-1500:]}"}
    return json.loads(result.read_text())


def check(budget_s: float) -> dict:
    """The whole check as one JSON object; prints a line for each path."""
    start, gpu = time.monotonic(), first_gpu()
    chosen, why = choose(gpu)
    print(f"preset {chosen}, because {why}", flush=True)
    found = {
        "schema": 1,
        "commit": commit(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "gpu": asdict(gpu) if gpu else None,
        "preset": chosen,
        "health": health("cuda" if gpu else "cpu"),
        "paths": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        random_model(work / "random", full_size=gpu is not None)
        for path in plan(chosen, gpu.capability if gpu else None, str(work / "random")):
            left = budget_s - (time.monotonic() - start)
            if left < 20:
                result = {"ok": False, "error": f"skipped: the {budget_s:.0f} s are used up"}
            elif path["path"] == "real model" and not real_model_at_hand(PRESETS[path["preset"]].model):
                result = {"ok": None, "error": "skipped: the model is not cached and the Hub cannot be reached"}
            else:
                result = in_a_process(path, work, left)
            found["paths"].append({**path, **result})
            print(line(found["paths"][-1]), flush=True)
    return {**found, "seconds": time.monotonic() - start}


def line(result: Mapping) -> str:
    if "error" in result:
        return f"{result['path']}: {'skipped' if result['ok'] is None else 'FAILED'}: {result['error'].splitlines()[-1]}"
    return (
        "{path}: {verdict}, {step_s:.1f} s a step, {rollout_tokens_per_s:.0f} tokens/s sampled, {training_tokens_per_s:.0f} "
        "tokens/s learned from, {peak_gib:.1f} GiB at most ({on_paper_gib:.1f} on paper)"
    ).format(verdict="ok" if result["ok"] else "FAILED (see the JSON)", **result)


def main(argv: list[str]) -> int:
    """0 when no path failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m helpers.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where to write the results")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help=f"for everything ({BUDGET_S})")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)  # one path, in a process of its own
    given = parser.parse_args(argv)
    if given.measure:
        path, work = json.loads(given.measure[0]), Path(given.measure[1])
        write_json(work / "result.json", measure(path["preset"], path["overrides"], work / "run"))
        return 0
    found = check(given.budget)
    write_json(given.out, found)
    print(f"wrote {given.out} after {found['seconds']:.0f} s")
    return int(any(path["ok"] is False for path in found["paths"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
