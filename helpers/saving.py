"""Saves what was trained so that others can use it, an adapter that names its plain base, one merged model, a copy on the Hub,
and finds it again. Nothing leaves the machine unless a repository is named and the platform's secrets hold a token."""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from huggingface_hub import HfApi, snapshot_download

from helpers.machine import INPUTS, secret
from helpers.models import load
from helpers.presets import Preset

SECRET = "HF_TOKEN"
PUSHED = ["*.json", "*.jinja", "*.md", "*.safetensors"]
NOTES = ("training.json", "history.json")  # what a run was made from, and the log of its steps
SHARED = ("model", "temperature", "max_new_tokens")  # of a preset: what an adapter was trained with and is judged with


def save_adapter(model, preset: Preset, folder: Path) -> None:
    """The adapter of `model`, which names its base as others know it: not by this machine's path, nor as a 4-bit copy."""
    config = model.peft_config["default"]
    path, config.base_model_name_or_path = config.base_model_name_or_path, preset.base
    # No embedding is trained; looking for it would ask the Hub.
    model.save_pretrained(folder, save_embedding_layers=False, selected_adapters=["default"])
    config.base_model_name_or_path = path  # a trainer's checkpoints do look, and find the base there without asking
    (folder / "README.md").unlink()  # PEFT's is an empty form that names this machine's path; helpers/card.py writes a card


def merge(preset: Preset, adapter: Path, folder: Path) -> None:
    """Writes the base with a saved adapter merged into it as one model in 16 bits, and its tokenizer, for programs that know no
    adapters. The base is loaded anew in float32, on the CPU: merging into 4-bit weights would round the adapter away."""
    plain = replace(preset, backend="transformers", device="cpu", dtype="float32", four_bit=False, vllm=False)
    model, tokenizer = load(plain, adapter)
    merged = model.merge_and_unload().to(torch.bfloat16 if preset.dtype == "bfloat16" else torch.float16)
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def export_gguf(model, tokenizer, preset: Preset, folder: Path, quantization: str) -> str:
    """Writes the model with its adapter merged as one GGUF file, for llama.cpp and Ollama, beside `folder`; says what was done.
    `quantization`: such as "q8_0" or "q4_k_m"; when empty nothing is written. Only Unsloth's models can write it."""
    if not quantization:
        return "no GGUF file: none was asked for"
    if preset.backend != "unsloth":
        return f"no GGUF file: only Unsloth writes one, and preset {preset.name} does without it"
    written = model.save_pretrained_gguf(str(folder), tokenizer, quantization_method=quantization)
    return f"written: {', '.join(written['gguf_files'])}"


def hub_token() -> str | None:
    """The token HF_TOKEN from the platform's secrets; None when there is none."""
    return secret(SECRET)


def adapter_in(run: Path) -> Path:
    """Where the adapter of a run lies: in the run's folder `adapter`; in a bundle, beside the notes."""
    return run / "adapter" if (run / "adapter").is_dir() else run


def bundle(run: Path, card: str, folder: Path) -> None:
    """Puts what others need of a run into one folder, as the Hub wants it: adapter, notes, and the card as README.md."""
    shutil.copytree(adapter_in(run), folder, dirs_exist_ok=True)
    for name in NOTES:
        shutil.copyfile(run / name, folder / name)
    (folder / "README.md").write_text(card, encoding="utf-8")


def is_run(folder: Path) -> bool:
    """Whether a whole trained adapter lies there, with what it was made from."""
    return (adapter_in(folder) / "adapter_config.json").exists() and all((folder / name).exists() for name in NOTES)


def settings(game: str, preset: Mapping, seed: int) -> dict:
    """What a run must have been made from to be judged with these; `preset`: its fields by name."""
    return {"game": game, "preset": preset["name"], **{name: preset[name] for name in SHARED}, "seed": seed}


def settings_in(run: Path) -> dict:
    """The `settings` that a run was made from."""
    note = json.loads((run / NOTES[0]).read_text(encoding="utf-8"))
    return settings(note["game"], note["preset"], note["seed"])


def newest(folders: Iterable[Path], wanted: Mapping) -> Path | None:
    """The run with the `wanted` settings that was written last."""
    found = [folder for folder in folders if is_run(folder) and settings_in(folder) == wanted]
    return max(found, key=lambda folder: (folder / NOTES[1]).stat().st_mtime, default=None)


def find_run(named: str, run: Path, game: str, preset: Preset, seed: int) -> tuple[Path | None, str]:
    """(the folder of a trained run, or None; where it was found).

    `named` is a folder, such as a Kaggle input, in which a run lies, or USER/NAME of a bundle on the Hub. When it is empty:
    `run`, or else the newest run with these settings beside it, or else below /kaggle/input, where notebook 04's output is
    attached. Raises FileNotFoundError when nothing is where `named` says, ValueError for a run with other settings.
    """
    wanted = settings(game, asdict(preset), seed)
    if named:
        found, why = (Path(named), "the folder named") if Path(named).is_dir() else (from_hub(named), f"{named} on the Hub")
        found = found if is_run(found) else newest((note.parent for note in found.rglob(NOTES[0])), wanted)
        if found is None:
            raise FileNotFoundError(f"expected a run of notebook 04 with {wanted} in {named}, found none")
    elif is_run(run):
        found, why = run, "RUN"
    elif found := newest(run.parent.glob("*"), wanted):
        why = f"the newest beside {run}, which holds no adapter"
    elif found := newest((note.parent for note in INPUTS.rglob(NOTES[0])), wanted):
        why = f"the newest of Kaggle's inputs; {run} holds no adapter"
    else:
        return None, f"no run with {wanted} in or beside {run}, or among Kaggle's inputs"
    if settings_in(found) != wanted:
        raise ValueError(f"expected a run with {wanted} in {found}, got {settings_in(found)}; run 04 with these parameters")
    return found, why


def from_hub(repository: str) -> Path:
    """A copy of USER/NAME on the Hub, private ones with the platform's token. Raises FileNotFoundError when there is none."""
    try:
        return Path(snapshot_download(repository, token=hub_token(), allow_patterns=PUSHED))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(f"expected a folder, or USER/NAME on the Hub, got {repository!r} ({reason})") from error


def push(folder: Path, repository: str) -> str:
    """Uploads a folder with an adapter or a model to USER/NAME on the Hub, private when it is new; says what was done. Nothing
    is sent when `repository` is empty or there is no token."""
    if not repository:
        return "not pushed: no repository was named"
    token = hub_token()
    if not token:
        return f"not pushed to {repository}: the platform's secrets hold no {SECRET}"
    hub = HfApi(token=token)
    hub.create_repo(repository, private=True, exist_ok=True)
    hub.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=PUSHED)
    return f"pushed to https://huggingface.co/{repository}"
