"""The demo's chart: mean departure delay per carrier and hour of the day.

Rules: reads the table that the Spark job wrote, by pyarrow alone; bars for the terminal, a heat map
for the file. Hours are New York's.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark.table import read_table

_CARRIERS_SHOWN = 12
_BAR = 40
_ZONE = "America/New_York"


def mean_delays(directory: Path) -> pa.Table:
    """Return the mean delay in minutes and the number of departures per carrier and hour."""
    sums = read_table(str(directory / "delays")).to_table()
    local = pc.hour(sums["hour"].cast(pa.timestamp("us", tz=_ZONE)))
    totals = (
        sums.append_column("local_hour", local)
        .group_by(["carrier", "local_hour"])
        .aggregate([("departed", "sum"), ("dep_delay_sum", "sum")])
    )
    return _with_mean(totals.filter(pc.greater(totals["departed_sum"], 0)))


def text_chart(delays: pa.Table) -> str:
    """Return bars of the mean delay per hour of the day, for a terminal."""
    by_hour = _with_mean(_summed(delays, "local_hour")).sort_by("local_hour").to_pylist()
    longest = max(row["mean"] for row in by_hour)
    lines = ["Mean departure delay by scheduled hour (New York, 2013), in minutes"]
    for row in by_hour:
        bar = "█" * max(0, round(row["mean"] / longest * _BAR))
        lines.append(f"  {row['local_hour']:02d}:00 {row['mean']:6.1f} {bar}")
    return "\n".join(lines)


def draw_chart(delays: pa.Table, path: Path) -> Path:
    """Write a heat map of carriers by hours as a PNG image."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    busiest = _summed(delays, "carrier").sort_by([("departed_sum", "descending")])
    carriers = busiest["carrier"].to_pylist()[:_CARRIERS_SHOWN]
    hours = sorted(pc.unique(delays["local_hour"]).to_pylist())
    means = {(r["carrier"], r["local_hour"]): r["mean"] for r in delays.to_pylist()}
    grid = [[means.get((carrier, hour), float("nan")) for hour in hours] for carrier in carriers]
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    image = axes.imshow(grid, aspect="auto", cmap="magma_r", vmin=0, vmax=45)
    axes.set_xticks(range(len(hours)), [f"{hour:02d}" for hour in hours])
    axes.set_yticks(range(len(carriers)), carriers)
    axes.set_xlabel("scheduled hour of departure (New York)")
    axes.set_ylabel("carrier, busiest first")
    axes.set_title("Mean departure delay, flights from New York in 2013")
    figure.colorbar(image, label="minutes")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _summed(delays: pa.Table, key: str) -> pa.Table:
    sums = delays.select([key, "departed_sum", "dep_delay_sum_sum"]).group_by(key)
    return sums.aggregate([("departed_sum", "sum"), ("dep_delay_sum_sum", "sum")]).rename_columns(
        [key, "departed_sum", "dep_delay_sum_sum"]
    )


def _with_mean(totals: pa.Table) -> pa.Table:
    mean = pc.divide(totals["dep_delay_sum_sum"].cast(pa.float64()), totals["departed_sum"])
    return totals.append_column("mean", mean)
