"""Notebooks that carry helpers/ with them, for Kaggle and Colab: `python -m helpers.kaggle build|check|push`.

Kaggle takes one file of less than 1 MB a kernel. So the code travels as an archive inside the notebook. Stored outputs stay
behind, and so do the embedded model's weights, which `helpers.machine.fetch_weights` finds elsewhere.
"""

import argparse
import base64
import copy
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat

from helpers.evaluate import commit, write_json
from helpers.machine import WEIGHTS, sha256

TOP = Path(__file__).parent.parent
METADATA = "kernel-metadata.json"
LIMIT = 1_000_000  # bytes of a kernel's source; Kaggle answers HTTP 400 to "1 megabytes" and more
CLIENT = "kaggle==2.2.5"
LEFT_OUT = {".safetensors", ".pyc"}
TRAINS, USES = "04_grpo_training", "05_evaluation"  # only these need a GPU; the second reads what the first left
CELL = '''# @title helpers/ of commit {commit}, packed by `python -m helpers.kaggle build` (code only, no weights)
import base64
import io
import tempfile
import zipfile

HELPERS = tempfile.mkdtemp(prefix="parley-")
archive = """
{text}"""
zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))).extractall(HELPERS)'''

_OWNER = r"[a-z0-9][a-z0-9_-]*"
_SLUG = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_NO_PREFIX = r"(?!(?:datasets|code|kernels|notebooks|models|competitions)/)"
_SOURCE = rf"{_NO_PREFIX}{_OWNER}/{_SLUG}(?:/[0-9]+)?"

Rule = tuple[Callable[[object], bool], str]


def _text(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _texts(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(_text(pattern), value))


_TRUTH: Rule = (lambda value: isinstance(value, bool), "true or false, without quotes")

# What each field of kernel-metadata.json may hold, and how to say so. All of them are written, no other is.
FIELDS: dict[str, Rule] = {
    "id": (_text(f"{_OWNER}/{_SLUG}"), "USER/SLUG in lower case with your own Kaggle user name (build with --owner NAME)"),
    "title": (_text(r"[ -~]{5,50}"), "5 to 50 plain characters"),
    "code_file": (_text(r"[\w.-]+\.ipynb"), "the name of a notebook beside it, without a folder"),
    "language": (_text("python"), "'python'"),
    "kernel_type": (_text("notebook"), "'notebook'"),
    "is_private": _TRUTH,
    "enable_gpu": _TRUTH,
    "enable_internet": _TRUTH,
    "machine_shape": (_text("(NvidiaTeslaT4)?"), "'NvidiaTeslaT4' with a GPU (the P100 is retired) and '' without"),
    "dataset_sources": (_texts(_SOURCE), "a list of USER/SLUG or USER/SLUG/VERSION, without datasets/ before it"),
    "competition_sources": (_texts(_SLUG), "a list of SLUG, without competitions/ before it"),
    "kernel_sources": (_texts(_SOURCE), "a list of USER/SLUG or USER/SLUG/VERSION, without code/ before it"),
    "model_sources": (
        _texts(rf"{_NO_PREFIX}{_OWNER}/{_SLUG}/\w+/[\w.-]+/[0-9]+"),
        "a list of USER/MODEL/FRAMEWORK/VARIATION/VERSION, without models/ before it",
    ),
    "keywords": (_texts(r"[a-z0-9 -]+"), "a list of tags in lower case"),
    "docker_image_pinning_type": (_text("original|latest"), "'original' or 'latest'"),
}


class KaggleError(Exception):
    """What stops a command, as a message for the person who gave it."""


def slug(title: str) -> str:
    """The address that Kaggle makes from a title: its letters and digits in lower case, one hyphen for all that is between."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def archive() -> bytes:
    """A zip of helpers/ without the weights, and of requirements-gpu.txt; the same bytes for the same files.

    Added are the weights' SHA-256 and the commit, so that results made with the archive can name it.
    """
    paths = [path for path in TOP.glob("helpers/**/*") if path.is_file() and path.suffix not in LEFT_OUT]
    files = {str(path.relative_to(TOP)): path.read_bytes() for path in [*paths, TOP / "requirements-gpu.txt"]}
    for weights in TOP.glob(f"helpers/tiny/*/{WEIGHTS}"):
        files[str(weights.relative_to(TOP).with_suffix(".sha256"))] = sha256(weights).encode()
    files["helpers/commit.txt"] = commit().encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, data in sorted(files.items()):
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # ZipInfo: the year 1980, not now
    return packed.getvalue()


def self_contained(notebook, packed: bytes):
    """`notebook` (as nbformat reads it) without outputs and with the archive in a cell between parameters and set-up."""
    notebook = copy.deepcopy(notebook)
    source = CELL.format(commit=commit(), text=base64.encodebytes(packed).decode())
    hidden = {"jupyter": {"source_hidden": True}, "_kg_hide-input": True, "cellView": "form"}
    cell = nbformat.v4.new_code_cell(source, id="helpers", metadata=hidden)
    for each in notebook.cells:
        if each.cell_type == "code":
            each.outputs, each.execution_count = [], None
    [place] = [i for i, each in enumerate(notebook.cells) if "parameters" in each.metadata.get("tags", [])]
    notebook.cells.insert(place + 1, cell)
    return notebook


def template() -> dict:
    """kaggle_kernel.json: the metadata of 04, from which that of the others is made."""
    return json.loads((TOP / "kaggle_kernel.json").read_text(encoding="utf-8"))


def kernel(notebook, name: str, owner: str) -> dict:
    """kernel-metadata.json of the notebook `name`: the template with the title and the hardware that the notebook needs."""
    metadata = template()
    source = f"{owner}/{metadata['id'].split('/')[1]}"
    if name == TRAINS:
        return metadata | {"id": source, "code_file": f"{name}.ipynb"}
    title = "Parley " + notebook.cells[0].source.splitlines()[0].split(maxsplit=2)[2]  # "# 05 Evaluation"
    metadata |= {"id": f"{owner}/{slug(title)}", "title": title, "code_file": f"{name}.ipynb"}
    if name == USES:
        return metadata | {"kernel_sources": [*metadata["kernel_sources"], source]}
    return metadata | {"enable_gpu": False, "machine_shape": ""}


def build(out: Path, owner: str) -> list[Path]:
    """Writes out/kaggle/<notebook>/ and out/colab/<notebook>.ipynb for notebooks 01-05; returns the folders for Kaggle."""
    packed, folders = archive(), []
    for place in ("kaggle", "colab"):
        shutil.rmtree(out / place, ignore_errors=True)
    (out / "colab").mkdir(parents=True)
    for path in sorted(TOP.glob("notebooks/0[1-5]_*.ipynb")):
        notebook, name = self_contained(nbformat.read(path, as_version=4), packed), path.stem
        folder = out / "kaggle" / name
        write_json(folder / METADATA, metadata := kernel(notebook, name, owner))
        nbformat.write(notebook, folder / path.name)
        if metadata["enable_gpu"]:
            notebook.metadata |= {"accelerator": "GPU", "colab": {"gpuType": "T4"}}
        nbformat.write(notebook, out / "colab" / path.name)
        folders.append(folder)
    return folders


def problems(folder: Path) -> list[str]:
    """What Kaggle would refuse or misread in a built folder, one line each; empty when all is well."""
    path = folder / METADATA
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"expected JSON in {path}, got {error}: build again"]
    if not isinstance(metadata, dict):
        return [f"expected a JSON object in {path}, got {type(metadata).__name__}: build again"]
    found = [f"{path}: expected the field {name}, it is missing" for name in FIELDS if name not in metadata]
    for name, value in metadata.items():
        if name not in FIELDS:
            found.append(f"{path}: expected only {', '.join(FIELDS)}, got {name!r}, which the client ignores")
        elif not FIELDS[name][0](value):
            found.append(f"{path}: expected {name} to be {FIELDS[name][1]}, got {value!r}")
    if found:
        return found
    if metadata["id"].split("/")[1] != slug(metadata["title"]):
        found.append(f"{path}: expected id to end in {slug(metadata['title'])!r}, the slug of its title, got {metadata['id']!r}")
    gpu, shape = metadata["enable_gpu"], metadata["machine_shape"]
    if gpu != bool(shape):
        found.append(f"{path}: expected a machine_shape exactly when enable_gpu is true, got {shape!r} with enable_gpu {gpu}")
    return found + source_problems(folder / metadata["code_file"])


def source_problems(path: Path) -> list[str]:
    """What is wrong with a built notebook as the source of a kernel, one line each."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except OSError as error:
        return [f"expected the notebook {path}, got {error.strerror}: build again"]
    except (ValueError, nbformat.ValidationError) as error:
        return [f"expected a notebook in {path}, got {str(error).splitlines()[0]!r}: build again"]
    found = []
    size = len(json.dumps(notebook))  # as the client sends it: with every letter beyond ASCII escaped
    if size >= LIMIT:
        found.append(f"{path}: expected less than {LIMIT:,} bytes, got {size:,}: keep weights and data out of helpers/")
    if any(cell.get("outputs") for cell in notebook.cells):
        found.append(f"{path}: expected no stored outputs, got some: build again")
    if not any(cell.get("id") == "helpers" for cell in notebook.cells):
        found.append(f"{path}: expected a cell with helpers/ packed, got none: build again")
    return found


def push(folder: Path) -> None:
    """Sends a built folder to Kaggle with the official client, which finds its own credentials.

    Raises KaggleError when the client is not installed, and when it or Kaggle refuses."""
    if importlib.util.find_spec("kaggle") is None:
        raise KaggleError(f"expected the official client, it is not installed: pip install {CLIENT}")
    command = [sys.executable, "-m", "kaggle", "kernels", "push", "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()
    print(said)
    if done.returncode or "successfully" not in said:  # the client exits 0 when Kaggle refuses a kernel
        raise KaggleError(f"expected Kaggle to take {folder.name}, see what it said above")


def main(argv: Sequence[str]) -> None:
    """build, check or push. Raises KaggleError, whose text is all that a user needs to see."""
    parser = argparse.ArgumentParser(prog="python -m helpers.kaggle", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=TOP / "build", help="where to build (default: build/)")
    commands = parser.add_subparsers(dest="command", required=True)
    builds = commands.add_parser("build", help="write self-contained notebooks")
    owner = os.environ.get("KAGGLE_USERNAME") or template()["id"].split("/")[0]
    builds.add_argument("--owner", default=owner, help="your Kaggle user name")
    commands.add_parser("check", help="say what Kaggle would refuse")
    pushes = commands.add_parser("push", help="check, then send to Kaggle, which runs them; 05 needs 04 to have finished")
    pushes.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="such as 04_grpo_training")
    given = parser.parse_args(argv)
    kaggle = given.out / "kaggle"
    if given.command == "build":
        folders = build(given.out, given.owner)
        print(f"built {len(folders)} notebooks in {kaggle} and {given.out / 'colab'}")
        return
    folders = [kaggle / name for name in given.notebooks] if given.command == "push" else sorted(kaggle.glob("*/"))
    if not folders:
        raise KaggleError(f"expected folders in {kaggle}, found none: python -m helpers.kaggle build --owner NAME")
    if found := [line for folder in folders for line in problems(folder)]:
        raise KaggleError("\n".join(found))
    print(f"checked {len(folders)}: each fits Kaggle's rules and is under {LIMIT:,} bytes")
    if given.command == "push":
        for folder in folders:
            push(folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KaggleError as error:
        sys.exit(f"parley: {error}")
