"""Loss curves beside torch's, in small; `python -m tests.train.curves` has the four models in full."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_losses_are_those_of_torch(name: str) -> None:
    from tests.train.curves import BOUND, SMALL, curves

    found, wanted, trainer, module = curves(SMALL[name], 8, target="reference")
    assert np.abs(np.subtract(found, wanted)).max() < BOUND and wanted[-1] != wanted[0]
    stored = {n: t.detach().numpy() for n, t in module.state_dict().items()}
    assert (name == "resnet") == bool(trainer.statistics)
    for statistic in trainer.statistics:
        np.testing.assert_allclose(trainer.params[statistic], stored[statistic], rtol=1e-3, atol=1e-4)
