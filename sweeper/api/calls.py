"""`sweeper.search`, `sweeper.transfer` and `sweeper.open_study`: what a notebook calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from threading import RLock
from typing import Any

from sweeper.api.bar import Kept
from sweeper.api.interrupt import asked_by_user
from sweeper.api.keywords import keywords_of, request_of
from sweeper.api.shown import Answer, Compared, Critical, Judgement, Rates, Study, Transfer, nearby
from sweeper.api.words import CALLS, dotted, settings_words
from sweeper.config.command_line import DEFAULT_ROOT, with_user_command
from sweeper.decide.loss import NoLossLaw, Prediction
from sweeper.errors import (
    PYTHON,
    Call,
    ConfigError,
    Keyword,
    SweeperError,
    call_words,
    spelled,
)
from sweeper.files import is_path, take_damaged
from sweeper.launch.code import edited_modules
from sweeper.records import to_json
from sweeper.registry import only_named
from sweeper.report.each import each_text
from sweeper.report.present import Silent, ask, perform, present
from sweeper.study.folder import is_study
from sweeper.study.setup import asked
from sweeper.study.study import find_study
from sweeper.verbs.answer import Outcome
from sweeper.verbs.compare import asks_for_winner
from sweeper.verbs.judge import CriticalAnswer, EachJudgeAnswer, JudgeAnswer, RatesAnswer
from sweeper.verbs.predict import PredictAnswer, TablePrediction
from sweeper.verbs.requests import (
    CompareRequest,
    ExplainRequest,
    ExportRequest,
    JudgeRequest,
    PredictRequest,
    Request,
    SearchRequest,
    StatusRequest,
    TransferRequest,
    options_of,
)

Model = str | type | Callable[..., Any] | Mapping[str, Any]
Place = str | PathLike[str]
_TURNS = RLock()
"""Calls of several threads take turns: a process has one model of a specification in training."""


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
        raise ConfigError(
            Keyword("command"), command, 'a list of words: command=["python", "train.py"]'
        )
    request = request_of(SearchRequest, settings)
    if command:
        words = ["search", *request.overrides, "--", *map(str, command)]
        request = replace(request, overrides=tuple(with_user_command(words)[1:]))
    _check_loaded(model)
    code, output = _run(request, command)
    if request.dry_run or request.detach:
        return Answer.of(output)
    if code == Outcome.FAILED:
        raise SweeperError(". ".join([*output.answers, *output.kept_notes]))
    found = Study.read(Path(request.root or DEFAULT_ROOT) / output.record["study"])
    found.take(output)
    found.notices += [note for note in output.kept_notes if note not in found.notices]
    return found


@keywords_of(TransferRequest)
def transfer(study: Study | Place | None, to_width: int, **settings: Any) -> Transfer | Answer:
    """Carry a study's optimum over to a larger model, as `sweeper transfer` does; plan and verdict.

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
    folder = _folder(study, settings.pop("root", None))
    place = {"study": folder.name, "root": folder.parent, "to_width": to_width}
    request = request_of(TransferRequest, {**settings, **place})
    _check_loaded(None)
    code, output = _run(request)
    if isinstance(study, Study):
        study.reload()
    # A dry run, or runs that wait in a queue: there is no plan yet.
    if "plan" not in output.places:
        return Answer.of(output)
    if code == Outcome.NOT_VALIDATED:
        raise SweeperError(". ".join(output.answers))
    done = Transfer.read(output.places["plan"].parent)
    done.take(output)
    return done


@keywords_of(CompareRequest)
def compare(*studies: Any, **settings: Any) -> Compared | Answer:
    """Which change wins at a target, or how studies rank, as `sweeper compare` says it.

    Of runs of any source as `judge` takes them, with `by` and `baseline`, the variants are carried
    to `to_params`, `to_tokens` or `to_width`; nothing is written but with `out`. Of two validated
    studies or more, of one root, the ranking at equal compute. With `settle` seeds are trained at
    each study's optimum until it is decided which is the best; further keywords are settings such
    as `launcher="slurm"`. Errors as `search`.
    """
    sources = tuple(map(_source, studies))
    known = options_of(CompareRequest)
    own = {name: value for name, value in settings.items() if name in known}
    asked = request_of(CompareRequest, {**own, "names": ()})
    if asks_for_winner(sources, vars(asked), Path(asked.root or DEFAULT_ROOT)):
        # Under strict nothing is written: a call writes nothing but with `out`.
        request = replace(request_of(CompareRequest, {**settings, "names": ()}), names=sources)
        return Answer.of(_run(replace(request, strict=request.out is None))[1])
    folders = [_folder(study, settings.get("root")) for study in studies]
    parents = {folder.absolute().parent for folder in folders}
    if len(parents) > 1:
        raise ConfigError(
            Keyword("studies"), [*map(str, folders)], "studies of one folder, their root"
        )
    changes = {name: value for name, value in settings.items() if name not in known}
    if folders:
        own["root"] = folders[0].parent
    words = settings_words("transfer", changes, None)
    own["names"] = [*(folder.name for folder in folders), *words]
    _, output = _run(request_of(CompareRequest, own))
    if not output.places:
        return Answer.of(output)
    found = Compared()
    found.take(output)
    return found


@keywords_of(JudgeRequest)
def judge(source: Any = None, **keywords: Any) -> Judgement | Rates | Critical | Answer:
    """What `sweeper judge` says of runs: does their best learning rate stay? Trains nothing.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    run. `columns` name them by role, as a text or a mapping: `{"width": "n_embd", "eta": "lr"}`.
    Nothing is written but with `out` or `save`; BadInput says what is missing.
    """
    request = request_of(JudgeRequest, {**keywords, "source": _source(source)})
    with _TURNS:
        answer = perform(request, Silent())
        found: Judgement | Rates | Critical | Answer
        match answer:
            case EachJudgeAnswer():
                found = Answer()
                found.text, found.document = each_text(answer.each), to_json(answer.each)
            case RatesAnswer():
                found = Rates(answer)
            case CriticalAnswer():
                found = Critical(answer)
            case JudgeAnswer():
                found = Judgement(answer)
            case _:
                raise TypeError(type(answer).__name__)
        if request.out is not None or request.save is not None:
            written = present("judge", answer).places
            found.places = {name: Path(str(place)) for name, place in written.items()}
    return found


@keywords_of(PredictRequest)
def predict(source: Any = None, **keywords: Any) -> Prediction | NoLossLaw:
    """What `sweeper predict` says of a table, or of a study: the loss of a larger run.

    `source` is a DataFrame, columns by name, a study, or a place as on the command line, a row a
    finished run. Of too few runs it cannot say yet, as there: the `answer` of both. Nothing is
    written but with `out`.
    """
    request = request_of(PredictRequest, {**keywords, "source": _source(source)})
    with _TURNS, only_named():
        answer = perform(request, Silent())
        if request.out is not None:
            present("predict", answer)
    assert isinstance(answer, PredictAnswer | TablePrediction)
    found = answer.predicted if isinstance(answer, PredictAnswer) else answer
    if found.prediction is not None:
        # Those of a table stand first, and name keywords.
        told = [spelled(note, PYTHON) for note in answer.notes]
        return replace(found.prediction, notes=(*told, *found.prediction.notes[len(told) :]))
    assert found.too_few is not None
    return found.too_few.answer


@keywords_of(ExportRequest)
def export(to: str, *, study: Study | Place | None = None, **keywords: Any) -> Answer:
    """Write a study's plan as files of another trainer, as `sweeper export` does.

    The trainer's own options are a list of texts, `options=["family=granite"]`. With `strict` what
    is left to you and not in `accept` is a SweeperError, and nothing is written.
    """
    if keywords.get("plan") is None:
        folder = _folder(study, keywords.get("root"))
        keywords |= {"study": folder.name, "root": folder.parent}
    elif study is not None:
        keywords["study"] = study  # which a plan's file leaves no room for
    code, output = _run(request_of(ExportRequest, {**keywords, "to": to}))
    if code == Outcome.NOT_VALIDATED:
        raise SweeperError(output.text)
    return Answer.of(output)


@keywords_of(StatusRequest)
def status(study: Study | Place | None = None, **keywords: Any) -> Answer:
    """Where a study stands, as `sweeper status` says it: trials, losses, jobs, what comes next."""
    folder = _folder(study, keywords.pop("root", None))
    place = {"study": folder.name, "root": folder.parent}
    return Answer.of(_run(request_of(StatusRequest, {**keywords, **place}))[1])


@keywords_of(ExplainRequest)
def explain(to_width: int | None = None, **settings: Any) -> Answer:
    """What every parameter of a model is prescribed at a width, as `sweeper explain` says it.

    `settings` are the configuration's, as in `search`; of a `study` they are its own.
    """
    return Answer.of(_run(request_of(ExplainRequest, {**settings, "to_width": to_width}))[1])


@asked_by_user
def open_study(study: Place | None = None, root: Place | None = None) -> Study:
    """The study of a name or in a folder, such as "mine" or "runs/mine", as it is now.

    None is the latest in `root`, which is "runs" if not given. Nothing is written. BadInput when
    there is no such study.
    """
    return Study.read(_folder(study, root))


def _run(request: Request, command: Sequence[str] = ()) -> tuple[int, Kept]:
    """Do what is asked: the exit code, and what there is to say.

    A training `command` stands behind `--` in what is recorded.
    """
    output = Kept.for_call()
    call = request.call
    words = call_words(Call(call.verb, *call.arguments, command=tuple(map(str, command))))
    take_damaged()  # of an earlier call in this process
    with _TURNS, only_named(), asked(words):
        code, _ = ask(request, output, CALLS)
        output.flush()
    output.close()
    return int(code), output


def _source(source: Any) -> Any:
    """Runs as a request has them: a study by its folder."""
    if isinstance(source, Study):
        return str(nearby(source.folder))
    return fspath(source) if isinstance(source, PathLike) else source


def _folder(study: Study | Place | None, root: Place | None) -> Path:
    """The folder of a study; BadInput when there is none."""
    if isinstance(study, Study):
        return nearby(study.folder)
    for key, given, allowed in (
        ("study", study, "a study, its name or its folder"),
        ("root", root, "a folder"),
    ):
        if given is not None and not (isinstance(given, str | PathLike) and is_path(given)):
            raise ConfigError(Keyword(key), given, allowed)
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
    """ConfigError where files of the user's changed that this process has imported before."""
    if edited := edited_modules():
        value = dotted("model", model) if callable(model) else edited[0]
        allowed = (
            f"{', '.join(edited)} changed on the disk since it was imported: restart the kernel, "
            f"or importlib.reload it and import its classes again"
        )
        raise ConfigError("model", value, allowed)
