"""What the figures of a diagnosis say, for readers who do not know the statistics."""

from collections.abc import Callable, Iterator

from raylab.benchmark.checks.diagnosis import Diagnosis
from raylab.benchmark.checks.differences import Differences
from raylab.benchmark.checks.forms import Forms
from raylab.benchmark.checks.noise import RESIDUAL, Component, Noise
from raylab.benchmark.checks.sampling import FEW_CLUSTERS
from raylab.benchmark.checks.stability import PriorAgreement
from raylab.benchmark.checks.suspects import Fault, Suspects
from raylab.benchmark.checks.wrong_keys import SOURCE
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.records import Figure
from raylab.core.stats import LEVEL

SOURCES = {
    "models": "models",
    "clusters": "clusters of items",
    "items": "items",
    "model x cluster": "clusters that suit some models",
    "model x item": "items that suit some models",
    "generations": "generations",
    "model x generation": "generations that suit some models",
    RESIDUAL: "chance in single answers",
}
"""What the components of the variance come from."""
MERGED = "chance and items that suit some models, which single answers cannot tell apart"
"""What the residual comes from where no model answers an item twice."""


def verdict(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Returns sentences on the differences, the noise, suspect items, and the second form."""
    sentences = (
        describe_differences(diagnosis.differences),
        describe_noise(diagnosis.noise),
        describe_suspects(diagnosis),
        diagnosis.confirmed,
        describe_forms(diagnosis.forms) if diagnosis.forms else "",
    )
    return tuple(filter(None, sentences))


def describe_suspects(diagnosis: Diagnosis) -> str:
    """Says how many items somebody should look at, and why, and which is the first."""
    suspects = diagnosis.suspects
    if suspects.items:
        counts = join_names([f"{kind} {count:,}" for kind, count in suspects.counts.items()])
        first = suspects.listed[0]
        return (
            f"{suspects.items:,} of the {diagnosis.items:,} items "
            f"{'is' if suspects.items == 1 else 'are'} suspect ({counts}); the first is "
            f"{first.item}. {first.reasons[0].sentence}"
        )
    if suspects.lowest:
        return (
            "No text repeats and no key is suspect; the first item to look at is "
            f"{suspects.lowest[0]}."
        )
    return f"None of the {diagnosis.items:,} items is suspect."


def describe_agreement(suspects: Suspects) -> str:
    """Says what the models are worth, which items tell none apart, and where shares come from."""
    alike = (
        f"All models are right on {pluralize(suspects.all_right, 'item')} and wrong on "
        f"{suspects.all_wrong:,}, which tell none apart."
    )
    effective = _say(
        "The number of independent models",
        suspects.effective_models,
        lambda value: (
            f"Models fail together: {suspects.effective_models.count} are worth {value:.1f} "
            "independent ones (Kish)."
        ),
    )
    return f"{alike} {effective}{f' {SOURCE}' if Fault.KEY in suspects.counts else ''}"


def describe_differences(differences: Differences) -> str:
    """Says how many pairs of models differ, and how large a difference must be."""
    number, pairs = differences.apart, pluralize(differences.pairs, "pair")
    differ = f"{pairs} of models {'differs' if number == 1 else 'differ'}"
    apart = f"{number:,} of {differ} at the 5 % level (Holm)."
    if not differences.pairs:
        apart = "There is one model, and no pair to tell apart."
    smallest = _say(
        "The smallest detectable difference",
        differences.smallest,
        lambda value: f"A true difference of {points(value)} is detected 80 % of the time.",
    )
    needed = list[str]()
    if differences.detect is not None:
        wanted = points(differences.detect)
        needed.append(
            _say(
                f"The number of items that detect {wanted}",
                differences.needed,
                lambda value: f"{value:,.0f} items detect a difference of {wanted}.",
            )
        )
    return " ".join([apart, smallest, *needed, *_caution(differences)])


def _caution(differences: Differences) -> Iterator[str]:
    """Yields what a reader of the differences must know."""
    if differences.clusters is not None and differences.clusters < FEW_CLUSTERS:
        yield (
            f"There are {differences.clusters} clusters of items; below {FEW_CLUSTERS}, errors are "
            "uncertain."
        )
    if below := [rank.model for rank in differences.ranks if rank.below_lower]:
        yield (
            f"{join_names(below)} {'ranks' if len(below) == 1 else 'rank'} below a model with a "
            "lower mean, which has harder items: ranks go by the items that models share."
        )


def describe_noise(noise: Noise) -> str:
    """Says how large the noise is, and where most of the variance comes from."""
    models, *others = noise.components
    if not (shares := {each.name: each.share for each in others if each.share is not None}):
        return describe_component(noise, models)
    name = max(shares, key=shares.__getitem__)
    most = f"Apart from the models, most variance ({100 * shares[name]:.0f} %) comes from"
    return f"{describe_signal(noise)} {most} {_source(noise, name)}."


def describe_component(noise: Noise, component: Component) -> str:
    """Says what share of the variance a component is."""
    return _say(
        f"The variance of {component.name}",
        component.variance,
        lambda variance: (
            f"{100 * (component.share or 0.0):.0f} % of the variance of a score comes "
            f"from {_source(noise, component.name)}."
        ),
    )


def describe_signal(noise: Noise) -> str:
    """Says how the spread of the models compares with the noise."""
    return _say(
        "The signal-to-noise ratio",
        noise.signal_to_noise,
        lambda ratio: (
            f"The spread of the models is {ratio:.1f} times the noise from the choice of "
            f"{join_names(noise.sources)}."
        ),
    )


def describe_stability(diagnosis: Diagnosis) -> str:
    """Says how alike two halves of the items would rank the models."""
    return _say(
        "The stability of the ranking",
        diagnosis.stability,
        lambda value: (
            f"Two halves of the {pluralize(diagnosis.items, 'item')} rank "
            f"{50 * (1 + value):.0f} % of the pairs of models alike."
        ),
    )


def describe_forms(forms: Forms) -> str:
    """Says how much lower or higher the models score on the second form, and what it broke."""
    apart = sum(shift.adjusted < LEVEL for shift in forms.shifts)
    shift = _say(
        "The shift to the second form",
        forms.overall.shift,
        lambda value: (
            f"From the first form to the second, the models' mean shifts by {100 * value:+.1f} "
            f"points{between(forms.overall.shift)} on {pluralize(forms.items, 'common item')}."
        ),
    )
    models = f"{pluralize(forms.models, 'model')} {'shifts' if apart == 1 else 'shift'}"
    broken = pluralize(forms.broken_items, "item")
    return (
        f"{shift} {apart:,} of {models} at the 5 % level (Holm). {broken} lost more models than "
        "chance explains."
    )


def describe_correlation(forms: Forms) -> str:
    """Says how alike the two forms order the models, without the noise of their means."""
    correlation = forms.correlation
    if correlation.corrected is None:
        return f"Without noise it cannot be computed: {correlation.reason}."
    return f"Without the noise of the means, it would be {correlation.corrected:.2f}."


def describe_prior(prior: PriorAgreement) -> str:
    """Says how an earlier benchmark ranks the models, and which items are in both."""
    tau = _say(
        f"The agreement with {prior.name}",
        prior.tau,
        lambda value: (
            f"{prior.name} ranks the {prior.models} common models with a tau of "
            f"{value:.2f} to this one."
        ),
    )
    return (
        f"{tau} {pluralize(prior.common_items, 'item')} of this benchmark "
        f"({100 * prior.overlap:.0f} %) are in {prior.name} too."
    )


def between(figure: Figure) -> str:
    """Returns the interval of a difference in points, in brackets; nothing without one."""
    if figure.interval is None:
        return ""
    return " ({:+.1f} to {:+.1f})".format(*(100 * end for end in figure.interval))


def points(share: float) -> str:
    """Returns a difference of shares in percentage points."""
    return f"{100 * share:.1f} points"


def _say(name: str, figure: Figure, say: Callable[[float], str]) -> str:
    """Returns what the value of a figure says, or why it has none."""
    if figure.value is None:
        return f"{name} cannot be computed: {figure.reason}."
    return say(figure.value)


def _source(noise: Noise, name: str) -> str:
    estimated = {each.name for each in noise.components if each.share is not None}
    return MERGED if name == RESIDUAL and "model x item" not in estimated else SOURCES[name]
