"""What a notebook needs of the machine it runs on: the packages that Kaggle or Colab lack, the embedded model's weights, and a
folder that outlives the session.

The set-up cell imports this before anything is installed, so it needs no more than the standard library and `packaging`, which
comes with Jupyter. It never imports torch: what is imported can not be replaced without a restart.
"""

import hashlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

# The one place for the project's addresses. The set-up cell needs two of them before helpers/ is there and the badges are text:
# test_kaggle.py compares them all with these.
REPOSITORY = "https://github.com/parley-authors/parley"
TAG = "v0.2"
HUB = "https://huggingface.co/parley-authors/parley-tiny"

WEIGHTS = "model.safetensors"
INPUTS = Path("/kaggle/input")  # datasets and other kernels' output are mounted somewhere below, at changing depths
KEEPS = {"kaggle": Path("/kaggle/working"), "colab": Path("/content/drive/MyDrive")}  # what a platform keeps, when it is there
SESSION_MIN = {"kaggle": 11 * 60, "colab": 11 * 60}  # minutes for training; a session ends after 12 hours at most
REQUIREMENTS = Path(__file__).parent.parent / "requirements-gpu.txt"
FOR_GPU = {"unsloth", "unsloth_zoo", "bitsandbytes", "torchao", "xformers"}
KEPT = ("torch", "torchvision", "torchaudio", "numpy", "pillow")  # a platform's own builds; others would not fit its CUDA
DEFAULTS = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}


def place() -> str:
    """Where this runs, by the variables that the platforms set: kaggle, colab or elsewhere."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # asked first: its image is built upon Colab's
        return "kaggle"
    return "colab" if any(name.startswith("COLAB_") for name in os.environ) else "elsewhere"


def run_folder(run: str) -> Path:
    """Where a run lies: on Kaggle and Colab below the folder that the platform keeps, elsewhere where `run` says. When Google
    Drive is not mounted on Colab, one line says that the run will be lost."""
    keeps = KEEPS.get(place())
    if keeps is None or Path(run).is_absolute():
        return Path(run)
    if not keeps.is_dir():
        print(f"{run} will be lost with this session: there is no {keeps} (on Colab, mount Google Drive and run this again)")
        return Path(run)
    return keeps / run if place() == "kaggle" else keeps / "parley" / run


def budget_s(minutes: int, spent_s: float = 0.0) -> float | None:
    """Seconds that training may still take: `minutes`, or with 0 what a session of the platform has room for, less `spent_s`;
    None: no limit."""
    minutes = minutes or SESSION_MIN.get(place(), 0)
    return 60.0 * minutes - spent_s if minutes else None


def missing(lines: Iterable[str], gpu: bool) -> list[str]:
    """Those lines of a requirements file that are meant for here and not installed in a version that they allow."""
    found = []
    for text in filter(None, (line.split("#")[0].strip() for line in lines)):
        wanted = Requirement(text)
        if (wanted.marker and not wanted.marker.evaluate()) or (wanted.name in FOR_GPU and not gpu):
            continue
        try:
            fits = wanted.specifier.contains(version(wanted.name), prereleases=True)
        except PackageNotFoundError:
            fits = False
        if not fits:
            found.append(text)
    return found


def constraints() -> list[str]:
    """Lines for pip that keep the packages in KEPT as they are."""
    lines = []
    for name in KEPT:
        try:
            lines.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            continue
    return lines


def prepare() -> None:
    """Sets quiet defaults and sees to the packages of requirements-gpu.txt (those for a GPU only where one is found).

    On Kaggle and Colab what is missing is installed; elsewhere it is only named, for nobody's own environment is changed unasked.
    Raises RuntimeError when pip fails.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    needed = missing(REQUIREMENTS.read_text(encoding="utf-8").splitlines(), gpu=shutil.which("nvidia-smi") is not None)
    if not needed:
        return
    if place() == "elsewhere":
        print(f"not installed as tested: {', '.join(needed)} (`make setup`, or pip install -r {REQUIREMENTS.name})")
        return
    print(f"installing {', '.join(needed)} ...", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints()))
        file.flush()
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "-c", file.name]
        done = subprocess.run([*pip, *needed], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason"]
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1])
        raise RuntimeError(
            f"expected pip to install {', '.join(needed)}, got {reason!r}: switch the notebook's internet on and run this again"
        )
    importlib.invalidate_caches()


def versions() -> str:
    """Python and the packages that a result depends on, in one line."""
    found = [f"Python {platform.python_version()}"]
    for name in ("torch", "transformers", "trl", "peft"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def secret(name: str) -> str | None:
    """The secret of that name from Kaggle or Colab, elsewhere from the environment; None when there is none."""
    try:
        if place() == "kaggle":
            from kaggle_secrets import UserSecretsClient

            return UserSecretsClient().get_secret(name)
        if place() == "colab":
            from google.colab import userdata

            return userdata.get(name)
    except Exception:  # each raises kinds of its own when there is no such secret, or this notebook may not read it
        return None
    return os.environ.get(name)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch_weights(folder: Path) -> None:
    """Puts the embedded model's weights into `folder` when they are not there, as in a notebook that carries helpers/ packed.

    They are looked for below /kaggle/input, then at the repository's tag, then on the hub; taken is only a file whose SHA-256
    is the one that was packed along. Raises FileNotFoundError when there is none.
    """
    target, part = folder / WEIGHTS, folder / (WEIGHTS + ".part")
    if target.exists():
        return
    wanted, tried = (folder / "model.sha256").read_text().strip(), [f"below {INPUTS}"]
    for path in sorted(INPUTS.rglob(WEIGHTS)):
        if sha256(path) == wanted:
            shutil.copyfile(path, part)
            part.replace(target)
            return
    name = f"{folder.name}/{WEIGHTS}"
    for url in (f"{REPOSITORY}/raw/{TAG}/helpers/tiny/{name}", f"{HUB}/resolve/main/{name}"):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                part.write_bytes(answer.read())
        except OSError as error:
            tried.append(f"{url} ({getattr(error, 'reason', error)})")
            continue
        if sha256(part) == wanted:
            part.replace(target)
            return
        tried.append(f"{url} (other weights)")
        part.unlink()
    raise FileNotFoundError(
        f"expected the weights of the embedded model, found none {'; '.join(tried)}: switch the notebook's internet on, or add a "
        f"Kaggle dataset that holds helpers/tiny/{name}"
    )
