"""The registration of networks, one for each architecture."""

from collections.abc import Iterator

import pytest

from raylab.arc.models import base
from raylab.arc.models.base import build_model, check_networks, network_of
from raylab.arc.models.decoder_only import DecoderOnly
from raylab.config.models import ALL_MODELS, MODEL_CONFIGS, DecoderOnlyConfig


class FourthConfig(DecoderOnlyConfig):
    """An architecture that is not registered."""


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(base, "NETWORKS", dict(base.NETWORKS))
    yield


def test_every_architecture_has_a_network() -> None:
    check_networks(MODEL_CONFIGS.values())
    assert [*(model.architecture for model in ALL_MODELS), "custom"] == list(MODEL_CONFIGS)


def test_an_architecture_without_a_network_is_an_error_not_another_model() -> None:
    with pytest.raises(TypeError, match=r"FourthConfig has no network: .*@network_of"):
        check_networks([*MODEL_CONFIGS.values(), FourthConfig])
    with pytest.raises(KeyError):
        build_model(FourthConfig())


def test_two_networks_of_one_architecture_are_an_error() -> None:
    network_of(FourthConfig)(DecoderOnly)
    assert isinstance(build_model(FourthConfig(layers=1)), DecoderOnly)
    with pytest.raises(TypeError, match="FourthConfig has two networks"):
        network_of(FourthConfig)(DecoderOnly)
