"""A codebook whose answers are records of topics, a number and a text, and cases of it."""

from raylab.label.codebooks.codebook import compare
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.protocol.outcome import Outcome
from tests.label.protocol.outcomes import answer, outcome

TOPICS = {"billing": "an invoice is wrong", "login": "no way in", "praise": "thanks"}
TICKETS = make_codebook(
    CodebookConfig.model_validate(
        {
            "name": "tickets",
            "noun": "a record",
            "task": "What is the ticket about?",
            "fields": {
                "topics": {"labels": TOPICS, "several": True},
                "severity": {"number": [1, 5], "distance": "graded"},
                "quote": {"text": 60, "optional": True},
            },
        }
    )
)


def ticket(case: str, a: str, b: str, gold: str | None = None) -> Outcome:
    """An accepted case of two answers, each with topics and severity, such as `[billing] 3`."""
    lines = [line if line is None else "topics: {}, severity: {}".format(*line.rsplit(" ", 1))
             for line in (a, b, gold)]  # fmt: skip
    labels = [line if line is None else TICKETS.read(line) for line in lines]
    whole = outcome(case, answer("Lrn"), answer("Lrn"))
    answers = {
        name: each.model_copy(
            update={"classification": each.classification.model_copy(update={"label": label})}
        )
        for (name, each), label in zip(whole.answers.items(), labels, strict=False)
    }
    assert labels[0] and labels[1]
    agreements = {"AB": compare(labels[0], labels[1], TICKETS.distance)}
    changes = {"answers": answers, "agreements": agreements, "label": labels[0]}
    return whole.model_copy(update={**changes, "gold": lines[2], "gold_label": labels[2]})
