"""Several architectures trained one after another in one run, and compared."""

from collections import Counter

from raylab.cluster.session import session
from raylab.cluster.train import METRICS, fit
from raylab.config import ModelConfig, PipelineConfig, TrainConfig
from raylab.entrypoint import console
from raylab.report.tables import comparison_table
from raylab.runs import Json, Run


def run_pipeline(config: PipelineConfig) -> None:
    """Train every model of `config`, each in a run directory within the pipeline's, and compare.

    Models that are finished are not trained again.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    run = Run.open(config, config.job)
    results: dict[str, Json] = {}
    with session(config.cluster):
        for name, model in _named(config.models).items():
            print(f"\n{name} -> {run.uri}/{name}", flush=True)
            training = TrainConfig(
                storage=run.uri,
                name=name,
                resume=True,
                model=model,
                data=config.data,
                training=config.training,
                cluster=config.cluster,
            )
            results[name] = fit(training, Run.open(training, training.job))
            run.write_json(METRICS, {"models": results})
    console().print(comparison_table(results))
    run.finish()


def _named(models: tuple[ModelConfig, ...]) -> dict[str, ModelConfig]:
    """The models by architecture, numbered where one architecture comes more than once."""
    total = Counter(model.architecture for model in models)
    seen: Counter[str] = Counter()
    named: dict[str, ModelConfig] = {}
    for model in models:
        seen[model.architecture] += 1
        number = f"-{seen[model.architecture]}" if total[model.architecture] > 1 else ""
        named[f"{model.architecture}{number}"] = model
    return named
