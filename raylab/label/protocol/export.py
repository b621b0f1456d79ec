"""The cases of a run as files for other tools, each written by one exporter.

`export=` of `jobs/annotate.py` chooses it. An exporter writes into the directory of the run.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raylab.core.log import log_line
from raylab.core.runs.eval_logs import EvalLog
from raylab.label.archive.records import CurrentCase
from raylab.label.codebooks.codebook import Label
from raylab.label.protocol.outcome import ADJUDICATOR, Annotator
from raylab.label.protocol.run import AnnotationRun
from raylab.label.review.label_studio import FINAL, archived_task, labelling_config, write_tasks
from raylab.label.statistics.columns import ADJUDICATED, AnswerRow, ArchivedEntry, encodable
from raylab.label.statistics.frame import audits_of, export_run, has_labels, read_case
from raylab.label.statistics.scores import CANDIDATES, annotator_names

GOLD, EVALUATOR = "gold", "evaluator"
"""The scores of a sample; a log has the score by gold if any of its samples has gold."""


def export(annotation: AnnotationRun, form: str) -> str:
    """Writes the cases of a run in a format, a key of `EXPORTERS`; returns the path."""
    name, write = EXPORTERS[form]
    write(annotation, name)
    return str(annotation.run / name)


def model_names(annotation: AnnotationRun) -> Mapping[Annotator, str]:
    """Returns the names that the annotators have in logs; of candidates, where these are judged."""
    judged = annotation.settings.rules.stages == "evaluate"
    return CANDIDATES if judged else annotator_names(annotation.config.llm.annotators)


def _write_table(annotation: AnnotationRun, name: str) -> None:
    settings, place = annotation.settings, str(annotation.run / name)
    book, open_book = annotation.codebook, settings.prompts.open_book
    export_run(annotation.archived, place, book, settings.answerers, open_book=open_book)


def _write_tasks(annotation: AnnotationRun, name: str) -> None:
    """Writes the tasks, and the labelling configuration beside them."""
    codebook, chief = annotation.codebook, annotation.config.llm.adjudicator
    names = {**model_names(annotation), **({ADJUDICATOR: chief.model} if chief else {})}
    with (annotation.run / name).writer() as file:
        audits = audits_of(annotation.archived)
        tasks = (
            archived_task(case, codebook, names, audits.get(case.case.case, ()))
            for case in _cases(annotation)
        )
        write_tasks(tasks, file)
    config = annotation.run / name.replace(".json", ".xml")
    with config.writer() as file:
        file.write(labelling_config(codebook).encode())
    log_line(f"labelling configuration {config}", uri=str(config))


def _write_logs(annotation: AnnotationRun, name: str) -> None:
    """Writes Inspect logs with samples: of each annotator, and of the codes in force.

    A log is held in memory.
    """
    created = annotation.archived.row().started.isoformat()
    for annotator, model in {**model_names(annotation), None: FINAL}.items():
        samples = [*_samples(annotation, annotator)]
        scorer = GOLD if any(GOLD in sample["scores"] for sample in samples) else EVALUATOR
        scores = [sample["scores"][scorer] for sample in samples if scorer in sample["scores"]]
        total = sum(score["value"] for score in scores)
        log = EvalLog(
            model=model,
            task=annotation.codebook.name,
            dataset=annotation.run.name,
            samples=len(samples),
            metrics={"accuracy": total / max(len(scores), 1)},
            created=created,
            run_id=annotation.run.id,
            scorer=scorer,
            cases=tuple(samples),
        )
        # Inspect takes a JSON file for a log only if its name begins with a time.
        time = created[:19].replace(":", "-")
        annotation.run.write_record(log, f"{name}/{time}_{model}.json")


def _samples(annotation: AnnotationRun, annotator: Annotator | None) -> Iterator[dict[str, Any]]:
    """Yields the samples of an annotator, or with None those of the codes in force."""
    codebook, open_book = annotation.codebook, annotation.settings.prompts.open_book
    for current in _cases(annotation):
        name, case = annotation.run.name, read_case(current, codebook)
        entry = ArchivedEntry(*case, codebook, open_book, name, current)
        gold = entry.outcome.gold_label if entry.held_out else None
        if annotator is not None:
            if row := entry.answers.get(annotator.lower()):
                yield _sample(entry, row.answer.label, gold, row)
            continue
        # The answer behind a code is the adjudicator's, or that of the first who gave it.
        rows = sorted(entry.answers.items(), key=lambda item: item[0] != ADJUDICATED)
        behind = (row for _, row in rows if row.answer.label == entry.label)
        # A case that waits for a person is not wrong.
        gold = None if entry.label is None else gold
        yield _sample(entry, entry.label, gold, next(behind, None))


def _sample(
    entry: ArchivedEntry, label: Label | None, gold: Label | None, row: AnswerRow | None
) -> dict[str, Any]:
    """Returns a case as a sample of one coder, scored by gold and by the evaluator."""
    outcome, current = entry.outcome, entry.current
    report, call = row and row.report, row.answer.calls[-1] if row and row.answer.calls else None
    line = str(label or "")
    texts = {
        "input": current.case.description,
        "reply": call.reply.text if call else line,
        "rationale": row.answer.rationale if row else "",
        "summary": report.summary if report else "",
    }
    text = {name: encodable(value) for name, value in texts.items()}
    message = {"role": "assistant", "content": text["reply"]}
    scores: dict[str, Any] = {}
    if gold is not None:
        right = has_labels(label, gold)
        scores[GOLD] = {"value": float(right), "answer": line, "explanation": text["rationale"]}
    if report is not None:
        scores[EVALUATOR] = {
            "value": report.score / 100,
            "answer": line,
            "explanation": text["summary"],
            "metadata": report.model_dump(mode="json", include={"verdict", "issues", "caps"}),
        }
    return {
        "id": current.case.case,
        "epoch": 1,
        "input": text["input"],
        "target": str(gold or ""),
        "messages": [{"role": "user", "content": text["input"]}, message],
        "output": {
            "model": call.reply.response_model if call else "",
            "choices": [{"message": message, "stop_reason": "stop"}],
            "completion": line,
        },
        "scores": scores,
        "metadata": {
            "status": current.status,
            "path": " > ".join(outcome.path),
            "reason": outcome.reason,
            "generation": outcome.generation,
            "rationale": text["rationale"],
            "reviewer": entry.latest and entry.latest.reviewer,
        },
        "started_at": outcome.started.isoformat(),
        "completed_at": outcome.finished.isoformat(),
        "total_time": (outcome.finished - outcome.started).total_seconds(),
    }


def _cases(annotation: AnnotationRun) -> Iterator[CurrentCase]:
    archived = annotation.archived
    return archived.cases(until=archived.row().records)


EXPORTERS: Mapping[str, tuple[str, Callable[[AnnotationRun, str], None]]] = {
    "parquet": ("cases.parquet", _write_table),
    "csv": ("cases.csv", _write_table),
    "label-studio": ("label-studio.json", _write_tasks),
    "inspect": ("inspect", _write_logs),
}
"""By format, the file or directory that is written, and what writes it."""
