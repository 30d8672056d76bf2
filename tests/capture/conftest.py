"""What tests of captured steps share."""

from collections.abc import Iterator

import pytest

from microtrain.capture import c_compiler


@pytest.fixture(scope="module")
def code_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that an earlier run compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        c_compiler._load.cache_clear()
        yield
        c_compiler._load.cache_clear()
