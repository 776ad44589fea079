"""Planning again, from the IR of a plan, for a cluster with other numbers."""

from __future__ import annotations

from dataclasses import replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from ..dialects.pipe import FragmentOp, TransferOp
from ..dialects.placed import parts_of
from ..ir.cluster import Cluster
from ..passes.add_cluster import add_cluster
from ..passes.errors import describe
from ..passes.pipeline import run_pipeline
from .compile import PlanOptions


def replanned(module: ModuleOp, cluster: Cluster, options: PlanOptions = PlanOptions()) -> ModuleOp:
    """
    What the usual passes make of a planned module on another cluster; the module stays as it is.

    PassFailedException where it has loops over parts of the batch or stages, which are made before a search and not
    taken back; PassError where no plan fits the cluster.
    """
    for op in module.walk():
        if isinstance(op, FragmentOp | TransferOp) or parts_of(op):
            reason = "is of a loop over parts of the batch, or of a pipeline"
            raise PassFailedException(f"{describe(op)} {reason}, which cannot be planned again; keep the plan")
    if options.algorithm is None:
        # Sweeps plan again and again, on the mesh that there is.
        options = replace(options, algorithm="fixed" if options.pins else "eliminate")
    found = module.clone()
    add_cluster(found, cluster)
    run_pipeline(Context(), found, f"strip-resharding,{options.passes(cluster)}")
    return found
