"""The place of each device, as a table for launchers: a line for each device that a plan uses."""

from __future__ import annotations

import csv
import io

from nest.pricing.plans import Plan

HEADS = ("rank", "device", "name", "replica", "stage", "tp", "cp", "dp_in")


def ranks_text(plan: Plan) -> str:
    """Give the ranks of a plan as CSV.

    Ranks count the devices that are used, in the order of the cluster: in a block, tp goes fastest,
    then cp, then dp_in (`nest.costs.network.groups`). ``device`` is the number in the graph that
    the cluster was given as, ``name`` what it is called there; of a cluster with levels, the number
    in the cluster and nothing.

    Parameters
    ----------
    plan : as `plan` or `evaluate` gives it.
    """
    cluster = plan.inputs.cluster
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(HEADS)
    rank = 0
    for replica, origin in enumerate(plan.replicas):
        for number, stage in enumerate(plan.stages):
            first, stop = stage.devices
            for place in range(stop - first):
                device = origin + first + place
                rest, tp = divmod(place, stage.tp)
                dp_in, cp = divmod(rest, stage.cp)
                table.writerow((
                    rank,
                    device if cluster.order is None else cluster.order[device],
                    "" if cluster.names is None else cluster.names[device],
                    replica, number, tp, cp, dp_in,
                ))
                rank += 1
    return stream.getvalue()
