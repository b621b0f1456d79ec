"""The coverage of 95 % intervals, in simulations of which the truth is known."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from rich.table import Table

from raylab.annotation.statistics.agreement import cohen_kappa, krippendorff_alpha
from raylab.annotation.statistics.estimates import amount_mean, share_mean
from raylab.arc.metrics import Count, standard_errors
from raylab.config.jobs import BenchmarkConfig
from raylab.log import log_line, log_tables
from raylab.opt.code import Root
from raylab.quality.intervals import chunk_weights, deviations
from raylab.quality.measure import figure_of
from raylab.quality.metrics import METRICS as FIGURES
from raylab.quality.metrics import MeanAccuracies
from raylab.runs.eval_logs import is_estimated
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

SEED = 14
REPLICATES = 500
MODELS = (3, 6, 10, 50)
GENERATIONS = (1, 2, 3, 10)
TASKS = (60, 400)
SHIFTS = {"equal": 0.0, "near": 0.05, "tied best": 0.1, "one best": 0.3, "spread": 1.0}
"""Standard deviation of the generations, in logits, by how the models lie."""
CASES = (20, 30, 100)
AGREEMENTS = (0.8, 0.9, 0.95, 0.98)
EQUAL = (0.5, *AGREEMENTS)
SIMILARITIES = {0.0: 0.3, 1 / 3: 0.2, 0.5: 0.3, 0.8: 0.2}
EDITS = {3.0: 0.3, 4.0: 0.25, 6.0: 0.2, 8.0: 0.15, 12.0: 0.07, 20.0: 0.03}
"""Shares of the cases that are not equal, by value."""
CATEGORIES = (0.3, 0.2, 0.15, 0.15, 0.1, 0.05, 0.05)
GRIDS = (10, 30, 100, 400)
SHARES = (0.02, 0.1, 0.5, 0.9)
TOLERANCE = 1e-9

Array = NDArray[np.float64]


class Coverage(Part):
    """The coverage of the interval of one figure in one setting."""

    figure: str
    setting: str
    size: str
    """Numbers of what was simulated."""
    given: float
    """Share of the simulations with an interval."""
    covered: float | None
    """Share of those whose interval held the truth; None if none had one."""


class CoverageBenchmark(Record):
    """Coverage of every interval, by setting."""

    file: ClassVar[str] = METRICS
    coverage: tuple[Coverage, ...]


@dataclass
class _Hits:
    tried: int = 0
    given: int = 0
    covered: int = 0

    def add(self, interval: tuple[float, float] | None, truth: float) -> None:
        self.tried += 1
        if interval is not None:
            self.given += 1
            self.covered += interval[0] - TOLERANCE <= truth <= interval[1] + TOLERANCE

    def told(self, figure: str, setting: str, size: str) -> Coverage:
        covered = self.covered / self.given if self.given else None
        return Coverage(
            figure=figure,
            setting=setting,
            size=size,
            given=self.given / self.tried,
            covered=covered,
        )


def benchmark_coverage(config: BenchmarkConfig) -> None:
    """Simulates every interval, prints how often each held and writes `metrics.json`.

    Raises:
        RaylabError: the run's name is taken.
    """
    run = Run.open(config, config.job)
    parts: list[Coverage] = []
    generator = np.random.default_rng(SEED)
    for lie, models, generations, tasks in product(SHIFTS, MODELS, GENERATIONS, TASKS):
        setting = Setting(lie, models, generations, tasks)
        parts.extend(quality_coverage(setting, config.simulations, generator))
        log_line(f"{setting.lie}, {setting.size}")
    for agreement, cases in product(AGREEMENTS, CASES):
        parts.extend(agreement_coverage(agreement, cases, config.simulations, generator))
    for equal, cases in product(EQUAL, CASES):
        parts.extend(mean_coverage(equal, cases, config.simulations, generator))
    for share, grids in product(SHARES, GRIDS):
        parts.extend(error_coverage(share, grids, config.simulations, generator))
    run.write_record(CoverageBenchmark(coverage=tuple(parts)))
    log_tables(_table(parts), coverage=[part.model_dump() for part in parts])
    run.finish()


@dataclass(frozen=True)
class Setting:
    """Models on a benchmark.

    Attributes:
        lie: How the models lie: a key of `SHIFTS`.
        models: Number of models.
        generations: Number of generations.
        tasks: Tasks in each generation, the same ones.
    """

    lie: str
    models: int
    generations: int
    tasks: int

    @property
    def size(self) -> str:
        """The numbers as text."""
        return f"{self.models} models, {self.generations} generations, {self.tasks} tasks"

    def skills(self) -> Array:
        """Returns the (models,) logits of the models."""
        match self.lie:
            case "equal":
                return np.zeros(self.models)
            case "near":
                return np.linspace(-0.1, 0.1, self.models)
            case "one best":
                return np.append(np.zeros(self.models - 1), 1.0)
            case "tied best":
                skills = np.linspace(-2.0, 1.0, self.models)
                return np.append(skills[1:], skills[-1])
            case _:
                return np.linspace(-1.5, 1.5, self.models)


def quality_coverage(
    setting: Setting, simulations: int, generator: np.random.Generator
) -> list[Coverage]:
    """Returns the coverage of the figures of a benchmark.

    The logit of the chance that a model solves a task is its skill, plus the shift of the
    generation, plus the task's ease, which is standard normal.
    """
    weights, sums = chunk_weights(tuple(f"0/{n}.json" for n in range(setting.tasks)), REPLICATES)
    names = [""] if setting.generations == 1 else [str(n) for n in range(setting.generations)]
    counts = np.full((setting.models, setting.generations), setting.tasks, float)
    hits = {name: _Hits() for name in FIGURES if name != "novelty"}
    for _ in range(simulations):
        shifts = SHIFTS[setting.lie] * generator.standard_normal(setting.generations)
        logits = setting.skills()[:, None] + (shifts if setting.generations > 1 else 0.0)
        ease = generator.standard_normal(setting.tasks)[:, None, None]
        solved = (generator.random((setting.tasks, *logits.shape)) < _chance(logits + ease)) * 1.0
        drawn = np.tensordot(weights.T, solved, axes=1)
        noise = deviations(drawn, np.broadcast_to(sums[:, None, None], drawn.shape), counts)
        measured = MeanAccuracies(solved.mean(axis=0), (), names, setting.tasks)
        true = MeanAccuracies(_true_accuracies(logits), (), names)
        for name, of in hits.items():
            metric = FIGURES[name]
            if not metric.why_not(true):
                interval = figure_of(metric, measured, noise).interval
                of.add(interval, float(metric.compute(true)))
    return [of.told(name, setting.lie, setting.size) for name, of in hits.items() if of.tried]


def agreement_coverage(
    agreement: float, cases: int, simulations: int, generator: np.random.Generator
) -> list[Coverage]:
    """Returns the coverage of kappa and alpha; annotators who differ do so by chance."""
    base = np.array(CATEGORIES)
    different = np.outer(base, base) * (1 - np.eye(len(base)))
    pairs = agreement * np.diag(base) + (1 - agreement) * different / different.sum()
    answers = [(a, b) for a in list(Root)[: len(base)] for b in list(Root)[: len(base)]]
    margin = (pairs.sum(0) + pairs.sum(1)) / 2
    # Equal margins: of both, the expected disagreement is that of the margin with itself.
    true = 1 - (1 - agreement) / (1 - (margin**2).sum())
    kappas, alphas = _Hits(), _Hits()
    for _ in range(simulations):
        drawn = generator.multinomial(cases, pairs.ravel()).tolist()
        counts = {pair: n for pair, n in zip(answers, drawn, strict=True) if n}
        kappas.add(cohen_kappa({(a, b): n for (a, b), n in counts.items()}).interval, true)
        sets = {(frozenset({a}), frozenset({b})): n for (a, b), n in counts.items()}
        alphas.add(krippendorff_alpha(sets, _unequal).interval, true)
    setting, size = f"agreement {agreement:.2f}", f"{cases} cases"
    return [kappas.told("kappa", setting, size), alphas.told("alpha", setting, size)]


def mean_coverage(
    equal: float, cases: int, simulations: int, generator: np.random.Generator
) -> list[Coverage]:
    """Returns the coverage of the means of similarities and of edits, where some are equal."""
    similar, edited = _Hits(), _Hits()
    for hits, others, of_equal in ((similar, SIMILARITIES, 1.0), (edited, EDITS, 0.0)):
        shares = {value: (1 - equal) * share for value, share in others.items()} | {of_equal: equal}
        true = sum(value * share for value, share in shares.items())
        for seed in range(simulations):
            drawn = generator.multinomial(cases, list(shares.values())).tolist()
            counts = {value: n for value, n in zip(shares, drawn, strict=True) if n}
            found = share_mean(counts, seed) if hits is similar else amount_mean(counts)
            hits.add(found.interval, true)
    setting, size = f"equal {equal:.2f}", f"{cases} cases"
    return [
        similar.told("mean similarity", setting, size),
        edited.told("mean edits", setting, size),
    ]


def error_coverage(
    share: float, grids: int, simulations: int, generator: np.random.Generator
) -> list[Coverage]:
    """Returns the coverage of 1.96 standard errors around a share of grids and one of cells.

    The cells of a grid are 4 to 200; how many are right differs from grid to grid as Beta with a
    concentration of 3.
    """
    hits = {"grid_accuracy": _Hits(), "cell_accuracy": _Hits()}
    for _ in range(simulations):
        counts = torch.zeros(grids, len(Count), dtype=torch.int64)
        cells = generator.integers(4, 200, grids)
        of_grid = generator.beta(3 * share, 3 * (1 - share), grids)
        counts[:, Count.GRIDS] = 1
        counts[:, Count.EXACT] = torch.from_numpy(generator.binomial(1, share, grids))
        counts[:, Count.CELLS] = torch.from_numpy(cells)
        counts[:, Count.CORRECT_CELLS] = torch.from_numpy(generator.binomial(cells, of_grid))
        errors = standard_errors(counts)
        values = {
            "grid_accuracy": float(counts[:, Count.EXACT].double().mean()),
            "cell_accuracy": float(counts[:, Count.CORRECT_CELLS].sum() / cells.sum()),
        }
        for name, of in hits.items():
            value, half = values[name], 1.96 * errors[name]
            of.add((value - half, value + half) if is_estimated(value, grids) else None, share)
    setting, size = f"share {share:.2f}", f"{grids} grids"
    return [of.told(f"standard error of {name}", setting, size) for name, of in hits.items()]


def _unequal(first: Iterable[Any], second: Iterable[Any]) -> float:
    return float(first != second)


def _chance(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))


def _true_accuracies(logits: Array) -> Array:
    """Returns the mean chance over tasks of standard normal ease, by Gauss-Hermite quadrature."""
    nodes, weights = hermegauss(40)
    return _chance(logits[..., None] + nodes) @ (weights / weights.sum())


def _table(parts: Iterable[Coverage]) -> Table:
    table = Table(title="Coverage of 95 % intervals: least and greatest over the sizes")
    for label in ("figure", "setting", "given", "covered"):
        table.add_column(label, justify="right" if label in ("given", "covered") else "left")
    grouped: dict[tuple[str, str], list[Coverage]] = {}
    for part in parts:
        grouped.setdefault((part.figure, part.setting), []).append(part)
    for (figure, setting), members in sorted(grouped.items()):
        table.add_row(figure, setting, *_cells(members))
    return table


def _cells(members: list[Coverage]) -> Iterator[str]:
    given = [part.given for part in members]
    covered = [part.covered for part in members if part.covered is not None]
    for values in (given, covered):
        yield f"{min(values):.2f} - {max(values):.2f}" if values else "-"
