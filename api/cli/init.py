"""`trireme init`: a repository, or a Python file with models, to start from (docs/command-line.md#init).

The files come with the package (``starters/``); what a framework must write is made by its code, here and now.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from .parser import USAGE, CommandError, nearest

_STARTERS = Path(__file__).with_name("starters")


class Starter(NamedTuple):
    """A model to start from.

    Attributes:
        kind: what it is chosen by; the name of its folder.
        model: its name in the repository.
        needs: packages to import, and what pip installs for it; first those of its making, then those of its serving.
        ask: arguments of `trireme infer`.
    """

    kind: str
    model: str
    about: str
    needs: tuple[tuple[str, str], ...]
    ask: str


STARTERS = (
    Starter("python", "greeter", "a Python program that greets", (), "--input 'NAME=[\"Ada\"]'"),
    Starter(
        "onnx",
        "scorer",
        "an ONNX file that scores four numbers",
        (("onnxruntime", "'trireme-server[cpu]'"),),
        "--input 'X=[0.1, 0.2, 0.3, 0.4]'",
    ),
    Starter(
        "sklearn",
        "iris",
        "a scikit-learn classifier of irises, fitted now",
        (("sklearn", "scikit-learn"),),
        "--input 'MEASUREMENTS=[5.1, 3.5, 1.4, 0.2]'",
    ),
    Starter(
        "pytorch",
        "xor",
        "a TorchScript program that computes exclusive or",
        (("torch", "torch"),),
        "--input 'INPUT__0=[1, 0]'",
    ),
    Starter(
        "huggingface",
        "encoder",
        "a text encoder of Hugging Face transformers, to be replaced by yours",
        (("torch", "torch"), ("transformers", "transformers")),
        "--input 'TEXT=[\"a sentence\"]'",
    ),
)


def add_init_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    choices = ", ".join(each.kind for each in STARTERS)
    parser = commands.add_parser(
        "init",
        help="make a repository to start from, with models of the kinds that you choose, or a Python file with models",
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("models"),
        help="default %(default)s; app.py makes a Python file with models instead",
    )
    parser.add_argument(
        "--with", dest="kinds", metavar="KIND,…", help=f"of {choices}, or all; default {STARTERS[0].kind}"
    )
    parser.set_defaults(run=run_init)


def run_init(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    directory: Path = given.directory
    if directory.suffix == ".py":
        return _make_app(directory, given.kinds)
    chosen = list(_chosen(given.kinds or STARTERS[0].kind))
    for starter in chosen:
        _check_installed(starter)
        if (directory / starter.model).exists():
            raise CommandError(
                f"'{directory / starter.model}' is there already", "name another directory, or remove it"
            )
    for starter in chosen:
        try:
            _make(starter, directory / starter.model)
        except OSError as error:
            raise CommandError(
                f"cannot write '{error.filename or directory}': {error.strerror}", "name another directory"
            ) from error
    sys.stdout.write("".join(f"{line}\n" for line in _report(directory, chosen)))
    return 0


def _chosen(text: str) -> Iterator[Starter]:
    known = {each.kind: each for each in STARTERS}
    for kind in known if text == "all" else dict.fromkeys(text.split(",")):
        if kind not in known:
            near = nearest(kind, list(known))
            remedy = f"did you mean: {' or '.join(near)}?" if near else f"write one of: {', '.join(known)}, all"
            raise CommandError(f"--with is '{kind}', which is no kind of model", remedy, USAGE)
        yield known[kind]


def _check_installed(starter: Starter) -> None:
    missing = [pip for module, pip in starter.needs if find_spec(module) is None]
    if missing:
        raise CommandError(
            f"a model of kind {starter.kind} needs what is not installed: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )


def _make(starter: Starter, directory: Path) -> None:
    """All of it or nothing: what is half made is removed."""
    version = directory / "1"
    version.mkdir(parents=True)
    made = False
    try:
        for file in sorted((_STARTERS / starter.kind).iterdir()):
            code = file.name == "model.py.in"
            shutil.copyfile(file, version / "model.py" if code else directory / file.name)
        make = _MAKERS.get(starter.kind)
        if make is not None:
            make(version)
        made = True
    finally:
        if not made:
            shutil.rmtree(directory, ignore_errors=True)


def _make_app(path: Path, kinds: str | None) -> int:
    """A Python file with models."""
    if kinds is not None:
        raise CommandError("--with chooses models of a repository", f"name a directory in place of '{path}'", USAGE)
    text = (_STARTERS / "app" / "app.py.in").read_text(encoding="utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace("{file}", path.name))
    except FileExistsError:
        raise CommandError(f"'{path}' is there already", "name another file, or remove it") from None
    except OSError as error:
        raise CommandError(f"cannot write '{path}': {error.strerror}", "name another file") from error
    sys.stdout.write(_OF_APP.format(file=path))
    return 0


_OF_APP = """\
{file} has now:
  average  a function, called for the rows of many requests
  Greeter  a class, whose object has a state
  spell    a generator, whose answers are streamed

Look at it, serve it, and ask it from another terminal:
  trireme check {file}
  trireme serve {file} --reload
  trireme infer average --input 'numbers=[1, 2, 6]'
  trireme infer Greeter --input 'name=["Ada"]'
  trireme infer spell --input 'word=["Ada"]'
"""


def _report(directory: Path, chosen: list[Starter]) -> Iterator[str]:
    yield f"{directory} has now:"
    for starter in chosen:
        yield f"  {starter.model:<8} {starter.about}"
    yield ""
    yield "Look at it, serve it, and ask it from another terminal:"
    yield f"  trireme check {directory}"
    yield f"  trireme serve --model-repository {directory}"
    for starter in chosen:
        yield f"  trireme infer {starter.model} {starter.ask}"


# ---- files that code must write ----


def _make_onnx(version: Path) -> None:
    from .onnx_file import linear_classifier

    weights = [[-2.0, 0.0, 2.0], [-1.0, 0.5, 1.0], [-1.0, 0.5, 1.0], [-2.0, 0.0, 2.0]]
    (version / "model.onnx").write_bytes(linear_classifier("X", "SCORES", weights, [1.0, 0.5, -1.0]))


def _make_sklearn(version: Path) -> None:
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    measurements, kinds = load_iris(return_X_y=True)
    joblib.dump(LogisticRegression(max_iter=1000).fit(measurements, kinds), version / "estimator.joblib")


def _make_pytorch(version: Path) -> None:
    import warnings

    import torch

    class ExclusiveOr(torch.nn.Module):
        def forward(self, pair: torch.Tensor) -> torch.Tensor:
            return (pair[:, :1] - pair[:, 1:]).abs()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # files of torch.export need PyTorch's compiler here
        torch.jit.save(torch.jit.script(ExclusiveOr().eval()), str(version / "model.pt"))


def _make_huggingface(version: Path) -> None:
    """A tokenizer that knows letters, and weights that are random."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    folder = version / "encoder"
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)


_MAKERS: dict[str, Callable[[Path], None]] = {
    "onnx": _make_onnx,
    "sklearn": _make_sklearn,
    "pytorch": _make_pytorch,
    "huggingface": _make_huggingface,
}
