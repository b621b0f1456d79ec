"""The page of a sweep: trials by rank, what was searched, curves, the best configuration."""

import shlex
from collections.abc import Iterator, Mapping

from raylab.arc.sweep import SweepMetrics
from raylab.config.search import Domain, SearchSpace
from raylab.grid_metrics import VALIDATION, best_rule, label_of, skill, worst
from raylab.printable import join_names, pluralize
from raylab.report.charts import History
from raylab.report.page import Block, Page, Section, block, curves, provenance
from raylab.report.table import BEST, MISSING, RULE, Cell, Column, Row, Table, percent
from raylab.runs.run_record import RunRecord

PAGE_ONLY = ("skill", "epochs", "parameters")
"""Columns for which a terminal of 80 columns has no room."""
SHOWN_TRIALS = 200
"""Most rows of the table."""
SHOWN_CURVES = 50
"""Most trials whose curves are drawn, to keep the page small."""


def sweep_page(
    uri: str,
    record: RunRecord,
    sweep: SweepMetrics,
    histories: Mapping[str, History],
    monitor: str,
    best: str,
) -> Page:
    """Returns the page.

    Args:
        uri: The run directory.
        record: Of the run.
        sweep: The trials, best first, and the rules.
        histories: Rows of the epochs by trial.
        monitor: Name of the score.
        best: The best configuration as YAML.
    """
    sections = [
        Section("trials", "Trials by rank", [sweep_table(sweep, monitor)]),
        *_search(record, sweep),
        Section("curves", "Learning curves", list(_curves(sweep, histories, monitor))),
        Section("best", "Best configuration", _best(uri, best)),
        provenance(uri, record),
    ]
    return Page("sweep", record.name, uri, list(_summarize(sweep, monitor)), sections)


def _search(record: RunRecord, sweep: SweepMetrics) -> Iterator[Section]:
    """Yields the section on what was searched, beside what the best trial drew."""
    if "space" not in record.config:
        return
    space, best = SearchSpace.model_validate(record.config["space"]), sweep.trials[0].drawn or {}
    domains = {
        f"{section}.{key}": domain
        for section, keys in {**space.model, "training": space.training}.items()
        for key, domain in keys.items()
    }
    drawn = {key: str(best[key]) for key in ("architecture", *domains) if key in best}
    searched = {"architecture": join_names([*space.model], 12)}
    searched |= {key: _describe(domain) for key, domain in domains.items()}
    rows = [[key, values, drawn.get(key, "-")] for key, values in searched.items()]
    columns = ["key", Column("searched", text=True), Column("best trial", text=True)]
    table = Table("What was searched", columns, rows)
    yield Section("search", "What was searched", [table], page_only=True)


def _describe(domain: Domain) -> str:
    if domain.choice is not None:
        return ", ".join(map(str, domain.choice))
    low, high = domain.bounds
    return f"{low:g} to {high:g}{', logarithmic' if domain.log_uniform else ''}"


def _curves(sweep: SweepMetrics, histories: Mapping[str, History], monitor: str) -> Iterator[Block]:
    names = curve_names(sweep)
    shown = list(names)[:SHOWN_CURVES]
    # The table of trials says what they drew.
    ranked = {f"rank {rank}": histories[trial] for rank, trial in enumerate(shown, 1)}
    yield curves(ranked, monitor)
    if len(shown) < len(names):
        yield f"The chart shows the best {len(shown)} of {len(names)} trials."


def curve_names(sweep: SweepMetrics) -> dict[str, str]:
    """Returns rank and drawn values of each trained trial, best first, by its name."""
    trained = (trial for trial in sweep.trials if trial.trained)
    return {trial.trial: f"{rank}. {trial.description}" for rank, trial in enumerate(trained, 1)}


def _best(uri: str, best: str) -> list[Block]:
    again = shlex.join(["python", "jobs/train.py", "--config", f"{uri}/best.yaml"])
    whole = block("fold", "best.yaml", [block("code", best)])
    return ["This command trains it in full:", block("code", again), whole]


def sweep_table(sweep: SweepMetrics, monitor: str) -> Table:
    """Returns the first trials by rank, best first, and the best rule on `monitor`, the score."""
    label = label_of(monitor)
    notes = f"Solved (free-running) and {label}, in [0, 1], of each trial at its best epoch."
    trial, run = Column("trial", text=True), Column("run", text=True, page_only=True)
    names = ("solved", label, "skill", "epoch", "epochs", "parameters")
    figures = [Column(name, page_only=name in PAGE_ONLY) for name in names]
    rows = [_trial_row(place, sweep, monitor) for place in range(len(sweep.trials[:SHOWN_TRIALS]))]
    if best := best_rule(sweep.rules, monitor):
        notes += " A skill of 0 is no better than the best rule that learns nothing."
        solved = best_rule(sweep.rules, "solve_rate")
        free = percent(None if solved is None else solved[1])
        rows += [RULE, ["-", f"best rule: {best[0]}", free, f"{best[1]:.4f}", *["-"] * 5]]
    if len(sweep.trials) > SHOWN_TRIALS:
        notes += f" The first {SHOWN_TRIALS} of {len(sweep.trials)}."
    return Table(
        f"Trials by {label} at their best epoch, on the validation tasks",
        ["rank", trial, *figures, run],
        rows,
        notes,
    )


def _trial_row(place: int, sweep: SweepMetrics, monitor: str) -> Row:
    trial = sweep.trials[place]
    if (trained := trial.trained) is None:
        reason = f"{trial.description}: {trial.failure or 'no epoch was finished'}"
        return ["-", reason, "-", Cell("failed", look=MISSING), *["-"] * 4, trial.trial]
    over = skill(trained.score, sweep.rules, monitor)
    return [
        str(place + 1),
        trial.description,
        percent(trained.solve_rate),
        Cell(
            f"{trained.score:.4f}", look=BEST if place == 0 and _stands_out(sweep, monitor) else ""
        ),
        "-" if over is None else f"{over:+.3f}",
        str(trained.epoch),
        str(trained.epochs),
        f"{trained.parameters:,}",
        trial.trial,
    ]


def _stands_out(sweep: SweepMetrics, monitor: str) -> bool:
    """Returns True if the first trial has learnt anything: it beats 0 and the best rule."""
    trained, rule = sweep.trials[0].trained, best_rule(sweep.rules, monitor)
    if trained is None or trained.score == worst(monitor):
        return False
    return rule is None or trained.score > rule[1]


def _summarize(sweep: SweepMetrics, monitor: str) -> Iterator[str]:
    yield from _summarize_best(sweep, monitor)
    if test := sweep.test:
        value = test.metrics[monitor.removeprefix(VALIDATION)]
        yield (
            f"On the test tasks, which chose nothing, it reaches a {label_of(monitor)} of "
            f"{value:.4f} and solves {percent(test.metrics.get('solve_rate'))}."
            if not test.chosen_on
            else "The reported tasks also chose it, so its figures are too good."
        )
    if failed := sum(trial.trained is None for trial in sweep.trials):
        yield f"{pluralize(failed, 'trial')} failed, for the reasons in the table."


def _summarize_best(sweep: SweepMetrics, monitor: str) -> Iterator[str]:
    best = sweep.trials[0]
    if best.trained is None:
        yield "No trial was trained."
        return
    first = "The best" if _stands_out(sweep, monitor) else "No trial beats the rules: the first"
    yield (
        f"{first} of {pluralize(len(sweep.trials), 'trial')} reached a {label_of(monitor)} of "
        f"{best.trained.score:.4f} at epoch {best.trained.epoch}: {best.description}."
    )
    if best.trained.solve_rate is not None:
        yield f"Free-running, it solves {percent(best.trained.solve_rate)} of the grids."
    if rule := best_rule(sweep.rules, monitor):
        yield f"The best rule that learns nothing, {rule[0]}, reaches {rule[1]:.4f}."
