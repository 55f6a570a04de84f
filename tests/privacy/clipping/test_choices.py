from dpft.privacy.clipping.choices import ENGINE_NAMES, STYLE_NAMES
from dpft.privacy.clipping.engines import ENGINES
from dpft.privacy.clipping.factors import STYLES


def test_what_a_configuration_may_choose_is_what_there_is() -> None:
    assert tuple(ENGINES) == ENGINE_NAMES
    assert tuple(STYLES) == STYLE_NAMES
