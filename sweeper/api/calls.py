"""`sweeper.search`, `sweeper.transfer` and `sweeper.open_study`: what a notebook calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from sweeper.api.bar import answered
from sweeper.api.interrupt import asked_by_user
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer, Study, Transfer, nearby
from sweeper.api.words import dotted, in_python
from sweeper.config.command_line import DEFAULT_ROOT, with_user_command
from sweeper.errors import ConfigError, Keyword, SweeperError
from sweeper.files import is_path
from sweeper.launch.code import edited_modules
from sweeper.study.folder import is_study
from sweeper.study.study import find_study
from sweeper.verbs.answer import Outcome
from sweeper.verbs.requests import (
    ExplainRequest,
    ExportRequest,
    SearchRequest,
    StatusRequest,
    TransferRequest,
)

Model = str | type | Callable[..., Any] | Mapping[str, Any]
Place = str | PathLike[str]


@keywords_of(SearchRequest)
def search(
    model: Model | None = None, *, command: Sequence[str] = (), **settings: Any
) -> Study | Answer:
    """Search the best hyperparameters at the base size, as `sweeper search` does; the study.

    `model` is a class or a function that builds one, of a module or of a notebook's cell, the name
    of one of sweeper's, or a mapping with arguments of its own, `{"name": Net, "heads": 4}`. What a
    cell defines trains in this process, other models in workers. `settings` are the
    configuration's: `width`, `depth` and keys of `train` (`steps`, `batch_size`) by their names,
    groups by option or mapping (`search="lr"`, `optimizer={"name": "adamw", "beta2": 0.95}`),
    sections as mappings (`transfer={"widths": [32, 64]}`). A training `command` of your own is a
    list of words.

    Call it again to go on where it stopped: what is finished is not trained again. With `dry_run`
    nothing is trained or written. ConfigError names the key that is refused and what is allowed,
    SweeperError says why no trial could be trained.
    """
    if model is not None:
        settings = {"model": model, **settings}
    if not isinstance(command, list | tuple):
        words = 'a list of words: command=["python", "train.py"]'
        raise ConfigError(Keyword("command"), command, words)
    request = request_of(SearchRequest, settings)
    if command:
        typed = ["search", *request.overrides, "--", *map(str, command)]
        request = replace(request, overrides=tuple(with_user_command(typed)[1:]))
    _check_loaded(model)
    code, output = answered(request, command)
    if request.dry_run or request.detach:
        return Answer.of(output)
    if code == Outcome.FAILED:
        raise SweeperError(". ".join([*output.answers, *output.kept_notes]))
    searched = Study.read(Path(request.root or DEFAULT_ROOT) / output.record["study"])
    searched.take(output)
    searched.notices += [note for note in output.kept_notes if note not in searched.notices]
    return searched


@keywords_of(TransferRequest)
def transfer(study: Study | Place | None, to_width: int, **settings: Any) -> Transfer | Answer:
    """Carry a study's optimum over to a larger model, as `sweeper transfer` does: plan, verdict.

    `study` is one that `search` or `open_study` gave, which then knows the verdict; its name or its
    folder; None the latest in `root`. With `validate` learning-rate curves are trained along
    `widths` and judged; with `settle`, until the answer is settled or `budget` runs or `hours` are
    spent. `settings` are keys of `transfer` by their names (`widths=[32, 64]`, `seeds=3`), groups
    and sections as in `search`. The model of a notebook's cell must be defined in this notebook,
    under its name. With `trust`, classes run that the study's own records name.

    With `horizons` sizes x steps are trained at the planned eta: by them `predict` tells the loss
    of larger runs. With `detach` what Slurm can be given is submitted, and the call returns what
    it would say of it; call it again to collect. With `strict` anything but a verdict that holds is
    a SweeperError. Errors as `search`.
    """
    folder = folder_of(study, settings.pop("root", None))
    place = {"study": folder.name, "root": folder.parent, "to_width": to_width}
    request = request_of(TransferRequest, {**settings, **place})
    _check_loaded(None)
    code, output = answered(request)
    if isinstance(study, Study):
        study.reload()
    if "plan" not in output.places:  # a dry run, or runs that wait in a queue
        return Answer.of(output)
    if code == Outcome.NOT_VALIDATED:
        raise SweeperError(". ".join(output.answers))
    done = Transfer.read(output.places["plan"].parent)
    done.take(output)
    return done


@keywords_of(ExportRequest)
def export(to: str, *, study: Study | Place | None = None, **keywords: Any) -> Answer:
    """Write a study's plan as files of another trainer, as `sweeper export` does.

    The trainer's own options are a list of texts, `options=["family=granite"]`. With `strict` what
    is left to you and not in `accept` is a SweeperError, and nothing is written.
    """
    if keywords.get("plan") is None:
        folder = folder_of(study, keywords.get("root"))
        keywords |= {"study": folder.name, "root": folder.parent}
    elif study is not None:
        keywords["study"] = study  # which a plan's file leaves no room for
    code, output = answered(request_of(ExportRequest, {**keywords, "to": to}))
    if code == Outcome.NOT_VALIDATED:
        raise SweeperError(output.text)
    return Answer.of(output)


@keywords_of(StatusRequest)
def status(study: Study | Place | None = None, **keywords: Any) -> Answer:
    """Where a study stands, as `sweeper status` says it: trials, losses, jobs, what comes next."""
    folder = folder_of(study, keywords.pop("root", None))
    place = {"study": folder.name, "root": folder.parent}
    return Answer.of(answered(request_of(StatusRequest, {**keywords, **place}))[1])


@keywords_of(ExplainRequest)
def explain(to_width: int | None = None, **settings: Any) -> Answer:
    """What every parameter of a model is prescribed at a width, as `sweeper explain` says it.

    `settings` are the configuration's, as in `search`; of a `study` they are its own.
    """
    return Answer.of(answered(request_of(ExplainRequest, {**settings, "to_width": to_width}))[1])


@asked_by_user
def open_study(study: Place | None = None, root: Place | None = None) -> Study:
    """The study of a name or in a folder, such as "mine" or "runs/mine", as it is now.

    None is the latest in `root`, by default "runs". It answers what `status` does, and nothing is
    written. BadInput when there is no such study.
    """
    with in_python():
        return Study.opened(folder_of(study, root))


def folder_of(study: Study | Place | None, root: Place | None) -> Path:
    """The folder of a study; BadInput when there is none."""
    if isinstance(study, Study):
        return nearby(study.folder)
    allowed = {"study": "a study, its name or its folder", "root": "a folder"}
    for key, place in (("study", study), ("root", root)):
        if place is not None and not (isinstance(place, str | PathLike) and is_path(place)):
            raise ConfigError(Keyword(key), place, allowed[key])
    text = None if study is None else fspath(study)
    if text is not None and root is None:
        folder = Path(text).expanduser()
        # A plain word is a name, but where it is the folder of a study itself.
        if len(folder.parts) > 1 or is_study(folder):
            is_there = folder.is_dir()
            return folder if is_there else folder.parent / find_study(folder.name, folder.parent)
    where = Path(DEFAULT_ROOT if root is None else root).expanduser()
    return where / find_study(text, where)


def _check_loaded(model: Model | None) -> None:
    if edited := edited_modules():
        value = dotted("model", model) if callable(model) else edited[0]
        allowed = f"{', '.join(edited)} changed on the disk since it was imported: restart the "
        allowed += "kernel, or importlib.reload it and import its classes again"
        raise ConfigError("model", value, allowed)
