"""The page of a pipeline."""

from collections.abc import Iterator, Mapping, Sequence

from raylab.arc.pages.models import (
    Models,
    accuracy_phrase,
    rule_label,
)
from raylab.arc.pages.pictures import SHOWN_MODELS, picture_blocks
from raylab.arc.pages.training import (
    list_caveats,
    summarize_models,
    summarize_tuning,
    training_sections,
    tuning_sections,
)
from raylab.arc.records import Example
from raylab.benchmark.figures.record import Quality
from raylab.benchmark.pages.quality import quality_section
from raylab.core.page.page import Page, Section, provenance
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.run_record import RunRecord
from raylab.together.config import PipelineConfig


def pipeline_page(
    uri: str,
    record: RunRecord,
    config: PipelineConfig,
    models: Models,
    tuned: Models,
    *,
    tree: str,
    quality: Quality,
    examples: Sequence[Example],
    rules: Mapping[str, Mapping[str, float]],
    diagnosis: Sequence[Section] = (),
) -> Page:
    """Returns the page of a pipeline.

    `tree` is the name of its score tree, which `quality` and `diagnosis` are about. `rules` are the
    accuracies of the rules that learn nothing, by score tree or prior and rule.
    """
    metric = config.scoring.metric
    labels = {
        scored: {rule_label(rule): value for rule, value in values.items()}
        for scored, values in rules.items()
    }
    scores, *curves_and_groups = training_sections(models, config.training.monitor)
    sections = [
        scores,
        *tuning_sections(tuned),
        *_examples(examples, models, metric),
        *curves_and_groups,
        quality_section(1, tree, quality, f" Accuracy is {accuracy_phrase(metric)}.", labels),
        *diagnosis,
        provenance(uri, record),
    ]
    figures = [
        f"{name} {figure.value:.3f}"
        for name, figure in quality.figures.items()
        if figure.value is not None
    ]
    figures = figures or ["no figure could be computed"]
    lead = [
        *summarize_models(models),
        *summarize_tuning(tuned),
        f"Quality of {tree}: {join_names(figures)}.",
    ]
    return Page(
        record.job,
        record.name,
        uri,
        lead,
        sections,
        list(list_caveats(config.training, config.data, models)),
    )


def _examples(examples: Sequence[Example], models: Models, metric: str) -> Iterator[Section]:
    if not examples:
        return
    metrics = {name: model.result.metrics for name, model in models.items()}
    names = dict.fromkeys(name for example in examples for name in example.predictions)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(metric, -1.0))
    solved = sum(any(a.solved for a in e.predictions.values()) for e in examples)
    lead = f"{pluralize(len(examples), 'task')}, of which models solve {solved or 'none'}"
    lead += "; solved ones come first." if solved else "."
    blocks = [lead, *picture_blocks(examples, best[:SHOWN_MODELS])]
    yield Section("tasks", "Answers of the models", blocks)
