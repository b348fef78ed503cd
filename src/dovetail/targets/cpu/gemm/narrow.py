"""Contract, with few columns: classifiers, routers and regressions, whose columns would not fill a register tile."""

from __future__ import annotations

from dovetail.codegen.llvm.function import Signature
from dovetail.ir.dim import Size
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import Packed, SharedFunction, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.narrow_kernel import NarrowTile, narrow_function
from dovetail.targets.cpu.gemm.pack import Columns
from dovetail.targets.cpu.gemm.policy import NARROW, tiles_of
from dovetail.targets.cpu.gemm.variant import Weights, is_turned, served


def offer_narrow(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a product with few columns, by weights that are packed before the run."""
    found = served(of)
    if isinstance(found, Refused):
        return found
    refused = _refused(found, of.device)
    if refused is not None:
        return refused
    if is_turned(found, of.locations) is None:
        return Refused("weights_are_known", found.rights[0].op.name, "a parameter or a constant")
    columns = found.result.shape[-1]
    assert isinstance(columns, int), "columns that are few are known"
    tile = NarrowTile(of.device, columns)
    return Offer(lambda: _NarrowWeights(of.step, found, of.locations, tile).job())


def _refused(found: Contraction, device: CpuDevice) -> Refused | None:
    deep, columns = found.rights[0].shape[-2:]
    wide = tiles_of(device).vectors * device.lanes
    most = min(NARROW.most_columns, wide // 2)
    if not isinstance(columns, int) or columns > most:
        return Refused("columns_are_few", str(columns), f"at most {most}, which leave a tile of {wide} half empty")
    if not isinstance(deep, int) or deep < NARROW.least_vectors * device.lanes:
        return Refused("sums_are_long", str(deep), f"at least {NARROW.least_vectors} vectors of {device.lanes}")
    if len(found.streams) > 1 or found.rights[0].rank != 2:
        return Refused("one_matrix", f"{len(found.streams)} of rank {found.rights[0].rank}", "one of rank 2")
    return None


class _NarrowWeights(Weights):
    """Products whose columns are all in one cell."""

    stem = "narrow"

    def __init__(self, step: Step, found: Contraction, locations: TensorLocations, narrow: NarrowTile) -> None:
        super().__init__(step, found, locations, narrow.padded)
        self.narrow = narrow

    def _panels(self) -> None:
        (right,) = self.found.rights
        pack = Columns(self.tile.lanes, is_turned(self.found, self.locations) is True)
        self.bindings["b0"] = Packed(self.found.operand(right), pack.layout, pack)
        self.fronts["b0"] = (0,) * (self.found.result.rank - 1)

    def _multiply(self) -> tuple[SharedFunction, Signature]:
        return narrow_function(self.narrow)

    def _live(self) -> Size:
        return self.narrow.columns

    def _block(self) -> int:
        return NARROW.block
